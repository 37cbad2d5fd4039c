"""Runs a script on an endpoint of this machine, unsplit or with cuts, and records the result.

Each cut ends the job, by SIGTERM to its hosts or SIGKILL to one rank, and the next job continues from the
same checkpoints. Jobs are submitted one by one, without the chain's driver, because the script is what is
tested.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from smlaunch.aws.interfaces import CallError
from smlaunch.chain.workflow import Workflow, build_job_request
from smlaunch.contract.progress_line import parse_line
from smlaunch.contract.run_names import JobName
from smlaunch.contract.segment import INTERVAL_VARIABLE, TRACE_VARIABLE
from smlaunch.contract.segment_outcome import FINISHED, OUTCOME_PATH_PREFIX
from smlaunch.errors import TrainingFailed
from smlaunch.job.model import Checkpoints, Job
from smlaunch.planner.plan import PlannedJob
from smlaunch.planner.planner import CHAIN_OPERATION
from smlaunch.runs import run_checkpoints as stored
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import LogLine, StateChange
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import prepare
from smlaunch.runs.run_outcome import JobOutcome
from smlaunch.runs.submit_job import submit_job_once
from smlaunch.verify import archive_contents, step_traces
from smlaunch.verify.archive_contents import ArtifactFiles
from smlaunch.verify.rank_killer import kill_rank
from smlaunch.verify.run_pair import RunRecord

_CHECKPOINTS_PER_CUT = 3
"""Approximate number of checkpoints between two cuts, unless the job states an interval, so that a killed job
loses some steps and not all."""

_MIN_INTERVAL_SECONDS = 0.05
"""Seconds."""

CutSignal = Literal["term", "kill"]


@dataclass(frozen=True)
class PlannedCut:
    """When to cut a job."""

    signal: CutSignal
    after_step: int
    """0 where the script reports no steps; then ``time_fraction`` counts."""
    time_fraction: float
    """Fraction of the unsplit run's training time."""
    rank: int = 0
    """The rank to kill."""


@dataclass(frozen=True)
class AppliedCut:
    """A cut that was made."""

    signal: CutSignal
    job_name: str
    after_step: int | None
    """The last step before it; None where the script reports no steps."""
    resumed_step: int | None = None
    """The first step after it; None where the script reports no steps."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "signal": self.signal,
            "job": self.job_name,
            "done": self.after_step,
            "resumed": self.resumed_step,
        }


@dataclass(frozen=True)
class _CheckpointsInS3:
    exist: bool
    """There are files of the script, beside smlaunch's outcome files."""
    say_finished: bool
    """The outcome file of the last job says that the training is finished."""


@dataclass(frozen=True)
class TrialResult:
    """One run of the script, unsplit or with cuts."""

    record: RunRecord
    applied_cuts: tuple[AppliedCut, ...] = ()
    late_cut_count: int = 0
    """Number of cuts after which no training was left."""
    last_step: int = 0
    seconds: float = 0.0
    """Time from status Training to the end, of all jobs together."""
    stepping_seconds: float = 0.0
    """Time from the first to the last observed step, of all jobs together."""
    has_resumed: bool = True
    """The last job continued from a checkpoint and did not repeat the whole training."""
    last_job_step_lines: int = 0
    """Progress lines with a step in the last job's log."""
    resume_failure: str | None = None
    """Failure of a job that was to resume; None without one."""


def draw_cuts(
    signal: CutSignal,
    count: int,
    last_step: int,
    rank_count: int,
    random: Random,
    earliest_fraction: float = 0.0,
) -> list[PlannedCut]:
    """Draw when to interrupt the jobs of a trial: after random steps before the last one, in ascending order,
    and at different steps where possible.

    ``last_step`` is 0 for a script that reports no steps, whose cuts are drawn by time. No cut comes before
    the fraction ``earliest_fraction`` of the training. ``rank_count``: ranks to choose from for a kill.
    """
    if last_step:
        first_step = 1 + int(last_step * earliest_fraction)
        candidate_steps = range(first_step, max(first_step + 1, last_step))
    else:
        candidate_steps = range(1)  # only 0, of cuts by time
    if count <= len(candidate_steps):
        steps = random.sample(candidate_steps, count)
    else:  # then some have to be equal
        steps = random.choices(candidate_steps, k=count)
    time_fractions = sorted(random.uniform(max(0.1, earliest_fraction), 0.9) for _ in range(count))
    return [
        PlannedCut(signal, after_step, time_fraction, rank=random.randrange(max(1, rank_count)))
        for after_step, time_fraction in zip(sorted(steps), time_fractions, strict=True)
    ]


