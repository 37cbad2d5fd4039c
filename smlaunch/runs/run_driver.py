"""The driver of a run: who decides what follows a job's end, and submits it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from smlaunch.contract.run_names import JobName
from smlaunch.errors import EXIT_LIMIT, EXIT_STOPPED, wrong_type_error
from smlaunch.runs.run_outcome import RunOutcome

if TYPE_CHECKING:
    from smlaunch.runs.chain_driver import ChainDriver
    from smlaunch.runs.launch_target import Target

SleepFunction = Callable[[float], object]
"""Sleeps for some seconds. Returns True when the caller must stop waiting."""

MessageCallback = Callable[[str], None]
"""Receives sentences about what happens, for the user."""


def checked_callback(on_message: MessageCallback | None) -> MessageCallback:
    """Return the caller's callback, or by default one that logs. Raises JobError for what is none."""
    if on_message is None:
        return LoggedMessages()
    if not callable(on_message):
        raise wrong_type_error(on_message, "a function for on_message", "on_message=print")
    return on_message


@dataclass(frozen=True)
class LoggedMessages:
    """Logs the messages of a run whose caller has no callback for them: a program must not wait for ever
    without a word. Python shows warnings on stderr, unless the program configures the logger ``smlaunch``."""

    prefix: str = ""

    def __call__(self, text: str) -> None:
        logging.getLogger("smlaunch").warning("%s%s", self.prefix, text)

    def log_progress(self, text: str) -> None:
        """Log what a run does as planned. Nobody has to look at it: Python shows it only where the program
        asks for it."""
        logging.getLogger("smlaunch").info("%s%s", self.prefix, text)


def prefix_messages(shard_number: int, on_message: MessageCallback) -> MessageCallback:
    """Return a callback that puts the shard's name before each message."""
    prefix = f"p{shard_number}: "
    if isinstance(on_message, LoggedMessages):
        return LoggedMessages(prefix + on_message.prefix)
    return lambda text: on_message(f"{prefix}{text}")


def resume_hint(outcome: RunOutcome, target: Target, *, is_driving: bool = False) -> str:
    """Return how a chain goes on that was stopped, has reached a limit of the whole run, or whose next job
    nobody has submitted yet; empty for any other run. ``is_driving``: this process submits it while it waits
    for the run."""
    if not outcome.jobs or not outcome.last_job.is_finished:
        return ""
    command = f"`smlaunch resume {outcome.run}{target.cli_flag}` (in Python: `resume()`)"
    if outcome.exit_code is None:
        own_text = "; this program does so in wait, result and exception" if is_driving else ""
        return f"{command} submits the next job, if no client does{own_text}"
    if outcome.exit_code == EXIT_STOPPED:
        return f"{command} continues it"
    raisable_limits = {
        run_outcome.final_result.raisable_limit
        for run_outcome in outcome.individual_outcomes  # of each shard, or of the run itself
        if run_outcome.final_result is not None and run_outcome.final_result.raisable_limit
    }
    if outcome.exit_code == EXIT_LIMIT and raisable_limits:
        limits = " and ".join(sorted(raisable_limits))
        return f"the same job launched under the same name with a higher {limits} continues it"
    return ""


class RunDriver(Protocol):
    """Nobody (``SingleJobDriver``), a process with a ``ChainDriver``, one for each shard (``ShardDrivers``),
    or an orchestrator (``OrchestratorDriver``, ``ParentExecutionDriver``). Raises CallError."""

    chain_drivers: Sequence[ChainDriver] = ()
    """The drivers of a chain, or of each shard's: with one, another job can follow a stopped one."""

    def observe(self, *, reads_checkpoints: bool = False) -> None:
        """Describe the run's jobs, find new ones, and derive whether the run has ended."""

    def add_result(self, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome with what the driver decides: whether and how the run has ended."""
        return outcome

    def segment_of(self, job: str) -> tuple[JobName, int | None] | None:
        """Return segment and attempt of a job and the number of planned segments, None where that is not
        known. Returns None for a run of a single job."""
        return None

    def wait_for_next_jobs(self, sleep: SleepFunction, followed: Collection[str]) -> tuple[str, ...]:
        """Return the next jobs or shards to follow together, once they exist; none when the run has ended or
        ``sleep`` returned True. Submits jobs that are due, if the run is driven here."""
        ...

    def resume(self) -> None:
        """Continue the run, also after a stop or a failure. Starts nothing yet."""
        ...

    def stop(self, outcome: RunOutcome) -> None:
        """Ask the run to stop, which has not ended. ``outcome`` is its current one."""
        ...
