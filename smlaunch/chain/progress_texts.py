"""Sentences about a run's progress, for the reasons and summaries of its next action. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smlaunch.chain.observed_run import ObservedJob, ObservedRun, RunProgress
from smlaunch.chain.workflow import JobEnding
from smlaunch.contract.run_names import JobName
from smlaunch.contract.segment_outcome import SegmentOutcome

_RESTARTS_TEXT = (
    "the script starts from the beginning in every job instead of resuming from its checkpoint, or a "
    "segment ends before its first new checkpoint"
)


@dataclass(frozen=True)
class ProgressTexts:
    """The sentences about one state of a run that has jobs."""

    observed: ObservedRun
    run_progress: RunProgress
    """How far the run is after its newest job."""

    run_id: str
    jobs: Sequence[ObservedJob]
    """In order."""

    newest_job_outcome: SegmentOutcome | None
    """What the newest job wrote; None if it wrote nothing."""

    def newest_checkpoint_text(self) -> str:
        """Message about the newest checkpoint or the highest step."""
        if self.observed.newest_checkpoint_step:
            return f"; the newest checkpoint is step {self.observed.newest_checkpoint_step}"
        return (
            f"; the highest step reported is {self._highest_reported_step}"
            if self._highest_reported_step is not None
            else ""
        )

    @property
    def highest_trained_step(self) -> int | None:
        """By reports and checkpoints; None if neither shows a step."""
        return max(self._highest_reported_step or 0, self.observed.newest_checkpoint_step) or None

    @property
    def _highest_reported_step(self) -> int | None:
        known = [
            step
            for step in (self.run_progress.reported_step, self.observed.reported_step)
            if step is not None
        ]
        return max(known, default=None)

    def progress_text(self) -> str:
        """Progress of the newest job, for a message."""
        if self.observed.newest_checkpoint_step:
            return f"from step {self.observed.newest_checkpoint_step}"
        if self.observed.reported_step is not None:
            return f"the script has reported step {self.observed.reported_step}"
        return "its checkpoint files have changed"

    def missing_progress_text(self) -> str:
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
        if self.run_progress.reported_step and not has_checkpoint:
            return f"it reported no step, and the run had reported step {self.run_progress.reported_step}"
        return "it saved no newer checkpoint" if has_checkpoint else "it saved no new or changed checkpoint"

    def missing_achievement_text(self) -> str:
        """What none of the jobs achieved, for a message."""
        if self.observed.newest_checkpoint_step:
            return "a newer checkpoint"
        if self.run_progress.reported_step is not None:
            return f"getting the run beyond step {self.run_progress.reported_step}"
        if self.jobs[-1].ending is JobEnding.ALGORITHM and self.observed.checkpoint_files_digest:
            return "a reported step; files that a failed script changed are no progress"
        return "a newer checkpoint"

    def no_progress_diagnosis(self, job_count: int) -> str:
        """Return a message about why the run is not worth continuing: what its last ``job_count`` jobs left,
        and the likely cause.
        """
        job_names = ", ".join(
            str(JobName(self.run_id, job.segment, job.attempt)) for job in self.jobs[-job_count:]
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
                "list the run's checkpoints, and make segments longer"
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
                newest_job = self.jobs[-1]
                newest_job_name = JobName(self.run_id, newest_job.segment, newest_job.attempt)
                message += (
                    f"; {newest_job_name} reported steps up to {observed.reported_step}, and most of "
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
