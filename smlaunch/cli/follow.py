"""Follow a run on the terminal, and handle Ctrl-C.

A run in a region or on the background endpoint continues without this command: Ctrl-C detaches from it (exit
code 130). A run on an embedded endpoint ends with this command: the first Ctrl-C stops it as StopTrainingJob
does, the second one kills it.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import click

from smlaunch.cli.console import echo, escape_controls, print_labeled, print_message
from smlaunch.cli.display import Display, format_duration
from smlaunch.cli.stdio import discard_stdout
from smlaunch.connection.connect import Connection
from smlaunch.errors import EXIT_INTERRUPTED, EXIT_MACHINE, EXIT_STOPPED
from smlaunch.planner.external_execution import describe_driver
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.missing_files import add_missing_file_hint
from smlaunch.runs.outcome import JobOutcome, RunOutcome, summarize_run
from smlaunch.runs.run import Run, translate_call_errors

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
    is_embedded: bool = False,
    from_first_job: bool = False,
) -> int:
    """Follow a run until it ends, print its outcome and results, and return the exit code.

    ``is_embedded``: the endpoint runs in this process, so Ctrl-C stops the run. ``from_first_job``: print the
    log of all jobs, also of those that have ended already.
    """
    code, result = _follow(run, connection, display, is_embedded, from_first_job)
    if result is not None:
        result = add_missing_file_hint(result, connection.target)
        print_outcome(result, connection)
        try:
            if as_json:
                click.echo(json.dumps({**result.to_dict(), "exit_code": code}, indent=2))
            else:
                print_results(result, connection)
        except BrokenPipeError:
            discard_stdout()  # the exit code is still that of the run
    return code


def _follow(
    run: Run, connection: Connection, display: Display, is_embedded: bool, from_first_job: bool
) -> tuple[int, RunOutcome | None]:
    """Follow a run; return the exit code and the last observed outcome, None where there is none."""
    follower: JobFollower | None = None

    def observed_outcome() -> RunOutcome | None:
        return run.outcome_from(follower) if follower is not None and follower.is_described else None

    with InterruptHandler() as interrupts, translate_call_errors(connection.target):
        try:
            for follower in run.follow(interrupts.wait, from_first_job=from_first_job):
                display.start_job(follower, run)
                if (
                    not _show_until_end(follower, display, interrupts.wait, lambda: interrupts.is_interrupted)
                    or interrupts.is_interrupted
                ):
                    break
            if not interrupts.is_interrupted or _ended_by_itself(run, follower):
                result = observed_outcome() or run.refresh()
                return result.exit_code or 0, result
            if not is_embedded:
                _print_how_to_return(display, run, connection)
                return EXIT_INTERRUPTED, observed_outcome()
            _print_below(display, "\nstopping: every process got SIGTERM; Ctrl-C again kills them")
            run.stop()
            if follower is not None:
                _show_until_end(follower, display, time.sleep, lambda: False)
            result = run.refresh()
            if run.is_resumable and result.exit_code == EXIT_STOPPED:
                _print_below(display, f"to continue it: smlaunch resume {run.name}{connection.cli_flag}")
            # None where the outcome of the segment is not known yet; no further segment follows anyway.
            return EXIT_STOPPED if result.exit_code is None else result.exit_code, result
        except KeyboardInterrupt:
            if is_embedded:
                _print_below(display, "\nkilled")
                return EXIT_STOPPED, observed_outcome()
            return EXIT_INTERRUPTED, observed_outcome()
        finally:
            display.close()


def _show_until_end(
    follower: JobFollower, display: Display, wait: Callable[[float], object], interrupted: Callable[[], bool]
) -> bool:
    """Show the events of a job. Returns False where an interrupt came before its end."""
    for events in follower.event_batches(wait):
        display.show_events(events, follower)
        if interrupted() and not follower.is_finished:
            break
    return follower.is_finished


def _ended_by_itself(run: Run, follower: JobFollower | None) -> bool:
    """Whether the run had ended by itself before the interrupt."""
    if follower is None or not follower.is_finished:
        return False
    return run.done()


def _print_how_to_return(display: Display, run: Run, connection: Connection) -> None:
    name = f"{run.name}{connection.cli_flag}"
    if run.is_driver:
        _print_below(
            display,
            f"\ndetached; this segment continues to its end. To continue the run: smlaunch resume {name}",
        )
    else:
        _print_below(
            display,
            f"\ndetached; the run continues. To follow it: smlaunch logs {run.name} -f{connection.cli_flag}",
        )
    _print_below(display, f"to stop it: smlaunch stop {name}")


def _print_below(display: Display, text: str) -> None:
    display.close()
    echo(text, file=display.err)


def print_outcome(result: RunOutcome, connection: Connection) -> None:
    """Print how a run ended to stderr: traceback, failed host and rank, next step."""
    job = result.last_job
    if result.status == "Failed":
        if job.failure is not None and job.failure.traceback:
            echo(f"\n{job.failure.traceback}\n", err=True)
        print_labeled("failed: ", summarize_run(result), fg="red", bold=True)
        if result.hint:
            print_message(result.hint)
        echo(f"exit code {result.exit_code}; {_next_step(result, job, connection)}", err=True)
    elif result.exit_code is not None:
        colour = "green" if result.status == "Completed" else "yellow"
        duration_text, ending_text = _describe_duration(result), escape_controls(summarize_run(result))
        # A longer summary gets the duration in parentheses.
        suffix = (
            f" ({duration_text})"
            if result.final_result is not None and (result.exit_code or ending_text != "completed")
            else f" after {duration_text}"
        )
        click.echo(
            click.style(ending_text, fg=colour, bold=True) + (suffix if duration_text else ""), err=True
        )


def print_results(result: RunOutcome, connection: Connection) -> None:
    """Print the last metrics and the locations of the results to stdout; local paths where they exist."""
    if result.metrics:
        echo("metrics: " + ", ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))
    for outcome in result.individual_outcomes:
        if outcome.data_wait is not None:
            echo(outcome.data_wait.summary + ("" if outcome is result else f", {outcome.run}"))
            for sentence in outcome.data_wait.advice:
                echo(f"  {sentence}")
        of_run = "" if outcome is result else f" of {outcome.run}"
        for name, uri in (
            ("model", outcome.model_artifacts),
            ("checkpoints", outcome.last_job.checkpoints_uri),
        ):
            if uri:
                echo(f"{name}{of_run}: {connection.local_path(uri) or uri}")


def _next_step(result: RunOutcome, job: JobOutcome, connection: Connection) -> str:
    """Return advice for the user after a failed job: which command to run next, or what to change."""
    retry_text = "run it again under another --name"
    if result.execution is not None:
        retry_text = f"run it again from its orchestrator: {describe_driver(result.execution)}"
    elif result.is_chain:
        retry_text = (
            f"smlaunch resume {result.run}{connection.cli_flag} tries again from the newest checkpoint"
        )
    if job.exit_code == EXIT_MACHINE:
        return f"free disk space, and {retry_text}"
    if job.failure_reason.startswith("ClientError"):
        return f"correct the error above, and {retry_text}"
    if job.failure_reason.startswith("CapacityError"):
        return f"there was no capacity; {retry_text}" if result.is_chain else _NO_CAPACITY
    if job.failure_reason.startswith("InternalServerError"):
        return f"the service failed; {retry_text}"
    log_text = f"full log: smlaunch logs {result.run}{connection.cli_flag}"
    return f"{log_text}; {retry_text}" if result.is_chain else log_text


_NO_CAPACITY = "there was no capacity; try another --instance-type, or try again later"


def _describe_duration(result: RunOutcome) -> str:
    """Time from the creation of the first job to the end of the last one, and the billed time of all jobs."""
    started_at, ending_text = result.jobs[0].created, result.last_job.ended
    if started_at is None or ending_text is None:
        return ""
    billable_seconds = [job.billable_seconds for job in result.jobs if job.billable_seconds is not None]
    job_count_text = f" in {len(result.jobs)} jobs" if len(result.jobs) > 1 else ""
    return (
        format_duration(ending_text - started_at)
        + job_count_text
        + (f", billed {format_duration(sum(billable_seconds))}" if billable_seconds else "")
    )
