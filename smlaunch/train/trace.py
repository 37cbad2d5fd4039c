"""What a rank did, step by step, for whoever compares two runs: off unless a directory is named.

One file per job and rank, one JSON object per line: ``{"step", "samples": [ids], "loss"?}`` for a step, and
``{"step", "digests": {component: sha256}}`` where a checkpoint was taken and at the end.
"""

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from smlaunch.train import parts, sharded, tensors
from smlaunch.train.components import Component

VARIABLE = "SMLAUNCH_TRACE"


class Trace:
    def __init__(self, path: Optional[str]) -> None:
        self._path = path

    @classmethod
    def of(cls, environ: Mapping[str, str], job: Optional[str], rank: int) -> "Trace":
        directory = environ.get(VARIABLE)
        if not directory:
            return cls(None)
        os.makedirs(directory, exist_ok=True)
        return cls(os.path.join(directory, "{}-rank{}.jsonl".format(job or "job", rank)))

    def step(self, step: int, samples: Sequence[int], metrics: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        row: Dict[str, Any] = {"step": step, "samples": list(samples)}
        if "loss" in metrics:
            row["loss"] = float(metrics["loss"])
        self._append(row)

    def state(self, step: int, components: List[Component]) -> None:
        if self._path is not None:
            self._append({"step": step, "digests": digests(components)})

    def _append(self, row: Mapping[str, Any]) -> None:
        # Opened for each line: a killed process leaves whole lines.
        if self._path is not None:
            with open(self._path, "a", encoding="ascii") as file:
                file.write(json.dumps(row) + "\n")


def digests(components: List[Component]) -> Dict[str, str]:
    """sha256 of each component's state here; the global generators one by one (``rng.python``, ...), a
    model's buffers as ``model.buffers``."""
    found = {}
    for component in components:
        own, shared = component.own(), component.shared()
        if component.name == "rng":
            found.update({"rng." + name: digest(state) for name, state in own.items()})
        elif shared is not None and own:
            found[component.name] = digest(shared)
            found[component.name + ".buffers"] = digest(own)
        else:
            found[component.name] = digest(own if shared is None else shared)
    return found


def digest(tree: Any) -> str:
    """Of plain values, tensors (type, shape and bytes) and arrays; a sharded tensor by its piece here."""
    content = hashlib.sha256()
    here = tensors.rewrite(tree, lambda value, path: [box.local for box in sharded.boxes(value)] or value)
    for chunk in parts.encode(tensors.to_buffers(here)).chunks():
        content.update(chunk)
    return content.hexdigest()
