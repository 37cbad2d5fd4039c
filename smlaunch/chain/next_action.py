"""The next action of a run: one pure function of the workflow and the observed jobs.

A job has made progress if it committed a newer step, or reported a higher step than the jobs before. In a run
that has never reported a step, new or changed checkpoint files count, unless the job's script failed. The run
ends when as many jobs in a row as the policy allows attempts made no progress, however they ended.

Nothing is remembered between two decisions. A restarted client, or another machine, observes the same jobs
and checkpoints and decides the same; two clients request the same job name, which only one can create.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from smlaunch.chain.observed_run import (
    ObservedJob,
    ObservedRun,
    cost_so_far,
    progress_by_job,
    run_progress_after,
)
from smlaunch.chain.progress_texts import ProgressTexts
from smlaunch.chain.workflow import (
    RULE_BY_ENDING,
    JobEnding,
    Remedy,
    SegmentVariant,
    Workflow,
    build_job_request,
    reached_step,
    variant_of_segment,
)
from smlaunch.contract.run_names import JobName
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED
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


class _RunLimit(NamedTuple):
    """What a limit of the run on its time or cost leaves to the next job."""

    remaining_seconds: float
    message: str
    """For a run that the limit ends."""
    raisable_limit: str
    """As in ``FinishRun``."""


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
    raisable_limit: str = ""
    """The member of the job's ``limits`` that ended the run, if the same job with a higher one continues it
    under the same name."""
    is_final: bool = False
    """No request of a person continues the run."""
    model_job: str = ""
    """Name of the job that trained to the end and has the model, if that is not the newest known one."""


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
        is_of_newest_job = self.outcome_file and self.outcome_file.job == str(self.newest_job_name)
        self.newest_job_outcome = self.outcome_file if is_of_newest_job else None
        self.texts = ProgressTexts(
            observed, self.run_progress, workflow.run, self.jobs, self.newest_job_outcome
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
        if self._deleted_last_job is not None:
            return self._finish_completed(
                f"completed by {self._deleted_last_job}, whose record was deleted since",
                model_job=str(self._deleted_last_job),
            )
        # How a job ended may decide the whole run, even if a person has asked to stop it. The texts end the
        # run's summary: the archives with its results, or its newest checkpoint.
        if ending is JobEnding.COMPLETED:
            finish_or_wait = self._action_after_completed_job()
            if finish_or_wait is not None:
                return finish_or_wait
        if ending is JobEnding.STOPPED and self._has_finished_training:
            return self._finish_completed(
                f"completed: it had finished when it was stopped{self._result_archives_text()}"
            )
        if ending is JobEnding.TIME_LIMIT and not self.workflow.is_multi_segment:
            return FinishRun(
                exit_code=EXIT_LIMIT,
                status="Stopped",
                summary=f"{self._time_limit_text()}{self.texts.newest_checkpoint_text()}",
            )
        # A person who continues a run after a failure (an override) takes back an earlier request to stop.
        if self.observed.stop_requested and not self._has_user_overridden_failure:
            return FinishRun(
                exit_code=EXIT_STOPPED,
                status="Stopped",
                summary=f"stopped{self.texts.newest_checkpoint_text()}",
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
            return self._finish_completed(f"completed{self._result_archives_text()}")
        if is_single_job:
            return FinishRun(
                exit_code=EXIT_LIMIT,
                status="Stopped",
                summary=f"ended itself before its max_runtime{self.texts.newest_checkpoint_text()}",
            )
        if job_outcome is None and self.newest_job.ended_at is not None:
            # The outcome file may be on its way to S3 for a minute more, or a scaled one in a local
            # rehearsal.
            grace_end = self.newest_job.ended_at + OUTCOME_GRACE_SECONDS * self.observed.wait_time_scale
            if self.observed.now < grace_end:
                return WaitUntil(until=grace_end, reason=f"{self.newest_job_name} has written no outcome yet")
        return None

    def _finish_completed(self, summary: str, model_job: str = "") -> FinishRun:
        """Finish a run whose training has come to its end. It has failed if it came there with settings that
        apply until an earlier training step (``until_step``)."""
        exit_code, status = EXIT_COMPLETED, "Completed"
        variants = [job.variant_in(self.workflow) for job in self.jobs]
        # The jobs before the newest variant's first one, and what was trained since.
        first_of_variant = variants.index(variants[-1])
        start = self.jobs[first_of_variant]
        start_step = reached_step(start.from_step, start.from_reported_step) or 0
        end_step = self.texts.highest_trained_step or 0
        last_step, job = variants[-1].until_step, self.newest_job
        if first_of_variant and end_step <= start_step:  # it has only seen that nothing is left
            last_step, job = variants[first_of_variant - 1].until_step, self.jobs[first_of_variant - 1]
        if last_step is not None and end_step > last_step:
            exit_code, status = EXIT_TRAINING_FAILED, "Failed"
            summary = (
                f"{JobName(self.workflow.run, job.segment, job.attempt)} trained to its end, step {end_step}"
                f", with settings that apply until step {last_step}: the script did not exit there, and what "
                "segments state from there on was never used; let it report each step, and exit on SIGTERM "
                "or when the stop file appears"
            )
        elif last_step is not None and end_step < last_step:
            summary += (
                f"; step {last_step} was not reached or not reported, so that what segments state from there "
                "on was never used"
            )
        finished_in = self.outcome_file.finished_in if self.outcome_file is not None else ()
        if not model_job and len(finished_in) == 1 and finished_in[0] != str(self.newest_job_name):
            model_job = finished_in[0]  # its outcome came late, and another job was submitted before
        return FinishRun(exit_code, status, summary, is_final=True, model_job=model_job)

    @property
    def _has_finished_training(self) -> bool:
        """Whether the newest job trained to the end, even if the service then stopped or failed it: its
        outcome file says finished, and all its ranks succeeded."""
        outcome = self.newest_job_outcome
        return outcome is not None and outcome.has_finished

    @property
    def _deleted_last_job(self) -> JobName | None:
        """The job after the newest known one that trained to the end, by its outcome file; None where there
        is none. Its record was deleted: a job that is created again would replace its model."""
        outcome = self.outcome_file
        if outcome is None or not outcome.has_finished:
            return None
        name = JobName(self.workflow.run, outcome.segment, outcome.attempt)
        return name if name > self.newest_job_name else None

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
                segment=self.newest_job.segment + 1, attempt=1, reason=self.texts.progress_text()
            )
        if are_attempts_used_up:
            return FinishRun(
                exit_code=EXIT_TRAINING_FAILED,
                status="Failed",
                summary=self.texts.no_progress_diagnosis(jobs_without_progress),
            )
        return self._resubmit_segment(f"it made no progress: {self.texts.missing_progress_text()}")

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
        planned_variant = self._variant_from_now_on(newest_job.segment)
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
        """Submit the next job, unless the run's limits on time and cost leave too little training time: then
        finish. ``spot``: False requests on-demand capacity; None as planned. ``not_before``: seconds since
        the epoch.
        """
        variant = self._variant_from_now_on(segment)
        limit = self._tightest_limit(variant, self.jobs)
        needed_seconds = min(variant.min_useful_seconds, variant.max_runtime_seconds)
        if limit is not None and limit.remaining_seconds < needed_seconds:
            # A failure that another attempt might have mended is named with the limit that forbids it.
            failure_text = (
                "" if self.newest_job.ending in TIME_USED_ENDINGS else f"{reason}; no new attempt: "
            )
            return FinishRun(
                exit_code=EXIT_LIMIT,
                status="Stopped",
                summary=f"{failure_text}{limit.message}{self.texts.newest_checkpoint_text()}",
                raisable_limit=limit.raisable_limit,
            )
        request = build_job_request(
            self.workflow,
            segment,
            attempt,
            newest_checkpoint_step=self.run_progress.newest_checkpoint_step,
            reported_step=self.run_progress.reported_step,
            checkpoint_files_digest=self.run_progress.checkpoint_files_digest,
            spot=spot,
            seconds_left=None if limit is None else limit.remaining_seconds,
        )
        outcome = self.outcome_file
        name = JobName(self.workflow.run, segment, attempt)
        return SubmitJob(
            name=name,
            request=request,
            reason=reason,
            not_before=not_before,
            clears_outcome=outcome.path if outcome and outcome.has_finished else None,
        )

    def _variant_from_now_on(self, segment: int) -> SegmentVariant:
        """Return the planned request of a segment's next job."""
        progress = self.run_progress
        step = reached_step(progress.newest_checkpoint_step, progress.reported_step)
        return variant_of_segment(self.workflow, segment, step)

    def _tightest_limit(self, variant: SegmentVariant, jobs: Sequence[ObservedJob]) -> _RunLimit | None:
        """Return which of the run's limits on time and cost leaves the least training time to the job after
        ``jobs``; None without a limit."""
        policy = self.workflow.policy
        limits: list[_RunLimit] = []
        if policy.total_seconds is not None:
            used_seconds = sum(job.training_seconds for job in jobs)
            remaining_seconds = policy.total_seconds - used_seconds
            message = (
                f"its training time of {format_duration(policy.total_seconds)} "
                f"{_limit_text(remaining_seconds, 'is used up')}"
            )
            raisable_limit = "max_runtime" if self.workflow.hash_without_max_runtime else ""
            limits.append(_RunLimit(remaining_seconds, message, raisable_limit))
        spent_dollars = cost_so_far(self.workflow, jobs)
        if policy.max_cost is not None and spent_dollars is not None and variant.price_per_hour:
            remaining_seconds = (policy.max_cost - spent_dollars) / variant.price_per_hour * 3600
            remaining_seconds -= variant.keep_alive_seconds
            message = (
                f"its max_cost of {format_dollars(policy.max_cost)} "
                f"{_limit_text(remaining_seconds, 'is reached')}: {format_dollars(spent_dollars)} spent"
            )
            if variant.keep_alive_seconds:
                kept_back_dollars = variant.keep_alive_seconds * variant.price_per_hour / 3600
                message += f", {format_dollars(kept_back_dollars)} kept back for the wait of its last hosts"
            limits.append(_RunLimit(remaining_seconds, message, "max_cost"))
        return min(limits, default=None)

    def _count_jobs_without_progress(self) -> int:
        """Return the number of jobs since the last progress. A stop by a person resets it: somebody has
        looked and asked to continue."""
        job_count = 0
        made_progress = progress_by_job(self.jobs, self.run_progress)
        for job, has_progressed in zip(reversed(self.jobs), reversed(made_progress), strict=True):
            was_stopped_by_person = job is not self.newest_job and job.ending is JobEnding.STOPPED
            if has_progressed or was_stopped_by_person:
                break
            job_count += 1
        return job_count

    # ---- sentences ---------------------------------------------------------------------------------------

    def _time_limit_text(self) -> str:
        """Return the message for a single segment's job that was stopped at its time limit, which is shorter
        than planned if earlier attempts left less of the run's own limits."""
        earlier_jobs = self.jobs[:-1]
        variant = self.newest_job.variant_in(self.workflow)
        limit_of_job = self._tightest_limit(variant, earlier_jobs)
        if limit_of_job is None or limit_of_job.remaining_seconds >= variant.max_runtime_seconds:
            return "stopped at its max_runtime"
        limit = self._tightest_limit(variant, self.jobs)
        return f"stopped after {len(self.jobs)} attempts: {'' if limit is None else limit.message}"

    def _finish_with_ending(self, ending: JobEnding, tries: int = 0) -> FinishRun:
        """Finish the run as its last job ended. ``tries``: number of jobs in a row without progress, if that
        is why no other job follows."""
        run_note = ""
        if tries > 1:
            run_note = f"; tried {tries} times without {self.texts.missing_achievement_text()}"
        if self.observed.newest_checkpoint_step or not run_note:
            run_note += self.texts.newest_checkpoint_text()
        return FinishRun(
            exit_code=RULE_BY_ENDING[ending].exit_code,
            status=_status_of(ending),
            summary=self._ending_text(ending) + run_note,
            run_note=run_note,
        )

    def _ending_text(self, ending: JobEnding) -> str:
        """Message for the newest job's ending."""
        first_reason_line = self.newest_job.reason.partition("\n")[0]
        return ENDING_MESSAGES.get(
            ending, first_reason_line or f"{self.newest_job_name} failed; the service gave no reason"
        )


def _limit_text(remaining_seconds: float, text_at_limit: str) -> str:
    """Return what a limit says about the next job; ``text_at_limit`` if less than a second is left."""
    return text_at_limit if remaining_seconds < 1 else "leaves too little for another job"


def _status_of(ending: JobEnding) -> str:
    return (
        "Stopped"
        if ending in (JobEnding.STOPPED, JobEnding.WAIT_EXCEEDED, JobEnding.TIME_LIMIT)
        else "Failed"
    )
