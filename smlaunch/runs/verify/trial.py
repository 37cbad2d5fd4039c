"""A script run on an endpoint of this machine, unsplit or with cuts, and what became of it.

Each cut ends the job, by SIGTERM to its hosts or SIGKILL to one rank, and the next job goes on from the same
checkpoints. Jobs are submitted one by one, without the driver: what is tried is the script.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from smlaunch.errors import TrainingFailed
from smlaunch.job import Checkpoints, Job
from smlaunch.planning.decide import OPERATION
from smlaunch.planning.plan import Task
from smlaunch.planning.workflow import request_for
from smlaunch.ports import CallError
from smlaunch.protocol.checkpoint import FINISHED, OUTCOME, parse_outcome
from smlaunch.protocol.names import TaskName
from smlaunch.protocol.progress import parse_line
from smlaunch.protocol.segment import INTERVAL
from smlaunch.runs.api import launch, prepare
from smlaunch.runs.follow import LogLine, StateChange
from smlaunch.runs.run import answers_of
from smlaunch.runs.submit import submit
from smlaunch.runs.target import Target
from smlaunch.runs.verify import artefacts, traces
from smlaunch.runs.verify.artefacts import Files
from smlaunch.runs.verify.compare import Account
from smlaunch.runs.verify.killing import kill_rank
from smlaunch.runs.watch import Watch

TRACE = "SMLAUNCH_TRACE"
"""smlaunch.train.trace.VARIABLE: train is what a script imports, and the client does not."""

_SAVES_PER_PART = 3
"""Checkpoints between two cuts, about, unless the job states an interval: a kill shall have something to go
on from, and lose something."""

_LEAST_INTERVAL = 0.05
"""Seconds."""

Signal = Literal["term", "kill"]


@dataclass(frozen=True)
class Cut:
    """``step``: after this one; 0 where the script tells no steps: then after this ``share`` of the unsplit
    run's training time. ``rank``: who is killed."""

    signal: Signal
    step: int
    share: float
    rank: int = 0


@dataclass(frozen=True)
class Made:
    """A cut as it came out: after step ``done`` of ``job``; what came then went on with step ``resumed``.
    None where the script tells no steps."""

    signal: Signal
    job: str
    done: int | None
    resumed: int | None = None


@dataclass(frozen=True)
class Ran:
    """``seconds``: from status Training to the end, ``stepping``: from the first step to the last one that
    was seen, all jobs together. ``late``: cuts after which there was nothing more to train.
    ``is_resumed``: the last job went on from a checkpoint, and did not do the whole training by itself.
    ``lines``: in which the last job told a step. ``failure``: of a job that was to go on, and could not."""

    account: Account
    made: tuple[Made, ...] = ()
    late: int = 0
    last_step: int = 0
    seconds: float = 0.0
    stepping: float = 0.0
    is_resumed: bool = True
    lines: int = 0
    failure: str | None = None


def draw_cuts(
    signal: Signal, count: int, last_step: int, ranks: int, random: Random, earliest: float = 0.0
) -> list[Cut]:
    """In the order they come; steps before the last one, all different where there are enough. ``last_step``
    is 0 for a script that tells no steps. ``earliest``: this share of the training goes before."""
    first = 1 + int(last_step * earliest)
    places = range(first, max(first + 1, last_step)) if last_step else range(1)
    steps = random.sample(places, count) if count <= len(places) else random.choices(places, k=count)
    shares = sorted(random.uniform(max(0.1, earliest), 0.9) for _ in range(count))
    return [
        Cut(signal, step, share, random.randrange(max(1, ranks)))
        for step, share in zip(sorted(steps), shares, strict=True)
    ]


