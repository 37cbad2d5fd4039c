"""Data before a job: what lies where, split by bytes, packed, moved, and advice on how to read it.

Modules here import NumPy, pyarrow and obstore where they need them, which the extra ``data`` brings. Whatever
loads one of them late does so inside ``extra()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smlaunch.errors import JobError, Problem

_BROUGHT = {"numpy", "obstore", "pyarrow"}


@contextmanager
def extra() -> Iterator[None]:
    """Turns the absence of a package of the extra into a JobError that says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _BROUGHT:
            raise
        message = f"this needs {package}, which is not installed: pip install 'smlaunch[data]'"
        raise JobError([Problem("", message)]) from error
