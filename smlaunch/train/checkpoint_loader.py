"""Find the checkpoint that all ranks can load, and load it."""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from smlaunch.contract.checkpoint import Manifest, manifest_name, step_directory
from smlaunch.train import rng, snapshot, tree_format
from smlaunch.train.checkpoint_store import CheckpointStore, DamagedFileError
from smlaunch.train.components import LOOP_STATE, Component
from smlaunch.train.rank_group import RankGroup


class LoadableCheckpoint(NamedTuple):
    """A checkpoint that is intact on every host."""

    manifest: Manifest
    documents: Dict[int, Mapping[str, Any]]
    """The shards this rank needs, by the ranks that wrote them."""
    rejected: List[str]
    """Newer checkpoints that could not be loaded, and why."""


def find_checkpoint(
    store: CheckpointStore, group: RankGroup, environ: Mapping[str, str] = os.environ
) -> Optional[LoadableCheckpoint]:
    """Return the newest checkpoint that is intact on every host; None if there is none. Collective.

    Ranks of one host read the same files: each verifies a share of them.
    """
    local_manifests = {
        (manifest.step, manifest_name(manifest.to_bytes())): manifest
        for manifest in store.committed_manifests()
    }
    common_keys = set(local_manifests).intersection(
        *({(int(step), str(name)) for step, name in row} for row in group.gather(sorted(local_manifests)))
    )
    rejected: List[str] = []
    for key in sorted(common_keys, reverse=True):
        problem = None
        documents: Dict[int, Mapping[str, Any]] = {}
        try:
            needed_ranks = _verify_on_host(store, local_manifests[key], environ)
        except (DamagedFileError, LookupError, OSError, tree_format.InvalidTreeError) as error:
            problem = str(error)
        problems = [row for row in group.gather(problem) if row is not None]
        if not problems:
            documents = {rank: _read_document(store, local_manifests[key], rank) for rank in needed_ranks}
            return LoadableCheckpoint(local_manifests[key], documents, rejected)
        rejected.append("step {}: {}".format(key[0], problems[0]))
    return None


def restore_components(
    loadable: LoadableCheckpoint, components: Sequence[Component], rank: int, world_size: int
) -> Any:
    """Restore every component; return the saved LOOP_STATE. Raises ValueError naming the component whose
    state does not fit."""
    own_document = loadable.documents[rank % loadable.manifest.world_size]
    own_states = snapshot.own_state(own_document)
    # Only sharded state is filled in place; of other state only the names are used.
    shared_states = snapshot.assemble_shared(
        loadable.documents, {component.name: component.shared_state() for component in components}
    )
    for component in components:
        if component.name not in shared_states and component.name not in own_states:
            raise ValueError(
                "{}: the checkpoint of step {} has no such state, only: {}".format(
                    component.name,
                    loadable.manifest.step,
                    ", ".join(sorted({*shared_states, *own_states} - {LOOP_STATE})),
                )
            )
        try:
            component.restore(shared_states.get(component.name), own_states.get(component.name))
        except Exception as error:
            raise ValueError(
                "{}: the state of step {} does not fit: {}".format(
                    component.name, loadable.manifest.step, error
                )
            ) from error
    unused = {*shared_states, *own_states} - {component.name for component in components} - {LOOP_STATE}
    if unused:
        raise ValueError(
            "step {} also has the state of {}; pass it to the Checkpointer, or start a new run".format(
                loadable.manifest.step, ", ".join(sorted(unused))
            )
        )
    if rank >= loadable.manifest.world_size:
        rng.reseed("rank", rank, loadable.manifest.step)
    return own_states[LOOP_STATE]


def _verify_on_host(store: CheckpointStore, manifest: Manifest, environ: Mapping[str, str]) -> List[int]:
    """Verify the checkpoint together with the other ranks of this host; return the ranks whose shards this
    one needs."""
    leader = store.open_shard(manifest, 0).read_tree()
    if manifest.world_size == store.world_size and not leader["all_shards_needed"]:
        store.verify(manifest, [store.rank])
        return sorted({0, store.rank})
    all_ranks = range(manifest.world_size)
    local_world_size, local_rank = int(environ.get("LOCAL_WORLD_SIZE", 1)), int(environ.get("LOCAL_RANK", 0))
    store.verify(manifest, [rank for rank in all_ranks if rank and rank % local_world_size == local_rank])
    return list(all_ranks)


def _read_document(store: CheckpointStore, manifest: Manifest, rank: int) -> Mapping[str, Any]:
    """Return a shard that has been verified on this host."""
    shard = next(shard for shard in manifest.shards if shard.rank == rank)
    path = os.path.join(store.directory, step_directory(manifest.step), shard.name)
    document: Mapping[str, Any] = tree_format.decode(tree_format.map_file(path))
    return document
