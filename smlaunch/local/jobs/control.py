"""The state of one running job, shared by the job's own thread and the threads that may stop it."""

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

MAX_POLL_SECONDS = 86_400.0
"""Longest timeout for one call of poll: the kernel takes milliseconds as 31 bits, less than 28 days."""

SaveState = Callable[[JobState, Mapping[str, Any] | None], None]
"""Saves (state, result) in the job store; the result is None if it does not change."""


class JobStopping(Exception):
    """Raised in the job's thread, while hosts are being prepared, when the job was asked to stop."""


class JobControl:
    """The state of a job, behind a lock, since ``stop`` may be called in any thread at any time."""

    def __init__(self, state: JobState, save: SaveState, grace: float, max_wait_end: float | None) -> None:
        """``save`` writes a state to the job store. ``grace`` is the number of seconds between SIGTERM and
        SIGKILL. ``max_wait_end`` is the time on the monotonic clock at which MaxWaitTimeInSeconds is over."""
        self._state = state
        self._save_state = save
        self._lock = threading.Lock()
        # Readable when the state has changed in another thread.
        self.wakeup_reader, self._wakeup_writer = os.pipe()
        self.grace = grace
        self.max_wait_end = max_wait_end
        self.abort_error: Exception | None = None
        """The first error given to ``abort``."""

    @property
    def state(self) -> JobState:
        with self._lock:
            return self._state

    @property
    def is_stopping(self) -> bool:
        """Whether the job was asked to stop."""
        return self.state.stop_cause is not None

    def stop(self, cause: StopCause, message: str | None = None, grace: float | None = None) -> None:
        """Ask the job to stop: its hosts get SIGTERM, and SIGKILL after ``grace`` seconds (default: the
        value of the constructor; a larger one has no effect). Only the first cause counts. A job that has
        ended does not change."""
        with self._lock:
            if self._state.has_ended:
                return
            if grace is not None:
                self.grace = min(grace, self.grace)
            stopping = states.request_stop(self._state, cause, time.time(), message)
            if stopping is not self._state:
                self._save(stopping)
            os.write(self._wakeup_writer, b".")

    def raise_if_stopping(self) -> None:
        """Raise JobStopping if the job was asked to stop, or if its maximum wait time is over."""
        if self.max_wait_end is not None and time.monotonic() >= self.max_wait_end:
            self.stop("max_wait")
        if self.is_stopping:
            raise JobStopping

    def move_to(self, secondary: str, message: str | None = None) -> None:
        """Move the job to the status ``secondary``. Raises JobStopping if the job was asked to stop."""
        with self._lock:
            if self._state.stop_cause is not None:
                raise JobStopping
            self._save(states.move_to(self._state, secondary, time.time(), message))

    def begin_upload(self) -> None:
        """Move the job to Uploading. A job that is stopping uploads too, but stays in Stopping."""
        with self._lock:
            if self._state.stop_cause is None:
                self._save(states.move_to(self._state, "Uploading", time.time()))

    def set_message(self, message: str) -> None:
        """Change the StatusMessage of the current status."""
        with self._lock:
            self._save(states.with_message(self._state, message, time.time()))

    def wait(self, seconds: float | None, stop_cause: StopCause | None = None) -> None:
        """Wait for so many seconds, or without end if ``seconds`` is None. With ``stop_cause``, stop the job
        for this cause when the time is over. Raises JobStopping."""
        deadline = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.wakeup_reader, select.POLLIN)
        while True:
            self.raise_if_stopping()
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                if stop_cause is None:
                    return
                self.stop(stop_cause)
                continue
            deadlines = [candidate for candidate in (deadline, self.max_wait_end) if candidate is not None]
            if poll.poll(1000 * min(min(deadlines) - now, MAX_POLL_SECONDS) + 1 if deadlines else None):
                self.clear_wakeup()

    def abort(self, error: Exception) -> None:
        """Let the job fail with ``error`` while its hosts run. May be called in any thread. Only the first
        error counts."""
        with self._lock:
            self.abort_error = self.abort_error or error
            os.write(self._wakeup_writer, b".")

    def clear_wakeup(self) -> None:
        """Empty the wake-up pipe. Call it when ``wakeup_reader`` is readable."""
        os.read(self.wakeup_reader, 4096)

    def finish(self, reason: str | None, result: Mapping[str, Any]) -> JobState:
        """Move the job to its final status: Failed if there is a ``reason``, else Completed or the status of
        the stop cause. Afterwards ``stop`` has no effect. Returns the final state."""
        with self._lock:
            now = time.time()
            final_state = (
                states.complete_or_stop(self._state, now)
                if reason is None
                else states.fail(self._state, reason, now)
            )
            self._save(final_state, result)
            return final_state

    def close(self) -> None:
        """Close the wake-up pipe. Call it after ``finish``."""
        with self._lock:
            os.close(self._wakeup_writer)
            os.close(self.wakeup_reader)

    def _save(self, state: JobState, result: Mapping[str, Any] | None = None) -> None:
        """Save a state and make it the current one. If the disk is full, only a final state raises:
        otherwise the hosts' output could end the job by filling the disk."""
        try:
            self._save_state(state, result)
        except sqlite3.OperationalError as error:
            if state.has_ended:
                raise
            log.warning("the status %s is not stored until the next one is: %s", state.secondary, error)
        self._state = state
