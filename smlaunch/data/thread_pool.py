"""Run an action for many items on a few threads that wait for S3 or a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event, Lock
from typing import TypeVar

Item = TypeVar("Item")


class Cancelled(Exception):
    """The work was cancelled by another thread's error or by Ctrl-C."""


def for_each(
    action: Callable[[Item], None], items: Iterable[Item], thread_count: int, cancelled: Event | None = None
) -> None:
    """Run the action for every item. Items are drawn lazily, so there may be millions.

    After the first error, which is raised, or after Ctrl-C, no further action starts and ``cancelled`` is
    set. Actions under way are waited for, so a long action checks ``cancelled`` and raises Cancelled.
    """
    iterator, lock, cancelled = iter(items), Lock(), cancelled or Event()
    errors: list[BaseException] = []

    def run_worker() -> None:
        """Take items one by one and act on each, until none is left or a thread has failed."""
        try:
            while not cancelled.is_set():
                with lock:
                    drawn = list(islice(iterator, 1))
                if not drawn:
                    return
                action(drawn[0])
        except BaseException as error:
            with lock:
                if not cancelled.is_set():
                    errors.append(error)
                cancelled.set()

    with ThreadPoolExecutor(thread_count) as pool:
        try:
            for future in [pool.submit(run_worker) for _ in range(thread_count)]:
                future.result()
        except BaseException:
            cancelled.set()
            raise
    if errors:
        raise errors[0]
