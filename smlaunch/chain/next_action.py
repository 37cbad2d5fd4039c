"""The next action of a run: one pure function of the workflow and the observed jobs.

A job has made progress if it committed a newer step, or reported a higher step than the jobs before; if it
reported none, if it wrote new or changed checkpoint files. The run ends when as many jobs in a row as the
policy allows attempts made no progress, however they ended.

Nothing is remembered between two decisions. A restarted client, or another machine, observes the same jobs
and checkpoints and decides the same; two clients request the same job name, which only one can create.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from smlaunch.chain.workflow import (
    RULE_BY_ENDING,
    JobEnding,
    Remedy,
    SegmentVariant,
    Workflow,
    build_job_request,
    variant_of_segment,
)
from smlaunch.contract.run_names import JobName
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED, SegmentOutcome
from smlaunch.errors import EXIT_COMPLETED, EXIT_LIMIT, EXIT_STOPPED, EXIT_TRAINING_FAILED
from smlaunch.job.model import format_duration
from smlaunch.text.format import format_dollars

OUTCOME_GRACE_SECONDS = 60.0
"""Seconds after a job's end in which its outcome file may still be on its way to S3."""

TIME_USED_ENDINGS = (JobEnding.COMPLETED, JobEnding.TIME_LIMIT)
"""The job used its time: the next segment follows."""

NO_CAPACITY_ENDINGS = (JobEnding.WAIT_EXCEEDED, JobEnding.CAPACITY)
"""A spot job that ended so may be retried on demand."""

ENDING_MESSAGES: Mapping[JobEnding, str] = {
    JobEnding.STOPPED: "stopped",
    JobEnding.WAIT_EXCEEDED: "stopped at its max_wait: spot capacity was not available, or was interrupted",
}
"""For endings without a reason from the service."""


class RunProgress(NamedTuple):
    """How far a run was when it last made progress."""

    newest_checkpoint_step: int = 0
    """Step of the newest committed checkpoint, 0 before the first."""

    reported_step: int | None = None
    """Highest step in progress lines, None before the first."""

    checkpoint_files_digest: str = ""
    """Digest of the checkpoint files, for jobs that report no step."""

    def is_beyond(self, earlier_progress: RunProgress) -> bool:
        """Whether the run has made progress since ``earlier_progress``."""
        # Jobs that report steps leave no digest: the first one after them cannot be compared with anything.
        is_comparable = (
            bool(earlier_progress.checkpoint_files_digest) or earlier_progress.reported_step is None
        )
        if self.newest_checkpoint_step > earlier_progress.newest_checkpoint_step or (
            is_comparable
            and bool(self.checkpoint_files_digest)
            and self.checkpoint_files_digest != earlier_progress.checkpoint_files_digest
        ):
            return True
        return (self.reported_step or 0) > (earlier_progress.reported_step or 0)


@dataclass(frozen=True)
class ObservedJob:
    """One job of the run. The ``from_`` fields are the run's progress mark when the job was requested."""

    segment: int
    attempt: int
    ending: JobEnding | None
    """None while the job runs."""

    reason: str = ""
    """The service's failure reason."""

    ended_at: float | None = None
    """Seconds since the epoch."""

    training_seconds: float = 0.0
    billable_seconds: float = 0.0
    is_spot: bool = False
    from_step: int = 0
    from_reported_step: int | None = None
    from_files_digest: str = ""

    @property
    def progress_at_start(self) -> RunProgress:
        return RunProgress(self.from_step, self.from_reported_step, self.from_files_digest)


@dataclass(frozen=True)
class ObservedRun:
    """What was observed of the run."""

    now: float
    """Seconds since the epoch."""

    jobs: Sequence[ObservedJob] = ()
    newest_checkpoint_step: int = 0
    """Newest committed step in S3, 0 before the first."""

    outcome_file: SegmentOutcome | None = None
    reported_step: int | None = None
    """Highest step that the newest job reported; None if it reported none."""

    newest_job_repeats_steps: bool = False
    """Most of the newest job's steps had been reported by earlier jobs."""

    checkpoint_files_digest: str = ""
    """Digest of the script's own checkpoint files; empty without any."""

    stop_requested: bool = False
    """A person has asked to stop the run."""

    override_failure: JobName | None = None
    """Job whose failure a person has overridden: the run continues after it."""

    wait_time_scale: float = 1.0
    """Factor of all waits, relative to a region."""


