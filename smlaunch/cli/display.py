"""What a person sees while a run goes on: its states, its log and, on a terminal, a line that moves.

The training's own output goes to ``out``, everything else to ``err``. Progress lines become the moving line,
or, where there is no terminal, a plain line now and then.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

import click

from smlaunch.cli.pipes import forget_stdout
from smlaunch.protocol.progress import MARK, PROGRESS, parse_line
from smlaunch.runs.evidence import split_rank
from smlaunch.runs.follow import Event, LogLine, StateChange
from smlaunch.runs.progress import Standing
from smlaunch.runs.run import Run
from smlaunch.runs.watch import Watch

_REDRAW = 0.1
"""Seconds between two drawings of the moving line."""

_PLAIN_EVERY = 5.0
"""Seconds between two progress lines where there is no terminal: a build log must not fill with them."""

_BAR = 24

_ENDPOINT_MARK = "[smlaunch] "
"""Begins the lines that the endpoint itself writes into a host's log: not the training's output."""


@dataclass
class Display:
    """``hosts`` decides whether lines name theirs. ``lines``: show the log, or only states and progress.
    ``host``: show only this host's lines. ``outlives_reader``: go on when nobody reads ``out`` any more, for
    a command whose work is the run rather than the log."""

    hosts: int
    lines: bool = True
    host: str | None = None
    outlives_reader: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _segment: str = ""
    _state: str = "Submitted"
    _since: float = field(default_factory=time.monotonic)
    _drawn_at: float = 0.0
    _drawn: bool = False
    _told_step: int | None = None
    _told_at: float = 0.0

    @property
    def _live(self) -> bool:
        return self.err.isatty()

    def begin(self, watch: Watch, run: Run) -> None:
        """From here on it is about this job of the run."""
        found = run.segment_of(watch.job)
        self._state, self._since = "Submitted", time.monotonic()
        if found is None:
            return
        name, planned = found
        of_all = f"/{planned}" if planned is not None and planned >= name.segment else ""
        again = f" attempt {name.attempt}" if name.attempt > 1 else ""
        self._segment = f"segment {name.segment}{of_all}{again}"

    def show(self, events: Sequence[Event], watch: Watch) -> None:
        """One round of events, and the moving line under them."""
        output: list[str] = []
        for event in events:
            if isinstance(event, LogLine):
                if not self.lines or self.host not in (None, event.host) or _is_progress(event.text):
                    continue
                if event.text.startswith(_ENDPOINT_MARK):
                    self._flush(output)
                    self._say(self._log_line(event))
                else:
                    output.append(self._log_line(event))
                continue
            self._flush(output)
            self._say(_state_line(event) if isinstance(event, StateChange) else f"warning: {event.message}")
            if isinstance(event, StateChange):
                self._state, self._since = event.state, time.monotonic()
        self._flush(output)
        if self._live:
            self._draw(watch)
        else:
            self._progress_line(watch)

    def close(self) -> None:
        self._clear()

    def _log_line(self, line: LogLine) -> str:
        if self.hosts == 1 or self.host is not None:
            return line.text
        return f"{click.style(line.host, dim=True) if self.out.isatty() else line.host} {line.text}"

    def _flush(self, output: list[str]) -> None:
        if not output:
            return
        self._clear()
        try:
            self.out.write("\n".join(output) + "\n")
            self.out.flush()
        except BrokenPipeError:
            if not self.outlives_reader:
                raise
            forget_stdout()
        output.clear()

    def _say(self, text: str) -> None:
        self._clear()
        click.echo(click.style(text, dim=True), file=self.err)

    # ---- the moving line ---------------------------------------------------------------------------------

    def _clear(self) -> None:
        if self._drawn:
            self.err.write("\r\x1b[2K")
            self.err.flush()
            self._drawn = False

    def _draw(self, watch: Watch) -> None:
        now = time.monotonic()
        if self._drawn and now - self._drawn_at < _REDRAW:
            return
        self._drawn_at = now
        width = shutil.get_terminal_size().columns - 1
        elapsed = duration(int(now - self._since))
        standing = watch.progress.standing(time.time())
        where = f"{self._segment}  " if self._segment else ""
        text = f"{where}{self._state} {elapsed}" + (f"  {_moving(standing)}" if standing else "")
        self.err.write("\r\x1b[2K" + text[:width])
        self.err.flush()
        self._drawn = True

    def _progress_line(self, watch: Watch) -> None:
        standing = watch.progress.standing()
        now = time.monotonic()
        if standing is None or standing.step == self._told_step:
            return
        if standing.share != 1.0 and now - self._told_at < _PLAIN_EVERY:
            return
        self._told_step, self._told_at = standing.step, now
        where = f"{self._segment}, " if self._segment else ""
        click.echo("progress " + where + ", ".join(_facts(standing)), file=self.err)


def duration(seconds: float) -> str:
    """``0.4 s``, ``7 s``, ``12:04``, ``3:12:04``, ``2d 3:12:04``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 and seconds != int(seconds) else f"{seconds:.0f} s"
    whole = int(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{days}d {clock}" if days else clock


def _moving(standing: Standing) -> str:
    bar = ""
    if standing.share is not None:
        full = int(standing.share * _BAR)
        bar = "━" * full + "╌" * (_BAR - full) + "  "
    return bar + "  ".join(_facts(standing))


def _facts(standing: Standing) -> list[str]:
    facts: list[str] = []
    if standing.step is not None:
        of_all = f"/{standing.steps}" if standing.steps else ""
        percent = f" ({standing.share:.0%})" if standing.share is not None else ""
        facts.append(f"step {standing.step}{of_all}{percent}")
    if standing.rate:
        facts.append(
            f"{standing.rate:.3g} steps/s" if standing.rate >= 1 else f"{1 / standing.rate:.3g} s/step"
        )
    facts.extend(f"{name} {value:.4g}" for name, value in standing.metrics.items())
    if standing.eta:
        facts.append(f"{duration(round(standing.eta))} left")
    return facts


def _is_progress(text: str) -> bool:
    if MARK not in text:
        return False
    line = parse_line(text)
    return line is not None and line.kind == PROGRESS and split_rank(text)[1].startswith(MARK)


def _state_line(change: StateChange) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(change.at))
    return f"{at} {change.state:<12} {change.message}".rstrip()
