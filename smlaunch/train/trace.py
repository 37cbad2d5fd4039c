"""What a rank did, step by step, for whoever compares two runs: off unless a directory is named.

One file per job and rank, one JSON object per line:

    {"step", "entered": {generator: sha256}}             when the training begins or goes on
    {"step", "samples": [ids], "loss"?}                  a step
    {"step", "digests": {component: sha256}, "drawn"}    where a checkpoint is taken in the midst
    {"step", "closing": {component: sha256}, "drawn"}    when the training, or the segment, is over

``drawn``: the generators that do not stand where they stood on entering. One that was never seeded differs
from run to run; only if somebody draws from it does that matter.
"""

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from smlaunch.train import parts, rng, sharded, tensors
from smlaunch.train.components import GENERATORS, Component, Generator

VARIABLE = "SMLAUNCH_TRACE"


class Trace:
    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self._entered: Dict[str, str] = {}

    @classmethod
    def of(cls, environ: Mapping[str, str], job: Optional[str], rank: int) -> "Trace":
        directory = environ.get(VARIABLE)
        if not directory:
            return cls(None)
        os.makedirs(directory, exist_ok=True)
        return cls(os.path.join(directory, "{}-rank{}.jsonl".format(job or "job", rank)))

    def entered(self, step: int, components: Sequence[Component]) -> None:
        if self._path is not None:
            self._entered = generators(components)
            self._append({"step": step, "entered": self._entered})

    def step(self, step: int, samples: Sequence[int], metrics: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        row: Dict[str, Any] = {"step": step, "samples": list(samples)}
        if metrics.get("loss") is not None:
            row["loss"] = _loss(metrics["loss"])
        self._append(row)

    def state(self, step: int, components: List[Component]) -> None:
        self._state(step, "digests", components)

    def closing(self, step: int, components: List[Component]) -> None:
        self._state(step, "closing", components)

    def _state(self, step: int, kind: str, components: List[Component]) -> None:
        if self._path is not None:
            row = {"step": step, kind: digests(components), "drawn": self._drawn(components)}
            self._append(row)

    def _drawn(self, components: Sequence[Component]) -> List[str]:
        untouched = rng.untouched()
        return [
            name
            for name, state in generators(components).items()
            if state != self._entered.get(name)
            # A library that was imported since has a generator that nobody has seen before.
            and (name in self._entered or name not in {GENERATORS + "." + one for one in untouched})
        ]

    def _append(self, row: Mapping[str, Any]) -> None:
        # Opened for each line: a killed process leaves whole lines.
        if self._path is not None:
            with open(self._path, "a", encoding="ascii") as file:
                file.write(json.dumps(row) + "\n")


def digests(components: Sequence[Component]) -> Dict[str, str]:
    """sha256 of each component's state here; the global generators one by one (``smlaunch.rng.python``,
    ...), a model's buffers as ``model.buffers``."""
    found = {}
    for component in components:
        own, shared = component.own(), component.shared()
        if component.name == GENERATORS:
            found.update({GENERATORS + "." + name: digest(state) for name, state in own.items()})
        elif shared is not None and own:
            found[component.name] = digest(shared)
            found[component.name + ".buffers"] = digest(own)
        else:
            found[component.name] = digest(own if shared is None else shared)
    return found


def generators(components: Sequence[Component]) -> Dict[str, str]:
    """The digests of what numbers are drawn from."""
    drawn_from = [one for one in components if one.name == GENERATORS or isinstance(one, Generator)]
    return digests(drawn_from)


def digest(tree: Any) -> str:
    """Of plain values, tensors (type, shape and bytes) and arrays; a sharded tensor by its piece here. Equal
    dicts have the same one, in whatever order their keys were put in."""
    content = hashlib.sha256()
    here = tensors.rewrite(tree, lambda value, path: [box.local for box in sharded.boxes(value)] or value)
    for chunk in parts.encode(_sorted(tensors.to_buffers(here))).chunks():
        content.update(chunk)
    return content.hexdigest()


def _sorted(tree: Any) -> Any:
    kind = type(tree)
    if kind is dict:
        pairs = [(key, _sorted(value)) for key, value in tree.items()]
        return dict(sorted(pairs, key=lambda pair: (type(pair[0]).__name__, repr(pair[0]))))
    if kind in (list, tuple):
        return kind(map(_sorted, tree))
    return tree


def _loss(value: Any) -> Any:
    """A number; of anything else that can be handed to ``step()`` what it reads as."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return repr(value)
