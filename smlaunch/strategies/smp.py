"""smp: torchrun's ranks under SageMaker's model-parallel library, version 2, which is frozen.

The script calls ``torch.sagemaker.init()``, which reads the hyperparameter ``mp_parameters``: the job's
options as JSON. Only AWS's own images contain it (``catalog.images``, family smp): it cannot be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from smlaunch.contract.launch_spec import TORCHRUN
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.ddp import DDP
from smlaunch.strategies.smdistributed import WHY_DDP, instance_type_problems, repository_and_tag

INSTANCE_TYPES = (
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.48xlarge",
    "ml.p5e.48xlarge",
    "ml.p5en.48xlarge",
)
_UNCONFIRMED_TYPES = INSTANCE_TYPES[3:]
"""From memory, unconfirmed."""

REPOSITORY = "smdistributed-modelparallel"

_FLAGS = {
    "sm_activation_offloading": "true moves activations to the CPU between forward and backward pass",
    "fsdp_cache_flush_warnings": "true warns when PyTorch's memory manager empties its cache",
    "allow_empty_shards": "true allows sharding of tensors that are not divisible",
}
_PARALLEL_DEGREES = {
    "hybrid_shard_degree": "ranks that the model is sharded over; 0 leaves that to PyTorch's FSDP",
    "tensor_parallel_degree": "ranks that each tensor is sharded over",
    "context_parallel_degree": "ranks that a sequence is sharded over, at most hybrid_shard_degree",
    "expert_parallel_degree": "ranks that a layer's experts are distributed to",
}
_OTHER_NUMBERS = {
    "activation_loading_horizon": "layers at most whose inputs are in GPU memory at once",
    "random_seed": "of random operations under tensor and expert parallelism",
}


class SMP(DDP):
    name = "smp"
    summary = "starts every rank by torchrun, for a script that shards its model by SageMaker's SMP v2"
    image_family = "smp"
    libraries = ("torch.sagemaker",)
    unimported_fact = "does not import torch.sagemaker"
    needs_library = True
    other_libraries = ()
    launcher = TORCHRUN
    options: ClassVar[Mapping[str, str]] = {**_PARALLEL_DEGREES, **_FLAGS, **_OTHER_NUMBERS}
    boolean_options = tuple(_FLAGS)

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        problems = [
            *super().find_problems(context),
            *instance_type_problems(context, self.name, INSTANCE_TYPES),
        ]
        repository = repository_and_tag(context.image)[0]
        if repository not in ("", REPOSITORY):
            message = f"{repository} has no SMP; name none, so that AWS's image {REPOSITORY} is taken"
            problems.append(Problem("image", message))
        if "mp_parameters" in context.hyperparameters:
            message = "it is derived from the job's options; set its keys there"
            problems.append(Problem("hyperparameters.mp_parameters", message))
        return [*problems, *_find_option_problems(context)]

    def find_warnings(self, context: LaunchContext) -> list[str]:
        warnings = [
            f"smp is frozen: its last image is of PyTorch 2.5.1. {WHY_DDP}, and FSDP scripts run by it"
        ]
        if context.instance_type in _UNCONFIRMED_TYPES:
            warnings.append(
                f"That SMP runs on {context.instance_type} is unconfirmed; P4d, P4de and P5 are sure"
            )
        return warnings

    def unimported_consequence(self, context: LaunchContext) -> str:
        return "mp_parameters have no effect"

    def hyperparameters(self, context: LaunchContext) -> Mapping[str, Any]:
        parameters = {name: context.options[name] for name in self.options if name in context.options}
        return {"mp_parameters": parameters}


def _find_option_problems(context: LaunchContext) -> list[Problem]:
    """Return what is wrong with the values of the job's options for SageMaker's model-parallel library. A
    parallel degree is the number of ranks over which something, such as each tensor, is distributed.
    """
    options = context.options
    problems: list[Problem] = []
    for name in (*_PARALLEL_DEGREES, *_OTHER_NUMBERS):
        # 0 for example for random_seed; hybrid_shard_degree 0 leaves sharding to PyTorch's FSDP.
        minimum = 1 if name in _PARALLEL_DEGREES and name != "hybrid_shard_degree" else 0
        if name in options and not _is_int_of_at_least(minimum, options[name]):
            message = f"a whole number of at least {minimum} is needed, not {options[name]!r}"
            problems.append(Problem(f"options.{name}", message))
    if problems:
        return problems  # the comparisons below need numbers
    world_size: int | None = None  # number of ranks; unknown where the processes per host are ``auto``
    if isinstance(context.processes_per_host, int):
        world_size = context.host_count * context.processes_per_host
    for name in _PARALLEL_DEGREES:
        if world_size is not None and options.get(name, 1) > world_size:
            message = (
                f"{options[name]} is more than the {world_size} ranks there are; lower it, or take more hosts"
            )
            problems.append(Problem(f"options.{name}", message))
        elif world_size is not None and options.get(name, 1) and world_size % options.get(name, 1):
            message = (
                f"{world_size} ranks cannot be divided into groups of {options[name]}; take a divisor of "
                f"{world_size}: {', '.join(map(str, _divisors(world_size)))}"
            )
            problems.append(Problem(f"options.{name}", message))
    context_degree, shard_degree = options.get("context_parallel_degree"), options.get("hybrid_shard_degree")
    if context_degree is not None and shard_degree and context_degree > shard_degree:
        message = f"{context_degree} is more than hybrid_shard_degree, {shard_degree}; lower it"
        problems.append(Problem("options.context_parallel_degree", message))
    return problems


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _is_int_of_at_least(minimum: int, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum
