"""The state of one running job, shared by the job's own thread and the threads that may stop it."""

from __future__ import annotations

import logging
import math
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable

from smlaunch.local.jobs import job_state
from smlaunch.local.jobs.job_state import JobState, StopCause
from smlaunch.local.json_types import JsonMapping

log = logging.getLogger(__name__)

MAX_POLL_SECONDS = 86_400.0
"""Longest timeout for one call of poll: the kernel takes milliseconds as 31 bits, less than 28 days."""

SaveState = Callable[[JobState, JsonMapping | None], None]
"""Saves (state, result) in the job store; the result is None if it does not change."""


class JobStopping(Exception):
    """Raised in the job's thread, while hosts are being prepared, when the job was asked to stop."""


class JobControl:
    """The state of a job, behind a lock, since ``stop`` may be called in any thread at any time."""

    def __init__(
        self, state: JobState, save: SaveState, grace_seconds: float, max_wait_deadline: float | None
    ) -> None:
        """``save`` writes a state to the job store. ``grace_seconds`` is the number of seconds between
        SIGTERM and SIGKILL. ``max_wait_deadline`` is the time on the monotonic clock at which
        MaxWaitTimeInSeconds is over."""
        self._state = state
        self._save_state = save
        self._lock = threading.Lock()
        # Readable when the state has changed in another thread.
        self.wakeup_read_fd, self._wakeup_write_fd = os.pipe()
        self.grace_seconds = grace_seconds
        self.max_wait_deadline = max_wait_deadline
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

    def request_stop(
        self, cause: StopCause, message: str | None = None, grace_seconds: float | None = None
    ) -> None:
        """Ask the job to stop: its hosts get SIGTERM, and SIGKILL after ``grace_seconds`` (default: the job's
        own; a larger number has no effect). ``message`` becomes the StatusMessage. A later request changes
        the grace period only; a job that has ended does not change. May be called in any thread."""
        with self._lock:
            if self._state.has_ended:
                return
            if grace_seconds is not None:
                self.grace_seconds = min(grace_seconds, self.grace_seconds)
            if self._state.secondary != "Stopping":  # the secondary status; only the first cause counts
                self._save(job_state.request_stop(self._state, cause, time.time(), message))
            os.write(self._wakeup_write_fd, b".")  # wakes the job's own thread, which polls this pipe

    def raise_if_stopping(self) -> None:
        """Raise JobStopping if the job was asked to stop, or if its maximum wait time is over."""
        if self.max_wait_deadline is not None and time.monotonic() >= self.max_wait_deadline:
            self.request_stop("max_wait")
        if self.is_stopping:
            raise JobStopping

    def move_to_status(self, secondary_status: str, message: str | None = None) -> None:
        """Move the job to the status ``secondary_status``. Raises JobStopping if the job was asked to
        stop."""
        with self._lock:
            if self._state.stop_cause is not None:
                raise JobStopping
            self._save(job_state.move_to_status(self._state, secondary_status, time.time(), message))

    def move_to_uploading(self) -> None:
        """Move the job to Uploading. A job that is stopping uploads too, but stays in Stopping."""
        with self._lock:
            if self._state.stop_cause is None:
                self._save(job_state.move_to_status(self._state, "Uploading", time.time()))

    def set_message(self, message: str) -> None:
        """Change the StatusMessage of the current status."""
        with self._lock:
            self._save(job_state.with_message(self._state, message, time.time()))

    def wait_unless_stopping(self, seconds: float | None, stop_cause: StopCause | None = None) -> None:
        """Block the job's thread for so many seconds, or without end if ``seconds`` is None. With
        ``stop_cause``, the job is asked to stop for this cause when the time is over. Raises JobStopping as
        soon as the job is asked to stop (``request_stop`` writes to the wakeup pipe, which ends the wait), or
        when its MaxWaitTimeInSeconds is over."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        wakeup_poll = select.poll()
        wakeup_poll.register(self.wakeup_read_fd, select.POLLIN)  # readable after a request to stop
        while True:
            self.raise_if_stopping()
            now = time.monotonic()
            if now >= deadline:
                if stop_cause is None:
                    return
                self.request_stop(stop_cause)
                continue  # raise_if_stopping, above, raises now
            max_wait_deadline = math.inf if self.max_wait_deadline is None else self.max_wait_deadline
            # Not longer than MAX_POLL_SECONDS at once, as poll takes no larger number.
            remaining_seconds = min(deadline, max_wait_deadline) - now
            # One millisecond more, so that the deadline is over when poll returns.
            timeout_ms = 1000 * min(remaining_seconds, MAX_POLL_SECONDS) + 1
            if wakeup_poll.poll(timeout_ms):
                self.clear_wakeup()  # empties the pipe, so that the next poll waits again

    def abort(self, error: Exception) -> None:
        """Let the job fail with ``error`` while its hosts run. May be called in any thread. Only the first
        error counts."""
        with self._lock:
            self.abort_error = self.abort_error or error
            os.write(self._wakeup_write_fd, b".")  # wake the job's own thread

    def clear_wakeup(self) -> None:
        """Empty the wake-up pipe. Call it when ``wakeup_reader`` is readable."""
        os.read(self.wakeup_read_fd, 4096)

    def finish(self, failure_reason: str | None, result: JsonMapping) -> JobState:
        """Move the job to its final status: Failed if there is a ``failure_reason``, else Completed or the
        status of the stop cause. Afterwards ``stop`` has no effect. Returns the final state."""
        with self._lock:
            now = time.time()
            final_state = (
                job_state.complete_or_stop(self._state, now)
                if failure_reason is None
                else job_state.fail(self._state, failure_reason, now)
            )
            self._save(final_state, result)
            return final_state

    def close(self) -> None:
        """Close the wake-up pipe. Call it after ``finish``."""
        with self._lock:
            os.close(self._wakeup_write_fd)
            os.close(self.wakeup_read_fd)

    def _save(self, state: JobState, result: JsonMapping | None = None) -> None:
        """Save a state and make it the current one. If the disk is full, only a final state raises:
        otherwise the hosts' output could end the job by filling the disk."""
        try:
            self._save_state(state, result)
        except sqlite3.OperationalError as error:
            if state.has_ended:
                raise
            log.warning("the status %s is not stored until the next one is: %s", state.secondary, error)
        self._state = state
