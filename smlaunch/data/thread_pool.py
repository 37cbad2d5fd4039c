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


def for_each_in_threads(
    process_item: Callable[[Item], None],
    items: Iterable[Item],
    thread_count: int,
    cancelled: Event | None = None,
) -> None:
    """Call ``process_item`` for every item, in several threads. Items are drawn lazily, so there may be
    millions.

    After the first error, which is raised, or after Ctrl-C, no further call starts and ``cancelled`` is set.
    Calls under way are waited for, so a long one checks ``cancelled`` and raises Cancelled.
    """
    iterator, lock, cancelled = iter(items), Lock(), cancelled or Event()
    errors: list[BaseException] = []

    def run_worker() -> None:
        """In one of the threads: draw items one by one and process each, until none is left or a thread has
        failed."""
        try:
            while not cancelled.is_set():
                with lock:
                    drawn_items = list(islice(iterator, 1))
                if not drawn_items:  # none is left
                    return
                process_item(drawn_items[0])
        except BaseException as error:
            with lock:
                if not cancelled.is_set():  # later errors only follow from the first
                    errors.append(error)
                cancelled.set()

    with ThreadPoolExecutor(thread_count) as pool:
        try:
            for future in [pool.submit(run_worker) for _ in range(thread_count)]:
                future.result()  # waits; a worker itself raises nothing
        except BaseException:  # such as Ctrl-C while waiting
            cancelled.set()
            raise
    if errors:
        raise errors[0]
