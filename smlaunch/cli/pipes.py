"""A reader that has gone away (``smlaunch logs RUN | head``) is no error."""

from __future__ import annotations

import os
import sys


def forget_stdout() -> None:
    """From here on stdout leads nowhere, so that neither a later print nor the exit fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
