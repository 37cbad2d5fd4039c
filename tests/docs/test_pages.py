"""Pages for users: their links lead somewhere, they name no tests, and the README is a page."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

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


def test_the_lines_for_lightgbm_name_each_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a region by the hosts' addresses, on this machine by an address that an interface is listed with."""
    page = (ROOT / "docs" / "isolation.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "machines" in block)
    for address_by_host, machines in (
        ({"algo-1": "127.85.30.1", "algo-2": "127.85.30.2"}, "127.0.0.1:12400,127.0.0.1:12401"),
        ({"algo-1": "10.0.0.7", "algo-2": "10.0.0.9"}, "10.0.0.7:12400,10.0.0.9:12401"),
    ):
        monkeypatch.setattr(socket, "gethostbyname", address_by_host.__getitem__)
        monkeypatch.setenv("SM_HOSTS", json.dumps(list(address_by_host)))
        for number, host in enumerate(address_by_host):
            monkeypatch.setenv("SM_CURRENT_HOST", host)
            names: dict[str, Any] = {}
            exec(block, names)
            assert names["params"]["machines"] == machines
            assert names["params"]["local_listen_port"] == 12400 + number
