"""Paths that a user writes with ``~``."""

from __future__ import annotations

import os
from pathlib import Path


def expand_home(path: str | Path) -> Path:
    """Return the path with ``~`` as the user's home folder; unchanged where the home of the named user is not
    known, such as a file that is called ``~.py``."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises RuntimeError then
