"""Standard output: a closed stdout (``smlaunch logs RUN | head``) is not an error; moving lines."""

from __future__ import annotations

import os
import sys
from typing import IO

ERASE_LINE = "\r\x1b[2K"
"""Carriage return, and the ANSI sequence that erases the line of the terminal."""


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that neither a later print nor the exit fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def open_closed_streams() -> None:
    """Give the process a stdin, stdout and stderr where its parent has closed them: to /dev/null, so that no
    file or socket gets their descriptors, and prints do not fail."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free one
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8"))


def is_same_file(first: IO[str], second: IO[str]) -> bool:
    """Whether two streams are the same terminal, file or pipe."""
    try:
        return os.path.samestat(os.fstat(first.fileno()), os.fstat(second.fileno()))
    except (OSError, ValueError):  # a stream without a descriptor
        return False
