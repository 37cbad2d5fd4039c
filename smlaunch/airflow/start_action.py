"""Chooses what a try of a task does about an existing run. One pure function.

A try follows another one for many reasons: the training failed, the worker was lost, somebody cleared the
task. The existing runs and the last clear of the task determine the action.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StartAction(str, Enum):
    LAUNCH = "launch"
    """Start a run under this try's name."""
    ATTACH = "attach"
    """Continue with the run that goes on."""
    AWAIT = "await"
    """The run is being stopped: wait for its end, then choose again."""
    REPORT = "report"
    """The run has completed and has not been reported yet."""
    RESUME = "resume"
    """Continue the run from its newest checkpoint."""


@dataclass(frozen=True)
class LatestRun:
    """The newest run of a task instance."""

    started_by_try: int
    """Number of the try that started it."""
    exit_code: int | None
    """None while it goes on."""
    is_stopping: bool = False
    is_resumable: bool = False
    """Another job can follow its last one."""


def choose_start_action(latest_run: LatestRun | None, last_try_before_clear: int = 0) -> StartAction:
    """Return what a try of an Airflow task does about the newest run of the task: launch another one, attach,
    wait for its stop, resume it, or only report it (see StartAction). ``latest_run``: None without any; its
    exit code is None while it goes on. ``last_try_before_clear``: number of the last try before a user
    cleared the task (asked Airflow to run it again); 0 if it was never cleared. Tries count from 1."""
    if latest_run is None:
        return StartAction.LAUNCH
    if latest_run.exit_code is None:  # it goes on
        # Only a run that has stopped can be resumed.
        return StartAction.AWAIT if latest_run.is_stopping else StartAction.ATTACH
    if latest_run.exit_code == 0:
        # A task that was cleared after it had completed has to run again.
        was_cleared_since = latest_run.started_by_try <= last_try_before_clear
        return StartAction.LAUNCH if was_cleared_since else StartAction.REPORT
    return StartAction.RESUME if latest_run.is_resumable else StartAction.LAUNCH


def last_try_before_clear(max_tries: int, retries: int) -> int:
    """Return the number of the last try before the task was cleared.

    Clearing a task grants its ``retries`` again, counted from its current try (Airflow's
    ``clear_task_instances``).
    """
    return max(0, max_tries - retries)
