"""What is uploaded before a job, what is not, and what the user sees of it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.aws.botocore_client import S3Storage
from smlaunch.aws.interfaces import CallError
from smlaunch.cli.transfer_display import TransferDisplay
from smlaunch.data.transfer_progress import TransferProgress
from smlaunch.discovery.local_files import list_local_files
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.local.endpoint import Endpoint
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import plan
from smlaunch.runs.runtime_archive import build_runtime_archive
from tests.runs.fakes import BUCKET, FakeStorage, FakeTransfer, fake_target

ROLE = "arn:aws:iam::123456789012:role/train"


def job(folder: Path, data: Path) -> Job:
    script = folder / "code" / "train.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("print(1)")
    return Job(entry=script, role=ROLE, inputs={"train": data})


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(path: Path) -> list[str]:
    return [file.relative_path for file in list_local_files(path)]


@pytest.mark.parametrize(
    ("strategy", "options", "of_mpi"),
    [
        ("mpi", {}, True),
        ("horovod", {}, True),
        ("horovod", {"controller": "gloo"}, False),
        ("ddp", {}, False),
        ("ray", {}, False),
        ("custom", {}, False),
    ],
)
def test_a_job_gets_the_runtime_of_its_kind(
    tmp_path: Path, strategy: str, options: dict[str, str], of_mpi: bool
) -> None:
    target = fake_target()
    allowed = ["script.strategy-library"]  # the script is a plain one
    fields = {"strategy": strategy, "options": options, "name": "kind", "inputs": {}, "allow": allowed}
    launch(Job.from_mapping({**job(tmp_path, tmp_path).to_mapping(), **fields}), target)
    stored_objects = target.__dict__["storage"].objects[BUCKET]
    (runtime,) = [content for key, content in stored_objects.items() if key.endswith("/runtime.pyz")]
    assert runtime == build_runtime_archive(of_mpi)


class RecordingTransfer(FakeTransfer):
    def __init__(self, transfer: FakeTransfer) -> None:
        self.__dict__.update(vars(transfer))
        self.keys: list[str] = []

    def upload_files(self, bucket: str, items: Any, on_progress: Callable[[int, int], None]) -> None:
        self.keys.extend(item.key.rpartition("/")[2] for item in items)
        super().upload_files(bucket, items, on_progress)


def test_objects_of_the_same_size_are_not_uploaded_again(tmp_path: Path) -> None:
    data = tree(tmp_path / "data", a="one", b="two", **{"sub/c": "three"})
    target = fake_target()
    noting = target.__dict__["transfer"] = RecordingTransfer(target.transfer)  # type: ignore[arg-type]
    job_plan = plan(job(tmp_path, data), target)
    prefix = next(upload.uri for upload in job_plan.uploads if upload.kind == "data").removeprefix(
        f"s3://{BUCKET}/"
    )
    objects = target.storage.objects[BUCKET]  # type: ignore[attr-defined]
    objects[prefix + "a"] = b"one"
    objects[prefix + "b"] = b"tw"  # cut off, by another client than ours
    launch(job_plan, target)
    assert noting.keys == ["b", "c"]
    assert {key: objects[prefix + key] for key in ("a", "b", "sub/c")} == {
        "a": b"one",
        "b": b"two",
        "sub/c": b"three",
    }
    noting.keys.clear()
    launch(job(tmp_path, data), target)
    assert noting.keys == []


def test_the_bucket_is_created_before_data_is_listed(tmp_path: Path) -> None:
    target = fake_target()
    target.storage.objects.clear()  # type: ignore[attr-defined]
    messages: list[str] = []
    launch(job(tmp_path, tree(tmp_path / "data", a="one")), target, messages.append)
    assert messages == [f"created the bucket {BUCKET} for source and results"]
    assert any(key.endswith("/a") for key in target.storage.objects[BUCKET])  # type: ignore[attr-defined]


def test_large_uploads_report_progress(tmp_path: Path) -> None:
    data = tree(tmp_path / "data", **{f"{number:03}": "x" for number in range(150)})
    target = fake_target()
    messages: list[str] = []
    progress: list[tuple[int, int]] = []
    launch(
        job(tmp_path, data),
        target,
        messages.append,
        lambda transfer_progress: progress.append(
            (transfer_progress.done_files, transfer_progress.total_files)
        ),
    )
    assert messages == ["uploading 150 files, 0.0 MB"]
    assert progress[-1] == (150, 150)


# ---- .smlaunchignore -------------------------------------------------------------------------------------


def test_smlaunchignore_excludes_data_in_every_folder(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        **{".smlaunchignore": "*.tmp\n/raw/\n", "a.bin": "", "b.tmp": "", "raw/x": "", "sub/raw/y": ""},
        **{"sub/.smlaunchignore": "!keep.tmp\n*.log\n", "sub/keep.tmp": "", "sub/c.log": "", "c.log": ""},
    )
    assert names(root) == ["a.bin", "c.log", "sub/keep.tmp", "sub/raw/y"]


def test_gitignore_does_not_apply_to_data(tmp_path: Path) -> None:
    root = tree(tmp_path, **{".gitignore": "*", "data.bin": ""})
    assert names(root) == [".gitignore", "data.bin"]


def test_a_single_file_is_uploaded_alone(tmp_path: Path) -> None:
    root = tree(tmp_path, **{".smlaunchignore": "*", "data.bin": ""})
    assert names(root / "data.bin") == ["data.bin"]


def test_excluded_files_do_not_change_the_address(tmp_path: Path) -> None:
    data = tree(tmp_path / "data", **{".smlaunchignore": "*.tmp", "a": "one"})
    hash_before = plan(job(tmp_path, data), fake_target()).job_hash
    (data / "b.tmp").write_text("scratch")
    assert plan(job(tmp_path, data), fake_target()).job_hash == hash_before


@pytest.mark.parametrize(
    ("rules", "message"),
    [("*", ".smlaunchignore excludes all of it"), ("!", "cannot be used")],
)
def test_rules_that_exclude_all_or_are_invalid_are_reported(tmp_path: Path, rules: str, message: str) -> None:
    data = tree(tmp_path / "data", **{".smlaunchignore": rules, "a": "one"})
    with pytest.raises(JobError, match=message):
        plan(job(tmp_path, data), fake_target())


# ---- the moving line -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_files_bytes_rate_and_end() -> None:
    now = [0.0]
    screen = Terminal()
    moving = TransferDisplay("uploading", "uploaded", screen)
    progress = TransferProgress(1000, 64 << 20, moving.show, clock=lambda: now[0])
    for _ in range(4):
        now[0] += 1
        progress.add(2 << 20, 100)
    assert screen.getvalue().endswith("uploading 400/1,000 files  8.0/64.0 MB  2.0 MB/s  28 s left")
    progress.add(56 << 20, 600)
    assert screen.getvalue().endswith("\r\x1b[2Kuploaded 1,000 files, 64.0 MB in 4 s (16.0 MB/s)\n")


def test_without_a_terminal_lines_are_few() -> None:
    now = [0.0]
    log = io.StringIO()
    progress = TransferProgress(
        100, 100 << 20, TransferDisplay("uploading", "uploaded", log).show, clock=lambda: now[0]
    )
    for _ in range(100):
        now[0] += 0.12
        progress.add(1 << 20, 1)
    assert log.getvalue().splitlines() == [
        "uploading 42/100 files  42.0/100.0 MB  8.3 MB/s  7 s left",
        "uploading 84/100 files  84.0/100.0 MB  8.3 MB/s  2 s left",
        "uploaded 100 files, 100.0 MB in 12 s (8.3 MB/s)",
    ]


# ---- start-up --------------------------------------------------------------------------------------------


def test_nothing_of_transfers_is_loaded_without_data(tmp_path: Path) -> None:
    script = """