class Trials:
    """Runs of one job on one endpoint. ``folder``: for the ranks' traces, on this machine; ``told`` hears
    what happens."""

    def __init__(self, job: Job, target: Target, folder: Path, told: Callable[[str], None]) -> None:
        self._job = job
        self._target = target
        self._folder = folder
        self._told = told

    def run(self, name: str, cuts: Sequence[Cut] = (), unsplit: Ran | None = None) -> Ran:
        """To the end of the training. ``unsplit``: the run that tells how long it takes.

        Raises TrainingFailed when a job fails that nobody has killed."""
        # Ranks are found by their job's name among all processes of the machine: it must be nobody else's.
        name = f"{name}-{secrets.token_hex(4)}"
        target, traced = self._target, self._folder / name
        traced.mkdir(parents=True)
        interval = None
        if unsplit is not None and unsplit.stepping:
            interval = max(_LEAST_INTERVAL, unsplit.stepping / (_SAVES_PER_PART * (len(cuts) + 1)))
        prepared = prepare(self._changed(name, traced, interval), target, name)
        if unsplit is None:
            for note in prepared.plan.surroundings.source.notes:
                self._told(f"warning: {note}")
        workflow = prepared.plan.workflow
        jobs = list(launch(prepared, target).jobs)
        pending, made, followed = list(cuts), list[Made](), list[_Following]()
        earlier, kept, failure = list[Files | None](), False, None
        with answers_of(target):
            while True:
                job = jobs[-1]
                cut = pending.pop(0) if pending else None
                following = _Following(target, job, traced, cut, unsplit.seconds if unsplit else 0.0)
                following.to_its_end()
                followed.append(following)
                outcome = following.watch.outcome()
                if cut is not None and following.done is not None:
                    made.append(Made(cut.signal, job, following.done or None))
                    self._told(f"{job}: {_SIGNALS[cut.signal]} after step {following.done or 'unknown'}")
                elif outcome.status != "Completed":
                    why = outcome.failure_reason or outcome.secondary_status
                    if not made:
                        raise TrainingFailed(f"{job} ended with {outcome.status}: {why}")
                    failure = f"{job}, which was to go on after cut {len(made)}, {outcome.status}: {why}"
                left = artefacts.fetch(target, outcome.model_artifacts, [*jobs, name], traced)
                if outcome.status == "Completed" or failure is not None:
                    break
                kept, is_over = self._left_behind(outcome.checkpoints)
                if is_over:  # the cut came too late: a job after this one would end at once
                    break
                earlier.append(left if outcome.status != "Failed" else None)
                number = len(jobs) + 1
                request = request_for(workflow, number, 1)
                task = Task(str(TaskName(name, number, 1)), number, 1, OPERATION, request)
                jobs.append(submit(task, workflow.job_hash, target.control, target.storage).name)
        account = Account(tuple(jobs), traces.read(traced, jobs), left, tuple(earlier))
        begun = _begun(account, followed)
        real = [
            replace(cut, resumed=next((step for step in begun[number:] if step is not None), None))
            for number, cut in enumerate(made, 1)
            if number < len(jobs)
            and (unsplit is None or not unsplit.last_step or any(step is not None for step in begun[number:]))
        ]
        return Ran(
            account,
            tuple(real),
            len(cuts) - len(real),
            max(one.step for one in followed),
            sum(one.seconds for one in followed),
            sum(one.stepping for one in followed),
            _is_resumed(account, begun, followed[-1].lines, unsplit, kept=kept),
            followed[-1].lines,
            failure,
        )

    def _left_behind(self, uri: str | None) -> tuple[bool, bool]:
        """Whether anything lies where the checkpoints are, and whether it says that the training is over."""
        if uri is None:
            return False, False
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        prefix = prefix.rstrip("/") + "/"
        said = self._target.storage.get_bytes(bucket, prefix + OUTCOME)
        outcome = None if said is None else parse_outcome(said)
        keys = (row.key.removeprefix(prefix) for row in self._target.storage.list(bucket, prefix))
        is_over = outcome is not None and outcome.closed and outcome.result == FINISHED
        return any(key != OUTCOME for key in keys), is_over

    def _changed(self, name: str, traced: Path, interval: float | None) -> Job:
        """The job with checkpoints of this trial's own, as one job without segments."""
        given = self._job.checkpoints or Checkpoints()
        place = f"s3://{self._target.bucket}/verify/{name}/"
        checkpoints = given.model_copy(update={"uri": place, "bucket_owner": None})
        limits = self._job.limits.model_copy(update={"segment": None, "max_runtime": None, "max_cost": None})
        environment = {**self._job.environment, TRACE: str(traced)}
        if interval is not None:
            environment[INTERVAL] = f"{interval:.3f}"
        compute = self._job.compute.model_copy(update={"spot": False, "on_demand_fallback": False})
        changes = {"checkpoints": checkpoints, "limits": limits, "environment": environment, "segments": ()}
        return self._job.model_copy(
            update={**changes, "compute": compute, "output": None, "bucket_owner": None, "name": None}
        )


