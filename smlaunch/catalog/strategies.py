"""The names of all strategies.

This module imports no strategy, so that a job can check a name without loading one.
"""

from __future__ import annotations

from typing import Any

from smlaunch.catalog.registry import Registry

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

STRATEGIES = Registry[type[Any]](
    "smlaunch.strategies", "strategy", "smlaunch.strategies.base:Strategy", BUILT_IN_STRATEGIES, "strategy"
)
"""Their classes by name. No package can override a built-in name: a job file means the same everywhere."""


def known_strategies() -> list[str]:
    """All names, sorted."""
    return sorted(STRATEGIES.names())
