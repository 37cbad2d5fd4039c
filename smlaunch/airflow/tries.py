"""What a try of a task does about the run that may be there already: one pure function.

A try follows on another one for many reasons: the training failed, the worker was lost, somebody cleared the
task. The runs that exist, and since when tries count anew, tell all that is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Begin(str, Enum):
    LAUNCH = "launch"
    """A run of its own, under this try's name."""
    ATTACH = "attach"
    """Go on with the run that goes on."""
    AWAIT = "await"
    """It is being stopped: see it end first, then look again."""
    REPORT = "report"
    """It has completed, and nobody has heard of it yet."""
    RESUME = "resume"
    """Go on where it ended, from its newest checkpoint."""


@dataclass(frozen=True)
class Newest:
    """The newest run of a task instance. ``made_in``: the try that began it. ``exit_code``: None while it
    goes on. ``resumable``: another job can follow its last one."""

    made_in: int
    exit_code: int | None
    stopping: bool = False
    resumable: bool = False


def begin(newest: Newest | None, cleared_at: int = 0) -> Begin:
    """``cleared_at``: the number of the last try before the task was cleared; 0 when it never was."""
    if newest is None:
        return Begin.LAUNCH
    if newest.exit_code is None:
        return Begin.AWAIT if newest.stopping else Begin.ATTACH
    if newest.exit_code == 0:
        # Cleared after it had completed: whoever did that wants it to be done again.
        return Begin.REPORT if newest.made_in > cleared_at else Begin.LAUNCH
    return Begin.RESUME if newest.resumable else Begin.LAUNCH


def cleared_at(max_tries: int, retries: int) -> int:
    """Clearing a task grants it its ``retries`` anew, counted from the try it had come to (Airflow's
    ``clear_task_instances``)."""
    return max(0, max_tries - retries)
