"""A closed stdout (``smlaunch logs RUN | head``) is not an error."""

from __future__ import annotations

import os
import sys


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that neither a later print nor the exit fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
