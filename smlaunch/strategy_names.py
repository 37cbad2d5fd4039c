"""The one list of strategies: what is built in, and what other packages register.

A package adds one by an entry point of the group ``smlaunch.strategies``::

    [project.entry-points."smlaunch.strategies"]
    ring = "my_package.ring:Ring"

Below everything that speaks of strategies, so that a job can check a name without loading one.
"""

from __future__ import annotations

from functools import cache

GROUP = "smlaunch.strategies"

BUILT_IN = {
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
"""Name -> module and class."""

GUESSED = (
    *("spark", "ray", "horovod", "mpi", "deepspeed", "smp", "smddp", "neuron"),
    *("tensorflow", "huggingface", "ddp", "xgboost", "sklearn"),
)
"""Those that a script's imports speak for (``Strategy.libraries``); the first that is spoken for is taken.
What starts the others' processes comes before what runs in them: training with DeepSpeed imports
torch.distributed as well, and a Ray driver trains with anything. A strategy of another package is never
guessed, the job names it: so the order is a table of ours, by which a plan loads none after the one that
fits."""


def known() -> list[str]:
    """All names, sorted."""
    return sorted({**_registered(), **BUILT_IN})


def find(name: str) -> str | None:
    """``module:Class`` of a strategy, None where there is none of that name. A built-in name cannot be taken
    over by another package: a job file means the same everywhere."""
    return BUILT_IN.get(name) or _registered().get(name)


@cache
def _registered() -> dict[str, str]:
    """Reads the metadata of what is installed: 20 ms, only where the name is none of ours."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}
