"""Pages for users: their links lead somewhere, they name no tests, and the README is a page."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT
from tests.docs.commands import PAGES
from tests.tables import table

FOR_CONTRIBUTORS = {"CONTRIBUTING.md", "formats.md", "extending.md", "architecture.md"}
_LINK = re.compile(r"\]\((?!https?://|#)([\w./-]+)[)#]")


@table("page", PAGES)
def test_links_lead_to_files(page: Path) -> None:
    missing = [
        link for link in _LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()
    ]
    assert not missing, f"{page.name}: {missing}"


@table("page", [page for page in PAGES if page.name not in FOR_CONTRIBUTORS])
def test_a_page_for_users_names_no_tests(page: Path) -> None:
    names = re.findall(r"`(?:tests/[^`]*|test_\w+[^`]*)`", page.read_text(encoding="utf-8"))
    assert not names, f"{page.name}: {names}"


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - set(_LINK.findall(index)) == set()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
