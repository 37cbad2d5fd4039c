"""Runs one job, in a thread of its own, from Starting to its final status.

Starting ── capacity? ──► Attempt ──► end
    ▲                        │ spot interruption: Interrupted
    └────────────────────────┤ InternalServerError and retries left: Restarting
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from smlaunch.local.faults import AttemptFaults, FaultPlan
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs import states, warm_pool
from smlaunch.local.jobs.attempt import Attempt, EndpointServices
from smlaunch.local.jobs.control import JobControl, JobStopping
from smlaunch.local.jobs.failure_reasons import INTERNAL, with_disk_full_message
from smlaunch.local.jobs.job_kind import AttemptOutcome, JobHandler
from smlaunch.local.jobs.kinds import HANDLER_FACTORIES
from smlaunch.local.jobs.metrics import MetricReader
from smlaunch.local.jobs.spec import JobSpec
from smlaunch.local.jobs.states import JobState, StopCause
from smlaunch.local.state_errors import StateDamaged

__all__ = ["EndpointServices", "JobRunner"]


class JobRunner:
    """Runs one job."""

    def __init__(
        self, record: JobRecord, services: EndpointServices, on_end: Callable[[JobRunner], None]
    ) -> None:
        """``on_end`` is called in the job's thread when the job has ended and its hosts are removed."""
        self.arn = record.arn
        self._record = record
        self._services = services
        self._on_end = on_end
        self._attempt: Attempt | None = None
        self._faults = services.settings.faults or FaultPlan()
        self._metric_reader = MetricReader(self._create_handler(AttemptFaults()).spec, services.metrics)
        self._control = JobControl(
            record.state, self._save, services.settings.stop_grace_seconds, _max_wait_end(record, time.time())
        )
        self._thread = threading.Thread(target=self._run, name=f"job {record.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def stop(self, cause: StopCause, message: str | None = None, grace: float | None = None) -> None:
        """Ask the job to stop; see JobControl.stop."""
        self._control.stop(cause, message, grace)

    # The methods below run in the job's thread.

    def _run(self) -> None:
        """Run the attempts of the job, store its final status, and remove its hosts. An error of the endpoint
        fails the job."""
        try:
            outcome = self._run_attempts()
        except JobStopping:
            outcome = AttemptOutcome()  # stopped between two attempts: there is no host and nothing to upload
        except Exception as error:
            # An error of the endpoint itself: the job fails with it, and the endpoint goes on.
            traceback.print_exc()
            reason = with_disk_full_message(
                f"{INTERNAL}{type(error).__name__}: {error}", self._services.state_directory
            )
            outcome = AttemptOutcome(reason)
        try:
            try:
                self._finish(outcome)
            except (sqlite3.OperationalError, StateDamaged):
                # Probably the hosts' files have filled the disk: try again when they are removed.
                self._release_hosts()
                self._finish(outcome)
            self._release_hosts()
        finally:
            self._control.close()
            self._on_end(self)

    def _run_attempts(self) -> AttemptOutcome:
        """Run attempts until one of them ends the job. Raises JobStopping between two attempts."""
        retries = self._create_handler(AttemptFaults()).spec.max_retries
        for number in itertools.count(1):
            faults = self._faults.faults_of_attempt(self._record.name, number)
            outcome = self._run_attempt(self._create_handler(faults), faults)
            if outcome.is_spot_interrupted:
                self._release_hosts()
                self._control.move_to("Interrupted")
                self._control.wait(faults.retry_delay_seconds)
            elif (outcome.reason or "").startswith(INTERNAL) and retries > 0:
                retries -= 1
                self._release_hosts()
                self._control.move_to("Restarting", f"Restarting after {outcome.reason}")
            else:
                break
            self._control.move_to("Starting")
        return outcome

    def _run_attempt(self, handler: JobHandler, faults: AttemptFaults) -> AttemptOutcome:
        """Wait for capacity, then run one attempt."""
        reason = self._wait_for_capacity(handler.spec)
        if reason is not None:
            return AttemptOutcome(reason)
        if handler.spec.selected_instance is not None:
            instance_type, count = handler.spec.selected_instance
            selection = {"SelectedInstanceType": instance_type, "SelectedInstanceCount": count}
            self._services.job_store.add_to_result(self.arn, handler.describe_selected_instance(selection))
        self._attempt = Attempt(handler, self._services, self._control, faults, self._metric_reader)
        return self._attempt.run()

    def _release_hosts(self) -> None:
        """Release the hosts of the latest attempt, if they are not released yet."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()

    def _create_handler(self, faults: AttemptFaults) -> JobHandler:
        return HANDLER_FACTORIES[self._record.kind](self._record, faults.capacity.wait_seconds)

    def _wait_for_capacity(self, spec: JobSpec) -> str | None:
        """Wait until the hosts are available. Return FailureReason if they will not be. Raises JobStopping,
        also when a time limit is over."""
        if spec.capacity_wait == 0:
            return None
        if spec.max_pending is not None:
            self._control.move_to("Pending")
            if spec.capacity_wait is not None and spec.capacity_wait <= spec.max_pending:
                self._control.wait(spec.capacity_wait)
            else:
                self._control.wait(spec.max_pending, "max_pending")
            self._control.move_to("Starting")
            return None
        if spec.capacity_wait is None and not spec.is_spot:
            return (
                "CapacityError: Unable to provision requested ML compute capacity due to InsufficientInstance"
                "Capacity error. Please retry using a different ML instance type or after some time."
            )
        self._control.set_message(states.NO_CAPACITY_MESSAGE)
        self._control.wait(spec.capacity_wait)
        return None

    def _finish(self, outcome: AttemptOutcome) -> None:
        """Save the job's final status and result."""
        result: dict[str, Any] = dict(outcome.result)
        metric_values = self._metric_reader.latest_values()
        if metric_values:
            result["FinalMetricDataList"] = metric_values
        limit = self._services.settings.warm_pools
        result |= warm_pool.status_at_job_end(
            self._services.job_store, self.arn, outcome.reason, limit, time.time()
        )
        self._control.finish(outcome.reason, result)

    def _save(self, state: JobState, result: Mapping[str, Any] | None) -> None:
        self._services.job_store.save_state(self.arn, state, result)


def _max_wait_end(record: JobRecord, now: float) -> float | None:
    """Return the time on the monotonic clock at which MaxWaitTimeInSeconds, counted from the job's creation,
    is over; None without a limit."""
    seconds = (record.request.get("StoppingCondition") or {}).get("MaxWaitTimeInSeconds")
    return None if seconds is None else time.monotonic() + seconds - max(0.0, now - record.state.created)
