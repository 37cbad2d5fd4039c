"""No file and no package of smlaunch imports itself through others."""

from __future__ import annotations

import pytest

from tools import import_cycles


@pytest.fixture(scope="module")
def modules() -> dict[str, set[str]]:
    return import_cycles.module_graph(import_cycles.ROOT / "smlaunch")


def test_no_files_import_each_other(modules: dict[str, set[str]]) -> None:
    assert import_cycles.find_cycles(modules) == []


def test_no_packages_import_each_other(modules: dict[str, set[str]]) -> None:
    assert import_cycles.find_cycles(import_cycles.package_graph(modules)) == []


def test_a_cycle_is_found_with_all_its_members() -> None:
    graph: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert import_cycles.find_cycles(graph) == [["a", "b", "c"]]
