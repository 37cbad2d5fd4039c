"""ddp: data-parallel ranks that find each other through torchrun's variables."""

from __future__ import annotations

from typing import ClassVar

from smlaunch.contract.launch_spec import Arg
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