def _begun(account: Account, followed: Sequence[_Following]) -> list[int | None]:
    """The first step of each job; None where it did none, or tells none."""
    first = account.ranks.get(0)
    if first is not None:
        return [first.begun(number) for number in range(len(followed))]
    return [following.first for following in followed]


def _is_resumed(
    account: Account, begun: Sequence[int | None], lines: int, unsplit: Ran | None, *, kept: bool
) -> bool:
    """Whether the last job that trained has not done all of it by itself, from the very start. ``lines``: in
    which the last job told a step. ``kept``: whether it found anything in the checkpoint directory."""
    if account.is_traced:
        return next((step for step in reversed(begun) if step is not None), 0) > 1
    # A script may count its steps anew in each epoch, or in each process.
    return lines < unsplit.lines if unsplit is not None and unsplit.lines else kept


_SIGNALS = {"term": "SIGTERM", "kill": "SIGKILL"}


class _Following:
    """A job until it has ended, with its cut. ``done``: the step after which the cut was made; 0 when steps
    are not told, None when it was not made. ``step``: the last one told, ``first``: the first one in the log.
    ``lines``, ``seconds``, ``stepping``: as of Ran."""

    def __init__(
        self, target: Target, job: str, traced: Path, cut: Cut | None, unsplit_seconds: float
    ) -> None:
        self.watch = Watch(target, job)
        self.done: int | None = None
        self.first: int | None = None
        self.step = self.lines = 0
        self._target = target
        self._job = job
        self._traced = traced
        self._cut = cut
        self._due = 0.0 if cut is None else cut.share * unsplit_seconds
        self._training_since: float | None = None
        self._first_step_at = self._last_step_at = self._ended = 0.0

    def to_its_end(self) -> None:
        for events in self.watch.rounds(self._wait):
            for event in events:
                if isinstance(event, StateChange) and event.state == "Training":
                    self._training_since = time.monotonic()
                elif isinstance(event, LogLine) and (line := parse_line(event.text)) is not None:
                    step = line.values.get("step")
                    if isinstance(step, int):
                        self.first = step if self.first is None else self.first
                        self.lines += 1
                        self._see(step)
            self._look()
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        return 0.0 if self._training_since is None else self._ended - self._training_since

    @property
    def stepping(self) -> float:
        return self._last_step_at - self._first_step_at

    def _see(self, step: int) -> None:
        if step > self.step:
            self._last_step_at = time.monotonic()
            self._first_step_at = self._first_step_at or self._last_step_at
            self.step = step

    def _wait(self, seconds: float) -> None:
        """As long as the round may take, looking at the steps more often than the log is asked for."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.01))
            self._look()

    def _look(self) -> None:
        cut = self._cut
        if self.done is not None:
            return
        self._see(traces.newest_step(self._traced, self._job))
        if cut is None:
            return
        if cut.step:
            due = self.step >= cut.step
        else:
            since = self._training_since
            due = since is not None and time.monotonic() - since >= self._due
        if due and self._make(cut):
            self.done = self.step

    def _make(self, cut: Cut) -> bool:
        if cut.signal == "kill":
            return kill_rank(self._job, cut.rank)
        with suppress(CallError):  # it has ended a moment ago: the cut came too late
            self._target.control.stop(self._job)
            return True
        return False