@dataclass(frozen=True)
class SubmitJob:
    """Submit a job."""

    name: JobName
    request: Mapping[str, Any] = field(repr=False)
    reason: str
    not_before: float = 0.0
    """Seconds since the epoch."""

    clears_outcome: str | None = None
    """Path, below the checkpoint directory, of an outcome file that says that training has finished, but its
    job failed afterwards: delete it, otherwise the next job would exit at once."""


@dataclass(frozen=True)
class FollowJob:
    """Wait for the running job."""

    name: JobName


@dataclass(frozen=True)
class WaitUntil:
    """Observe again at ``until`` (seconds since the epoch), or when what is missing has arrived."""

    until: float
    """Seconds since the epoch."""
    reason: str


@dataclass(frozen=True)
class FinishRun:
    """The run has ended."""

    exit_code: int
    status: str
    """Completed, Failed or Stopped, as for a job."""

    summary: str
    run_note: str = ""
    """The end of ``summary`` that is about the run and not its last job."""


RunAction: TypeAlias = SubmitJob | FollowJob | WaitUntil | FinishRun


def next_action(workflow: Workflow, observed: ObservedRun) -> RunAction:
    """Decide what to do next."""
    if not observed.jobs:
        if observed.stop_requested:
            return FinishRun(exit_code=EXIT_STOPPED, status="Stopped", summary="stopped before its first job")
        first_name = JobName(workflow.run, 1, 1)
        return SubmitJob(
            name=first_name, request=build_job_request(workflow, 1, 1), reason="the first segment"
        )
    return _NextActionDecision(workflow, observed).decide_action()


def run_progress_after(newest_job: ObservedJob, observed: ObservedRun) -> RunProgress:
    """Return how far the run is when its newest job has ended: the newest checkpoint in S3 and the highest
    step that its jobs printed (reported). Without progress it is what that job began with, so that a later
    observer, who sees only what the next job began with, decides the same.
    """
    previous_progress = newest_job.progress_at_start
    previous_step, reported_step = previous_progress.reported_step, observed.reported_step
    # Independent ranks do not train together: one may have finished while another goes on.
    are_ranks_independent = observed.outcome_file is not None and observed.outcome_file.independent_ranks
    if are_ranks_independent or reported_step is None:
        # No step speaks for the whole job; new or changed checkpoint files count as progress too.
        known_steps = [step for step in (previous_step, reported_step) if step is not None]
        return RunProgress(
            newest_checkpoint_step=observed.newest_checkpoint_step,
            reported_step=max(known_steps, default=None),
            checkpoint_files_digest=observed.checkpoint_files_digest
            or previous_progress.checkpoint_files_digest,
        )
    # A job that repeats steps started from the beginning: its steps do not count.
    reached_new_step = not observed.newest_job_repeats_steps and reported_step > (previous_step or 0)
    return RunProgress(
        newest_checkpoint_step=observed.newest_checkpoint_step,
        reported_step=reported_step if reached_new_step else previous_step,
        checkpoint_files_digest=previous_progress.checkpoint_files_digest,
    )


def progress_by_job(jobs: Sequence[ObservedJob], current_progress: RunProgress) -> list[bool]:
    """Whether each job, oldest first, made progress. ``current_progress``: the run's. What a
    job began with is the result of the job before."""
    progress_in_order = [job.progress_at_start for job in jobs] + [current_progress]
    return [after.is_beyond(before) for before, after in pairwise(progress_in_order)]


def cost_so_far(workflow: Workflow, jobs: Sequence[ObservedJob]) -> float | None:
    """US dollars for all jobs so far; None if a price is unknown."""
    total_dollars = 0.0
    for job in jobs:
        hourly_price = variant_of_segment(workflow, job.segment, job.from_step).price_per_hour
        if hourly_price is None:
            return None
        total_dollars += hourly_price * job.billable_seconds / 3600
    return total_dollars


