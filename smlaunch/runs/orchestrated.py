"""A run that an orchestrator drives (export): seen by its jobs, whoever asks for them and whatever they are
called. It has no folder of its own to be found in; its jobs' Environment says whose they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.planning.orchestrated import how_to_stop, judge, settled, words_for
from smlaunch.planning.reconcile import Finish, Observed
from smlaunch.ports import ControlPlane, JobSummary
from smlaunch.protocol import segment as variables
from smlaunch.protocol.names import TAG_RUN, TaskName, parse_task_name, pipeline_prefix
from smlaunch.runs.chain import Wait
from smlaunch.runs.checkpoints import Checkpoints
from smlaunch.runs.follow import TERMINAL
from smlaunch.runs.lineage import Kept, kept_at, orchestrated_run, seen
from smlaunch.runs.outcome import RunOutcome, checkpoints_of, outcome
from smlaunch.runs.progress import Tracker
from smlaunch.runs.retry import retrying
from smlaunch.runs.run import Run, answers_of
from smlaunch.runs.submit import stop
from smlaunch.runs.target import Target
from smlaunch.runs.watch import Watch

_PATIENT_LOOKS = 12
"""Looks for a next job after which it is told that one is waited for."""


def attach_orchestrated(
    name: str,
    target: Target,
    told: Callable[[str], None] | None = None,
    known: Sequence[str] | None = None,
) -> OrchestratedRun | None:
    """The run of this name whose jobs an orchestrator asks for; None where there is none. ``known``: its jobs
    of ordinary names, where they have been listed. Raises JobError for the name of an execution that several
    runs are part of."""
    jobs = Jobs(name, target, known)
    jobs.look()
    if not jobs.known and jobs.beside:
        what = "is an execution with several runs; name one of them"
        if not any(found.startswith(f"{name}-") for found in jobs.beside):
            what = "names no run: that of a cached step is not called after its execution; name the job"
        text = f"{name} {what}: {', '.join(jobs.beside)}"
        execution = target.orchestrators.ask(jobs.driver_beside)
        if execution is not None and execution.ended and execution.said:
            text += f" (it has ended: {execution.said})"
        raise JobError([Problem("", text)])
    return OrchestratedRun(name, target, jobs, told) if jobs.known else None


# ---- the jobs of a run ------------------------------------------------------------------------------------


def _by_task(run: str, control: ControlPlane) -> Iterable[JobSummary]:
    for row in control.list(f"{run}-s"):
        task = parse_task_name(row.name)
        if task is not None and task.run == run:
            yield row


def _by_pipeline(run: str, control: ControlPlane) -> Iterable[JobSummary]:
    prefix = pipeline_prefix(run)
    return (row for row in control.list(prefix) if row.name.startswith(prefix))


def _by_tag(run: str, control: ControlPlane) -> Iterable[JobSummary]:
    return control.tagged(TAG_RUN, run)


_WAYS = (_by_task, _by_pipeline, _by_tag)
"""To find a run's jobs, none of which lists other runs'. Names are known at once, tags some time later."""


class Jobs:
    """The jobs of one run, oldest first. ``named``: those of ordinary names, as listed a moment ago."""

    def __init__(self, run: str, target: Target, named: Sequence[str] | None = None) -> None:
        self.run = run
        self._target = target
        self._given = list(named or ())
        self._ways = _WAYS if named is None else _WAYS[:1] if named else _WAYS[1:]
        self._answers: dict[str, dict[str, Any]] = {}
        self._strangers: dict[str, str | None] = {}
        self.driver_beside = ""
        """The execution that asked for what is ``beside``; empty where nobody has said it."""

    @property
    def known(self) -> list[dict[str, Any]]:
        """DescribeTrainingJob's answers as they were when last looked at."""
        return list(self._answers.values())

    @property
    def names(self) -> list[str]:
        return list(self._answers)

    @property
    def beside(self) -> list[str]:
        """What else there is of the same execution: runs, and jobs of cached steps, whose runs no list of
        jobs tells."""
        own = f"{self.run}-"
        return sorted(
            {run if run.startswith(own) else job for job, run in self._strangers.items() if run is not None}
        )

    def look(self) -> None:
        """What has ended is asked about once."""
        control = self._target.control
        names, self._given = self._given or self._listed(), []
        for name in dict.fromkeys([*self._answers, *names]):
            known = self._answers.get(name, {})
            if name in self._strangers or known.get("TrainingJobStatus") in TERMINAL:
                continue
            answer = retrying(partial(control.describe, name))
            whose = orchestrated_run(answer)
            if whose == self.run:
                self._answers[name] = answer
            else:  # another step of the same pipeline
                self._strangers[name] = whose
                self.driver_beside = answer.get("Environment", {}).get(variables.DRIVER, self.driver_beside)
        self._answers = dict(sorted(self._answers.items(), key=_age))

    def tasks(self) -> list[TaskName]:
        """Which of the run's each job is. One that tells no attempt is one more of its segment."""
        found: list[TaskName] = []
        for name, answer in self._answers.items():
            task = parse_task_name(name)
            if task is None:
                number = int(answer["Environment"].get(variables.SEGMENT, "1"))
                before = sum(one.segment == number for one in found)
                task = TaskName(self.run, number, before + 1)
            found.append(task)
        return found

    def _listed(self) -> list[str]:
        for way in self._ways:
            names = retrying(partial(self._by, way))
            if names:
                self._ways = (way,)
                return names
        return []

    def _by(self, way: Callable[[str, ControlPlane], Iterable[JobSummary]]) -> list[str]:
        return [row.name for row in way(self.run, self._target.control)]


