"""What a run needs next: one pure function of what is wanted and what was observed.

A job has made progress when it left a newer committed step, or reported a higher step than the jobs before;
one that reported none, when it left new or changed checkpoint files. As many jobs in a row without progress
as the policy allows attempts end the run, however each of them ended.

Nothing is remembered between two decisions. A client that was killed, or another machine, observes the same
jobs and checkpoints and decides the same; two of them ask for the same job name, which can be taken once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from smlaunch.errors import EXIT_COMPLETED, EXIT_LIMIT, EXIT_STOPPED, EXIT_TRAINING_FAILED
from smlaunch.job import format_duration
from smlaunch.planning.cost import dollars
from smlaunch.planning.workflow import (
    RULES,
    Ending,
    Remedy,
    Variant,
    Workflow,
    request_for,
    variant_for,
)
from smlaunch.protocol.checkpoint import CONTINUE, FINISHED, Outcome
from smlaunch.protocol.names import TaskName

OUTCOME_GRACE = 60.0
"""Seconds after a job's end in which its outcome.json may still be on its way to S3."""

IDLE_ENDINGS = (Ending.COMPLETED, Ending.TIME)
"""Endings of jobs that had their time: the next segment follows."""

STARVED_ENDINGS = (Ending.STARVED, Ending.CAPACITY)
"""Endings of a spot job that on-demand capacity may be tried for."""

ENDED: Mapping[Ending, str] = {
    Ending.STOPPED: "stopped",
    Ending.STARVED: "stopped at its max_wait: spot capacity did not come, or did not last",
}
"""In words, where the service gives no reason."""


class Mark(NamedTuple):
    """How far a run had come when it last made progress. ``step``: the newest committed one, 0 before the
    first. ``reported``: the highest one in progress lines, None before the first. ``files``: a digest of
    checkpoint files, from jobs that reported no step."""

    step: int = 0
    reported: int | None = None
    files: str = ""

    def is_beyond(self, before: Mark) -> bool:
        if self.step > before.step or (bool(self.files) and self.files != before.files):
            return True
        return (self.reported or 0) > (before.reported or 0)


@dataclass(frozen=True)
class JobSeen:
    """One job of the run. ``ending`` is None while it runs. Times are seconds since the epoch.

    ``from_step``, ``from_reported`` and ``from_files``: the run's mark when it was asked for.
    """

    segment: int
    attempt: int
    ending: Ending | None
    reason: str = ""
    ended: float | None = None
    training_seconds: float = 0.0
    billable_seconds: float = 0.0
    spot: bool = False
    from_step: int = 0
    from_reported: int | None = None
    from_files: str = ""

    @property
    def mark(self) -> Mark:
        return Mark(self.from_step, self.from_reported, self.from_files)


@dataclass(frozen=True)
class Observed:
    """``step``: the newest committed one in S3 now, 0 before the first. ``reported``: the highest step that
    the newest job has reported, None when it has reported none; ``repeats``: most of its steps had been
    reported before. ``files``: a digest of the checkpoint files that are the script's own, empty without any.
    ``forgiven``: whatever ended the run with this job, a person has asked to go on. ``pace``: how long waits
    take here, compared with a region."""

    now: float
    jobs: Sequence[JobSeen] = ()
    step: int = 0
    outcome: Outcome | None = None
    reported: int | None = None
    repeats: bool = False
    files: str = ""
    stop_wanted: bool = False
    forgiven: TaskName | None = None
    pace: float = 1.0


@dataclass(frozen=True)
class Submit:
    """``not_before``: seconds since the epoch. ``clears_outcome``: outcome.json says that the training has
    finished and its job failed afterwards; it must go, or the next job would believe it and do nothing."""

    name: TaskName
    request: Mapping[str, Any] = field(repr=False)
    because: str
    not_before: float = 0.0
    clears_outcome: bool = False


@dataclass(frozen=True)
class WatchJob:
    name: TaskName


