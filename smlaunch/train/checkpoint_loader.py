"""Find the checkpoint that all ranks can load, and load it."""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from smlaunch.contract.checkpoint_layout import Manifest, manifest_name, step_directory
from smlaunch.train import rng, snapshot, tree_format
from smlaunch.train.checkpoint_components import LOOP_STATE, Component
from smlaunch.train.checkpoint_store import CheckpointStore, DamagedFileError
from smlaunch.train.rank_group import RankGroup


class LoadableCheckpoint(NamedTuple):
    """A checkpoint that is intact on every host."""

    manifest: Manifest
    documents: Dict[int, Mapping[str, Any]]
    """The shards this rank needs, by the ranks that wrote them."""
    rejections: List[str]
    """Newer checkpoints that could not be loaded, and why."""


def find_checkpoint(
    store: CheckpointStore, group: RankGroup, environ: Mapping[str, str] = os.environ
) -> Optional[LoadableCheckpoint]:
    """Return the newest committed checkpoint whose shards are intact on every host, with the shards' contents
    (documents) that this rank needs; None if there is none. Collective: all ranks get the same step.

    Ranks of one host read the same files, so each of them verifies only some of the shards; ``environ`` says
    which ranks these are.
    """
    rejections: List[str] = []  # why newer checkpoints were not chosen
    # A manifest lists one checkpoint's shards; the newest comes first.
    for manifest in _find_manifests_known_to_all_ranks(store, group):
        problem: Optional[str] = None
        try:
            # The ranks whose shards this one has to read.
            needed_ranks = _verify_shards_on_host(store, manifest, environ)
        except (DamagedFileError, LookupError, OSError, tree_format.InvalidTreeError) as error:
            problem = str(error)
        # One rank's problem makes all ranks try the next older checkpoint.
        problems = [rank_problem for rank_problem in group.gather(problem) if rank_problem is not None]
        if not problems:
            documents = {rank: _read_verified_shard(store, manifest, rank) for rank in needed_ranks}
            return LoadableCheckpoint(manifest=manifest, documents=documents, rejections=rejections)
        rejections.append("step {}: {}".format(manifest.step, problems[0]))
    return None


def _find_manifests_known_to_all_ranks(store: CheckpointStore, group: RankGroup) -> List[Manifest]:
    """Return the manifests of the committed checkpoints that every rank finds, newest step first. A manifest
    lists a checkpoint's shards with their hashes. Collective."""
    # A step that was saved again after a restart has another manifest, so another manifest name.
    local_manifests: Dict[Tuple[int, str], Manifest] = {
        (manifest.step, manifest_name(manifest.to_bytes())): manifest
        for manifest in store.committed_manifests()
    }
    common_manifests = set(local_manifests)
    for manifests_of_rank in group.gather(sorted(local_manifests)):
        common_manifests &= {(int(step), str(name)) for step, name in manifests_of_rank}
    return [local_manifests[step_and_name] for step_and_name in sorted(common_manifests, reverse=True)]


def restore_components(checkpoint: LoadableCheckpoint, components: Sequence[Component], rank: int) -> Any:
    """Restore every component (model, optimizer, ...) of this rank from the checkpoint; return the training
    loop's own state, as it was saved.

    Shared state is equal on all ranks and was saved once; own state was saved by each rank. A document is the
    content of one rank's shard. A rank that the checkpoint does not have gets the own state of another one.
    Raises ValueError naming the component whose state is missing, does not fit, or has no component.
    """
    manifest = checkpoint.manifest
    # With more ranks now than saved it, several get the same rank's own state.
    own_states = snapshot.decode_own_states(checkpoint.documents[rank % manifest.world_size])
    # The components' present state: sharded tensors in it are filled in place; the others are created anew.
    shared_states = snapshot.assemble_shared_states(
        checkpoint.documents, {component.name: component.shared_state() for component in components}
    )
    saved_names = {*shared_states, *own_states} - {LOOP_STATE}  # the loop's state has no component
    for component in components:
        if component.name not in saved_names:
            raise ValueError(
                "{}: the checkpoint of step {} has no such state, only: {}".format(
                    component.name, manifest.step, ", ".join(sorted(saved_names))
                )
            )
        try:
            component.restore(shared_states.get(component.name), own_states.get(component.name))
        except Exception as error:  # any: the script's own objects raise what they like
            raise ValueError(
                "{}: the state of step {} does not fit: {}".format(component.name, manifest.step, error)
            ) from error
    names_without_component = saved_names - {component.name for component in components}
    if names_without_component:
        raise ValueError(
            "step {} also has the state of {}; pass it to the Checkpointer, or start a new run".format(
                manifest.step, ", ".join(sorted(names_without_component))
            )
        )
    if rank >= manifest.world_size:
        # This rank got another one's generators; it must not draw the same numbers.
        rng.reseed_generators("rank", rank, manifest.step)
    return own_states[LOOP_STATE]


def _verify_shards_on_host(
    store: CheckpointStore, manifest: Manifest, environ: Mapping[str, str]
) -> List[int]:
    """Verify the shards of a checkpoint that the ranks of this host need, divided among them; return the
    ranks that saved the shards that this one needs. Raises DamagedFileError for a damaged shard."""
    # Every rank needs shard 0, the only one with the shared state's structure, and verifies it by reading.
    first_shard = store.open_shard(manifest, rank=0).read_tree()
    if manifest.world_size == store.world_size and not first_shard["all_shards_needed"]:
        store.verify(manifest, [store.rank])
        return sorted({0, store.rank})
    # All ranks of this host need the same shards: each verifies its share of the others.
    local_world_size, local_rank = int(environ.get("LOCAL_WORLD_SIZE", 1)), int(environ.get("LOCAL_RANK", 0))
    other_shards = range(1, manifest.world_size)
    store.verify(manifest, [rank for rank in other_shards if rank % local_world_size == local_rank])
    return list(range(manifest.world_size))


def _read_verified_shard(store: CheckpointStore, manifest: Manifest, rank: int) -> Mapping[str, Any]:
    """Return a shard that has been verified on this host."""
    shard = next(shard for shard in manifest.shards if shard.rank == rank)
    path = os.path.join(store.directory, step_directory(manifest.step), shard.name)
    document: Mapping[str, Any] = tree_format.decode_tree(tree_format.map_file(path))
    return document
