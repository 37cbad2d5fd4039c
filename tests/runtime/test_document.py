"""docs/runtime.md stands on tests that exist."""

from __future__ import annotations

import re

from tests.conftest import ROOT


def test_every_test_it_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "runtime.md").read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert named - set(re.findall(r"def (test_\w+)\(", sources)) == set()
