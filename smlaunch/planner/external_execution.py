"""Status of a run that an orchestrator drives: from its jobs and the orchestrator's execution. Pure.

Some endings of a job end every exported run. After others the execution decides: if it can be queried, its
result is the run's result; if not, the run has ended when no job has followed for longer than any wait
between two jobs.
"""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.contract.outcome import FINISHED
from smlaunch.errors import (
    ERROR_NAMES,
    EXIT_COMPLETED,
    EXIT_LIMIT,
    EXIT_SERVICE,
    EXIT_STOPPED,
)
from smlaunch.job.model import format_duration
from smlaunch.planner.reconcile import ENDING_MESSAGES, Finish, ObservedRun
from smlaunch.planner.workflow import ENDING_RULES, Ending, Remedy

QUIET_SECONDS = max(rule.max_wait_seconds for rule in ENDING_RULES.values()) + 300.0
"""Seconds without a following job after which a job counts as the last one."""

_MIN_QUIET_SECONDS = 60.0
"""Seconds. Minimum for any time scale, as an orchestrator takes time too."""


class OrchestratorExecution(NamedTuple):
    """An execution of an orchestrator."""

    has_ended: bool
    exit_code: int | None = None
    """None while it runs, and if it only reports that it failed."""

    message: str = ""
    """The orchestrator's explanation."""


STATE_MACHINE, PIPELINE = "states", "sagemaker"
_ORCHESTRATORS = {
    STATE_MACHINE: ("the state machine's execution", "aws stepfunctions stop-execution --execution-arn"),
    PIPELINE: (
        "the pipeline's execution",
        "aws sagemaker stop-pipeline-execution --pipeline-execution-arn",
    ),
}


def orchestrator_kind(execution: str) -> str | None:
    """STATE_MACHINE or PIPELINE, by the service in the ARN; None for others."""
    parts = execution.split(":")
    return parts[2] if parts[0] == "arn" and len(parts) > 3 and parts[2] in _ORCHESTRATORS else None


def describe_driver(execution: str) -> str:
    """What drives the run, for sentences. ``execution``: empty if unknown."""
    kind = orchestrator_kind(execution)
    return f"{_ORCHESTRATORS[kind][0]} {execution}" if kind is not None else execution or "its orchestrator"


def stop_instruction(execution: str) -> str:
    """Command or instruction that prevents further jobs."""
    kind = orchestrator_kind(execution)
    return (
        f"{_ORCHESTRATORS[kind][1]} {execution}"
        if kind is not None
        else f"stop {describe_driver(execution)} there"
    )


def exit_code_of_error(error: str) -> int | None:
    """Exit code of an error name in an orchestrator; None for names that exports do not use."""
    return next((code for code, name in ERROR_NAMES.items() if name == error), None)


def definite_result(run: str, observed: ObservedRun, has_planned_end: bool) -> Finish | None:
    """Result of the run if its newest job decides it, whatever the execution does; otherwise None.

    ``has_planned_end``: that job is one of a chain, or may be retried.
    """
    newest_job = observed.jobs[-1]
    ending, outcome = newest_job.ending, observed.outcome
    if ending is None:
        return None
    is_finished = outcome is not None and outcome.run in (None, run) and outcome.result == FINISHED
    if ending is Ending.COMPLETED and (is_finished or not has_planned_end):
        return Finish(EXIT_COMPLETED, "Completed", "completed")
    if ENDING_RULES[ending].remedy is Remedy.GIVE_UP:
        return _finish(
            ENDING_RULES[ending].exit_code,
            _ending_text(ending, newest_job.reason),
            _checkpoint_note(observed),
        )
    return None


def inferred_result(observed: ObservedRun, execution: OrchestratorExecution | None) -> Finish | None:
    """Result of a run whose newest job has ended without deciding it; None while another job may follow.

    ``execution``: None if it cannot be queried.
    """
    newest_job = observed.jobs[-1]
    assert newest_job.ending is not None
    if execution is not None:
        return _result_of_execution(execution, newest_job.ending, observed) if execution.has_ended else None
    quiet_seconds = max(QUIET_SECONDS * observed.time_scale, _MIN_QUIET_SECONDS)
    if newest_job.ended_at is None or observed.now < newest_job.ended_at + quiet_seconds:
        return None
    run_note = (
        f"; nothing has followed for {format_duration(int(quiet_seconds))} or "
        f"more{_checkpoint_note(observed)}"
    )
    exit_code = ENDING_RULES[newest_job.ending].exit_code or EXIT_LIMIT
    return _finish(exit_code, _ending_text(newest_job.ending, newest_job.reason), run_note)


def _result_of_execution(execution: OrchestratorExecution, ending: Ending, observed: ObservedRun) -> Finish:
    """Result of the run by its execution's."""
    exit_code, message = execution.exit_code, execution.message.partition("\n")[0]
    if exit_code == EXIT_COMPLETED:
        return Finish(EXIT_COMPLETED, "Completed", "completed")
    if exit_code is None:
        # It failed like its last job, or by itself.
        exit_code = ENDING_RULES[ending].exit_code or EXIT_SERVICE
        if ending is not Ending.COMPLETED:
            message = ""
    run_note = "" if "checkpoint" in message else _checkpoint_note(observed)
    return _finish(exit_code, message or _ending_text(ending, observed.jobs[-1].reason), run_note)


def _ending_text(ending: Ending, reason: str) -> str:
    """Message for an ending."""
    return ENDING_MESSAGES.get(ending) or reason.partition("\n")[0] or ending.value


def _finish(exit_code: int, sentence: str, run_note: str) -> Finish:
    """The action that ends the run."""
    status = "Stopped" if exit_code in (EXIT_STOPPED, EXIT_LIMIT) else "Failed"
    return Finish(exit_code, status, sentence + run_note, run_note)


def _checkpoint_note(observed: ObservedRun) -> str:
    """Message about the newest checkpoint."""
    return f"; the newest checkpoint is step {observed.committed_step}" if observed.committed_step else ""
