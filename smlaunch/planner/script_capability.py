"""How many accelerators a script can use, and what it lacks for more than one. Pure.

The checks are AWS's list of changes for data parallelism: batches of data for each rank, an optimizer that
handles gradients of all ranks, one rank that writes the checkpoint. What a trainer library does itself is
not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from smlaunch.planner.facts import FeatureLocation, ScriptFacts
from smlaunch.strategies.base import first_imported

AcceleratorUse = Literal["one", "instance", "several"]
"""One accelerator; those of one instance, by one process; those of several hosts."""

SHARDING_LIBRARIES = (
    "torch.distributed.fsdp",
    "torch.distributed._composable.fsdp",
    "deepspeed",
    "torch.sagemaker",
)
"""Libraries that shard one model over accelerators."""

ACCELERATOR_LIBRARIES = (
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
class ScriptCapability:
    """How a script can use accelerators."""

    accelerator_use: AcceleratorUse
    missing_steps: tuple[str, ...]
    """What the script lacks for more ranks, each a clause."""

    shards_model: bool
    """The model is sharded over the ranks."""

    uses_accelerators: bool
    """The script imports a library that uses accelerators."""

    was_analyzed: bool
    """False if the script could not be analyzed."""


def script_capability(script: ScriptFacts, entry: str) -> ScriptCapability:
    """How the script can use accelerators, by its imports and features."""
    features = script.features or {}
    imports = script.imports | script.module_imports
    uses_trainer = "trainer" in features or (
        first_imported(imports, ("lightning", "pytorch_lightning", "deepspeed")) is not None
    )
    joins_ranks = "process-group" in features or first_imported(imports, ("torch.distributed",)) is not None
    accelerator_use: AcceleratorUse = "one"
    if uses_trainer or joins_ranks:
        accelerator_use = "several"
    elif "one-process" in features:
        accelerator_use = "instance"
    return ScriptCapability(
        accelerator_use=accelerator_use,
        missing_steps=()
        if uses_trainer or script.features is None
        else tuple(_missing_steps(features, entry, imports)),
        shards_model=first_imported(imports, SHARDING_LIBRARIES) is not None,
        uses_accelerators=first_imported(imports, ACCELERATOR_LIBRARIES) is not None,
        was_analyzed=script.features is not None,
    )


def needs_module_scan(script: ScriptFacts) -> bool:
    """Whether the modules that the script imports may contain what it lacks itself."""
    return (
        bool(script_capability(script, "").missing_steps)
        and first_imported(script.imports, ACCELERATOR_LIBRARIES) is not None
    )


def _missing_steps(
    features: Mapping[str, FeatureLocation], entry: str, imports: frozenset[str]
) -> Iterator[str]:
    """What the script lacks for several ranks, in the order in which a training uses it."""

    def location_text(name: str) -> str:
        location = features.get(name)
        return f" ({location.file or entry}, line {location.line})" if location else ""

    if "process-group" not in features:
        yield "a process group that joins the ranks (torch.distributed.init_process_group)"
    if "device" not in features and "one-device" in features:
        yield (
            f'the device of LOCAL_RANK instead of the same "cuda" for every rank{location_text("one-device")}'
        )
    if "backward" in features and "gradients" not in features:
        yield (
            "gradients that are averaged over the ranks, such as DistributedDataParallel around the "
            f"model{location_text('backward')}"
        )
    sampling_features = features.keys() & {"sampler", "order", "loader-with-sampler"}
    if "loader" in features and not sampling_features:
        yield (
            "a sampler that gives every rank its own batches, such as "
            f"DistributedSampler{location_text('loader')}"
        )
    if (
        features.keys() >= {"sampler", "loader"}
        and "set-epoch" not in features
        and "unshuffled" not in features
        and first_imported(imports, ("torch.utils.data.distributed", "torch.utils.data.DistributedSampler"))
    ):
        yield (
            "sampler.set_epoch(epoch), without which every epoch has the same "
            f"order{location_text('sampler')}"
        )
    if "save" in features and "rank" not in features and "shared-save" not in features:
        yield f"only rank 0 writing what is saved{location_text('save')}"
