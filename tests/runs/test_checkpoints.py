"""A run's checkpoints as a client sees them in S3."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random

import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.contract.checkpoint_layout import manifest_name, step_directory
from smlaunch.contract.segment_outcome import CONTINUE, SegmentOutcome
from smlaunch.errors import JobError
from smlaunch.runs.run_checkpoints import RunCheckpoints
from smlaunch.train.checkpoint_store import CheckpointStore
from tests.runs.fakes import BUCKET, FakeStorage
from tests.train.sync_model import Model


class CheckpointPrefix:
    """A prefix in S3 with complete checkpoints."""

    def __init__(self, folder: Path, *steps: int) -> None:
        self.storage = FakeStorage()
        self.checkpoints = RunCheckpoints(f"s3://{BUCKET}/run/ckpt", self.storage)
        self.objects = self.storage.objects[BUCKET]
        stores = [CheckpointStore(str(folder), rank, 2, job="run-s1-a1") for rank in range(2)]
        for step in steps:
            parts = [store.write_shard(step, [b"%d %d " % (step, store.rank) * 1000]) for store in stores]
            stores[0].commit(step, parts, total_samples=step * 10)
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"run/ckpt/{path.relative_to(folder)}"] = path.read_bytes()
        self.objects["run/ckpt-of-another/x"] = b"not ours"

    def key(self, step: int, begin: str) -> str:
        (key,) = [key for key in self.objects if key.startswith(f"run/ckpt/{step_directory(step)}/{begin}")]
        return key

    def problems(self) -> dict[int, tuple[str, ...]]:
        return {step.step: step.problems for step in self.checkpoints.list_steps()}


def test_steps_are_listed_with_their_problems(tmp_path: Path) -> None:
    prefix = CheckpointPrefix(tmp_path, 1, 2, 3, 4, 5)
    prefix.objects[prefix.key(2, "rank-00001")] += b"x"
    del prefix.objects[prefix.key(3, "manifest")]
    del prefix.objects[prefix.key(4, "COMMIT")]
    del prefix.objects[prefix.key(5, "rank-00000")]
    assert [manifest.step for manifest in prefix.checkpoints.read_complete_manifests()] == [1]
    problems = prefix.problems()
    assert list(problems) == [5, 4, 3, 2, 1]
    assert [len(problems[step]) for step in problems] == [1, 1, 1, 1, 0]
    assert problems[5][0].endswith(": missing") and problems[2][0].endswith(": 4,001 bytes of 4,000")
    assert problems[4] == ("not committed",) and problems[3] == ("its manifest is missing or torn",)
    newest, uncommitted, torn, *_ = prefix.checkpoints.list_steps()
    assert newest.is_committed and not newest.is_complete
    assert torn.is_committed and not uncommitted.is_committed, "a COMMIT says that the step was finished"
    assert newest.to_dict()["samples"] == 50 and newest.to_dict()["job"] == "run-s1-a1"


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": -1, "shards": []},
        {"world_size": 0, "shards": []},
        {"world_size": 3},
        {"world_size": 1},
        {"step": 2},
        {"shards": 3},
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_true_is_torn(tmp_path: Path, changes: dict[str, object]) -> None:
    prefix = CheckpointPrefix(tmp_path, 1)
    commit_key = prefix.key(1, "COMMIT")
    manifest = json.loads(prefix.objects[prefix.key(1, "manifest")])
    content = json.dumps({**manifest, **changes}).encode()
    name = manifest_name(content)
    prefix.objects[f"run/ckpt/{step_directory(1)}/{name}"] = content
    prefix.objects[commit_key] = json.dumps(
        {**json.loads(prefix.objects[commit_key]), "manifest": name}
    ).encode()
    (step,) = prefix.checkpoints.list_steps()
    assert step.is_committed and step.problems == ("its manifest is missing or torn",)


def test_verify_reads_every_byte(tmp_path: Path) -> None:
    prefix = CheckpointPrefix(tmp_path, 1, 2)
    key = prefix.key(2, "rank-00001")
    prefix.objects[key] = b"x" + prefix.objects[key][1:]
    read_sizes: list[int] = []
    second, first = prefix.checkpoints.list_steps()
    assert prefix.checkpoints.verify_hashes(first, read_sizes.append) == ()
    assert sum(read_sizes) == 8000
    (problem,) = prefix.checkpoints.verify_hashes(second)
    assert problem == f"{key.rpartition('/')[2]}: its content is not what the manifest says"
    del prefix.objects[key]
    assert prefix.checkpoints.verify_hashes(second) == (
        f"{key.rpartition('/')[2]}: deleted during verification",
    )


def test_only_steps_before_a_complete_one_are_deleted(tmp_path: Path) -> None:
    prefix = CheckpointPrefix(tmp_path, 1, 2, 3, 4, 5)
    del prefix.objects[prefix.key(5, "rank-00000")]
    del prefix.objects[prefix.key(2, "COMMIT")]
    with pytest.raises(LookupError, match="step 5 is not complete, so nothing before it is deleted"):
        prefix.checkpoints.delete_older_than(5)
    assert prefix.checkpoints.delete_all_but_newest(4) == [] and len(prefix.problems()) == 5
    assert prefix.checkpoints.delete_all_but_newest(2) == [1, 2], (
        "steps 4 and 3 are whole, 2 was never committed"
    )
    assert list(prefix.problems()) == [5, 4, 3]
    assert "run/ckpt-of-another/x" in prefix.objects


def test_an_interrupted_deletion_leaves_no_readable_step(tmp_path: Path) -> None:
    """COMMIT files are deleted first, so that a reader never finds one without its parts."""
    prefix = CheckpointPrefix(tmp_path, 1, 2, 3)
    delete = prefix.storage.delete_objects
    calls = itertools.count()

    def delete_once(bucket: str, keys: list[str]) -> None:
        if next(calls):
            raise CallError("DeleteObjects", "AccessDenied", "no", 403)
        delete(bucket, keys)

    prefix.storage.delete_objects = delete_once  # type: ignore[method-assign, assignment]
    with pytest.raises(CallError):
        prefix.checkpoints.delete_older_than(3)
    assert prefix.problems() == {3: (), 2: ("not committed",), 1: ("not committed",)}


def test_the_outcome_is_read(tmp_path: Path) -> None:
    prefix = CheckpointPrefix(tmp_path)
    assert prefix.checkpoints.read_outcome() is None and prefix.checkpoints.list_steps() == []
    outcomes = [
        SegmentOutcome(CONTINUE, n, "run", f"run-s{n}-a{a}", n, a) for n, a in ((2, 1), (10, 1), (10, 2))
    ]
    outcomes.append(SegmentOutcome(CONTINUE, 99, "another", "another-s99-a1", 99))
    for outcome in outcomes:
        prefix.objects[f"run/ckpt/{outcome.path}"] = outcome.to_bytes()
    assert (
        prefix.checkpoints.read_outcome("run") == outcomes[2]
        and prefix.checkpoints.read_outcome() == outcomes[3]
    )
    prefix.objects[f"run/ckpt/{outcomes[2].path}"] = outcomes[2].to_bytes()[:-1]
    assert prefix.checkpoints.read_outcome("run") == outcomes[1], "a torn one counts as missing"
    assert RunCheckpoints("s3://nowhere/x", prefix.storage).list_steps() == []


def test_client_and_rank_agree_on_an_incomplete_copy() -> None:
    storage = FakeStorage()
    checkpoints = RunCheckpoints(f"s3://{BUCKET}", storage)
    for seed in range(20):
        model = Model(Random(seed))
        for _ in model.moments():
            storage.objects[BUCKET] = dict(model.s3)
            verified_steps = [
                step.step for step in checkpoints.list_steps() if checkpoints.verify_hashes(step) == ()
            ]
            expected = model.expected()
            assert max(verified_steps, default=None) == (expected.step if expected else None)


@pytest.mark.parametrize("address", ["bucket/prefix", "s3://", "s3:///prefix"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(JobError, match="is not an S3 address"):
        RunCheckpoints(address, FakeStorage())
