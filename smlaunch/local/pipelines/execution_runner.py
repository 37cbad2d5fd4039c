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

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.request_context import RequestContext, assumed_role_arn, context_var
from smlaunch.local.pipelines import pipeline_conditions, ready_steps, step_retries
from smlaunch.local.pipelines.expressions import UnresolvedError, expression_value_text, resolve_expressions
from smlaunch.local.pipelines.job_client import JobClient
from smlaunch.local.pipelines.pipeline_records import Execution, StepRecord
from smlaunch.local.pipelines.pipeline_steps import JOB_KIND_BY_STEP_TYPE, Definition, Step
from smlaunch.local.pipelines.pipeline_store import PipelineStore
from smlaunch.local.pipelines.reference_values import ExecutionScope, S3ObjectStore

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
    object_store: S3ObjectStore


@dataclass
class _RunningJobStep:
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
        on_execution_end: Callable[[ExecutionRunner], None],
    ) -> None:
        """``on_execution_end``: called in the execution's thread after its end."""
        self.arn = execution.arn
        self.id = execution.id
        self._execution = execution
        self._definition = definition
        self._services = services
        self._on_execution_end = on_execution_end
        self._record_by_step_name = services.store.get_steps(execution.arn)
        self._running_job_step_by_name: dict[str, _RunningJobStep] = {}
        """Steps whose jobs run or wait for a retry, by name."""
        self._lock = threading.Lock()
        self._stop_reason: str | None = None
        """None until the execution is stopped; empty if a client asks for it."""
        self._events: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._run_execution, name=f"execution {execution.id}", daemon=True
        )

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
            self._save_execution(status="Stopping")
        self.wake()

    # ---- the execution's thread

    def _run_execution(self) -> None:
        region, role = self._execution.region, self._execution.role
        context_var.set(
            RequestContext(region, arn=assumed_role_arn(role, _SESSION_NAME, region), request_id=self.id)
        )
        try:
            self._run_steps()
        except Exception as error:
            # The local endpoint's own fault: the execution must say so, and the local endpoint must go on.
            traceback.print_exc()
            self._fail_execution(f"InternalServerError: {type(error).__name__}: {error}")
        finally:
            self._on_execution_end(self)

    def _run_steps(self) -> None:
        """Run an execution of a pipeline: start steps and handle the ends of their jobs until none can start
        or run any more; then store the final status. ``_stop_reason`` is None until the execution is asked to
        stop; a step's record is its stored state."""
        while True:
            self._handle_job_ends()
            self._start_retries_and_steps()
            if self._stop_reason is not None:  # the execution was asked to stop
                self._stop_running_steps()
            may_start_steps = self._stop_reason is None and bool(self._find_startable_steps())
            if not self._running_job_step_by_name and not may_start_steps:
                break
            self._wait_for_event()  # the end of a job, a request to stop, or the time of a retry
        has_unsuccessful_step = any(
            record.status in ready_steps.UNSUCCESSFUL_STATUSES
            for record in self._record_by_step_name.values()
        )
        with self._lock:  # a client may ask for a stop in another thread
            if self._stop_reason is not None:  # empty: stopped by a client, without a reason
                self._save_execution(status="Stopped", failure=self._stop_reason or None)
            elif has_unsuccessful_step:
                self._save_execution(status="Failed", failure=_STEP_FAILURE_REASON)
            else:
                self._save_execution(status="Succeeded")

    def _wait_for_event(self) -> None:
        """Wait for an event or the next retry."""
        retry_times = [
            job_step.retry_at
            for job_step in self._running_job_step_by_name.values()
            if job_step.retry_at is not None
        ]
        with suppress(Empty):
            self._events.get(timeout=max(0.0, min(retry_times) - time.monotonic()) if retry_times else None)

    def _handle_job_ends(self) -> None:
        """Look at the job of each running step of the execution, and finish or retry the steps whose jobs
        have ended. A step's record is its stored state; ``retry_at`` of its job step is the time of the next
        retry, None if it does not wait for one."""
        for step_name, job_step in list(self._running_job_step_by_name.items()):
            record = self._record_by_step_name[step_name]
            if job_step.retry_at is not None or record.job_name is None:
                continue  # the step waits for a retry, or has no job yet
            try:
                job_description = self._services.job_client.describe_job(record.type, record.job_name)
            except ApiError as error:
                self._finish_step(step_name, "Failed", failure=f"InternalServerError: {error.message}")
                continue
            job_status = job_description[JOB_KIND_BY_STEP_TYPE[record.type].status_field]
            self._finish_or_retry_if_job_ended(step_name, job_step, job_status, job_description)

    def _finish_or_retry_if_job_ended(
        self, step_name: str, job_step: _RunningJobStep, job_status: str, job_description: Mapping[str, Any]
    ) -> None:
        """Finish or retry a step whose job has ended. ``job_status`` is the status in ``job_description``,
        the job's Describe response; other statuses than the final ones do nothing. ``job_step`` counts the
        step's retries; ``_stop_reason`` is None unless the execution was asked to stop."""
        if job_status == "Completed":
            self._finish_step(step_name, "Succeeded")
        elif job_status == "Failed":
            failure_reason = (
                job_description.get("FailureReason") or job_description.get("ExitMessage") or "the job failed"
            )
            # Retry policies name the kinds of errors that they cover, such as SageMaker.CAPACITY_ERROR.
            exception_type = step_retries.classify_failure_reason(failure_reason)
            self._retry_or_fail_step(step_name, job_step, exception_type, failure_reason)
        elif job_status == "Stopped" and self._stop_reason is not None:
            self._finish_step(step_name, "Stopped")
        elif job_status == "Stopped":  # by a client or a time limit, not with the execution
            secondary_status = job_description.get("SecondaryStatus", job_status)
            failure = f"ClientError: the step's job was stopped ({secondary_status})"
            self._finish_step(step_name, "Failed", failure=failure)

    def _find_startable_steps(self) -> list[str]:
        """Return the steps that can start, apart from the limit on parallel steps. None can once a Fail step
        has run."""
        if any(record.type == "Fail" for record in self._record_by_step_name.values()):
            return []
        return ready_steps.find_ready_steps(self._definition, self._record_by_step_name)

    def _start_retries_and_steps(self) -> None:
        """Start the retries that are due, then all steps of the execution that can start, unless it was asked
        to stop (``_stop_reason``)."""
        now = time.monotonic()
        for step_name, job_step in list(self._running_job_step_by_name.items()):
            if job_step.retry_at is not None and job_step.retry_at <= now:
                job_step.retry_at = None  # it does not wait any more
                self._create_job_or_use_cache(step_name, job_step)
        # A step that ends at once, such as a condition, may make others ready: look again.
        while self._stop_reason is None and self._try_start_ready_steps():
            pass

    def _try_start_ready_steps(self) -> bool:
        """Start the steps that are ready now, as far as the limit on parallel jobs allows. Return whether any
        was started."""
        has_started_a_step = False
        for step_name in self._find_startable_steps():
            step = self._definition.steps[step_name]
            if step.type in JOB_KIND_BY_STEP_TYPE and self._is_at_job_limit():
                continue  # conditions and Fail steps create no job
            has_started_a_step = True
            self._start_step(step)
            if step.type == "Fail":
                break  # no other step may start
        return has_started_a_step

    def _is_at_job_limit(self) -> bool:
        max_parallel_steps = self._execution.parallelism  # None: no limit
        return max_parallel_steps is not None and len(self._running_job_step_by_name) >= max_parallel_steps

    def _start_step(self, step: Step) -> None:
        """Store that a step of the pipeline has started, and create its job. Steps of other types end at
        once: a Condition decides by its outcome which branch runs, a Fail step fails the execution.
        A scope has the values of the expressions in a step's arguments, such as ``{"Get":
        "Parameters.Epochs"}``."""
        earlier_numbers = [record.number for record in self._record_by_step_name.values()]
        execution = self._execution
        self._save_step(
            StepRecord(
                execution=execution.arn,
                pipeline=execution.pipeline,
                name=step.name,
                type=step.type,
                status="Starting",
                started=time.time(),
                number=max(earlier_numbers, default=0) + 1,  # the order in which steps have started
            )
        )
        if step.type in JOB_KIND_BY_STEP_TYPE:  # Training or Processing
            job_step = _RunningJobStep(step)
            self._running_job_step_by_name[step.name] = job_step
            self._create_job_or_use_cache(step.name, job_step)
            return
        try:
            if step.type == "Fail":
                error_message = resolve_expressions(step.arguments["ErrorMessage"], self._create_scope())
                message = expression_value_text(error_message)  # a string as it is, other values as JSON
                self._finish_step(step.name, "Failed", message=message, failure=message)
            else:
                condition_outcome = all(
                    pipeline_conditions.evaluate_condition(condition, self._create_scope())
                    for condition in step.arguments["Conditions"]
                )
                self._finish_step(step.name, "Succeeded", outcome=condition_outcome)
        except UnresolvedError as error:
            self._finish_step(step.name, "Failed", failure=f"ClientError: {error}")

    # ---- steps that are jobs

    def _create_job_or_use_cache(self, step_name: str, job_step: _RunningJobStep) -> None:
        """Create the job of a step, or finish the step with a cached result: that of an earlier execution
        with the same arguments. An error of the creation is retried by the step's retry policies, or fails
        the step. The step's record is its stored state; a scope has the values of the expressions in its
        arguments, such as ``{"Get": "Parameters.Epochs"}``."""
        step, record = job_step.step, self._record_by_step_name[step_name]
        job_name = _make_job_name(self._execution.id, step_name, earlier_attempts=record.attempts)
        try:
            cache_key = self._compute_cache_key(step)  # None: the step uses no cache
            is_first_attempt = record.attempts == 0
            if is_first_attempt and cache_key is not None and self._try_finish_from_cache(step, cache_key):
                return
            arguments = resolve_expressions(step.arguments, self._create_scope(job_name))
        except UnresolvedError as error:
            self._finish_step(step_name, "Failed", failure=f"ClientError: {error}")
            return
        job_name_field = JOB_KIND_BY_STEP_TYPE[step.type].name_field  # TrainingJobName, ...
        record = replace(record, attempts=record.attempts + 1, cache_key=cache_key, failure=None)
        self._save_step(record)
        with self._lock:  # a request to stop must not be missed between the check and the creation
            if self._stop_reason is not None:  # asked to stop: the step is finished as Stopped elsewhere
                return
            try:
                job_arn = self._services.job_client.create_job(
                    step.type, {**arguments, job_name_field: job_name}
                )
                self._save_step(replace(record, status="Executing", job=job_arn, job_name=job_name))
                return
            except ApiError as error:
                creation_error = error
        exception_type = step_retries.classify_error(creation_error)
        self._retry_or_fail_step(step_name, job_step, exception_type, f"ClientError: {creation_error}")

    def _compute_cache_key(self, step: Step) -> str | None:
        """Return the key of a step's result in the cache; None for a step without a cache."""
        if step.max_cache_age_seconds is None:
            return None
        compared_names = _CACHE_KEY_ARGUMENTS[step.type]
        arguments = {name: value for name, value in step.arguments.items() if name in compared_names}
        cache_key_json = json.dumps(
            [step.type, resolve_expressions(arguments, self._create_scope())], sort_keys=True
        )
        return hashlib.sha256(cache_key_json.encode()).hexdigest()

    def _try_finish_from_cache(self, step: Step, cache_key: str) -> bool:
        """Finish the step with the result of an earlier execution that had the same arguments
        (``cache_key``), if one is recent enough and its job still exists. Return whether it did."""
        assert step.max_cache_age_seconds is not None
        earliest_end = time.time() - step.max_cache_age_seconds
        cached_step = self._services.store.find_cached_step(
            self._execution.pipeline, step.name, cache_key, earliest_end
        )
        if cached_step is None or cached_step.job_name is None:
            return False
        try:
            self._services.job_client.describe_job(step.type, cached_step.job_name)
        except ApiError:
            return False
        self._finish_step(
            step.name,
            "Succeeded",
            cache_key=cache_key,
            job=cached_step.job,
            job_name=cached_step.job_name,
            cached_from_execution=cached_step.execution,
        )
        return True

    def _retry_or_fail_step(
        self, step_name: str, job_step: _RunningJobStep, exception_type: str | None, failure_reason: str
    ) -> None:
        """Schedule a retry of a step by its first retry policy for ``exception_type``, such as
        SageMaker.CAPACITY_ERROR (None: no policy can cover the error). Without a policy, or if that allows no
        more retries, or when the execution stops, finish the step as failed."""
        retry_policies = job_step.step.retry_policies
        policy_index: int | None = None
        for index, policy in enumerate(retry_policies):
            if exception_type in policy.exception_types:
                policy_index = index
                break
        if policy_index is None or self._stop_reason is not None:
            self._finish_step(step_name, "Failed", failure=failure_reason)
            return
        now = time.monotonic()
        # Each policy counts its own retries and failures.
        first_failure_time = job_step.first_failure_times.setdefault(policy_index, now)
        job_step.retry_counts[policy_index] += 1
        wait_seconds = retry_policies[policy_index].seconds_before_retry(
            job_step.retry_counts[policy_index], now - first_failure_time
        )
        if wait_seconds is None:  # the policy allows no more retries
            self._finish_step(step_name, "Failed", failure=failure_reason)
            return
        job_step.retry_at = now + wait_seconds
        record = self._record_by_step_name[step_name]
        self._save_step(replace(record, status="Starting", failure=failure_reason[:MAX_REASON_LENGTH]))

    def _stop_running_steps(self) -> None:
        """Ask the jobs of all running steps of the execution to stop, and finish steps that have no job: they
        wait for a retry, or the execution was stopped before their job was created."""
        for step_name, job_step in list(self._running_job_step_by_name.items()):
            record = self._record_by_step_name[step_name]
            # retry_at: when the step's next retry is due; None if it does not wait for one.
            if job_step.retry_at is not None or record.job_name is None or record.status == "Starting":
                self._finish_step(step_name, "Stopped")
            elif record.status != "Stopping":
                self._save_step(replace(record, status="Stopping"))
                self._services.job_client.stop_job(record.type, record.job_name)

    # ---- records

    def _create_scope(self, new_job_name: str = "") -> ExecutionScope:
        services = self._services
        return ExecutionScope(
            *(self._execution, self._definition, self._record_by_step_name),
            *(services.job_client, services.object_store, new_job_name),
        )

    def _save_step(self, record: StepRecord) -> None:
        self._services.store.save_step(record)
        self._record_by_step_name[record.name] = record

    def _finish_step(self, step_name: str, status: str, failure: str | None = None, **changes: Any) -> None:
        """Record the end of a step. ``changes``: further fields of its StepRecord."""
        self._running_job_step_by_name.pop(step_name, None)
        reason = None if failure is None else failure[:MAX_REASON_LENGTH]
        changes = {"status": status, "failure": reason, "ended": time.time(), **changes}
        self._save_step(replace(self._record_by_step_name[step_name], **changes))

    def _save_execution(self, **changes: Any) -> None:
        """Change fields of the execution and save it."""
        self._execution = replace(self._execution, modified=time.time(), **changes)
        self._services.store.save_execution(self._execution)

    def _fail_execution(self, failure_reason: str) -> None:
        """Stop all jobs and close the execution as failed."""
        for step_name in list(self._running_job_step_by_name):
            record = self._record_by_step_name[step_name]
            if record.job_name is not None:
                self._services.job_client.stop_job(record.type, record.job_name)
            self._finish_step(step_name, "Failed", failure=failure_reason)
        with self._lock:
            self._save_execution(status="Failed", failure=failure_reason[:MAX_REASON_LENGTH])


def _make_job_name(execution_id: str, step_name: str, earlier_attempts: int) -> str:
    """Return ``pipelines-<execution>-<step>-<random>``, of at most 63 characters. ``earlier_attempts``:
    number of earlier attempts. The random part begins with a for the first attempt and b for the second,
    so that a fault plan can name one of them."""
    first_letter = string.ascii_lowercase[earlier_attempts % 26]
    others = (secrets.choice(_RANDOM_CHARACTERS) for _ in range(_RANDOM_LENGTH - 1))
    random_part = first_letter + "".join(others)
    max_length = _MAX_NAME_LENGTH - len(f"{JOB_PREFIX}-{execution_id}---{random_part}") + 1
    step_part = re.sub("[^A-Za-z0-9]+", "-", step_name)[:max_length].strip("-")
    return "-".join(part for part in (JOB_PREFIX, execution_id, step_part, random_part) if part)
