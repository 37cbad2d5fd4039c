"""Which strategy a script was written for, by the libraries it imports. Pure.

Each strategy names its own libraries (``Strategy.libraries``). A script may import several: training with
DeepSpeed imports torch.distributed as well, and a Ray driver trains with anything. So the order counts: what
starts the others' processes comes before what runs in them.
"""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.strategies import load
from smlaunch.strategy_names import BUILT_IN

ORDER = (
    *("spark", "ray", "horovod", "mpi", "deepspeed", "smp", "smddp", "neuron"),
    *("tensorflow", "huggingface", "ddp", "xgboost", "sklearn"),
)
"""Strategies that a library speaks for. One of another package is never guessed: the job names it."""

_NOT_IN_SKLEARN = ("torch", "tensorflow", "keras", "jax", "flax", "lightgbm", "catboost", "mxnet", "paddle")
"""Many scripts import scikit-learn for a metric; its image has none of these."""


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
    """The first of ORDER that one of ``imports``, dotted names, speaks for."""
    for name in ORDER:
        if name not in BUILT_IN or (name == "sklearn" and imported(imports, _NOT_IN_SKLEARN)):
            continue
        library = imported(imports, load(name).libraries)
        if library is not None:
            return Spoken(name, library)
    return None


def imported(imports: frozenset[str], libraries: tuple[str, ...]) -> str | None:
    """The first of ``libraries`` that one of ``imports`` is, or lies in."""
    for library in libraries:
        if any(name == library or name.startswith(library + ".") for name in imports):
            return library
    return None
