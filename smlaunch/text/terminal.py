"""Width of the terminal that a program prints to."""

from __future__ import annotations

import shutil
from typing import IO


def terminal_width(stream: IO[str] | None) -> int | None:
    """Return the columns of a terminal; None for a file or a pipe, whose lines stay whole, and for a program
    without the stream."""
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None
