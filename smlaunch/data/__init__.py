"""Data before a job: inventories, splits over hosts, tar shards, transfers, and advice on how to read it.

Modules here import NumPy, pyarrow and obstore, which the extra ``data`` installs. Whatever imports one of
these modules does so inside ``require_data_extra()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smlaunch.errors import JobError, Problem

_EXTRA_PACKAGES = {"numpy", "obstore", "pyarrow"}


@contextmanager
def require_data_extra() -> Iterator[None]:
    """Turn a missing package of the extra into a JobError that names the command to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_PACKAGES:
            raise
        message = (
            f"this needs {package}, which is not installed: pip install '.[data]' in a checkout of smlaunch"
        )
        raise JobError([Problem("", message)]) from error
