from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_the_page_matches_the_table() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_support_matrix.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run tools/generate_support_matrix.py"
