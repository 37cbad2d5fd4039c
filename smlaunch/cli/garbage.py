"""When Python looks for cyclic garbage: as ever, but not while a command starts.

Imports and service models make many objects and no garbage; looking for it would take 50 ms of every command.
"""

from __future__ import annotations

import gc

_START = 100_000
"""Objects. A command has made some 60,000 when its work begins; one that runs on soon makes the rest."""


def spare_start() -> None:
    """The first look comes after so many objects; from then on, all is as Python has it."""
    usual = gc.get_threshold()
    if usual[0] >= _START:
        return

    def first_look(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(first_look)
            gc.freeze()  # what the start has made stays
            gc.set_threshold(*usual)

    gc.callbacks.append(first_look)
    gc.set_threshold(_START, *usual[1:])
