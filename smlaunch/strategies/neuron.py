"""neuron: torchrun's ranks on Trainium, one for each NeuronCore, joined by the backend ``xla``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from smlaunch.catalog.instances import InstanceType
from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import TORCHRUN, Word
from smlaunch.strategies.base import Setting
from smlaunch.strategies.ddp import DDP

COMPILER = "neuron_parallel_compile"
"""A program of the image: runs what it is given, and compiles the graphs it saw, several at a time."""

_LOGICAL = 2
"""Physical NeuronCores in a logical one, Neuron's default on Trainium2 (from memory)."""


class Neuron(DDP):
    name = "neuron"
    summary = "starts a rank for every NeuronCore by torchrun, for a script that trains with torch-xla"
    family = "pytorch-neuronx"
    trainium = "only"
    joined_by_script = False
    libraries = ("torch_xla", "torch_neuronx", "neuronx_distributed", "optimum.neuron")
    other_libraries = ()
    launcher = TORCHRUN
    options: ClassVar[Mapping[str, str]] = {
        "parallel_compile": f"true starts it under {COMPILER}: a run that only fills the compiler's cache"
    }

    flags = ("parallel_compile",)

    def check(self, setting: Setting) -> list[Problem]:
        found = super().check(setting)
        known = setting.instance
        if not (known.is_neuron if known is not None else setting.instance_type.startswith("ml.trn")):
            told = f"{setting.instance_type} has no NeuronCores; take a trn type, as ml.trn1.32xlarge"
            found.append(Problem("compute.instance_type", f"{told}, or use ddp"))
        return found

    def advice(self, setting: Setting) -> list[str]:
        told = []
        if setting.instance is not None and setting.instance.accelerator == "AWS Trainium2":
            told.append(
                f"{setting.instance_type} has {setting.instance.accelerators} physical NeuronCores, of which "
                f"Neuron's default makes {self.ranks_per_host(setting.instance)} logical ones (unconfirmed): "
                "say compute.processes_per_host where your image has it otherwise"
            )
        if setting.target == "local":
            told.append(
                "There are no NeuronCores here: this machine can show the launch line, not the training"
            )
        return told

    def unimported(self, setting: Setting) -> str:
        return (
            "does not import torch_xla: unless a module of its own does, and calls "
            'init_process_group("xla"), the NeuronCores stay idle'
        )

    def ranks_per_host(self, instance: InstanceType) -> int:
        if instance.accelerator == "AWS Trainium2":
            return instance.accelerators // _LOGICAL
        return instance.accelerators

    def launcher_options(self, setting: Setting) -> tuple[Word, ...]:
        return (COMPILER,) if setting.options.get("parallel_compile") is True else ()
