"""Copies the hosts' output to the logs: one thread per job, one log stream per host.

Group and stream have SageMaker's names, such as /aws/sagemaker/TrainingJobs and JOB/algo-1-EPOCH_MS.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence

from smlaunch.api.job_kinds import TRAINING
from smlaunch.local.jobs.store_interfaces import LogStorage

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
_MAX_LINE_CHARACTERS = 250_000
"""Characters. CloudWatch Logs takes 256 KiB per event; a longer line becomes several events."""


class HostOutputLogger:
    """Reads the pipes of the hosts until they end, and appends their lines to the logs, with the time of
    reading."""

    def __init__(
        self,
        job_name: str,
        host_names: Sequence[str],
        log_store: LogStorage,
        on_program_lines: Callable[[Sequence[tuple[int, str]]], None] | None = None,
        log_group: str = TRAINING.log_group,
    ) -> None:
        """``on_program_lines`` gets the hosts' lines, given as (milliseconds since the epoch, line),
        without the local endpoint's own. ``log_group`` is the log group."""
        start_ms = int(time.time() * 1000)
        self._log_writer_by_host = {
            host_name: log_store.open_writer(log_group, f"{job_name}/{host_name}-{start_ms}")
            for host_name in host_names
        }
        self._on_program_lines = on_program_lines
        self._thread: threading.Thread | None = None
        self._abandon_read_fd, self._abandon_write_fd = os.pipe()
        self._logged_problems: set[str] = set()

    def log_to_host(self, host_name: str, text: str) -> None:
        """Write a line of the local endpoint's own to a host's log."""
        self._log_lines(host_name, [f"[smlaunch] {text}"], is_program_output=False)

    def start(self, output_fd_by_host: Mapping[str, int]) -> None:
        """Start copying. ``output_fd_by_host`` maps the hosts' names to the read ends of the hosts' output
        pipes."""
        self._thread = threading.Thread(
            target=self._copy_output, args=(dict(output_fd_by_host),), name="output", daemon=True
        )
        self._thread.start()

    def finish(self, timeout: float = 10.0) -> None:
        """Wait until all output is in the logs. The hosts have ended, so that the pipes end too. If a
        process outlives its host with a copy of the pipe, its output is dropped after ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
            os.write(self._abandon_write_fd, b".")
            self._thread.join()
        os.close(self._abandon_read_fd)
        os.close(self._abandon_write_fd)
        for writer in self._log_writer_by_host.values():
            writer.flush()

    def close(self, timeout: float = 10.0) -> None:
        """Write the lines that could not be written before, for example on a full disk, and drop them after
        ``timeout`` seconds. Call it after ``finish``, when the hosts' files are removed."""
        for writer in self._log_writer_by_host.values():
            writer.flush(timeout)

    def _copy_output(self, output_fd_by_host: dict[str, int]) -> None:
        """Copy the hosts' output pipes, given as descriptors by the hosts' names, line by line to their logs
        until all pipes end. A byte in ``_abandon_read_fd``, written by the method ``finish``, ends the
        copying earlier."""
        splitter_by_host = {host_name: _LineSplitter() for host_name in output_fd_by_host}
        with selectors.DefaultSelector() as selector:
            for host_name, descriptor in output_fd_by_host.items():
                # A program may open its own output for reading, and read what the selector has announced.
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, host_name)
            selector.register(self._abandon_read_fd, selectors.EVENT_READ, None)
            while len(selector.get_map()) > 1:  # a host's pipe is left, not only the one of ``finish``
                for selector_key, _ in selector.select():
                    ready_host: str | None = selector_key.data
                    if ready_host is None:  # ``finish`` has abandoned the pipes
                        for host_name, splitter in splitter_by_host.items():
                            # A list of one line, or of none.
                            self._log_lines(host_name, splitter.take_unfinished_line())
                        return
                    try:
                        output_bytes = os.read(selector_key.fd, _READ_BYTES)
                    except BlockingIOError:  # nothing is left to read
                        continue
                    if not output_bytes:  # end of file, which also ends the last line
                        selector.unregister(selector_key.fd)
                    self._log_lines(ready_host, splitter_by_host[ready_host].split_lines(output_bytes))

    def _log_lines(self, host_name: str, lines: Sequence[str], is_program_output: bool = True) -> None:
        """Append lines to a host's log, as CloudWatch events: (milliseconds since the epoch, text). Events
        with the output of the host's program (``is_program_output``) go to ``_on_program_lines`` too, which
        reads metrics from them."""
        now_ms = int(time.time() * 1000)
        events: list[tuple[int, str]] = []
        for line in lines:
            if len(line) <= _MAX_LINE_CHARACTERS:
                events.append((now_ms, line.removesuffix("\r")))
            else:
                events += [(now_ms, line_part) for line_part in _split_long_line(line)]
        if is_program_output and self._on_program_lines is not None and events:
            try:
                self._on_program_lines(events)
            except Exception as error:  # no error may stop the copying of the output
                self._log_problem_once(f"metrics could not be stored: {error}")
        self._log_writer_by_host[host_name].append_events(events)

    def _log_problem_once(self, text: str) -> None:
        """Log a problem in the endpoint's log, each text once. Nothing is raised: the hosts' output must be
        read on."""
        if text not in self._logged_problems:
            self._logged_problems.add(text)
            log.warning(text)


class _LineSplitter:
    """Splits the bytes of one host's output into lines."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._unfinished_line = ""

    def split_lines(self, output_bytes: bytes) -> list[str]:
        """Return the lines that end in ``output_bytes``, the next part of the output. Empty bytes are the end
        of the output, and end the last line. A line that is too long for the log ends at once."""
        is_at_end = not output_bytes
        text = self._unfinished_line + self._decoder.decode(output_bytes, final=is_at_end)
        *lines, self._unfinished_line = text.split("\n")
        if is_at_end or len(self._unfinished_line) > _MAX_LINE_CHARACTERS:
            lines += self.take_unfinished_line()
        return lines

    def take_unfinished_line(self) -> list[str]:
        """Remove the beginning of a line that has not ended, and return it as a list; empty if there is
        none."""
        unfinished_line, self._unfinished_line = self._unfinished_line, ""
        return [unfinished_line] if unfinished_line else []


def _split_long_line(line: str) -> list[str]:
    return [line[start : start + _MAX_LINE_CHARACTERS] for start in range(0, len(line), _MAX_LINE_CHARACTERS)]
