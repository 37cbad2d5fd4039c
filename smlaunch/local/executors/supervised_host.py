"""A host as the endpoint sees it: its supervisor process, and the pipes to it.

When the endpoint ends or dies, the liveness pipe closes, and the supervisor ends the host.
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
from smlaunch.local.executors.executor_interface import HostExit, JobHost

SUPERVISOR_SCRIPT = Path(__file__).with_name("supervisor_script.py")
_PIPE_BYTES = 1 << 20
_SIGKILL_EXIT_CODE = 128 + signal.SIGKILL


class SupervisedHost:
    """A supervisor and three pipes: the liveness pipe, the report (``events_fd``), and the host's output."""

    def __init__(
        self, host: JobHost, remove_leftovers: Callable[[], object], supervisor_kind: str = "process"
    ) -> None:
        """Start the supervisor of a host, which waits for its plan. ``remove_leftovers`` removes what remains
        of a host whose supervisor was killed. ``supervisor_kind`` is ``process`` or ``container``."""
        self.host = host
        self._remove_host_leftovers = remove_leftovers
        # Only this process may hold the writer: when it ends, the pipe closes, and the supervisor notices.
        liveness_reader, liveness_writer = os.pipe()
        self._liveness_writer = liveness_fds.close_after_fork(liveness_writer)
        # On this pipe the supervisor reports that the host has started, and how it ended.
        self.events_fd, report_writer = os.pipe()
        self.output_fd, output_writer = os.pipe()
        _enlarge_pipe(self.output_fd)  # the host may then write more before anyone reads
        try:
            # Without site packages (-I -S) and environment, so that the supervisor is the same everywhere.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(SUPERVISOR_SCRIPT),
                    supervisor_kind,
                    str(liveness_reader),
                    str(report_writer),
                ],
                stdin=subprocess.PIPE,
                stdout=output_writer,
                stderr=output_writer,
                pass_fds=(liveness_reader, report_writer),
                start_new_session=True,  # Ctrl-C in the terminal must reach only the client
                env={},
            )
        except BaseException:
            liveness_fds.close(self._liveness_writer)
            for descriptor in (self.events_fd, self.output_fd):
                os.close(descriptor)
            raise
        finally:  # the supervisor has these ends now
            for descriptor in (liveness_reader, report_writer, output_writer):
                os.close(descriptor)
        self._report_data = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_plan(self, plan_data: bytes) -> None:
        """Start the host. ``plan_data`` is what this kind of supervisor reads from its standard input."""
        assert self._process.stdin is not None
        # If the supervisor has died, ``read`` reports that.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(plan_data)

    def wait_for_start(self) -> None:
        """Wait until the program runs, or cannot be started. ``read`` still returns what was reported."""
        while b"\n" not in self._report_data:
            block = os.read(self.events_fd, 4096)
            if not block:
                return
            self._report_data += block

    def read_exit(self) -> HostExit | None:
        """Read the supervisor's report, when ``events_fd`` is readable. Return how the host ended; None while
        it runs. If the supervisor was killed, also remove what remains of the host."""
        # wait_for_start may have read the report already, and kept it.
        report_data = self._report_data or os.read(self.events_fd, 4096)
        self._report_data = b""
        if not report_data:  # the pipe has closed, and how the host ended was not reported
            # Processes of the host may still run: they must not talk to other hosts any more, nor keep
            # the output pipe open.
            self._remove_host_leftovers()
            return HostExit(_SIGKILL_EXIT_CODE, "lost", "the process that watches over the host was killed")
        *lines, _ = report_data.split(b"\n")  # the last is empty: each line ends with a newline
        for line in lines:
            host_exit = _parse_report_line(line.decode(errors="replace"))
            if host_exit is not None:
                return host_exit
        return None

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._liveness_writer >= 0:
            liveness_fds.close(self._liveness_writer)
            self._liveness_writer = -1
            if self._process.poll() is None:
                self._process.send_signal(
                    signal.SIGCONT
                )  # a stopped process would not notice the closed liveness pipe

    def wait_and_close(self) -> bool:
        """Wait for the supervisor and close all descriptors. Call it after ``kill``. Return False if the
        supervisor was killed."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        has_exited = self._process.wait() >= 0
        for descriptor in (self.events_fd, self.output_fd):
            os.close(descriptor)
        return has_exited


def _parse_report_line(line: str) -> HostExit | None:
    """Return how the host ended, from a line of its supervisor's report: ``exit CODE [MESSAGE]``, ``killed
    SIGNAL``, ``lost REASON`` or ``error STEP CODE MESSAGE`` (the program was not started, since STEP failed).
    None for ``started PID``."""
    report_word, _, details = line.partition(" ")
    if report_word == "exit":
        code, _, message = details.partition(" ")
        return HostExit(int(code), message=message)
    if report_word == "killed":
        signal_number = int(details)
        # As a shell does, 128 is added to a signal's number.
        return HostExit(128 + signal_number, signal=_signal_name(signal_number))
    if report_word == "lost":
        return HostExit(_SIGKILL_EXIT_CODE, "lost", details)
    if report_word == "error":
        failed_step, code, message = details.split(" ", 2)
        # A step that is no program prepares the host (isolation, container): "could not be isolated".
        if failed_step != "program":
            message = f"the host could not be {_PARTICIPLE_BY_FAILED_STEP[failed_step]}: {message}"
        return HostExit(int(code), "not_started", message)
    return None


_PARTICIPLE_BY_FAILED_STEP = {"isolation": "isolated", "container": "made"}
"""Past participle for a message, by the step in the supervisor's report that failed."""


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
