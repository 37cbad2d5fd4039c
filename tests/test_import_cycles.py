"""The tool by which `make lint` shows that no file and no package imports itself through others."""

from __future__ import annotations

from tools import import_cycles


def test_a_cycle_is_found_with_all_its_members() -> None:
    graph: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert import_cycles.find_cycles(graph) == [["a", "b", "c"]]
