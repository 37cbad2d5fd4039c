"""Driving a run: observe, decide, act, until it has ended.

All decisions are ``planning.reconcile``'s. A driver that is killed leaves nothing behind that another one
needs, and two drivers at once ask for the same job names, which the service gives away once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from smlaunch.planning.patience import QUOTA_PATIENCE
from smlaunch.planning.plan import Task
from smlaunch.planning.reconcile import (
    Action,
    Finish,
    JobSeen,
    LookAgain,
    Observed,
    Submit,
    WatchJob,
    decide,
)
from smlaunch.planning.workflow import Workflow
from smlaunch.ports import CallError
from smlaunch.protocol.checkpoint import OUTCOME
from smlaunch.protocol.names import TaskName
from smlaunch.request import operation_of
from smlaunch.runs.checkpoints import Checkpoints
from smlaunch.runs.lineage import Kept, Lineage, RunFolder, kept_at, reported_in_log, seen
from smlaunch.runs.retry import is_quota_in_use, retrying
from smlaunch.runs.submit import stop, submit
from smlaunch.runs.target import Target

Wait = Callable[[float], object]
"""Sleeps for some seconds; returning True means that whoever waits has been asked to leave."""


class Chain:
    """One run, seen by whoever drives or follows it. ``drives`` False starts nothing: the next job is waited
    for. ``patient``: its very first job waits too for a quota that others hold, as later ones do. ``told``
    hears, in a sentence, what is done and why.

    ``verdict``: how the run ended; None while it goes on. ``kept``: what was last seen in its checkpoints.
    """

    def __init__(
        self,
        workflow: Workflow,
        folder: RunFolder,
        target: Target,
        *,
        drives: bool = False,
        patient: bool = False,
        told: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.workflow = workflow
        self.folder = folder
        self.lineage = Lineage(workflow.run, target)
        self.drives = drives
        self._patient = patient
        self.verdict: Finish | None = None
        self.kept = Kept()
        uri = workflow.checkpoints
        target.owners.learn(workflow.variants[0].request.get("Environment", {}))
        self._checkpoints = None if uri is None else Checkpoints(uri, target.storage)
        self._target = target
        self._told = told or _say_nothing
        self._clock = clock
        self._forgiven: TaskName | None = None
        self._due_since: dict[TaskName, float] = {}
        self._refused: dict[TaskName, tuple[int, float]] = {}

    def resume(self) -> None:
        """Drives from here on, whatever the newest job ended with: a person has asked for it."""
        self.drives = True
        self.folder.want_stop(self._target.storage, False)
        known = self.lineage.descriptions()
        newest = max(known, default=None)
        if newest is not None and seen(newest, known[newest]).ending is not None:
            self._forgiven = newest

    def look(self, *, kept: bool = False) -> Action:
        """What the run needs now. Changes nothing. ``kept``: look at its checkpoints even if a job runs."""
        action = decide(self.workflow, self._observe(kept))
        self.verdict = action if isinstance(action, Finish) else None
        return action

    def next(self, wait: Wait = time.sleep) -> TaskName | None:
        """The job to follow now, submitted if need be. None when the run has ended (``verdict``), or when
        ``wait`` said to leave. Raises CallError when a request is refused for good."""
        while True:
            action = self.look()
            if isinstance(action, Finish):
                return None
            if isinstance(action, WatchJob):
                return action.name
            if isinstance(action, LookAgain):
                pause = min(self._target.cadence.longest, max(0.0, action.at - self._clock()))
            else:
                pause = max(0.0, action.not_before - self._clock())
                if not self.drives:
                    self._tell_due(action)
                    pause = self._target.cadence.longest
                else:
                    self._tell_next(action, pause)
                    if pause == 0.0:
                        delay = self._submit(action)
                        if delay is None:
                            return action.name
                        pause = delay
            if wait(pause) is True:
                return None

    def _observe(self, kept: bool) -> Observed:
        storage = self._target.storage
        jobs = [seen(name, answer) for name, answer in self.lineage.descriptions().items()]
        observed = Observed(self._clock(), jobs, forgiven=self._forgiven, pace=self._target.cadence.pace)
        if not jobs or (jobs[-1].ending is None and not kept):
            # Nothing that lies in S3 can change what is to be done about a job that runs.
            return observed
        self.kept = kept_at(self._checkpoints, storage)
        reported, repeats = self._reported(jobs[-1])
        return replace(
            observed,
            now=self._clock(),
            step=self.kept.step,
            outcome=self.kept.outcome,
            reported=reported,
            repeats=repeats,
            files=self.kept.files,
            stop_wanted=self.folder.stop_wanted(storage),
        )

    def _reported(self, newest: JobSeen) -> tuple[int | None, bool]:
        """The highest step that the newest job has reported, and whether it only went through steps again: as
        its host has written it down; where that was killed, as the log has it."""
        if self._checkpoints is None or newest.ending is None:
            return None, False
        name, told = TaskName(self.workflow.run, newest.segment, newest.attempt), self.kept.outcome
        if told is not None and told.job == str(name) and told.reported is not None:
            return told.reported, told.repeats
        return reported_in_log(self.lineage.known[-1], self._target), False

    def _submit(self, action: Submit) -> float | None:
        """None when the job is there; else the seconds after which to look again and try."""
        storage, control = self._target.storage, self._target.control
        name, kept = action.name, self._checkpoints
        under_way = (name.segment, name.attempt) != (1, 1)
        if kept is not None and action.clears_outcome:
            retrying(partial(storage.delete, kept.bucket, [kept.prefix + OUTCOME]))
        if kept is not None and name.segment > 1 and name.attempt == 1:
            # Between two segments nobody writes: what all hosts would download for nothing can go.
            kept.retain(self.workflow.policy.keep)
        task = Task(str(name), name.segment, name.attempt, operation_of(action.request), action.request)
        try:
            submit(task, self.workflow.job_hash, control, storage)
        except CallError as error:
            tries, waited = self._refused.get(name, (0, 0.0))
            delay = QUOTA_PATIENCE.delay(tries + 1, waited, chance=1.0)
            if not ((under_way or self._patient) and is_quota_in_use(error)) or delay is None:
                raise
            self._refused[name] = (tries + 1, waited + delay)
            seconds = delay * self._target.cadence.pace
            self._told(f"{name}: the quota is in use ({error.message}); trying again in {seconds:.0f} s")
            return seconds
        self.lineage.expect(name)
        if under_way and self.folder.stop_wanted(storage):
            # Asked for between our look and our request: who asked cannot have seen this job.
            stop(str(name), control)
        return None

    def _tell_next(self, action: Submit, pause: float) -> None:
        if action.name in self._due_since:
            return
        self._due_since[action.name] = self._clock()
        segment, attempt = action.name.segment, action.name.attempt
        again = f", attempt {attempt}" if attempt > 1 else ""
        later = f"; in {pause:.0f} s" if pause >= 1 else ""
        self._told(f"segment {segment}{again}: {action.because}{later}")

    def _tell_due(self, action: Submit) -> None:
        """Once, when a next job does not come although it is due."""
        since = self._due_since.setdefault(action.name, max(self._clock(), action.not_before))
        if 0 <= since < self._clock() - 3 * self._target.cadence.longest:
            self._due_since[action.name] = -1.0
            self._told(
                f"{action.name} is due and nobody starts it; `smlaunch resume {self.workflow.run}` drives on"
            )


def _say_nothing(_: str) -> None:
    return None
