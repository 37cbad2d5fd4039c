"""A name stands for one job: what another job's launch or export writes under it touches no existing run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.cli.export import ExportOptions, upload_jobs
from smlaunch.errors import JobError, SmlaunchError
from smlaunch.job.model import Job
from smlaunch.runs.job_poller import StateChange
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import plan, prepare_export
from tests.runs.fakes import BUCKET, FakeStorage, fake_target

KINDS: dict[str, dict[str, Any]] = {
    "a single job": {},
    "a chain": {"limits": {"max_runtime": "3h", "segment": "1h"}},
    "shards": {
        "strategy": "share-nothing",
        "compute": {"hosts": 2},
        "inputs": {"train": {"uri": "s3://data/q/", "split": "bytes", "split_via": "jobs"}},
    },
    "lists": {
        "strategy": "share-nothing",
        "compute": {"hosts": 2},
        "inputs": {
            "train": {"uri": "s3://data/q/", "split": "bytes", "split_via": "lists", "mode": "FastFile"}
        },
    },
}


@pytest.fixture
def target() -> Target:
    target = fake_target()
    target.storage.objects["data"] = {f"q/{number}": bytes(number) for number in (5, 6, 7)}  # type: ignore[attr-defined]
    return target


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """Jobs that are called x, with an argument of their own."""
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text("import os\nprint(os.environ['SMLAUNCH_CHECKPOINTS'])\n")

    def make(argument: str, fields: dict[str, Any] | None = None) -> Job:
        role = "arn:aws:iam::123456789012:role/train"
        return Job.from_mapping(
            {"entry": str(script), "role": role, "name": "x", "args": [argument], **(fields or {})}
        )

    return make


def objects_of(target: Target) -> dict[str, bytes]:
    objects: dict[str, bytes] = target.storage.objects[BUCKET]  # type: ignore[attr-defined]
    return objects


def created_requests(target: Target) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = target.control_plane.created  # type: ignore[attr-defined]
    return requests


def what_hosts_read(target: Target) -> list[dict[str, bytes]]:
    """For each created job, the objects of its bucket that its channels name."""
    prefixes_by_job = [
        [
            channel["DataSource"]["S3DataSource"]["S3Uri"].removeprefix(f"s3://{BUCKET}/")
            for channel in request["InputDataConfig"]
        ]
        for request in created_requests(target)
    ]
    return [
        {key: content for key, content in objects_of(target).items() if key.startswith(tuple(prefixes))}
        for prefixes in prefixes_by_job
    ]


class InterruptedStorage(FakeStorage):
    """Another client launches just before the first file of a launch is stored: both have seen a free
    name."""

    launch_other: Callable[[], object] | None = None

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        launch_other, self.launch_other = self.launch_other, None
        if launch_other is not None:
            launch_other()
        super().put_bytes(bucket, key, content)


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_jobs_launched_under_one_name_the_refused_one_changes_nothing(
    make_job: Callable[..., Job], target: Target, kind: str
) -> None:
    storage = InterruptedStorage()
    storage.objects |= target.storage.objects  # type: ignore[attr-defined]
    target.__dict__["storage"] = storage
    after_winner: list[Any] = []

    def launch_winner() -> None:
        launch(make_job("winner", KINDS[kind]), target, lambda message: None)
        after_winner.extend([what_hosts_read(target), dict(objects_of(target))])

    storage.launch_other = launch_winner
    other_fields = {**KINDS[kind]}
    if "inputs" in other_fields:  # other lists too
        storage.objects["data"]["r/1"] = storage.objects["data"]["r/2"] = b"r"
        other_fields["inputs"] = {"train": {**other_fields["inputs"]["train"], "uri": "s3://data/r/"}}
    with pytest.raises(JobError, match="take another name"):
        launch(make_job("loser", other_fields), target, lambda message: None)
    hosts_read, objects_before = after_winner
    assert what_hosts_read(target) == hosts_read
    assert all(b"winner" in b"".join(files.values()) for files in hosts_read)
    changed = [key for key, content in objects_before.items() if objects_of(target)[key] != content]
    assert changed == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_under_the_name_of_another_jobs_run_is_refused_as_run_refuses_it(
    make_job: Callable[..., Job], target: Target, kind: str
) -> None:
    launch(make_job("first", KINDS[kind]), target, lambda message: None)
    objects_before = dict(objects_of(target))
    other_job = make_job("second", KINDS[kind])
    messages = []
    for act in (lambda: launch(other_job, target), lambda: export(other_job, target)):
        with pytest.raises(JobError) as refusal:
            act()
        messages.append(str(refusal.value))
    assert messages[0] == messages[1] and "take another name" in messages[0]
    assert objects_of(target) == objects_before
    export(make_job("first", KINDS[kind]), target)  # the same job
    assert objects_before.items() <= objects_of(target).items()


def export(job: Job, target: Target) -> None:
    options = ExportOptions(out_dir=None, name=None, uploads=True, as_json=False)
    connection: Any = SimpleNamespace(target=target)
    upload_jobs(options, [prepare_export(job, target)], connection)


def test_an_export_does_not_take_a_name(make_job: Callable[..., Job], target: Target) -> None:
    """Its job is exported again after an edit, or launched under the name."""
    for argument in ("first", "edited"):
        export(make_job(argument), target)
    launch(make_job("third"), target)
    assert len(created_requests(target)) == 1


@pytest.mark.parametrize("is_of_earlier_release", [False, True])
@pytest.mark.parametrize("kind", ["a chain", "shards"])
def test_the_name_of_a_run_whose_jobs_were_deleted_stays_its_jobs(
    make_job: Callable[..., Job], target: Target, kind: str, is_of_earlier_release: bool
) -> None:
    """Its outcome and checkpoints are still there, and another job would go on from them."""
    launch(make_job("first", KINDS[kind]), target, lambda message: None)
    target.control_plane.descriptions_by_job.clear()  # type: ignore[attr-defined]
    if is_of_earlier_release:
        for key in [key for key in objects_of(target) if key.endswith("/claim.json")]:
            del objects_of(target)[key]
    objects_before = dict(objects_of(target))
    for fields in (KINDS[kind], {}) if kind == "a chain" else (KINDS[kind],):
        with pytest.raises(
            JobError, match="name: a run of another job, source or data has used it, whose files"
        ):
            launch(make_job("second", fields), target)
    assert objects_of(target) == objects_before
    launch(make_job("first", KINDS[kind]), target, lambda message: None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_that_is_refused_before_a_job_exists_leaves_the_name_free(
    make_job: Callable[..., Job], target: Target, kind: str
) -> None:
    errors = target.control_plane.create_errors  # type: ignore[attr-defined]
    errors.append(CallError("CreateTrainingJob", "ValidationException", "no such instance type", 400))
    with pytest.raises(SmlaunchError, match="no such instance type"):
        launch(make_job("mistaken", KINDS[kind]), target, lambda message: None)
    launch(make_job("mended", KINDS[kind]), target, lambda message: None)
    assert all(b"mended" in b"".join(files.values()) for files in what_hosts_read(target))


@pytest.mark.parametrize(
    "claim", [b"", b"{", b"[]", b'{"version": "1.0"}', b'{"version": "2.0", "job_hash": "a"}']
)
def test_a_claim_that_cannot_be_read_is_anothers(
    make_job: Callable[..., Job], target: Target, claim: bytes
) -> None:
    objects_of(target)["smlaunch/x/claim.json"] = claim
    with pytest.raises(JobError, match="name: "):
        launch(make_job("first"), target)


def test_the_address_of_the_launch_files_is_made_of_their_content(
    make_job: Callable[..., Job], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch_prefix(argument: str) -> str:
        (upload,) = [upload for upload in plan(make_job(argument), target).uploads if upload.kind == "launch"]
        return upload.uri.rpartition("/")[0]

    first = launch_prefix("first")
    assert first == launch_prefix("first") != launch_prefix("second")
    assert first.startswith(f"s3://{BUCKET}/smlaunch/x/launch/")
    old_plan = plan(make_job("first"), target)
    # Another release of smlaunch, or another Python: its program on the hosts differs.
    monkeypatch.setattr("smlaunch.runs.plan_job.runtime_sha256", lambda: "ab" * 32)
    assert launch_prefix("first") != first
    monkeypatch.setattr("smlaunch.runs.plan_upload.runtime_sha256", lambda: "ab" * 32)
    with pytest.raises(JobError, match="smlaunch itself has changed since the plan was made; plan again"):
        launch(old_plan, target)


def test_shards_that_have_ended_before_they_are_followed_are_shown(
    target: Target, make_job: Callable[..., Job]
) -> None:
    """Short shards end while the others are submitted; the fake's end at once."""
    run = launch(make_job("1", KINDS["shards"]), target)
    events: list[Any] = []
    assert run.wait(events.append).status == "Completed"
    assert {event.message.partition(":")[0] for event in events if isinstance(event, StateChange)} == {
        "p1",
        "p2",
    }
