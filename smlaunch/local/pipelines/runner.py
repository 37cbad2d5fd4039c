"""One execution from its start to its end: the thin shell around frontier.py. One thread per execution.

It waits on events only: a job that ended, a request to stop, and the next retry's time.
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
from smlaunch.local.pipelines.expressions import Unresolved, as_text, resolve
from smlaunch.local.pipelines.job_client import JobClient
from smlaunch.local.pipelines.records import Execution, StepRecord
from smlaunch.local.pipelines.references import ExecutionScope, Objects
from smlaunch.local.pipelines.store import PipelineStore
from smlaunch.local.request_context import RequestContext, assumed_role_arn, context_var

FAILED = "Step failure: One or multiple steps failed."
REASON_LIMIT = 1300
JOB_PREFIX = "pipelines"
_SESSION = "SageMaker"
"""Of the role that an execution acts under; what the service calls it is not documented."""

_LETTERS = string.ascii_lowercase + string.digits
_NAME_ROOM = 63
_RANDOM = 10
_COMPARED: Mapping[str, frozenset[str]] = {
    "Training": frozenset(
        {"AlgorithmSpecification", "CheckpointConfig", "DebugHookConfig", "DebugRuleConfigurations"}
        | {"Environment", "HyperParameters", "InputDataConfig"}
    ),
    "Processing": frozenset({"AppSpecification", "Environment", "ProcessingInputs"}),
}
"""By type of step: the arguments that a cached result is found by. Source: developer guide, default cache key
attributes by pipeline step type."""


@dataclass(frozen=True)
class Rooms:
    store: PipelineStore
    door: JobClient
    objects: Objects


@dataclass
class _Active:
    """A step whose job runs, or that waits until ``retry_at`` (monotonic) for its next try. ``tried`` and
    ``since``: per policy, retries so far and when its first failure came."""

    step: Step
    retry_at: float | None = None
    tried: Counter[int] = field(default_factory=Counter)
    since: dict[int, float] = field(default_factory=dict)


class ExecutionRunner:
    """``ended`` is called in the execution's thread when all is over."""

    def __init__(
        self,
        execution: Execution,
        definition: Definition,
        rooms: Rooms,
        ended: Callable[[ExecutionRunner], None],
    ) -> None:
        self.arn = execution.arn
        self.id = execution.id
        self._execution = execution
        self._definition = definition
        self._rooms = rooms
        self._ended = ended
        self._records = rooms.store.steps(execution.arn)
        self._active: dict[str, _Active] = {}
        self._lock = threading.Lock()
        self._stopping: str | None = None
        self._events: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"execution {execution.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def wake(self) -> None:
        """Something may have happened to one of its jobs."""
        self._events.put(None)

    def stop(self, reason: str = "") -> None:
        """Once this returns no further job is created. ``reason`` is told as why the execution ended."""
        with self._lock:
            if self._execution.ended or self._stopping is not None:
                return
            self._stopping = reason
            self._save(status="Stopping")
        self.wake()

    # The execution's thread

    def _run(self) -> None:
        region, role = self._execution.region, self._execution.role
        context_var.set(
            RequestContext(region, arn=assumed_role_arn(role, _SESSION, region), request_id=self.id)
        )
        try:
            self._drive()
        except Exception as error:
            # The endpoint's own fault: the execution must say so, and the endpoint must go on.
            traceback.print_exc()
            self._give_up(f"InternalServerError: {type(error).__name__}: {error}")
        finally:
            self._ended(self)

    def _drive(self) -> None:
        while True:
            self._collect()
            self._begin()
            if self._stopping is not None:
                self._stop_steps()
            if not self._active and (self._stopping is not None or not self._startable()):
                break
            self._wait()
        with self._lock:
            if self._stopping is not None:
                self._save(status="Stopped", failure=self._stopping or None)
            elif any(record.status in ready_steps.ENDED_BADLY for record in self._records.values()):
                self._save(status="Failed", failure=FAILED)
            else:
                self._save(status="Succeeded")

    def _wait(self) -> None:
        ends = [one.retry_at for one in self._active.values() if one.retry_at is not None]
        with suppress(Empty):
            self._events.get(timeout=max(0.0, min(ends) - time.monotonic()) if ends else None)

    def _collect(self) -> None:
        """Looks at every job that is running."""
        for name, active in list(self._active.items()):
            record = self._records[name]
            if active.retry_at is not None or record.job_name is None:
                continue
            try:
                job = self._rooms.door.describe(record.type, record.job_name)
            except ApiError as error:
                self._finish(name, "Failed", failure=f"InternalServerError: {error.message}")
                continue
            self._look(name, active, job[f"{record.type}JobStatus"], job)

    def _look(self, name: str, active: _Active, status: str, job: Mapping[str, Any]) -> None:
        if status == "Completed":
            self._finish(name, "Succeeded")
        elif status == "Failed":
            reason = job.get("FailureReason") or job.get("ExitMessage") or "the job failed"
            self._failed(name, active, retries.of_reason(reason), reason)
        elif status == "Stopped" and self._stopping is not None:
            self._finish(name, "Stopped")
        elif status == "Stopped":
            how = job.get("SecondaryStatus", status)
            self._finish(name, "Failed", failure=f"ClientError: the step's job was stopped ({how})")

    def _startable(self) -> list[str]:
        """Steps that could begin, if there is room. A Fail step that was reached lets none begin."""
        if any(record.type == "Fail" for record in self._records.values()):
            return []
        return ready_steps.ready(self._definition, self._records)

    def _begin(self) -> None:
        """All that can begin now, also what becomes possible by that."""
        now = time.monotonic()
        for name, active in list(self._active.items()):
            if active.retry_at is not None and active.retry_at <= now:
                active.retry_at = None
                self._create(name, active)
        has_started = True
        while has_started and self._stopping is None:
            has_started = False
            for name in self._startable():
                step = self._definition.steps[name]
                room = self._execution.parallelism
                if step.type in JOB_TYPES and room is not None and len(self._active) >= room:
                    continue
                has_started = True
                self._start(step)
                if step.type == "Fail":
                    break

    def _start(self, step: Step) -> None:
        number = max((record.number for record in self._records.values()), default=0) + 1
        execution = self._execution
        self._keep(
            StepRecord(
                *(execution.arn, execution.pipeline, step.name, step.type, "Starting", time.time(), number)
            )
        )
        if step.type in JOB_TYPES:
            self._active[step.name] = _Active(step)
            self._create(step.name, self._active[step.name])
            return
        try:
            if step.type == "Fail":
                message = as_text(resolve(step.arguments["ErrorMessage"], self._scope()))
                self._finish(step.name, "Failed", message=message, failure=message)
            else:
                outcome = all(conditions.holds(one, self._scope()) for one in step.arguments["Conditions"])
                self._finish(step.name, "Succeeded", outcome=outcome)
        except Unresolved as error:
            self._finish(step.name, "Failed", failure=f"ClientError: {error}")

    # ---- steps that are jobs

    def _create(self, name: str, active: _Active) -> None:
        step, record = active.step, self._records[name]
        new = _new_name(self._execution.id, name, record.attempts)
        try:
            key = self._key(step)
            if record.attempts == 0 and key is not None and self._from_cache(step, key):
                return
            request = {**resolve(step.arguments, self._scope(new)), JOB_TYPES[step.type][1]: new}
        except Unresolved as error:
            self._finish(name, "Failed", failure=f"ClientError: {error}")
            return
        record = replace(record, attempts=record.attempts + 1, key=key, failure=None)
        self._keep(record)
        with self._lock:
            if self._stopping is not None:
                return
            try:
                arn = self._rooms.door.create(step.type, request)
                self._keep(replace(record, status="Executing", job=arn, job_name=new))
            except ApiError as error:
                last_error = error
            else:
                return
        self._failed(name, active, retries.of_error(last_error), f"ClientError: {last_error}")

    def _key(self, step: Step) -> str | None:
        """What a step's arguments are known by in the cache; None for a step that is not kept there."""
        if step.cached is None:
            return None
        compared = _COMPARED[step.type]
        arguments = {key: value for key, value in step.arguments.items() if key in compared}
        text = json.dumps([step.type, resolve(arguments, self._scope())], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _from_cache(self, step: Step, key: str) -> bool:
        """Takes an earlier result, when there is one that is young enough and its job is still known."""
        assert step.cached is not None
        since = time.time() - step.cached
        found = self._rooms.store.cached(self._execution.pipeline, step.name, key, since)
        if found is None or found.job_name is None:
            return False
        try:
            self._rooms.door.describe(step.type, found.job_name)
        except ApiError:
            return False
        self._finish(
            step.name, "Succeeded", key=key, job=found.job, job_name=found.job_name, hit=found.execution
        )
        return True

    def _failed(self, name: str, active: _Active, kind: str | None, reason: str) -> None:
        """Tries again if a policy says so."""
        for number, policy in enumerate(active.step.retries):
            if kind not in policy.kinds or self._stopping is not None:
                continue
            now = time.monotonic()
            since = active.since.setdefault(number, now)
            active.tried[number] += 1
            wait = policy.wait(active.tried[number], now - since)
            if wait is not None:
                active.retry_at = now + wait
                self._keep(replace(self._records[name], status="Starting", failure=reason[:REASON_LIMIT]))
                return
            break
        self._finish(name, "Failed", failure=reason)

    def _stop_steps(self) -> None:
        for name, active in list(self._active.items()):
            record = self._records[name]
            if active.retry_at is not None or record.job_name is None or record.status == "Starting":
                self._finish(name, "Stopped")
            elif record.status != "Stopping":
                self._keep(replace(record, status="Stopping"))
                self._rooms.door.stop(record.type, record.job_name)

    # ---- what is remembered

    def _scope(self, new_job: str = "") -> ExecutionScope:
        rooms = self._rooms
        return ExecutionScope(
            self._execution, self._definition, self._records, rooms.door, rooms.objects, new_job
        )

    def _keep(self, record: StepRecord) -> None:
        self._rooms.store.save_step(record)
        self._records[record.name] = record

    def _finish(self, name: str, status: str, failure: str | None = None, **changes: Any) -> None:
        self._active.pop(name, None)
        reason = None if failure is None else failure[:REASON_LIMIT]
        changes = {"status": status, "failure": reason, "ended": time.time(), **changes}
        self._keep(replace(self._records[name], **changes))

    def _save(self, **changes: Any) -> None:
        self._execution = replace(self._execution, modified=time.time(), **changes)
        self._rooms.store.save(self._execution)

    def _give_up(self, reason: str) -> None:
        for name in list(self._active):
            record = self._records[name]
            if record.job_name is not None:
                self._rooms.door.stop(record.type, record.job_name)
            self._finish(name, "Failed", failure=reason)
        with self._lock:
            self._save(status="Failed", failure=reason[:REASON_LIMIT])


def _new_name(execution: str, step: str, tries: int) -> str:
    """``pipelines-<execution>-<step>-<random>``, of the 63 letters that a job's name may have. The random
    part begins with a for the first try, b for the second: a fault plan can mean one of them."""
    first = string.ascii_lowercase[tries % 26]
    random = first + "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM - 1))
    room = _NAME_ROOM - len(f"{JOB_PREFIX}-{execution}---{random}") + 1
    readable = re.sub("[^A-Za-z0-9]+", "-", step)[:room].strip("-")
    return "-".join(word for word in (JOB_PREFIX, execution, readable, random) if word)
