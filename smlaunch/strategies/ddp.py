"""ddp: data-parallel ranks that find each other through torchrun's variables."""

from __future__ import annotations

from typing import ClassVar

from smlaunch.strategies.base import OnTrainium, Setting, Strategy


class DDP(Strategy):
    name = "ddp"
    summary = "starts every rank with RANK, WORLD_SIZE and MASTER_ADDR set as torchrun sets them"
    rendezvous = True
    frameworks: ClassVar[tuple[str, ...] | None] = ("PyTorch",)
    trainium: ClassVar[OnTrainium] = "no"
    for_several_hosts = True
    joined_by_script = True
    python_only = True
    libraries: ClassVar[tuple[str, ...]] = ("torch.distributed", "lightning", "pytorch_lightning")
    # They join ranks by RANK, WORLD_SIZE and MASTER_ADDR from the environment too.
    other_libraries: ClassVar[tuple[str, ...]] = ("accelerate", "transformers")
    # Twice the half hour after which gloo itself gives up on a peer (NCCL: ten minutes): whoever waits longer
    # than that waits for nobody. Not for custom, whose hosts may serve others and rightly idle.
    hang = 3600

    def unimported(self, setting: Setting) -> str:
        if setting.alone:
            return ""
        return (
            "imports nothing that joins ranks (torch.distributed, accelerate, lightning, transformers): "
            "unless a module of its own does, every rank trains alone on the same data"
        )
