"""The hosts' output on its way to the log: one thread per job, one stream per host.

Group and stream are named as SageMaker names them, such as /aws/sagemaker/TrainingJobs and
JOB/algo-1-EPOCH_MS.
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

GROUP = "/aws/sagemaker/TrainingJobs"
_READ_BYTES = 1 << 20
_LINE_LIMIT = 250_000
"""Characters. CloudWatch Logs takes 256 KiB an event; a longer line becomes several."""


class OutputPump:
    """Reads pipes until their end and appends whole lines, stamped when they were read.

    ``seen`` gets the same lines, with their time in milliseconds, but for the endpoint's own.
    """

    def __init__(
        self,
        job: str,
        labels: Sequence[str],
        logs: Logs,
        on_lines: Callable[[Sequence[tuple[int, str]]], None] | None = None,
        group: str = GROUP,
    ) -> None:
        started = int(time.time() * 1000)
        self._writers = {label: logs.open_writer(group, f"{job}/{label}-{started}") for label in labels}
        self._on_lines = on_lines
        self._thread: threading.Thread | None = None
        self._gave_up, self._give_up = os.pipe()
        self._complaints: set[str] = set()

    def note(self, label: str, text: str) -> None:
        """A line of the endpoint's own in a host's log."""
        self._append(label, [f"[smlaunch] {text}"], from_script=False)

    def start(self, outputs: Mapping[str, int]) -> None:
        """``outputs``: label to the read end of the pipe that a host prints to."""
        self._thread = threading.Thread(target=self._run, args=(dict(outputs),), name="output", daemon=True)
        self._thread.start()

    def finish(self, patience: float = 10.0) -> None:
        """Waits until everything printed is in the log. All writers are dead, so the pipes end; should one
        have escaped with a copy, its output is given up after ``patience`` seconds."""
        if self._thread is not None:
            self._thread.join(patience)
            os.write(self._give_up, b".")
            self._thread.join()
        os.close(self._gave_up)
        os.close(self._give_up)
        for writer in self._writers.values():
            writer.flush()

    def close(self, patience: float = 10.0) -> None:
        """After ``finish``: lines that could not be written, on a full disk, say, are given up after
        ``patience`` seconds. Call it when the hosts' own files are gone."""
        for writer in self._writers.values():
            writer.flush(patience)

    def _run(self, outputs: dict[str, int]) -> None:
        decoders = {label: getincrementaldecoder("utf-8")("replace") for label in outputs}
        partial = dict.fromkeys(outputs, "")
        with selectors.DefaultSelector() as selector:
            for label, descriptor in outputs.items():
                # A program may open its own output for reading, and take what we were woken for.
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ, label)
            selector.register(self._gave_up, selectors.EVENT_READ)
            while len(selector.get_map()) > 1:
                for key, _ in selector.select():
                    label = key.data
                    if label is None:
                        for label, rest in partial.items():
                            self._append(label, [rest] if rest else [])
                        return
                    try:
                        data = os.read(key.fd, _READ_BYTES)
                    except BlockingIOError:
                        continue
                    text = partial[label] + decoders[label].decode(data, final=not data)
                    *lines, rest = text.split("\n")
                    if not data:
                        selector.unregister(key.fd)
                        lines += [rest] if rest else []
                        rest = ""
                    elif len(rest) > _LINE_LIMIT:
                        lines.append(rest)
                        rest = ""
                    partial[label] = rest
                    self._append(label, lines)

    def _append(self, label: str, lines: Sequence[str], from_script: bool = True) -> None:
        now = int(time.time() * 1000)
        events = [
            (now, piece)
            for line in lines
            for piece in ((line.removesuffix("\r"),) if len(line) <= _LINE_LIMIT else _pieces(line))
        ]
        if from_script and self._on_lines is not None and events:
            try:
                self._on_lines(events)
            except Exception as error:
                self._complain(f"metrics could not be stored: {error}")
        self._writers[label].append(events)

    def _complain(self, text: str) -> None:
        """Once, in the endpoint's own log: whatever it is, the hosts' output must be read on."""
        if text not in self._complaints:
            self._complaints.add(text)
            log.warning(text)


def _pieces(line: str) -> list[str]:
    return [line[start : start + _LINE_LIMIT] for start in range(0, len(line), _LINE_LIMIT)]
