"""A host as the endpoint sees it: its supervisor process, and the pipes to it.

When the endpoint ends or dies, the lifeline closes, and the supervisor ends the host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from smlaunch.local import liveness_fds
from smlaunch.local.executors.base import HostExit, JobHost

_SUPERVISOR_SCRIPT = Path(__file__).with_name("host.py")
_PIPE_BYTES = 1 << 20


class SupervisedHost:
    """A supervisor and three pipes: the lifeline, the report (``events``), and the host's output."""

    def __init__(
        self, host: JobHost, remove_leftovers: Callable[[], object], supervisor_kind: str = "process"
    ) -> None:
        """``remove_leftovers`` removes what remains of a host whose supervisor was killed.
        ``supervisor_kind`` is ``process`` or ``container``."""
        self.host = host
        self._remove_leftovers = remove_leftovers
        lifeline_reader, lifeline_writer = os.pipe()
        self._lifeline_writer = liveness_fds.close_after_fork(lifeline_writer)
        self.events, report_writer = os.pipe()
        self.output, output_writer = os.pipe()
        _enlarge_pipe(self.output)
        try:
            # Without user site packages and environment, so that the supervisor is the same everywhere.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(_SUPERVISOR_SCRIPT),
                    supervisor_kind,
                    str(lifeline_reader),
                    str(report_writer),
                ],
                stdin=subprocess.PIPE,
                stdout=output_writer,
                stderr=output_writer,
                pass_fds=(lifeline_reader, report_writer),
                start_new_session=True,  # Ctrl-C in the terminal must reach only the client
                env={},
            )
        except BaseException:
            liveness_fds.close(self._lifeline_writer)
            for descriptor in (self.events, self.output):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (lifeline_reader, report_writer, output_writer):
                os.close(descriptor)
        self._report_data = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, plan_data: bytes) -> None:
        """Start the host. ``plan_data`` is what this kind of supervisor reads from its standard input."""
        assert self._process.stdin is not None
        # If the supervisor has died, ``read`` reports that.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(plan_data)

    def wait_for_start(self) -> None:
        """Wait until the program runs, or cannot be started. ``read`` still returns what was reported."""
        while b"\n" not in self._report_data:
            block = os.read(self.events, 4096)
            if not block:
                return
            self._report_data += block

    def read(self) -> HostExit | None:
        """Return how the host ended; see HostProcess.read."""
        if not self._report_data:
            self._report_data = os.read(self.events, 4096)
            if not self._report_data:
                # Processes of the host may still run: they must not talk to other hosts any more, nor keep
                # the output pipe open.
                self._remove_leftovers()
                return HostExit(137, "lost", "the process that watches over the host was killed")
        *lines, _ = self._report_data.split(b"\n")
        self._report_data = b""
        for line in lines:
            event, _, details = line.decode(errors="replace").partition(" ")
            if event == "exit":
                code, _, message = details.partition(" ")
                return HostExit(int(code), message=message)
            if event == "killed":
                return HostExit(128 + int(details), signal=_signal_name(int(details)))
            if event == "lost":
                return HostExit(137, "lost", details)
            if event == "error":
                step, code, message = details.split(" ", 2)
                prefix = "" if step == "program" else f"the host could not be {_FAILED_STEPS[step]}: "
                return HostExit(int(code), "not_started", prefix + message)
        return None

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._lifeline_writer >= 0:
            liveness_fds.close(self._lifeline_writer)
            self._lifeline_writer = -1
            if self._process.poll() is None:
                self._process.send_signal(
                    signal.SIGCONT
                )  # a stopped process would not notice the closed lifeline

    def reap(self) -> bool:
        """Wait for the supervisor and close all descriptors. Call it after ``kill``. Return False if the
        supervisor was killed."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        has_exited = self._process.wait() >= 0
        for descriptor in (self.events, self.output):
            os.close(descriptor)
        return has_exited


_FAILED_STEPS = {"isolation": "isolated", "container": "made"}
"""Past participle for a message, by the step in the supervisor's report."""


def _signal_name(number: int) -> str:
    """Return a signal's name, also for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


def _enlarge_pipe(pipe: int) -> None:
    """Enlarge a pipe's buffer for bursts of output, where the system allows it."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
