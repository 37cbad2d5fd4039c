"""Defer cyclic garbage collection while a command starts, and leave it out when it ends.

Imports and service models create many objects and no garbage; collections would take 50 ms of every command,
and the interpreter's own at the end as long again.
"""

from __future__ import annotations

import gc

_START = 200_000
"""Objects before the first collection. A command has created some 60,000 when its work begins, and 100,000 at
the end of a short local run."""


def defer_garbage_collection() -> None:
    """Raise the collection threshold until the first collection; then restore Python's thresholds."""
    previous_thresholds = gc.get_threshold()
    if previous_thresholds[0] >= _START:
        return

    def on_collection(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(on_collection)
            gc.freeze()  # objects of the start live as long as the process
            gc.set_threshold(*previous_thresholds)

    gc.callbacks.append(on_collection)
    gc.set_threshold(_START, *previous_thresholds[1:])


def skip_collection_at_exit() -> None:
    """Let the interpreter, which collects once more when it ends, find nothing to look at."""
    gc.freeze()
