"""How many accelerators a script can use, and what it lacks for more than one. Pure.

The checks are AWS's list of changes for data parallelism: batches of data for each rank, an optimizer that
handles gradients of all ranks, one rank that writes the checkpoint. What a trainer library does itself is
not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from smlaunch.facts.discovered_facts import FeatureLocation, ScriptFacts
from smlaunch.strategies.base import find_imported_library

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


class ScriptCapability(NamedTuple):
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
    """Return how many accelerators the script can use and what it lacks for more, by its imports and its
    features: calls that static analysis found, such as ``init_process_group``, by the feature's name; None if
    the script could not be analyzed. ``entry``: the script's path."""
    was_analyzed = script.features is not None
    features = script.features or {}
    imports = script.imports | script.module_imports
    # A trainer is a library, or the Trainer class of one, that does by itself what several ranks need.
    # find_imported_library returns the first of the libraries that is imported, or None.
    trainer_library = find_imported_library(imports, ("lightning", "pytorch_lightning", "deepspeed"))
    uses_trainer = "trainer" in features or trainer_library is not None
    joins_ranks = (
        "process-group" in features or find_imported_library(imports, ("torch.distributed",)) is not None
    )
    accelerator_use: AcceleratorUse
    if uses_trainer or joins_ranks:
        accelerator_use = "several"
    elif "one-process" in features:
        # One process that uses all accelerators of the instance, such as by DataParallel.
        accelerator_use = "instance"
    else:
        accelerator_use = "one"
    missing_steps: tuple[str, ...] = ()
    if was_analyzed and not uses_trainer:
        missing_steps = tuple(_missing_steps(features, entry, imports))
    return ScriptCapability(
        accelerator_use=accelerator_use,
        missing_steps=missing_steps,
        shards_model=(
            "sharded-model" in features or find_imported_library(imports, SHARDING_LIBRARIES) is not None
        ),
        uses_accelerators=find_imported_library(imports, ACCELERATOR_LIBRARIES) is not None,
        was_analyzed=was_analyzed,
    )


def needs_module_scan(script: ScriptFacts) -> bool:
    """Whether the modules that the script imports may contain what it lacks itself."""
    return (
        bool(script_capability(script, "").missing_steps)
        and find_imported_library(script.imports, ACCELERATOR_LIBRARIES) is not None
    )


def _missing_steps(
    features: Mapping[str, FeatureLocation], entry: str, imports: frozenset[str]
) -> Iterator[str]:
    """Yield what the script lacks for several ranks, as clauses, in the order in which a training uses it.
    ``features``: calls that static analysis found, by the feature's name, with the first place of each."""

    def place_of(feature: str) -> str:
        """The feature's first place, for a message."""
        location = features.get(feature)
        return f" ({location.file or entry}, line {location.line})" if location else ""

    if "process-group" not in features:
        yield "a process group that joins the ranks (torch.distributed.init_process_group)"
    # "one-device": the script names one device, such as "cuda", and not that of its rank ("device").
    if "one-device" in features and "device" not in features:
        yield f'the device of LOCAL_RANK instead of the same "cuda" for every rank{place_of("one-device")}'
    # "gradients": something averages them over the ranks.
    if "backward" in features and "gradients" not in features:
        yield (
            "gradients that are averaged over the ranks, such as DistributedDataParallel around the "
            f"model{place_of('backward')}"
        )
    # Each of these may give every rank its own data.
    has_order_of_its_own = not features.keys().isdisjoint({"sampler", "order", "loader-with-sampler"})
    if "loader" in features and not has_order_of_its_own:
        yield (
            f"a sampler that gives every rank its own batches, such as DistributedSampler{place_of('loader')}"
        )
    # It shuffles by PyTorch's DistributedSampler, whose order depends on the epoch that it is told.
    if _must_set_epoch(features, imports) and "set-epoch" not in features:
        yield f"sampler.set_epoch(epoch), without which every epoch has the same order{place_of('sampler')}"
    # "rank": the script asks for its rank; "shared-save": all ranks save together.
    if "save" in features and "rank" not in features and "shared-save" not in features:
        yield f"only rank 0 writing what is saved{place_of('save')}"


def _must_set_epoch(features: Mapping[str, FeatureLocation], imports: frozenset[str]) -> bool:
    """Whether the script shuffles its data with PyTorch's DistributedSampler, whose order depends on the
    epoch that it is told."""
    distributed_sampler = find_imported_library(
        imports, ("torch.utils.data.distributed", "torch.utils.data.DistributedSampler")
    )
    uses_sampler = features.keys() >= {"sampler", "loader"} and "unshuffled" not in features
    return uses_sampler and distributed_sampler is not None
