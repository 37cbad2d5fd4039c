"""A template filled with values equals the request that the workflow itself creates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.api import job_kinds
from smlaunch.chain.workflow import Workflow, build_job_request, variant_of_segment
from smlaunch.contract import segment as variables
from smlaunch.contract.run_names import JobName
from smlaunch.errors import JobError
from smlaunch.export.run_template import (
    JobVariable,
    NumberTemplate,
    RequestTemplate,
    TextTemplate,
    build_run_template,
    map_template_values,
)
from tests.export.jobs import CHAIN, DIFFERENT, DIRECT, PROCESSING, SPOT, plan_of


def rename_run(workflow: Workflow, run: str) -> Workflow:
    """Return the workflow as if it had been planned under the execution's name."""

    def swap(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(
                f"/smlaunch/{workflow.run}/checkpoints", f"/smlaunch/{run}/checkpoints"
            ).replace(f"/smlaunch/{workflow.run}/output", f"/smlaunch/{run}/output")
        if isinstance(value, dict):
            return {key: swap(item) for key, item in value.items()}
        return [swap(item) for item in value] if isinstance(value, list) else value

    variants = tuple(replace(one, request=swap(dict(one.request))) for one in workflow.variants)
    return replace(workflow, run=run, variants=variants)


def fill_template(template: RequestTemplate, values: Mapping[JobVariable, str | int]) -> dict[str, Any]:
    """Return the request of one job."""

    def fill_value(value: TextTemplate | NumberTemplate) -> str | int:
        if isinstance(value, NumberTemplate):
            return int(values[value.variable])
        return "".join(str(values[word]) if isinstance(word, JobVariable) else word for word in value.pieces)

    request: dict[str, Any] = map_template_values(template, fill_value)
    return request


PLANS = {"chain": plan_of(CHAIN), "spot": plan_of(SPOT), "different": plan_of(DIFFERENT)}


@pytest.mark.parametrize("job", PLANS)
@given(
    segment=st.integers(1, 900),
    attempt=st.integers(1, 90),
    step=st.integers(0, 10**6),
    seconds_left=st.integers(1, 60 * 3600),
    on_demand=st.booleans(),
)
def test_a_filled_template_is_the_drivers_request(
    job: str, segment: int, attempt: int, step: int, seconds_left: int, on_demand: bool
) -> None:
    plan = PLANS[job]
    flow = build_run_template(plan)
    workflow = rename_run(plan.workflow, "nightly")
    variant = variant_of_segment(workflow, segment, step)
    stage = flow.variants[workflow.variants.index(variant)]
    if seconds_left < stage.min_job_seconds or (segment, attempt) == (1, 1):
        return
    limit = min(seconds_left, stage.max_runtime_seconds)
    spot = False if on_demand and stage.on_demand_request else None
    template = stage.on_demand_request if spot is False else stage.request
    assert template is not None
    values: dict[JobVariable, str | int] = {
        JobVariable.RUN: "nightly",
        JobVariable.SEGMENT: segment,
        JobVariable.ATTEMPT: attempt,
        JobVariable.COMMITTED_STEP: step,
        JobVariable.REPORTED_STEP: step + 1,
        JobVariable.MAX_RUNTIME: limit,
        JobVariable.STOP_AFTER: stage.planned_end_seconds(limit) or 0,
        JobVariable.DRIVER: "execution",
    }
    filled_request = fill_template(template, values)
    expected = build_job_request(
        workflow,
        segment,
        attempt,
        newest_checkpoint_step=step,
        reported_step=step + 1,
        spot=spot,
        seconds_left=seconds_left,
    )
    # An orchestrator's request names its run, since one job.json serves all runs.
    assert filled_request["Environment"].pop(variables.RUN_VARIABLE) == "nightly"
    assert filled_request["Environment"].pop(variables.DRIVER_VARIABLE) == "execution"
    assert (
        filled_request["Environment"].pop(variables.CHECKPOINTS_URI_VARIABLE)
        == filled_request["CheckpointConfig"]["S3Uri"]
    )
    assert filled_request == expected
    assert filled_request["TrainingJobName"] == str(JobName("nightly", segment, attempt))


def test_a_prefix_of_the_users_own_gets_a_folder_for_each_execution() -> None:
    """The second execution would otherwise find the first one's last checkpoint, and train nothing."""
    template = build_run_template(plan_of(DIRECT)).variants[0].request
    values: dict[JobVariable, str | int] = dict.fromkeys(JobVariable, 1) | {JobVariable.RUN: "nightly"}
    assert "CheckpointConfig" not in template
    assert (
        fill_template(template, values)["Environment"][variables.CHECKPOINTS_URI_VARIABLE]
        == "s3://mine/ckpt/nightly/"
    )
    fixed = build_run_template(plan_of(DIRECT), fixed_run_id="digits").variants[0].request
    assert (
        fill_template(fixed, values)["Environment"][variables.CHECKPOINTS_URI_VARIABLE] == "s3://mine/ckpt/"
    )


@pytest.mark.parametrize("output", [None, "s3://mine/out/"])
def test_a_filled_template_of_a_processing_job_is_the_drivers_request(output: str | None) -> None:
    outputs = {"clean": "/opt/ml/processing/clean"}
    job = {**PROCESSING, "output": output, "outputs": outputs}
    plan = plan_of(job)
    flow = build_run_template(plan)
    assert flow.kind is job_kinds.PROCESSING
    values: dict[JobVariable, str | int] = dict.fromkeys(JobVariable, 1) | {
        JobVariable.RUN: "nightly",
        JobVariable.ATTEMPT: 2,
    }
    values[JobVariable.COMMITTED_STEP] = 0
    filled_request = fill_template(flow.variants[0].request, values)
    assert filled_request["Environment"].pop(variables.RUN_VARIABLE) == "nightly"
    assert filled_request["Environment"].pop(variables.DRIVER_VARIABLE) == "1"
    expected = plan_of(job, "nightly").workflow
    for entry, name in zip(
        filled_request["ProcessingOutputConfig"]["Outputs"], ("output", "clean"), strict=True
    ):
        place = entry["S3Output"]["S3Uri"]
        assert place.endswith(f"/nightly-s1-a1/{name}/") and "digits" not in place
    expected_request = build_job_request(expected, 1, 2, newest_checkpoint_step=0)
    for request in (filled_request, expected_request):
        del request["ProcessingInputs"]  # staged once, for all runs
    assert filled_request == expected_request


def test_what_is_staged_once_keeps_its_place() -> None:
    channels = build_run_template(plan_of(CHAIN)).variants[0].request["InputDataConfig"]
    assert channels == plan_of(CHAIN).requests[0]["InputDataConfig"]


def test_what_cannot_be_said_is_refused_by_name() -> None:
    priced = {
        "limits": {**CHAIN["limits"], "max_cost": 900},
        "segments": [{"until_step": 5}, {"compute": {"hosts": 2}}],
    }
    with pytest.raises(JobError) as refused:
        build_run_template(plan_of({**CHAIN, **priced, "hyperparameters": {"a.$": 1}}))
    assert {problem.path for problem in refused.value.problems} == {"limits.max_cost", "hyperparameters.a.$"}


def test_money_is_counted_in_seconds() -> None:
    plan = plan_of({**CHAIN, "limits": {**CHAIN["limits"], "max_cost": 50}})
    price = plan.workflow.variants[0].price_per_hour
    assert price
    assert build_run_template(plan).max_billed_seconds == int(50 / price * 3600)
    assert build_run_template(plan_of(CHAIN)).max_billed_seconds is None


def test_a_chain_of_hosts_that_train_independently_is_no_orchestrators() -> None:
    """An orchestrator reads the leader's outcome only, and each of these hosts has its own."""
    inputs = {"train": {"uri": "s3://b/data/", "split": "key"}}
    job = {**CHAIN, "strategy": "share-nothing", "inputs": inputs, "compute": {"hosts": 2}}
    with pytest.raises(JobError, match=r"compute\.hosts: a chain of several hosts that train independently"):
        build_run_template(plan_of(job))
