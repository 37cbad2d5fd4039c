"""The display of a running run: its states, its log and its progress.

The output of the training goes to ``out``, everything else to ``err``. Progress is one moving line on a
terminal, otherwise a line every few seconds.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from smlaunch.cli.console import echo, escape_controls, is_terminal, style_for, wrap_for
from smlaunch.cli.stdio import ERASE_LINE, discard_stdout, is_same_file
from smlaunch.contract.failure_reason import parse_failure
from smlaunch.contract.progress_line import LINE_PREFIX, PROGRESS_KIND, parse_line
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import Event, LogLine, StateChange, host_number
from smlaunch.runs.log_tail import (
    ENDPOINT_MARK,
    live_text,
    split_rank_prefix,
    split_writer,
    visible_text,
    warning_of_host,
)
from smlaunch.runs.progress_estimate import ProgressEstimate, describe_progress
from smlaunch.runs.run import Run
from smlaunch.text.format import format_elapsed

_REDRAW_SECONDS = 0.1
"""Seconds between two updates of the moving line."""

_PLAIN_LINE_SECONDS = 5.0
"""Seconds between two progress lines where stderr is not a terminal, such as a build log."""

_NOTE_STYLE: Mapping[str, Any] = {"dim": True}
_WARNING_STYLE: Mapping[str, Any] = {"fg": "yellow"}
_STATE_STYLES: Mapping[str, Mapping[str, Any]] = {
    "Completed": {"fg": "green"},
    "Failed": {"fg": "red"},
    **dict.fromkeys(("Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"), _WARNING_STYLE),
}
"""By secondary status; other states are notes."""

_REMEMBERED_LINES = 100
"""Lines that a person still sees above the end of the log."""

_BAR_WIDTH = 24
"""Characters."""

_DIFFERENCE_MARK = ENDPOINT_MARK + "note: "
"""Prefix of those at the top of the log that say how the endpoint differs from SageMaker."""


@dataclass
class Display:
    """Prints the events of a run while it is followed."""

    host_count: int
    """With several hosts, each log line begins with the name of its host."""

    show_log: bool = True
    """False: show only states and progress."""

    show_states: bool = True
    """False: show neither states nor progress."""

    show_differences: bool = True
    """False: leave out how the local endpoint differs from SageMaker, which the plan has said."""

    only_host: str | None = None
    """Show only the log lines of this host."""

    ignore_closed_stdout: bool = False
    """Continue when ``out`` is closed: for a command that drives the run, not just prints its log."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _last_log_lines: deque[tuple[tuple[str, int | None], str]] = field(
        default_factory=lambda: deque(maxlen=_REMEMBERED_LINES)
    )
    """Each with the host and rank that wrote it, and without their prefixes."""
    _live_text_by_rank: dict[tuple[int, int], str] = field(default_factory=dict)
    """By host number and rank; the status line shows the first."""
    _segment_text: str = ""
    _state: str = "Submitted"
    _state_since: float = field(default_factory=time.time)
    """Seconds since the epoch, as the service says: a command that attaches to a run shows the run's time,
    not its own."""
    _last_drawn_at: float = 0.0
    _is_line_drawn: bool = False
    _last_printed_step: int | None = None
    _last_printed_at: float = 0.0

    @property
    def _is_terminal(self) -> bool:
        return is_terminal(self.err)

    def start_job(self, follower: JobFollower, run: Run) -> None:
        """Begin the display of the next job of a run: reset the state, and name the segment and the attempt
        of a chain (jobs in a row), such as ``segment 2/5 attempt 3``. ``follower``: of the new job."""
        self._state, self._state_since = "Submitted", time.time()
        job_name_and_count = run.segment_of(follower.job)
        if job_name_and_count is None:  # a run of one job
            return
        job_name, planned_segment_count = job_name_and_count
        segment_text = f"segment {job_name.segment}"
        # A run may need more segments than were planned: then the total would be wrong.
        if planned_segment_count is not None and planned_segment_count >= job_name.segment:
            segment_text += f"/{planned_segment_count}"
        if job_name.attempt > 1:
            segment_text += f" attempt {job_name.attempt}"
        self._segment_text = segment_text

    def show_events(self, events: Sequence[Event], follower: JobFollower) -> None:
        """Print a batch of a job's events (log lines, state changes, warnings), then update its progress. Log
        lines go to stdout, in blocks between two notes; everything else, also a line that the local endpoint
        wrote into the log, goes to stderr as a note. ``follower``: has the job's progress."""
        log_block: list[str] = []
        for event in events:
            if isinstance(event, LogLine):
                self._remember_live_text(event)
                if not self._is_line_shown(event):
                    continue
                if not is_endpoint_line(event.text):
                    rank, text = split_writer(event.text)
                    self._last_log_lines.append(((event.host, rank), text))
                    log_block.append(self._format_log_line(event))
                    continue
            self._write_log_lines(log_block)
            log_block = []
            self._print_note(event)
        self._write_log_lines(log_block)
        if not self.show_states:
            return
        if self._is_terminal:
            self._redraw_status_line(follower)
        else:
            self._print_progress_line(follower)

    def _is_line_shown(self, line: LogLine) -> bool:
        """Return whether a log line is printed; progress is shown in the status line instead."""
        if not self.show_differences and line.text.startswith(_DIFFERENCE_MARK):
            return False
        # How the only job has failed is said with the run's outcome.
        is_repeated = not self._segment_text and _is_failure(line.text)
        is_own_line = live_text(line.text) is None and not _is_progress(line.text) and not is_repeated
        return self.show_log and self.only_host in (None, line.host) and is_own_line

    def _remember_live_text(self, line: LogLine) -> None:
        """Keep the state of an incomplete line, such as tqdm's bar, until its rank writes another line."""
        writer = (host_number(line.host), split_rank_prefix(line.text)[0] or 0)
        text = live_text(line.text)
        if text is None:
            self._live_text_by_rank.pop(writer, None)
        elif self.show_log and self.only_host in (None, line.host):
            self._live_text_by_rank[writer] = text

    def _print_note(self, event: Event) -> None:
        """Print a state change, a warning, or a line that the local endpoint wrote into a log (the only log
        lines that are notes) to stderr."""
        if isinstance(event, StateChange):
            self._state, self._state_since = event.state, event.timestamp
            # The end of a run's only job is that of the run, which is printed with its results.
            if self.show_states and (self._segment_text or event.state not in _STATE_STYLES):
                self._print_lines(_format_state(event), _STATE_STYLES.get(event.state, _NOTE_STYLE))
        elif isinstance(event, LogLine):
            is_warning = warning_of_host(event.text) is not None
            # What hosts of the only job have warned of is said with the run's outcome.
            if is_warning and not self._segment_text:
                return
            text = event.text if self._is_one_host() else f"{event.host} {event.text}"
            self._print_lines(text, _WARNING_STYLE if is_warning else _NOTE_STYLE)
        else:
            self._print_lines(f"warning: {event.message}", _WARNING_STYLE)

    def has_just_shown(self, text: str) -> bool:
        """Whether a reader of ``err`` has these lines before their eyes: the log goes to the same terminal or
        file, and its last lines contain them, one after the other by one rank. The first and last line may be
        cut, which three dots mark."""
        if not is_same_file(self.out, self.err):
            return False
        wanted = text.removesuffix("...")
        wanted = wanted[3:] if wanted.startswith("...") else f"\n{wanted}"
        shown_by_writer: dict[tuple[str, int | None], list[str]] = {}
        for writer, line in self._last_log_lines:
            shown_by_writer.setdefault(writer, []).append(line)
        return any(wanted in "\n".join(["", *lines]) for lines in shown_by_writer.values())

    def close(self) -> None:
        self._clear_status_line()

    def _format_log_line(self, line: LogLine) -> str:
        if self._is_one_host():
            return visible_text(line.text)
        return f"{style_for(self.out, line.host, dim=True)} {visible_text(line.text)}"

    def _is_one_host(self) -> bool:
        return self.host_count == 1 or self.only_host is not None

    def _write_log_lines(self, lines: Sequence[str]) -> None:
        """Write lines of the log to stdout. Where its reader has ended, they are lost; only a command that
        drives the run goes on then."""
        if not lines:
            return
        self._clear_status_line()  # it is drawn again below them
        try:
            self.out.write("\n".join(lines) + "\n")
            self.out.flush()
        except BrokenPipeError:  # the reader of stdout has ended
            if not self.ignore_closed_stdout:
                raise
            discard_stdout()

    def _print_lines(self, text: str, style: Mapping[str, Any]) -> None:
        self._clear_status_line()
        for line in wrap_for(self.err, escape_controls(text), "  "):
            echo(line, file=self.err, **style)

    # ---- progress ----------------------------------------------------------------------------------------

    def _clear_status_line(self) -> None:
        if self._is_line_drawn:
            self.err.write(ERASE_LINE)
            self.err.flush()
            self._is_line_drawn = False

    def _redraw_status_line(self, follower: JobFollower) -> None:
        """Draw the status line on the terminal with the job's state and progress, unless it was drawn a
        moment ago (``_REDRAW_SECONDS``). ``follower``: estimates step, speed and remaining time from the
        job's log."""
        now = time.monotonic()
        if self._is_line_drawn and now - self._last_drawn_at < _REDRAW_SECONDS:
            return
        self._last_drawn_at = now
        line_parts = [f"{self._state} {format_elapsed(max(0, int(time.time() - self._state_since)))}"]
        if self._segment_text:
            line_parts.insert(0, self._segment_text)
        estimate = follower.progress.estimate(time.time())
        if estimate:  # None until the script has reported progress
            line_parts.append(_progress_text(estimate))
        if self._live_text_by_rank:
            line_parts.append(self._live_text_by_rank[min(self._live_text_by_rank)])
        max_characters = shutil.get_terminal_size().columns - 1
        self.err.write(ERASE_LINE + escape_controls("  ".join(line_parts))[:max_characters])
        self.err.flush()
        self._is_line_drawn = True

    def _print_progress_line(self, follower: JobFollower) -> None:
        """Print a line about the job's progress where stderr is no terminal: for a new step, but at most
        every ``_PLAIN_LINE_SECONDS``; the last step always. ``follower``: estimates the progress from the
        job's log."""
        estimate = follower.progress.estimate()
        now = time.monotonic()
        if estimate is None or estimate.step == self._last_printed_step:
            return
        is_last_step = estimate.fraction_done == 1.0
        if not is_last_step and now - self._last_printed_at < _PLAIN_LINE_SECONDS:
            return
        self._last_printed_step, self._last_printed_at = estimate.step, now
        segment_prefix = f"{self._segment_text}, " if self._segment_text else ""
        echo("progress " + segment_prefix + ", ".join(describe_progress(estimate)), file=self.err)


def _progress_text(estimate: ProgressEstimate) -> str:
    bar = ""
    if estimate.fraction_done is not None:
        full = int(estimate.fraction_done * _BAR_WIDTH)
        bar = "━" * full + "╌" * (_BAR_WIDTH - full) + "  "
    return bar + "  ".join(describe_progress(estimate))


def is_endpoint_line(text: str) -> bool:
    """Whether the local endpoint, and not the training, wrote a log line."""
    return text.startswith(ENDPOINT_MARK)


def _is_progress(text: str) -> bool:
    if LINE_PREFIX not in text:
        return False
    line = parse_line(text)
    return (
        line is not None and line.kind == PROGRESS_KIND and split_rank_prefix(text)[1].startswith(LINE_PREFIX)
    )


def _is_failure(text: str) -> bool:
    """Whether the runtime says in a log line which process failed: ``smlaunch: algo-1 exited with ...``."""
    return text.startswith(LINE_PREFIX) and parse_failure(text[len(LINE_PREFIX) :]).host is not None


def _format_state(change: StateChange) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(change.timestamp))
    return f"{at} {change.state:<12} {change.message}".rstrip()
