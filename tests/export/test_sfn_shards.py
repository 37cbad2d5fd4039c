"""A sharded run: every shard an execution of the same machine, each with its own data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from smlaunch.chain.workflow import JobEnding
from smlaunch.errors import EXIT_REFUSED, EXIT_TRAINING_FAILED, JobError
from smlaunch.export.run_template import ITEMS_FILE, ORCHESTRATOR_ERRORS, build_run_template
from smlaunch.export.sfn_policies import REASONS, permissions_policy
from smlaunch.export.sfn_shards import LIST_SHARDS, MAX_INLINE_SHARDS, MAX_SHARDS, merge_shards
from smlaunch.export.step_functions import DEFINITION_FILE, export_step_functions, with_items_upload
from smlaunch.render.plan import Plan
from tests.export.simulated_service import RUN, Fate, RunResult, Service, run_machine
from tests.planner.fixtures import plan
from tests.planner.test_sharding import SKEWED, facts, job, world

PLAN = plan(job(), world(facts(SKEWED)))
MACHINE: dict[str, Any] = json.loads(export_step_functions(PLAN, "shards")[DEFINITION_FILE])

MANY: dict[str, str] = export_step_functions(PLAN, "shards", max_inline_shards=3)
DISTRIBUTED: dict[str, Any] = json.loads(MANY[DEFINITION_FILE])
"""The same four shards, as if they were too many for one definition."""

each_machine = pytest.mark.parametrize("machine", [MACHINE, DISTRIBUTED], ids=["inline", "distributed"])

ITEMS_URI = "s3://sagemaker-us-east-1-123456789012/smlaunch/digits/shards/items.json"

RESULTS = f"s3://sagemaker-us-east-1-123456789012/smlaunch/{RUN}/shards/results/"


def run_parts(*fates: Fate, machine: dict[str, Any] = MACHINE, **more: Any) -> tuple[Service, RunResult]:
    service = Service(
        fates, PLAN.job_hash, has_checkpoints=False, objects={ITEMS_URI: MANY[ITEMS_FILE]}, **more
    )
    return service, run_machine(machine, service)


@each_machine
def test_every_part_is_a_run_with_its_own_manifest(machine: dict[str, Any]) -> None:
    service, run = run_parts(machine=machine)
    assert run.error is None
    assert service.executions == [RUN, *(f"{RUN}-p{number}" for number in range(1, 5))]
    for shard, request in zip(PLAN.shard_plans, service.requests, strict=True):
        wanted = shard.planned_jobs[0].request
        assert request["TrainingJobName"] == wanted["TrainingJobName"].replace("digits", RUN)
        assert request["InputDataConfig"] == wanted["InputDataConfig"]
        assert request["Environment"]["SMLAUNCH_RUN"] == request["TrainingJobName"].removesuffix("-s1-a1")


@each_machine
def test_a_part_that_fails_is_tried_again_alone_and_fails_the_run_at_its_end(machine: dict[str, Any]) -> None:
    failing_fate = Fate(JobEnding.ALGORITHM, has_outcome=False)
    service, run = run_parts(failing_fate, machine=machine)
    assert [request["TrainingJobName"] for request in service.requests][:2] == [
        f"{RUN}-p1-s1-a1",
        f"{RUN}-p1-s1-a2",
    ]
    assert run.error is None
    service, run = run_parts(*[failing_fate] * 3, machine=machine)
    assert run.error == ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED]
    assert service.requests[-1]["TrainingJobName"] == f"{RUN}-p4-s1-a1"


@each_machine
def test_parts_that_may_not_begin_say_so(machine: dict[str, Any]) -> None:
    cause = "User: arn:x is not authorized to perform: states:StartExecution"
    service, run = run_parts(machine=machine, refuses_starts=cause)
    assert (service.requests, run.error) == ([], ORCHESTRATOR_ERRORS[EXIT_REFUSED])
    assert cause in (run.cause if machine is MACHINE else service.written[f"{RESULTS}4.json"]["cause"])


def test_parts_that_are_processing_jobs_go_the_same_way() -> None:
    processing_plan = plan({**job(), "strategy": "processing"}, world(facts(SKEWED)))
    service = Service([], processing_plan.job_hash, has_checkpoints=False)
    run = run_machine(json.loads(export_step_functions(processing_plan, "shards")[DEFINITION_FILE]), service)
    assert run.error is None
    for shard, request, result in zip(processing_plan.shard_plans, service.requests, run.output, strict=True):
        wanted = shard.planned_jobs[0].request
        assert request["ProcessingJobName"] == wanted["ProcessingJobName"].replace("digits", RUN)
        assert request["ProcessingInputs"] == wanted["ProcessingInputs"]
        output_uri = wanted["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"].replace(
            "digits", RUN
        )
        assert request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"] == output_uri
        assert result["result"]["output"] == output_uri


def test_what_a_machine_of_parts_cannot_do_is_refused_by_name() -> None:
    plan_with_checkpoints = plan({**job(), "checkpoints": {"uri": "s3://mine/ckpt/"}}, world(facts(SKEWED)))
    for sharded_plan, run, field in (
        (plan_with_checkpoints, None, "checkpoints.uri"),
        (PLAN, "digits", "name"),
    ):
        with pytest.raises(JobError) as refused:
            export_step_functions(sharded_plan, "shards", fixed_run_id=run)
        assert [problem.path for problem in refused.value.problems] == [field]


def test_what_the_parts_call_is_allowed() -> None:
    allowed = permissions_policy(build_run_template(PLAN), MACHINE, "shards")["Statement"]
    assert {"GoOn", "WaitForWhatGoesOn", "HearOfExecutions"} <= {one["Sid"] for one in allowed}


def test_a_part_that_goes_on_in_another_execution_takes_its_data_along() -> None:
    state = MACHINE["States"]["Hand over"]["Parameters"]["Input"]["smlaunch"]
    assert state["shard.$"] == "$.shard"
    assert MACHINE["States"]["Take over"]["Parameters"]["shard.$"] == "$.smlaunch.shard"


def test_many_parts_are_read_from_a_list_in_s3() -> None:
    every = DISTRIBUTED["States"]["Every shard"]
    items = json.loads(MANY[ITEMS_FILE])
    assert items == MACHINE["States"][LIST_SHARDS]["Parameters"]["shards"]
    assert "shards" not in DISTRIBUTED["States"][LIST_SHARDS]["Parameters"]
    bucket, _, key = ITEMS_URI.removeprefix("s3://").partition("/")
    assert every["ItemReader"] == {
        "Resource": "arn:aws:states:::s3:getObject",
        "ReaderConfig": {"InputType": "JSON"},
        "Parameters": {"Bucket": bucket, "Key": key},
    }
    config = every["ItemProcessor"]["ProcessorConfig"]
    assert config == {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}
    assert (every["Label"], every["MaxConcurrency"], every["ToleratedFailureCount"]) == ("shards", 40, 0)
    assert "$$" not in json.dumps(every["ItemProcessor"])  # it would be the Map execution's context


def test_a_list_in_s3_is_staged_and_the_same_each_time() -> None:
    upload = with_items_upload(PLAN, MANY).uploads[-1]
    assert (upload.uri, upload.content) == (ITEMS_URI, MANY[ITEMS_FILE])
    assert export_step_functions(PLAN, "shards", max_inline_shards=3) == MANY
    inline = export_step_functions(PLAN, "shards")
    assert ITEMS_FILE not in inline
    assert with_items_upload(PLAN, inline) == PLAN


def plan_of_shards(count: int) -> Plan:
    """Return the plan with ``count`` copies of its first shard under different names."""
    first = PLAN.shard_plans[0]
    shards = (replace(first, workflow=replace(first.workflow, run=f"digits-p{n + 1}")) for n in range(count))
    return replace(PLAN, shard_plans=tuple(shards))


def test_the_list_stands_in_s3_where_the_parts_are_too_many_for_the_definition() -> None:
    assert ITEMS_FILE not in export_step_functions(plan_of_shards(MAX_INLINE_SHARDS), "shards")
    files = export_step_functions(plan_of_shards(MAX_INLINE_SHARDS + 1), "shards")
    assert len(json.loads(files[ITEMS_FILE])) == MAX_INLINE_SHARDS + 1
    flow = build_run_template(plan_of_shards(1))
    with pytest.raises(JobError) as refused:
        merge_shards(replace(flow, shards=flow.shards * (MAX_SHARDS + 1)))
    assert [problem.path for problem in refused.value.problems] == ["compute.hosts"]


def test_what_is_told_of_many_parts_is_short() -> None:
    """A state's output has room for 256 KiB, and a Cause for 32 KiB."""
    shard_output = {"shard": MAX_SHARDS, "error": max(ORCHESTRATOR_ERRORS.values(), key=len)}
    inner = DISTRIBUTED["States"]["Every shard"]["ItemProcessor"]["States"]
    assert {key.removesuffix(".$") for key in inner["In short"]["Parameters"]} == set(shard_output)
    numbers = json.dumps(list(range(1, MAX_SHARDS + 1)))
    assert (len(json.dumps(shard_output)) + 2) * MAX_SHARDS + len(numbers) < 250 << 10
    assert len(numbers) < 30 << 10


