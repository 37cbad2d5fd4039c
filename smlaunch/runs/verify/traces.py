"""What the ranks of a run wrote down step by step (``smlaunch.train.trace``), read back."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_TAIL = 65_536
"""Bytes: longer than any line but those of huge batches, whose steps are then seen by the log."""

_STEP = re.compile(rb'^\{"step": (\d+), "samples"', re.MULTILINE)


class StepSeen(NamedTuple):
    """``job`` counts from 0. ``loss``: as it reads, so that nan is the same as nan; None where the script
    hands none to ``step()``."""

    job: int
    step: int
    samples: tuple[int, ...]
    loss: str | None


class StateSeen(NamedTuple):
    """``digests``: sha256 of each component. ``closing``: when the training or the segment was over;
    otherwise in the midst, where a checkpoint was taken."""

    step: int
    digests: Mapping[str, str]
    closing: bool = True


@dataclass
class RankTrace:
    """``steps``: in the order they were done; one that was done again after a kill stands there twice.
    ``entered``: the generators as the first job found them. ``generators``: all that were seen, ``drawn``:
    those of them that were drawn from."""

    steps: list[StepSeen] = field(default_factory=list)
    states: list[StateSeen] = field(default_factory=list)
    entered: Mapping[str, str] = field(default_factory=dict)
    drawn: set[str] = field(default_factory=set)
    generators: set[str] = field(default_factory=set)

    @property
    def last_step(self) -> int:
        return max((row.step for row in self.steps), default=0)

    @property
    def final(self) -> Mapping[str, str]:
        """Empty where the last job has not come to its end."""
        ends = [state for state in self.states if state.closing and state.step >= self.last_step]
        return ends[-1].digests if ends else {}

    def begun(self, job: int) -> int | None:
        """The first step a job has done; None when it was cut before any."""
        return next((row.step for row in self.steps if row.job == job), None)


def read(directory: Path, jobs: Sequence[str]) -> dict[int, RankTrace]:
    """By rank, over the jobs in their order. Empty for a script that does not use ``smlaunch.train``."""
    ranks: dict[int, RankTrace] = {}
    for number, job in enumerate(jobs):
        for path in sorted(directory.glob(f"{job}-rank*.jsonl")):
            trace = ranks.setdefault(int(path.stem.rpartition("-rank")[2]), RankTrace())
            for row in _rows(path):
                _put(trace, number, row)
    return dict(sorted(ranks.items()))


def _put(trace: RankTrace, job: int, row: Mapping[str, Any]) -> None:
    trace.drawn.update(row.get("drawn", ()))
    trace.generators.update(row.get("entered", ()), row.get("drawn", ()))
    trace.generators.update(name for name in row.get("closing", ()) if name.startswith("smlaunch.rng."))
    if "entered" in row:
        trace.entered = trace.entered or row["entered"]
    elif "samples" in row:
        loss = repr(row["loss"]) if "loss" in row else None
        trace.steps.append(StepSeen(job, row["step"], tuple(row["samples"]), loss))
    elif "closing" in row:
        trace.states.append(StateSeen(row["step"], row["closing"]))
    elif "digests" in row:
        trace.states.append(StateSeen(row["step"], row["digests"], closing=False))


def newest_step(directory: Path, job: str) -> int:
    """The step a job's first rank has done last; 0 before any."""
    try:
        with (directory / f"{job}-rank0.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            tail = file.read()
    except FileNotFoundError:
        return 0
    return max((int(found) for found in _STEP.findall(tail)), default=0)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_text("ascii").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the process was killed in the midst of its last line
        yield row
