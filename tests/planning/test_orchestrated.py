"""What is said of a run that an orchestrator drives."""

from __future__ import annotations

import pytest

from smlaunch.errors import ERROR_NAMES
from smlaunch.planning.orchestrated import (
    QUIET,
    Execution,
    exit_code_of,
    how_to_stop,
    judge,
    settled,
    words_for,
)
from smlaunch.planning.reconcile import JobSeen, Observed
from smlaunch.planning.workflow import RULES, Ending
from smlaunch.protocol.checkpoint import CONTINUE, FINISHED, Outcome

NOW = 1_800_000_000.0
RUNS = Execution(ended=False)
MACHINE = "arn:aws:states:eu-west-1:123456789012:execution:train:nightly"
PIPELINE = "arn:aws:sagemaker:eu-west-1:123456789012:pipeline/chain/execution/abc"


def seen(ending: Ending | None, outcome: Outcome | None = None, since: float = 10.0) -> Observed:
    job = JobSeen(2, 1, ending, reason="AlgorithmError: boom", ended=NOW - since if ending else None)
    return Observed(NOW, [job], step=7, outcome=outcome)


def test_a_job_that_runs_settles_nothing() -> None:
    assert settled("nightly", seen(None, Outcome(FINISHED, 7, "nightly")), False) is None


@pytest.mark.parametrize("ending", list(Ending))
def test_an_execution_that_runs_decides_by_itself_what_follows(ending: Ending) -> None:
    assert judge(seen(ending, since=9 * QUIET), RUNS) is None


@pytest.mark.parametrize(
    ("execution", "ending", "code", "status", "sentence"),
    [
        (Execution(True, 0), Ending.COMPLETED, 0, "Completed", "completed"),
        (Execution(True, 6, "no time left"), Ending.COMPLETED, 6, "Stopped", "no time left; the newest"),
        (Execution(True, 5, "its execution was stopped"), Ending.STOPPED, 5, "Stopped", "its execution was"),
        (Execution(True, None, "step failed"), Ending.ALGORITHM, 1, "Failed", "AlgorithmError: boom; the n"),
        (Execution(True, None, "step failed"), Ending.STOPPED, 5, "Stopped", "stopped; the newest checkpoi"),
        (
            Execution(True, None, "States.Runtime"),
            Ending.COMPLETED,
            4,
            "Failed",
            "States.Runtime; the newest",
        ),
    ],
)
def test_an_execution_that_has_ended_says_how_the_run_did(
    execution: Execution, ending: Ending, code: int, status: str, sentence: str
) -> None:
    found = judge(seen(ending), execution)
    assert found is not None and (found.exit_code, found.status) == (code, status)
    assert found.sentence.startswith(sentence)


def test_some_ends_are_every_exports() -> None:
    """Also in an execution that goes on with other runs, or fails with one of them."""
    said = Outcome(FINISHED, 7, "nightly")
    done = settled("nightly", seen(Ending.COMPLETED, said), True)
    assert done is not None and done.exit_code == 0
    assert settled("nightly", seen(Ending.COMPLETED), False) == done
    assert settled("nightly", seen(Ending.COMPLETED, said._replace(run="other")), True) is None
    going = said._replace(result=CONTINUE)
    found = {ending for ending in Ending if settled("nightly", seen(ending, going), True) is not None}
    assert found == {Ending.STOPPED, Ending.CLIENT, Ending.MACHINE}


@pytest.mark.parametrize("ending", list(Ending))
def test_where_nobody_can_be_asked_a_run_that_nothing_followed_has_ended(ending: Ending) -> None:
    assert judge(seen(ending), None) is None
    late = judge(seen(ending, since=QUIET + 1), None)
    assert late is not None and late.exit_code == (RULES[ending].exit_code or 6)
    assert "nothing has followed for 20m or more; the newest checkpoint is step 7" in late.sentence


def test_the_names_of_errors_and_the_next_step() -> None:
    assert {exit_code_of(name) for name in ERROR_NAMES.values()} == set(ERROR_NAMES)
    assert exit_code_of("States.Timeout") is None
    assert how_to_stop(MACHINE) == f"aws stepfunctions stop-execution --execution-arn {MACHINE}"
    assert how_to_stop(PIPELINE).endswith(f"--pipeline-execution-arn {PIPELINE}")
    assert words_for(PIPELINE) == f"the pipeline's execution {PIPELINE}"
    assert how_to_stop("Airflow's nightly manual_1") == "stop Airflow's nightly manual_1 there"
    assert words_for("") == "its orchestrator"
