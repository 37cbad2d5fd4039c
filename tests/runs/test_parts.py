"""A split by bytes on fakes: what is looked at, staged and sent; a run in parts that waits for a quota."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch import survey as survey_module
from smlaunch.errors import JobError
from smlaunch.job import Channel, Compute, Job
from smlaunch.planning.surroundings import SourceFacts, StoredFile
from smlaunch.ports import CallError
from smlaunch.runs.api import launch
from smlaunch.runs.run import Run
from smlaunch.runs.target import Target
from smlaunch.survey import survey
from tests.runs.fakes import ROLE, FakeControl, FakeStorage, fake_target

SOURCE = SourceFacts(".", "train.py", "0" * 64, 1, 1)
QUOTA = (
    "The account-level service limit 'ml.m5.xlarge for training job usage' is 2 Instances, with current "
    "utilization of 2 Instances and a request delta of 1 Instances."
)


@pytest.fixture
def target() -> Target:
    target = fake_target()
    storage(target).objects["data"] = {f"p/f{number}": b"x" * number for number in range(1, 8)}
    return target


def control(target: Target) -> FakeControl:
    return target.__dict__["control"]  # type: ignore[no-any-return]


def storage(target: Target) -> FakeStorage:
    return target.__dict__["storage"]  # type: ignore[no-any-return]


def job(folder: Path, uri: str = "s3://data/p/", hosts: int = 3) -> Job:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("print('hello')")
    inputs = {"train": Channel(uri, split="bytes")}
    return Job(entry=folder / "train.py", role=ROLE, inputs=inputs, name="demo", compute=Compute(hosts=hosts))


def created(target: Target) -> list[str]:
    return [request["TrainingJobName"] for request in control(target).created]


def test_all_names_are_looked_at_and_only_for_a_split(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_module, "LISTING_CAP", 3)
    facts = survey(job(tmp_path / "s"), target, SOURCE).inputs["train"]
    assert facts.files == tuple(StoredFile(f"f{number}", number) for number in range(1, 8))
    assert (facts.objects, facts.bytes, facts.capped, facts.shards) == (7, 28, False, None)
    monkeypatch.setattr(survey_module, "PARTS_CAP", 5)
    facts = survey(job(tmp_path / "s"), target, SOURCE).inputs["train"]
    assert (facts.files, facts.objects, facts.capped) == (None, 5, True)


@pytest.mark.parametrize(("uri", "inside"), [("s3://data/q/", "shards/"), ("s3://data/q/shards/", "")])
def test_a_packed_place_is_known_by_its_index(tmp_path: Path, target: Target, uri: str, inside: str) -> None:
    names = ["shards/shard-00000.tar", "shards/shard-00001.tar"]
    index = {"kind": "smlaunch.shards", "version": "1.0", "shards": [{"name": name} for name in names]}
    objects = storage(target).objects["data"]
    objects.update({f"q/{name}": b"t" for name in names})
    assert survey(job(tmp_path / "s", uri), target, SOURCE).inputs["train"].shards is None
    objects["q/index.json"] = json.dumps(index).encode()
    facts = survey(job(tmp_path / "s", uri), target, SOURCE).inputs["train"]
    assert facts.shards == (f"{inside}shard-00000.tar", f"{inside}shard-00001.tar")
    objects["q/index.json"] = b"somebody's own"
    assert survey(job(tmp_path / "s", uri), target, SOURCE).inputs["train"].shards is None


def test_the_parts_of_a_run_are_sent_once(tmp_path: Path, target: Target) -> None:
    run = launch(job(tmp_path / "s"), target)
    assert created(target) == ["demo-p1-s1-a1", "demo-p2-s1-a1", "demo-p3-s1-a1"]
    for request in control(target).created:
        for channel in request["InputDataConfig"]:
            uri = channel["DataSource"]["S3DataSource"]["S3Uri"]
            bucket, _, key = uri.removeprefix("s3://").partition("/")
            assert any(name.startswith(key) for name in storage(target).objects[bucket])
    assert run.wait().exit_code == 0
    again = launch(job(tmp_path / "s"), target)
    assert again.attached and len(created(target)) == 3


def test_another_job_under_the_name_is_refused(tmp_path: Path, target: Target) -> None:
    launch(job(tmp_path / "s"), target)
    with pytest.raises(JobError, match="exists already and was made of another job"):
        launch(job(tmp_path / "s", hosts=2), target)


def test_a_run_of_the_name_that_is_not_in_parts_is_in_the_way(tmp_path: Path, target: Target) -> None:
    launch(job(tmp_path / "s", hosts=1), target)
    with pytest.raises(JobError, match="demo-s1-a1 exists already"):
        launch(job(tmp_path / "s"), target)


def test_parts_that_no_instance_is_left_for_come_later(tmp_path: Path, target: Target) -> None:
    told: list[str] = []
    control(target).create_errors = [CallError("CreateTrainingJob", "ResourceLimitExceeded", QUOTA, 400)]
    run = launch(job(tmp_path / "s"), target, told=told.append)
    assert created(target) == [] and any("begin when others have ended" in text for text in told)
    assert run.describe().exit_code is None
    assert sorted(run.wait().to_dict()["parts"][number]["run"] for number in range(3)) == [
        "demo-p1",
        "demo-p2",
        "demo-p3",
    ]
    assert sorted(created(target)) == ["demo-p1-s1-a1", "demo-p2-s1-a1", "demo-p3-s1-a1"]


def test_a_run_called_like_a_part_is_no_part(tmp_path: Path, target: Target) -> None:
    """Only the folder of the whole says what its parts are."""
    launch(job(tmp_path / "s", hosts=1).model_copy(update={"name": "other-p1"}), target)
    with pytest.raises(JobError, match="there is no run 'other'"):
        Run.attach("other", target)
