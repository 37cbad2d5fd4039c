"""``from smlaunch import ...``: the names users write, in whatever order they write them."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest


@pytest.mark.parametrize("first, second", list(itertools.permutations(["plan", "launch", "Run"], 2)))
def test_public_names_import_in_any_order(first: str, second: str) -> None:
    code = (
        f"from smlaunch import {first}, {second}\n"
        "import smlaunch, smlaunch.cli.main, types\n"
        "for name in ('plan', 'launch', 'Run'):\n"
        "    value = getattr(smlaunch, name)\n"
        "    assert callable(value) and not isinstance(value, types.ModuleType), (name, value)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
