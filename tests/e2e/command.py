"""Running commands the way a user does."""

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
    *words: str | Path, timeout: float = 110, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Outcome:
    done = warm.run([*map(str, words)], env=env, cwd=cwd, timeout=timeout)
    return Outcome(done.returncode, done.stdout, done.stderr)


def installed(*words: str | Path, timeout: float = 110) -> Outcome:
    """By the installed script, in a Python that imports everything anew."""
    done = subprocess.run([SMLAUNCH, *map(str, words)], capture_output=True, text=True, timeout=timeout)
    return Outcome(done.returncode, done.stdout, done.stderr)


def weights_hash(text: str) -> str:
    found = re.findall(r"weights sha256 ([0-9a-f]{64})", text)
    assert found, f"no weights hash in:\n{text}"
    assert len(set(found)) == 1, found
    return str(found[0])
