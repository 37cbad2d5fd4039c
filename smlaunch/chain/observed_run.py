"""What was observed of a run: its jobs and checkpoints, how far it is, and what it has cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from smlaunch.chain.workflow import JobEnding, SegmentVariant, Workflow, reached_step, variant_of_segment
from smlaunch.contract.run_names import JobName
from smlaunch.contract.segment_outcome import SegmentOutcome


class RunProgress(NamedTuple):
    """How far a run was when it last made progress."""

    newest_checkpoint_step: int = 0
    """Step of the newest committed checkpoint, 0 before the first."""

    reported_step: int | None = None
    """Highest step in progress lines, None before the first."""

    checkpoint_files_digest: str = ""
    """Digest of the checkpoint files, for runs that have never reported a step."""

    def is_beyond(self, earlier_progress: RunProgress, *, counts_files: bool = True) -> bool:
        """Return whether the run has made progress since ``earlier_progress``: a newer checkpoint, a higher
        reported step, or, if ``counts_files``, other checkpoint files of the script's own."""
        if self.newest_checkpoint_step > earlier_progress.newest_checkpoint_step:
            return True
        if (self.reported_step or 0) > (earlier_progress.reported_step or 0):
            return True
        digests_without_progress = ("", earlier_progress.checkpoint_files_digest)
        return counts_files and self.checkpoint_files_digest not in digests_without_progress


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

    def variant_in(self, workflow: Workflow) -> SegmentVariant:
        """Return the variant of the workflow that the job was requested with."""
        return variant_of_segment(
            workflow, self.segment, reached_step(self.from_step, self.from_reported_step)
        )


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


def run_progress_after(newest_job: ObservedJob, observed: ObservedRun) -> RunProgress:
    """Return how far the run is when its newest job has ended: the newest checkpoint in S3 and the highest
    step that its jobs printed (reported). Without progress it is what that job began with, so that a later
    observer, who sees only what the next job began with, decides the same.
    """
    previous_progress = newest_job.progress_at_start
    reported_step, files_digest = (
        previous_progress.reported_step,
        previous_progress.checkpoint_files_digest,
    )
    # Independent ranks do not train together: one may have finished while another goes on.
    are_ranks_independent = observed.outcome_file is not None and observed.outcome_file.independent_ranks
    # A job that repeats steps started from the beginning: its steps do not count.
    counts_steps = are_ranks_independent or not observed.newest_job_repeats_steps
    if counts_steps and (observed.reported_step or 0) > (reported_step or 0):
        reported_step = observed.reported_step
    # A log or a counter of attempts changes in every job: files count only while no step speaks for the whole
    # job.
    is_step_known = bool(reported_step) or observed.reported_step is not None
    if (are_ranks_independent or not is_step_known) and observed.checkpoint_files_digest:
        files_digest = observed.checkpoint_files_digest
    return RunProgress(observed.newest_checkpoint_step, reported_step, files_digest)


def progress_by_job(jobs: Sequence[ObservedJob], current_progress: RunProgress) -> list[bool]:
    """Return whether each job, oldest first, made progress. ``current_progress``: the run's. What a job began
    with is the result of the job before. The files of a job whose script failed do not count: it may have
    written no more than a log."""
    progress_in_order = [job.progress_at_start for job in jobs] + [current_progress]
    return [
        after.is_beyond(before, counts_files=job.ending is not JobEnding.ALGORITHM)
        for job, (before, after) in zip(jobs, pairwise(progress_in_order), strict=True)
    ]


def cost_so_far(workflow: Workflow, jobs: Sequence[ObservedJob]) -> float | None:
    """Return the US dollars for all jobs so far; None if a price is unknown."""
    total_dollars = 0.0
    for job in jobs:
        hourly_price = job.variant_in(workflow).price_per_hour
        if hourly_price is None:
            return None
        total_dollars += hourly_price * job.billable_seconds / 3600
    return total_dollars
