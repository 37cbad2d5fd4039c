"""smp: torchrun's ranks under SageMaker's model-parallel library, version 2, which is frozen.

The script calls ``torch.sagemaker.init()``, which reads the hyperparameter ``mp_parameters``: the job's
options, as JSON. Images of it are AWS's own (``catalog.images``, family smp): it cannot be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import TORCHRUN
from smlaunch.strategies.base import Setting
from smlaunch.strategies.ddp import DDP
from smlaunch.strategies.legacy import WHY_DDP, instance_problem, repository_and_tag

INSTANCE_TYPES = (
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.48xlarge",
    "ml.p5e.48xlarge",
    "ml.p5en.48xlarge",
)
_LATER = INSTANCE_TYPES[3:]
"""Known from memory alone."""

REPOSITORY = "smdistributed-modelparallel"

_FLAGS = {
    "sm_activation_offloading": "true moves activations to the CPU between forward and backward pass",
    "fsdp_cache_flush_warnings": "true warns when PyTorch's memory manager empties its cache",
    "allow_empty_shards": "true lets tensors be cut that are not divisible",
}
_DEGREES = {
    "hybrid_shard_degree": "ranks that the model is cut among",
    "tensor_parallel_degree": "ranks that each tensor is cut among",
    "context_parallel_degree": "ranks that a sequence is cut among, at most hybrid_shard_degree",
    "expert_parallel_degree": "ranks that a layer's experts are dealt out to",
}
_NUMBERS = {
    "activation_loading_horizon": "layers at most whose inputs are in GPU memory at once",
    "random_seed": "of random operations under tensor and expert parallelism",
}


class SMP(DDP):
    name = "smp"
    summary = "starts every rank by torchrun, for a script that shards its model by SageMaker's SMP v2"
    family = "smp"
    libraries = ("torch.sagemaker",)
    other_libraries = ()
    launcher = TORCHRUN
    options: ClassVar[Mapping[str, str]] = {**_DEGREES, **_FLAGS, **_NUMBERS}
    flags = tuple(_FLAGS)

    def check(self, setting: Setting) -> list[Problem]:
        found = [*super().check(setting), *instance_problem(setting, self.name, INSTANCE_TYPES)]
        repository = repository_and_tag(setting.image)[0]
        if repository not in ("", REPOSITORY):
            told = f"{repository} has no SMP; name none, so that AWS's image {REPOSITORY} is taken"
            found.append(Problem("image", told))
        if "mp_parameters" in setting.hyperparameters:
            told = "it is made from the job's options; write its keys there"
            found.append(Problem("hyperparameters.mp_parameters", told))
        return [*found, *_faults(setting)]

    def advice(self, setting: Setting) -> list[str]:
        told = [f"smp is frozen: its last image is of PyTorch 2.5.1. {WHY_DDP}, and FSDP scripts run by it"]
        if setting.instance_type in _LATER:
            told.append(f"That SMP runs on {setting.instance_type} is unconfirmed; P4d, P4de and P5 are sure")
        return told

    def unimported(self, setting: Setting) -> str:
        return (
            "does not import torch.sagemaker: unless a module of its own calls its init(), mp_parameters "
            "have no effect"
        )

    def hyperparameters(self, setting: Setting) -> Mapping[str, Any]:
        given = {name: setting.options[name] for name in self.options if name in setting.options}
        return {"mp_parameters": given}


def _faults(setting: Setting) -> list[Problem]:
    """Of the options' values."""
    options = setting.options
    found: list[Problem] = []
    for name in (*_DEGREES, *_NUMBERS):
        least = 1 if name in _DEGREES else 0
        if name in options and not _is_number(options[name], least):
            told = f"a whole number of at least {least} is needed, not {options[name]!r}"
            found.append(Problem(f"options.{name}", told))
    if found:
        return found
    ranks = setting.hosts * setting.per_host if isinstance(setting.per_host, int) else None
    for name in _DEGREES:
        if ranks is not None and options.get(name, 1) > ranks:
            told = f"{options[name]} is more than the {ranks} ranks there are; lower it, or take more hosts"
            found.append(Problem(f"options.{name}", told))
    context, shards = options.get("context_parallel_degree"), options.get("hybrid_shard_degree")
    if context is not None and shards is not None and context > shards:
        told = f"{context} is more than hybrid_shard_degree, {shards}; lower it"
        found.append(Problem("options.context_parallel_degree", told))
    return found


def _is_number(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
