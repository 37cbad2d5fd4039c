"""What stands under the address of local data is the data that was hashed, whatever happened to the files or
to the address."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.planner.plan import RunPlan
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import plan
from tests.runs.fakes import BUCKET, FakeStorage, FakeTransfer, fake_target

ROLE = "arn:aws:iam::123456789012:role/train"
PLANNED = {"a": "one", "b": "two"}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print(1)")
    write(tmp_path / "data", PLANNED)
    return Job(entry=tmp_path / "code" / "train.py", role=ROLE, inputs={"train": tmp_path / "data"})


@pytest.fixture
def target() -> Target:
    return fake_target()


def write(folder: Path, contents: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, text in contents.items():
        (folder / name).write_text(text)


def objects_of(target: Target) -> dict[str, bytes]:
    objects: dict[str, bytes] = target.storage.objects[BUCKET]  # type: ignore[attr-defined]
    return objects


def address(job_plan: RunPlan) -> str:
    (upload,) = [upload for upload in job_plan.uploads if upload.kind == "data"]
    return upload.uri.removeprefix(f"s3://{BUCKET}/")


def stored_data(target: Target, prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(prefix): content.decode()
        for key, content in objects_of(target).items()
        if key.startswith(prefix)
    }


CHANGES: dict[str, tuple[dict[str, str], str]] = {
    "other bytes, same length": (
        {"a": "ONE", "b": "two"},
        "/a has changed since the plan was made; plan again",
    ),
    "longer": (
        {"a": "one more", "b": "two"},
        r"changed since the plan was made; plan again \(other size: a\)",
    ),
    "a file more": (PLANNED | {"c": "new"}, r"changed since the plan was made; plan again \(new: c\)"),
    "a file less": ({"a": "one"}, r"changed since the plan was made; plan again \(gone: b\)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_data_that_has_changed_since_the_plan_is_refused_and_leaves_nothing_foreign(
    job: Job, target: Target, tmp_path: Path, change: str
) -> None:
    contents, message = CHANGES[change]
    job_plan = plan(job, target)
    write(tmp_path / "data", contents)
    with pytest.raises(JobError, match=message):
        launch(job_plan, target)
    assert target.control_plane.created == []  # type: ignore[attr-defined]
    assert PLANNED.items() >= stored_data(target, address(job_plan)).items()
    write(tmp_path / "data", PLANNED)
    launch(job, target)
    assert stored_data(target, address(job_plan)) == PLANNED


class ChangingTransfer(FakeTransfer):
    """Another program writes a file when the first one is sent."""

    def __init__(self, transfer: FakeTransfer, path: Path) -> None:
        self.__dict__.update(vars(transfer))
        self.path = path

    def upload_files(self, bucket: str, items: Any, on_progress: Callable[[int, int], None]) -> None:
        self.path.write_text("TWO")
        super().upload_files(bucket, items, on_progress)


def test_data_that_changes_while_it_is_launched_is_refused(job: Job, target: Target, tmp_path: Path) -> None:
    prefix = address(plan(job, target))
    target.__dict__["transfer"] = ChangingTransfer(target.transfer, tmp_path / "data" / "b")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="/b has changed since the plan was made"):
        launch(job, target)
    assert stored_data(target, prefix) == {"a": "one"}  # a part, as after a crash
    target.__dict__["transfer"] = FakeTransfer(target.storage)  # type: ignore[arg-type]
    write(tmp_path / "data", PLANNED)
    launch(job, target)
    assert stored_data(target, prefix) == PLANNED


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize(
    "damage",
    [{"a": "ONE"}, {"a": "on"}, {"extra": "x"}, {"a": None}, {"a": "ONE", "b": None, "extra": "x"}],
)
def test_an_address_with_foreign_objects_gets_the_hashed_data_again(
    job: Job, target: Target, is_recorded: bool, damage: dict[str, str | None]
) -> None:
    """Whether an earlier release has written them or somebody has since the record was made."""
    prefix = address(plan(job, target))
    if is_recorded:
        launch(job, target)
    else:
        objects_of(target).update({prefix + name: text.encode() for name, text in PLANNED.items()})
    for name, text in damage.items():
        objects_of(target).pop(prefix + name, None)
        if text is not None:
            objects_of(target)[prefix + name] = text.encode()
    launch(job, target, lambda message: None)
    assert stored_data(target, prefix) == PLANNED


class CountingTransfer(FakeTransfer):
    def __init__(self, transfer: FakeTransfer) -> None:
        self.__dict__.update(vars(transfer))
        self.compared: list[str] = []
        self.sent: list[str] = []

    def upload_files(self, bucket: str, items: Any, on_progress: Callable[[int, int], None]) -> None:
        self.sent += [item.path.name for item in items]
        super().upload_files(bucket, items, on_progress)

    def has_same_content(self, bucket: str, item: Any) -> bool:
        self.compared.append(item.path.name)
        return super().has_same_content(bucket, item)


def test_recorded_data_is_neither_read_nor_compared_again(job: Job, target: Target) -> None:
    """By two requests, however many files. The data of a release before the record is compared once."""
    prefix = address(plan(job, target))
    transfer = target.__dict__["transfer"] = CountingTransfer(target.transfer)  # type: ignore[arg-type]
    objects_of(target)[prefix] = b""  # a folder's marker, as consoles make it
    objects_of(target)[prefix + "a"] = b"one"
    launch(job, target)
    assert (sorted(transfer.compared), transfer.sent) == (["a"], ["b"])
    launch(job, target)
    assert (sorted(transfer.compared), transfer.sent) == (["a"], ["b"])
    record = objects_of(target)[prefix.rstrip("/") + ".json"]
    objects_of(target)[prefix.rstrip("/") + ".json"] = record[:-9]  # cut off
    launch(job, target)
    assert (sorted(transfer.compared), transfer.sent) == (["a", "a", "b"], ["b"])


class InterferingStorage(FakeStorage):
    """Another client, of an earlier release, writes foreign bytes a few times after ours has compared an
    object."""

    remaining = 0

    def put_bytes(self, bucket: str, key: str, content: bytes) -> None:
        super().put_bytes(bucket, key, content)
        if self.remaining and "/data/" in key:
            self.remaining -= 1
            other = key[:-1] + ("a" if key.endswith("/b") else "b")
            self.objects[bucket][other] = b"ONE"


def test_an_object_that_another_client_overwrites_meanwhile_is_sent_again(job: Job, target: Target) -> None:
    prefix = address(plan(job, target))
    storage = target.__dict__["storage"] = InterferingStorage()
    target.__dict__["transfer"] = FakeTransfer(storage)
    objects_of(target)[prefix + "a"] = b"one"
    storage.remaining = 2
    launch(job, target)
    assert stored_data(target, prefix) == PLANNED

    objects_of(target)[prefix + "b"] = b"TWO"
    storage.remaining = 100
    with pytest.raises(JobError, match="other clients keep changing"):
        launch(job, target)
    assert len(target.control_plane.created) == 1  # type: ignore[attr-defined]


def test_the_plan_knows_the_hash_of_each_file(job: Job, target: Target) -> None:
    files = plan(job, target).facts.inputs["train"].files
    assert files is not None
    assert [(file.name, file.bytes, file.sha256) for file in files] == [
        (name, 3, hashlib.sha256(text.encode()).digest()) for name, text in PLANNED.items()
    ]
