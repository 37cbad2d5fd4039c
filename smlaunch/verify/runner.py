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
from smlaunch.contract.names import JobName
from smlaunch.contract.outcome import FINISHED, OUTCOME_PATH_PREFIX
from smlaunch.contract.progress import parse_line
from smlaunch.contract.segment import INTERVAL_VARIABLE
from smlaunch.errors import TrainingFailed
from smlaunch.job.model import Checkpoints, Job
from smlaunch.planner.plan import PlannedJob
from smlaunch.planner.planner import CHAIN_OPERATION
from smlaunch.planner.workflow import request_for
from smlaunch.runs import checkpoints as stored
from smlaunch.runs.api import launch, prepare
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import LogLine, StateChange
from smlaunch.runs.run import translate_call_errors
from smlaunch.runs.submit import submit
from smlaunch.runs.target import Target
from smlaunch.verify import artifacts, step_traces
from smlaunch.verify.artifacts import ArtifactFiles
from smlaunch.verify.diff import RunRecord
from smlaunch.verify.kill import kill_rank

TRACE_VARIABLE = "SMLAUNCH_TRACE"
"""Equals smlaunch.train.trace.VARIABLE; the client does not import ``train``."""

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
    job: str
    after_step: int | None
    """The last step before it; None where the script reports no steps."""
    resumed_step: int | None = None
    """The first step after it; None where the script reports no steps."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "signal": self.signal,
            "job": self.job,
            "done": self.after_step,
            "resumed": self.resumed_step,
        }


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
    is_resumed: bool = True
    """The last job continued from a checkpoint and did not repeat the whole training."""
    step_lines: int = 0
    """Progress lines with a step in the last job's log."""
    failure: str | None = None
    """Failure of a job that was to resume; None without one."""


def draw_cuts(
    signal: CutSignal,
    count: int,
    last_step: int,
    rank_count: int,
    random: Random,
    earliest_fraction: float = 0.0,
) -> list[PlannedCut]:
    """Draw cuts in the order in which they occur, before the last step and at different steps where possible.

    ``last_step`` is 0 for a script that reports no steps. No cut comes before the fraction
    ``earliest_fraction``.
    """
    first_step = 1 + int(last_step * earliest_fraction)
    candidate_steps = range(first_step, max(first_step + 1, last_step)) if last_step else range(1)
    steps = (
        random.sample(candidate_steps, count)
        if count <= len(candidate_steps)
        else random.choices(candidate_steps, k=count)
    )
    time_fractions = sorted(random.uniform(max(0.1, earliest_fraction), 0.9) for _ in range(count))
    return [
        PlannedCut(signal, step, time_fraction, random.randrange(max(1, rank_count)))
        for step, time_fraction in zip(sorted(steps), time_fractions, strict=True)
    ]


