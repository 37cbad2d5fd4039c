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

_STEP = re.compile(rb'^\{"step": (\d+),', re.MULTILINE)


class StepSeen(NamedTuple):
    """``job`` counts from 0. ``loss``: None where the script hands none to ``step()``."""

    job: int
    step: int
    samples: tuple[int, ...]
    loss: float | None


@dataclass
class RankTrace:
    """``steps``: in the order they were done; one that was done again after a kill stands there twice.
    ``states``: sha256 of each component by step, the last one written."""

    steps: list[StepSeen] = field(default_factory=list)
    states: dict[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        return max((row.step for row in self.steps), default=0)

    @property
    def final(self) -> Mapping[str, str]:
        return self.states.get(self.last_step, {})

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
                if "digests" in row:
                    trace.states[row["step"]] = row["digests"]
                else:
                    samples = tuple(row.get("samples", ()))
                    trace.steps.append(StepSeen(number, row["step"], samples, row.get("loss")))
    return dict(sorted(ranks.items()))


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