class TrialRunner:
    """Runs one job on one endpoint. ``folder`` receives the ranks' traces; ``on_message`` reports events."""

    def __init__(self, job: Job, target: Target, folder: Path, on_message: Callable[[str], None]) -> None:
        self._job = job
        self._target = target
        self._folder = folder
        self._on_message = on_message

    def run_trial(
        self, label: str, cuts: Sequence[PlannedCut] = (), baseline: TrialResult | None = None
    ) -> TrialResult:
        """Run the script to the end of its training, in as many jobs as it takes: each of ``cuts``, which are
        deliberate interruptions, ends the running job, and the next one resumes from its checkpoints. All
        these jobs together are the trial, one run of the job file.

        ``label``: what the names of the run and its jobs begin with. ``baseline``: the earlier uninterrupted
        run, whose duration sets the times of cuts and checkpoints; None for that run itself. Raises
        TrainingFailed when a job fails that was not killed.
        """
        # Ranks are found by their job's name among all processes of the machine, so it must be unique.
        run_name = f"{label}-{secrets.token_hex(4)}"
        trace_dir = self._folder / run_name
        trace_dir.mkdir(parents=True)
        checkpoint_interval = None if baseline is None else _checkpoint_interval(baseline, len(cuts))
        # With traces, and with checkpoints before each cut.
        trial_job = self._make_trial_job(run_name, trace_dir, checkpoint_interval)
        prepared = prepare(trial_job, self._target, run_name)
        if baseline is None:  # the first trial: the others have the same source
            for warning in prepared.plan.facts.source.warnings:
                self._on_message(f"warning: {warning}")
        first_jobs = launch(prepared, self._target).jobs
        # It cuts the jobs, and submits the further ones by the plan's workflow.
        trial = _Trial(
            name=run_name,
            target=self._target,
            trace_dir=trace_dir,
            workflow=prepared.plan.workflow,
            first_jobs=first_jobs,
            baseline=baseline,
            on_message=self._on_message,
        )
        with translate_call_errors(self._target):
            trial.run_jobs(cuts)
        return trial.result(planned_cut_count=len(cuts))

    def _make_trial_job(self, name: str, trace_dir: Path, interval: float | None) -> Job:
        """Return the job with checkpoints of this trial's own, as a single job without segments."""
        checkpoint_settings = self._job.checkpoints or Checkpoints()
        checkpoint_uri = f"s3://{self._target.bucket}/verify/{name}/"
        checkpoints = checkpoint_settings.with_changes(uri=checkpoint_uri, bucket_owner=None)
        limits = self._job.limits.with_changes(segment=None, max_runtime=None, max_cost=None)
        environment = {**self._job.environment, TRACE_VARIABLE: str(trace_dir)}
        if interval is not None:
            environment[INTERVAL_VARIABLE] = f"{interval:.3f}"
        compute = self._job.compute.with_changes(spot=False, on_demand_fallback=False)
        changes = {"checkpoints": checkpoints, "limits": limits, "environment": environment, "segments": ()}
        return self._job.with_changes(**changes, compute=compute, output=None, bucket_owner=None, name=None)


def _checkpoint_interval(baseline: TrialResult, cut_count: int) -> float | None:
    """Return the seconds between two checkpoints of a trial, so that there are some before each cut; None
    where the uninterrupted run (``baseline``) does not show how long the training takes."""
    if not baseline.stepping_seconds:
        return None
    checkpoint_count = _CHECKPOINTS_PER_CUT * (cut_count + 1)
    return max(_MIN_INTERVAL_SECONDS, baseline.stepping_seconds / checkpoint_count)