class TrialRunner:
    """Runs one job on one endpoint. ``folder`` receives the ranks' traces; ``on_message`` reports events."""

    def __init__(self, job: Job, target: Target, folder: Path, on_message: Callable[[str], None]) -> None:
        self._job = job
        self._target = target
        self._folder = folder
        self._on_message = on_message

    def run(
        self, name: str, cuts: Sequence[PlannedCut] = (), unsplit: TrialResult | None = None
    ) -> TrialResult:
        """Run the script to the end of its training. ``unsplit`` is the earlier run whose duration counts.

        Raises TrainingFailed when a job fails that was not killed.
        """
        # Ranks are found by their job's name among all processes of the machine, so it must be unique.
        name = f"{name}-{secrets.token_hex(4)}"
        target, trace_dir = self._target, self._folder / name
        trace_dir.mkdir(parents=True)
        interval = None
        if unsplit is not None and unsplit.stepping_seconds:
            interval = max(
                _MIN_INTERVAL_SECONDS, unsplit.stepping_seconds / (_CHECKPOINTS_PER_CUT * (len(cuts) + 1))
            )
        prepared = prepare(self._trial_job(name, trace_dir, interval), target, name)
        if unsplit is None:
            for note in prepared.plan.facts.source.warnings:
                self._on_message(f"warning: {note}")
        workflow = prepared.plan.workflow
        jobs = list(launch(prepared, target).jobs)
        pending_cuts, applied_cuts, cut_jobs = list(cuts), list[AppliedCut](), list[_CutJob]()
        earlier_files, has_checkpoints, failure = list[ArtifactFiles | None](), False, None
        with translate_call_errors(target):
            while True:
                job = jobs[-1]
                cut = pending_cuts.pop(0) if pending_cuts else None
                cut_job = _CutJob(target, job, trace_dir, cut, unsplit.seconds if unsplit else 0.0)
                cut_job.follow_to_end()
                cut_jobs.append(cut_job)
                outcome = cut_job.follower.outcome()
                if cut is not None and cut_job.cut_after_step is not None:
                    applied_cuts.append(AppliedCut(cut.signal, job, cut_job.cut_after_step or None))
                    self._on_message(
                        f"{job}: {_SIGNAL_NAMES[cut.signal]} after step {cut_job.cut_after_step or 'unknown'}"
                    )
                elif outcome.status != "Completed":
                    reason = outcome.failure_reason or outcome.secondary_status
                    if not applied_cuts:
                        raise TrainingFailed(f"{job} ended with {outcome.status}: {reason}")
                    failure = (
                        f"{job}, which was to go on after cut {len(applied_cuts)}, {outcome.status}: {reason}"
                    )
                files = artifacts.fetch_artifacts(target, outcome.model_artifacts, [*jobs, name], trace_dir)
                if outcome.status == "Completed" or failure is not None:
                    break
                has_checkpoints, is_finished = self._inspect_checkpoints(outcome.checkpoints_uri)
                if is_finished:  # the cut came too late: a further job would end at once
                    break
                earlier_files.append(files if outcome.status != "Failed" else None)
                segment = len(jobs) + 1
                request = request_for(workflow, segment, 1)
                planned_job = PlannedJob(str(JobName(name, segment, 1)), segment, 1, CHAIN_OPERATION, request)
                jobs.append(submit(planned_job, workflow.job_hash, target.control, target.storage).name)
        record = RunRecord(tuple(jobs), step_traces.read_traces(trace_dir, jobs), files, tuple(earlier_files))
        first_steps = _first_steps(record, cut_jobs)
        effective_cuts = [
            replace(
                cut, resumed_step=next((step for step in first_steps[segment:] if step is not None), None)
            )
            for segment, cut in enumerate(applied_cuts, 1)
            if segment < len(jobs)
            and (
                unsplit is None
                or not unsplit.last_step
                or any(step is not None for step in first_steps[segment:])
            )
        ]
        return TrialResult(
            record,
            tuple(effective_cuts),
            len(cuts) - len(effective_cuts),
            max(finished_job.last_step for finished_job in cut_jobs),
            sum(finished_job.seconds for finished_job in cut_jobs),
            sum(finished_job.stepping_seconds for finished_job in cut_jobs),
            _has_resumed(
                record, first_steps, cut_jobs[-1].step_lines, unsplit, has_checkpoints=has_checkpoints
            ),
            cut_jobs[-1].step_lines,
            failure,
        )

    def _inspect_checkpoints(self, uri: str | None) -> tuple[bool, bool]:
        """Return whether the checkpoint prefix has files, and whether its outcome file says that the training
        is finished."""
        if uri is None:
            return False, False
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        prefix = prefix.rstrip("/") + "/"
        outcome = stored.RunCheckpoints(uri, self._target.storage).read_outcome()
        keys = (row.key.removeprefix(prefix) for row in self._target.storage.list(bucket, prefix))
        is_finished = outcome is not None and outcome.ranks_succeeded and outcome.result == FINISHED
        return any(not key.startswith(OUTCOME_PATH_PREFIX) for key in keys), is_finished

    def _trial_job(self, name: str, trace_dir: Path, interval: float | None) -> Job:
        """Return the job with checkpoints of this trial's own, as a single job without segments."""
        checkpoint_settings = self._job.checkpoints or Checkpoints()
        checkpoint_uri = f"s3://{self._target.bucket}/verify/{name}/"
        checkpoints = checkpoint_settings.model_copy(update={"uri": checkpoint_uri, "bucket_owner": None})
        limits = self._job.limits.model_copy(update={"segment": None, "max_runtime": None, "max_cost": None})
        environment = {**self._job.environment, TRACE_VARIABLE: str(trace_dir)}
        if interval is not None:
            environment[INTERVAL_VARIABLE] = f"{interval:.3f}"
        compute = self._job.compute.model_copy(update={"spot": False, "on_demand_fallback": False})
        changes = {"checkpoints": checkpoints, "limits": limits, "environment": environment, "segments": ()}
        return self._job.model_copy(
            update={**changes, "compute": compute, "output": None, "bucket_owner": None, "name": None}
        )


