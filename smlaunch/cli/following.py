"""Following a run on the terminal, and what Ctrl-C means there.

A run in a region, or on a standing endpoint, goes on without us: Ctrl-C leaves it, exit code 130. A run on an
embedded endpoint has no other home: the first Ctrl-C stops it as StopTrainingJob does, the second kills it.
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

from smlaunch.cli.display import Display, duration
from smlaunch.cli.pipes import forget_stdout
from smlaunch.errors import EXIT_INTERRUPTED, EXIT_MACHINE, EXIT_STOPPED
from smlaunch.masking import mask_text
from smlaunch.place import Place
from smlaunch.planning.orchestrated import words_for
from smlaunch.runs.absent import with_hint
from smlaunch.runs.outcome import JobOutcome, RunOutcome, headline_of
from smlaunch.runs.run import Run, answers_of
from smlaunch.runs.watch import Watch

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


def follow_to_end(
    run: Run, place: Place, display: Display, *, as_json: bool, ours: bool = False, whole: bool = False
) -> int:
    """Follows the run, tells how it ended and where its results lie; the exit code.

    ``ours``: the run lives on the endpoint in this process, and Ctrl-C stops it. ``whole``: with the log of
    all its jobs, from the first one on.
    """
    code, result = _follow(run, place, display, ours, whole)
    if result is not None:
        result = with_hint(result, place.target)
        tell_outcome(result, place)
        try:
            if as_json:
                click.echo(json.dumps({**result.to_dict(), "exit_code": code}, indent=2))
            else:
                print_results(result, place)
        except BrokenPipeError:
            forget_stdout()  # the exit code is still to be the run's
    return code


def _follow(
    run: Run, place: Place, display: Display, ours: bool, whole: bool
) -> tuple[int, RunOutcome | None]:
    """The exit code, and what was seen of the run; None when nothing was."""
    watch: Watch | None = None

    def seen() -> RunOutcome | None:
        return run.seen_by(watch) if watch is not None and watch.seen else None

    with Interrupts() as interrupts, answers_of(place.target):
        try:
            for watch in run.watches(interrupts.wait, whole=whole):
                display.begin(watch, run)
                if not _show(watch, display, interrupts.wait, lambda: interrupts.seen) or interrupts.seen:
                    break
            if not interrupts.seen or _is_over(run, watch):
                result = seen() or run.glance()
                return result.exit_code or 0, result
            if not ours:
                _say_left(display, run, place)
                return EXIT_INTERRUPTED, seen()
            _say(display, "\nstopping: every process was asked to end (SIGTERM); Ctrl-C again kills them")
            run.stop()
            if watch is not None:
                _show(watch, display, time.sleep, lambda: False)
            result = run.glance()
            if run.resumable and result.exit_code == EXIT_STOPPED:
                _say(display, f"to go on with it: smlaunch resume {run.name}{place.flag}")
            # None where it is not known yet what the segment left: no further one follows either way.
            return EXIT_STOPPED if result.exit_code is None else result.exit_code, result
        except KeyboardInterrupt:
            if ours:
                _say(display, "\nkilled")
                return EXIT_STOPPED, seen()
            return EXIT_INTERRUPTED, seen()
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


def _is_over(run: Run, watch: Watch | None) -> bool:
    """Whether the run had ended by itself when the person asked to leave."""
    if watch is None or not watch.finished:
        return False
    return run.is_over()


def _say_left(display: Display, run: Run, place: Place) -> None:
    name = f"{run.name}{place.flag}"
    if run.driven:
        _say(display, f"\nleft; this segment goes on to its end. To drive the run on: smlaunch resume {name}")
    else:
        _say(display, f"\nleft; the run goes on. Back to it: smlaunch logs {run.name} -f{place.flag}")
    _say(display, f"to stop it: smlaunch stop {name}")


def _say(display: Display, text: str) -> None:
    display.close()
    click.echo(text, file=display.err)


def tell_outcome(result: RunOutcome, place: Place) -> None:
    """How a run ended, on stderr: a failure's traceback first, then who, then the next step."""
    job = result.last
    if result.status == "Failed":
        if job.failure is not None and job.failure.traceback:
            click.echo(f"\n{job.failure.traceback}\n", err=True)
        click.echo(click.style("failed: ", fg="red", bold=True) + headline_of(result), err=True)
        if result.hint:
            click.echo(mask_text(result.hint), err=True)
        click.echo(f"exit code {result.exit_code}; {_next_step(result, job, place)}", err=True)
    elif result.exit_code is not None:
        colour = "green" if result.status == "Completed" else "yellow"
        took, ended = _took(result), click.style(headline_of(result), fg=colour, bold=True)
        # A sentence of its own where it says more than a word.
        after = f" ({took})" if result.verdict is not None and result.exit_code else f" after {took}"
        click.echo(ended + (after if took else ""), err=True)


def print_results(result: RunOutcome, place: Place) -> None:
    """The last metrics and where the results lie, on stdout: a file on this machine where it is one."""
    if result.metrics:
        click.echo("metrics: " + ", ".join(f"{name} {value:.6g}" for name, value in result.metrics.items()))
    for one in result.each:
        if one.data_wait is not None:
            click.echo(one.data_wait.sentence + ("" if one is result else f", {one.run}"))
            for sentence in one.data_wait.advice:
                click.echo(f"  {sentence}")
        whose = "" if one is result else f" of {one.run}"
        for name, uri in (("model", one.model_artifacts), ("checkpoints", one.last.checkpoints)):
            if uri:
                click.echo(f"{name}{whose}: {place.local_path(uri) or uri}")


def _next_step(result: RunOutcome, job: JobOutcome, place: Place) -> str:
    again = "run it again under another --name"
    if result.driver is not None:
        again = f"run it again where it is driven: {words_for(result.driver)}"
    elif result.chain:
        again = f"smlaunch resume {result.run}{place.flag} tries again from the newest checkpoint"
    if job.exit_code == EXIT_MACHINE:
        return f"make room, and {again}"
    if job.failure_reason.startswith("ClientError"):
        return f"correct what is named above, and {again}"
    if job.failure_reason.startswith("CapacityError"):
        return f"there was no capacity; {again}" if result.chain else _NO_CAPACITY
    if job.failure_reason.startswith("InternalServerError"):
        return f"the service failed; {again}"
    whole = f"the whole log: smlaunch logs {result.run}{place.flag}"
    return f"{whole}; {again}" if result.chain else whole


_NO_CAPACITY = "there was no capacity; try another --instance-type, or later"


def _took(result: RunOutcome) -> str:
    """From the first job's creation to the last one's end, and what is billed for all together."""
    created, ended = result.jobs[0].created, result.last.ended
    if created is None or ended is None:
        return ""
    billed = [job.billable_seconds for job in result.jobs if job.billable_seconds is not None]
    jobs = f" in {len(result.jobs)} jobs" if len(result.jobs) > 1 else ""
    return duration(ended - created) + jobs + (f", billed {duration(sum(billed))}" if billed else "")