@dataclass(frozen=True)
class LookAgain:
    """Nothing can be said before ``at`` (seconds since the epoch), unless what is missing is there sooner."""

    at: float
    because: str


@dataclass(frozen=True)
class Finish:
    """``status``: Completed, Failed or Stopped, as of a job. ``more``: the end of the sentence, which is
    about the run rather than about its last job."""

    exit_code: int
    status: str
    sentence: str
    more: str = ""


Action: TypeAlias = Submit | WatchJob | LookAgain | Finish


def decide(workflow: Workflow, observed: Observed) -> Action:
    """The one next thing to do."""
    if not observed.jobs:
        if observed.stop_wanted:
            return Finish(EXIT_STOPPED, "Stopped", "stopped before its first job")
        name = TaskName(workflow.run, 1, 1)
        return Submit(name, request_for(workflow, 1, 1), "the first segment")
    return _Decision(workflow, observed).action()


def mark_after(newest: JobSeen, observed: Observed) -> Mark:
    """Where the run is when its newest job has ended. What is no progress leaves the mark where it was: so
    whoever looks later, at what the next job began with, sees the same."""
    before = newest.mark
    if observed.reported is None:
        return Mark(observed.step, before.reported, observed.files or before.files)
    further = Mark(observed.step, observed.reported, before.files)
    stays = observed.repeats or not further._replace(step=0).is_beyond(before._replace(step=0))
    return further._replace(reported=before.reported) if stays else further


def progressed(jobs: Sequence[JobSeen], mark: Mark) -> list[bool]:
    """For each job, oldest first, whether it made progress. ``mark``: that of the run now. What a job began
    with is what the one before it left."""
    marks = [job.mark for job in jobs] + [mark]
    return [after.is_beyond(before) for before, after in pairwise(marks)]


def spent(workflow: Workflow, jobs: Sequence[JobSeen]) -> float | None:
    """US dollars for all jobs so far; None when a price is not known."""
    total = 0.0
    for job in jobs:
        price = variant_for(workflow, job.segment, job.from_step).price_per_hour
        if price is None:
            return None
        total += price * job.billable_seconds / 3600
    return total


