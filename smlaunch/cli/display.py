"""The display of a running run: its states, its log and its progress.

The output of the training goes to ``out``, everything else to ``err``. Progress is one moving line on a
terminal, otherwise a line every few seconds.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

import click

from smlaunch.cli.console import echo, escape_controls
from smlaunch.cli.stdio import discard_stdout
from smlaunch.contract.progress import LINE_PREFIX, PROGRESS_KIND, parse_line
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import Event, LogLine, StateChange
from smlaunch.runs.log_tail import split_rank_prefix
from smlaunch.runs.progress import ProgressEstimate
from smlaunch.runs.run import Run

_REDRAW_SECONDS = 0.1
"""Seconds between two updates of the moving line."""

_PLAIN_LINE_SECONDS = 5.0
"""Seconds between two progress lines where stderr is not a terminal, such as a build log."""

_BAR_WIDTH = 24
"""Characters."""

_ENDPOINT_MARK = "[smlaunch] "
"""Prefix of the lines that the local endpoint writes into the log of a host."""


@dataclass
class Display:
    """Prints the events of a run while it is followed."""

    host_count: int
    """With several hosts, each log line begins with the name of its host."""

    show_log: bool = True
    """False: show only states and progress."""

    only_host: str | None = None
    """Show only the log lines of this host."""

    ignore_closed_stdout: bool = False
    """Continue when ``out`` is closed: for a command that drives the run, not just prints its log."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _segment_label: str = ""
    _state: str = "Submitted"
    _state_since: float = field(default_factory=time.monotonic)
    _drawn_at: float = 0.0
    _is_line_drawn: bool = False
    _last_printed_step: int | None = None
    _last_printed_at: float = 0.0

    @property
    def _is_terminal(self) -> bool:
        return self.err.isatty()

    def start_job(self, follower: JobFollower, run: Run) -> None:
        """Begin the display of the next job of the run."""
        segment = run.segment_of(follower.job)
        self._state, self._state_since = "Submitted", time.monotonic()
        if segment is None:
            return
        task, planned = segment
        total_text = f"/{planned}" if planned is not None and planned >= task.segment else ""
        attempt_text = f" attempt {task.attempt}" if task.attempt > 1 else ""
        self._segment_label = f"segment {task.segment}{total_text}{attempt_text}"

    def show_events(self, events: Sequence[Event], follower: JobFollower) -> None:
        """Print a batch of events, then update the progress."""
        output: list[str] = []
        for event in events:
            if isinstance(event, LogLine):
                if not self.show_log or self.only_host not in (None, event.host) or _is_progress(event.text):
                    continue
                if is_endpoint_line(event.text):
                    self._write_log(output)
                    self._print_note(event.text if self._is_one_host() else f"{event.host} {event.text}")
                else:
                    output.append(self._format_log_line(event))
                continue
            self._write_log(output)
            self._print_note(
                _format_state(event) if isinstance(event, StateChange) else f"warning: {event.message}"
            )
            if isinstance(event, StateChange):
                self._state, self._state_since = event.state, time.monotonic()
        self._write_log(output)
        if self._is_terminal:
            self._draw_line(follower)
        else:
            self._print_progress(follower)

    def close(self) -> None:
        self._clear_line()

    def _format_log_line(self, line: LogLine) -> str:
        if self._is_one_host():
            return line.text
        return f"{click.style(line.host, dim=True) if self.out.isatty() else line.host} {line.text}"

    def _is_one_host(self) -> bool:
        return self.host_count == 1 or self.only_host is not None

    def _write_log(self, output: list[str]) -> None:
        """Write the lines to the output and empty the list."""
        if not output:
            return
        self._clear_line()
        try:
            self.out.write("\n".join(output) + "\n")
            self.out.flush()
        except BrokenPipeError:
            if not self.ignore_closed_stdout:
                raise
            discard_stdout()
        output.clear()

    def _print_note(self, text: str) -> None:
        self._clear_line()
        echo(text, file=self.err, dim=True)

    # ---- progress ----------------------------------------------------------------------------------------

    def _clear_line(self) -> None:
        if self._is_line_drawn:
            self.err.write("\r\x1b[2K")
            self.err.flush()
            self._is_line_drawn = False

    def _draw_line(self, follower: JobFollower) -> None:
        """Draw the status line on the terminal, with the job's state and progress, but not too often."""
        now = time.monotonic()
        if self._is_line_drawn and now - self._drawn_at < _REDRAW_SECONDS:
            return
        self._drawn_at = now
        width = shutil.get_terminal_size().columns - 1
        elapsed = format_duration(int(now - self._state_since))
        estimate = follower.progress.estimate(time.time())
        segment_prefix = f"{self._segment_label}  " if self._segment_label else ""
        text = f"{segment_prefix}{self._state} {elapsed}" + (
            f"  {_progress_text(estimate)}" if estimate else ""
        )
        self.err.write("\r\x1b[2K" + escape_controls(text)[:width])
        self.err.flush()
        self._is_line_drawn = True

    def _print_progress(self, follower: JobFollower) -> None:
        """Print a line about the job's progress where there is no terminal, but not too often."""
        estimate = follower.progress.estimate()
        now = time.monotonic()
        if estimate is None or estimate.step == self._last_printed_step:
            return
        if estimate.fraction_done != 1.0 and now - self._last_printed_at < _PLAIN_LINE_SECONDS:
            return
        self._last_printed_step, self._last_printed_at = estimate.step, now
        segment_prefix = f"{self._segment_label}, " if self._segment_label else ""
        echo("progress " + segment_prefix + ", ".join(_progress_facts(estimate)), file=self.err)


