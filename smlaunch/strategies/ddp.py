"""ddp: data-parallel ranks that find each other through torchrun's variables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from smlaunch.contract.launch_spec import Arg
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy, TrainiumSupport, find_imported_library

_USE_CPU = "ACCELERATE_USE_CPU"


class DDP(Strategy):
    name = "ddp"
    summary = "starts every rank with RANK, WORLD_SIZE and MASTER_ADDR set as torchrun sets them"
    rendezvous = True
    frameworks: ClassVar[tuple[str, ...] | None] = ("PyTorch",)
    trainium_support: ClassVar[TrainiumSupport] = "no"
    is_multi_host = True
    script_joins_ranks = True
    python_only = True
    libraries: ClassVar[tuple[str, ...]] = ("torch.distributed", "lightning", "pytorch_lightning")
    unimported_fact = (
        "imports nothing that joins ranks (torch.distributed, accelerate, lightning, transformers)"
    )
    # These also join ranks by RANK, WORLD_SIZE and MASTER_ADDR from the environment.
    other_libraries: ClassVar[tuple[str, ...]] = ("accelerate", "transformers")
    # Twice gloo's own timeout of half an hour (NCCL: ten minutes): a longer wait never ends. Not for custom,
    # whose hosts may be servers that are idle legitimately.
    hang_seconds = 3600

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        """Return what is wrong with the degrees by which a script of Megatron's divides its ranks."""
        return list(_find_degree_problems(context))

    def unimported_consequence(self, context: LaunchContext) -> str:
        return "" if context.is_single_process else "every rank trains separately on the same data"

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        return ((_USE_CPU, "true"),) if _must_state_cpu(context) else ()

    def find_reasons(self, context: LaunchContext) -> list[tuple[str, str]]:
        if not _must_state_cpu(context) or _USE_CPU in context.environment_names:
            return []
        sentence = (
            "transformers' Trainer and accelerate join ranks without accelerators only where they are told "
            f"to use the CPU: ranks get {_USE_CPU}=true."
        )
        return [("huggingface.cpu", sentence)]


def _must_state_cpu(context: LaunchContext) -> bool:
    """Whether ranks of accelerate, which transformers' Trainer uses, would train separately because they find
    no accelerator. Source: accelerate 1.15, state.py, PartialState._prepare_backend (``and cpu``), and
    AcceleratorState.__init__; transformers 5.23, training_args.py, _setup_devices."""
    uses_accelerate = find_imported_library(context.imports, ("accelerate", "transformers")) is not None
    return uses_accelerate and not context.has_accelerators and not context.is_single_process


_DEGREES = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
"""Options of Megatron's scripts: ranks that hold one model together."""


def _find_degree_problems(context: LaunchContext) -> Iterator[Problem]:
    """Yield a problem if the ranks cannot be divided by the product of the stated degrees. Source: Megatron
    Core, parallel_state.py ("world_size is not divisible by"), NVIDIA/Megatron-LM pull request 5768."""
    uses_megatron = find_imported_library(context.imports, ("megatron", "nemo")) is not None
    if not uses_megatron or not isinstance(context.processes_per_host, int):
        return
    stated = [degree for name in _DEGREES if (degree := _stated_degree(context, name)) is not None]
    group_size = math.prod(degree for _, degree in stated)
    rank_count = context.host_count * context.processes_per_host
    if group_size > 0 and rank_count % group_size:
        product = " x ".join(str(degree) for _, degree in stated)
        ranks_text = f"{product} = {group_size} ranks" if len(stated) > 1 else f"{group_size} ranks"
        yield Problem(
            stated[-1][0],
            f"{rank_count} ranks cannot be divided into groups of {ranks_text}, which hold one model; "
            "change the degrees, or the number of ranks",
        )


def _stated_degree(context: LaunchContext, option: str) -> tuple[str, int] | None:
    """Return the field that states an option, and its whole number; None if none does."""
    for name in (option, option.replace("-", "_")):
        text = str(context.hyperparameters.get(name, ""))
        if text.isdecimal():
            return f"hyperparameters.{name}", int(text)
        for index, argument in enumerate(context.args):
            stated_name, equals, value = argument.partition("=")
            text = value if equals else "".join(context.args[index + 1 : index + 2])
            if stated_name == f"--{name}" and text.isdecimal():
                return f"args[{index}]", int(text)
    return None
