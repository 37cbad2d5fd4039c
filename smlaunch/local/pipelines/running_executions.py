"""The running executions of one endpoint, and the recovery of those of endpoints that died."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

from smlaunch.local.jobs.job_manager import JobManager
from smlaunch.local.pipelines.execution_runner import (
    JOB_PREFIX,
    MAX_REASON_LENGTH,
    ExecutionRunner,
    PipelineServices,
)
from smlaunch.local.pipelines.pipeline_records import FINAL_STATUSES, Execution
from smlaunch.local.pipelines.pipeline_steps import Definition

_JOB_ARN = re.compile(rf"/{JOB_PREFIX}-([a-z0-9]+)-")
_STOP_COMMAND = "stop-execution"
_CLOSED_REASON = "The endpoint that ran this execution was closed"


class PipelineExecutions:
    """Runs executions, each in a thread of its own. It is the JobEventListener of the
    endpoint's jobs (jobs/manager.py)."""

    def __init__(self, services: PipelineServices, jobs: JobManager) -> None:
        self._services = services
        self._jobs = jobs
        self._lock = threading.Lock()
        self._runner_by_arn: dict[str, ExecutionRunner] = {}
        self._is_closed = False

    @property
    def endpoint_id(self) -> str:
        """Id of this endpoint process."""
        return self._jobs.registration.id

    def start(self, execution: Execution, definition: Definition) -> None:
        """Run an execution that is in the store, without the steps that have succeeded already."""
        runner = ExecutionRunner(execution, definition, self._services, self._remove_runner)
        with self._lock:
            self._runner_by_arn[execution.id] = runner
            if self._is_closed:
                runner.stop(_CLOSED_REASON)
        runner.start()

    def is_lost(self, execution: Execution) -> bool:
        """Return whether the endpoint of an execution that was unfinished has died. It is closed as failed
        then."""
        return execution.status not in FINAL_STATUSES and self._jobs.clean_up_if_dead([execution.owner])

    def stop(self, execution: Execution) -> None:
        """Stop an execution of this endpoint or of another one. If its endpoint has died, it is closed as
        failed."""
        if execution.owner == self.endpoint_id:
            self._stop_own_execution(execution.id)
        elif not self._jobs.send_command(execution.owner, f"{_STOP_COMMAND} {execution.arn}"):
            self._jobs.clean_up_dead_endpoints()

    def close(self) -> None:
        """Stop all executions. None creates a job after this returns. Stop the jobs, then call ``join``."""
        with self._lock:
            self._is_closed = True
            runners = list(self._runner_by_arn.values())
        for runner in runners:
            runner.stop(_CLOSED_REASON)

    def join(self) -> None:
        """Wait for the ends of all executions."""
        with self._lock:
            runners = list(self._runner_by_arn.values())
        for runner in runners:
            runner.join()

    # ---- JobEventListener

    def on_job_ended(self, arn: str) -> None:
        match = _JOB_ARN.search(arn)
        if match is not None:
            with self._lock:
                runner = self._runner_by_arn.get(match[1])
            if runner is not None:
                runner.wake()

    def on_command(self, command: str, arn: str) -> None:
        if command == _STOP_COMMAND:
            self._stop_own_execution(arn.rpartition("/")[2])

    def on_endpoint_lost(self, endpoint_id: str) -> None:
        """Fail the unfinished executions of an endpoint process that died. Its jobs have failed already."""
        now = time.time()
        failure_reason = (
            "InternalServerError: the endpoint that ran this execution ended without closing it (found at "
            f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(now))}); RetryPipelineExecution goes on"
        )[:MAX_REASON_LENGTH]
        pipeline_store = self._services.store
        for execution in pipeline_store.list_unfinished_executions(endpoint_id):
            for step_record in pipeline_store.get_steps(execution.arn).values():
                if step_record.status not in FINAL_STATUSES:
                    pipeline_store.save_step(
                        replace(step_record, status="Failed", ended=now, failure=failure_reason)
                    )
            pipeline_store.save_execution(
                replace(execution, status="Failed", modified=now, failure=failure_reason)
            )

    def _stop_own_execution(self, execution_id: str) -> None:
        with self._lock:
            runner = self._runner_by_arn.get(execution_id)
        if runner is not None:
            runner.stop()

    def _remove_runner(self, runner: ExecutionRunner) -> None:
        with self._lock:
            del self._runner_by_arn[runner.id]
