"""Runs that together are one: a part of the data each, with a job (or chain) of one host.

Each part is a run like any other, driven on its own by the one driver there is, so that a part that fails is
tried again alone. What is here only lets them be seen, stopped and gone on with as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread
from typing import Any

from smlaunch.planning.reconcile import Finish
from smlaunch.protocol.names import TaskName, parse_task_name, part_of
from smlaunch.runs.chain import Chain, Wait
from smlaunch.runs.follow import Event, LogLine, StateChange
from smlaunch.runs.lineage import RunFolder, orchestrated_run
from smlaunch.runs.outcome import JobOutcome, RunOutcome, headline_of
from smlaunch.runs.progress import Standing, Tracker
from smlaunch.runs.retry import retrying
from smlaunch.runs.run import Run, answers_of
from smlaunch.runs.target import Target
from smlaunch.runs.watch import Watch

Told = Callable[[str], None]


@dataclass(frozen=True)
class PartsOutcome(RunOutcome):
    """``parts``: each as its own jobs left it; ``jobs`` are those of all."""

    parts: tuple[RunOutcome, ...] = ()

    @classmethod
    def of(cls, run: str, parts: Sequence[RunOutcome]) -> PartsOutcome:
        jobs = tuple(job for part in parts for job in part.jobs)
        verdict = _verdict(parts)
        return cls(run, jobs, chain=True, verdict=verdict, parts=tuple(parts))

    @property
    def last(self) -> JobOutcome:
        """Of the part that decided how the run ended, else of the newest."""
        return _decisive(self.parts).last

    @property
    def each(self) -> tuple[RunOutcome, ...]:
        return self.parts

    @property
    def model_artifacts(self) -> str | None:
        """Each part has its own."""
        return None

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "run": part.run,
                "status": part.status,
                "exit_code": part.exit_code,
                "because": headline_of(part),
                "model_artifacts": part.model_artifacts,
                "output": part.last.output,
                "step": part.step,
            }
            for part in self.parts
        ]
        return {**super().to_dict(), "parts": rows}


def _decisive(parts: Sequence[RunOutcome]) -> RunOutcome:
    """The first part that did not complete; without one, the last that goes on, or the last."""
    failed = next((part for part in parts if part.exit_code), None)
    going = [part for part in parts if part.exit_code is None]
    return failed or (going or list(parts))[-1]


def _verdict(parts: Sequence[RunOutcome]) -> Finish | None:
    """None while a part goes on."""
    if any(part.exit_code is None for part in parts):
        return None
    done = sum(part.exit_code == 0 for part in parts)
    if done == len(parts):
        return Finish(0, "Completed", f"completed in all {done} parts")
    worst = _decisive(parts)
    more = f"; {done} of {len(parts)} parts have completed"
    sentence = f"{worst.run}: {headline_of(worst)}{more}"
    return Finish(worst.exit_code or 0, worst.status, sentence, more)


class PartsRun(Run):
    """A run in parts. ``parts``: by their numbers, which begin at 1."""

    def __init__(self, name: str, target: Target, parts: dict[int, Run], *, attached: bool = False) -> None:
        super().__init__(name, target, [], attached=attached)
        self.parts = parts
        self._looked_for_chain = True

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(job for part in self.parts.values() for job in part.jobs)

    @property
    def resumable(self) -> bool:
        return True

    @property
    def driven(self) -> bool:
        return any(part.driven for part in self.parts.values())

    def describe(self) -> RunOutcome:
        return PartsOutcome.of(self.name, [_begun(part.describe()) for part in self.parts.values()])

    def glance(self) -> RunOutcome:
        found = [part.describe() for part in self.parts.values()]
        glances = [
            part.glance() if now.jobs else _begun(now)
            for part, now in zip(self.parts.values(), found, strict=True)
        ]
        return PartsOutcome.of(self.name, glances)

    def seen_by(self, watch: Watch) -> RunOutcome:
        return self.describe()

    def hosts(self) -> int:
        return len(self.parts)

    def watches(self, wait: Wait = time.sleep, *, whole: bool = False) -> Iterator[Watch]:
        """One watch for all parts, which are followed (and driven) beside one another."""
        yield PartsWatch(self, whole)

    def resume(self) -> None:
        """Goes on with the parts that have not completed."""
        for part in self.parts.values():
            if part.describe().exit_code != 0:
                part.resume()

    def logs(self) -> Iterator[LogLine]:
        for number, part in self.parts.items():
            for line in part.logs():
                yield _renamed(line, number)

    def stop(self) -> RunOutcome:
        with answers_of(self.target):
            for part in self.parts.values():
                if part.chain is not None:
                    # All of them first: what one lets go of must not start another.
                    part.chain.folder.want_stop(self.target.storage, True)
        for part in self.parts.values():
            if part.describe().jobs:
                part.stop()
        return self.describe()


def attach_parts(name: str, target: Target, told: Told | None = None) -> PartsRun | None:
    """The run in parts of this name; None where there is none."""
    found = sorted(
        task
        for summary in target.control.list(f"{name}-p")
        if (task := parse_task_name(summary.name)) is not None and part_of(name, task.run) is not None
    )
    if not found:
        return None
    job = found[0]
    seen = retrying(partial(target.control.describe, str(job)))
    if orchestrated_run(seen) is not None:
        from smlaunch.runs.orchestrated_parts import OrchestratedParts  # it is one of these

        return OrchestratedParts(name, target, [str(task) for task in found], told)
    # A run may be called so by itself: the folder of the whole knows its parts, also those not begun yet.
    folder = RunFolder.found(job.run, seen)
    names = None if folder is None else folder.beside(job.run, name).load_parts(target.storage)
    if names is None or folder is None:
        return None
    parts: dict[int, Run] = {}
    for run in names:
        number = part_of(name, run) or 0
        own = folder.beside(job.run, run)
        workflow = own.load(target.storage)
        if workflow is not None:
            chain = Chain(workflow, own, target, told=told_of(number, told), patient=True)
            jobs = [str(task) for task in found if task.run == run] or [str(TaskName(run, 1, 1))]
            parts[number] = Run(run, target, jobs, attached=True, chain=chain)
    return PartsRun(name, target, parts, attached=True)


def _begun(now: RunOutcome) -> RunOutcome:
    """With a job that is still to be asked for, where a part has none yet."""
    if now.jobs:
        return now
    job = JobOutcome(
        name=str(TaskName(now.run, 1, 1)),
        arn="",
        status="InProgress" if now.verdict is None else now.verdict.status,
        secondary_status="NotBegun",
        exit_code=None if now.verdict is None else now.verdict.exit_code,
        failure_reason="",
        model_artifacts=None,
        output=None,
        checkpoints=None,
        metrics={},
        created=None,
        started=None,
        ended=None,
        training_seconds=None,
        billable_seconds=None,
        failure=None,
    )
    return RunOutcome(now.run, (job,), chain=True, verdict=now.verdict)


def told_of(number: int, told: Told | None) -> Told:
    return lambda text: None if told is None else told(f"p{number}: {text}")


class PartsWatch(Watch):
    """All parts at once: each is followed by a thread of its own, which also drives it."""

    def __init__(self, run: PartsRun, whole: bool = False) -> None:
        self.job = run.name
        self.progress = self._together = _Together(len(run.parts))
        self._run = run
        self._whole = whole
        self._watches: dict[int, Watch] = {}
        self._over: set[int] = set()

    @property
    def seen(self) -> bool:
        return any(watch.seen for watch in self._watches.values())

    @property
    def finished(self) -> bool:
        return len(self._over) == len(self._run.parts)

    def rounds(self, wait: Callable[[float], object] = time.sleep) -> Iterator[Sequence[Event]]:
        """Until all parts are over. Begun again after it was ended early, it follows the jobs that run then
        and starts nothing more."""
        heard: SimpleQueue[tuple[int, Sequence[Event] | BaseException | None]] = SimpleQueue()
        left = Flag()

        def pause(seconds: float) -> bool:
            return wait(seconds) is True or left.is_set()

        # Before there are threads: boto3 makes clients in one at a time only.
        _ = self._run.target.control, self._run.target.logs, self._run.target.storage
        again = bool(self._watches)
        going = [number for number in self._run.parts if number not in self._over]
        for number in going:
            Thread(target=self._follow, args=(number, again, pause, heard), daemon=True).start()
        try:
            waited_for = len(going)
            while waited_for:
                number, news = heard.get()
                if news is None:
                    waited_for -= 1
                elif isinstance(news, BaseException):
                    raise news
                else:
                    yield [_renamed(event, number) for event in news]
        finally:
            left.set()

    def outcome(self) -> JobOutcome:
        return self._run.describe().last

    def _follow(self, number: int, again: bool, pause: Callable[[float], bool], heard: Any) -> None:
        try:
            watches = (
                self._again(number) if again else self._run.parts[number].watches(pause, whole=self._whole)
            )
            for watch in watches:
                self._watches[number] = watch
                self._together.parts[number] = watch.progress
                for events in watch.rounds(pause):
                    heard.put((number, events))
                if not watch.finished:
                    return
            self._over.add(number)
        except BaseException as error:  # told to whoever reads, who raises it
            heard.put((number, error))
        finally:
            heard.put((number, None))

    def _again(self, number: int) -> Iterator[Watch]:
        if number in self._watches:
            yield self._watches[number]


class _Together(Tracker):
    """The progress of all parts: steps are added up. How many there are is known when all have said so."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self.parts: dict[int, Tracker] = {}

    def standing(self, now: float | None = None) -> Standing | None:
        known = [found for tracker in list(self.parts.values()) if (found := tracker.standing(now))]
        if not known:
            return None
        steps = [found.steps for found in known]
        etas = [found.eta for found in known if found.eta is not None and len(known) == self._count]
        return Standing(
            step=sum(found.step or 0 for found in known),
            steps=None if None in steps or len(known) < self._count else sum(each or 0 for each in steps),
            rate=sum(found.rate or 0.0 for found in known) or None,
            eta=max(etas, default=None),
            metrics=known[0].metrics if len(known) == 1 else {},
        )


def _renamed(event: Any, number: int) -> Any:
    """Every part's only host is algo-1: it goes by its part's name."""
    if isinstance(event, LogLine):
        return event._replace(host=f"p{number}" if event.host == "algo-1" else f"p{number}/{event.host}")
    if isinstance(event, StateChange):
        return event._replace(message=f"p{number}: {event.message}")
    return event
