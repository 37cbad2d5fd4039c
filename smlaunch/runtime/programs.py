"""Finding and asking other programs, at no cost where they do not exist.

``subprocess`` and ``shutil`` take longer to import than all the rest of a start, so they are only imported
when there is something to run.
"""

import os
from typing import Optional

_PATIENCE = 30.0
"""Seconds for a vendor's tool to answer."""


def on_path(name: str) -> Optional[str]:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def output_of(program: str, *options: str) -> str:
    """What it prints; empty when it cannot be run, fails or does not answer: then it has nothing to tell."""
    import subprocess

    try:
        done = subprocess.run(
            [program, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")
