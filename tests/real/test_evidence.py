"""A slice of each issue's evidence, another one each day."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pytest

from tests.conftest import ROOT

ISSUES = sorted(path.stem for path in (ROOT / "docs" / "evidence").glob("*.toml"))


@pytest.mark.parametrize("issue", ISSUES)
def test_a_slice_of_the_evidence(issue: str) -> None:
    seed = datetime.date.today().strftime("%Y%m%d")
    command = [sys.executable, "tools/evidence.py", issue, "--slice", "3", "--seed", seed]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command[1:])}\n{done.stdout}"
