"""What a run needs next: one pure function of what is wanted and what was observed.

Nothing is remembered between two decisions. A client that was killed, or another machine, observes the same
jobs and checkpoints and decides the same; two of them ask for the same job name, which can be taken once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from smlaunch.errors import EXIT_COMPLETED, EXIT_LIMIT, EXIT_STOPPED
from smlaunch.job import format_duration
from smlaunch.planning.cost import dollars
from smlaunch.planning.workflow import (
    IDLE_SEGMENTS,
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
"""Endings of jobs that had their time: when they leave nothing newer, the next one will not either."""

STARVED_ENDINGS = (Ending.STARVED, Ending.CAPACITY)
"""Endings of a spot job that on-demand capacity may be tried for."""

ENDED: Mapping[Ending, str] = {
    Ending.STOPPED: "stopped",
    Ending.STARVED: "stopped at its max_wait: spot capacity did not come, or did not last",
}
"""In words, where the service gives no reason."""


@dataclass(frozen=True)
class JobSeen:
    """One job of the run. ``ending`` is None while it runs. Times are seconds since the epoch.

    ``from_step``: the newest committed step when it was asked for; 0 before the first.
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


@dataclass(frozen=True)
class Observed:
    """``step``: the newest committed one in S3 now, 0 before the first. ``opaque``: no checkpoint of ours is
    there, and the script keeps files of its own. ``forgiven``: whatever ended the run with this job, a person
    has asked to go on. ``pace``: how long waits take here, compared with a region."""

    now: float
    jobs: Sequence[JobSeen] = ()
    step: int = 0
    outcome: Outcome | None = None
    opaque: bool = False
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


def progressed(jobs: Sequence[JobSeen], step: int) -> list[bool]:
    """For each job, oldest first, whether it left a newer committed step than it found. ``step``: the newest
    one now. What a job began with is what the one before it left."""
    ends = [job.from_step for job in jobs[1:]] + [step]
    return [end > job.from_step for job, end in zip(jobs, ends, strict=True)]


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
        progress = progressed(self.jobs, self.observed.step)
        if ending in IDLE_ENDINGS:
            if progress[-1] or (self.observed.opaque and ending is Ending.COMPLETED):
                return self._submit(self.newest.segment + 1, 1, f"from step {self.observed.step}")
            idle = self._since_progress(progress, IDLE_ENDINGS)
            if idle >= IDLE_SEGMENTS and not self._forgiven:
                return Finish(rule.exit_code or EXIT_LIMIT, "Stopped", self._diagnosis(idle))
            return self._again("it left no newer checkpoint")
        if rule.remedy in (Remedy.GIVE_UP, Remedy.ON_DEMAND):
            if not self._forgiven:
                return self._give_up(ending)
            return self._again("asked to go on")
        if not self._forgiven and not (rule.remedy is Remedy.RESUME and progress[-1]):
            tried = self._since_progress(progress, [other for other in Ending if other not in IDLE_ENDINGS])
            if tried >= self.workflow.policy.attempts:
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
            self.workflow, segment, attempt, step=self.observed.step, spot=spot, seconds_left=left
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

    def _since_progress(self, progress: Sequence[bool], endings: Sequence[Ending]) -> int:
        """How many of the jobs since the last newer checkpoint ended in one of these ways. A stop by a person
        in between says that somebody has looked, and asked to go on: what was before counts no more."""
        count = 0
        for job, newer in zip(reversed(self.jobs), reversed(progress), strict=True):
            if job is not self.newest and (newer or job.ending is Ending.STOPPED):
                break
            count += job.ending in endings and not newer
        return count

    # ---- sentences ---------------------------------------------------------------------------------------

    def _kept(self) -> str:
        return f"; the newest checkpoint is step {self.observed.step}" if self.observed.step else ""

    def _give_up(self, ending: Ending, tried: int = 0) -> Finish:
        more = f"; tried {tried} times without a newer checkpoint" if tried > 1 else ""
        more += self._kept()
        return Finish(RULES[ending].exit_code, _status(ending), self._ended_with(ending) + more, more)

    def _ended_with(self, ending: Ending) -> str:
        first = self.newest.reason.partition("\n")[0]
        return ENDED.get(ending, first or f"{self.name} failed; the service gave no reason")

    def _diagnosis(self, idle: int) -> str:
        """Why the run is not worth going on with: what was seen, and the likely cause."""
        observed, own = self.observed, self.own_outcome
        names = ", ".join(
            str(TaskName(self.workflow.run, job.segment, job.attempt)) for job in self.jobs[-idle:]
        )
        if own is not None and own.step is not None and own.step > observed.step:
            cause = (
                f"the last one says it committed step {own.step}, which is not whole in S3: uploads do not "
                "get there before a segment ends; see `smlaunch checkpoints ls`, and give segments more time"
            )
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
        found = f"step {observed.step}" if observed.step else "nothing"
        return f"no progress: {names} left nothing newer than {found}; {cause}"


def _status(ending: Ending) -> str:
    return "Stopped" if ending in (Ending.STOPPED, Ending.STARVED, Ending.TIME) else "Failed"
