"""Runs commands as a user does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests import warm
from tests.conftest import ROOT

SMLAUNCH = str(Path(sys.executable).parent / "smlaunch")
ENTRYPOINTS = ROOT / "entrypoints"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out + self.err


def smlaunch(
    *arguments: str | Path,
    timeout: float = 110,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    result = warm.run([*map(str, arguments)], env=env, cwd=cwd, timeout=timeout)
    return Outcome(result.returncode, result.stdout, result.stderr)


def run_installed(*arguments: str | Path, timeout: float = 110) -> Outcome:
    """Runs the installed script, in a new Python that imports everything again."""
    result = subprocess.run([SMLAUNCH, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)
    return Outcome(result.returncode, result.stdout, result.stderr)


def weights_hash(text: str) -> str:
    hashes = re.findall(r"weights sha256 ([0-9a-f]{64})", text)
    assert hashes, f"no weights hash in:\n{text}"
    assert len(set(hashes)) == 1, hashes
    return str(hashes[0])
