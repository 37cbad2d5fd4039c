"""Which strategy a script was written for, by the libraries it imports. Pure.

Each strategy names its own libraries (``Strategy.libraries``); ``strategy_names.GUESSED`` says in which order
they are asked.
"""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.strategies import load
from smlaunch.strategies.base import imported
from smlaunch.strategy_names import GUESSED


class Spoken(NamedTuple):
    """``library``, which the script imports, speaks for ``strategy``."""

    strategy: str
    library: str

    @property
    def rule(self) -> str:
        return self.library.replace(".", "-")

    @property
    def joins_hosts(self) -> bool:
        return load(self.strategy).joins_hosts


def spoken_for(imports: frozenset[str]) -> Spoken | None:
    """The first of GUESSED that one of ``imports``, dotted names, speaks for."""
    for name in GUESSED:
        strategy = load(name)
        library = imported(imports, strategy.libraries)
        if library is not None and imported(imports, strategy.never_with) is None:
            return Spoken(name, library)
    return None
