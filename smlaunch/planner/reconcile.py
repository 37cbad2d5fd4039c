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

from smlaunch.contract.names import JobName
from smlaunch.contract.outcome import CONTINUE, FINISHED, SegmentOutcome
from smlaunch.errors import EXIT_COMPLETED, EXIT_LIMIT, EXIT_STOPPED, EXIT_TRAINING_FAILED
from smlaunch.job.model import format_duration
from smlaunch.planner.cost import format_dollars
from smlaunch.planner.workflow import (
    ENDING_RULES,
    Ending,
    Remedy,
    Variant,
    Workflow,
    request_for,
    variant_for,
)

OUTCOME_GRACE_SECONDS = 60.0
"""Seconds after a job's end in which its outcome file may still be on its way to S3."""

CONTINUING_ENDINGS = (Ending.COMPLETED, Ending.TIME_LIMIT)
"""The job used its time: the next segment follows."""

NO_CAPACITY_ENDINGS = (Ending.WAIT_EXCEEDED, Ending.CAPACITY)
"""A spot job that ended so may be retried on demand."""

ENDING_MESSAGES: Mapping[Ending, str] = {
    Ending.STOPPED: "stopped",
    Ending.WAIT_EXCEEDED: "stopped at its max_wait: spot capacity was not available, or was interrupted",
}
"""For endings without a reason from the service."""


class ProgressMark(NamedTuple):
    """How far the run was when it last made progress."""

    committed_step: int = 0
    """Step of the newest committed checkpoint, 0 before the first."""

    reported_step: int | None = None
    """Highest step in progress lines, None before the first."""

    files_digest: str = ""
    """Digest of the checkpoint files, for jobs that report no step."""

    def is_beyond(self, earlier_mark: ProgressMark) -> bool:
        """Whether there is progress since ``earlier_mark``."""
        # Jobs that report steps leave no digest: the first one after them cannot be compared with anything.
        is_comparable = bool(earlier_mark.files_digest) or earlier_mark.reported_step is None
        if self.committed_step > earlier_mark.committed_step or (
            is_comparable and bool(self.files_digest) and self.files_digest != earlier_mark.files_digest
        ):
            return True
        return (self.reported_step or 0) > (earlier_mark.reported_step or 0)


@dataclass(frozen=True)
class ObservedJob:
    """One job of the run. The ``from_`` fields are the run's progress mark when the job was requested."""

    segment: int
    attempt: int
    ending: Ending | None
    """None while the job runs."""

    reason: str = ""
    """The service's failure reason."""

    ended_at: float | None = None
    """Seconds since the epoch."""

    training_seconds: float = 0.0
    billable_seconds: float = 0.0
    spot: bool = False
    from_step: int = 0
    from_reported_step: int | None = None
    from_files_digest: str = ""

    @property
    def starting_mark(self) -> ProgressMark:
        return ProgressMark(self.from_step, self.from_reported_step, self.from_files_digest)


@dataclass(frozen=True)
class ObservedRun:
    """What was observed of the run."""

    now: float
    """Seconds since the epoch."""

    jobs: Sequence[ObservedJob] = ()
    committed_step: int = 0
    """Newest committed step in S3, 0 before the first."""

    outcome: SegmentOutcome | None = None
    reported_step: int | None = None
    """Highest step that the newest job reported; None if it reported none."""

    repeats_steps: bool = False
    """Most of the newest job's steps had been reported by earlier jobs."""

    files_digest: str = ""
    """Digest of the script's own checkpoint files; empty without any."""

    stop_requested: bool = False
    """A person has asked to stop the run."""

    override_failure: JobName | None = None
    """Job whose failure a person has overridden: the run continues after it."""

    time_scale: float = 1.0
    """Factor of all waits, relative to a region."""


@dataclass(frozen=True)
class Submit:
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
    reason: str


@dataclass(frozen=True)
class Finish:
    """The run has ended."""

    exit_code: int
    status: str
    """Completed, Failed or Stopped, as for a job."""

    summary: str
    run_note: str = ""
    """The end of ``summary`` that is about the run and not its last job."""


Action: TypeAlias = Submit | FollowJob | WaitUntil | Finish


def next_action(workflow: Workflow, observed: ObservedRun) -> Action:
    """Decide what to do next."""
    if not observed.jobs:
        if observed.stop_requested:
            return Finish(EXIT_STOPPED, "Stopped", "stopped before its first job")
        first_name = JobName(workflow.run, 1, 1)
        return Submit(first_name, request_for(workflow, 1, 1), "the first segment")
    return _Decision(workflow, observed).action()