class _Trial:
    """One run of the script: the first job, which is submitted already, and after each cut another job, which
    resumes from its checkpoints."""

    def __init__(
        self,
        name: str,
        target: Target,
        trace_dir: Path,
        workflow: Workflow,
        first_jobs: Sequence[str],
        baseline: TrialResult | None,
        on_message: Callable[[str], None],
    ) -> None:
        self._name = name
        self._target = target
        self._trace_dir = trace_dir
        self._workflow = workflow
        self._job_names = list(first_jobs)
        self._baseline = baseline
        self._on_message = on_message
        self._followed_jobs: list[_FollowedJob] = []
        self._applied_cuts: list[AppliedCut] = []
        self._newest_files: ArtifactFiles = {}
        """Files of the newest job that has ended."""
        self._files_of_earlier_jobs: list[ArtifactFiles | None] = []
        self._has_checkpoints = False
        self._resume_failure: str | None = None

    def run_jobs(self, cuts: Sequence[PlannedCut]) -> None:
        """Follow one job after the other to the end of the training. Each of ``cuts``, deliberate
        interruptions, ends one of the jobs, and then a further job is submitted.

        Raises TrainingFailed for a job that fails before any cut; a later failure is one of the resume.
        """
        pending_cuts = list(cuts)
        while True:
            outcome = self._follow_newest_job(pending_cuts.pop(0) if pending_cuts else None)
            # Names of jobs and of the trial differ from run to run, and are removed from texts in files.
            self._newest_files = archive_contents.fetch_artifacts(
                self._target, outcome.model_artifacts, [*self._job_names, self._name], self._trace_dir
            )
            if outcome.status == "Completed" or self._resume_failure is not None:
                return
            checkpoints = self._inspect_checkpoints(outcome.checkpoints_uri)
            self._has_checkpoints = checkpoints.exist
            if checkpoints.say_finished:  # the cut came too late: a further job would end at once
                return
            is_output_stored = outcome.status != "Failed"
            self._files_of_earlier_jobs.append(self._newest_files if is_output_stored else None)
            self._submit_next_job()  # which resumes from the checkpoints

    def _follow_newest_job(self, planned_cut: PlannedCut | None) -> JobOutcome:
        """Follow the newest job to its end, which may be its planned cut, and return how it ended. Notes the
        cut, or else a failure of the resume."""
        job_name = self._job_names[-1]
        # A cut by time is made at a fraction of the uninterrupted run's duration.
        baseline_seconds = 0.0 if self._baseline is None else self._baseline.seconds
        followed_job = _FollowedJob(
            target=self._target,
            job=job_name,
            trace_dir=self._trace_dir,
            cut=planned_cut,
            baseline_seconds=baseline_seconds,
        )
        followed_job.follow_to_end()  # makes the cut
        self._followed_jobs.append(followed_job)
        outcome = followed_job.follower.outcome()
        if planned_cut is not None and followed_job.cut_after_step is not None:
            last_step = followed_job.cut_after_step or None  # 0: the script reports no steps
            self._applied_cuts.append(AppliedCut(planned_cut.signal, job_name, after_step=last_step))
            step_text = last_step or "unknown"
            self._on_message(f"{job_name}: {_SIGNAL_NAMES[planned_cut.signal]} after step {step_text}")
        elif outcome.status != "Completed":
            reason = outcome.failure_reason or outcome.secondary_status
            if not self._applied_cuts:
                raise TrainingFailed(f"{job_name} ended with {outcome.status}: {reason}")
            cut_number = len(self._applied_cuts)
            self._resume_failure = (
                f"{job_name}, which was to go on after cut {cut_number}, {outcome.status}: {reason}"
            )
        return outcome

    def _inspect_checkpoints(self, uri: str | None) -> _CheckpointsInS3:
        """Return what a job has left at the S3 address of its checkpoints; ``uri`` is None without one."""
        if uri is None:
            return _CheckpointsInS3(exist=False, say_finished=False)
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        prefix = prefix.rstrip("/") + "/"
        names = [row.key.removeprefix(prefix) for row in self._target.storage.list_objects(bucket, prefix)]
        outcome = stored.RunCheckpoints(uri, self._target.storage).read_outcome()
        return _CheckpointsInS3(
            exist=any(not name.startswith(OUTCOME_PATH_PREFIX) for name in names),
            say_finished=outcome is not None and outcome.ranks_succeeded and outcome.result == FINISHED,
        )

    def _submit_next_job(self) -> None:
        segment = len(self._job_names) + 1  # each job is one segment of a chain, in its first attempt
        planned_job = PlannedJob(
            name=str(JobName(self._name, segment, attempt=1)),
            segment=segment,
            attempt=1,
            operation=CHAIN_OPERATION,
            request=build_job_request(self._workflow, segment, 1),
        )
        submitted_job = submit_job_once(planned_job, self._workflow.job_hash, self._target)
        self._job_names.append(submitted_job.name)

    def result(self, planned_cut_count: int) -> TrialResult:
        """Return what the trial has shown, once all of its jobs have ended."""
        record = RunRecord(
            job_names=tuple(self._job_names),
            trace_by_rank=step_traces.read_traces(self._trace_dir, self._job_names),
            artifact_files=self._newest_files,
            artifact_files_of_earlier_jobs=tuple(self._files_of_earlier_jobs),
        )
        first_steps = _first_step_of_each_job(record, self._followed_jobs)
        effective_cuts = self._find_cuts_before_further_training(first_steps)
        last_job = self._followed_jobs[-1]
        return TrialResult(
            record=record,
            applied_cuts=effective_cuts,
            late_cut_count=planned_cut_count - len(effective_cuts),
            last_step=max(job.last_step for job in self._followed_jobs),
            seconds=sum(job.seconds for job in self._followed_jobs),
            stepping_seconds=sum(job.stepping_seconds for job in self._followed_jobs),
            has_resumed=_has_resumed(
                record,
                first_steps,
                last_job.step_line_count,
                self._baseline,
                has_checkpoints=self._has_checkpoints,
            ),
            last_job_step_lines=last_job.step_line_count,
            resume_failure=self._resume_failure,
        )

    def _find_cuts_before_further_training(self, first_steps: Sequence[int | None]) -> tuple[AppliedCut, ...]:
        """Return the cuts after which a further job did training steps, each with the first of them. Of a
        script that reports no steps, every cut before a further job counts.

        ``first_steps``: of each job; None for a job without any.
        """
        reports_no_steps = self._baseline is None or not self._baseline.last_step
        effective_cuts: list[AppliedCut] = []
        for job_index, cut in enumerate(self._applied_cuts):
            if job_index + 1 >= len(self._job_names):  # no job came after it
                continue
            steps_after_cut = [step for step in first_steps[job_index + 1 :] if step is not None]
            if steps_after_cut or reports_no_steps:
                resumed_step = steps_after_cut[0] if steps_after_cut else None
                effective_cuts.append(replace(cut, resumed_step=resumed_step))
        return tuple(effective_cuts)


