"""ddp: data-parallel ranks that find each other through torchrun's variables."""

from __future__ import annotations

from typing import ClassVar

from smlaunch.strategies.base import OnTrainium, Setting, Strategy

_READS_TORCHRUN = ("torch.distributed", "accelerate", "lightning", "pytorch_lightning", "transformers")
"""Libraries that join ranks by RANK, WORLD_SIZE and MASTER_ADDR from the environment."""


def joins_ranks(imports: frozenset[str]) -> str | None:
    """The first library among ``imports`` that joins ranks by torchrun's variables, or None."""
    for library in _READS_TORCHRUN:
        if any(name == library or name.startswith(library + ".") for name in imports):
            return library
    return None


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
    # Twice the half hour after which gloo itself gives up on a peer (NCCL: ten minutes): whoever waits longer
    # than that waits for nobody. Not for custom, whose hosts may serve others and rightly idle.
    hang = 3600

    def advice(self, setting: Setting) -> list[str]:
        if joins_ranks(setting.imports) or (setting.hosts == 1 and setting.per_host == 1):
            return []
        return [
            f"{setting.entry} imports nothing that joins ranks (torch.distributed, accelerate, lightning, "
            "transformers): unless a module of its own does, every rank trains alone on the same data"
        ]