class _Decision:
    """One decision about a run that has jobs."""

    def __init__(self, workflow: Workflow, observed: Observed) -> None:
        self.workflow = workflow
        self.observed = observed
        self.jobs = sorted(observed.jobs, key=lambda job: (job.segment, job.attempt))
        self.newest = self.jobs[-1]
        self.name = TaskName(workflow.run, self.newest.segment, self.newest.attempt)
        self.mark = mark_after(self.newest, observed)
        said = observed.outcome
        # What an earlier run left in the same prefix is not about this one.
        self.outcome = said if said is not None and said.run in (None, workflow.run) else None
        self.own_outcome = self.outcome if self.outcome and self.outcome.job == str(self.name) else None

    def action(self) -> Action:
        ending = self.newest.ending
        if ending is None:
            return WatchJob(self.name)
        if ending is Ending.COMPLETED:
            done = self._completed()
            if done is not None:
                return done
        elif not self.workflow.policy.chain and ending is Ending.TIME:
            return Finish(EXIT_LIMIT, "Stopped", f"stopped at its max_runtime{self._kept()}")
        if self.observed.stop_wanted and not self._forgiven:
            return Finish(EXIT_STOPPED, "Stopped", f"stopped{self._kept()}")
        return self._go_on(ending)

    # ---- the last job went well --------------------------------------------------------------------------

    def _completed(self) -> Action | None:
        """None: there is more to train."""
        own = self.own_outcome
        finished = self.outcome is not None and self.outcome.result == FINISHED
        if finished or (not self.workflow.policy.chain and (own is None or own.result != CONTINUE)):
            return Finish(EXIT_COMPLETED, "Completed", "completed")
        if not self.workflow.policy.chain:
            return Finish(EXIT_LIMIT, "Stopped", f"ended itself before its max_runtime{self._kept()}")
        if own is None and self.newest.ended is not None:
            until = self.newest.ended + OUTCOME_GRACE * self.observed.pace
            if self.observed.now < until:
                return LookAgain(until, f"{self.name} has left no outcome yet")
        return None

    # ---- what follows ------------------------------------------------------------------------------------

    def _go_on(self, ending: Ending) -> Action:
        rule = RULES[ending]
        starved = ending in STARVED_ENDINGS
        if starved and self.workflow.policy.on_demand_fallback and self.newest.spot:
            return self._again(f"{self._ended_with(ending)}; on demand now", on_demand=True)
        tried = self._tries()
        used_up = tried >= self.workflow.policy.attempts and not self._forgiven
        if ending in IDLE_ENDINGS:
            if tried == 0:
                return self._submit(self.newest.segment + 1, 1, self._progress())
            if used_up:
                return Finish(EXIT_TRAINING_FAILED, "Failed", self._diagnosis(tried))
            return self._again(f"it made no progress: {self._nothing_new()}")
        if rule.remedy in (Remedy.GIVE_UP, Remedy.ON_DEMAND):
            if not self._forgiven:
                return self._give_up(ending)
            return self._again("asked to go on")
        if used_up:
            return self._give_up(ending, tried)
        wait = 0.0 if self._forgiven else rule.wait(self.newest.attempt) * self.observed.pace
        return self._again(self._ended_with(ending), wait)

    @property
    def _forgiven(self) -> bool:
        return self.observed.forgiven == self.name

    def _again(self, because: str, wait: float = 0.0, *, on_demand: bool = False) -> Action:
        """``wait``: seconds from the last job's end."""
        newest = self.newest
        ended = newest.ended if newest.ended is not None else self.observed.now
        planned = variant_for(self.workflow, newest.segment, self.observed.step).spot
        # Spot capacity that did not come once in this segment is not waited for again in it.
        on_demand = on_demand or (planned and not newest.spot)
        return self._submit(
            newest.segment,
            newest.attempt + 1,
            because,
            spot=False if on_demand else None,
            not_before=ended + wait if wait else 0.0,
        )

    def _submit(
        self, segment: int, attempt: int, because: str, *, spot: bool | None = None, not_before: float = 0.0
    ) -> Action:
        variant = variant_for(self.workflow, segment, self.observed.step)
        left, cap = self._seconds_left(variant)
        if left is not None and left < min(variant.least_seconds, variant.max_runtime):
            return Finish(EXIT_LIMIT, "Stopped", f"{cap}{self._kept()}")
        request = request_for(
            self.workflow,
            segment,
            attempt,
            step=self.mark.step,
            reported=self.mark.reported,
            files=self.mark.files,
            spot=spot,
            seconds_left=left,
        )
        finished = self.outcome is not None and self.outcome.result == FINISHED and self.outcome.closed
        name = TaskName(self.workflow.run, segment, attempt)
        return Submit(name, request, because, not_before, clears_outcome=finished)

    def _seconds_left(self, variant: Variant) -> tuple[float | None, str]:
        """How long the next job may train, by the run's caps, and the tighter one in words."""
        policy = self.workflow.policy
        caps: list[tuple[float, str]] = []
        if policy.total_seconds is not None:
            used = sum(job.training_seconds for job in self.jobs)
            left = policy.total_seconds - used
            text = f"its training time of {format_duration(policy.total_seconds)} is used up"
            caps.append((left, text))
        cost = spent(self.workflow, self.jobs)
        if policy.max_cost is not None and cost is not None and variant.price_per_hour:
            left = (policy.max_cost - cost) / variant.price_per_hour * 3600
            text = f"its max_cost of {dollars(policy.max_cost)} is reached: {dollars(cost)} spent"
            caps.append((left, text))
        return min(caps, default=(None, ""))

    def _tries(self) -> int:
        """How many jobs there are since the last one that made progress. A stop by a person in between says
        that somebody has looked, and asked to go on: what was before counts no more."""
        count = 0
        progress = progressed(self.jobs, self.mark)
        for job, further in zip(reversed(self.jobs), reversed(progress), strict=True):
            if further or (job is not self.newest and job.ending is Ending.STOPPED):
                break
            count += 1
        return count

    # ---- sentences ---------------------------------------------------------------------------------------

    def _kept(self) -> str:
        if self.observed.step:
            return f"; the newest checkpoint is step {self.observed.step}"
        return f"; the highest step reported is {self._highest}" if self._highest is not None else ""

    @property
    def _highest(self) -> int | None:
        known = [step for step in (self.mark.reported, self.observed.reported) if step is not None]
        return max(known, default=None)

    def _progress(self) -> str:
        """What the newest job has come to."""
        if self.observed.step:
            return f"from step {self.observed.step}"
        if self.observed.reported is not None:
            return f"the script has reported step {self.observed.reported}"
        return "its checkpoint files have changed"

    def _nothing_new(self) -> str:
        if self.observed.repeats and not self.observed.step:
            return "it began anew, and most steps that it reported had been reported before"
        if self.observed.reported is not None:
            return f"no step beyond {self.mark.reported or 0} was reported, and there is no newer checkpoint"
        return "it left no newer checkpoint" if self.observed.step else "it left no new or changed checkpoint"

    def _give_up(self, ending: Ending, tried: int = 0) -> Finish:
        more = f"; tried {tried} times without {self._missing()}" if tried > 1 else ""
        more += self._kept() if self.observed.step or not more else ""
        return Finish(RULES[ending].exit_code, _status(ending), self._ended_with(ending) + more, more)

    def _missing(self) -> str:
        """What none of the jobs brought."""
        if self.mark.reported is None or self.observed.step:
            return "a newer checkpoint"
        return f"bringing the run beyond step {self.mark.reported}"

    def _ended_with(self, ending: Ending) -> str:
        first = self.newest.reason.partition("\n")[0]
        return ENDED.get(ending, first or f"{self.name} failed; the service gave no reason")

    def _diagnosis(self, tried: int) -> str:
        """Why the run is not worth going on with: what was seen, and the likely cause."""
        observed, own = self.observed, self.own_outcome
        names = ", ".join(
            str(TaskName(self.workflow.run, job.segment, job.attempt)) for job in self.jobs[-tried:]
        )
        if own is not None and own.step is not None and own.step > observed.step:
            cause = (
                f"the last one says it committed step {own.step}, which is not whole in S3: uploads do not "
                "get there before a segment ends; see `smlaunch checkpoints ls`, and give segments more time"
            )
        elif observed.step == 0 and self.mark.reported is not None:
            how = f"no progress: {names} brought the run no further than step {self.mark.reported}"
            if observed.repeats:
                how += (
                    f"; {self.name} reported steps up to {observed.reported}, and most of them had been "
                    "reported before"
                )
            return f"{how}: {_BEGINS_ANEW}"
        elif observed.step == 0 and observed.files:
            cause = (
                "the script reports no step, and its checkpoint files stayed as they were; let it print "
                "`smlaunch: progress step=N`, or save more often"
            )
            return f"no progress: {names} left no new or changed checkpoint file; {cause}"
        elif observed.step == 0:
            cause = (
                "no whole checkpoint ever came to S3: the script saves none (see smlaunch.train), or its "
                "first one comes later than a segment's end"
            )
        else:
            cause = (
                "a segment ends before its first checkpoint: make segments longer, or checkpoint more often; "
                "or the script begins anew every time (`smlaunch verify-resume` finds that)"
            )
        found = f"nothing newer than step {observed.step}" if observed.step else "no checkpoint"
        return f"no progress: {names} left {found}; {cause}"


_BEGINS_ANEW = (
    "the script begins anew in every job instead of going on from its checkpoint, or a segment ends before "
    "its first new one"
)


def _status(ending: Ending) -> str:
    return "Stopped" if ending in (Ending.STOPPED, Ending.STARVED, Ending.TIME) else "Failed"
