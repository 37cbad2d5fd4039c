"""The reported state of a run that an orchestrator drives."""

from __future__ import annotations

import pytest

from smlaunch.chain.observed_run import ObservedJob, ObservedRun
from smlaunch.chain.orchestrator_execution import (
    SILENCE_SECONDS,
    OrchestratorExecution,
    describe_driver,
    exit_code_of_error,
    result_by_execution_or_silence,
    result_by_newest_job,
    stop_instruction,
)
from smlaunch.chain.workflow import RULE_BY_ENDING, JobEnding
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED, SegmentOutcome
from smlaunch.errors import ERROR_NAMES

NOW = 1_800_000_000.0
RUNS = OrchestratorExecution(has_ended=False)
MACHINE = "arn:aws:states:eu-west-1:123456789012:execution:train:nightly"
PIPELINE = "arn:aws:sagemaker:eu-west-1:123456789012:pipeline/chain/execution/abc"


def observed_run(
    ending: JobEnding | None, outcome: SegmentOutcome | None = None, since: float = 10.0
) -> ObservedRun:
    job = ObservedJob(2, 1, ending, reason="AlgorithmError: boom", ended_at=NOW - since if ending else None)
    return ObservedRun(NOW, [job], newest_checkpoint_step=7, outcome_file=outcome)


def test_a_job_that_runs_settles_nothing() -> None:
    assert (
        result_by_newest_job("nightly", observed_run(None, SegmentOutcome(FINISHED, 7, "nightly")), False)
        is None
    )


@pytest.mark.parametrize("ending", list(JobEnding))
def test_an_execution_that_runs_decides_by_itself_what_follows(ending: JobEnding) -> None:
    assert result_by_execution_or_silence(observed_run(ending, since=9 * SILENCE_SECONDS), RUNS) is None


@pytest.mark.parametrize(
    ("execution", "ending", "code", "status", "sentence"),
    [
        (OrchestratorExecution(True, 0), JobEnding.COMPLETED, 0, "Completed", "completed"),
        (
            OrchestratorExecution(True, 6, "no time left"),
            JobEnding.COMPLETED,
            6,
            "Stopped",
            "no time left; the newest",
        ),
        (
            OrchestratorExecution(True, 5, "its execution was stopped"),
            JobEnding.STOPPED,
            5,
            "Stopped",
            "its execution was",
        ),
        (
            OrchestratorExecution(True, None, "step failed"),
            JobEnding.ALGORITHM,
            1,
            "Failed",
            "AlgorithmError: boom; the n",
        ),
        (
            OrchestratorExecution(True, None, "step failed"),
            JobEnding.STOPPED,
            5,
            "Stopped",
            "stopped; the newest checkpoi",
        ),
        (
            OrchestratorExecution(True, None, "States.Runtime"),
            JobEnding.COMPLETED,
            4,
            "Failed",
            "States.Runtime; the newest",
        ),
    ],
)
def test_an_execution_that_has_ended_says_how_the_run_did(
    execution: OrchestratorExecution, ending: JobEnding, code: int, status: str, sentence: str
) -> None:
    result = result_by_execution_or_silence(observed_run(ending), execution)
    assert result is not None and (result.exit_code, result.status) == (code, status)
    assert result.summary.startswith(sentence)


def test_some_ends_are_every_exports() -> None:
    """These ends hold for an execution too that continues with other runs, or fails with one of them."""
    outcome = SegmentOutcome(FINISHED, 7, "nightly")
    result = result_by_newest_job("nightly", observed_run(JobEnding.COMPLETED, outcome), True)
    assert result is not None and result.exit_code == 0
    assert result_by_newest_job("nightly", observed_run(JobEnding.COMPLETED), False) == result
    assert (
        result_by_newest_job(
            "nightly", observed_run(JobEnding.COMPLETED, outcome._replace(run="other")), True
        )
        is None
    )
    continuing = outcome._replace(result=CONTINUE)
    endings = {
        ending
        for ending in JobEnding
        if result_by_newest_job("nightly", observed_run(ending, continuing), True) is not None
    }
    assert endings == {JobEnding.STOPPED, JobEnding.CLIENT, JobEnding.DISK_FULL}


@pytest.mark.parametrize("ending", list(JobEnding))
def test_where_nobody_can_be_asked_a_run_that_nothing_followed_has_ended(ending: JobEnding) -> None:
    assert result_by_execution_or_silence(observed_run(ending), None) is None
    late = result_by_execution_or_silence(observed_run(ending, since=SILENCE_SECONDS + 1), None)
    assert late is not None and late.exit_code == (RULE_BY_ENDING[ending].exit_code or 6)
    assert "nothing has followed for 20m or more; the newest checkpoint is step 7" in late.summary


def test_the_names_of_errors_and_the_next_step() -> None:
    assert {exit_code_of_error(name) for name in ERROR_NAMES.values()} == set(ERROR_NAMES)
    assert exit_code_of_error("States.Timeout") is None
    assert stop_instruction(MACHINE) == f"aws stepfunctions stop-execution --execution-arn {MACHINE}"
    assert stop_instruction(PIPELINE).endswith(f"--pipeline-execution-arn {PIPELINE}")
    assert describe_driver(PIPELINE) == f"the pipeline's execution {PIPELINE}"
    assert stop_instruction("Airflow's nightly manual_1") == "stop Airflow's nightly manual_1 there"
    assert describe_driver("") == "its orchestrator"
