"""A machine drives a run as the driver does, whatever happens to its jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.contract.outcome import CONTINUE, FINISHED
from smlaunch.errors import EXIT_BAD_JOB, EXIT_REFUSED, EXIT_SERVICE, EXIT_TRAINING_FAILED
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS
from smlaunch.export.step_functions import DEFINITION_FILE, export_step_functions
from smlaunch.planner.plan import Plan
from smlaunch.planner.retry_policy import CREATE_BACKOFF
from smlaunch.planner.workflow import ENDING_RULES, Ending
from tests.export.jobs import (
    CAPPED,
    CHAIN,
    DIFFERENT,
    DIRECT,
    PROCESSING,
    SINGLE,
    SPOT,
    TRIED,
    plan_of,
)
from tests.export.simulated_service import OVER, RUN, Fate, Played, Service, by_driver, by_machine

JOBS = {
    "chain": CHAIN,
    "spot": SPOT,
    "different": DIFFERENT,
    "direct": DIRECT,
    "capped": CAPPED,
    "tried": TRIED,
    "single": SINGLE,
    "processing": {**PROCESSING, "limits": {"attempts": 3}},
}
PLANS = {name: plan_of(job) for name, job in JOBS.items()}


def definition_of(plan: Plan, **wishes: Any) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(export_step_functions(plan, "train", **wishes)[DEFINITION_FILE])
    return definition


MACHINES = {name: definition_of(plan) for name, plan in PLANS.items()}


def service(job: str, *fates: Fate, **more: Any) -> Service:
    """A processing job has no word for why it was stopped."""
    workflow = PLANS[job].workflow
    if job == "processing":
        by_time = (Ending.TIME, Ending.WAIT_EXCEEDED)
        fates = tuple(replace(one, ending=Ending.STOPPED) if one.ending in by_time else one for one in fates)
    keeps = workflow.checkpoints is not None and not workflow.is_single_job
    return Service(fates, workflow.job_hash, keeps=keeps, **more)


def machine_plays(job: str, *fates: Fate, **more: Any) -> Played:
    return by_machine(MACHINES[job], service(job, *fates, **more))


def driver_plays(job: str, *fates: Fate) -> Played:
    return by_driver(replace(PLANS[job].workflow, run=RUN), service(job, *fates), ORCHESTRATOR_ERRORS)


# ---- the same as the driver -----------------------------------------------------------------------------

FAILURES = [one for one in Ending if one not in (Ending.COMPLETED, Ending.TIME, Ending.DISK_FULL)]
TIMES = st.integers(0, 90_000)
WENT = st.builds(
    Fate,
    st.sampled_from([Ending.COMPLETED, Ending.TIME]),
    gain=st.sampled_from([0, 10, 60]),
    says=st.booleans(),
    seconds=TIMES,
    billed=TIMES,
)
FAILED = st.builds(
    Fate,
    st.sampled_from(FAILURES),
    says=st.sampled_from([False, False, False, True]),
    result=st.sampled_from([CONTINUE, FINISHED]),
    seconds=TIMES,
    billed=TIMES,
)


@pytest.mark.parametrize("job", JOBS)
@settings(max_examples=60, deadline=None)
@given(fates=st.lists(WENT | FAILED, max_size=12))
def test_a_machine_asks_for_the_same_jobs_as_the_driver_and_ends_as_it(job: str, fates: list[Fate]) -> None:
    by_asl, by_hand = machine_plays(job, *fates), driver_plays(job, *fates)
    assert by_asl.asked == by_hand.asked
    assert by_asl.error == by_hand.error


@settings(max_examples=60, deadline=None)
@given(fates=st.lists(WENT | FAILED, max_size=12))
def test_a_script_with_checkpoints_of_its_own_goes_on_as_with_the_driver(fates: list[Fate]) -> None:
    """It reports no step. The driver compares its files; a machine cannot, and takes a planned end for
    progress, but no failure."""
    fates = [replace(fate, says=fate.says and fate.ending not in FAILURES) for fate in fates]
    by_asl = by_machine(MACHINES["chain"], service("chain", *fates, own_files=True))
    workflow = replace(PLANS["chain"].workflow, run=RUN)
    by_hand = by_driver(workflow, service("chain", *fates, own_files=True), ORCHESTRATOR_ERRORS)
    assert (by_asl.asked, by_asl.error) == (by_hand.asked, by_hand.error)


@settings(max_examples=60, deadline=None)
@given(
    fates=st.lists(WENT | FAILED, max_size=12),
    repeats=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_script_that_only_reports_its_steps_goes_on_as_with_the_driver(
    fates: list[Fate], repeats: list[bool]
) -> None:
    fates = [replace(fate, repeats=again) for fate, again in zip(fates, repeats, strict=False)]
    by_asl = by_machine(MACHINES["chain"], service("chain", *fates, reports=True))
    workflow = replace(PLANS["chain"].workflow, run=RUN)
    by_hand = by_driver(workflow, service("chain", *fates, reports=True), ORCHESTRATOR_ERRORS)
    assert (by_asl.asked, by_asl.error) == (by_hand.asked, by_hand.error)


def test_three_jobs_that_report_no_higher_step_end_the_run() -> None:
    fates = [Fate(Ending.COMPLETED, gain=63), *[Fate(Ending.COMPLETED, gain=0)] * 9]
    ended = by_machine(MACHINES["chain"], service("chain", *fates, reports=True))
    assert len(ended.asked) == 4
    assert ended.error == ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED]
    assert f"3 jobs until {RUN}-s2-a3 came no further" in ended.cause
    assert "the highest step reported 63" in ended.cause


@pytest.mark.parametrize("ending", [one for one in Ending if one is not Ending.DISK_FULL])
@pytest.mark.parametrize("job", JOBS)
def test_every_ending_has_one_way_through_the_machine(job: str, ending: Ending) -> None:
    told = ending in (Ending.COMPLETED, Ending.TIME)
    fate = Fate(ending, says=told)
    by_asl, by_hand = machine_plays(job, fate), driver_plays(job, fate)
    assert (by_asl.asked, by_asl.error) == (by_hand.asked, by_hand.error)
    always = machine_plays(job, *[replace(fate, gain=0)] * 40)
    assert always.error is None or always.error in ORCHESTRATOR_ERRORS.values()


def test_what_a_processing_job_says_of_its_end() -> None:
    done = machine_plays("processing", OVER).output
    assert done["output"].endswith(f"/smlaunch/{RUN}/output/{RUN}-s1-a1/output/")
    assert (done["job"], "model_artifacts" in done) == (f"{RUN}-s1-a1", False)
    failed = machine_plays("processing", *[Fate(Ending.ALGORITHM)] * 3)
    assert failed.cause == "AlgorithmError: because; exit message: ValueError: row 1"
    stopped = machine_plays("processing", Fate(Ending.STOPPED))
    assert "by somebody or at its limits.max_runtime" in stopped.cause


def test_what_a_failed_execution_says_is_what_the_driver_would() -> None:
    for ending in FAILURES:
        asl = machine_plays("chain", *[Fate(ending, says=False)] * 3)
        driver = driver_plays("chain", *[Fate(ending, says=False)] * 3)
        assert asl.cause.split(";")[0] == driver.cause.split(";")[0]
        assert asl.error == ORCHESTRATOR_ERRORS[ENDING_RULES[ending].exit_code]
    alone = machine_plays("single", Fate(Ending.ALGORITHM, says=False))
    assert alone.cause == driver_plays("single", Fate(Ending.ALGORITHM, says=False)).cause


# ---- what the service may answer ------------------------------------------------------------------------


def test_a_throttled_create_is_sent_again_under_the_same_name() -> None:
    throttled = [("SageMaker.ThrottlingException", "Rate exceeded")] * 5
    played = machine_plays("chain", OVER, refusals=throttled)
    assert [one[0] for one in played.asked] == [f"{RUN}-s1-a1"]
    assert played.error is None
    retry = MACHINES["chain"]["States"]["Train"]["Retry"][0]
    assert retry["MaxAttempts"] == CREATE_BACKOFF.max_retries


def test_a_throttled_create_that_comes_under_a_common_name_is_waited_for_too() -> None:
    told = "Rate exceeded (Service: AmazonSageMaker; Status Code: 400; Error Code: ThrottlingException)"
    played = machine_plays("chain", OVER, refusals=[("SageMaker.AmazonSageMakerException", told)] * 3)
    assert (len(played.asked), played.error) == (1, None)


def test_a_create_whose_answer_was_lost_is_no_second_job() -> None:
    fates = [Fate(Ending.COMPLETED), Fate(Ending.SERVICE, says=False), OVER]
    lost = machine_plays("chain", *fates, lost=frozenset({1, 2, 3}))
    assert lost == machine_plays("chain", *fates)


def test_a_name_that_another_job_has_is_never_taken_for_ours() -> None:
    played = machine_plays("chain", OVER, lost=frozenset({1}), foreign=True)
    assert played.error == ORCHESTRATOR_ERRORS[EXIT_BAD_JOB]
    assert "made of another job" in played.cause


QUOTA = (
    "The account-level service limit 'ml.g5.xlarge for training job usage' is {} Instances, with current "
    "utilization of {} Instances and a request delta of 1 Instances."
)


def test_a_quota_that_others_hold_is_waited_for_and_one_that_is_too_small_is_not() -> None:
    error = "SageMaker.ResourceLimitExceededException"
    held = machine_plays("chain", OVER, refusals=[(error, QUOTA.format(1, 1))] * 7)
    assert (len(held.asked), held.error) == (1, None)
    small = machine_plays("chain", OVER, refusals=[(error, QUOTA.format(0, 0))])
    assert (small.asked, small.error, small.cause) == (
        (),
        ORCHESTRATOR_ERRORS[EXIT_REFUSED],
        QUOTA.format(0, 0),
    )
    world = service("chain", OVER, refusals=[(error, QUOTA.format(1, 1))] * 10_000)
    for_ever = by_machine(MACHINES["chain"], world)
    assert for_ever.error == ORCHESTRATOR_ERRORS[EXIT_SERVICE]
    assert world.executions == [RUN, f"{RUN}-part-1", f"{RUN}-part-2", f"{RUN}-part-3"]


def test_a_chain_that_is_longer_than_a_history_goes_on_in_another_execution() -> None:
    many = [Fate(Ending.COMPLETED, seconds=0, billed=0)] * 80
    world = service("chain", *many)
    played = by_machine(MACHINES["chain"], world)
    assert [one[0] for one in played.asked] == [f"{RUN}-s{number}-a1" for number in range(1, 82)]
    assert (played.error, world.executions) == (None, [RUN, f"{RUN}-part-1", f"{RUN}-part-2"])
    assert played.asked == driver_plays("chain", *many).asked


def test_a_chain_that_may_not_hand_over_says_so() -> None:
    many = [Fate(Ending.COMPLETED, seconds=0, billed=0)] * 80
    said = "User: arn:x is not authorized to perform: states:StartExecution"
    refused = machine_plays("chain", *many, refuses_starts=said)
    assert (refused.error, refused.cause) == (ORCHESTRATOR_ERRORS[EXIT_REFUSED], said)


def test_a_request_that_is_refused_fails_with_the_services_words() -> None:
    told = "1 validation error detected: Value 'ml.nothing' ..."
    refused = machine_plays("chain", OVER, refusals=[("SageMaker.AmazonSageMakerException", told)])
    assert (refused.error, refused.cause) == (ORCHESTRATOR_ERRORS[EXIT_BAD_JOB], told)
    denied = "User: arn is not authorized to perform: sagemaker:CreateTrainingJob"
    refused = machine_plays("chain", OVER, refusals=[("SageMaker.AmazonSageMakerException", denied)])
    assert refused.error == ORCHESTRATOR_ERRORS[EXIT_REFUSED]
