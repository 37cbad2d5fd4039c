"""Compares the training steps of two runs: the first one that differs, and its likely causes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from smlaunch.verify import causes
from smlaunch.verify.run_pair import RunDifference, RunPair, TracePair
from smlaunch.verify.script_lint import LintFindings
from smlaunch.verify.step_traces import RankTrace, TracedStep

_MAX_SHOWN_SAMPLES = 8


class StepDifference(NamedTuple):
    """The first step that differs, with its likely causes."""

    difference: RunDifference
    likely_causes: tuple[str, ...]


class _StepMismatch(NamedTuple):
    """A step of one rank that is not the same in both runs. Sorts by step, then by rank."""

    step: int
    rank: int
    step_in_baseline: TracedStep | None
    """None for a step that only the resumed run has done."""
    step_in_resumed_run: TracedStep | None
    """None for a step that only the baseline has done."""


def find_first_step_difference(pair: RunPair, lint_findings: LintFindings) -> StepDifference | None:
    """Return the first step, over all ranks, whose samples or loss differ between the baseline (an
    uninterrupted run) and the resumed run, or that only one of them did; None if all steps agree.

    ``lint_findings``: what the script's text shows about its data loaders and random generators.
    """
    # Each has the step as both runs traced it (TracedStep); None for a run that did not do it.
    mismatches = [
        mismatch
        for rank, traces in pair.traces_by_rank.items()
        for mismatch in _iter_step_mismatches_of_rank(rank, traces)
    ]
    if not mismatches:
        return None
    step, rank, step_in_baseline, step_in_resumed_run = min(mismatches)
    if step_in_resumed_run is None:  # only the baseline did it
        return _make_step_difference(f"step {step} was skipped (rank {rank})", [causes.STEP_MISSING])
    if step_in_baseline is None:  # only the resumed run did it
        description = f"step {step} was done, and is not in the unsplit run (rank {rank})"
        return _make_step_difference(description, [causes.STEP_UNEXPECTED])
    # Both did it: whether samples or loss differ decides about the causes.
    trace = pair.resumed.trace_by_rank[rank]
    location = f"step {step} on rank {rank}, {_position_after_cut(trace, step_in_resumed_run)}"
    if step_in_resumed_run.sample_numbers != step_in_baseline.sample_numbers:
        description = (
            f"{location} used samples {_format_sample_numbers(step_in_resumed_run.sample_numbers)} "
            f"in place of {_format_sample_numbers(step_in_baseline.sample_numbers)}"
        )
        return _make_step_difference(description, [causes.explain_sample_order(lint_findings)])
    job_index = step_in_resumed_run.job_index
    is_first_after_cut = job_index > 0 and trace.first_step_of(job_index) == step
    component_names = pair.resumed.component_names | pair.baseline.component_names
    return _make_step_difference(
        f"{location} had loss {step_in_resumed_run.loss} in place of {step_in_baseline.loss}, with the same "
        "samples",
        causes.explain_loss_difference(is_first_after_cut, component_names, lint_findings),
    )


def _make_step_difference(description: str, likely_causes: Iterable[str]) -> StepDifference:
    return StepDifference(RunDifference("steps", description=description), tuple(likely_causes))


def _iter_step_mismatches_of_rank(rank: int, traces: TracePair) -> Iterator[_StepMismatch]:
    """Yield the first step of a rank that the resumed run did differently from the baseline (an uninterrupted
    run), and the first that it left out."""
    baseline_steps = {traced_step.step: traced_step for traced_step in traces.baseline.steps}
    for resumed_step in traces.resumed.steps:
        number, baseline_step = resumed_step.step, baseline_steps.get(resumed_step.step)
        is_equal_step = (
            baseline_step is not None
            and resumed_step.sample_numbers == baseline_step.sample_numbers
            and resumed_step.loss == baseline_step.loss
        )
        if not is_equal_step:
            yield _StepMismatch(
                number, rank, step_in_baseline=baseline_step, step_in_resumed_run=resumed_step
            )
            break
    missing_numbers = baseline_steps.keys() - {resumed_step.step for resumed_step in traces.resumed.steps}
    if missing_numbers:
        number = min(missing_numbers)
        yield _StepMismatch(number, rank, step_in_baseline=baseline_steps[number], step_in_resumed_run=None)


def _position_after_cut(trace: RankTrace, traced_step: TracedStep) -> str:
    """Return where a rank's step lies relative to the last deliberate interruption (cut) before it, for a
    message. Each job of the run but the first one begins after a cut."""
    first_step_of_job = trace.first_step_of(traced_step.job_index)
    if traced_step.job_index == 0 or first_step_of_job is None:
        return "before any cut"
    if first_step_of_job == traced_step.step:
        return f"the first one after cut {traced_step.job_index}"
    steps_after_first = traced_step.step - first_step_of_job
    return f"{steps_after_first} after the first one that followed cut {traced_step.job_index}"


def _format_sample_numbers(samples: tuple[int, ...]) -> str:
    first_samples = ", ".join(map(str, samples[:_MAX_SHOWN_SAMPLES]))
    return f"[{first_samples}{', ...' if len(samples) > _MAX_SHOWN_SAMPLES else ''}]"
