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

from smlaunch.contract.segment import TRACE_VARIABLE
from smlaunch.train import fsdp_state, rng, tensor_trees, tree_format
from smlaunch.train.checkpoint_components import GLOBAL_GENERATORS, Component, GeneratorComponent


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
            self._start_digests = generator_sha256s(components)
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
                kind: component_sha256s(components),
                "drawn": self._drawn_generators(components),
            }
            self._append_row(row)

    def _drawn_generators(self, components: Sequence[Component]) -> List[str]:
        """Return the names of the random generators from which numbers were drawn since the start."""
        unused_names = {GLOBAL_GENERATORS + "." + library for library in rng.unused_generators()}
        drawn_names = []
        for name, digest in generator_sha256s(components).items():
            if name in self._start_digests:
                was_drawn = digest != self._start_digests[name]
            else:  # its library was imported after the start
                was_drawn = name not in unused_names
            if was_drawn:
                drawn_names.append(name)
        return drawn_names

    def _append_row(self, row: Mapping[str, Any]) -> None:
        # Opened for each line: a killed process leaves complete lines.
        if self._path is not None:
            with open(self._path, "a", encoding="ascii") as file:
                file.write(json.dumps(row) + "\n")


def component_sha256s(components: Sequence[Component]) -> Dict[str, str]:
    """Return the sha256 of each checkpoint component's state on this rank, by the component's name; the
    global generators one by one (``smlaunch.rng.python``, ...), a model's buffers as ``model.buffers``.
    Shared state is equal on all ranks, own state is this rank's."""
    sha256_by_name: Dict[str, str] = {}
    for component in components:
        own_state, shared_state = component.own_state(), component.shared_state()
        if component.name == GLOBAL_GENERATORS:  # its own state has a generator for each library
            for generator_name, state in own_state.items():
                sha256_by_name[GLOBAL_GENERATORS + "." + generator_name] = tree_sha256(state)
        elif shared_state is not None and own_state:  # the model: parameters and buffers
            sha256_by_name[component.name] = tree_sha256(shared_state)
            sha256_by_name[component.name + ".buffers"] = tree_sha256(own_state)
        else:  # a component with either shared or own state
            state = own_state if shared_state is None else shared_state
            sha256_by_name[component.name] = tree_sha256(state)
    return sha256_by_name


def generator_sha256s(components: Sequence[Component]) -> Dict[str, str]:
    """Return the digests of all random generators."""
    generators = [
        component
        for component in components
        if component.name == GLOBAL_GENERATORS or isinstance(component, GeneratorComponent)
    ]
    return component_sha256s(generators)


def tree_sha256(tree: Any) -> str:
    """Return the sha256 of plain values, tensors (type, shape and bytes) and arrays; for a sharded tensor, of
    its pieces on this rank. Equal dicts have equal digests, whatever the order of their keys."""

    def replace_by_local_tensors(value: Any, path: tensor_trees.TreePath) -> Any:
        """Return this rank's pieces of a sharded tensor; any other value unchanged."""
        return [box.local_tensor for box in fsdp_state.list_local_boxes(value)] or value

    sha256 = hashlib.sha256()
    local_tree = tensor_trees.map_leaves(tree, replace_by_local_tensors)
    for chunk in tree_format.encode_tree(_sort_dicts(tensor_trees.to_buffers(local_tree))).chunks():
        sha256.update(chunk)
    return sha256.hexdigest()


def _sort_dicts(tree: Any) -> Any:
    """Return the tree with all dicts sorted by key."""
    node_type = type(tree)
    if node_type is dict:
        pairs = [(key, _sort_dicts(value)) for key, value in tree.items()]
        return dict(sorted(pairs, key=lambda pair: (type(pair[0]).__name__, repr(pair[0]))))
    if node_type in (list, tuple):
        return node_type(map(_sort_dicts, tree))
    return tree


def _loss_value(value: Any) -> Any:
    """Return the loss as a number; anything else that was passed to ``step()`` as its repr."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return repr(value)
