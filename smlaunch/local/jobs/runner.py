"""One job from Starting to its end: the thin shell around states.py. One thread per job.

Starting ── capacity? ──► Attempt ──► end
    ▲                        │ hosts taken away (spot): Interrupted
    └────────────────────────┤ InternalServerError and tries left: Restarting
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
from smlaunch.local.jobs.attempt import Attempt, Rooms
from smlaunch.local.jobs.control import JobControl, Stopping
from smlaunch.local.jobs.failure_reasons import INTERNAL, machines_own
from smlaunch.local.jobs.job_kind import Outcome, Work
from smlaunch.local.jobs.kinds import KINDS
from smlaunch.local.jobs.metrics import MetricReader
from smlaunch.local.jobs.spec import JobSpec
from smlaunch.local.jobs.states import JobState, StopCause
from smlaunch.local.state_errors import StateDamaged

__all__ = ["JobRunner", "Rooms"]


class JobRunner:
    """``ended`` is called in the job's thread when all is over and nothing of the job is left."""

    def __init__(self, record: JobRecord, rooms: Rooms, ended: Callable[[JobRunner], None]) -> None:
        self.arn = record.arn
        self._record = record
        self._rooms = rooms
        self._ended = ended
        self._attempt: Attempt | None = None
        self._faults = rooms.settings.faults or FaultPlan()
        self._reader = MetricReader(self._work(AttemptFaults()).spec, rooms.metrics)
        self._control = JobControl(
            record.state, self._save, rooms.settings.stop_grace_seconds, _wait_end(record, time.time())
        )
        self._thread = threading.Thread(target=self._run, name=f"job {record.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def stop(self, cause: StopCause, message: str | None = None, grace: float | None = None) -> None:
        """As JobControl.stop."""
        self._control.stop(cause, message, grace)

    # The job's thread

    def _run(self) -> None:
        try:
            outcome = self._attempts()
        except Stopping:
            outcome = Outcome()  # stopped between two attempts: no host is left to upload anything
        except Exception as error:
            # The endpoint's own fault: the job must say so, and the endpoint must go on.
            traceback.print_exc()
            reason = machines_own(f"{INTERNAL}{type(error).__name__}: {error}", self._rooms.home)
            outcome = Outcome(reason)
        try:
            try:
                self._end(outcome)
            except (sqlite3.OperationalError, StateDamaged):
                # A full disk, most likely by what the hosts wrote: once that is gone the end can be told.
                self._give_back()
                self._end(outcome)
            self._give_back()
        finally:
            self._control.close()
            self._ended(self)

    def _attempts(self) -> Outcome:
        """One after the other, until one decides. Raises Stopping between two of them."""
        retries = self._work(AttemptFaults()).spec.retries
        for number in itertools.count(1):
            faults = self._faults.faults_of_attempt(self._record.name, number)
            outcome = self._try(self._work(faults), faults)
            if outcome.interrupted:
                self._give_back()
                self._control.go("Interrupted")
                self._control.wait(faults.retry_delay_seconds)
            elif (outcome.reason or "").startswith(INTERNAL) and retries > 0:
                retries -= 1
                self._give_back()
                self._control.go("Restarting", f"Restarting after {outcome.reason}")
            else:
                break
            self._control.go("Starting")
        return outcome

    def _try(self, work: Work, faults: AttemptFaults) -> Outcome:
        reason = self._wait_for_capacity(work.spec)
        if reason is not None:
            return Outcome(reason)
        if work.spec.selected is not None:
            kind, count = work.spec.selected
            chosen = {"SelectedInstanceType": kind, "SelectedInstanceCount": count}
            self._rooms.store.add_to_result(self.arn, work.selected(chosen))
        self._attempt = Attempt(work, self._rooms, self._control, faults, self._reader)
        return self._attempt.run()

    def _give_back(self) -> None:
        """The latest attempt's hosts; nothing when they are given back already."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()

    def _work(self, faults: AttemptFaults) -> Work:
        return KINDS[self._record.kind](self._record, faults.capacity.wait_seconds)

    def _wait_for_capacity(self, spec: JobSpec) -> str | None:
        """Until the hosts can be had; else FailureReason. Raises Stopping, also when a limit has passed."""
        if spec.capacity_in == 0:
            return None
        if spec.max_pending is not None:
            self._control.go("Pending")
            if spec.capacity_in is not None and spec.capacity_in <= spec.max_pending:
                self._control.wait(spec.capacity_in)
            else:
                self._control.wait(spec.max_pending, "max_pending")
            self._control.go("Starting")
            return None
        if spec.capacity_in is None and not spec.spot:
            return (
                "CapacityError: Unable to provision requested ML compute capacity due to InsufficientInstance"
                "Capacity error. Please retry using a different ML instance type or after some time."
            )
        self._control.tell(states.NO_CAPACITY)
        self._control.wait(spec.capacity_in)
        return None

    def _end(self, outcome: Outcome) -> None:
        result: dict[str, Any] = dict(outcome.result)
        final = self._reader.final()
        if final:
            result["FinalMetricDataList"] = final
        limit = self._rooms.settings.warm_pools
        result |= warm_pool.at_end(self._rooms.store, self.arn, outcome.reason, limit, time.time())
        self._control.end(outcome.reason, result)

    def _save(self, state: JobState, result: Mapping[str, Any] | None) -> None:
        self._rooms.store.save_state(self.arn, state, result)


def _wait_end(record: JobRecord, now: float) -> float | None:
    """When MaxWaitTimeInSeconds, counted from the creation, is over, on the monotonic clock."""
    seconds = (record.request.get("StoppingCondition") or {}).get("MaxWaitTimeInSeconds")
    return None if seconds is None else time.monotonic() + seconds - max(0.0, now - record.state.created)
