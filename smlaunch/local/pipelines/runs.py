"""All executions of one endpoint, and those of endpoints that died."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

from smlaunch.local.jobs.manager import JobManager
from smlaunch.local.pipelines.definition import Definition
from smlaunch.local.pipelines.records import STEP_ENDED, Execution
from smlaunch.local.pipelines.runner import JOB_PREFIX, REASON_LIMIT, ExecutionRunner, Rooms

_OF_EXECUTION = re.compile(rf"/{JOB_PREFIX}-([a-z0-9]+)-")
_STOP = "stop-execution"
_CLOSED = "The endpoint that ran this execution was closed"


class PipelineRuns:
    """Follows the endpoint's jobs (jobs/manager.py, JobEventListener)."""

    def __init__(self, rooms: Rooms, jobs: JobManager) -> None:
        self._rooms = rooms
        self._jobs = jobs
        self._lock = threading.Lock()
        self._running: dict[str, ExecutionRunner] = {}
        self._closed = False

    @property
    def owner(self) -> str:
        return self._jobs.owner.id

    def start(self, execution: Execution, definition: Definition) -> None:
        """Goes on with an execution that the store has: its steps that have succeeded stay so."""
        runner = ExecutionRunner(execution, definition, self._rooms, self._finished)
        with self._lock:
            self._running[execution.id] = runner
            if self._closed:
                runner.stop(_CLOSED)
        runner.start()

    def stop(self, execution: Execution) -> None:
        """Whichever endpoint runs it. One whose endpoint is gone is closed as failed."""
        if execution.owner == self.owner:
            self._stop_own(execution.id)
        elif not self._jobs.send_command(execution.owner, f"{_STOP} {execution.arn}"):
            self._jobs.clean_up_dead_endpoints()

    def close(self) -> None:
        """No execution creates a job any more; ``join`` waits for them, once the jobs have been stopped."""
        with self._lock:
            self._closed = True
            runners = list(self._running.values())
        for runner in runners:
            runner.stop(_CLOSED)

    def join(self) -> None:
        with self._lock:
            runners = list(self._running.values())
        for runner in runners:
            runner.join()

    # What the jobs' manager tells

    def on_job_ended(self, arn: str) -> None:
        match = _OF_EXECUTION.search(arn)
        if match is not None:
            with self._lock:
                runner = self._running.get(match[1])
            if runner is not None:
                runner.wake()

    def on_command(self, command: str, arn: str) -> None:
        if command == _STOP:
            self._stop_own(arn.rpartition("/")[2])

    def on_owner_lost(self, owner: str) -> None:
        """The jobs of that endpoint have been closed as failed already."""
        now = time.time()
        reason = (
            "InternalServerError: the endpoint that ran this execution ended without closing it (found at "
            f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(now))}); RetryPipelineExecution goes on"
        )[:REASON_LIMIT]
        store = self._rooms.store
        for execution in store.unfinished(owner):
            for step in store.steps(execution.arn).values():
                if step.status not in STEP_ENDED:
                    store.save_step(replace(step, status="Failed", ended=now, failure=reason))
            store.save(replace(execution, status="Failed", modified=now, failure=reason))

    def _stop_own(self, execution_id: str) -> None:
        with self._lock:
            runner = self._running.get(execution_id)
        if runner is not None:
            runner.stop()

    def _finished(self, runner: ExecutionRunner) -> None:
        with self._lock:
            del self._running[runner.id]
