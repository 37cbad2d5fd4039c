"""ddp: data-parallel ranks that find each other through torchrun's variables."""

from __future__ import annotations

from typing import ClassVar

from smlaunch.strategies.base import LaunchContext, Strategy, TrainiumSupport


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
    # These also join ranks by RANK, WORLD_SIZE and MASTER_ADDR from the environment.
    other_libraries: ClassVar[tuple[str, ...]] = ("accelerate", "transformers")
    # Twice gloo's own timeout of half an hour (NCCL: ten minutes): a longer wait never ends. Not for custom,
    # whose hosts may be servers that are idle legitimately.
    hang_seconds = 3600

    def unimported_warning(self, context: LaunchContext) -> str:
        if context.is_single_process:
            return ""
        return (
            "imports nothing that joins ranks (torch.distributed, accelerate, lightning, transformers): "
            "unless one of its modules does, every rank trains separately on the same data"
        )
