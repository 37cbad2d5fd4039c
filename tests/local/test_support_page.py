from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("tool", ["generate_support_matrix.py", "generate_request_page.py"])
def test_the_page_matches_the_table(tool: str) -> None:
    """The second fails for a member of the API that has neither a field nor a reason for having none."""
    command = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}{result.stderr}: run tools/{tool}"