import sys
from tests.runs.fakes import fake_target
from smlaunch.cli.console import upload_display
from smlaunch.job.model import Job
from smlaunch.runs.launch_plan import launch
launch(Job(entry=sys.argv[1], role=sys.argv[2]), fake_target(), on_progress=upload_display())
print(sorted(name for name in sys.modules if name.startswith(("smlaunch.data", "obstore", "s3transfer"))))
"""
    job(tmp_path, tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "code" / "train.py"), ROLE],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    assert result.stdout == "[]\n", result.stderr


def test_a_single_job_loads_nothing_of_chains_and_shards() -> None:
    script = """
import sys
import smlaunch.cli.follow, smlaunch.runs.launch_plan
loaded_late = ("smlaunch.chain.next", "smlaunch.runs.chain", "smlaunch.runs.shard", "concurrent")
print(sorted(name for name in sys.modules if name.startswith(loaded_late)))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


# ---- the secret ------------------------------------------------------------------------------------------


def test_a_job_whose_hosts_call_each_other_gets_a_secret_once(tmp_path: Path) -> None:
    """64 hexadecimal digits, of its own for every run, that nothing of the plan or its requests holds."""
    script = tmp_path / "train.py"
    script.write_text("from mpi4py import MPI")
    target = fake_target()

    def stored_secrets() -> dict[str, bytes]:
        objects = target.storage.objects[BUCKET]  # type: ignore[attr-defined]
        return {key: value for key, value in objects.items() if key.endswith("/secret")}

    job_plan = plan(Job(entry=script, role=ROLE, strategy="mpi", name="one"), target)
    launch(job_plan, target)
    ((key, first),) = stored_secrets().items()
    assert key.startswith("smlaunch/one/")
    assert len(first) == 64 and bytes.fromhex(first.decode())
    launch(job_plan, target)  # attaches
    assert stored_secrets() == {key: first}
    texts = str(job_plan) + json.dumps(job_plan.requests, default=str) + repr(job_plan)
    assert first.decode() not in texts
    others = [value for name, value in target.storage.objects[BUCKET].items() if name != key]  # type: ignore[attr-defined]
    assert all(first not in value for value in others)

    launch(plan(Job(entry=script, role=ROLE, strategy="mpi", name="two"), target), target)
    assert len(set(stored_secrets().values())) == 2
    launch(plan(Job(entry=script, role=ROLE, strategy="custom", name="three"), target), target)
    assert len(stored_secrets()) == 2


