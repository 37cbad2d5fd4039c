"""docs/runtime.md and docs/chains.md name only tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("page", ["runtime.md", "chains.md"])
def test_every_test_it_names_is_there(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert named - set(re.findall(r"def (test_\w+)\(", sources)) == set()
