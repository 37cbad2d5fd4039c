"""Status of a run that an orchestrator drives: from its jobs and the orchestrator's execution. Pure.

Some endings of a job end every exported run. After others the execution decides: if it can be queried, its
result is the run's result; if not, the run has ended when no job has followed for longer than any wait
between two jobs.
"""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.chain.next_action import ENDING_MESSAGES, FinishRun
from smlaunch.chain.observed_run import ObservedRun
from smlaunch.chain.workflow import RULE_BY_ENDING, JobEnding, Remedy
from smlaunch.contract.segment_outcome import FINISHED
from smlaunch.errors import (
    ERROR_NAMES,
    EXIT_COMPLETED,
    EXIT_LIMIT,
    EXIT_SERVICE,
    EXIT_STOPPED,
)
from smlaunch.job.model import format_duration

SILENCE_SECONDS = max(rule.max_wait_seconds for rule in RULE_BY_ENDING.values()) + 300.0
"""Seconds without a following job after which a job counts as the last one."""

_MIN_SILENCE_SECONDS = 60.0
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


def result_by_newest_job(run_name: str, observed: ObservedRun, may_continue: bool) -> FinishRun | None:
    """Return the result of a run that an orchestrator (such as a state machine of Step Functions) drives, if
    the way its newest job ended decides it, whatever the orchestrator does; otherwise None.

    ``observed``: the run's jobs and outcome file as they are now. ``run_name``: to recognize its own file.
    ``may_continue``: the job is one of several segments (sequential jobs of a long training), or may be
    retried.
    """
    newest_job = observed.jobs[-1]
    ending, outcome = newest_job.ending, observed.outcome_file
    if ending is None:
        return None
    # The file in which a job states whether training is done; an earlier run may have left one here.
    is_training_finished = (
        outcome is not None and outcome.run in (None, run_name) and outcome.result == FINISHED
    )
    if ending is JobEnding.COMPLETED and (is_training_finished or not may_continue):
        return FinishRun(exit_code=EXIT_COMPLETED, status="Completed", summary="completed")
    # What no retry can mend, such as a missing permission, ends every run.
    ending_rule = RULE_BY_ENDING[ending]
    if ending_rule.remedy is Remedy.GIVE_UP:
        return _finish_unsuccessfully(
            exit_code=ending_rule.exit_code,
            sentence=_ending_text(ending, newest_job.reason),
            run_note=_newest_checkpoint_text(observed),
        )
    return None


def result_by_execution_or_silence(
    observed: ObservedRun, execution: OrchestratorExecution | None
) -> FinishRun | None:
    """Return the result of a run whose newest job has ended without deciding it. An orchestrator (such as a
    state machine of Step Functions) may start another job: None until its execution has ended, or, if it
    cannot be queried, until no job has followed for longer than any wait between two jobs.

    ``observed``: the run's jobs as they are now. ``execution``: what the orchestrator reports; None if it
    cannot be queried.
    """
    newest_job = observed.jobs[-1]
    assert newest_job.ending is not None
    if execution is not None and not execution.has_ended:
        return None
    if execution is not None:
        return _result_of_execution(execution, newest_job.ending, observed)
    # The longest wait before any retry and five minutes more. A local rehearsal waits shorter than a region:
    # its waits are scaled, to a minute at least.
    silence_seconds = max(SILENCE_SECONDS * observed.wait_time_scale, _MIN_SILENCE_SECONDS)
    if newest_job.ended_at is None or observed.now < newest_job.ended_at + silence_seconds:
        return None
    run_note = (
        f"; nothing has followed for {format_duration(int(silence_seconds))} or "
        f"more{_newest_checkpoint_text(observed)}"
    )
    # The exit code of a completed job is 0, but its run is not complete: it reached a limit.
    exit_code = RULE_BY_ENDING[newest_job.ending].exit_code or EXIT_LIMIT
    return _finish_unsuccessfully(
        exit_code=exit_code, sentence=_ending_text(newest_job.ending, newest_job.reason), run_note=run_note
    )


def _result_of_execution(
    execution: OrchestratorExecution, ending: JobEnding, observed: ObservedRun
) -> FinishRun:
    """Return the result of the run by that of the orchestrator's execution, which has ended. ``ending``: how
    the newest job ended, for an execution that only reports that it failed."""
    if execution.exit_code == EXIT_COMPLETED:
        return FinishRun(exit_code=EXIT_COMPLETED, status="Completed", summary="completed")
    first_message_line = execution.message.partition("\n")[0]
    exit_code = execution.exit_code
    if exit_code is None:
        # It failed like its last job, or, if that one completed (0), by a fault of the service.
        exit_code = RULE_BY_ENDING[ending].exit_code or EXIT_SERVICE
        if ending is not JobEnding.COMPLETED:
            first_message_line = ""  # what ended the job says more
    # A message of the exported workflow may name the newest checkpoint itself.
    names_checkpoint = "checkpoint" in first_message_line
    return _finish_unsuccessfully(
        exit_code=exit_code,
        sentence=first_message_line or _ending_text(ending, observed.jobs[-1].reason),
        run_note="" if names_checkpoint else _newest_checkpoint_text(observed),
    )


def _ending_text(ending: JobEnding, reason: str) -> str:
    """Message for an ending."""
    return ENDING_MESSAGES.get(ending) or reason.partition("\n")[0] or ending.value


def _finish_unsuccessfully(exit_code: int, sentence: str, run_note: str) -> FinishRun:
    """The action that ends the run."""
    status = "Stopped" if exit_code in (EXIT_STOPPED, EXIT_LIMIT) else "Failed"
    return FinishRun(exit_code=exit_code, status=status, summary=sentence + run_note, run_note=run_note)


def _newest_checkpoint_text(observed: ObservedRun) -> str:
    """Message about the newest checkpoint."""
    return (
        f"; the newest checkpoint is step {observed.newest_checkpoint_step}"
        if observed.newest_checkpoint_step
        else ""
    )
