"""Drives a run of several jobs: observe, decide and act, until the run has ended.

``planner.reconcile`` makes all decisions. A driver that is killed leaves nothing behind that another driver
needs. Two drivers at once ask for the same job names, which the service accepts only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from smlaunch.api.request import operation_of
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.retry import call_with_retries, is_quota_in_use
from smlaunch.contract.names import JobName
from smlaunch.planner.plan import PlannedJob
from smlaunch.planner.reconcile import (
    Action,
    Finish,
    FollowJob,
    ObservedJob,
    ObservedRun,
    Submit,
    WaitUntil,
    next_action,
)
from smlaunch.planner.retry_policy import QUOTA_BACKOFF
from smlaunch.planner.workflow import Workflow
from smlaunch.runs.checkpoints import RunCheckpoints
from smlaunch.runs.run_state import (
    CheckpointStatus,
    JobHistory,
    RunFolder,
    last_step_in_log,
    observe_job,
    read_checkpoint_status,
)
from smlaunch.runs.submit import stop_job, submit
from smlaunch.runs.target import Target

SleepFunction = Callable[[float], object]
"""Sleeps for some seconds. Returns True when the caller must stop waiting."""


class ChainDriver:
    """Observes one run and submits its next jobs.

    ``is_driving`` False submits nothing: the driver only waits for the next job. ``waits_for_quota`` makes
    the first job, like later ones, wait for a quota that other jobs use. ``on_message`` receives a sentence
    about each action and its reason.
    """

    def __init__(
        self,
        workflow: Workflow,
        folder: RunFolder,
        target: Target,
        *,
        is_driving: bool = False,
        waits_for_quota: bool = False,
        on_message: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.workflow = workflow
        self.folder = folder
        self.job_history = JobHistory(workflow.run, target)
        self.is_driving = is_driving
        self._waits_for_quota = waits_for_quota
        self.final_result: Finish | None = None
        """How the run ended; None while it goes on."""
        self.checkpoint_status = CheckpointStatus()
        """State of the run's checkpoints when they were last read."""
        uri = workflow.checkpoints
        target.bucket_owners.add_from_environment(workflow.variants[0].request.get("Environment", {}))
        self._checkpoints = None if uri is None else RunCheckpoints(uri, target.storage)
        self._target = target
        self._on_message = on_message or _ignore_message
        self._clock = clock
        self._retried_failure: JobName | None = None
        self._due_time_by_job: dict[JobName, float] = {}
        self._quota_wait_by_job: dict[JobName, tuple[int, float]] = {}

    def resume(self) -> None:
        """Drive the run from now on, even if its newest job was stopped or failed: a person has requested
        it."""
        self.is_driving = True
        self.folder.set_stop_requested(self._target.storage, False)
        descriptions = self.job_history.describe_all()
        newest = max(descriptions, default=None)
        if newest is not None and observe_job(newest, descriptions[newest]).ending is not None:
            self._retried_failure = newest

    def choose_action(self, *, reads_checkpoints: bool = False) -> Action:
        """Observe the run and return its next action. Changes nothing.

        ``reads_checkpoints`` reads the checkpoints even while a job runs.
        """
        action = next_action(self.workflow, self._observe_run(reads_checkpoints))
        self.final_result = action if isinstance(action, Finish) else None
        return action

    def next_job(self, sleep: SleepFunction = time.sleep) -> JobName | None:
        """Return the job to follow now, and submit it first if it is due.

        Returns None when the run has ended (``final_result``) or ``sleep`` returned True. Raises CallError
        when a request is refused and cannot be repeated.
        """
        while True:
            action = self.choose_action()
            if isinstance(action, Finish):
                return None
            if isinstance(action, FollowJob):
                return action.name
            if isinstance(action, WaitUntil):
                pause = min(self._target.polling.max_seconds, max(0.0, action.until - self._clock()))
            else:
                pause = max(0.0, action.not_before - self._clock())
                if not self.is_driving:
                    self._report_overdue_job(action)
                    pause = self._target.polling.max_seconds
                else:
                    self._report_next_job(action, pause)
                    if pause == 0.0:
                        retry_delay = self._submit_job(action)
                        if retry_delay is None:
                            return action.name
                        pause = retry_delay
            if sleep(pause) is True:
                return None

    def _observe_run(self, reads_checkpoints: bool) -> ObservedRun:
        storage = self._target.storage
        jobs = [
            observe_job(name, description) for name, description in self.job_history.describe_all().items()
        ]
        observed = ObservedRun(
            self._clock(),
            jobs,
            override_failure=self._retried_failure,
            time_scale=self._target.polling.time_scale,
        )
        if not jobs or (jobs[-1].ending is None and not reads_checkpoints):
            # Nothing in S3 changes the action while a job runs.
            return observed
        self.checkpoint_status = read_checkpoint_status(self.workflow.run, self._checkpoints, storage)
        reported_step, repeats_steps = self._read_reported_step(jobs[-1])
        return replace(
            observed,
            now=self._clock(),
            committed_step=self.checkpoint_status.step,
            outcome=self.checkpoint_status.outcome,
            reported_step=reported_step,
            repeats_steps=repeats_steps,
            files_digest=self.checkpoint_status.files_digest,
            stop_requested=self.folder.is_stop_requested(storage),
        )

    def _read_reported_step(self, newest: ObservedJob) -> tuple[int | None, bool]:
        """Return the highest step that the newest job reported, and whether it only repeated earlier steps.

        The source is the outcome file of its host. A host that was killed has written none; then its log is
        read.
        """
        if self._checkpoints is None or newest.ending is None:
            return None, False
        name, outcome = (
            JobName(self.workflow.run, newest.segment, newest.attempt),
            self.checkpoint_status.outcome,
        )
        if outcome is not None and outcome.job == str(name) and outcome.reported_step is not None:
            return outcome.reported_step, outcome.repeats_steps
        return last_step_in_log(self.job_history.known_descriptions[-1], self._target), False

    def _submit_job(self, action: Submit) -> float | None:
        """Submit the action's job. Return None when the job exists, else the seconds to wait before the next
        try."""
        storage, control = self._target.storage, self._target.control
        name, checkpoints = action.name, self._checkpoints
        is_later_job = (name.segment, name.attempt) != (1, 1)
        if checkpoints is not None and action.clears_outcome is not None:
            outcome_key = checkpoints.prefix + action.clears_outcome
            call_with_retries(partial(storage.delete, checkpoints.bucket, [outcome_key]))
        if checkpoints is not None and name.segment > 1 and name.attempt == 1:
            # No job writes between two segments: delete old steps, so that no host downloads them.
            checkpoints.keep_newest(self.workflow.policy.keep)
        planned_job = PlannedJob(
            str(name), name.segment, name.attempt, operation_of(action.request), action.request
        )
        try:
            submit(planned_job, self.workflow.job_hash, control, storage)
        except CallError as error:
            try_count, waited_seconds = self._quota_wait_by_job.get(name, (0, 0.0))
            delay = QUOTA_BACKOFF.next_delay(try_count + 1, waited_seconds, random_fraction=1.0)
            if not ((is_later_job or self._waits_for_quota) and is_quota_in_use(error)) or delay is None:
                raise
            self._quota_wait_by_job[name] = (try_count + 1, waited_seconds + delay)
            seconds = delay * self._target.polling.time_scale
            self._on_message(
                f"{name}: the quota is in use ({error.message}); trying again in {seconds:.0f} s"
            )
            return seconds
        self.job_history.add_submitted(name)
        if is_later_job and self.folder.is_stop_requested(storage):
            # The stop was requested after the run was observed: its caller cannot know this job yet.
            stop_job(str(name), control)
        return None

    def _report_next_job(self, action: Submit, pause: float) -> None:
        """Report once that a job is going to be submitted. ``pause``: seconds until then."""
        if action.name in self._due_time_by_job:
            return
        self._due_time_by_job[action.name] = self._clock()
        segment, attempt = action.name.segment, action.name.attempt
        attempt_text = f", attempt {attempt}" if attempt > 1 else ""
        pause_text = f"; in {pause:.0f} s" if pause >= 1 else ""
        self._on_message(f"segment {segment}{attempt_text}: {action.reason}{pause_text}")

    def _report_overdue_job(self, action: Submit) -> None:
        """Report once that a due job is not submitted by any driver."""
        due_at = self._due_time_by_job.setdefault(action.name, max(self._clock(), action.not_before))
        if 0 <= due_at < self._clock() - 3 * self._target.polling.max_seconds:
            self._due_time_by_job[action.name] = -1.0
            self._on_message(
                f"{action.name} is due and no driver submits it; "
                f"`smlaunch resume {self.workflow.run}` continues the run"
            )


def _ignore_message(_: str) -> None:
    return None