def progress_mark_after(newest_job: ObservedJob, observed: ObservedRun) -> ProgressMark:
    """Progress mark of the run when its newest job has ended. Without progress it is unchanged, so that a
    later observer, who sees what the next job began with, decides the same."""
    previous_mark = newest_job.starting_mark
    if observed.outcome is not None and observed.outcome.independent_ranks:
        # No step speaks for all ranks: one may have finished while another goes on.
        known_steps = [
            step for step in (previous_mark.reported_step, observed.reported_step) if step is not None
        ]
        return ProgressMark(
            observed.committed_step,
            max(known_steps, default=None),
            observed.files_digest or previous_mark.files_digest,
        )
    if observed.reported_step is None:
        return ProgressMark(
            observed.committed_step,
            previous_mark.reported_step,
            observed.files_digest or previous_mark.files_digest,
        )
    new_mark = ProgressMark(observed.committed_step, observed.reported_step, previous_mark.files_digest)
    made_no_progress = observed.repeats_steps or not new_mark._replace(committed_step=0).is_beyond(
        previous_mark._replace(committed_step=0)
    )
    return new_mark._replace(reported_step=previous_mark.reported_step) if made_no_progress else new_mark


def progress_by_job(jobs: Sequence[ObservedJob], current_mark: ProgressMark) -> list[bool]:
    """Whether each job, oldest first, made progress. ``current_mark``: the run's. A job's starting
    mark is the result of the job before."""
    marks = [job.starting_mark for job in jobs] + [current_mark]
    return [after.is_beyond(before) for before, after in pairwise(marks)]


def cost_so_far(workflow: Workflow, jobs: Sequence[ObservedJob]) -> float | None:
    """US dollars for all jobs so far; None if a price is unknown."""
    total_dollars = 0.0
    for job in jobs:
        hourly_price = variant_for(workflow, job.segment, job.from_step).price_per_hour
        if hourly_price is None:
            return None
        total_dollars += hourly_price * job.billable_seconds / 3600
    return total_dollars