def _first_steps(record: RunRecord, cut_jobs: Sequence[_CutJob]) -> list[int | None]:
    """Return the first step of each job; None where it did none, or reports none."""
    trace = record.trace_by_rank.get(0)
    if trace is not None:
        return [trace.first_step_of(number) for number in range(len(cut_jobs))]
    return [cut_job.first_step for cut_job in cut_jobs]


def _has_resumed(
    record: RunRecord,
    first_steps: Sequence[int | None],
    step_lines: int,
    unsplit: TrialResult | None,
    *,
    has_checkpoints: bool,
) -> bool:
    """Return whether the last job continued the training instead of repeating it from the start.

    ``step_lines`` are the last job's progress lines with a step. ``has_checkpoints``: the job found files in
    its checkpoint directory.
    """
    if record.is_traced:
        return next((step for step in reversed(first_steps) if step is not None), 0) > 1
    # A script may restart its step count in each epoch or each process.
    return step_lines < unsplit.step_lines if unsplit is not None and unsplit.step_lines else has_checkpoints


_SIGNAL_NAMES = {"term": "SIGTERM", "kill": "SIGKILL"}


class _CutJob:
    """One job that is followed to its end, with its cut."""

    def __init__(
        self, target: Target, job: str, trace_dir: Path, cut: PlannedCut | None, unsplit_seconds: float
    ) -> None:
        self.follower = JobFollower(target, job)
        self.cut_after_step: int | None = None
        """The last step before the cut; 0 without reported steps, None before the cut."""
        self.first_step: int | None = None
        self.last_step = self.step_lines = 0
        self._target = target
        self._job = job
        self._trace_dir = trace_dir
        self._cut = cut
        self._cut_after_seconds = 0.0 if cut is None else cut.time_fraction * unsplit_seconds
        self._training_started_at: float | None = None
        self._first_step_at = self._last_step_at = self._ended_at = 0.0

    def follow_to_end(self) -> None:
        """Follow the job until it has ended, and cut it when its cut is due."""
        for events in self.follower.event_batches(self._sleep):
            for event in events:
                if isinstance(event, StateChange) and event.state == "Training":
                    self._training_started_at = time.monotonic()
                elif isinstance(event, LogLine) and (line := parse_line(event.text)) is not None:
                    step = line.values.get("step")
                    if isinstance(step, int):
                        self.first_step = step if self.first_step is None else self.first_step
                        self.step_lines += 1
                        self._record_step(step)
            self._cut_if_due()
        self._ended_at = time.monotonic()

    @property
    def seconds(self) -> float:
        return 0.0 if self._training_started_at is None else self._ended_at - self._training_started_at

    @property
    def stepping_seconds(self) -> float:
        return self._last_step_at - self._first_step_at

    def _record_step(self, step: int) -> None:
        """Note the step and its time if it is the highest so far."""
        if step > self.last_step:
            self._last_step_at = time.monotonic()
            self._first_step_at = self._first_step_at or self._last_step_at
            self.last_step = step

    def _sleep(self, seconds: float) -> None:
        """Sleep until the next round, but check the steps more often than the log is read."""
        deadline = time.monotonic() + seconds
        while (remaining_seconds := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining_seconds, 0.01))
            self._cut_if_due()

    def _cut_if_due(self) -> None:
        """Cut the job if its step or its time has been reached, once."""
        cut = self._cut
        if self.cut_after_step is not None:
            return
        self._record_step(step_traces.last_traced_step(self._trace_dir, self._job))
        if cut is None:
            return
        if cut.after_step:
            is_due = self.last_step >= cut.after_step
        else:
            started_at = self._training_started_at
            is_due = started_at is not None and time.monotonic() - started_at >= self._cut_after_seconds
        if is_due and self._apply_cut(cut):
            self.cut_after_step = self.last_step

    def _apply_cut(self, cut: PlannedCut) -> bool:
        """Stop the job or kill one of its ranks; return False if it had already ended."""
        if cut.signal == "kill":
            return kill_rank(self._job, cut.rank)
        with suppress(CallError):  # the job has just ended: the cut came too late
            self._target.control.stop(self._job)
            return True
        return False
