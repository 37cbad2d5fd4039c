"""Follow a run on the terminal, and handle Ctrl-C.

A run in a region or on the background endpoint continues without this command: Ctrl-C detaches from it (exit
code 130). A run on an embedded endpoint ends with this command: the first Ctrl-C stops it as StopTrainingJob
does, the second one kills it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from smlaunch.cli.console import echo, print_labeled, print_message
from smlaunch.cli.display import Display
from smlaunch.cli.error_report import ErrorReport
from smlaunch.cli.json_output import print_json
from smlaunch.cli.stdio import discard_stdout
from smlaunch.connection.open_connection import Connection
from smlaunch.errors import EXIT_INTERRUPTED, EXIT_MACHINE, EXIT_STOPPED, Problem
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.missing_files import add_missing_file_hint
from smlaunch.runs.related_warnings import related_warnings
from smlaunch.runs.run import Run
from smlaunch.runs.run_outcome import JobOutcome, RunOutcome, summarize_run
from smlaunch.text.format import format_elapsed

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptHandler:
    """Context in which the first Ctrl-C (or SIGTERM, SIGHUP) sets ``is_interrupted`` and ends a wait, and the
    next one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._interrupted = threading.Event()
        self._previous_handlers: dict[signal.Signals, Any] = {}

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted.is_set()

    def wait(self, seconds: float) -> bool:
        return self._interrupted.wait(seconds)

    def __enter__(self) -> InterruptHandler:
        for number in _SIGNALS:
            self._previous_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._interrupted.is_set():
            raise KeyboardInterrupt
        self._interrupted.set()


def follow_to_end(
    run: Run,
    connection: Connection,
    display: Display,
    *,
    as_json: bool,
    has_embedded_endpoint: bool = False,
    from_first_job: bool = False,
    plan_warnings: Sequence[str] = (),
) -> int:
    """Follow a run until it ends, print its outcome and results, and return the exit code. ``connection``: to
    the region or local endpoint.

    ``has_embedded_endpoint``: the local endpoint runs in this process, so Ctrl-C stops the run.
    ``from_first_job``: print the log of all jobs, also of those that have ended already. ``plan_warnings``:
    what the plan warned of, repeated where the run fails and they can have to do with it.
    """
    with InterruptHandler() as interrupts, translate_call_errors(connection.target):
        run_follower = _RunFollower(run, connection, display, interrupts, has_embedded_endpoint)
        exit_code, outcome = run_follower.follow(from_first_job)
    if outcome is not None:  # None after an interrupt before anything was known of the run
        # A hint where the script failed for want of a file that was excluded from the upload.
        outcome = add_missing_file_hint(outcome, connection.target)
        print_outcome(outcome, connection, display, plan_warnings)
        try:
            if as_json:
                print_json({**outcome.to_dict(), "exit_code": exit_code})
            else:
                print_results(outcome, connection)
        except BrokenPipeError:
            discard_stdout()  # its reader has gone; the exit code is still that of the run
    elif as_json:
        report = ErrorReport(exit_code, "Interrupted", (Problem("", "interrupted before the run was known"),))
        print_json(report.to_dict())
    return exit_code


