"""Run one execution from its start to its end, in a thread of its own. ready_steps.py chooses the steps.

The thread wakes only for events: the end of a job, a request to stop, and the time of the next retry.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import string
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

from smlaunch.local.api_errors import ApiError
from smlaunch.local.pipelines import conditions, ready_steps, retries
from smlaunch.local.pipelines.definition import JOB_TYPES, Definition, Step
from smlaunch.local.pipelines.expressions import UnresolvedError, resolve, to_text
from smlaunch.local.pipelines.job_client import JobClient
from smlaunch.local.pipelines.records import Execution, StepRecord
from smlaunch.local.pipelines.references import ExecutionScope, Objects
from smlaunch.local.pipelines.store import PipelineStore
from smlaunch.local.request_context import RequestContext, assumed_role_arn, context_var

_STEP_FAILURE_REASON = "Step failure: One or multiple steps failed."
MAX_REASON_LENGTH = 1300
"""Longest failure reason that is stored, in characters."""
JOB_PREFIX = "pipelines"
"""First word of the names of all jobs of executions."""
_SESSION_NAME = "SageMaker"
"""Session of the role that an execution assumes. The name that the service uses is not documented."""

_RANDOM_CHARACTERS = string.ascii_lowercase + string.digits
_RANDOM_LENGTH = 10
_MAX_NAME_LENGTH = 63
_CACHE_KEY_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "Training": frozenset(
        {"AlgorithmSpecification", "CheckpointConfig", "DebugHookConfig", "DebugRuleConfigurations"}
        | {"Environment", "HyperParameters", "InputDataConfig"}
    ),
    "Processing": frozenset({"AppSpecification", "Environment", "ProcessingInputs"}),
}
"""By type of step: the arguments in its cache key. Source: developer guide, default cache key attributes by
pipeline step type."""


@dataclass(frozen=True)
class PipelineServices:
    """The parts of the endpoint that executions use."""

    store: PipelineStore
    job_client: JobClient
    objects: Objects


@dataclass
class _JobStep:
    """A step whose job runs, or that waits for a retry."""

    step: Step
    retry_at: float | None = None
    """When the retry is due, on the monotonic clock; None while a job runs."""
    retry_counts: Counter[int] = field(default_factory=Counter)
    """Number of retries so far, by the index of the policy."""
    first_failure_times: dict[int, float] = field(default_factory=dict)
    """Monotonic time of the first failure, by the index of the policy."""


class ExecutionRunner:
    """Runs one execution."""

    def __init__(
        self,
        execution: Execution,
        definition: Definition,
        services: PipelineServices,
        on_end: Callable[[ExecutionRunner], None],
    ) -> None:
        """``on_end``: called in the execution's thread after its end."""
        self.arn = execution.arn
        self.id = execution.id
        self._execution = execution
        self._definition = definition
        self._services = services
        self._on_end = on_end
        self._record_by_step_name = services.store.steps(execution.arn)
        self._job_step_by_name: dict[str, _JobStep] = {}
        """Steps whose jobs run or wait for a retry, by name."""
        self._lock = threading.Lock()
        self._stop_reason: str | None = None
        """None until the execution is stopped; empty if a client asks for it."""
        self._events: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"execution {execution.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def wake(self) -> None:
        """Make the thread look at the execution's jobs."""
        self._events.put(None)

    def stop(self, reason: str = "") -> None:
        """Stop the execution. No job is created after this returns. ``reason``: its FailureReason, if not
        empty."""
        with self._lock:
            if self._execution.has_ended or self._stop_reason is not None:
                return
            self._stop_reason = reason
            self._save(status="Stopping")
        self.wake()

    # ---- the execution's thread

    def _run(self) -> None:
        region, role = self._execution.region, self._execution.role
        context_var.set(
            RequestContext(region, arn=assumed_role_arn(role, _SESSION_NAME, region), request_id=self.id)
        )
        try:
            self._run_steps()
        except Exception as error:
            # The endpoint's own fault: the execution must say so, and the endpoint must go on.
            traceback.print_exc()
            self._give_up(f"InternalServerError: {type(error).__name__}: {error}")
        finally:
            self._on_end(self)

    def _run_steps(self) -> None:
        """Start steps and handle the ends of their jobs until none can start or run any more; then store the
        final status."""
        while True:
            self._check_jobs()
            self._start_steps()
            if self._stop_reason is not None:
                self._stop_steps()
            if not self._job_step_by_name and (
                self._stop_reason is not None or not self._find_startable_steps()
            ):
                break
            self._wait()
        with self._lock:
            if self._stop_reason is not None:
                self._save(status="Stopped", failure=self._stop_reason or None)
            elif any(
                record.status in ready_steps.UNSUCCESSFUL_STATUSES
                for record in self._record_by_step_name.values()
            ):
                self._save(status="Failed", failure=_STEP_FAILURE_REASON)
            else:
                self._save(status="Succeeded")

    def _wait(self) -> None:
        """Wait for an event or the next retry."""
        retry_times = [
            job_step.retry_at for job_step in self._job_step_by_name.values() if job_step.retry_at is not None
        ]
        with suppress(Empty):
            self._events.get(timeout=max(0.0, min(retry_times) - time.monotonic()) if retry_times else None)

    def _check_jobs(self) -> None:
        """Handle the ends of jobs."""
        for name, job_step in list(self._job_step_by_name.items()):
            record = self._record_by_step_name[name]
            if job_step.retry_at is not None or record.job_name is None:
                continue
            try:
                job = self._services.job_client.describe(record.type, record.job_name)
            except ApiError as error:
                self._finish(name, "Failed", failure=f"InternalServerError: {error.message}")
                continue
            self._handle_status(name, job_step, job[f"{record.type}JobStatus"], job)

    def _handle_status(self, name: str, job_step: _JobStep, status: str, job: Mapping[str, Any]) -> None:
        """Finish a step whose job has ended with ``status``, or let it be retried. ``job``: the response of
        Describe."""
        if status == "Completed":
            self._finish(name, "Succeeded")
        elif status == "Failed":
            reason = job.get("FailureReason") or job.get("ExitMessage") or "the job failed"
            self._handle_failure(name, job_step, retries.classify_failure_reason(reason), reason)
        elif status == "Stopped" and self._stop_reason is not None:
            self._finish(name, "Stopped")
        elif status == "Stopped":
            secondary_status = job.get("SecondaryStatus", status)
            failure = f"ClientError: the step's job was stopped ({secondary_status})"
            self._finish(name, "Failed", failure=failure)

    def _find_startable_steps(self) -> list[str]:
        """Return the steps that can start, apart from the limit on parallel steps. None can once a Fail step
        has run."""
        if any(record.type == "Fail" for record in self._record_by_step_name.values()):
            return []
        return ready_steps.find_ready_steps(self._definition, self._record_by_step_name)

    def _start_steps(self) -> None:
        """Start the retries that are due and all steps that can start, including those that become ready when
        another step ends at once."""
        now = time.monotonic()
        for name, job_step in list(self._job_step_by_name.items()):
            if job_step.retry_at is not None and job_step.retry_at <= now:
                job_step.retry_at = None
                self._create_job(name, job_step)
        has_started = True
        while has_started and self._stop_reason is None:
            has_started = False
            for name in self._find_startable_steps():
                step = self._definition.steps[name]
                limit = self._execution.parallelism
                if step.type in JOB_TYPES and limit is not None and len(self._job_step_by_name) >= limit:
                    continue
                has_started = True
                self._start_step(step)
                if step.type == "Fail":
                    break

    def _start_step(self, step: Step) -> None:
        """Store that a step has started; create its job, or evaluate a condition or failure step at once."""
        number = max((record.number for record in self._record_by_step_name.values()), default=0) + 1
        execution = self._execution
        self._save_step(
            StepRecord(
                *(execution.arn, execution.pipeline, step.name, step.type, "Starting", time.time(), number)
            )
        )
        if step.type in JOB_TYPES:
            self._job_step_by_name[step.name] = _JobStep(step)
            self._create_job(step.name, self._job_step_by_name[step.name])
            return
        try:
            if step.type == "Fail":
                message = to_text(resolve(step.arguments["ErrorMessage"], self._scope()))
                self._finish(step.name, "Failed", message=message, failure=message)
            else:
                outcome = all(
                    conditions.evaluate(condition, self._scope())
                    for condition in step.arguments["Conditions"]
                )
                self._finish(step.name, "Succeeded", outcome=outcome)
        except UnresolvedError as error:
            self._finish(step.name, "Failed", failure=f"ClientError: {error}")

    # ---- steps that are jobs

    def _create_job(self, name: str, job_step: _JobStep) -> None:
        """Create a step's job, or reuse a cached result. An error counts as a failure of the step."""
        step, record = job_step.step, self._record_by_step_name[name]
        job_name = _make_job_name(self._execution.id, name, record.attempts)
        try:
            cache_key = self._compute_cache_key(step)
            if record.attempts == 0 and cache_key is not None and self._reuse_result(step, cache_key):
                return
            arguments = resolve(step.arguments, self._scope(job_name))
        except UnresolvedError as error:
            self._finish(name, "Failed", failure=f"ClientError: {error}")
            return
        request = {**arguments, JOB_TYPES[step.type][1]: job_name}
        record = replace(record, attempts=record.attempts + 1, cache_key=cache_key, failure=None)
        self._save_step(record)
        with self._lock:
            if self._stop_reason is not None:
                return
            try:
                arn = self._services.job_client.create(step.type, request)
                self._save_step(replace(record, status="Executing", job=arn, job_name=job_name))
            except ApiError as error:
                last_error = error
            else:
                return
        self._handle_failure(name, job_step, retries.classify_error(last_error), f"ClientError: {last_error}")

    def _compute_cache_key(self, step: Step) -> str | None:
        """Return the key of a step's result in the cache; None for a step without a cache."""
        if step.max_cache_age_seconds is None:
            return None
        members = _CACHE_KEY_ARGUMENTS[step.type]
        arguments = {member: value for member, value in step.arguments.items() if member in members}
        text = json.dumps([step.type, resolve(arguments, self._scope())], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _reuse_result(self, step: Step, cache_key: str) -> bool:
        """Finish the step with an earlier result, if one is recent enough and its job still exists. Returns
        whether it did."""
        assert step.max_cache_age_seconds is not None
        earliest_end = time.time() - step.max_cache_age_seconds
        cached_step = self._services.store.find_cached_step(
            self._execution.pipeline, step.name, cache_key, earliest_end
        )
        if cached_step is None or cached_step.job_name is None:
            return False
        try:
            self._services.job_client.describe(step.type, cached_step.job_name)
        except ApiError:
            return False
        self._finish(
            step.name,
            "Succeeded",
            cache_key=cache_key,
            job=cached_step.job,
            job_name=cached_step.job_name,
            cached_from_execution=cached_step.execution,
        )
        return True

    def _handle_failure(self, name: str, job_step: _JobStep, exception_type: str | None, reason: str) -> None:
        """Schedule a retry by the first policy for the exception type; without one the step has failed."""
        for index, policy in enumerate(job_step.step.retry_policies):
            if exception_type not in policy.exception_types or self._stop_reason is not None:
                continue
            now = time.monotonic()
            first_failure_time = job_step.first_failure_times.setdefault(index, now)
            job_step.retry_counts[index] += 1
            wait_seconds = policy.compute_wait(job_step.retry_counts[index], now - first_failure_time)
            if wait_seconds is not None:
                job_step.retry_at = now + wait_seconds
                record = self._record_by_step_name[name]
                self._save_step(replace(record, status="Starting", failure=reason[:MAX_REASON_LENGTH]))
                return
            break
        self._finish(name, "Failed", failure=reason)

    def _stop_steps(self) -> None:
        """Ask the jobs of all running steps to stop, and finish steps that have no job."""
        for name, job_step in list(self._job_step_by_name.items()):
            record = self._record_by_step_name[name]
            if job_step.retry_at is not None or record.job_name is None or record.status == "Starting":
                self._finish(name, "Stopped")
            elif record.status != "Stopping":
                self._save_step(replace(record, status="Stopping"))
                self._services.job_client.stop(record.type, record.job_name)

    # ---- records

    def _scope(self, new_job_name: str = "") -> ExecutionScope:
        services = self._services
        return ExecutionScope(
            *(self._execution, self._definition, self._record_by_step_name),
            *(services.job_client, services.objects, new_job_name),
        )

    def _save_step(self, record: StepRecord) -> None:
        self._services.store.save_step(record)
        self._record_by_step_name[record.name] = record

    def _finish(self, name: str, status: str, failure: str | None = None, **changes: Any) -> None:
        """Record the end of a step. ``changes``: further members of its StepRecord."""
        self._job_step_by_name.pop(name, None)
        reason = None if failure is None else failure[:MAX_REASON_LENGTH]
        changes = {"status": status, "failure": reason, "ended": time.time(), **changes}
        self._save_step(replace(self._record_by_step_name[name], **changes))

    def _save(self, **changes: Any) -> None:
        """Change members of the execution and save it."""
        self._execution = replace(self._execution, modified=time.time(), **changes)
        self._services.store.save(self._execution)

    def _give_up(self, reason: str) -> None:
        """Stop all jobs and close the execution as failed."""
        for name in list(self._job_step_by_name):
            record = self._record_by_step_name[name]
            if record.job_name is not None:
                self._services.job_client.stop(record.type, record.job_name)
            self._finish(name, "Failed", failure=reason)
        with self._lock:
            self._save(status="Failed", failure=reason[:MAX_REASON_LENGTH])


def _make_job_name(execution_id: str, step: str, attempts: int) -> str:
    """Return ``pipelines-<execution>-<step>-<random>``, of at most 63 characters. ``attempts``: number of
    earlier attempts. The random part begins with a for the first attempt and b for the second, so that a
    fault plan can name one of them."""
    first_letter = string.ascii_lowercase[attempts % 26]
    others = (secrets.choice(_RANDOM_CHARACTERS) for _ in range(_RANDOM_LENGTH - 1))
    random_part = first_letter + "".join(others)
    max_length = _MAX_NAME_LENGTH - len(f"{JOB_PREFIX}-{execution_id}---{random_part}") + 1
    step_part = re.sub("[^A-Za-z0-9]+", "-", step)[:max_length].strip("-")
    return "-".join(part for part in (JOB_PREFIX, execution_id, step_part, random_part) if part)
