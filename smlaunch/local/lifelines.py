"""Descriptors by whose closing others notice that this process has ended.

A client that embeds an endpoint may fork (multiprocessing, a data loader). A child that executes nothing
keeps all descriptors, and would hold the hosts' lifelines and the lock that says the endpoint lives long
after it was killed. So such a child closes them at its birth.
"""

from __future__ import annotations

import os

_held: set[int] = set()


def hold(descriptor: int) -> int:
    """From now on children that this process forks do not have ``descriptor``, which is returned."""
    _held.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Closes what was given to ``hold``."""
    _held.discard(descriptor)
    os.close(descriptor)


def _let_go() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
