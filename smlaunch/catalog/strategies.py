"""The registry of strategies: built-in ones, and those that other packages register.

A package registers one by an entry point of the group ``smlaunch.strategies``::

    [project.entry-points."smlaunch.strategies"]
    ring = "my_package.ring:Ring"

This module imports no strategy, so that a job can check a name without loading one.
"""

from __future__ import annotations

from functools import cache

ENTRY_POINT_GROUP = "smlaunch.strategies"

BUILT_IN_STRATEGIES = {
    "builtin": "smlaunch.strategies.builtin:Builtin",
    "custom": "smlaunch.strategies.custom:Custom",
    "ddp": "smlaunch.strategies.ddp:DDP",
    "deepspeed": "smlaunch.strategies.deepspeed:DeepSpeed",
    "horovod": "smlaunch.strategies.horovod:Horovod",
    "huggingface": "smlaunch.strategies.huggingface:HuggingFace",
    "mpi": "smlaunch.strategies.mpi:MPI",
    "neuron": "smlaunch.strategies.neuron:Neuron",
    "processing": "smlaunch.strategies.processing:Processing",
    "ray": "smlaunch.strategies.ray:Ray",
    "share-nothing": "smlaunch.strategies.share_nothing:ShareNothing",
    "sklearn": "smlaunch.strategies.sklearn:Sklearn",
    "smddp": "smlaunch.strategies.smddp:SMDDP",
    "smp": "smlaunch.strategies.smp:SMP",
    "spark": "smlaunch.strategies.spark:Spark",
    "tensorflow": "smlaunch.strategies.tensorflow:TensorFlow",
    "xgboost": "smlaunch.strategies.xgboost:XGBoost",
}
"""Module and class by name."""

DETECTION_ORDER = (
    *("spark", "ray", "horovod", "mpi", "deepspeed", "smp", "smddp", "neuron"),
    *("tensorflow", "huggingface", "ddp", "xgboost", "sklearn"),
)
"""Strategies detected by a script's imports (``Strategy.libraries``); the first match is taken. Those that
start processes for others come first: training with DeepSpeed imports torch.distributed too, and a Ray
driver may train with anything. Strategies of other packages are never detected, the job must name them: so
the order is a fixed table, and planning loads no strategy after the match."""


def known_strategies() -> list[str]:
    """All names, sorted."""
    return sorted({**_registered(), **BUILT_IN_STRATEGIES})


def find_strategy(name: str) -> str | None:
    """``module:Class`` of a strategy; None for an unknown name. Another package cannot override a built-in
    name: a job file means the same everywhere."""
    return BUILT_IN_STRATEGIES.get(name) or _registered().get(name)


@cache
def _registered() -> dict[str, str]:
    """Reads the metadata of installed packages: 20 ms, only needed for names that are not built in."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