class RacingStorage(FakeStorage):
    """Another client puts its own secret just before ours would be put, however often ours has looked."""

    other = b"0" * 64

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        self._be_first(bucket, key)
        super().put_bytes(bucket, key, content)

    def put_if_absent(self, bucket: str, key: str, content: bytes) -> bool:
        self._be_first(bucket, key)
        return super().put_if_absent(bucket, key, content)

    def _be_first(self, bucket: str, key: str) -> None:
        if key.endswith("/secret"):
            self.objects[bucket][key] = self.other


def test_the_secret_of_another_client_of_the_same_run_stays(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from mpi4py import MPI")
    target = fake_target()
    storage = target.__dict__["storage"] = RacingStorage()
    launch(plan(Job(entry=script, role=ROLE, strategy="mpi", name="one"), target), target)
    secrets = {value for key, value in storage.objects[BUCKET].items() if key.endswith("/secret")}
    assert secrets == {RacingStorage.other}


class AnsweringClient:
    """An S3 client whose PutObject returns these statuses in turn."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)

    def put_object(self, **params: Any) -> None:
        assert params["IfNoneMatch"] == "*"
        status = self.statuses.pop(0)
        if status != 200:
            error = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(error, "PutObject")  # type: ignore[arg-type]


def test_an_undecided_conditional_put_is_retried() -> None:
    for statuses, is_created in (
        ((200,), True),
        ((412,), False),
        ((409, 409, 412), False),
        ((409, 200), True),
    ):
        client = AnsweringClient(*statuses)
        assert S3Storage(client).put_if_absent("b", "k", b"") is is_created
        assert client.statuses == []
    for statuses in ((403,), (409,) * 5):
        with pytest.raises(CallError):
            S3Storage(AnsweringClient(*statuses)).put_if_absent("b", "k", b"")


def test_one_of_many_clients_creates_the_secret(tmp_path: Path) -> None:
    """Against the local endpoint's S3, each with connections of its own."""
    with Endpoint(tmp_path / "home", isolation="plain") as info:
        connection = (info.url, info.region, info.access_key, info.secret_key)
        clients = [Target.endpoint(*connection).storage for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            created_flags = list(
                pool.map(
                    lambda secret: clients[secret].put_if_absent(info.bucket, "run/secret", b"%d" % secret),
                    range(8),
                )
            )
        assert sorted(created_flags) == [False] * 7 + [True]
        assert clients[0].get_bytes(info.bucket, "run/secret") == b"%d" % created_flags.index(True)
        assert not clients[0].put_if_absent(info.bucket, "run/secret", b"later")
        with pytest.raises(CallError, match="NoSuchBucket"):
            clients[0].put_if_absent("nowhere", "run/secret", b"")