def _age(item: tuple[str, Mapping[str, Any]]) -> tuple[float, TaskName | None, str]:
    name, answer = item
    return answer["CreationTime"].timestamp(), parse_task_name(name) or TaskName("", 0, 0), name


# ---- the run ----------------------------------------------------------------------------------------------


class OrchestratedRun(Run):
    """It is only looked at from here: what its orchestrator makes of a job's end is for that to say."""

    def __init__(
        self, name: str, target: Target, jobs: Jobs, told: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(name, target, jobs.names, attached=True, told=told)
        self._looked_for_chain = True
        self._theirs = jobs
        self._kept = Kept()
        self._verdict: Finish | None = None

    @property
    def driver(self) -> str:
        """The orchestrator's execution that asked for the newest job; empty where it has not said so."""
        return str(self._newest["Environment"].get(variables.DRIVER, ""))

    def describe(self) -> RunOutcome:
        with answers_of(self.target):
            self._look(kept=True)
        return self._outcome()

    def glance(self) -> RunOutcome:
        with answers_of(self.target):
            self._look(kept=True)
            watch = Watch(self.target, self._jobs[-1])
            watch.glance()
        return self._outcome(watch)

    def seen_by(self, watch: Watch) -> RunOutcome:
        return self._outcome(watch)

    def segment_of(self, job: str) -> tuple[TaskName, int | None] | None:
        if variables.STOP_AFTER not in self._newest["Environment"]:
            return None
        return dict(zip(self._theirs.names, self._theirs.tasks(), strict=True))[job], None

    def is_over(self) -> bool:
        with answers_of(self.target):
            self._look()
        return self._verdict is not None

    def watches(self, wait: Wait = time.sleep, *, whole: bool = False) -> Iterator[Watch]:
        progress = Tracker()
        self._look()
        followed = set() if whole else set(self._jobs[:-1])
        looks = 0
        while True:
            for job in [job for job in self._jobs if job not in followed]:
                looks = 0
                followed.add(job)
                yield Watch(self.target, job, progress)
            self._look()
            if self._jobs[-1] not in followed:
                continue
            if self._verdict is not None or self._runs:  # over, or left by whoever watched it
                return
            looks += 1
            if looks == _PATIENT_LOOKS:
                self._tell(f"{self._jobs[-1]} has ended; waiting for {words_for(self.driver)} to go on")
            if wait(self.target.cadence.longest) is True:
                return

    def resume(self) -> None:
        if self.describe().exit_code is None:
            text = f"{self.name} is driven by {words_for(self.driver)}, and goes on by that alone"
        else:
            text = (
                f"{self.name} was driven by {words_for(self.driver)}, and has ended; run it again there, or "
                "launch the job by `smlaunch run`, with these --checkpoints to go on from them"
            )
        raise JobError([Problem("", text)])

    def stop(self) -> RunOutcome:
        """A stopped job ends the run of every export. Where none can be stopped, between two jobs or at a
        job's very end, only the execution can be; raises JobError where that cannot be done from here."""
        now = self.describe()
        if now.exit_code is not None:
            return now
        words, how = words_for(self.driver), how_to_stop(self.driver)
        with answers_of(self.target):
            if not now.last.finished:
                stop(now.last.name, self.target.control)
                now = self.describe()
            if now.last.status in ("Stopping", "Stopped"):
                self._tell(f"no job of {self.name} follows a stopped one; should one all the same: {how}")
            elif now.exit_code is None:
                if not self.target.orchestrators.stop(self.driver):
                    text = f"no job of {self.name} runs, and another may follow; to prevent that: {how}"
                    raise JobError([Problem("", text)])
                self._tell(f"no job runs; stopped {words}, with all that it runs, so that none follows")
                now = self.describe()
        return now

    # ---- what is seen

    def _seen_of(self, job: str) -> Mapping[str, Any]:
        return dict(zip(self._theirs.names, self._theirs.known, strict=True))[job]

    @property
    def _newest(self) -> dict[str, Any]:
        return self._theirs.known[-1]

    @property
    def _runs(self) -> bool:
        return self._newest["TrainingJobStatus"] not in TERMINAL

    def _look(self, *, kept: bool = False) -> None:
        """``kept``: also at all of its checkpoints, on which nothing depends."""
        self._theirs.look()
        self._jobs = self._theirs.names
        self.target.owners.learn(self._newest.get("Environment", {}))
        uri, storage = checkpoints_of(self._newest), self.target.storage
        checkpoints = Checkpoints(uri, storage) if uri else None
        if kept:
            self._kept = kept_at(checkpoints, storage)
        elif checkpoints is not None and not self._runs:
            said = checkpoints.outcome()
            self._kept = Kept(said.step or 0, said) if said is not None else Kept()
        jobs = [seen(*pair) for pair in zip(self._theirs.tasks(), self._theirs.known, strict=True)]
        pace = self.target.cadence.pace
        observed = Observed(time.time(), jobs, self._kept.step, self._kept.outcome, pace=pace)
        planned_end = variables.STOP_AFTER in self._newest["Environment"]
        self._verdict = settled(self.name, observed, planned_end)
        if self._verdict is None and not self._runs:
            self._verdict = judge(observed, self.target.orchestrators.ask(self.driver))

    def _outcome(self, watch: Watch | None = None) -> RunOutcome:
        found = [outcome(answer) for answer in self._theirs.known]
        if watch is not None and watch.seen:
            own = watch.outcome()
            found = [own if job.name == own.name else job for job in found]
        step = self._kept.step or None
        return RunOutcome(
            self.name, tuple(found), chain=True, verdict=self._verdict, step=step, driver=self.driver
        )

    def _tell(self, text: str) -> None:
        if self._told is not None:
            self._told(text)