@dataclass
class _RunFollower:
    """Follows a run on the display until it ends or the user interrupts it with Ctrl-C."""

    run: Run
    connection: Connection
    display: Display
    interrupts: InterruptHandler
    has_embedded_endpoint: bool
    """The local endpoint runs in this process, so that an interrupt stops the run, not just this command."""

    newest_job: JobFollower | None = None

    def follow(self, from_first_job: bool) -> tuple[int, RunOutcome | None]:
        """Follow the run. Return the exit code of the command and the last observed outcome; None where
        nothing is known of the run. ``from_first_job``: show also the jobs that have ended already. The first
        Ctrl-C stops a run whose endpoint is in this process, and otherwise only ends the display; the second
        one ends the command at once."""
        try:
            self._show_jobs(from_first_job)
            if not self.interrupts.is_interrupted or _ended_before_interrupt(self.run, self.newest_job):
                outcome = self._last_observed_outcome() or self.run.describe(reads_logs=True)
                return outcome.exit_code or 0, outcome
            if self.has_embedded_endpoint:
                return self._stop_run()
            _print_how_to_reattach(self.display, self.run, self.connection)
            return EXIT_INTERRUPTED, self._last_observed_outcome()
        except KeyboardInterrupt:  # the second Ctrl-C
            if not self.has_embedded_endpoint:
                return EXIT_INTERRUPTED, self._last_observed_outcome()
            _print_below_status_line(self.display, "\nkilled")
            return EXIT_STOPPED, self._last_observed_outcome()
        finally:
            self.display.close()

    def _show_jobs(self, from_first_job: bool) -> None:
        """Show the jobs of the run, one after the other, until it has ended or is interrupted."""
        for job in self.run.follow(self.interrupts.wait, from_first_job=from_first_job):
            self.newest_job = job
            self.display.start_job(job, self.run)
            has_ended = _show_until_end(
                job, self.display, self.interrupts.wait, lambda: self.interrupts.is_interrupted
            )
            if not has_ended or self.interrupts.is_interrupted:
                return

    def _stop_run(self) -> tuple[int, RunOutcome]:
        """Stop the run and show it to its end (after the first Ctrl-C; its endpoint runs in this process).
        Return the exit code of the command and the outcome."""
        _print_below_status_line(
            self.display, "\nstopping: every process got SIGTERM; Ctrl-C again kills them"
        )
        self.run.stop()
        if self.newest_job is not None:
            # Until its end: the wait is not ended by the interrupt that has come already.
            _show_until_end(self.newest_job, self.display, wait=time.sleep, interrupted=lambda: False)
        outcome = self.run.describe(reads_logs=True)
        if self.run.chain_drivers and outcome.exit_code == EXIT_STOPPED:
            _print_below_status_line(
                self.display,
                f"to continue it: smlaunch resume {self.run.name}{self.connection.cli_flag}",
            )
        # None where the outcome of the segment is not known yet; no further segment follows anyway.
        return EXIT_STOPPED if outcome.exit_code is None else outcome.exit_code, outcome

    def _last_observed_outcome(self) -> RunOutcome | None:
        """Return the outcome as far as the newest job was described by the service; None before that."""
        if self.newest_job is None or not self.newest_job.is_described:
            return None
        return self.run.outcome_from(self.newest_job)


def _show_until_end(
    follower: JobFollower, display: Display, wait: Callable[[float], object], interrupted: Callable[[], bool]
) -> bool:
    """Show the events of a job. Returns False where an interrupt came before its end."""
    for events in follower.event_batches(wait):
        display.show_events(events, follower)
        if interrupted() and not follower.is_finished:
            break
    return follower.is_finished


def _ended_before_interrupt(run: Run, follower: JobFollower | None) -> bool:
    """Whether the run had ended by itself before the interrupt."""
    if follower is None or not follower.is_finished:
        return False
    return run.done()


def _print_how_to_reattach(display: Display, run: Run, connection: Connection) -> None:
    name = f"{run.name}{connection.cli_flag}"
    if any(driver.is_driving for driver in run.chain_drivers):
        _print_below_status_line(
            display,
            f"\ndetached; this segment continues to its end. To continue the run: smlaunch resume {name}",
        )
    else:
        _print_below_status_line(
            display,
            f"\ndetached; the run continues. To follow it: smlaunch logs {run.name} -f{connection.cli_flag}",
        )
    _print_below_status_line(display, f"to stop it: smlaunch stop {name}")


def _print_below_status_line(display: Display, text: str) -> None:
    display.close()
    echo(text, file=display.err)


def print_outcome(
    outcome: RunOutcome, connection: Connection, display: Display, plan_warnings: Sequence[str] = ()
) -> None:
    """Print to stderr how a run ended: traceback, failed host and rank, what to do next, and what its hosts
    have warned of. Prints nothing for a run that has not ended, and no success where ``display`` shows no
    states. ``final_result``: how a
    chain (jobs in a row) ended; None for other runs."""
    if outcome.status == "Failed":
        _print_failure(outcome, connection, display, plan_warnings)
    elif outcome.exit_code is not None and (outcome.exit_code or display.show_states):
        ending_text = summarize_run(outcome)
        duration_text = _describe_duration(outcome)
        if outcome.final_result is not None and (outcome.exit_code or ending_text != "completed"):
            # After a longer summary, "after" would seem to belong to its last words.
            duration_text = f" ({duration_text})" if duration_text else ""
        elif duration_text:
            duration_text = f" after {duration_text}"
        print_labeled(
            ending_text, duration_text, fg="green" if outcome.status == "Completed" else "yellow", bold=True
        )
    if outcome.exit_code is not None:
        for warning in outcome.warnings:
            print_labeled("warning: ", warning, indent="  ", fg="yellow", bold=True)