def _first_step_of_each_job(record: RunRecord, followed_jobs: Sequence[_FollowedJob]) -> list[int | None]:
    """Return the first training step of each job of a run; None where a job did none, or reports none."""
    trace = record.trace_by_rank.get(0)
    if trace is not None:
        return [trace.first_step_of(job_index) for job_index in range(len(followed_jobs))]
    return [followed_job.first_step for followed_job in followed_jobs]


def _has_resumed(
    record: RunRecord,
    first_step_of_each_job: Sequence[int | None],
    last_job_step_lines: int,
    baseline: TrialResult | None,
    *,
    has_checkpoints: bool,
) -> bool:
    """Return whether the last job continued the training instead of repeating it from the start.

    ``last_job_step_lines``: number of the last job's progress lines with a step. ``baseline``: the
    uninterrupted run. ``has_checkpoints``: the job found files in its checkpoint directory.
    """
    if record.has_step_traces:
        first_steps = [step for step in first_step_of_each_job if step is not None]
        return bool(first_steps) and first_steps[-1] > 1
    # A script may restart its step count in each epoch or each process.
    if baseline is None or not baseline.last_job_step_lines:
        return has_checkpoints
    return last_job_step_lines < baseline.last_job_step_lines


_SIGNAL_NAMES = {"term": "SIGTERM", "kill": "SIGKILL"}


