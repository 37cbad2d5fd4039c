"""Detect the strategy that a script is written for by the libraries it imports. Pure.

Each strategy names its libraries (``Strategy.libraries``); DETECTION_ORDER decides between several.
"""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.catalog.strategies import DETECTION_ORDER
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import find_imported_library


class DetectedStrategy(NamedTuple):
    """A strategy and the imported library that indicates it."""

    strategy: str
    library: str

    @property
    def rule(self) -> str:
        return self.library.replace(".", "-")

    @property
    def joins_hosts(self) -> bool:
        return load_strategy(self.strategy).joins_hosts


def detect_strategy(imports: frozenset[str]) -> DetectedStrategy | None:
    """The first strategy in DETECTION_ORDER that one of the imports, dotted names, indicates."""
    for name in DETECTION_ORDER:
        strategy = load_strategy(name)
        library = find_imported_library(imports, strategy.libraries)
        if library is not None and find_imported_library(imports, strategy.excluded_libraries) is None:
            return DetectedStrategy(name, library)
    return None