def test_the_run_says_where_each_of_many_parts_has_left_its_result_or_error() -> None:
    results_uri = RESULTS
    service, run = run_parts(machine=DISTRIBUTED)
    assert run.output["results"] == results_uri
    assert run.output["shards"] == [{"shard": number, "error": ""} for number in range(1, 5)]
    assert list(service.written) == [f"{results_uri}{number}.json" for number in range(1, 5)]
    for number, result in enumerate(service.written.values(), 1):
        assert (result["execution"], result["error"]) == (f"{RUN}-p{number}", "")
        assert result["result"]["job"] == f"{RUN}-p{number}-s1-a1"
    service, run = run_parts(*[Fate(JobEnding.ALGORITHM, has_outcome=False)] * 3, machine=DISTRIBUTED)
    assert run.error == ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED]
    assert run.cause == f"the shards [1] failed so; why each did stands in {results_uri}<number>.json"
    _, run = run_parts(machine=DISTRIBUTED, may_write=False)
    assert run.error is None
    result = service.written[f"{results_uri}1.json"]
    assert result["error"] == ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED]
    assert "AlgorithmError" in result["cause"]


def test_what_a_distributed_map_calls_is_allowed() -> None:
    policy = permissions_policy(build_run_template(PLAN), DISTRIBUTED, "shards")["Statement"]
    allowed = {one["Sid"]: (one["Action"], one["Resource"]) for one in policy}
    machine = "arn:aws:states:us-east-1:123456789012"
    assert set(allowed) <= set(REASONS)
    assert allowed["GoOn"] == (["states:StartExecution"], [f"{machine}:stateMachine:shards"])
    watching = ["states:DescribeExecution", "states:StopExecution"]
    assert allowed["WaitForWhatGoesOn"] == (watching, [f"{machine}:execution:shards:*"])
    results = "arn:aws:s3:::sagemaker-us-east-1-123456789012/smlaunch/*/shards/results/*"
    assert allowed["WriteResults"] == (["s3:PutObject"], [results])
    assert allowed["WatchShards"] == (watching, [f"{machine}:execution:shards/shards:*"])
    assert allowed["ReadShards"] == (["s3:GetObject"], [ITEMS_URI.replace("s3://", "arn:aws:s3:::")])
    inline = permissions_policy(build_run_template(PLAN), MACHINE, "shards")["Statement"]
    assert not {"ReadShards", "WriteResults", "WatchShards"} & {one["Sid"] for one in inline}
