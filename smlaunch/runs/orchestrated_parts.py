"""A run in parts that an orchestrator drives: an execution for each part, and one that starts them (export).

Parts that have not begun have left no trace yet. Whether there are any, the execution of the whole says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from smlaunch.errors import EXIT_COMPLETED
from smlaunch.planning.orchestrated import how_to_stop, words_for
from smlaunch.protocol.names import parse_task_name, part_of
from smlaunch.runs.chain import Wait
from smlaunch.runs.fan_out import PartsOutcome, PartsRun, PartsWatch, told_of
from smlaunch.runs.orchestrated import OrchestratedRun, attach_orchestrated
from smlaunch.runs.outcome import RunOutcome
from smlaunch.runs.retry import retrying
from smlaunch.runs.run import answers_of
from smlaunch.runs.submit import stop
from smlaunch.runs.target import Target
from smlaunch.runs.watch import Watch


class OrchestratedParts(PartsRun):
    """``jobs``: of its parts, as far as there are any. ``parts`` grows while others begin."""

    def __init__(
        self, name: str, target: Target, jobs: Sequence[str], told: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(name, target, {}, attached=True)
        self._told = told
        self._add(jobs)

    @property
    def driver(self) -> str:
        """The execution of the whole: a part's is called as it is, and the part's number after it."""
        part = next(iter(self.parts.values()))
        assert isinstance(part, OrchestratedRun)
        own, suffix = part.driver, part.name[len(self.name) :]
        return own.removesuffix(suffix) if own.endswith(suffix) else ""

    @property
    def resumable(self) -> bool:
        return False

    def describe(self) -> RunOutcome:
        self._look()
        return self._judged(super().describe())

    def glance(self) -> RunOutcome:
        self._look()
        return self._judged(super().glance())

    def is_over(self) -> bool:
        return self.describe().exit_code is not None

    def watches(self, wait: Wait = time.sleep, *, whole: bool = False) -> Iterator[Watch]:
        followed: set[int] = set()
        while True:
            new = {number: part for number, part in self.parts.items() if number not in followed}
            if new:
                followed |= set(new)
                watch = PartsWatch(PartsRun(self.name, self.target, new, attached=True), whole)
                yield watch
                if not watch.finished:
                    return
            self._look()
            if set(self.parts) > followed:
                continue
            if self.is_over() or wait(self.target.cadence.longest) is True:
                return

    def stop(self) -> RunOutcome:
        """The execution of the whole first, which would start other parts; it takes its parts' with it."""
        now = self.describe()
        if now.exit_code is not None:
            return now
        words, how = words_for(self.driver), how_to_stop(self.driver)
        with answers_of(self.target):
            stopped = self.target.orchestrators.stop(self.driver)
            for job in now.jobs:
                if not job.finished:
                    stop(job.name, self.target.control)
        self._tell(
            f"stopped {words}" if stopped else f"{words} may start other parts; to prevent that: {how}"
        )
        return self.describe()

    def _look(self) -> None:
        control = self.target.control
        with answers_of(self.target):
            listed = retrying(lambda: [row.name for row in control.list(f"{self.name}-p")])
        self._add(listed)

    def _add(self, jobs: Sequence[str]) -> None:
        """Parts that have begun since."""
        found: dict[int, list[str]] = {}
        for job in jobs:
            task = parse_task_name(job)
            number = None if task is None else part_of(self.name, task.run)
            if number is not None and number not in self.parts:
                found.setdefault(number, []).append(job)
        for number in sorted(found):
            told = told_of(number, self._told)
            with answers_of(self.target):
                part = attach_orchestrated(f"{self.name}-p{number}", self.target, told, found[number])
            if part is not None:
                self.parts[number] = part

    def _judged(self, found: RunOutcome) -> RunOutcome:
        """Its parts have ended when their execution has, which may start others yet."""
        assert isinstance(found, PartsOutcome)
        found = replace(found, driver=self.driver)
        if found.verdict is None:
            return found
        with answers_of(self.target):
            execution = self.target.orchestrators.ask(self.driver)
        if execution is not None and not execution.ended:
            return replace(found, verdict=None)
        if execution is not None and execution.exit_code not in (None, EXIT_COMPLETED, found.exit_code):
            verdict = replace(found.verdict, exit_code=execution.exit_code)
            return replace(found, verdict=verdict)
        return found

    def _tell(self, text: str) -> None:
        if self._told is not None:
            self._told(text)
