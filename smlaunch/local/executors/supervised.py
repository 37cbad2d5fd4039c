"""A host as the endpoint sees it, of whatever kind: a supervisor process and the pipes to it.

Whatever becomes of the endpoint, the supervisor sees its lifeline close and ends the host.
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
from smlaunch.local.executors.base import HostExit, Place

_HOST_SCRIPT = Path(__file__).with_name("host.py")
_PIPE_BYTES = 1 << 20


class SupervisedHost:
    """A supervisor and the three pipes to it: lifeline, report (``events``), and what the host prints.

    ``on_lost`` ends what of the host outlives a supervisor that was killed. ``kind``: which supervisor,
    ``process`` or ``container``.
    """

    def __init__(self, place: Place, on_lost: Callable[[], object], kind: str = "process") -> None:
        self.place = place
        self._on_lost = on_lost
        lifeline, ours = os.pipe()
        self._lifeline = liveness_fds.close_after_fork(ours)
        self.events, report = os.pipe()
        self.output, output = os.pipe()
        _enlarge(self.output)
        try:
            # No shell, no user site, no environment: the supervisor is the same wherever we were started.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_HOST_SCRIPT), kind, str(lifeline), str(report)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(lifeline, report),
                start_new_session=True,  # the terminal's Ctrl-C is for the client alone
                env={},
            )
        except BaseException:
            liveness_fds.close(self._lifeline)
            for descriptor in (self.events, self.output):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (lifeline, report, output):
                os.close(descriptor)
        self._text = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, order: bytes) -> None:
        """``order``: what the supervisor of this kind reads."""
        assert self._process.stdin is not None
        # A supervisor that has died already is told by its report's end.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stream:
            stream.write(order)

    def wait_for_start(self) -> None:
        """Until the program runs, or cannot; what was reported is not consumed for ``read``."""
        while b"\n" not in self._text:
            some = os.read(self.events, 4096)
            if not some:
                return
            self._text += some

    def read(self) -> HostExit | None:
        if not self._text:
            self._text = os.read(self.events, 4096)
            if not self._text:
                # What it watched over may run on: its peers must not go on talking to it, nor its output
                # stay open.
                self._on_lost()
                return HostExit(137, "lost", "the process that watches over the host was killed")
        *lines, _ = self._text.split(b"\n")
        self._text = b""
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "exit":
                code, _, message = rest.partition(" ")
                return HostExit(int(code), message=message)
            if word == "killed":
                return HostExit(128 + int(rest), signal=_signal_name(int(rest)))
            if word == "lost":
                return HostExit(137, "lost", rest)
            if word == "error":
                step, code, message = rest.split(" ", 2)
                where = "" if step == "program" else f"the host could not be {_FAILED[step]}: "
                return HostExit(int(code), "not_started", where + message)
        return None

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._lifeline >= 0:
            liveness_fds.close(self._lifeline)
            self._lifeline = -1
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGCONT)  # one that was stopped would never see it

    def reap(self) -> bool:
        """After ``kill``. Closes what is still open. False when the supervisor did not end by itself."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        by_itself = self._process.wait() >= 0
        for descriptor in (self.events, self.output):
            os.close(descriptor)
        return by_itself


_FAILED = {"isolation": "isolated", "container": "made"}
"""What could not be done, by the step that a supervisor names."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"


def _enlarge(pipe: int) -> None:
    """Room for bursts of output, where the system lets us."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