class _NextActionDecision:
    """One decision about a run that has jobs."""

    def __init__(self, workflow: Workflow, observed: ObservedRun) -> None:
        self.workflow = workflow
        self.observed = observed
        self.jobs = sorted(observed.jobs, key=lambda job: (job.segment, job.attempt))
        self.newest_job = self.jobs[-1]
        self.newest_job_name = JobName(workflow.run, self.newest_job.segment, self.newest_job.attempt)
        self.run_progress = run_progress_after(self.newest_job, observed)
        outcome = observed.outcome_file
        # The outcome of an earlier run in the same prefix is ignored.
        self.outcome_file = outcome if outcome is not None and outcome.run in (None, workflow.run) else None
        self.newest_job_outcome = (
            self.outcome_file
            if self.outcome_file and self.outcome_file.job == str(self.newest_job_name)
            else None
        )

    def decide_action(self) -> RunAction:
        """Return what the run's driver does next: follow the running job, finish the run, wait, or submit
        another job. A multi-segment run trains in several jobs in a row, each with a time limit.

        ``self.workflow`` has the planned requests and limits, ``self.observed`` the run's jobs and
        checkpoints as they are now.
        """
        ending = self.newest_job.ending
        if ending is None:
            return FollowJob(self.newest_job_name)
        # How a job ended may decide the whole run, even if a person has asked to stop it. The texts end the
        # run's summary: the archives with its results, or its newest checkpoint.
        if ending is JobEnding.COMPLETED:
            finish_or_wait = self._action_after_completed_job()
            if finish_or_wait is not None:
                return finish_or_wait
        if ending is JobEnding.STOPPED and self._has_finished_training:
            return FinishRun(
                exit_code=EXIT_COMPLETED,
                status="Completed",
                summary=f"completed: it had finished when it was stopped{self._result_archives_text()}",
            )
        if ending is JobEnding.TIME_LIMIT and not self.workflow.is_multi_segment:
            return FinishRun(
                exit_code=EXIT_LIMIT,
                status="Stopped",
                summary=f"stopped at its max_runtime{self._newest_checkpoint_text()}",
            )
        # A person who continues a run after a failure (an override) takes back an earlier request to stop.
        if self.observed.stop_requested and not self._has_user_overridden_failure:
            return FinishRun(
                exit_code=EXIT_STOPPED, status="Stopped", summary=f"stopped{self._newest_checkpoint_text()}"
            )
        return self._action_after_ended_job(ending)

    # ---- the last job went well --------------------------------------------------------------------------

    def _action_after_completed_job(self) -> RunAction | None:
        """Return the action after a job that the service calls Completed: finish the run, or wait for the
        job's outcome file, which says whether training finished; None if another job continues the training.

        ``self.outcome_file``: newest outcome file of the run; ``self.newest_job_outcome``: the same if the
        newest job wrote it, otherwise None.
        """
        job_outcome = self.newest_job_outcome
        is_training_finished = self.outcome_file is not None and self.outcome_file.result == FINISHED
        is_single_job = not self.workflow.is_multi_segment
        # CONTINUE: the job stopped itself at its planned end, before training was done.
        stopped_itself = job_outcome is not None and job_outcome.result == CONTINUE
        if is_training_finished or (is_single_job and not stopped_itself):
            return FinishRun(
                exit_code=EXIT_COMPLETED,
                status="Completed",
                summary=f"completed{self._result_archives_text()}",
            )
        if is_single_job:
            return FinishRun(
                exit_code=EXIT_LIMIT,
                status="Stopped",
                summary=f"ended itself before its max_runtime{self._newest_checkpoint_text()}",
            )
        if job_outcome is None and self.newest_job.ended_at is not None:
            # The outcome file may be on its way to S3 for a minute more, or a scaled one in a local
            # rehearsal.
            grace_end = self.newest_job.ended_at + OUTCOME_GRACE_SECONDS * self.observed.wait_time_scale
            if self.observed.now < grace_end:
                return WaitUntil(until=grace_end, reason=f"{self.newest_job_name} has written no outcome yet")
        return None

    @property
    def _has_finished_training(self) -> bool:
        """Whether the newest job trained to the end, even if the service then stopped or failed it: its
        outcome file says finished, and all its ranks succeeded."""
        outcome = self.newest_job_outcome
        return outcome is not None and outcome.result == FINISHED and outcome.ranks_succeeded

    def _result_archives_text(self) -> str:
        """Message that names the jobs whose archives have results, if several have; otherwise empty."""
        jobs = self.outcome_file.finished_in if self.outcome_file is not None else ()
        if len(jobs) < 2:
            return ""
        return f"; its ranks finished in several jobs, whose archives have their results: {', '.join(jobs)}"

    # ---- what follows ------------------------------------------------------------------------------------

    def _action_after_ended_job(self, ending: JobEnding) -> RunAction:
        """Return the action after a job that ended before the training did: resubmit its segment, submit the
        next segment, or finish the run. A segment is a stretch of the training with a time limit, which takes
        one job, or several if jobs fail. ``policy.attempts`` jobs in a row without progress end the run.
        """
        policy = self.workflow.policy
        # The service found no capacity, or none within the job's longest wait.
        lacked_spot_capacity = ending in NO_CAPACITY_ENDINGS and self.newest_job.is_spot
        if lacked_spot_capacity and policy.on_demand_fallback:
            return self._resubmit_segment(f"{self._ending_text(ending)}; on demand now", use_on_demand=True)
        # In a row, up to the newest job; a checkpoint or a new step is progress.
        jobs_without_progress = self._count_jobs_without_progress()
        # A person who has asked to continue after this failure gets another attempt in any case.
        is_continued_by_user = self._has_user_overridden_failure
        are_attempts_used_up = jobs_without_progress >= policy.attempts and not is_continued_by_user
        # It completed without finishing the training, or reached its time limit.
        if ending in TIME_USED_ENDINGS:
            return self._action_after_full_segment(jobs_without_progress, are_attempts_used_up)
        # For each way to end: a remedy, the exit code of the run, and the wait before a retry.
        ending_rule = RULE_BY_ENDING[ending]
        # If the policy allows a retry on demand, it was decided above.
        is_final = ending_rule.remedy in (Remedy.GIVE_UP, Remedy.ON_DEMAND)
        if is_final and is_continued_by_user:
            return self._resubmit_segment("continued on request")
        if is_final:
            return self._finish_with_ending(ending)
        if are_attempts_used_up:
            return self._finish_with_ending(ending, jobs_without_progress)
        wait_seconds = 0.0
        if not is_continued_by_user:
            wait_seconds = ending_rule.wait_seconds(self.newest_job.attempt) * self.observed.wait_time_scale
        return self._resubmit_segment(reason=self._ending_text(ending), wait_seconds=wait_seconds)

    def _action_after_full_segment(self, jobs_without_progress: int, are_attempts_used_up: bool) -> RunAction:
        """Return the action after a job that used its time: submit the next segment, or, without progress,
        resubmit this one or finish the run. ``jobs_without_progress``: in a row, up to the newest job.
        """
        if jobs_without_progress == 0:
            return self._submit_or_finish(
                segment=self.newest_job.segment + 1, attempt=1, reason=self._progress_text()
            )
        if are_attempts_used_up:
            return FinishRun(
                exit_code=EXIT_TRAINING_FAILED,
                status="Failed",
                summary=self._no_progress_diagnosis(jobs_without_progress),
            )
        return self._resubmit_segment(f"it made no progress: {self._no_progress_text()}")

    @property
    def _has_user_overridden_failure(self) -> bool:
        """Whether a person has asked to continue the run although its newest job failed."""
        return self.observed.override_failure == self.newest_job_name

    def _resubmit_segment(
        self, reason: str, wait_seconds: float = 0.0, *, use_on_demand: bool = False
    ) -> RunAction:
        """Submit another attempt of the newest job's segment. ``reason``: a message for the user.
        ``wait_seconds``: time between the newest job's end and the submission. ``use_on_demand``: request
        on-demand capacity although spot is planned.
        """
        newest_job = self.newest_job
        ended_at = newest_job.ended_at if newest_job.ended_at is not None else self.observed.now
        # The planned request of this segment.
        planned_variant = variant_of_segment(
            self.workflow, newest_job.segment, self.observed.newest_checkpoint_step
        )
        # A segment that lacked spot capacity once stays on demand.
        was_moved_to_on_demand = planned_variant.is_spot and not newest_job.is_spot
        # Finishes the run if its limits on time or cost leave too little for another job.
        return self._submit_or_finish(
            segment=newest_job.segment,
            attempt=newest_job.attempt + 1,
            reason=reason,
            spot=False if use_on_demand or was_moved_to_on_demand else None,  # None: as planned
            # Seconds since the epoch; 0: at once.
            not_before=ended_at + wait_seconds if wait_seconds else 0.0,
        )

    def _submit_or_finish(
        self, segment: int, attempt: int, reason: str, *, spot: bool | None = None, not_before: float = 0.0
    ) -> RunAction:
        """Submit the next job, unless the run's caps on time and cost leave too little training time: then
        finish. ``spot``: False requests on-demand capacity; None as planned. ``not_before``: seconds since
        the epoch.
        """
        variant = variant_of_segment(self.workflow, segment, self.observed.newest_checkpoint_step)
        remaining_seconds, cap_message = self._seconds_left(variant)
        if remaining_seconds is not None and remaining_seconds < min(
            variant.min_useful_seconds, variant.max_runtime_seconds
        ):
            return FinishRun(
                exit_code=EXIT_LIMIT,
                status="Stopped",
                summary=f"{cap_message}{self._newest_checkpoint_text()}",
            )
        request = build_job_request(
            self.workflow,
            segment,
            attempt,
            newest_checkpoint_step=self.run_progress.newest_checkpoint_step,
            reported_step=self.run_progress.reported_step,
            checkpoint_files_digest=self.run_progress.checkpoint_files_digest,
            spot=spot,
            seconds_left=remaining_seconds,
        )
        outcome = self.outcome_file
        is_finished = outcome is not None and outcome.result == FINISHED and outcome.ranks_succeeded
        name = JobName(self.workflow.run, segment, attempt)
        return SubmitJob(
            name=name,
            request=request,
            reason=reason,
            not_before=not_before,
            clears_outcome=outcome.path if outcome and is_finished else None,
        )

    def _seconds_left(self, variant: SegmentVariant) -> tuple[float | None, str]:
        """Longest training time of the next job by the run's caps, and the message of the tighter cap."""
        policy = self.workflow.policy
        caps: list[tuple[float, str]] = []
        if policy.total_seconds is not None:
            used_seconds = sum(job.training_seconds for job in self.jobs)
            remaining_seconds = policy.total_seconds - used_seconds
            message = f"its training time of {format_duration(policy.total_seconds)} is used up"
            caps.append((remaining_seconds, message))
        spent_dollars = cost_so_far(self.workflow, self.jobs)
        if policy.max_cost is not None and spent_dollars is not None and variant.price_per_hour:
            remaining_seconds = (policy.max_cost - spent_dollars) / variant.price_per_hour * 3600
            message = (
                f"its max_cost of {format_dollars(policy.max_cost)} is reached: "
                f"{format_dollars(spent_dollars)} spent"
            )
            caps.append((remaining_seconds, message))
        return min(caps, default=(None, ""))

    def _count_jobs_without_progress(self) -> int:
        """Number of jobs since the last progress. A stop by a person resets it: somebody has looked and
        asked to continue."""
        tries = 0
        made_progress = progress_by_job(self.jobs, self.run_progress)
        for job, job_progressed in zip(reversed(self.jobs), reversed(made_progress), strict=True):
            if job_progressed or (job is not self.newest_job and job.ending is JobEnding.STOPPED):
                break
            tries += 1
        return tries

    # ---- sentences ---------------------------------------------------------------------------------------

    def _newest_checkpoint_text(self) -> str:
        """Message about the newest checkpoint or the highest step."""
        if self.observed.newest_checkpoint_step:
            return f"; the newest checkpoint is step {self.observed.newest_checkpoint_step}"
        return (
            f"; the highest step reported is {self._highest_reported_step}"
            if self._highest_reported_step is not None
            else ""
        )

    @property
    def _highest_reported_step(self) -> int | None:
        known = [
            step
            for step in (self.run_progress.reported_step, self.observed.reported_step)
            if step is not None
        ]
        return max(known, default=None)

    def _progress_text(self) -> str:
        """Progress of the newest job, for a message."""
        if self.observed.newest_checkpoint_step:
            return f"from step {self.observed.newest_checkpoint_step}"
        if self.observed.reported_step is not None:
            return f"the script has reported step {self.observed.reported_step}"
        return "its checkpoint files have changed"

    def _no_progress_text(self) -> str:
        """Return a message about why the newest job made no progress: neither a step that it reported nor a
        checkpoint in S3 goes beyond what the run had before that job (``self.run_progress``). Step 0 as the
        newest checkpoint: there is none, or the script saves files of its own, without steps.
        """
        has_checkpoint = self.observed.newest_checkpoint_step > 0
        if self.observed.newest_job_repeats_steps and not has_checkpoint:
            return "it started from the beginning: most steps that it reported had been reported before"
        if self.observed.reported_step is not None:
            return (
                f"no step beyond {self.run_progress.reported_step or 0} was reported, and there is no newer "
                "checkpoint"
            )
        return "it saved no newer checkpoint" if has_checkpoint else "it saved no new or changed checkpoint"

    def _finish_with_ending(self, ending: JobEnding, tries: int = 0) -> FinishRun:
        """End the run as its last job ended."""
        run_note = f"; tried {tries} times without {self._missing_progress()}" if tries > 1 else ""
        run_note += (
            self._newest_checkpoint_text() if self.observed.newest_checkpoint_step or not run_note else ""
        )
        return FinishRun(
            exit_code=RULE_BY_ENDING[ending].exit_code,
            status=_status_of(ending),
            summary=self._ending_text(ending) + run_note,
            run_note=run_note,
        )

    def _missing_progress(self) -> str:
        """What none of the jobs achieved, for a message."""
        if self.run_progress.reported_step is None or self.observed.newest_checkpoint_step:
            return "a newer checkpoint"
        return f"getting the run beyond step {self.run_progress.reported_step}"

    def _ending_text(self, ending: JobEnding) -> str:
        """Message for the newest job's ending."""
        first_reason_line = self.newest_job.reason.partition("\n")[0]
        return ENDING_MESSAGES.get(
            ending, first_reason_line or f"{self.newest_job_name} failed; the service gave no reason"
        )

    def _no_progress_diagnosis(self, job_count: int) -> str:
        """Return a message about why the run is not worth continuing: what its last ``job_count`` jobs left,
        and the likely cause.
        """
        job_names = ", ".join(
            str(JobName(self.workflow.run, job.segment, job.attempt)) for job in self.jobs[-job_count:]
        )
        newest_checkpoint_step, job_outcome = self.observed.newest_checkpoint_step, self.newest_job_outcome
        # The last checkpoint that the newest job says it has completed; None if it says nothing.
        committed_step = None if job_outcome is None else job_outcome.step
        if committed_step is not None and committed_step > newest_checkpoint_step:
            newest_text = "no checkpoint"
            if newest_checkpoint_step:
                newest_text = f"nothing newer than step {newest_checkpoint_step}"
            return (
                f"no progress: {job_names} left {newest_text}; the last one says it committed step "
                f"{committed_step}, which is incomplete in S3: uploads do not finish before a segment ends; "
                "see `smlaunch checkpoints ls`, and make segments longer"
            )
        if newest_checkpoint_step == 0:
            return self._diagnosis_without_checkpoint(job_names)
        return (
            f"no progress: {job_names} left nothing newer than step {newest_checkpoint_step}; a segment ends "
            "before its first checkpoint: make segments longer, or checkpoint more often; or the script "
            "always starts from the beginning (`smlaunch verify-resume` detects that)"
        )

    def _diagnosis_without_checkpoint(self, job_names: str) -> str:
        """Return the message for a run without complete checkpoints of smlaunch's in S3, by what its jobs
        left instead: reported steps, or checkpoint files of the script's own. A digest stands for the content
        of those files; empty without any."""
        observed = self.observed
        # Highest step that jobs printed as progress; None if they print none.
        if self.run_progress.reported_step is not None:
            message = (
                f"no progress: {job_names} did not get the run beyond step {self.run_progress.reported_step}"
            )
            if observed.newest_job_repeats_steps:
                message += (
                    f"; {self.newest_job_name} reported steps up to {observed.reported_step}, and most of "
                    "them had been reported before"
                )
            return f"{message}: {_RESTARTS_TEXT}"
        if observed.checkpoint_files_digest:
            return (
                f"no progress: {job_names} saved no new or changed checkpoint file; the script reports no "
                "step, and its checkpoint files did not change; let it print `smlaunch: progress step=N`, or "
                "save more often"
            )
        return (
            f"no progress: {job_names} left no checkpoint; no complete checkpoint is in S3: the script saves "
            "none (see smlaunch.train), removes them, or its first one is later than a segment's end"
        )


_RESTARTS_TEXT = (
    "the script starts from the beginning in every job instead of resuming from its checkpoint, or a "
    "segment ends before its first new checkpoint"
)


def _status_of(ending: JobEnding) -> str:
    return (
        "Stopped"
        if ending in (JobEnding.STOPPED, JobEnding.WAIT_EXCEEDED, JobEnding.TIME_LIMIT)
        else "Failed"
    )
