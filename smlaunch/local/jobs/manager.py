"""All jobs of one endpoint: which run, which wait for a place, and what other endpoints left behind."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from pathlib import Path
from typing import Protocol

from smlaunch.local import state_dir
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs import states
from smlaunch.local.jobs.runner import JobRunner, Rooms
from smlaunch.local.state_dir import JobOwner, StateDir

_CLOSED = "The endpoint that ran this job was closed"


class Follower(Protocol):
    """Who does something about jobs when they end, and has business of its own with other endpoints."""

    def job_ended(self, arn: str) -> None:
        """Nothing of it is left. In the job's thread."""

    def owner_lost(self, owner: str) -> None:
        """An endpoint died; its jobs have been closed."""

    def on_command(self, command: str, arn: str) -> None:
        """A line in this endpoint's mailbox that is not about a job."""


class JobManager:
    """``owner`` is this endpoint among those that share the state directory."""

    def __init__(self, rooms: Rooms, state: StateDir, owner: JobOwner) -> None:
        self.owner = owner
        self._rooms = rooms
        self._state = state
        self._lock = threading.Lock()
        self._running: dict[str, JobRunner] = {}
        self._waiting: deque[JobRunner] = deque()
        self._closed = False
        self._follower: Follower | None = None
        self._close_reader, self._close_writer = os.pipe()
        self._listener = threading.Thread(target=self._listen, name="mailbox", daemon=True)
        self._listener.start()

    def follow(self, follower: Follower) -> None:
        """Before ``recover``, so that nothing is missed."""
        self._follower = follower

    def submit(self, record: JobRecord) -> None:
        """Runs a job that the store has already; it waits when as many as allowed are running."""
        runner = JobRunner(record, self._rooms, self._finished)
        limit = self._rooms.settings.max_parallel_jobs
        with self._lock:
            if limit is not None and len(self._running) >= limit:
                self._waiting.append(runner)
                return
            self._running[runner.arn] = runner
        runner.start()

    def stop(self, record: JobRecord) -> None:
        """Asks a job to stop, whichever endpoint runs it. One whose endpoint is gone is closed as failed."""
        if record.owner == self.owner.id:
            self._stop_own(record.arn)
        elif not self.tell(record.owner, f"stop {record.arn}"):
            self.recover()

    def tell(self, owner: str, message: str) -> bool:
        """Puts a line into another endpoint's mailbox. False when that endpoint is gone."""
        return state_dir.send_to_owner(self._state, owner, message)

    def settle(self, arn: str) -> None:
        """Waits until nothing is left of a job that has ended: its status comes before its hosts are gone."""
        with self._lock:
            runner = self._running.get(arn)
        if runner is not None:
            runner.join()

    def recover(self) -> None:
        """Closes the jobs of endpoints that died, and ends and removes what those left."""
        for owner in state_dir.dead_owners(self._state):
            self._rooms.executor.recover(owner)
            self._rooms.recover_others(owner)
            for record in self._rooms.store.unfinished_jobs(owner):
                reason = (
                    "InternalServerError: the endpoint that ran this job ended without closing it (found at "
                    f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}); run it again"
                )
                self._rooms.store.save_state(record.arn, states.fail(record.state, reason, time.time()))
            if self._follower is not None:
                self._follower.owner_lost(owner)
        leftovers = list(state_dir.abandoned_hosts(self._state))
        if leftovers:
            threading.Thread(target=_remove, args=(leftovers,), name="leftovers").start()

    def close(self) -> None:
        """Stops all jobs, waits until nothing of them is left, and tells other endpoints good-bye."""
        with self._lock:
            self._closed = True
            runners = [*self._running.values(), *self._waiting]
        for runner in runners:
            self._stop_own(runner.arn, _CLOSED, self._rooms.settings.close_grace_seconds)
        for runner in runners:
            runner.join()
        os.write(self._close_writer, b".")
        self._listener.join()
        os.close(self._close_writer)
        os.close(self._close_reader)
        self.owner.close()

    @property
    def shows_anywhere(self) -> bool:
        """Whether the hosts here can be shown a directory at any path."""
        return self._rooms.executor.shows_anywhere

    @property
    def runs_images(self) -> bool:
        """Whether the hosts here are containers of the jobs' images."""
        return self._rooms.executor.runs_images

    def _stop_own(self, arn: str, message: str | None = None, grace: float | None = None) -> None:
        with self._lock:
            runner = self._running.get(arn)
            if runner is None:
                runner = next((waiting for waiting in self._waiting if waiting.arn == arn), None)
                if runner is None:
                    return  # it has ended meanwhile
                # Beyond the limit, but it only lives to see that it is to stop.
                self._waiting.remove(runner)
                self._running[arn] = runner
                waited = True
            else:
                waited = False
        runner.stop("user", message, grace)
        if waited:
            runner.start()

    def _finished(self, runner: JobRunner) -> None:
        limit = self._rooms.settings.max_parallel_jobs
        following = None
        with self._lock:
            del self._running[runner.arn]
            if self._waiting and not self._closed and (limit is None or len(self._running) < limit):
                following = self._waiting.popleft()
                self._running[following.arn] = following
        if following is not None:
            following.start()
        if self._follower is not None:
            self._follower.job_ended(runner.arn)

    def _listen(self) -> None:
        """Reads this endpoint's mailbox: lines such as ``stop ARN``, written by other endpoints."""
        text = b""
        poll = select.poll()
        poll.register(self.owner.inbox_fd, select.POLLIN)
        poll.register(self._close_reader, select.POLLIN)
        while True:
            if self._close_reader in dict(poll.poll()):
                return
            text += os.read(self.owner.inbox_fd, 1 << 16)
            *lines, text = text.split(b"\n")
            for line in lines:
                command, _, arn = line.decode(errors="replace").partition(" ")
                if command == "stop":
                    self._stop_own(arn)
                elif self._follower is not None:
                    self._follower.on_command(command, arn)


def _remove(folders: list[Path]) -> None:
    from smlaunch.local.executors.removal import remove_or_warn

    for folder in folders:
        remove_or_warn(folder)
