"""A program on a terminal: a pty of a given size, whose screen a test reads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


class Terminal:
    """Starts a program on a new terminal. ``raw`` is all that it has written."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, columns: int = 80
    ) -> None:
        self.raw = ""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], list(command), {"TERM": "xterm-256color", **environment})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    @property
    def text(self) -> str:
        """All output without escape sequences and carriage returns."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str, timeout: float = 60) -> None:
        """Read until the output contains a text. Raises AssertionError at the output's end."""
        deadline = time.monotonic() + timeout
        while text not in self.text:
            assert self._read(deadline), f"ended or silent without {text!r}: {self.raw!r}"

    def wait_for_end(self, timeout: float = 60) -> int:
        """Read all output, and return the program's exit code."""
        deadline = time.monotonic() + timeout
        while self._read(deadline):
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self, deadline: float) -> bool:
        if not select.select([self._fd], [], [], max(0, deadline - time.monotonic()))[0]:
            return False
        try:
            block = os.read(self._fd, 65536)
        except OSError:  # the program has closed the terminal
            return False
        self.raw += block.decode(errors="replace")
        return bool(block)
