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

from smlaunch.local.jobs.stores import Logs

log = logging.getLogger(__name__)

TRAINING_LOG_GROUP = "/aws/sagemaker/TrainingJobs"
_READ_BYTES = 1 << 20
_MAX_LINE_LENGTH = 250_000
"""Characters. CloudWatch Logs takes 256 KiB per event; a longer line becomes several events."""


class OutputPump:
    """Reads the pipes of the hosts until they end, and appends their lines to the logs, with the time of
    reading."""

    def __init__(
        self,
        job: str,
        host_names: Sequence[str],
        logs: Logs,
        on_lines: Callable[[Sequence[tuple[int, str]]], None] | None = None,
        group: str = TRAINING_LOG_GROUP,
    ) -> None:
        """``on_lines`` gets the hosts' lines, given as (milliseconds since the epoch, line), without the
        endpoint's own. ``group`` is the log group."""
        start_ms = int(time.time() * 1000)
        self._writer_by_host = {
            host_name: logs.open_writer(group, f"{job}/{host_name}-{start_ms}") for host_name in host_names
        }
        self._on_lines = on_lines
        self._thread: threading.Thread | None = None
        self._abandon_reader, self._abandon_writer = os.pipe()
        self._logged_problems: set[str] = set()

    def write_note(self, host_name: str, text: str) -> None:
        """Write a line of the endpoint's own to a host's log."""
        self._append(host_name, [f"[smlaunch] {text}"], from_script=False)

    def start(self, outputs: Mapping[str, int]) -> None:
        """Start copying. ``outputs`` maps the hosts' names to the read ends of the hosts' output pipes."""
        self._thread = threading.Thread(
            target=self._copy_output, args=(dict(outputs),), name="output", daemon=True
        )
        self._thread.start()

    def finish(self, timeout: float = 10.0) -> None:
        """Wait until all output is in the logs. The hosts have ended, so that the pipes end too. If a
        process outlives its host with a copy of the pipe, its output is dropped after ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
            os.write(self._abandon_writer, b".")
            self._thread.join()
        os.close(self._abandon_reader)
        os.close(self._abandon_writer)
        for writer in self._writer_by_host.values():
            writer.flush()

    def close(self, timeout: float = 10.0) -> None:
        """Write the lines that could not be written before, for example on a full disk, and drop them after
        ``timeout`` seconds. Call it after ``finish``, when the hosts' files are removed."""
        for writer in self._writer_by_host.values():
            writer.flush(timeout)

    def _copy_output(self, outputs: dict[str, int]) -> None:
        """Copy the hosts' output pipes, descriptors by the hosts' names, line by line to their logs until all
        pipes end or ``finish`` abandons them."""
        decoders = {host_name: getincrementaldecoder("utf-8")("replace") for host_name in outputs}
        unfinished_lines = dict.fromkeys(outputs, "")
        with selectors.DefaultSelector() as selector:
            for host_name, descriptor in outputs.items():
                # A program may open its own output for reading, and read what the selector has announced.
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, host_name)
            selector.register(self._abandon_reader, selectors.EVENT_READ)
            while len(selector.get_map()) > 1:
                for key, _ in selector.select():
                    host_name = key.data
                    if host_name is None:
                        for host_name, unfinished_line in unfinished_lines.items():
                            self._append(host_name, [unfinished_line] if unfinished_line else [])
                        return
                    try:
                        block = os.read(key.fd, _READ_BYTES)
                    except BlockingIOError:
                        continue
                    text = unfinished_lines[host_name] + decoders[host_name].decode(block, final=not block)
                    *lines, unfinished_line = text.split("\n")
                    if not block:
                        selector.unregister(key.fd)
                        lines += [unfinished_line] if unfinished_line else []
                        unfinished_line = ""
                    elif len(unfinished_line) > _MAX_LINE_LENGTH:
                        lines.append(unfinished_line)
                        unfinished_line = ""
                    unfinished_lines[host_name] = unfinished_line
                    self._append(host_name, lines)

    def _append(self, host_name: str, lines: Sequence[str], from_script: bool = True) -> None:
        """Write lines to a host's log. ``from_script``: whether the host's program has printed them."""
        now = int(time.time() * 1000)
        events = [
            (now, text_piece)
            for line in lines
            for text_piece in (
                (line.removesuffix("\r"),) if len(line) <= _MAX_LINE_LENGTH else _split_long_line(line)
            )
        ]
        if from_script and self._on_lines is not None and events:
            try:
                self._on_lines(events)
            except Exception as error:
                self._log_problem_once(f"metrics could not be stored: {error}")
        self._writer_by_host[host_name].append(events)

    def _log_problem_once(self, text: str) -> None:
        """Log a problem in the endpoint's log, each text once. Nothing is raised: the hosts' output must be
        read on."""
        if text not in self._logged_problems:
            self._logged_problems.add(text)
            log.warning(text)


def _split_long_line(line: str) -> list[str]:
    return [line[start : start + _MAX_LINE_LENGTH] for start in range(0, len(line), _MAX_LINE_LENGTH)]
