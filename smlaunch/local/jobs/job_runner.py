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
from collections.abc import Callable

from smlaunch.local.fault_injection import AttemptFaults, FaultPlan
from smlaunch.local.jobs import job_state, warm_pool
from smlaunch.local.jobs.failure_reasons import INTERNAL_ERROR_PREFIX, explain_if_disk_full
from smlaunch.local.jobs.job_attempt import Attempt, JobServices
from smlaunch.local.jobs.job_control import JobControl, JobStopping
from smlaunch.local.jobs.job_handler import AttemptOutcome, JobHandler
from smlaunch.local.jobs.job_kinds import HANDLER_FACTORIES
from smlaunch.local.jobs.job_spec import JobSpec
from smlaunch.local.jobs.job_state import JobState, StopCause
from smlaunch.local.jobs.metric_definitions import MetricReader
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.state_errors import StateDamaged
from smlaunch.local.stores.job_store import JobRecord

__all__ = ["JobRunner", "JobServices"]


class JobRunner:
    """Runs one job."""

    def __init__(
        self, record: JobRecord, services: JobServices, on_job_end: Callable[[JobRunner], None]
    ) -> None:
        """``on_job_end`` is called in the job's thread when the job has ended and its hosts are removed."""
        self.arn = record.arn
        self._record = record
        self._services = services
        self._on_job_end = on_job_end
        self._attempt: Attempt | None = None
        self._fault_plan = services.settings.faults or FaultPlan()
        self._metric_reader = MetricReader(self._create_handler(AttemptFaults()).spec, services.metric_store)
        self._job_control = JobControl(
            record.state,
            self._save_state,
            services.settings.stop_grace_seconds,
            _max_wait_deadline(record, time.time()),
        )
        self._thread = threading.Thread(target=self._run_job, name=f"job {record.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def request_stop(
        self, cause: StopCause, message: str | None = None, grace_seconds: float | None = None
    ) -> None:
        """Ask the job to stop; see JobControl.request_stop."""
        self._job_control.request_stop(cause, message, grace_seconds)

    # The methods below run in the job's thread.

    def _run_job(self) -> None:
        """Run the attempts of the job, store its final status, and release its hosts. An error of the
        endpoint itself fails the job, and the endpoint goes on."""
        try:
            outcome = self._run_attempts()
        except JobStopping:
            outcome = AttemptOutcome()  # stopped between two attempts: there is no host and nothing to upload
        except Exception as error:
            traceback.print_exc()
            failure_reason = explain_if_disk_full(
                f"{INTERNAL_ERROR_PREFIX}{type(error).__name__}: {error}", self._services.state_directory
            )
            outcome = AttemptOutcome(failure_reason=failure_reason)
        try:
            self._store_final_status_and_release_hosts(outcome)
        finally:
            self._job_control.close()
            self._on_job_end(self)

    def _store_final_status_and_release_hosts(self, outcome: AttemptOutcome) -> None:
        try:
            self._store_final_status(outcome)
        except (sqlite3.OperationalError, StateDamaged):
            # Probably the hosts' files have filled the disk: try again when they are removed.
            self._release_hosts()
            self._store_final_status(outcome)
        self._release_hosts()

    def _run_attempts(self) -> AttemptOutcome:
        """Run attempts at the job until one ends it, and return its outcome. A spot interruption leads to a
        new attempt, and so does an InternalServerError if the request's RetryStrategy allows it. The faults
        of each attempt come from the fault plan (fault injection). Raises JobStopping if the job is asked to
        stop between two attempts."""
        # This handler only reads the request: it runs nothing.
        retries_left = self._create_handler(AttemptFaults()).spec.max_retries
        for attempt_number in itertools.count(1):
            attempt_faults = self._fault_plan.draw_faults_of_attempt(self._record.name, attempt_number)
            outcome = self._run_attempt(self._create_handler(attempt_faults), attempt_faults)
            has_internal_error = (outcome.failure_reason or "").startswith(INTERNAL_ERROR_PREFIX)
            if outcome.is_spot_interrupted:
                self._release_hosts()
                self._job_control.move_to_status("Interrupted")
                self._job_control.wait_unless_stopping(attempt_faults.retry_delay_seconds)
            elif has_internal_error and retries_left > 0:
                retries_left -= 1
                self._release_hosts()
                self._job_control.move_to_status("Restarting", f"Restarting after {outcome.failure_reason}")
            else:
                break
            self._job_control.move_to_status("Starting")
        return outcome

    def _run_attempt(self, handler: JobHandler, attempt_faults: AttemptFaults) -> AttemptOutcome:
        """Wait for capacity, then run one attempt."""
        failure_reason = self._wait_for_capacity(handler.spec)
        if failure_reason is not None:
            return AttemptOutcome(failure_reason)
        if handler.spec.selected_instance is not None:
            instance_type, instance_count = handler.spec.selected_instance
            selection = {"SelectedInstanceType": instance_type, "SelectedInstanceCount": instance_count}
            self._services.job_store.add_to_result(self.arn, handler.describe_selected_instance(selection))
        self._attempt = Attempt(
            handler, self._services, self._job_control, attempt_faults, self._metric_reader
        )
        return self._attempt.run()

    def _release_hosts(self) -> None:
        """Release the hosts of the latest attempt, if they are not released yet."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()

    def _create_handler(self, faults: AttemptFaults) -> JobHandler:
        return HANDLER_FACTORIES[self._record.kind](self._record, faults.capacity.wait_seconds)

    def _wait_for_capacity(self, spec: JobSpec) -> str | None:
        """Wait until the job's hosts are available, as the fault plan (fault injection) says. Return the
        FailureReason if they never will be, None when they are available. Raises JobStopping if the job is
        asked to stop, or has waited for its maximum time."""
        wait_seconds = spec.capacity_wait_seconds  # None: never available
        if wait_seconds == 0:
            return None
        if spec.max_pending_seconds is not None:  # MaxPendingTimeInSeconds: the job waits in Pending
            self._job_control.move_to_status("Pending")
            if wait_seconds is not None and wait_seconds <= spec.max_pending_seconds:
                self._job_control.wait_unless_stopping(wait_seconds)
            else:
                self._job_control.wait_unless_stopping(spec.max_pending_seconds, stop_cause="max_pending")
            self._job_control.move_to_status("Starting")
            return None
        if wait_seconds is None and not spec.is_spot:
            return (
                "CapacityError: Unable to provision requested ML compute capacity due to InsufficientInstance"
                "Capacity error. Please retry using a different ML instance type or after some time."
            )
        # Spot jobs wait until MaxWaitTimeInSeconds is over, others until the planned lack of capacity ends.
        self._job_control.set_message(job_state.NO_CAPACITY_MESSAGE)
        self._job_control.wait_unless_stopping(wait_seconds)
        return None

    def _store_final_status(self, outcome: AttemptOutcome) -> None:
        """Save the job's final status and result."""
        describe_fields: JsonObject = dict(outcome.describe_fields)
        metric_values = self._metric_reader.latest_values()
        if metric_values:
            describe_fields["FinalMetricDataList"] = metric_values
        max_warm_hosts = self._services.settings.warm_pools
        describe_fields |= warm_pool.pool_status_at_job_end(
            self._services.job_store, self.arn, outcome.failure_reason, max_warm_hosts, time.time()
        )
        self._job_control.finish(outcome.failure_reason, describe_fields)

    def _save_state(self, state: JobState, result: JsonMapping | None) -> None:
        self._services.job_store.save_job_state(self.arn, state, result)


def _max_wait_deadline(record: JobRecord, now: float) -> float | None:
    """Return the time on the monotonic clock at which MaxWaitTimeInSeconds, counted from the job's creation,
    is over; None without a limit. ``now`` is in seconds since the epoch."""
    max_wait_seconds = (record.request.get("StoppingCondition") or {}).get("MaxWaitTimeInSeconds")
    if max_wait_seconds is None:
        return None
    seconds_since_creation = max(0.0, now - record.state.created)
    return time.monotonic() + float(max_wait_seconds) - seconds_since_creation
