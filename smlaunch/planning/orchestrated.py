"""How a run stands that an orchestrator drives: by what its jobs left and what the orchestrator says. Pure.

Some ends of a job end every export's run. What follows on the others is for its execution to decide: where
that can be asked, its answer is how the run ended; where it cannot, the run has ended when nothing has
followed for longer than any wait between two jobs.
"""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.errors import (
    ERROR_NAMES,
    EXIT_COMPLETED,
    EXIT_LIMIT,
    EXIT_SERVICE,
    EXIT_STOPPED,
)
from smlaunch.job import format_duration
from smlaunch.planning.reconcile import ENDED, Finish, Observed
from smlaunch.planning.workflow import RULES, Ending, Remedy
from smlaunch.protocol.checkpoint import FINISHED

QUIET = max(rule.longest_wait for rule in RULES.values()) + 300.0
"""Seconds after which a job that nothing has followed is taken for the last one."""

_LEAST_QUIET = 60.0
"""However short waits are: an orchestrator takes its time too."""


class Execution(NamedTuple):
    """An orchestrator's execution. ``exit_code``: None while it runs (``ended`` False), and of one that says
    only that it has failed. ``said``: why, in its own words."""

    ended: bool
    exit_code: int | None = None
    said: str = ""


MACHINE, PIPELINE = "states", "sagemaker"
_WORDS = {
    MACHINE: ("the state machine's execution", "aws stepfunctions stop-execution --execution-arn"),
    PIPELINE: (
        "the pipeline's execution",
        "aws sagemaker stop-pipeline-execution --pipeline-execution-arn",
    ),
}


def kind_of(execution: str) -> str | None:
    """MACHINE or PIPELINE, by its ARN's service; None for any other."""
    parts = execution.split(":")
    return parts[2] if parts[0] == "arn" and len(parts) > 3 and parts[2] in _WORDS else None


def words_for(execution: str) -> str:
    """For sentences: what drives the run. ``execution``: empty where nobody has said it."""
    kind = kind_of(execution)
    return f"{_WORDS[kind][0]} {execution}" if kind is not None else execution or "its orchestrator"


def how_to_stop(execution: str) -> str:
    """The next step of whoever wants no further job."""
    kind = kind_of(execution)
    return f"{_WORDS[kind][1]} {execution}" if kind is not None else f"stop {words_for(execution)} there"


def exit_code_of(error: str) -> int | None:
    """Of an error's name in an orchestrator; None for one that is not of an export."""
    return next((code for code, name in ERROR_NAMES.items() if name == error), None)


def settled(run: str, observed: Observed, planned_end: bool) -> Finish | None:
    """How the run ended, where its newest job leaves no doubt, whatever else its execution may do; else None.
    ``planned_end``: of that job, which is then one of a chain, or to be tried again."""
    newest = observed.jobs[-1]
    ending, said = newest.ending, observed.outcome
    if ending is None:
        return None
    finished = said is not None and said.run in (None, run) and said.result == FINISHED
    if ending is Ending.COMPLETED and (finished or not planned_end):
        return Finish(EXIT_COMPLETED, "Completed", "completed")
    if RULES[ending].remedy is Remedy.GIVE_UP:
        return _finish(RULES[ending].exit_code, _words(ending, newest.reason), _kept(observed))
    return None


def judge(observed: Observed, execution: Execution | None) -> Finish | None:
    """How a run ended whose newest job has, and leaves it open; None while another may follow.
    ``execution``: None where it cannot be asked."""
    newest = observed.jobs[-1]
    assert newest.ending is not None
    if execution is not None:
        return _as_told(execution, newest.ending, observed) if execution.ended else None
    quiet = max(QUIET * observed.pace, _LEAST_QUIET)
    if newest.ended is None or observed.now < newest.ended + quiet:
        return None
    more = f"; nothing has followed for {format_duration(int(quiet))} or more{_kept(observed)}"
    code = RULES[newest.ending].exit_code or EXIT_LIMIT
    return _finish(code, _words(newest.ending, newest.reason), more)


def _as_told(execution: Execution, ending: Ending, observed: Observed) -> Finish:
    code, said = execution.exit_code, execution.said.partition("\n")[0]
    if code == EXIT_COMPLETED:
        return Finish(EXIT_COMPLETED, "Completed", "completed")
    if code is None:
        # It failed as its last job did, or of itself.
        code = RULES[ending].exit_code or EXIT_SERVICE
        if ending is not Ending.COMPLETED:
            said = ""
    more = "" if "checkpoint" in said else _kept(observed)
    return _finish(code, said or _words(ending, observed.jobs[-1].reason), more)


def _words(ending: Ending, reason: str) -> str:
    return ENDED.get(ending) or reason.partition("\n")[0] or ending.value


def _finish(code: int, sentence: str, more: str) -> Finish:
    status = "Stopped" if code in (EXIT_STOPPED, EXIT_LIMIT) else "Failed"
    return Finish(code, status, sentence + more, more)


def _kept(observed: Observed) -> str:
    return f"; the newest checkpoint is step {observed.step}" if observed.step else ""