class _FollowedJob:
    """One job that is followed to its end, with its cut."""

    def __init__(
        self, target: Target, job: str, trace_dir: Path, cut: PlannedCut | None, baseline_seconds: float
    ) -> None:
        self.follower = JobFollower(target, job)
        self.cut_after_step: int | None = None
        """The last step before the cut; 0 without reported steps, None before the cut."""
        self.first_step: int | None = None
        self.last_step = self.step_line_count = 0
        self._target = target
        self._job = job
        self._trace_dir = trace_dir
        self._cut = cut
        self._cut_after_seconds = 0.0 if cut is None else cut.time_fraction * baseline_seconds
        self._training_started_at: float | None = None
        self._first_step_at = self._last_step_at = self._ended_at = 0.0

    def follow_to_end(self) -> None:
        """Follow this job until it has ended, and note its steps and times. Its planned cut, a deliberate
        interruption, is made when it is due, between two rounds of events too (``_sleep_and_cut_if_due``)."""
        for events in self.follower.event_batches(self._sleep_and_cut_if_due):
            for event in events:
                if isinstance(event, StateChange) and event.state == "Training":
                    self._training_started_at = time.monotonic()
                elif isinstance(event, LogLine):
                    self._note_step_in_line(event.text)
            self._cut_if_due()
        self._ended_at = time.monotonic()

    def _note_step_in_line(self, log_text: str) -> None:
        """Note the training step that a line of the log reports, if any: the first one, how many lines have
        one, and the highest with its time (``_note_step_if_highest``)."""
        progress_line = parse_line(log_text)
        step = None if progress_line is None else progress_line.progress[0]
        if step is None:
            return
        if self.first_step is None:
            self.first_step = step
        self.step_line_count += 1
        self._note_step_if_highest(step)

    @property
    def seconds(self) -> float:
        return 0.0 if self._training_started_at is None else self._ended_at - self._training_started_at

    @property
    def stepping_seconds(self) -> float:
        return self._last_step_at - self._first_step_at

    def _note_step_if_highest(self, step: int) -> None:
        """Note the step and its time if it is the highest so far."""
        if step > self.last_step:
            self._last_step_at = time.monotonic()
            self._first_step_at = self._first_step_at or self._last_step_at
            self.last_step = step

    def _sleep_and_cut_if_due(self, seconds: float) -> None:
        """Sleep until the next round, but check the steps more often than the log is read."""
        deadline = time.monotonic() + seconds
        while (remaining_seconds := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining_seconds, 0.01))
            self._cut_if_due()

    def _cut_if_due(self) -> None:
        """Interrupt this job once, as soon as it has reached the step, or else the time, of its planned
        cut."""
        if self.cut_after_step is not None:  # it has been cut
            return
        # Ranks also write their steps to a file, which shows them sooner than the log does.
        self._note_step_if_highest(step_traces.last_traced_step(self._trace_dir, self._job))
        cut = self._cut
        if cut is None:
            return
        if cut.after_step:
            is_due = self.last_step >= cut.after_step
        else:  # the script reports no steps
            started_at = self._training_started_at
            is_due = started_at is not None and time.monotonic() - started_at >= self._cut_after_seconds
        if is_due and self._apply_cut(cut):
            self.cut_after_step = self.last_step

    def _apply_cut(self, cut: PlannedCut) -> bool:
        """Stop the job or kill one of its ranks; return False if it had already ended."""
        if cut.signal == "kill":
            return kill_rank(self._job, cut.rank)
        with suppress(CallError):  # the job has just ended: the cut came too late
            self._target.control_plane.stop_job(self._job)
            return True
        return False
