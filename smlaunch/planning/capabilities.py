"""How many accelerators a script can use, and what it still lacks for more than one. Pure.

The list of what a script for one accelerator has to change is the one that AWS gives for data parallelism:
batches of data for each rank, an optimizer that handles gradients of all ranks, one rank that writes the
checkpoint. What a trainer library does by itself is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from smlaunch.planning.surroundings import ScriptFacts, Sign
from smlaunch.strategies.base import imported

Use = Literal["one", "instance", "several"]
"""One accelerator; those of one instance, by one process; those of several hosts."""

SHARDING = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp", "deepspeed", "torch.sagemaker")
"""Libraries that spread one model over accelerators."""

ACCELERATED = (
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "deepspeed",
)


@dataclass(frozen=True)
class Capability:
    """``use``: what the script can use; ``missing``: what it takes for more ranks and was not found, each a
    clause; ``shards``: the model is spread over the ranks; ``accelerated``: it imports a library that uses
    accelerators. ``seen``: nobody looked into the script where it is False."""

    use: Use
    missing: tuple[str, ...]
    shards: bool
    accelerated: bool
    seen: bool


def capability(script: ScriptFacts, entry: str) -> Capability:
    signs = script.signs or {}
    imports = script.imports | script.reached
    trainer = "trainer" in signs or (
        imported(imports, ("lightning", "pytorch_lightning", "deepspeed")) is not None
    )
    joined = "process-group" in signs or imported(imports, ("torch.distributed",)) is not None
    use: Use = "one"
    if trainer or joined:
        use = "several"
    elif "one-process" in signs:
        use = "instance"
    return Capability(
        use=use,
        missing=() if trainer or script.signs is None else tuple(_missing(signs, entry, imports)),
        shards=imported(imports, SHARDING) is not None,
        accelerated=imported(imports, ACCELERATED) is not None,
        seen=script.signs is not None,
    )


def lacks_signs(script: ScriptFacts) -> bool:
    """Whether a look into the modules that the script imports may find what it lacks itself."""
    return bool(capability(script, "").missing) and imported(script.imports, ACCELERATED) is not None


def _missing(signs: Mapping[str, Sign], entry: str, imports: frozenset[str]) -> Iterator[str]:
    """In the order in which a training comes to them."""

    def at(name: str) -> str:
        sign = signs.get(name)
        return f" ({sign.file or entry}, line {sign.line})" if sign else ""

    if "process-group" not in signs:
        yield "a process group that joins the ranks (torch.distributed.init_process_group)"
    if "device" not in signs and "one-device" in signs:
        yield f'the device of LOCAL_RANK instead of the same "cuda" for every rank{at("one-device")}'
    if "backward" in signs and "gradients" not in signs:
        yield (
            "gradients that are averaged over the ranks, such as DistributedDataParallel around the "
            f"model{at('backward')}"
        )
    sampled = signs.keys() & {"sampler", "order", "loader-with-sampler"}
    if "loader" in signs and not sampled:
        yield f"a sampler that gives every rank its own batches, such as DistributedSampler{at('loader')}"
    if (
        signs.keys() >= {"sampler", "loader"}
        and "set-epoch" not in signs
        and "unshuffled" not in signs
        and imported(imports, ("torch.utils.data.distributed", "torch.utils.data.DistributedSampler"))
    ):
        yield f"sampler.set_epoch(epoch), without which every epoch has the same order{at('sampler')}"
    if "save" in signs and "rank" not in signs and "shared-save" not in signs:
        yield f"rank 0 alone writing what is saved{at('save')}"
