"""Reads the step traces that a run's ranks wrote (``smlaunch.train.trace``)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_TAIL_BYTES = 65_536
"""More than any line but those of huge batches, whose steps the log shows instead."""

_STEP = re.compile(rb'^\{"step": (\d+), "samples"', re.MULTILINE)


class TracedStep(NamedTuple):
    """One training step. ``job_index`` counts from 0."""

    job_index: int
    step: int
    samples: tuple[int, ...]
    loss: str | None
    """As text, so that nan equals nan; None where the script passes none to ``step()``."""


class TracedState(NamedTuple):
    """Digests of the state after a step."""

    step: int
    digests: Mapping[str, str]
    """SHA-256 of each component."""
    is_final: bool = True
    """Taken at the end of the training or the segment, and not at a checkpoint before."""


@dataclass
class RankTrace:
    """The steps and states of one rank."""

    steps: list[TracedStep] = field(default_factory=list)
    """In the order in which they were done. A step that was repeated after a kill occurs twice."""
    states: list[TracedState] = field(default_factory=list)
    initial_digest_by_generator: Mapping[str, str] = field(default_factory=dict)
    """Digests of the generators at the start of the first job."""
    drawn_generators: set[str] = field(default_factory=set)
    """Generators that random numbers were drawn from."""
    generators: set[str] = field(default_factory=set)
    """All known generators."""

    @property
    def last_step(self) -> int:
        return max((row.step for row in self.steps), default=0)

    @property
    def final_digest_by_component(self) -> Mapping[str, str]:
        """Digests at the end of the last job; empty where it did not reach its end."""
        final_states = [state for state in self.states if state.is_final and state.step >= self.last_step]
        return final_states[-1].digests if final_states else {}

    def first_step_of(self, job_index: int) -> int | None:
        """Return the first step of a job; None when it was cut before any."""
        return next((row.step for row in self.steps if row.job_index == job_index), None)


def read_traces(directory: Path, jobs: Sequence[str]) -> dict[int, RankTrace]:
    """Return the traces by rank, over all jobs in their order. Empty for a script that does not use
    ``smlaunch.train``."""
    ranks: dict[int, RankTrace] = {}
    for number, job in enumerate(jobs):
        for path in sorted(directory.glob(f"{job}-rank*.jsonl")):
            trace = ranks.setdefault(int(path.stem.rpartition("-rank")[2]), RankTrace())
            for row in _read_rows(path):
                _add_row(trace, number, row)
    return dict(sorted(ranks.items()))


def _add_row(trace: RankTrace, job_index: int, trace_row: Mapping[str, Any]) -> None:
    """Add one line of a rank's trace file to the rank's trace. ``job_index``: of the job that wrote it, from
    0."""
    trace.drawn_generators.update(trace_row.get("drawn", ()))
    trace.generators.update(trace_row.get("entered", ()), trace_row.get("drawn", ()))
    trace.generators.update(name for name in trace_row.get("closing", ()) if name.startswith("smlaunch.rng."))
    if "entered" in trace_row:
        trace.initial_digest_by_generator = trace.initial_digest_by_generator or trace_row["entered"]
    elif "samples" in trace_row:
        loss = repr(trace_row["loss"]) if "loss" in trace_row else None
        trace.steps.append(TracedStep(job_index, trace_row["step"], tuple(trace_row["samples"]), loss))
    elif "closing" in trace_row:
        trace.states.append(TracedState(trace_row["step"], trace_row["closing"]))
    elif "digests" in trace_row:
        trace.states.append(TracedState(trace_row["step"], trace_row["digests"], is_final=False))


def last_traced_step(directory: Path, job: str) -> int:
    """Return the last step of a job's first rank; 0 before any."""
    try:
        with (directory / f"{job}-rank0.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read()
    except FileNotFoundError:
        return 0
    return max((int(step) for step in _STEP.findall(tail)), default=0)


def _read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_text("ascii").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the process was killed while it wrote its last line
        yield row
