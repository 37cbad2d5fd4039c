"""A split by bytes on fakes: listed, staged and sent objects; a sharded run that waits for a quota."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.discovery import input_facts
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import SourceFacts, StoredFile
from smlaunch.job.model import Channel, Compute, Job
from smlaunch.runs.attach_run import attach
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from tests.runs.fakes import ROLE, FakeControl, FakeStorage, fake_target, gather_needed_facts

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
    return target.__dict__["control_plane"]  # type: ignore[no-any-return]


def storage(target: Target) -> FakeStorage:
    return target.__dict__["storage"]  # type: ignore[no-any-return]


def job(folder: Path, uri: str = "s3://data/p/", hosts: int = 3) -> Job:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("print('hello')")
    inputs = {"train": Channel(uri, split="bytes")}
    return Job(entry=folder / "train.py", role=ROLE, inputs=inputs, name="demo", compute=Compute(hosts=hosts))


def created_names(target: Target) -> list[str]:
    return [request["TrainingJobName"] for request in control(target).created]


def test_all_names_are_listed_only_for_a_split(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_facts, "MAX_LISTED_OBJECTS", 3)
    facts = gather_needed_facts(job(tmp_path / "s"), target, SOURCE).inputs["train"]
    assert facts.files == tuple(StoredFile(f"f{number}", number) for number in range(1, 8))
    assert (facts.objects, facts.bytes, facts.is_truncated, facts.shard_names) == (7, 28, False, None)
    monkeypatch.setattr(input_facts, "MAX_SPLIT_OBJECTS", 5)
    facts = gather_needed_facts(job(tmp_path / "s"), target, SOURCE).inputs["train"]
    assert (facts.files, facts.objects, facts.is_truncated) == (None, 5, True)


@pytest.mark.parametrize(("uri", "inside"), [("s3://data/q/", "shards/"), ("s3://data/q/shards/", "")])
def test_packed_data_is_recognized_by_its_index(
    tmp_path: Path, target: Target, uri: str, inside: str
) -> None:
    names = ["shards/shard-00000.tar", "shards/shard-00001.tar"]
    index = {"kind": "smlaunch.shards", "version": "1.0", "shards": [{"name": name} for name in names]}
    objects = storage(target).objects["data"]
    objects.update({f"q/{name}": b"t" for name in names})
    assert gather_needed_facts(job(tmp_path / "s", uri), target, SOURCE).inputs["train"].shard_names is None
    objects["q/index.json"] = json.dumps(index).encode()
    facts = gather_needed_facts(job(tmp_path / "s", uri), target, SOURCE).inputs["train"]
    assert facts.shard_names == (f"{inside}shard-00000.tar", f"{inside}shard-00001.tar")
    objects["q/index.json"] = b"somebody's own"
    assert gather_needed_facts(job(tmp_path / "s", uri), target, SOURCE).inputs["train"].shard_names is None


def test_a_sharded_run_is_launched_once(tmp_path: Path, target: Target) -> None:
    run = launch(job(tmp_path / "s"), target)
    assert created_names(target) == ["demo-p1-s1-a1", "demo-p2-s1-a1", "demo-p3-s1-a1"]
    for request in control(target).created:
        for channel in request["InputDataConfig"]:
            uri = channel["DataSource"]["S3DataSource"]["S3Uri"]
            bucket, _, key = uri.removeprefix("s3://").partition("/")
            assert any(name.startswith(key) for name in storage(target).objects[bucket])
    assert run.result().exit_code == 0
    second_run = launch(job(tmp_path / "s"), target)
    assert second_run.attached and len(created_names(target)) == 3


def test_another_job_under_the_name_is_refused(tmp_path: Path, target: Target) -> None:
    launch(job(tmp_path / "s"), target)
    with pytest.raises(JobError, match="exists already and was made of another job"):
        launch(job(tmp_path / "s", hosts=2), target)


def test_an_unsharded_run_of_the_name_is_refused(tmp_path: Path, target: Target) -> None:
    launch(job(tmp_path / "s", hosts=1), target)
    with pytest.raises(JobError, match="demo-s1-a1 exists already"):
        launch(job(tmp_path / "s"), target)


def test_shards_without_an_instance_start_later(tmp_path: Path, target: Target) -> None:
    messages: list[str] = []
    control(target).create_errors = [CallError("CreateTrainingJob", "ResourceLimitExceeded", QUOTA, 400)]
    run = launch(job(tmp_path / "s"), target, on_message=messages.append)
    assert created_names(target) == [] and any("begin when others have ended" in text for text in messages)
    assert run.describe().exit_code is None
    assert sorted(run.result().to_dict()["shards"][number]["run"] for number in range(3)) == [
        "demo-p1",
        "demo-p2",
        "demo-p3",
    ]
    assert sorted(created_names(target)) == ["demo-p1-s1-a1", "demo-p2-s1-a1", "demo-p3-s1-a1"]


def test_a_run_named_like_a_shard_is_no_shard(tmp_path: Path, target: Target) -> None:
    """Only the folder of the sharded run lists its shards."""
    launch(job(tmp_path / "s", hosts=1).with_changes(name="other-p1"), target)
    with pytest.raises(JobError, match="there is no run 'other'"):
        attach("other", target)


def test_the_log_is_that_of_the_shards_that_have_a_job(tmp_path: Path, target: Target) -> None:
    control(target).create_errors = [CallError("CreateTrainingJob", "ResourceLimitExceeded", QUOTA, 400)]
    run = launch(job(tmp_path / "s"), target)
    assert created_names(target) == [] and list(run.logs()) == []
    second_driver = run.chain_drivers[1]
    assert second_driver.jobs.run == "demo-p2"
    second_driver.wait_for_next_job(lambda seconds: None)
    assert created_names(target) == ["demo-p2-s1-a1"]
    target.__dict__["logs"].add_lines("demo-p2-s1-a1/algo-1-1", "a", "b")
    lines = [(line.job, line.host, line.text) for line in run.logs()]
    assert lines == [("demo-p2-s1-a1", "p2", "a"), ("demo-p2-s1-a1", "p2", "b")]
