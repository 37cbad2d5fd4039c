"""Find and run other programs, at no cost where they do not exist.

``subprocess`` and ``shutil`` take longer to import than all the rest of a start, so they are imported only
when there is something to run.
"""

import os
from typing import Optional

_TIMEOUT_SECONDS = 30.0
"""Time for a vendor's tool to finish."""


def find_on_path(name: str) -> Optional[str]:
    """Return the path of the program ``name`` in a folder of the PATH; None if there is none."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def capture_stdout(program: str, *options: str) -> str:
    """Return what a program prints; empty when it cannot be run, fails or does not finish in time."""
    import subprocess

    try:
        finished = subprocess.run(
            [program, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return finished.stdout.decode("utf-8", "replace")
