"""A few threads for work that waits: on S3, or on a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event, Lock
from typing import TypeVar

Item = TypeVar("Item")


def each(action: Callable[[Item], None], items: Iterable[Item], at_once: int) -> None:
    """Does it for every item; draws one when it is its turn, so that there may be millions.

    After the first error, which is raised, or Ctrl-C nothing more is begun; what is under way is waited for.
    """
    waiting, turn, over = iter(items), Lock(), Event()

    def work() -> None:
        try:
            while not over.is_set():
                with turn:
                    drawn = list(islice(waiting, 1))
                if not drawn:
                    return
                action(drawn[0])
        except BaseException:
            over.set()
            raise

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for worker in [pool.submit(work) for _ in range(at_once)]:
                worker.result()
        finally:
            over.set()
