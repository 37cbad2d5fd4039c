"""A few threads for work that waits: on S3, or on a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event, Lock
from typing import TypeVar

Item = TypeVar("Item")


class Abandoned(Exception):
    """Somebody else's error, or Ctrl-C, has ended the work that this was part of."""


def each(
    action: Callable[[Item], None], items: Iterable[Item], at_once: int, over: Event | None = None
) -> None:
    """Does it for every item; draws one when it is its turn, so that there may be millions.

    After the first error, which is raised, or Ctrl-C nothing more is begun and ``over`` is set; what is under
    way is waited for, so a long action looks at ``over`` and raises Abandoned.
    """
    waiting, turn, over = iter(items), Lock(), over or Event()
    first: list[BaseException] = []

    def work() -> None:
        try:
            while not over.is_set():
                with turn:
                    drawn = list(islice(waiting, 1))
                if not drawn:
                    return
                action(drawn[0])
        except BaseException as error:
            with turn:
                if not over.is_set():
                    first.append(error)
                over.set()

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for worker in [pool.submit(work) for _ in range(at_once)]:
                worker.result()
        except BaseException:
            over.set()
            raise
    if first:
        raise first[0]
