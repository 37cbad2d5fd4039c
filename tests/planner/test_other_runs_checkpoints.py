"""Checkpoints of another run in the job's prefix: a plan says so, and refuses those of a finished run unless
asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smlaunch.contract import formats
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED, SegmentOutcome
from smlaunch.discovery.checkpoint_facts import gather_checkpoint_facts
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import CheckpointedRun, CheckpointFacts
from smlaunch.job.model import Job
from smlaunch.render.plan import Plan
from tests.planner.fixtures import make_plan, region
from tests.runs.fakes import FakeStorage
from tests.tables import table

ENTRY = "src/train.py"


def plan_with(*runs: CheckpointedRun, name: str = "second", **fields: Any) -> Plan:
    job = Job.from_mapping({"entry": ENTRY, "checkpoints": "s3://bucket/c/", **fields})
    return make_plan(job, region(checkpoints=CheckpointFacts(10, 10, runs)), name)


HOLDS = "s3://bucket/c/ holds checkpoints of run first"


@table(
    ("other_run", "text"),
    [
        (
            CheckpointedRun("first", 64, has_finished=False),
            f"{HOLDS} up to step 64: this run continues from them.",
        ),
        # Whether a script continues from files of its own is not known, so that nothing is refused.
        (CheckpointedRun("first", None, False), "s3://bucket/c/ holds the script's own files of run first: "),
        (CheckpointedRun("first", None, True), "s3://bucket/c/ holds the script's own files of run first: "),
    ],
)
def test_a_run_that_continues_anothers_checkpoints_is_told_so(other_run: CheckpointedRun, text: str) -> None:
    assert [warning for warning in plan_with(other_run).warnings if warning.startswith(text)] != []


def test_checkpoints_of_a_finished_run_are_refused_unless_asked_for() -> None:
    finished = CheckpointedRun("first", 64, has_finished=True)
    with pytest.raises(JobError) as refusal:
        plan_with(finished)
    (problem,) = refusal.value.problems
    assert problem.path == "checkpoints.uri"
    assert problem.message.startswith(f"{HOLDS} up to step 64, which has trained to its end")
    assert problem.message.endswith("(to continue from them: --allow checkpoints.finished)")
    warnings = plan_with(finished, allow=["checkpoints.finished"]).warnings
    assert any(HOLDS in warning and "(allowed: checkpoints.finished)" in warning for warning in warnings)


@table(
    ("runs", "other"),
    [
        ([], None),
        ([("second", 64, True)], None),
        ([("second", 64, False), ("first", 32, True)], None),
        ([("first", 64, False), ("second", 32, False)], "first"),
        ([("first", 32, True), ("third", 64, False)], "third"),
        ([("first", None, True), ("third", None, False)], "third"),
        ([("first", None, True), ("second", None, False)], None),
        ([("first", 64, False, True)], None),  # of a sharded run, whose folders the script does not read
    ],
)
def test_whose_checkpoint_is_the_newest(runs: list[tuple[Any, ...]], other: str | None) -> None:
    warnings = plan_with(*(CheckpointedRun(*run) for run in runs)).warnings
    named = [
        warning.partition(" of run ")[2].split(" ")[0].strip(":")
        for warning in warnings
        if " of run " in warning
    ]
    assert named == ([other] if other else [])


def test_shards_are_compared_by_the_whole_run() -> None:
    from smlaunch.facts.discovered_facts import InputFacts, StoredFile

    files = (StoredFile("a", 5), StoredFile("b", 5))
    inputs = {"train": InputFacts("s3://b/d/", "s3", objects=2, bytes=10, files=files)}
    fields: dict[str, Any] = {
        "entry": ENTRY,
        "checkpoints": "s3://bucket/c/",
        "strategy": "share-nothing",
        "compute": {"hosts": 2},
        "inputs": {"train": {"uri": "s3://b/d/", "split": "bytes", "split_via": "jobs"}},
    }
    for run, expected in (("first", [HOLDS]), ("second", [])):
        facts = CheckpointFacts(10, 10, (CheckpointedRun(run, 64, False, is_sharded=True),))
        job_plan = make_plan(Job.from_mapping(fields), region(inputs=inputs, checkpoints=facts), "second")
        warnings = [warning for warning in job_plan.warnings if " of run " in warning]
        assert [warning[: len(HOLDS)] for warning in warnings] == expected


# ---- what is found in S3 ---------------------------------------------------------------------------------


def outcome(run: str, segment: int, result: str) -> tuple[str, bytes]:
    name = f"smlaunch/outcome-{run}-s{segment}-a1.json"
    content = SegmentOutcome(result, 64, run, f"{run}-s{segment}-a1", segment, 1, True, 64, False, 0)
    return name, content.to_bytes()


def commit(run: str, step: int) -> tuple[str, bytes]:
    return f"smlaunch/step-{step:012}/COMMIT-{run}-s1-a1", b"{}"


NEWER = (
    outcome("a", 1, FINISHED)[0],
    json.dumps({**formats.OUTCOME.with_version({}), "version": "9.0"}).encode(),
)


OWN = ("model.pt", b"x")


@table(
    ("objects", "runs"),
    [
        ([], []),
        ([OWN], []),
        ([outcome("a", 1, FINISHED), commit("a", 64), commit("a", 32)], [("a", 64, True, False)]),
        ([outcome("a", 1, FINISHED)], []),  # it has left nothing to continue from
        ([OWN, outcome("a", 1, CONTINUE), outcome("a", 2, FINISHED)], [("a", None, True, False)]),
        ([OWN, outcome("a", 1, FINISHED), outcome("a", 2, CONTINUE)], [("a", None, False, False)]),
        ([outcome("a", 1, FINISHED), commit("b", 96)], [("b", 96, False, False)]),
        ([NEWER, commit("a", 64)], [("a", 64, False, False)]),
        (
            [(f"p1/{name}", content) for name, content in (outcome("a-p1", 1, FINISHED), commit("a-p1", 8))],
            [("a", 8, True, True)],
        ),
        ([("smlaunch/step-000000000064/x/COMMIT-a-s1-a1", b""), ("smlaunch/COMMIT-a-s1-a1", b"")], []),
    ],
)
def test_which_runs_have_written_to_a_prefix(
    objects: list[tuple[str, bytes]], runs: list[tuple[Any, ...]]
) -> None:
    storage = FakeStorage(["bucket"])
    storage.objects["bucket"] = {f"c/{name}": content for name, content in objects}
    job = Job.from_mapping({"entry": ENTRY, "checkpoints": "s3://bucket/c"})
    facts = gather_checkpoint_facts(job, storage)
    assert facts is not None and [tuple(run) for run in facts.runs] == runs