class _Decision:
    """One decision about a run that has jobs."""

    def __init__(self, workflow: Workflow, observed: ObservedRun) -> None:
        self.workflow = workflow
        self.observed = observed
        self.jobs = sorted(observed.jobs, key=lambda job: (job.segment, job.attempt))
        self.newest_job = self.jobs[-1]
        self.newest_job_name = JobName(workflow.run, self.newest_job.segment, self.newest_job.attempt)
        self.progress_mark = progress_mark_after(self.newest_job, observed)
        outcome = observed.outcome
        # The outcome of an earlier run in the same prefix is ignored.
        self.outcome = outcome if outcome is not None and outcome.run in (None, workflow.run) else None
        self.newest_outcome = (
            self.outcome if self.outcome and self.outcome.job == str(self.newest_job_name) else None
        )

    def action(self) -> Action:
        """Return what to do next: follow the running job, finish the run, wait, or submit a job."""
        ending = self.newest_job.ending
        if ending is None:
            return FollowJob(self.newest_job_name)
        if ending is Ending.COMPLETED:
            finished_action = self._after_completion()
            if finished_action is not None:
                return finished_action
        elif ending is Ending.STOPPED and self._has_finished_training:
            return Finish(
                EXIT_COMPLETED,
                "Completed",
                f"completed: it had finished when it was stopped{self._result_archives_note()}",
            )
        elif not self.workflow.is_chain and ending is Ending.TIME_LIMIT:
            return Finish(EXIT_LIMIT, "Stopped", f"stopped at its max_runtime{self._checkpoint_note()}")
        if self.observed.stop_requested and not self._is_failure_overridden:
            return Finish(EXIT_STOPPED, "Stopped", f"stopped{self._checkpoint_note()}")
        return self._after_ending(ending)

    # ---- the last job went well --------------------------------------------------------------------------

    def _after_completion(self) -> Action | None:
        """Action after a completed job; None if training continues."""
        newest_outcome = self.newest_outcome
        is_finished = self.outcome is not None and self.outcome.result == FINISHED
        if is_finished or (
            not self.workflow.is_chain and (newest_outcome is None or newest_outcome.result != CONTINUE)
        ):
            return Finish(EXIT_COMPLETED, "Completed", f"completed{self._result_archives_note()}")
        if not self.workflow.is_chain:
            return Finish(
                EXIT_LIMIT, "Stopped", f"ended itself before its max_runtime{self._checkpoint_note()}"
            )
        if newest_outcome is None and self.newest_job.ended_at is not None:
            grace_end = self.newest_job.ended_at + OUTCOME_GRACE_SECONDS * self.observed.time_scale
            if self.observed.now < grace_end:
                return WaitUntil(grace_end, f"{self.newest_job_name} has written no outcome yet")
        return None

    @property
    def _has_finished_training(self) -> bool:
        """Whether the newest job trained to the end, even if the service then stopped or failed it: its
        outcome file says finished, and all its ranks succeeded."""
        outcome = self.newest_outcome
        return outcome is not None and outcome.result == FINISHED and outcome.ranks_succeeded

    def _result_archives_note(self) -> str:
        """Message that names the jobs whose archives have results, if several have; otherwise empty."""
        jobs = self.outcome.finished_in if self.outcome is not None else ()
        if len(jobs) < 2:
            return ""
        return f"; its ranks finished in several jobs, whose archives have their results: {', '.join(jobs)}"

    # ---- what follows ------------------------------------------------------------------------------------

    def _after_ending(self, ending: Ending) -> Action:
        """Return the action after a job that ended in any way except that training finished."""
        ending_rule = ENDING_RULES[ending]
        lacked_capacity = ending in NO_CAPACITY_ENDINGS
        if lacked_capacity and self.workflow.policy.on_demand_fallback and self.newest_job.spot:
            return self._resubmit(f"{self._ending_text(ending)}; on demand now", use_on_demand=True)
        failed_tries = self._tries_without_progress()
        attempts_exhausted = failed_tries >= self.workflow.policy.attempts and not self._is_failure_overridden
        if ending in CONTINUING_ENDINGS:
            if failed_tries == 0:
                return self._submit_or_finish(self.newest_job.segment + 1, 1, self._progress_text())
            if attempts_exhausted:
                return Finish(EXIT_TRAINING_FAILED, "Failed", self._diagnose_no_progress(failed_tries))
            return self._resubmit(f"it made no progress: {self._no_progress_text()}")
        if ending_rule.remedy in (Remedy.GIVE_UP, Remedy.ON_DEMAND):
            if not self._is_failure_overridden:
                return self._give_up(ending)
            return self._resubmit("continued on request")
        if attempts_exhausted:
            return self._give_up(ending, failed_tries)
        wait = (
            0.0
            if self._is_failure_overridden
            else ending_rule.wait_seconds(self.newest_job.attempt) * self.observed.time_scale
        )
        return self._resubmit(self._ending_text(ending), wait)

    @property
    def _is_failure_overridden(self) -> bool:
        """Whether a person has asked to continue the run although its newest job failed."""
        return self.observed.override_failure == self.newest_job_name

    def _resubmit(self, reason: str, wait_seconds: float = 0.0, *, use_on_demand: bool = False) -> Action:
        """Resubmit the segment. ``wait_seconds``: from the last job's end."""
        newest_job = self.newest_job
        ended_at = newest_job.ended_at if newest_job.ended_at is not None else self.observed.now
        planned_spot = variant_for(self.workflow, newest_job.segment, self.observed.committed_step).is_spot
        # A segment that lacked spot capacity once stays on demand.
        use_on_demand = use_on_demand or (planned_spot and not newest_job.spot)
        return self._submit_or_finish(
            newest_job.segment,
            newest_job.attempt + 1,
            reason,
            spot=False if use_on_demand else None,
            not_before=ended_at + wait_seconds if wait_seconds else 0.0,
        )

    def _submit_or_finish(
        self, segment: int, attempt: int, reason: str, *, spot: bool | None = None, not_before: float = 0.0
    ) -> Action:
        """Submit the next job, unless the run's caps on time and cost leave too little training time: then
        finish."""
        variant = variant_for(self.workflow, segment, self.observed.committed_step)
        remaining_seconds, cap_message = self._seconds_left(variant)
        if remaining_seconds is not None and remaining_seconds < min(
            variant.min_seconds, variant.max_runtime
        ):
            return Finish(EXIT_LIMIT, "Stopped", f"{cap_message}{self._checkpoint_note()}")
        request = request_for(
            self.workflow,
            segment,
            attempt,
            step=self.progress_mark.committed_step,
            reported_step=self.progress_mark.reported_step,
            files_digest=self.progress_mark.files_digest,
            spot=spot,
            seconds_left=remaining_seconds,
        )
        outcome = self.outcome
        is_finished = outcome is not None and outcome.result == FINISHED and outcome.ranks_succeeded
        name = JobName(self.workflow.run, segment, attempt)
        return Submit(
            name,
            request,
            reason,
            not_before,
            clears_outcome=outcome.path if outcome and is_finished else None,
        )

    def _seconds_left(self, variant: Variant) -> tuple[float | None, str]:
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

    def _tries_without_progress(self) -> int:
        """Number of jobs since the last progress. A stop by a person resets it: somebody has looked and
        asked to continue."""
        tries = 0
        made_progress = progress_by_job(self.jobs, self.progress_mark)
        for job, job_progressed in zip(reversed(self.jobs), reversed(made_progress), strict=True):
            if job_progressed or (job is not self.newest_job and job.ending is Ending.STOPPED):
                break
            tries += 1
        return tries

    # ---- sentences ---------------------------------------------------------------------------------------

    def _checkpoint_note(self) -> str:
        """Message about the newest checkpoint or the highest step."""
        if self.observed.committed_step:
            return f"; the newest checkpoint is step {self.observed.committed_step}"
        return (
            f"; the highest step reported is {self._highest_reported_step}"
            if self._highest_reported_step is not None
            else ""
        )

    @property
    def _highest_reported_step(self) -> int | None:
        known = [
            step
            for step in (self.progress_mark.reported_step, self.observed.reported_step)
            if step is not None
        ]
        return max(known, default=None)

    def _progress_text(self) -> str:
        """Progress of the newest job, for a message."""
        if self.observed.committed_step:
            return f"from step {self.observed.committed_step}"
        if self.observed.reported_step is not None:
            return f"the script has reported step {self.observed.reported_step}"
        return "its checkpoint files have changed"

    def _no_progress_text(self) -> str:
        """Message about why the newest job counts as no progress: neither a reported step nor a checkpoint in
        S3 (``observed``) goes beyond the run's progress before that job (``progress_mark``)."""
        if self.observed.repeats_steps and not self.observed.committed_step:
            return "it started from the beginning: most steps that it reported had been reported before"
        if self.observed.reported_step is not None:
            return (
                f"no step beyond {self.progress_mark.reported_step or 0} was reported, and there is no newer "
                "checkpoint"
            )
        return (
            "it saved no newer checkpoint"
            if self.observed.committed_step
            else "it saved no new or changed checkpoint"
        )

    def _give_up(self, ending: Ending, tries: int = 0) -> Finish:
        """End the run as its last job ended."""
        run_note = f"; tried {tries} times without {self._missing_progress()}" if tries > 1 else ""
        run_note += self._checkpoint_note() if self.observed.committed_step or not run_note else ""
        return Finish(
            ENDING_RULES[ending].exit_code, _status_of(ending), self._ending_text(ending) + run_note, run_note
        )

    def _missing_progress(self) -> str:
        """What none of the jobs achieved, for a message."""
        if self.progress_mark.reported_step is None or self.observed.committed_step:
            return "a newer checkpoint"
        return f"getting the run beyond step {self.progress_mark.reported_step}"

    def _ending_text(self, ending: Ending) -> str:
        """Message for the newest job's ending."""
        first_reason_line = self.newest_job.reason.partition("\n")[0]
        return ENDING_MESSAGES.get(
            ending, first_reason_line or f"{self.newest_job_name} failed; the service gave no reason"
        )

    def _diagnose_no_progress(self, job_count: int) -> str:
        """Message about why the run is not worth continuing: what the last ``job_count`` jobs left, and the
        likely cause."""
        observed, newest_outcome = self.observed, self.newest_outcome
        job_names = ", ".join(
            str(JobName(self.workflow.run, job.segment, job.attempt)) for job in self.jobs[-job_count:]
        )
        if (
            newest_outcome is not None
            and newest_outcome.step is not None
            and newest_outcome.step > observed.committed_step
        ):
            cause = (
                f"the last one says it committed step {newest_outcome.step}, which is incomplete in S3: "
                "uploads do not finish before a segment ends; see `smlaunch checkpoints ls`, and make "
                "segments longer"
            )
        elif observed.committed_step == 0 and self.progress_mark.reported_step is not None:
            message = (
                f"no progress: {job_names} did not get the run beyond step {self.progress_mark.reported_step}"
            )
            if observed.repeats_steps:
                message += (
                    f"; {self.newest_job_name} reported steps up to {observed.reported_step}, and most of "
                    "them had been "
                    "reported before"
                )
            return f"{message}: {_RESTARTS_TEXT}"
        elif observed.committed_step == 0 and observed.files_digest:
            cause = (
                "the script reports no step, and its checkpoint files did not change; let it print "
                "`smlaunch: progress step=N`, or save more often"
            )
            return f"no progress: {job_names} saved no new or changed checkpoint file; {cause}"
        elif observed.committed_step == 0:
            cause = (
                "no complete checkpoint is in S3: the script saves none (see smlaunch.train), removes "
                "them, or its first one is later than a segment's end"
            )
        else:
            cause = (
                "a segment ends before its first checkpoint: make segments longer, or checkpoint more "
                "often; or the script always starts from the beginning (`smlaunch verify-resume` detects "
                "that)"
            )
        newest_checkpoint_text = (
            f"nothing newer than step {observed.committed_step}"
            if observed.committed_step
            else "no checkpoint"
        )
        return f"no progress: {job_names} left {newest_checkpoint_text}; {cause}"


_RESTARTS_TEXT = (
    "the script starts from the beginning in every job instead of resuming from its checkpoint, or a "
    "segment ends before its first new checkpoint"
)


def _status_of(ending: Ending) -> str:
    return "Stopped" if ending in (Ending.STOPPED, Ending.WAIT_EXCEEDED, Ending.TIME_LIMIT) else "Failed"
