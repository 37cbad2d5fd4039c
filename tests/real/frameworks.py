"""Running `smlaunch` of an environment that has one of the heavy frameworks: hosts run on its Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.command import ENTRYPOINTS, Outcome
from tests.real.conftest import program

_COMMAND = "from smlaunch.cli.main import main; main()"


def smlaunch_of(environment: str, home: Path, *arguments: str | Path, timeout: float = 300) -> Outcome:
    """The command on an environment's Python (tools/real_components.py); skips by name where that is not
    installed. Environments that lie over the project's have no program of its."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    # What these would otherwise fetch or warn of.
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    result = subprocess.run(
        [program(environment, "python"), "-c", _COMMAND, *map(str, arguments)],
        env={**variables, **quiet, "SMLAUNCH_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return Outcome(result.returncode, result.stdout, result.stderr)


def write_digits(folder: Path) -> Path:
    subprocess.run([sys.executable, ENTRYPOINTS / "prepare_digits.py", "--out", folder], check=True)
    return folder
