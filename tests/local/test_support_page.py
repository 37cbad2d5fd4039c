from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_the_page_matches_the_table() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_support_matrix.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}{result.stderr}: run tools/generate_support_matrix.py"
