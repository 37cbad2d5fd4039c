"""neuron: torchrun's ranks on Trainium, one per NeuronCore, joined by the backend ``xla``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from smlaunch.catalog.instances import InstanceType
from smlaunch.contract.launch_spec import TORCHRUN, Arg
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.ddp import DDP

COMPILER = "neuron_parallel_compile"
"""A program of the image: runs the given command, and compiles the graphs it traced, several at a time."""

_CORES_PER_LOGICAL_CORE = 2
"""Physical NeuronCores per logical one, Neuron's default on Trainium2 (from memory)."""


class Neuron(DDP):
    name = "neuron"
    summary = "starts a rank for every NeuronCore by torchrun, for a script that trains with torch-xla"
    image_family = "pytorch-neuronx"
    trainium_support = "only"
    script_joins_ranks = False
    libraries = ("torch_xla", "torch_neuronx", "neuronx_distributed", "optimum.neuron")
    unimported_fact = "does not import torch_xla"
    needs_library = True
    other_libraries = ()
    launcher = TORCHRUN
    options: ClassVar[Mapping[str, str]] = {
        "parallel_compile": f"true starts it under {COMPILER}: a run that only fills the compiler's cache"
    }

    boolean_options = ("parallel_compile",)

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        problems = super().find_problems(context)
        instance_spec = context.instance_spec
        if instance_spec is None:
            has_neuron_cores = context.instance_type.startswith("ml.trn")
        else:
            has_neuron_cores = instance_spec.is_neuron
        if not has_neuron_cores:
            message = f"{context.instance_type} has no NeuronCores; take a trn type, as ml.trn1.32xlarge"
            problems.append(Problem("compute.instance_type", f"{message}, or use ddp"))
        return problems

    def find_warnings(self, context: LaunchContext) -> list[str]:
        warnings = []
        if context.instance_spec is not None and context.instance_spec.accelerator == "AWS Trainium2":
            warnings.append(
                f"{context.instance_type} has {context.instance_spec.accelerators} physical NeuronCores, of "
                f"which Neuron's default makes {self.ranks_per_host(context.instance_spec)} logical ones "
                "(unconfirmed): state compute.processes_per_host if your image differs"
            )
        if context.target == "local":
            warnings.append("There are no NeuronCores here: this machine can show the command, but not train")
        return warnings

    def unimported_consequence(self, context: LaunchContext) -> str:
        return "the NeuronCores stay idle"

    def ranks_per_host(self, instance: InstanceType, threads_per_rank: int = 1) -> int:
        if instance.accelerator == "AWS Trainium2":
            return instance.accelerators // _CORES_PER_LOGICAL_CORE
        return super().ranks_per_host(instance, threads_per_rank)

    def launcher_options(self, context: LaunchContext) -> tuple[Arg, ...]:
        return (COMPILER,) if context.options.get("parallel_compile") is True else ()
