"""Reads the step traces that a run's ranks wrote (``smlaunch.train.step_trace``)."""

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
    sample_numbers: tuple[int, ...]
    loss: str | None
    """As text, so that nan equals nan; None where the script passes none to ``step()``."""


class TracedState(NamedTuple):
    """Digests of the state after a step."""

    step: int
    digest_by_component: Mapping[str, str]
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
    drawn_generator_names: set[str] = field(default_factory=set)
    """Generators that random numbers were drawn from."""
    generator_names: set[str] = field(default_factory=set)
    """All known generators."""

    @property
    def last_step(self) -> int:
        return max((traced_step.step for traced_step in self.steps), default=0)

    @property
    def final_digest_by_component(self) -> Mapping[str, str]:
        """Digests at the end of the last job; empty where it did not reach its end."""
        final_states = [state for state in self.states if state.is_final and state.step >= self.last_step]
        return final_states[-1].digest_by_component if final_states else {}

    def first_step_of(self, job_index: int) -> int | None:
        """Return the first step of a job; None when it was cut before any."""
        return next(
            (traced_step.step for traced_step in self.steps if traced_step.job_index == job_index), None
        )


def read_traces(trace_folder: Path, job_names: Sequence[str]) -> dict[int, RankTrace]:
    """Return the step trace of each rank over all jobs of a run, by rank: the samples and the loss of each
    step, and digests of the state. Empty for a script that does not use ``smlaunch.train``.

    ``trace_folder`` has a file ``<job>-rank<N>.jsonl`` for each rank of each job. ``job_names`` are in the
    order in which the jobs ran.
    """
    trace_by_rank: dict[int, RankTrace] = {}
    for job_index, job_name in enumerate(job_names):
        for path in sorted(trace_folder.glob(f"{job_name}-rank*.jsonl")):
            rank = int(path.stem.rpartition("-rank")[2])
            trace = trace_by_rank.setdefault(rank, RankTrace())  # one for all jobs
            for trace_row in _read_trace_rows(path):
                _add_trace_row(trace, job_index, trace_row)
    return dict(sorted(trace_by_rank.items()))


def _add_trace_row(trace: RankTrace, job_index: int, trace_row: Mapping[str, Any]) -> None:
    """Add one line of a rank's trace file to the rank's trace. ``job_index``: of the job that wrote it, from
    0.

    A line is written at the start of a job ("entered": digests of the generators), after a step ("samples"),
    at a checkpoint ("digests" of the state), or at the end ("closing": digests of the state). "drawn" names
    the generators that random numbers were drawn from since the line before.
    """
    drawn_generators = trace_row.get("drawn", ())
    trace.drawn_generator_names.update(drawn_generators)
    trace.generator_names.update(trace_row.get("entered", ()), drawn_generators)  # random generators
    # The state at the end has all components; those of global generators have names of this form.
    trace.generator_names.update(
        component for component in trace_row.get("closing", ()) if component.startswith("smlaunch.rng.")
    )
    if "entered" in trace_row:  # only the first job's counts: a later one resumes
        trace.initial_digest_by_generator = trace.initial_digest_by_generator or trace_row["entered"]
    elif "samples" in trace_row:
        loss = repr(trace_row["loss"]) if "loss" in trace_row else None  # as text, so that nan equals nan
        trace.steps.append(
            TracedStep(
                job_index=job_index,
                step=trace_row["step"],
                sample_numbers=tuple(trace_row["samples"]),
                loss=loss,
            )
        )
    elif "closing" in trace_row:
        trace.states.append(TracedState(trace_row["step"], trace_row["closing"], is_final=True))
    elif "digests" in trace_row:
        trace.states.append(TracedState(trace_row["step"], trace_row["digests"], is_final=False))


def last_traced_step(trace_folder: Path, job_name: str) -> int:
    """Return the last step of a job's first rank; 0 before any."""
    try:
        with (trace_folder / f"{job_name}-rank0.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read()
    except FileNotFoundError:
        return 0
    return max((int(step) for step in _STEP.findall(tail)), default=0)


def _read_trace_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_text("ascii").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the process was killed while it wrote its last line
        yield row