def format_duration(seconds: float) -> str:
    """``0.4 s``, ``7 s``, ``12:04``, ``3:12:04``, ``2d 3:12:04``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 and seconds != int(seconds) else f"{seconds:.0f} s"
    total_seconds = int(seconds)
    minutes, second = divmod(total_seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{days}d {clock}" if days else clock


def _progress_text(estimate: ProgressEstimate) -> str:
    bar = ""
    if estimate.fraction_done is not None:
        full = int(estimate.fraction_done * _BAR_WIDTH)
        bar = "━" * full + "╌" * (_BAR_WIDTH - full) + "  "
    return bar + "  ".join(_progress_facts(estimate))


def _progress_facts(estimate: ProgressEstimate) -> list[str]:
    """Return step, speed, metrics and remaining time of a job as short texts, as far as they are known."""
    facts: list[str] = []
    if estimate.step is not None:
        total_text = f"/{estimate.total_steps}" if estimate.total_steps else ""
        percent = f" ({estimate.fraction_done:.0%})" if estimate.fraction_done is not None else ""
        facts.append(f"step {estimate.step}{total_text}{percent}")
    if estimate.steps_per_second:
        facts.append(
            f"{estimate.steps_per_second:.3g} steps/s"
            if estimate.steps_per_second >= 1
            else f"{1 / estimate.steps_per_second:.3g} s/step"
        )
    facts.extend(f"{task} {value:.4g}" for task, value in estimate.metrics.items())
    if estimate.eta_seconds:
        facts.append(f"{format_duration(round(estimate.eta_seconds))} left")
    return facts


def is_endpoint_line(text: str) -> bool:
    """Whether the local endpoint, and not the training, wrote a log line."""
    return text.startswith(_ENDPOINT_MARK)


def _is_progress(text: str) -> bool:
    if LINE_PREFIX not in text:
        return False
    line = parse_line(text)
    return (
        line is not None and line.kind == PROGRESS_KIND and split_rank_prefix(text)[1].startswith(LINE_PREFIX)
    )


def _format_state(change: StateChange) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(change.timestamp))
    return f"{at} {change.state:<12} {change.message}".rstrip()
