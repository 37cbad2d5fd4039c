"""A state machine drives a run as the driver does, for any results of its jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.retry_policy import CREATE_BACKOFF
from smlaunch.chain.workflow import RULE_BY_ENDING, JobEnding
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED, SegmentOutcome
from smlaunch.errors import (
    EXIT_BAD_JOB,
    EXIT_LIMIT,
    EXIT_REFUSED,
    EXIT_SERVICE,
    EXIT_TRAINING_FAILED,
    JobError,
)
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS, build_run_template
from smlaunch.export.step_functions import DEFINITION_FILE, export_step_functions
from smlaunch.render.plan import Plan
from tests.export.jobs import (
    CAPPED,
    CHAIN,
    DIFFERENT,
    DIRECT,
    PROCESSING,
    RETRIED,
    SINGLE,
    SPOT,
    plan_of,
)
from tests.export.simulated_service import (
    FINISHED_JOB,
    RUN,
    Fate,
    RunResult,
    Service,
    run_driver,
    run_machine,
)

JOBS = {
    "chain": CHAIN,
    "spot": SPOT,
    "different": DIFFERENT,
    "direct": DIRECT,
    "capped": CAPPED,
    "tried": RETRIED,
    "single": SINGLE,
    "processing": {**PROCESSING, "limits": {"attempts": 3}},
}
PLANS = {name: plan_of(job) for name, job in JOBS.items()}


def definition_of(plan: Plan, **options: Any) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(export_step_functions(plan, "train", **options)[DEFINITION_FILE])
    return definition


MACHINES = {name: definition_of(plan) for name, plan in PLANS.items()}


def service(job: str, *fates: Fate, **more: Any) -> Service:
    """Return a simulated service. A processing job does not report why it was stopped."""
    workflow = PLANS[job].workflow
    if job == "processing":
        by_time = (JobEnding.TIME_LIMIT, JobEnding.WAIT_EXCEEDED)
        fates = tuple(
            replace(one, ending=JobEnding.STOPPED) if one.ending in by_time else one for one in fates
        )
    keeps = workflow.checkpoints is not None and not workflow.is_single_job
    return Service(fates, workflow.job_hash, has_checkpoints=keeps, **more)


def machine_result(job: str, *fates: Fate, **more: Any) -> RunResult:
    return run_machine(MACHINES[job], service(job, *fates, **more))


def driver_result(job: str, *fates: Fate) -> RunResult:
    workflow = replace(PLANS[job].workflow, run=RUN)
    if job == "processing":
        # The service's answer about a processing job has no seconds that a machine could add up.
        workflow = replace(workflow, policy=replace(workflow.policy, total_seconds=None))
    return run_driver(workflow, service(job, *fates), ORCHESTRATOR_ERRORS)


# ---- equality with the driver ---------------------------------------------------------------------------

FAILURES = [
    one for one in JobEnding if one not in (JobEnding.COMPLETED, JobEnding.TIME_LIMIT, JobEnding.DISK_FULL)
]
TIMES = st.integers(0, 90_000)
SUCCESSFUL_FATES = st.builds(
    Fate,
    st.sampled_from([JobEnding.COMPLETED, JobEnding.TIME_LIMIT]),
    gain=st.sampled_from([0, 10, 60]),
    has_outcome=st.booleans(),
    seconds=TIMES,
    billed=TIMES,
)
FAILED_FATES = st.builds(
    Fate,
    st.sampled_from(FAILURES),
    has_outcome=st.sampled_from([False, False, False, True]),
    result=st.sampled_from([CONTINUE, FINISHED]),
    seconds=TIMES,
    billed=TIMES,
)


@pytest.mark.parametrize("job", JOBS)
@settings(max_examples=60, deadline=None)
@given(fates=st.lists(SUCCESSFUL_FATES | FAILED_FATES, max_size=12))
def test_a_machine_asks_for_the_same_jobs_as_the_driver_and_ends_as_it(job: str, fates: list[Fate]) -> None:
    machine_run, driver_run = machine_result(job, *fates), driver_result(job, *fates)
    assert machine_run.requests == driver_run.requests
    assert machine_run.error == driver_run.error


@settings(max_examples=60, deadline=None)
@given(
    fates=st.lists(SUCCESSFUL_FATES | FAILED_FATES, max_size=12),
    reporting_jobs=st.frozensets(st.integers(1, 12), max_size=3),
)
def test_a_script_with_checkpoints_of_its_own_goes_on_as_with_the_driver(
    fates: list[Fate], reporting_jobs: frozenset[int]
) -> None:
    """The script reports no step, or only some of its jobs do. The driver compares its files; a machine
    cannot, and takes a planned end for progress, but no failure of the service. A job that has reported no
    step but 0 is left out: the driver counts its files for the next job that reports nothing."""
    saves = (JobEnding.COMPLETED, JobEnding.TIME_LIMIT, JobEnding.ALGORITHM)
    fates = [
        replace(fate, has_outcome=fate.has_outcome and fate.ending in saves, gain=fate.gain or 1)
        for fate in fates
    ]
    more = {"own_files": True, "reporting_jobs": reporting_jobs}
    machine_run = run_machine(MACHINES["chain"], service("chain", *fates, **more))
    workflow = replace(PLANS["chain"].workflow, run=RUN)
    driver_run = run_driver(workflow, service("chain", *fates, **more), ORCHESTRATOR_ERRORS)
    assert (machine_run.requests, machine_run.error) == (driver_run.requests, driver_run.error)


@pytest.mark.parametrize("job", ["chain", "different"])
@settings(max_examples=60, deadline=None)
@given(
    fates=st.lists(SUCCESSFUL_FATES | FAILED_FATES, max_size=12),
    repeats=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_script_that_only_reports_its_steps_goes_on_as_with_the_driver(
    job: str, fates: list[Fate], repeats: list[bool]
) -> None:
    fates = [replace(fate, repeats=repeat) for fate, repeat in zip(fates, repeats, strict=False)]
    machine_run = run_machine(MACHINES[job], service(job, *fates, has_progress_lines=True))
    workflow = replace(PLANS[job].workflow, run=RUN)
    driver_run = run_driver(workflow, service(job, *fates, has_progress_lines=True), ORCHESTRATOR_ERRORS)
    assert (machine_run.requests, machine_run.error) == (driver_run.requests, driver_run.error)


def test_all_attempts_of_a_single_job_share_its_time() -> None:
    failure = Fate(JobEnding.ALGORITHM, has_outcome=False, seconds=80_000, billed=80_000)
    ended = machine_result("tried", failure, failure)
    assert [request[2] for request in ended.requests] == [86_400, 6_400]
    assert ended.error == ORCHESTRATOR_ERRORS[EXIT_LIMIT]


def test_the_cost_of_several_processing_jobs_is_not_exported() -> None:
    job = {**PROCESSING, "limits": {"attempts": 3, "max_cost": 500}}
    with pytest.raises(JobError, match=r"limits\.max_cost: an orchestrator cannot count the time of several"):
        build_run_template(plan_of(job))
    build_run_template(plan_of({**PROCESSING, "limits": {"max_cost": 500}}))


def test_three_jobs_that_report_no_higher_step_end_the_run() -> None:
    fates = [Fate(JobEnding.COMPLETED, gain=63), *[Fate(JobEnding.COMPLETED, gain=0)] * 9]
    ended = run_machine(MACHINES["chain"], service("chain", *fates, has_progress_lines=True))
    assert len(ended.requests) == 4
    assert ended.error == ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED]
    assert f"3 jobs until {RUN}-s2-a3 came no further" in ended.cause
    assert "the highest step reported 63" in ended.cause


@pytest.mark.parametrize("ending", [one for one in JobEnding if one is not JobEnding.DISK_FULL])
@pytest.mark.parametrize("job", JOBS)
def test_every_ending_has_one_way_through_the_machine(job: str, ending: JobEnding) -> None:
    has_outcome = ending in (JobEnding.COMPLETED, JobEnding.TIME_LIMIT)
    fate = Fate(ending, has_outcome=has_outcome)
    machine_run, driver_run = machine_result(job, fate), driver_result(job, fate)
    assert (machine_run.requests, machine_run.error) == (driver_run.requests, driver_run.error)
    repeated = machine_result(job, *[replace(fate, gain=0)] * 40)
    assert repeated.error is None or repeated.error in ORCHESTRATOR_ERRORS.values()


def test_what_a_processing_job_says_of_its_end() -> None:
    output = machine_result("processing", FINISHED_JOB).output
    assert output["output"].endswith(f"/smlaunch/{RUN}/output/{RUN}-s1-a1/output/")
    assert (output["job"], "model_artifacts" in output) == (f"{RUN}-s1-a1", False)
    failed = machine_result("processing", *[Fate(JobEnding.ALGORITHM)] * 3)
    assert failed.cause == "AlgorithmError: because; exit message: ValueError: row 1"
    stopped = machine_result("processing", Fate(JobEnding.STOPPED))
    assert "by somebody or at its limits.max_runtime" in stopped.cause


def test_what_a_failed_execution_says_is_what_the_driver_would() -> None:
    for ending in FAILURES:
        asl = machine_result("chain", *[Fate(ending, has_outcome=False)] * 3)
        driver = driver_result("chain", *[Fate(ending, has_outcome=False)] * 3)
        assert asl.cause.split(";")[0] == driver.cause.split(";")[0]
        assert asl.error == ORCHESTRATOR_ERRORS[RULE_BY_ENDING[ending].exit_code]
    alone = machine_result("single", Fate(JobEnding.ALGORITHM, has_outcome=False))
    assert alone.cause == driver_result("single", Fate(JobEnding.ALGORITHM, has_outcome=False)).cause


# ---- errors of the service ------------------------------------------------------------------------------


def test_a_throttled_create_is_sent_again_under_the_same_name() -> None:
    throttled = [("SageMaker.ThrottlingException", "Rate exceeded")] * 5
    result = machine_result("chain", FINISHED_JOB, refusals=throttled)
    assert [one[0] for one in result.requests] == [f"{RUN}-s1-a1"]
    assert result.error is None
    retry = MACHINES["chain"]["States"]["Train"]["Retry"][0]
    assert retry["MaxAttempts"] == CREATE_BACKOFF.max_retries


def test_a_throttled_create_that_comes_under_a_common_name_is_waited_for_too() -> None:
    message = "Rate exceeded (Service: AmazonSageMaker; Status Code: 400; Error Code: ThrottlingException)"
    result = machine_result(
        "chain", FINISHED_JOB, refusals=[("SageMaker.AmazonSageMakerException", message)] * 3
    )
    assert (len(result.requests), result.error) == (1, None)


def test_a_create_whose_answer_was_lost_is_no_second_job() -> None:
    fates = [Fate(JobEnding.COMPLETED), Fate(JobEnding.SERVICE, has_outcome=False), FINISHED_JOB]
    lost = machine_result("chain", *fates, lost_answers=frozenset({1, 2, 3}))
    assert lost == machine_result("chain", *fates)


def test_a_name_that_another_job_has_is_never_taken_for_ours() -> None:
    result = machine_result("chain", FINISHED_JOB, lost_answers=frozenset({1}), foreign=True)
    assert result.error == ORCHESTRATOR_ERRORS[EXIT_BAD_JOB]
    assert "made of another job" in result.cause


QUOTA = (
    "The account-level service limit 'ml.g5.xlarge for training job usage' is {} Instances, with current "
    "utilization of {} Instances and a request delta of 1 Instances."
)


def test_a_quota_that_others_hold_is_waited_for_and_one_that_is_too_small_is_not() -> None:
    error = "SageMaker.ResourceLimitExceededException"
    result = machine_result("chain", FINISHED_JOB, refusals=[(error, QUOTA.format(1, 1))] * 7)
    assert (len(result.requests), result.error) == (1, None)
    small = machine_result("chain", FINISHED_JOB, refusals=[(error, QUOTA.format(0, 0))])
    assert (small.requests, small.error, small.cause) == (
        (),
        ORCHESTRATOR_ERRORS[EXIT_REFUSED],
        QUOTA.format(0, 0),
    )
    simulation = service("chain", FINISHED_JOB, refusals=[(error, QUOTA.format(1, 1))] * 10_000)
    for_ever = run_machine(MACHINES["chain"], simulation)
    assert for_ever.error == ORCHESTRATOR_ERRORS[EXIT_SERVICE]
    assert simulation.executions == [RUN, f"{RUN}-part-1", f"{RUN}-part-2", f"{RUN}-part-3"]


def test_a_chain_that_is_longer_than_a_history_goes_on_in_another_execution() -> None:
    many = [Fate(JobEnding.COMPLETED, seconds=0, billed=0)] * 80
    simulation = service("chain", *many)
    result = run_machine(MACHINES["chain"], simulation)
    assert [one[0] for one in result.requests] == [f"{RUN}-s{number}-a1" for number in range(1, 82)]
    assert (result.error, simulation.executions) == (None, [RUN, f"{RUN}-part-1", f"{RUN}-part-2"])
    assert result.requests == driver_result("chain", *many).requests


def test_a_chain_that_may_not_hand_over_says_so() -> None:
    many = [Fate(JobEnding.COMPLETED, seconds=0, billed=0)] * 80
    message = "User: arn:x is not authorized to perform: states:StartExecution"
    refused = machine_result("chain", *many, refuses_starts=message)
    assert (refused.error, refused.cause) == (ORCHESTRATOR_ERRORS[EXIT_REFUSED], message)


def test_a_request_that_is_refused_fails_with_the_services_words() -> None:
    message = "1 validation error detected: Value 'ml.nothing' ..."
    refused = machine_result(
        "chain", FINISHED_JOB, refusals=[("SageMaker.AmazonSageMakerException", message)]
    )
    assert (refused.error, refused.cause) == (ORCHESTRATOR_ERRORS[EXIT_BAD_JOB], message)
    denied = "User: arn is not authorized to perform: sagemaker:CreateTrainingJob"
    refused = machine_result("chain", FINISHED_JOB, refusals=[("SageMaker.AmazonSageMakerException", denied)])
    assert refused.error == ORCHESTRATOR_ERRORS[EXIT_REFUSED]


def test_another_job_that_has_finished_under_the_name_fails_the_execution() -> None:
    """A run of another job had the name, and its records were deleted: the hosts refuse to train."""
    refusing = Fate(JobEnding.ALGORITHM, has_outcome=False)
    other = SegmentOutcome(FINISHED, 20, RUN, f"{RUN}-s1-a1", ranks_succeeded=True, job_hash="0" * 64)
    simulated = service("chain", *[refusing] * 9, outcomes={other.path: other.to_bytes()})
    result = run_machine(MACHINES["chain"], simulated)
    assert result.error is not None
    assert len(simulated.requests) > 1  # it neither ends the run nor makes way for the next attempt
    assert simulated.outcomes == {other.path: other.to_bytes()}
    own = other._replace(job_hash=PLANS["chain"].job_hash)
    simulated = service("chain", refusing, outcomes={own.path: own.to_bytes()})
    run_machine(MACHINES["chain"], simulated)
    assert own.path not in simulated.outcomes  # that of the job itself, which failed after its end, does
