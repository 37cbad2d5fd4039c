"""Standard output: a closed stdout (``smlaunch logs RUN | head``) is not an error; moving lines."""

from __future__ import annotations

import os
import sys

ERASE_LINE = "\r\x1b[2K"
"""Carriage return, and the ANSI sequence that erases the line of the terminal."""


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that neither a later print nor the exit fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
