"""Run: a launched plan, seen from anywhere. It holds no state of its own: the service is asked for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from itertools import islice
from typing import Any, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.planning.orchestrated import words_for
from smlaunch.planning.reconcile import Finish
from smlaunch.ports import CallError, JobSummary
from smlaunch.protocol.names import TaskName, is_run_id, parse_task_name, task_of
from smlaunch.runs.absent import with_hint
from smlaunch.runs.chain import Chain, Wait
from smlaunch.runs.follow import TERMINAL, Event, LogLine, host_count, host_of, log_group
from smlaunch.runs.lineage import RunFolder, orchestrated_run
from smlaunch.runs.outcome import RunOutcome, outcome
from smlaunch.runs.progress import Tracker
from smlaunch.runs.retry import refusal, retrying
from smlaunch.runs.submit import stop
from smlaunch.runs.target import Target
from smlaunch.runs.watch import Watch
from smlaunch.suggest import nearest

_LOOKED_THROUGH = 200
"""Jobs that are looked at for a name like the one that does not exist."""


@contextmanager
def answers_of(target: Target) -> Iterator[None]:
    """Turns an answer that ends the command into the error the user sees."""
    try:
        yield
    except CallError as error:
        raise refusal(error, target.where) from error


class Run:
    """``attached``: it existed before this call. A run that was launched here is driven to its end by
    ``wait`` and ``watches``; one that was attached to is only followed, until ``resume``."""

    def __init__(
        self,
        name: str,
        target: Target,
        jobs: Sequence[str],
        *,
        attached: bool = False,
        chain: Chain | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.attached = attached
        self._jobs = list(jobs)
        self._told = told
        self._chain = chain
        # What was launched here brought its chain, if it has one; for others it is looked for when needed.
        self._looked_for_chain = chain is not None or not attached
        self._first_seen: Mapping[str, Any] | None = None

    @classmethod
    def attach(
        cls, name: str, target: Target | None = None, told: Callable[[str], None] | None = None
    ) -> Run:
        """Finds a run by its id or its execution's ARN, or any training job by its name. Raises JobError when
        there is none. ``told`` hears, in a sentence, what following it may bring up."""
        target = target or Target.region()
        given, name = name, name.replace("/", ":").rpartition(":")[2] if name.startswith("arn:") else name
        with answers_of(target):
            found = sorted(
                (task, summary.name)
                for summary in (target.control.list(f"{name}-s") if is_run_id(name) else ())
                if (task := parse_task_name(summary.name)) is not None and task.run == name
            )
            if not found and is_run_id(name):
                # These are made of runs, and know this module.
                from smlaunch.runs.fan_out import attach_parts
                from smlaunch.runs.orchestrated import attach_orchestrated

                other = attach_parts(name, target, told) or attach_orchestrated(name, target, told, [])
                if other is not None:
                    return other
            jobs = [job for _, job in found] or [name]
            try:
                newest = retrying(partial(target.control.describe, jobs[-1]))
            except CallError as error:
                if error.code not in ("ValidationException", "ResourceNotFound"):
                    raise
                raise _no_run(given, name, target) from error
            target.owners.learn(newest.get("Environment", {}))
            whose = orchestrated_run(newest)
            if whose is not None:
                from smlaunch.runs.orchestrated import attach_orchestrated

                theirs = attach_orchestrated(whose, target, told, jobs if found else None)
                if theirs is not None:
                    return theirs
            task = parse_task_name(jobs[-1])
            run = cls(task.run if task else name, target, jobs, attached=True, told=told)
            run._first_seen = newest
            return run

    def _repr_html_(self) -> str:
        """For a notebook's cell: where the run is, and how to see more. Asks the service nothing."""
        rows = {"run": self.name, "where": self.target.where, "jobs": ", ".join(self._jobs)}
        lines = "".join(f"<tr><th>{key}</th><td>{escape(text)}</td></tr>" for key, text in rows.items())
        state = "attached to it" if self.attached else "launched"
        return f"<div><p>{state}; <code>run.wait()</code> follows it</p><table>{lines}</table></div>"

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the run's training jobs that are known, oldest first."""
        return tuple(self._jobs)

    @property
    def chain(self) -> Chain | None:
        """None for a run that is one job."""
        if not self._looked_for_chain:
            with answers_of(self.target):
                self._chain = self._found_chain()
            self._looked_for_chain = True
        return self._chain

    @property
    def resumable(self) -> bool:
        """Whether another job can follow when one was stopped."""
        return self.chain is not None

    @property
    def driven(self) -> bool:
        """Whether further jobs come from here, and from nowhere else."""
        return self._chain is not None and self._chain.drives

    def segment_of(self, job: str) -> tuple[TaskName, int | None] | None:
        """Which of the run's jobs this is, and how many segments are planned, where that is known; None for a
        run that is one job."""
        chain, task = self.chain, parse_task_name(job)
        if chain is None or task is None or chain.workflow.single:
            return None
        return task, chain.workflow.segments

    def is_over(self) -> bool:
        """Whether nothing follows on the newest job, which has ended."""
        chain = self.chain
        return chain is None or isinstance(chain.look(), Finish)

    def describe(self) -> RunOutcome:
        """Where the run is now."""
        chain = self.chain
        with answers_of(self.target):
            if chain is None:
                describe = self.target.control.describe
                found = [outcome(retrying(partial(describe, job))) for job in self._jobs]
                return RunOutcome(self.name, tuple(found))
            chain.look(kept=True)
        return self._chain_outcome(chain)

    def glance(self) -> RunOutcome:
        """Where the run is now, with the last metrics and a failure's whole traceback: a few requests more,
        however long the log."""
        chain = self.chain
        watch = Watch(self.target, self._jobs[-1])
        with answers_of(self.target):
            if chain is not None:
                chain.look(kept=True)
                watch = Watch(self.target, chain.lineage.known[-1]["TrainingJobName"])
            watch.glance()
            if chain is not None:
                return self._chain_outcome(chain, watch)
            describe = self.target.control.describe
            earlier = [outcome(retrying(partial(describe, job))) for job in self._jobs[:-1]]
        return RunOutcome(self.name, (*earlier, watch.outcome()))

    def seen_by(self, watch: Watch) -> RunOutcome:
        """What following has shown; asks nothing. ``watch``: of the newest job."""
        if self._chain is None:
            return RunOutcome(self.name, (watch.outcome(),))
        return self._chain_outcome(self._chain, watch)

    def hosts(self) -> int:
        """How many hosts the newest job has."""
        with answers_of(self.target):
            return host_count(retrying(partial(self.target.control.describe, self._jobs[-1])))

    def watches(self, wait: Wait = time.sleep, *, whole: bool = False) -> Iterator[Watch]:
        """One job after the other, each to be followed to its end before the next is asked for; submits what
        comes next where the run is driven here. ``whole``: from the run's first job on, not only the newest.

        Ends with the run, or when ``wait`` returns True. Raises CallError where ``wait()`` raises its error.
        """
        progress = Tracker()
        followed: set[str] = set()
        chain = None if whole or not self.attached else self.chain
        if chain is None:
            for job in self._jobs if whole else self._jobs[-1:]:
                followed.add(job)
                yield Watch(self.target, job, progress)
        chain = self.chain
        while chain is not None and (name := chain.next(wait)) is not None:
            job = str(name)
            if job in followed:  # left before its end: whoever watches it does not go on
                return
            followed.add(job)
            if job not in self._jobs:
                self._jobs.append(job)
            yield Watch(self.target, job, progress)

    def wait(self, on_event: Callable[[Event], None] | None = None) -> RunOutcome:
        """Follows the run to its end, and drives it there if it was launched here or resumed. Raises
        TrainingFailed, StoppedByUser, LimitReached or ServiceError when it did not complete. ``on_event``
        hears every state and log line. The result has the last metrics."""
        with answers_of(self.target):
            for watch in self.watches():
                for events in watch.rounds():
                    for event in events:
                        if on_event is not None:
                            on_event(event)
        result = with_hint(self.glance(), self.target)
        error = result.error()
        if error is not None:
            raise error
        return result

    def resume(self) -> None:
        """Goes on with the run from where it is, also from a stop or a failure: ``wait`` drives it from now
        on. Starts nothing yet. Raises JobError for an ended run of a single job: nothing can follow it."""
        chain = self.chain
        if chain is None:
            if self.describe().exit_code is None:
                return
            text = f"{self.name} is a single job, and it has ended; launch it again under another --name"
            raise JobError([Problem("", text)])
        with answers_of(self.target):
            chain.resume()

    def logs(self) -> Iterator[LogLine]:
        """Every line written so far, host by host as it was read; does not wait for more."""
        logs = self.target.logs
        with answers_of(self.target):
            for job in self._jobs:
                group = log_group(self._seen_of(job))
                for stream in retrying(partial(logs.streams, group, job + "/")):
                    token: str | None = None
                    before: str | None = ""
                    while token != before:
                        before = token
                        events, token = retrying(partial(logs.read, group, stream, token))
                        yield from (LogLine(job, host_of(job, stream), at, text) for at, text in events)

    def stop(self) -> RunOutcome:
        """Asks the run to stop and returns at once; hosts get SIGTERM and 120 seconds, and no further job is
        started. A run that has ended is left as it is."""
        now = self.describe()
        if now.status in TERMINAL:
            return now
        with answers_of(self.target):
            if self._chain is not None:
                # First, so that whoever drives the run sees it before the job has ended.
                self._chain.folder.want_stop(self.target.storage, True)
            if now.last.status not in TERMINAL:
                stop(now.last.name, self.target.control)
        return self.describe()

    def _seen_of(self, job: str) -> Mapping[str, Any]:
        """A description of the job, for what does not change of it."""
        return retrying(partial(self.target.control.describe, job))

    def _found_chain(self) -> Chain | None:
        """Of a run that was launched elsewhere, or earlier."""
        job, target = self._jobs[-1], self.target
        if parse_task_name(job) is None:
            return None
        known = self._first_seen or retrying(partial(target.control.describe, job))
        folder = RunFolder.found(self.name, known)
        workflow = None if folder is None else folder.load(target.storage)
        if folder is None or workflow is None:
            return None
        return Chain(workflow, folder, target, told=self._told)

    def _chain_outcome(self, chain: Chain, watch: Watch | None = None) -> RunOutcome:
        """``watch`` knows more about its own job than a description says."""
        found = [outcome(answer) for answer in chain.lineage.known]
        if watch is not None and watch.seen:
            own = watch.outcome()
            found = [own if job.name == own.name else job for job in found] or [own]
        step = chain.kept.step or None
        return RunOutcome(self.name, tuple(found), chain=True, verdict=chain.verdict, step=step)


