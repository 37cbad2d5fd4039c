"""File descriptors that must close when this process exits: others notice the exit by that.

They are pipes to the hosts' supervisors and the lock of a running endpoint. A client that embeds an endpoint
may fork (multiprocessing, a data loader). A forked child that does not exec inherits all descriptors and
would keep them open after the endpoint was killed. So the child closes them right after the fork.
"""

from __future__ import annotations

import os

_descriptors: set[int] = set()


def close_after_fork(descriptor: int) -> int:
    """Register ``descriptor`` to be closed in every child that this process forks, and return it."""
    _descriptors.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    """Close a descriptor that was registered with ``close_after_fork``."""
    _descriptors.discard(descriptor)
    os.close(descriptor)


def _close_all() -> None:
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_close_all)
