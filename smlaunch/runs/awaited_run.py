"""Waits for a run in a thread of its own, for ``await run``.

asyncio's pool of threads is no place for it: a run would occupy one of its few threads for days, and
``asyncio.run`` and the interpreter's exit wait for all of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

THREAD_NAME = "smlaunch-await"

_WAKE_SECONDS = 0.2
"""Between two moments at which the event loop looks for what was asked of it meanwhile. The kernel of a
notebook cancels a cell's task in its handler of the signal, which does not wake a loop that sleeps."""


def await_in_thread(wait: Callable[[threading.Event], T]) -> Generator[Any, None, T]:
    """Yield to the event loop until ``wait`` has returned in a new thread, and return its result or raise its
    exception.

    The event that ``wait`` gets is set once nobody awaits it any more: after its end, when the awaiting task
    is cancelled, also by a timeout, and when its loop is closed. Nothing waits for the thread then.
    """
    future: Future[T] = Future()
    is_abandoned = threading.Event()
    context = contextvars.copy_context()  # a notebook's kernel knows by it which cell an output belongs to

    def set_result() -> None:
        try:
            result = context.run(wait, is_abandoned)
        except BaseException as error:
            if not is_abandoned.is_set():
                future.set_exception(error)
        else:
            if not is_abandoned.is_set():
                future.set_result(result)

    # The future is never cancelled itself: a cancelled task leaves it to the thread.
    future.set_running_or_notify_cancel()
    threading.Thread(target=set_result, name=THREAD_NAME, daemon=True).start()
    alarm = _Alarm()
    try:
        return (yield from asyncio.wrap_future(future).__await__())
    finally:
        alarm.cancel()
        is_abandoned.set()


class _Alarm:
    """Wakes the running event loop again and again, until it is cancelled."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake()

    def _wake(self) -> None:
        self._timer = self._loop.call_later(_WAKE_SECONDS, self._wake)

    def cancel(self) -> None:
        self._timer.cancel()
