"""The jobs of one endpoint: runs them, queues those above the limit, and cleans up after endpoints that
died."""

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
from smlaunch.local.jobs.runner import EndpointServices, JobRunner
from smlaunch.local.state_dir import JobOwner, StateDir

_CLOSED_MESSAGE = "The endpoint that ran this job was closed"


class JobEventListener(Protocol):
    """Is informed about the ends of jobs and endpoints, and receives commands of other endpoints."""

    def on_job_ended(self, arn: str) -> None:
        """Called in the job's thread when a job has ended and its hosts are removed."""

    def on_owner_lost(self, owner: str) -> None:
        """Called when an endpoint has died, after its jobs were closed."""

    def on_command(self, command: str, arn: str) -> None:
        """Called for a command in this endpoint's mailbox that is not about a job."""


class JobManager:
    """The jobs of one endpoint."""

    def __init__(self, services: EndpointServices, state: StateDir, owner: JobOwner) -> None:
        """``owner`` is this endpoint's entry in the state directory, which several endpoints may share."""
        self.owner = owner
        self._services = services
        self._state = state
        self._lock = threading.Lock()
        self._runner_by_arn: dict[str, JobRunner] = {}
        self._waiting: deque[JobRunner] = deque()
        self._is_closed = False
        self._event_listener: JobEventListener | None = None
        self._close_reader, self._close_writer = os.pipe()
        self._mailbox_thread = threading.Thread(target=self._read_mailbox, name="mailbox", daemon=True)
        self._mailbox_thread.start()

    def set_event_listener(self, listener: JobEventListener) -> None:
        """Set the listener. Call it before ``clean_up_dead_endpoints``, so that the listener misses
        nothing."""
        self._event_listener = listener

    def submit(self, record: JobRecord) -> None:
        """Run a job that the store already has; it waits while the maximum number of jobs is running."""
        runner = JobRunner(record, self._services, self._on_job_end)
        limit = self._services.settings.max_parallel_jobs
        with self._lock:
            if limit is not None and len(self._runner_by_arn) >= limit:
                self._waiting.append(runner)
                return
            self._runner_by_arn[runner.arn] = runner
        runner.start()

    def stop(self, record: JobRecord) -> None:
        """Ask a job to stop, whichever endpoint runs it. The job of a dead endpoint becomes Failed."""
        if record.owner == self.owner.id:
            self._stop_own_job(record.arn)
        elif not self.send_command(record.owner, f"stop {record.arn}"):
            self.clean_up_dead_endpoints()

    def send_command(self, owner: str, command: str) -> bool:
        """Write a line such as ``stop ARN`` into another endpoint's mailbox. Return False if that endpoint
        is dead."""
        return state_dir.send_to_endpoint(self._state, owner, command)

    def wait_for_cleanup(self, arn: str) -> None:
        """Wait until the hosts of a job that has ended are removed: its final status is visible earlier."""
        with self._lock:
            runner = self._runner_by_arn.get(arn)
        if runner is not None:
            runner.join()

    def clean_up_dead_endpoints(self) -> None:
        """Close the jobs of endpoints that died, and remove their processes and files."""
        for endpoint_id in state_dir.dead_endpoint_ids(self._state):
            self._services.executor.remove_leftovers(endpoint_id)
            self._services.remove_other_leftovers(endpoint_id)
            for record in self._services.job_store.unfinished_jobs(endpoint_id):
                reason = (
                    "InternalServerError: the endpoint that ran this job ended without closing it (found at "
                    f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}); run it again"
                )
                self._services.job_store.save_state(
                    record.arn, states.fail(record.state, reason, time.time())
                )
            if self._event_listener is not None:
                self._event_listener.on_owner_lost(endpoint_id)
        leftovers = list(state_dir.abandoned_host_folders(self._state))
        if leftovers:
            threading.Thread(target=_remove_folders, args=(leftovers,), name="leftovers").start()

    def close(self) -> None:
        """Stop all jobs, wait until their hosts are removed, and close this endpoint's mailbox."""
        with self._lock:
            self._is_closed = True
            runners = [*self._runner_by_arn.values(), *self._waiting]
        for runner in runners:
            self._stop_own_job(runner.arn, _CLOSED_MESSAGE, self._services.settings.close_grace_seconds)
        for runner in runners:
            runner.join()
        os.write(self._close_writer, b".")
        self._mailbox_thread.join()
        os.close(self._close_writer)
        os.close(self._close_reader)
        self.owner.close()

    @property
    def can_mount_anywhere(self) -> bool:
        """Whether the hosts can have a shared mount at any path."""
        return self._services.executor.can_mount_anywhere

    @property
    def runs_images(self) -> bool:
        """Whether the hosts are containers of the jobs' images."""
        return self._services.executor.runs_images

    def _stop_own_job(self, arn: str, message: str | None = None, grace: float | None = None) -> None:
        """Ask a job of this endpoint to stop; a job that has ended is ignored."""
        with self._lock:
            runner = self._runner_by_arn.get(arn)
            if runner is None:
                runner = next((waiting for waiting in self._waiting if waiting.arn == arn), None)
                if runner is None:
                    return  # the job has ended
                # Started although the limit is reached: the runner only moves the job to Stopped.
                self._waiting.remove(runner)
                self._runner_by_arn[arn] = runner
                was_waiting = True
            else:
                was_waiting = False
        runner.stop("user", message, grace)
        if was_waiting:
            runner.start()

    def _on_job_end(self, runner: JobRunner) -> None:
        """Remove a runner, start the next waiting job and inform the listener. Called in the job's thread."""
        limit = self._services.settings.max_parallel_jobs
        next_runner = None
        with self._lock:
            del self._runner_by_arn[runner.arn]
            if self._waiting and not self._is_closed and (limit is None or len(self._runner_by_arn) < limit):
                next_runner = self._waiting.popleft()
                self._runner_by_arn[next_runner.arn] = next_runner
        if next_runner is not None:
            next_runner.start()
        if self._event_listener is not None:
            self._event_listener.on_job_ended(runner.arn)

    def _read_mailbox(self) -> None:
        """Read this endpoint's mailbox: lines such as ``stop ARN``, written by other endpoints."""
        buffer = b""
        poll = select.poll()
        poll.register(self.owner.inbox_fd, select.POLLIN)
        poll.register(self._close_reader, select.POLLIN)
        while True:
            if self._close_reader in dict(poll.poll()):
                return
            buffer += os.read(self.owner.inbox_fd, 1 << 16)
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                command, _, arn = line.decode(errors="replace").partition(" ")
                if command == "stop":
                    self._stop_own_job(arn)
                elif self._event_listener is not None:
                    self._event_listener.on_command(command, arn)


def _remove_folders(folders: list[Path]) -> None:
    from smlaunch.local.executors.removal import remove_or_warn

    for folder in folders:
        remove_or_warn(folder)
