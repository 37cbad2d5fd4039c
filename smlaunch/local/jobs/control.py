"""Where one job stands, for all who drive it: its own thread, and whoever asks it to stop."""

from __future__ import annotations

import logging
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from smlaunch.local.jobs import states
from smlaunch.local.jobs.states import JobState, StopCause

log = logging.getLogger(__name__)

LONGEST_WAIT = 86_400.0
"""Seconds; the kernel's calls take milliseconds as 31 bits, which 28 days do not fit in."""

Save = Callable[[JobState, Mapping[str, Any] | None], None]


class Stopping(Exception):
    """The job was asked to stop; unwinds what was being prepared."""


class JobControl:
    """The state, written under a lock, since ``stop`` may come from any thread at any time.

    ``save(state, result)`` remembers it. ``grace``: seconds between SIGTERM and SIGKILL. ``wait_end``: when,
    on the monotonic clock, the job is stopped for having waited too long (MaxWaitTimeInSeconds).
    """

    def __init__(self, state: JobState, save: Save, grace: float, wait_end: float | None) -> None:
        self._state = state
        self._store = save
        self._lock = threading.Lock()
        self.woken, self._waker = os.pipe()
        self.grace = grace
        self.wait_end = wait_end
        self.broken: Exception | None = None

    @property
    def state(self) -> JobState:
        with self._lock:
            return self._state

    @property
    def is_stopping(self) -> bool:
        return self.state.stop_cause is not None

    def stop(self, cause: StopCause, message: str | None = None, grace: float | None = None) -> None:
        """Asks the job to stop; its hosts get SIGTERM, and SIGKILL after ``grace`` seconds (default: the
        setting). The first cause counts; a job that has ended stays as it is."""
        with self._lock:
            if self._state.ended:
                return
            if grace is not None:
                self.grace = min(grace, self.grace)
            stopping = states.stop(self._state, cause, time.time(), message)
            if stopping is not self._state:
                self._save(stopping)
            os.write(self._waker, b".")

    def check(self) -> None:
        """Raises Stopping once the job is to stop."""
        if self.wait_end is not None and time.monotonic() >= self.wait_end:
            self.stop("max_wait")
        if self.is_stopping:
            raise Stopping

    def go(self, secondary: str, message: str | None = None) -> None:
        """On to a status. Raises Stopping when the job is to stop instead."""
        with self._lock:
            if self._state.stop_cause is not None:
                raise Stopping
            self._save(states.move(self._state, secondary, time.time(), message))

    def upload(self) -> None:
        """On to Uploading; a job that is being stopped uploads too, and says Stopping meanwhile."""
        with self._lock:
            if self._state.stop_cause is None:
                self._save(states.move(self._state, "Uploading", time.time()))

    def tell(self, message: str) -> None:
        """A new StatusMessage for the status the job is in."""
        with self._lock:
            self._save(states.tell(self._state, message, time.time()))

    def wait(self, seconds: float | None, otherwise: StopCause | None = None) -> None:
        """Lets ``seconds`` pass; None: for ever, or until ``otherwise`` stops the job. Raises Stopping."""
        until = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.woken, select.POLLIN)
        while True:
            self.check()
            now = time.monotonic()
            if until is not None and now >= until:
                if otherwise is None:
                    return
                self.stop(otherwise)
                continue
            ends = [at for at in (until, self.wait_end) if at is not None]
            if poll.poll(1000 * min(min(ends) - now, LONGEST_WAIT) + 1 if ends else None):
                self.drain()

    def break_off(self, error: Exception) -> None:
        """The job cannot go on, whatever its hosts do; the first error is kept in ``broken``. From any
        thread, while hosts run."""
        with self._lock:
            self.broken = self.broken or error
            os.write(self._waker, b".")

    def drain(self) -> None:
        """After ``woken`` became readable."""
        os.read(self.woken, 4096)

    def end(self, reason: str | None, result: Mapping[str, Any]) -> JobState:
        """The last status: Failed with ``reason``, else Completed or what the stop was for. Then ``stop``
        has no effect any more."""
        with self._lock:
            now = time.time()
            ended = (
                states.finish(self._state, now) if reason is None else states.fail(self._state, reason, now)
            )
            self._save(ended, result)
            return ended

    def close(self) -> None:
        """After ``end``."""
        with self._lock:
            os.close(self._waker)
            os.close(self.woken)

    def _save(self, state: JobState, result: Mapping[str, Any] | None = None) -> None:
        """A disk that is full, most likely by what the hosts wrote, must not end the job on its way: only its
        end has to be on the disk."""
        try:
            self._store(state, result)
        except sqlite3.OperationalError as error:
            if state.ended:
                raise
            log.warning("the status %s is not stored until the next one is: %s", state.secondary, error)
        self._state = state
