"""Drives a run of several jobs: observe, decide and act, until the run has ended.

``chain.next_action`` makes all decisions. A driver that is killed leaves nothing behind that another driver
needs. Two drivers at once ask for the same job names, which the service accepts only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from smlaunch.api.job_kinds import job_kind_of
from smlaunch.api.retry_policy import QUOTA_BACKOFF
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import call_with_retries, is_quota_in_use
from smlaunch.chain.next_action import FinishRun, FollowJob, RunAction, SubmitJob, WaitUntil, next_action
from smlaunch.chain.observed_run import ObservedJob, ObservedRun
from smlaunch.chain.workflow import Workflow, with_limits_of
from smlaunch.contract.run_names import JobName, parse_job_name
from smlaunch.planner.plan import PlannedJob
from smlaunch.runs.job_list import JobList
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_checkpoints import RunCheckpoints
from smlaunch.runs.run_driver import (
    LoggedMessages,
    MessageCallback,
    RunDriver,
    SleepFunction,
    checked_callback,
    resume_hint,
)
from smlaunch.runs.run_folder import RunFolder
from smlaunch.runs.run_outcome import RunOutcome
from smlaunch.runs.run_state import (
    CheckpointStatus,
    read_checkpoint_status,
    read_last_step_in_log,
)
from smlaunch.runs.submit_job import stop_job, submit_job_once


class ChainDriver(RunDriver):
    """Observes one run and submits its next jobs.

    ``is_driving`` False submits nothing: the driver only waits for the next job. ``waits_for_quota`` makes
    the first job, like later ones, wait for a quota that other jobs use. ``on_message`` receives a sentence
    about each action and its reason. ``jobs`` are the run's known ones; none by default.
    """

    def __init__(
        self,
        workflow: Workflow,
        folder: RunFolder,
        target: Target,
        *,
        jobs: JobList | None = None,
        is_driving: bool = False,
        waits_for_quota: bool = False,
        on_message: MessageCallback | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.workflow = workflow
        self.run_folder = folder
        self.jobs = jobs or JobList(workflow.run, target)
        self.chain_drivers = (self,)
        self.is_driving = is_driving
        self._waits_for_quota = waits_for_quota
        self.final_result: FinishRun | None = None
        """How the run ended; None while it goes on."""
        self.checkpoint_status = CheckpointStatus()
        """State of the run's checkpoints when they were last read."""
        uri = workflow.checkpoints
        target.bucket_owners.add_from_environment(workflow.variants[0].request.get("Environment", {}))
        self._checkpoints = None if uri is None else RunCheckpoints(uri, target.storage)
        self._target = target
        self._on_message = checked_callback(on_message)
        self._clock = clock
        self._failed_job_to_retry: JobName | None = None
        self._reported_jobs: set[JobName] = set()
        self._due_time_by_job: dict[JobName, float] = {}
        """When a job was first seen to be due that nobody had submitted. Seconds since the epoch."""
        self._reported_overdue_jobs: set[JobName] = set()
        self._driven_until = 0.0
        """Until when this process waits, or waited last, to submit the next job. Seconds since the epoch."""
        self._quota_retry_at = 0.0
        """When a job that found no free quota is requested again. Seconds since the epoch."""
        self._quota_tries_and_wait_by_job: dict[JobName, tuple[int, float]] = {}

    def resume(self) -> None:
        """Drive the run from now on, even if its newest job was stopped or failed: a person has requested
        it."""
        self.is_driving = True
        is_stopping = self.run_folder.is_stop_requested(self._target.storage)
        self.run_folder.set_stop_requested(self._target.storage, False)
        self.jobs.find()
        for newest in self.jobs.observed()[-1:]:
            if newest.ending is not None or is_stopping or self.jobs.is_stopping:
                self._failed_job_to_retry = self._name_of(newest)

    def stop(self, outcome: RunOutcome) -> None:
        """Let no further job start, and stop the newest one."""
        # A file in S3 that says so, written first: the run's driver sees it before the job ends.
        self.run_folder.set_stop_requested(self._target.storage, True)
        if outcome.jobs and not outcome.last_job.is_finished:
            stop_job(outcome.last_job.name, self._target.control_plane)

    def observe(self, *, reads_checkpoints: bool = False) -> None:
        """Observe the run, and derive ``final_result``. Changes nothing. Reports once that a job is due for
        which no call waits, so that nobody submits it."""
        action = self.choose_action(reads_checkpoints=reads_checkpoints)
        if isinstance(action, SubmitJob):
            self._report_overdue_job(action)

    def add_result(self, outcome: RunOutcome) -> RunOutcome:
        """Return the outcome with the run's result and the newest checkpoint's step."""
        step = self.checkpoint_status.step or None
        outcome = replace(outcome, is_chain=True, final_result=self.final_result, step=step)
        return replace(outcome, hint=resume_hint(outcome, self._target, is_driving=self.is_driving))

    def segment_of(self, job: str) -> tuple[JobName, int | None] | None:
        """Return a job's segment and attempt and the number of planned segments; None for a run of a single
        job."""
        name = parse_job_name(job)
        return None if name is None or self.workflow.is_single_job else (name, self.workflow.segment_count)

    def choose_action(self, *, reads_checkpoints: bool = False) -> RunAction:
        """Observe the run and return its next action. Changes nothing.

        ``reads_checkpoints`` reads the checkpoints even while a job runs.
        """
        observed = self._observe_run(reads_checkpoints)  # updates the workflow's limits, too
        action = next_action(self.workflow, observed)
        self.final_result = action if isinstance(action, FinishRun) else None
        return action

    def wait_for_next_jobs(self, sleep: SleepFunction, followed: Collection[str]) -> tuple[str, ...]:
        """Return the job to follow now, which may be a ``followed`` one that still runs; none when the run
        has ended or ``sleep`` returned True."""
        job_name = self.wait_for_next_job(sleep)
        return () if job_name is None else (str(job_name),)

    def wait_for_next_job(self, sleep: SleepFunction = time.sleep) -> JobName | None:
        """Return the job of this run to follow now; if it is due but not yet submitted, submit it first.

        Only a driver that drives the run (``is_driving``) submits; any other waits until somebody else has.
        Returns None when the run has ended (``final_result``) or ``sleep`` returned True. Raises CallError
        when a request is refused and cannot be repeated.
        """
        max_pause_seconds = self._target.polling.max_seconds
        while True:
            # FinishRun, FollowJob, WaitUntil or SubmitJob, by the state of the run's jobs and checkpoints.
            action = self.choose_action()
            if isinstance(action, FinishRun):
                return None
            if isinstance(action, FollowJob):
                return action.name
            if isinstance(action, WaitUntil):
                pause_seconds = min(max_pause_seconds, self._seconds_until(action.until))
            elif not self.is_driving:  # a job is to be submitted, but not by this process
                self._report_overdue_job(action)  # a message, if nobody has submitted it for long
                pause_seconds = max_pause_seconds
            else:
                pause_seconds = self._seconds_until(max(action.not_before, self._quota_retry_at))
                self._report_next_job_once(action, pause_seconds)
                if pause_seconds == 0.0:
                    seconds_until_retry = self._submit_job_or_wait_for_quota(action)
                    if seconds_until_retry is None:
                        return action.name
                    pause_seconds = seconds_until_retry
            if self.is_driving:
                self._driven_until = self._clock() + pause_seconds
            if sleep(pause_seconds) is True:
                return None

    def _seconds_until(self, due_at: float) -> float:
        return max(0.0, due_at - self._clock())

    def _observe_run(self, reads_checkpoints: bool) -> ObservedRun:
        storage = self._target.storage
        self.jobs.find()
        jobs = self.jobs.observed()
        observed = ObservedRun(
            self._clock(),
            jobs,
            override_failure=self._failed_job_to_retry,
            wait_time_scale=self._target.polling.time_scale,
        )
        if not jobs or (jobs[-1].ending is None and not reads_checkpoints):
            # Nothing in S3 changes the action while a job runs.
            return observed
        self._read_limits()
        self.checkpoint_status = read_checkpoint_status(
            self.workflow.run, self._checkpoints, storage, self.workflow.job_hash
        )
        reported_step, repeats_steps = self._read_reported_step(jobs[-1])
        return replace(
            observed,
            now=self._clock(),
            newest_checkpoint_step=self.checkpoint_status.step,
            outcome_file=self.checkpoint_status.outcome,
            reported_step=reported_step,
            newest_job_repeats_steps=repeats_steps,
            checkpoint_files_digest=self.checkpoint_status.files_digest,
            stop_requested=self.run_folder.is_stop_requested(storage),
        )

    def _read_limits(self) -> None:
        """Take the limits and prices that the run's folder has now: since this driver began, another client
        may have launched the same job with others."""
        stored = self.run_folder.load_workflow(self._target.storage)
        known = self.workflow
        if stored is not None and (stored.run, stored.job_hash) == (known.run, known.job_hash):
            self.workflow = with_limits_of(known, stored)

    def _read_reported_step(self, newest: ObservedJob) -> tuple[int | None, bool]:
        """Return the highest step that the newest job reported, and whether it only repeated earlier steps.

        The source is the outcome file of its host. A host that was killed has written none; then its log is
        read.
        """
        if self._checkpoints is None or newest.ending is None:
            return None, False
        outcome = self.checkpoint_status.outcome
        is_of_newest = outcome is not None and outcome.job == str(self._name_of(newest))
        if outcome is not None and is_of_newest and outcome.reported_step is not None:
            return outcome.reported_step, outcome.repeats_steps
        return read_last_step_in_log(self.jobs.descriptions[-1], self._target), False

    def _name_of(self, job: ObservedJob) -> JobName:
        return JobName(self.workflow.run, job.segment, job.attempt)

    def _submit_job_or_wait_for_quota(self, action: SubmitJob) -> float | None:
        """Submit the run's next job, or find it if another driver has submitted it.

        Returns None when the job exists. Returns the seconds until the next try if other jobs use up the
        account's quota of instances. Raises CallError for any other refusal, and when the quota has been in
        use for too long.
        """
        storage, control_plane = self._target.storage, self._target.control_plane
        job_name = action.name
        is_first_job = (job_name.segment, job_name.attempt) == (1, 1)
        self._clean_checkpoints_before(action)
        # The job's name and its request to the service, for CreateTrainingJob (the operation) usually.
        planned_job = PlannedJob(
            name=str(job_name),
            segment=job_name.segment,
            attempt=job_name.attempt,
            operation=job_kind_of(action.request).create_operation,
            request=action.request,
        )
        try:
            submit_job_once(planned_job, self.workflow.job_hash, self._target)
        except CallError as error:
            # A person waits for the first job's submission, and learns at once that the quota is in use,
            # unless the caller has chosen to wait (waits_for_quota).
            may_wait_for_quota = not is_first_job or self._waits_for_quota
            if not may_wait_for_quota or not is_quota_in_use(error):
                raise
            delay_seconds = self._note_quota_try_and_next_delay(job_name)
            if delay_seconds is None:  # it has waited for too long
                raise
            self._on_message(
                f"{job_name}: the quota is in use ({error.message}); trying again in {delay_seconds:.0f} s"
            )
            self._quota_retry_at = self._clock() + delay_seconds
            return delay_seconds
        self.jobs.add(str(job_name))
        if not is_first_job and self.run_folder.is_stop_requested(storage):
            # The stop was requested after the run was observed: its caller cannot know this job yet.
            stop_job(str(job_name), control_plane)
        return None

    def _clean_checkpoints_before(self, action: SubmitJob) -> None:
        """Delete what the run's next job must not find under the checkpoint prefix: an outcome file (how an
        earlier job ended) that ``action`` names, and old checkpoints before a new segment. A segment is one
        of the run's consecutive parts; each attempt at it is a job."""
        checkpoints, job_name = self._checkpoints, action.name
        if checkpoints is None:
            return
        if action.clears_outcome is not None:
            outcome_key = checkpoints.prefix + action.clears_outcome
            call_with_retries(partial(self._target.storage.delete_objects, checkpoints.bucket, [outcome_key]))
        is_new_segment = job_name.segment > 1 and job_name.attempt == 1
        if is_new_segment:
            # No job writes between two segments: delete old steps, so that no host downloads them.
            checkpoints.delete_all_but_newest(self.workflow.policy.keep)

    def _note_quota_try_and_next_delay(self, job_name: JobName) -> float | None:
        """Return for how many seconds to wait before the job is requested again; None if it has waited for
        too long."""
        try_count, waited_seconds = self._quota_tries_and_wait_by_job.get(job_name, (0, 0.0))
        delay = QUOTA_BACKOFF.next_delay(try_count + 1, waited_seconds, random_fraction=1.0)
        if delay is None:
            return None
        self._quota_tries_and_wait_by_job[job_name] = (try_count + 1, waited_seconds + delay)
        return delay * self._target.polling.time_scale

    def _report_next_job_once(self, action: SubmitJob, pause_seconds: float) -> None:
        """Tell the user that a job of the run is submitted in ``pause_seconds``, and why: which part
        (segment) of the run it is, and which attempt at it. Does nothing when called again for the job."""
        job_name = action.name
        if job_name in self._reported_jobs:
            return
        self._reported_jobs.add(job_name)
        is_retry = job_name.attempt > 1
        attempt_text = f", attempt {job_name.attempt}" if is_retry else ""
        pause_text = f"; in {pause_seconds:.0f} s" if pause_seconds >= 1 else ""
        report = self._on_message
        if isinstance(report, LoggedMessages) and not is_retry:  # as planned: nothing to look at
            report = report.log_progress
        report(f"segment {job_name.segment}{attempt_text}: {action.reason}{pause_text}")

    def _report_overdue_job(self, action: SubmitJob) -> None:
        """Report once that a due job is not submitted by any driver."""
        due_at = self._due_time_by_job.setdefault(action.name, max(self._clock(), action.not_before))
        expected_until = max(due_at, self._driven_until) + 3 * self._target.polling.max_seconds
        if action.name in self._reported_overdue_jobs or self._clock() <= expected_until:
            return
        self._reported_overdue_jobs.add(action.name)
        command = f"`smlaunch resume {self.workflow.run}{self._target.cli_flag}`"
        text = f"{action.name} is due and no driver submits it; {command} continues the run"
        if self.is_driving:
            text = (
                f"{action.name} is due; this program submits it in wait, result and exception, and {command} "
                "does so too"
            )
        self._on_message(text)