class RunSummary(NamedTuple):
    """One row of ``smlaunch ls``: a run, by its newest job. Times are seconds since the epoch; ``created`` is
    the first job's."""

    run: str
    job: str
    status: str
    created: float
    ended: float | None


def list_runs(target: Target, limit: int) -> list[RunSummary]:
    """The newest runs, each by its newest job."""
    rows: dict[str, RunSummary] = {}
    with answers_of(target):
        for summary in target.control.list():
            task = task_of(summary.name)
            name = task.run if task else summary.name
            if name in rows:
                rows[name] = rows[name]._replace(created=min(rows[name].created, summary.created))
                continue
            if len(rows) == limit:
                break
            rows[name] = RunSummary(name, summary.name, summary.status, summary.created, summary.ended)
    return list(rows.values())


def _no_run(given: str, name: str, target: Target) -> JobError:
    """``given``: the run's name, or the ARN that it was taken from."""
    execution = target.orchestrators.ask(given)
    if execution is not None:
        why = f": {execution.said}" if execution.said else ""
        state = f"has ended without a job{why}" if execution.ended else "has made no job yet"
        next_step = "" if execution.ended else "; look again in a moment"
        return JobError([Problem("", f"{words_for(given)} {state}{next_step}")])
    known: set[str] = set()
    for summary in islice(_listed(target), _LOOKED_THROUGH):
        task = task_of(summary.name)
        known.add(task.run if task else summary.name)
    match = nearest(name, known)
    hint = f", did you mean {match!r}?" if match else "; `smlaunch ls` shows the runs there"
    return JobError([Problem("", f"there is no run {name!r} on {target.where}{hint}")])


def _listed(target: Target) -> Iterator[JobSummary]:
    try:
        yield from target.control.list()
    except CallError:
        return  # only a suggestion depends on it
