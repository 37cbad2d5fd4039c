"""Following a run on the terminal, and what Ctrl-C means there.

A run in a region, or on a standing endpoint, goes on without us: Ctrl-C leaves it, exit code 130. A run on an
embedded endpoint has no other home: the first Ctrl-C stops it as StopTrainingJob does, the second kills it.
"""

from __future__ import annotations

import gc
import json
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import click

from smlaunch.cli.display import Display, duration
from smlaunch.cli.pipes import forget_stdout
from smlaunch.cli.place import Place
from smlaunch.errors import EXIT_INTERRUPTED, EXIT_STOPPED
from smlaunch.launch.outcome import JobOutcome, RunOutcome, headline
from smlaunch.launch.run import Run, answers_of
from smlaunch.launch.watch import Watch

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Within it, the first Ctrl-C (or SIGTERM, SIGHUP) is only noted and ends a wait; the next one raises
    KeyboardInterrupt wherever the program is."""

    def __init__(self) -> None:
        self._seen = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    @property
    def seen(self) -> bool:
        return self._seen.is_set()

    def wait(self, seconds: float) -> bool:
        return self._seen.wait(seconds)

    def __enter__(self) -> Interrupts:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._seen.is_set():
            raise KeyboardInterrupt
        self._seen.set()


def follow_to_end(run: Run, place: Place, display: Display, *, as_json: bool, ours: bool = False) -> int:
    """Follows the run, tells how it ended and where its results lie; the exit code.

    ``ours``: the run lives on the endpoint in this process, and Ctrl-C stops it.
    """
    gc.freeze()
    gc.enable()
    code, watch = _follow(run, place, display, ours)
    if watch.seen:
        result = RunOutcome(run.name, (watch.outcome(),))
        tell_outcome(result, place)
        try:
            if as_json:
                click.echo(json.dumps({**result.to_dict(), "exit_code": code}, indent=2))
            else:
                print_results(result.last, place)
        except BrokenPipeError:
            forget_stdout()  # the exit code is still to be the run's
    return code


def _follow(run: Run, place: Place, display: Display, ours: bool) -> tuple[int, Watch]:
    with Interrupts() as interrupts, answers_of(place.target):
        watch = run.watch()
        try:
            if _show(watch, display, interrupts.wait, lambda: interrupts.seen):
                return watch.outcome().exit_code or 0, watch
            if not ours:
                _say(display, f"\nleft; the run goes on. Back to it: smlaunch logs {run.name} -f{place.flag}")
                _say(display, f"to stop it: smlaunch stop {run.name}{place.flag}")
                return EXIT_INTERRUPTED, watch
            _say(display, "\nstopping: every process was asked to end (SIGTERM); Ctrl-C again kills them")
            run.stop()
            _show(watch, display, time.sleep, lambda: False)
            return watch.outcome().exit_code or 0, watch
        except KeyboardInterrupt:
            if ours:
                _say(display, "\nkilled")
                return EXIT_STOPPED, watch
            return EXIT_INTERRUPTED, watch
        finally:
            display.close()


def _show(
    watch: Watch, display: Display, wait: Callable[[float], object], interrupted: Callable[[], bool]
) -> bool:
    """True when the job has ended, False when it was left."""
    for events in watch.rounds(wait):
        display.show(events, watch)
        if interrupted() and not watch.finished:
            break
    return watch.finished


def _say(display: Display, text: str) -> None:
    display.close()
    click.echo(text, file=display.err)


def tell_outcome(result: RunOutcome, place: Place) -> None:
    """How a run ended, on stderr: a failure's traceback first, then who, then the next step."""
    job = result.last
    if job.status == "Failed":
        if job.failure is not None and job.failure.traceback:
            click.echo(f"\n{job.failure.traceback}\n", err=True)
        click.echo(click.style("failed: ", fg="red", bold=True) + headline(job), err=True)
        click.echo(f"exit code {job.exit_code}; {_next_step(result, job, place)}", err=True)
    elif job.finished:
        colour = "green" if job.status == "Completed" else "yellow"
        took = f" after {_took(job)}" if _took(job) else ""
        click.echo(click.style(headline(job), fg=colour, bold=True) + took, err=True)


def print_results(job: JobOutcome, place: Place) -> None:
    """The last metrics and where the results lie, on stdout: a file on this machine where it is one."""
    if job.metrics:
        click.echo("metrics: " + ", ".join(f"{name} {value:.6g}" for name, value in job.metrics.items()))
    for name, uri in (("model", job.model_artifacts), ("checkpoints", job.checkpoints)):
        if uri:
            click.echo(f"{name}: {place.local_path(uri) or uri}")


def _next_step(result: RunOutcome, job: JobOutcome, place: Place) -> str:
    if job.failure_reason.startswith("ClientError"):
        return "correct what is named above, and run it again under another --name"
    if job.failure_reason.startswith("CapacityError"):
        return "there was no capacity; try another --instance-type, or later"
    if job.failure_reason.startswith("InternalServerError"):
        return "the service failed; run it again under another --name"
    return f"the whole log: smlaunch logs {result.run}{place.flag}"


def _took(job: JobOutcome) -> str:
    if job.created is None or job.ended is None:
        return ""
    billed = f", billed {duration(job.billable_seconds)}" if job.billable_seconds is not None else ""
    return duration(job.ended - job.created) + billed