def _print_failure(
    outcome: RunOutcome, connection: Connection, display: Display, plan_warnings: Sequence[str]
) -> None:
    """Print why a run failed: traceback, unless it is the last that the log has shown, summary, what the plan
    had warned of and can have to do with it, hint, exit code and advice."""
    last_job = outcome.last_job
    traceback = "" if last_job.failure is None else last_job.failure.traceback
    if traceback and not display.has_just_shown(traceback):
        echo(f"\n{traceback}\n", err=True)
    print_labeled("failed: ", summarize_run(outcome), indent="  ", fg="red", bold=True)
    for warning in related_warnings(plan_warnings, last_job.failure):
        print_labeled("the plan warned: ", warning, indent="  ", fg="yellow")
    if outcome.hint:
        print_message(outcome.hint, indent="  ")
    advice = _advise_after_failure(outcome, last_job, connection)
    print_message(f"exit code {outcome.exit_code}; {advice}", indent="  ")


def print_results(run_outcome: RunOutcome, connection: Connection) -> None:
    """Print the last metrics and the locations of the model and checkpoints to stdout, for each shard of a
    sharded run (one job per part of the data); local paths where they exist. ``data_wait``: how long the
    processes waited for data."""
    if run_outcome.metrics:
        echo(
            "metrics: "
            + ", ".join(f"{metric_name} {value:.6g}" for metric_name, value in run_outcome.metrics.items())
        )
    for outcome in run_outcome.individual_outcomes:  # the shards', or the run itself
        if outcome.data_wait is not None:
            echo(outcome.data_wait.summary + ("" if outcome is run_outcome else f", {outcome.run}"))
            for sentence in outcome.data_wait.advice:
                echo(f"  {sentence}")
        run_suffix = "" if outcome is run_outcome else f" of {outcome.run}"
        for label, uri in (
            ("model", outcome.model_artifacts),
            ("checkpoints", outcome.last_job.checkpoints_uri),
        ):
            if uri:
                echo(f"{label}{run_suffix}: {connection.target.local_path(uri) or uri}")


def _advise_after_failure(outcome: RunOutcome, failed_job: JobOutcome, connection: Connection) -> str:
    """Return what the user can do after a failed job: which command to run next, or what to change. A chain
    can continue from a checkpoint; other runs start anew. ``connection.cli_flag``: `` --local`` where the
    command needs it."""
    retry_text = "run it again under another --name"
    if outcome.execution is not None:  # an orchestrator started the jobs, not smlaunch
        from smlaunch.chain.orchestrator_execution import describe_driver

        retry_text = f"run it again from its orchestrator: {describe_driver(outcome.execution)}"
    elif outcome.is_chain and (outcome.final_result is None or not outcome.final_result.is_final):
        has_checkpoints = failed_job.checkpoints_uri is not None
        start_text = "from the newest checkpoint" if has_checkpoints else "from the beginning"
        retry_text = f"smlaunch resume {outcome.run}{connection.cli_flag} tries again {start_text}"
    if failed_job.exit_code == EXIT_MACHINE:
        return f"free disk space, and {retry_text}"
    if failed_job.failure_reason.startswith("ClientError"):
        return f"correct the error above, and {retry_text}"
    if failed_job.failure_reason.startswith("CapacityError"):
        return f"there was no capacity; {retry_text}" if outcome.is_chain else _NO_CAPACITY
    if failed_job.failure_reason.startswith("InternalServerError"):
        return f"the service failed; {retry_text}"
    log_text = f"full log: smlaunch logs {outcome.run}{connection.cli_flag}"
    return f"{log_text}; {retry_text}" if outcome.is_chain else log_text


_NO_CAPACITY = "there was no capacity; try another --instance-type, or try again later"


def _describe_duration(outcome: RunOutcome) -> str:
    """Return the time from the creation of the first job to the end of the last one, and the billed time of
    all jobs; empty while it is unknown."""
    created_at, ended_at = outcome.jobs[0].created, outcome.last_job.ended
    if created_at is None or ended_at is None:
        return ""
    billable_seconds = [job.billable_seconds for job in outcome.jobs if job.billable_seconds is not None]
    job_count_text = f" in {len(outcome.jobs)} jobs" if len(outcome.jobs) > 1 else ""
    return (
        format_elapsed(ended_at - created_at)
        + job_count_text
        + (f", billed {format_elapsed(sum(billable_seconds))}" if billable_seconds else "")
    )
