"""docs/strategies.md has every strategy with its options, and its entry points exist."""

from __future__ import annotations

import re

from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES
from smlaunch.strategies import load_strategy
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "strategies.md").read_text()


def rows(heading: str) -> dict[str, list[str]]:
    """Returns the cells of a table's rows by the strategy's name; several rows of one strategy follow each
    other."""
    rows_by_name: dict[str, list[str]] = {}
    for line in PAGE.partition(heading)[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = re.match(r"`([a-z-]+)`", cells[0])
        if line.startswith("|") and name:
            rows_by_name.setdefault(name[1], []).extend(cells[1:])
    return rows_by_name


def quoted_names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_every_strategy_stands_there_with_its_image_and_options() -> None:
    table = rows("# Strategies")
    assert table.keys() == BUILT_IN_STRATEGIES.keys()
    for name, (_, family, _, _, options) in table.items():
        strategy = load_strategy(name)
        assert family == (strategy.image_family or "the algorithm's own"), name
        assert quoted_names(options) == set(strategy.options), name


def test_what_was_run_is_in_the_repository() -> None:
    table = rows("## Tested configurations")
    assert table.keys() == BUILT_IN_STRATEGIES.keys()
    for name, cells in table.items():
        for script in quoted_names(cells[0]):
            assert (ROOT / "entrypoints" / script).is_file(), (name, script)
