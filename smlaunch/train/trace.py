"""Records what a rank did, step by step, for comparing two runs. Off unless SMLAUNCH_TRACE names a directory.

One file per job and rank, one JSON object per line:

    {"step", "entered": {generator: sha256}}             when the training starts or continues
    {"step", "samples": [ids], "loss"?}                  a step
    {"step", "digests": {component: sha256}, "drawn"}    when a checkpoint is taken
    {"step", "closing": {component: sha256}, "drawn"}    when the training, or the segment, ends

``drawn``: the generators whose state has changed since the start. An unseeded generator differs from run to
run, which only matters if numbers are drawn from it.
"""

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from smlaunch.train import rng, sharded, tensors, tree_format
from smlaunch.train.components import GENERATORS, Component, GeneratorComponent

TRACE_VARIABLE = "SMLAUNCH_TRACE"


class TraceWriter:
    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self._start_digests: Dict[str, str] = {}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], job: Optional[str], rank: int) -> "TraceWriter":
        directory = environ.get(TRACE_VARIABLE)
        if not directory:
            return cls(None)
        os.makedirs(directory, exist_ok=True)
        return cls(os.path.join(directory, "{}-rank{}.jsonl".format(job or "job", rank)))

    def record_start(self, step: int, components: Sequence[Component]) -> None:
        if self._path is not None:
            self._start_digests = generator_digests(components)
            self._append_row({"step": step, "entered": self._start_digests})

    def record_step(self, step: int, samples: Sequence[int], metrics: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        row: Dict[str, Any] = {"step": step, "samples": list(samples)}
        if metrics.get("loss") is not None:
            row["loss"] = _loss_value(metrics["loss"])
        self._append_row(row)

    def record_checkpoint(self, step: int, components: List[Component]) -> None:
        self._record_state(step, "digests", components)

    def record_end(self, step: int, components: List[Component]) -> None:
        self._record_state(step, "closing", components)

    def _record_state(self, step: int, kind: str, components: List[Component]) -> None:
        if self._path is not None:
            row = {
                "step": step,
                kind: component_digests(components),
                "drawn": self._drawn_generators(components),
            }
            self._append_row(row)

    def _drawn_generators(self, components: Sequence[Component]) -> List[str]:
        """Return the generators whose state has changed since the start."""
        unused = rng.unused_generators()
        return [
            name
            for name, state in generator_digests(components).items()
            if state != self._start_digests.get(name)
            # A library imported since the start has a generator that was not recorded there.
            and (
                name in self._start_digests
                or name not in {GENERATORS + "." + generator for generator in unused}
            )
        ]

    def _append_row(self, row: Mapping[str, Any]) -> None:
        # Opened for each line: a killed process leaves complete lines.
        if self._path is not None:
            with open(self._path, "a", encoding="ascii") as file:
                file.write(json.dumps(row) + "\n")


def component_digests(components: Sequence[Component]) -> Dict[str, str]:
    """Return the sha256 of each component's state on this rank; the global generators one by one
    (``smlaunch.rng.python``, ...), a model's buffers as ``model.buffers``."""
    result = {}
    for component in components:
        own_state, shared_state = component.own_state(), component.shared_state()
        if component.name == GENERATORS:
            result.update({GENERATORS + "." + name: tree_digest(state) for name, state in own_state.items()})
        elif shared_state is not None and own_state:
            result[component.name] = tree_digest(shared_state)
            result[component.name + ".buffers"] = tree_digest(own_state)
        else:
            result[component.name] = tree_digest(own_state if shared_state is None else shared_state)
    return result


def generator_digests(components: Sequence[Component]) -> Dict[str, str]:
    """Return the digests of all random generators."""
    generators = [
        component
        for component in components
        if component.name == GENERATORS or isinstance(component, GeneratorComponent)
    ]
    return component_digests(generators)


def tree_digest(tree: Any) -> str:
    """Return the sha256 of plain values, tensors (type, shape and bytes) and arrays; for a sharded tensor, of
    its pieces on this rank. Equal dicts have equal digests, whatever the order of their keys."""
    sha256 = hashlib.sha256()
    local_tree = tensors.map_leaves(
        tree, lambda value, path: [box.local_tensor for box in sharded.local_boxes(value)] or value
    )
    for chunk in tree_format.encode(_sorted(tensors.to_buffers(local_tree))).chunks():
        sha256.update(chunk)
    return sha256.hexdigest()


def _sorted(tree: Any) -> Any:
    """Return the tree with all dicts sorted by key."""
    node_type = type(tree)
    if node_type is dict:
        pairs = [(key, _sorted(value)) for key, value in tree.items()]
        return dict(sorted(pairs, key=lambda pair: (type(pair[0]).__name__, repr(pair[0]))))
    if node_type in (list, tuple):
        return node_type(map(_sorted, tree))
    return tree


def _loss_value(value: Any) -> Any:
    """Return the loss as a number; anything else that was passed to ``step()`` as its repr."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return repr(value)
