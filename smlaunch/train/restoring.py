"""Which checkpoint all ranks can load, and loading it."""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from smlaunch.protocol.checkpoint import Manifest, manifest_name, step_directory
from smlaunch.train import parts, rng, snapshot
from smlaunch.train.components import RUN, Component
from smlaunch.train.group import Group
from smlaunch.train.store import Store, Torn


class Found(NamedTuple):
    """``documents``: the parts this rank needs, by the ranks that wrote them. ``passed``: newer checkpoints
    that could not be loaded, and why."""

    manifest: Manifest
    documents: Dict[int, Mapping[str, Any]]
    passed: List[str]


def find(store: Store, group: Group, environ: Mapping[str, str] = os.environ) -> Optional[Found]:
    """The newest checkpoint that is whole on every host; None where there is none. Collective.

    Ranks of one host see the same files: each verifies a share of them.
    """
    mine = {(manifest.step, manifest_name(manifest.to_bytes())): manifest for manifest in store.committed()}
    everywhere = set(mine).intersection(
        *({(int(step), str(name)) for step, name in row} for row in group.gather(sorted(mine)))
    )
    passed: List[str] = []
    for key in sorted(everywhere, reverse=True):
        problem = None
        documents: Dict[int, Mapping[str, Any]] = {}
        try:
            needed = _verified(store, mine[key], environ)
        except (Torn, LookupError, OSError, parts.NotAPart) as error:
            problem = str(error)
        problems = [row for row in group.gather(problem) if row is not None]
        if not problems:
            documents = {rank: _read(store, mine[key], rank) for rank in needed}
            return Found(mine[key], documents, passed)
        passed.append("step {}: {}".format(key[0], problems[0]))
    return None


def restore(found: Found, components: Sequence[Component], rank: int, world_size: int) -> Any:
    """Gives every component its state; returns what was kept under RUN. ValueError and whatever a
    component raises for a state that does not fit, with the component's name."""
    mine = found.documents[rank % found.manifest.world_size]
    own = snapshot.own(mine)
    # Only sharded state is filled in place; of all other only the names count.
    shared = snapshot.assemble(found.documents, {c.name: c.shared() for c in components})
    for component in components:
        if component.name not in shared and component.name not in own:
            raise ValueError(
                "{}: the checkpoint of step {} has no such state; it was made with {}".format(
                    component.name, found.manifest.step, ", ".join(sorted({*shared, *own} - {RUN}))
                )
            )
        try:
            component.restore(shared.get(component.name), own.get(component.name))
        except Exception as error:
            raise ValueError(
                "{}: the state of step {} does not fit: {}".format(component.name, found.manifest.step, error)
            ) from error
    unused = {*shared, *own} - {component.name for component in components} - {RUN}
    if unused:
        raise ValueError(
            "step {} holds the state of {} too; hand it to the Checkpointer, or begin a new run".format(
                found.manifest.step, ", ".join(sorted(unused))
            )
        )
    if rank >= found.manifest.world_size:
        rng.reseed("rank", rank, found.manifest.step)
    return own[RUN]


def _verified(store: Store, manifest: Manifest, environ: Mapping[str, str]) -> List[int]:
    """The ranks whose parts this one needs, after this host has verified them together."""
    leader = store.open(manifest, 0).tree()
    if manifest.world_size == store.world_size and not leader["spread"]:
        store.verify(manifest, [store.rank])
        return sorted({0, store.rank})
    every = range(manifest.world_size)
    locals_, place = int(environ.get("LOCAL_WORLD_SIZE", 1)), int(environ.get("LOCAL_RANK", 0))
    store.verify(manifest, [rank for rank in every if rank and rank % locals_ == place])
    return list(every)


def _read(store: Store, manifest: Manifest, rank: int) -> Mapping[str, Any]:
    """A part that has been verified on this host."""
    part = next(part for part in manifest.parts if part.rank == rank)
    path = os.path.join(store.directory, step_directory(manifest.step), part.name)
    document: Mapping[str, Any] = parts.decode(parts.mapped(path))
    return document
