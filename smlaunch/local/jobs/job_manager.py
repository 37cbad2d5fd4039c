"""The jobs of one endpoint: runs them, queues those above the limit, and cleans up after endpoints that
died."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from smlaunch.local import state_dir
from smlaunch.local.jobs import job_state
from smlaunch.local.jobs.job_runner import JobRunner, JobServices
from smlaunch.local.state_dir import EndpointRegistration, StateDir
from smlaunch.local.stores.job_store import JobRecord

_CLOSED_MESSAGE = "The endpoint that ran this job was closed"


class JobEventListener(Protocol):
    """Is informed about the ends of jobs and endpoints, and receives commands of other endpoints."""

    def on_job_ended(self, arn: str) -> None:
        """Called in the job's thread when a job has ended and its hosts are removed."""

    def on_endpoint_lost(self, endpoint_id: str) -> None:
        """Called when an endpoint has died, after its jobs were closed."""

    def on_command(self, command: str, arn: str) -> None:
        """Called for a command in this endpoint's mailbox that is not about a job."""


class JobManager:
    """The jobs of one endpoint."""

    def __init__(self, services: JobServices, state: StateDir, registration: EndpointRegistration) -> None:
        """``registration`` is this endpoint's entry in the state directory, which several endpoints may
        share."""
        self.registration = registration
        self._services = services
        self._state_dir = state
        self._lock = threading.Lock()
        self._runner_by_arn: dict[str, JobRunner] = {}
        self._queued_runners: deque[JobRunner] = deque()
        self._is_closed = False
        self._event_listener: JobEventListener | None = None
        self._close_read_fd, self._close_write_fd = os.pipe()
        self._mailbox_thread = threading.Thread(
            target=self._execute_mailbox_commands, name="mailbox", daemon=True
        )
        self._mailbox_thread.start()

    def set_event_listener(self, listener: JobEventListener) -> None:
        """Set the listener. Call it before ``clean_up_dead_endpoints``, so that the listener misses
        nothing."""
        self._event_listener = listener

    def submit(self, record: JobRecord) -> None:
        """Run a job that the store already has; it waits while the maximum number of jobs is running."""
        runner = JobRunner(record, self._services, self._handle_job_end)
        with self._lock:
            if self._is_at_job_limit():
                self._queued_runners.append(runner)
                return
            self._runner_by_arn[runner.arn] = runner
        runner.start()

    def stop(self, record: JobRecord) -> None:
        """Ask a job to stop, whichever endpoint runs it. The job of a dead endpoint becomes Failed."""
        if record.endpoint_id == self.registration.id:
            self._stop_own_job(record.arn)
        elif not self.send_command(record.endpoint_id, f"stop {record.arn}"):
            self.clean_up_dead_endpoints()

    def send_command(self, endpoint_id: str, command: str) -> bool:
        """Write a line such as ``stop ARN`` into another endpoint's mailbox. Return False if that endpoint
        is dead."""
        return state_dir.send_to_endpoint(self._state_dir, endpoint_id, command)

    def wait_for_cleanup(self, arn: str) -> None:
        """Wait until the hosts of a job that has ended are removed: its final status is visible earlier."""
        with self._lock:
            runner = self._runner_by_arn.get(arn)
        if runner is not None:
            runner.join()

    def clean_up_if_dead(self, endpoint_ids: Iterable[str]) -> bool:
        """Return whether one of these endpoints has died; its jobs are Failed then. A program with an
        endpoint of its own may ask about jobs of others for days."""
        others = set(endpoint_ids) - {self.registration.id}
        if all(state_dir.is_endpoint_reachable(self._state_dir, endpoint_id) for endpoint_id in others):
            return False
        self.clean_up_dead_endpoints()
        return True

    def clean_up_dead_endpoints(self) -> None:
        """Fail the jobs of dead endpoints and remove their processes and files. An endpoint is a server
        process that runs jobs; several share one state directory."""
        for endpoint_id in state_dir.dead_endpoint_ids(self._state_dir):
            self._services.remove_leftovers(endpoint_id)
            for record in self._services.job_store.unfinished_jobs(endpoint_id):
                failure_reason = (
                    "InternalServerError: the endpoint that ran this job ended without closing it (found at "
                    f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}); run it again"
                )
                self._services.job_store.save_job_state(
                    record.arn, job_state.fail(record.state, failure_reason, time.time())
                )
            if self._event_listener is not None:
                self._event_listener.on_endpoint_lost(endpoint_id)
        abandoned_folders = list(state_dir.abandoned_host_folders(self._state_dir))
        if abandoned_folders:
            # In a thread: the hosts' folders may have very many files.
            threading.Thread(target=_remove_folders, args=(abandoned_folders,), name="leftovers").start()

    def close(self) -> None:
        """Stop all jobs, wait until their hosts are removed, and close this endpoint's mailbox."""
        with self._lock:
            self._is_closed = True
            runners = [*self._runner_by_arn.values(), *self._queued_runners]
        for runner in runners:
            self._stop_own_job(runner.arn, _CLOSED_MESSAGE, self._services.settings.close_grace_seconds)
        for runner in runners:
            runner.join()
        os.write(self._close_write_fd, b".")
        self._mailbox_thread.join()
        os.close(self._close_write_fd)
        os.close(self._close_read_fd)
        self.registration.close()

    @property
    def can_mount_anywhere(self) -> bool:
        """Whether the hosts can have a shared mount at any path."""
        return self._services.executor.can_mount_anywhere

    @property
    def runs_images(self) -> bool:
        """Whether the hosts are containers of the jobs' images."""
        return self._services.executor.runs_images

    def _stop_own_job(self, arn: str, message: str | None = None, grace_seconds: float | None = None) -> None:
        """Ask a job of this endpoint, running or queued, to stop; a job that has ended is ignored.
        ``message`` becomes its StatusMessage; ``grace_seconds`` are between SIGTERM and SIGKILL (None: the
        setting)."""
        with self._lock:
            queued_runner = next((queued for queued in self._queued_runners if queued.arn == arn), None)
            if queued_runner is not None:
                self._queued_runners.remove(queued_runner)
                self._runner_by_arn[arn] = queued_runner
            runner = self._runner_by_arn.get(arn)
        if runner is None:
            return  # the job has ended
        runner.request_stop("user", message, grace_seconds)
        if queued_runner is not None:
            # Started although max_parallel_jobs is reached: it runs nothing, but moves the job to Stopped.
            queued_runner.start()

    def _handle_job_end(self, runner: JobRunner) -> None:
        """Remove the runner of a job that has ended, start the next queued job and inform the event listener,
        which runs pipelines. A runner runs one job in a thread of its own; this is called in that thread."""
        next_runner: JobRunner | None = None
        with self._lock:
            del self._runner_by_arn[runner.arn]
            if self._queued_runners and not self._is_closed and not self._is_at_job_limit():
                next_runner = self._queued_runners.popleft()
                self._runner_by_arn[next_runner.arn] = next_runner
        if next_runner is not None:
            next_runner.start()
        if self._event_listener is not None:
            self._event_listener.on_job_ended(runner.arn)

    def _is_at_job_limit(self) -> bool:
        """Return whether as many jobs run as the setting ``max_parallel_jobs`` allows. The caller holds the
        lock."""
        max_parallel_jobs = self._services.settings.max_parallel_jobs  # None: no limit
        return max_parallel_jobs is not None and len(self._runner_by_arn) >= max_parallel_jobs

    def _execute_mailbox_commands(self) -> None:
        """Execute the commands in this endpoint's mailbox until the endpoint closes. The mailbox is a FIFO
        to which other endpoints, processes with the same state directory, write lines such as
        ``stop ARN``."""
        unfinished_line = b""
        mailbox_poll = select.poll()
        mailbox_poll.register(self.registration.mailbox_fd, select.POLLIN)
        mailbox_poll.register(self._close_read_fd, select.POLLIN)  # readable when this endpoint closes
        while True:
            ready_events = dict(mailbox_poll.poll())  # events by descriptor
            if self._close_read_fd in ready_events:
                return
            received_bytes = unfinished_line + os.read(self.registration.mailbox_fd, 1 << 16)
            *lines, unfinished_line = received_bytes.split(b"\n")
            for line in lines:
                command, _, arn = line.decode(errors="replace").partition(" ")
                if command == "stop":
                    self._stop_own_job(arn)
                elif self._event_listener is not None:  # a command about a pipeline execution
                    self._event_listener.on_command(command, arn)


def _remove_folders(folders: list[Path]) -> None:
    from smlaunch.local.executors.tree_removal import remove_or_warn

    for folder in folders:
        remove_or_warn(folder)
