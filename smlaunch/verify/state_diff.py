"""Compares the state of components (model, optimizer, random generators ...) between two runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.verify.run_pair import RunDifference, RunPair, TracePair
from smlaunch.verify.step_traces import RankTrace


def diff_component_states(pair: RunPair) -> tuple[list[RunDifference], list[str]]:
    """Compare the state of each component (model, optimizer, random generator ...) between two runs: at the
    end, and where both runs took a checkpoint after the same step.

    Returns the differences, and the generators that differ only because they are unseeded and unused.
    """
    ranks_differing_at_end: dict[str, list[int]] = {}  # by component
    first_differing_step: dict[str, int] = {}  # of a checkpoint, by component
    unused_generators: set[str] = set()
    for rank, traces in pair.traces_by_rank.items():
        components_differing_at_end = _components_differing_at_end(traces)
        differing_step_by_component = _find_first_differing_checkpoints(traces)
        # A generator that neither run has drawn from has no effect on the training.
        unused_on_rank = {
            component
            for component in (*components_differing_at_end, *differing_step_by_component)
            if all(_is_unused_generator(component, trace) for trace in traces)
        }
        unused_generators |= unused_on_rank
        for component in components_differing_at_end:
            if component not in unused_on_rank:
                ranks_differing_at_end.setdefault(component, []).append(rank)
        for component, step in differing_step_by_component.items():
            if component not in unused_on_rank:
                first_differing_step.setdefault(component, step)
    differences: list[RunDifference] = []
    for component, ranks in ranks_differing_at_end.items():
        is_on_all_ranks = len(ranks) == len(pair.baseline.trace_by_rank)
        description = "" if is_on_all_ranks else f"rank {', '.join(map(str, ranks))}"
        differences.append(RunDifference(kind="state", name=component, description=description))
    for component, step in first_differing_step.items():
        if component not in ranks_differing_at_end:
            description = f"after step {step}, but not at the end"
            differences.append(RunDifference(kind="state", name=component, description=description))
    return differences, sorted(unused_generators)


def is_unseeded_generator(name: str, pair: RunPair) -> bool:
    """Return whether the generator started in another state although no cut had been made."""
    return any(
        name in baseline.initial_digest_by_generator
        and baseline.initial_digest_by_generator[name] != resumed.initial_digest_by_generator.get(name)
        for baseline, resumed in pair.traces_by_rank.values()
    )


def _components_differing_at_end(traces: TracePair) -> list[str]:
    """Return the components whose final state on a rank differs; none if a run did not trace that state."""
    baseline_digests, resumed_digests = (trace.final_digest_by_component for trace in traces)
    if not baseline_digests or not resumed_digests:
        return []
    return _differing_components(baseline_digests, resumed_digests)


def _find_first_differing_checkpoints(traces: TracePair) -> dict[str, int]:
    """Return, for each component whose state on a rank differs in a checkpoint that both runs took after the
    same step, the first such step."""
    baseline_digests_by_step = {
        state.step: state.digest_by_component for state in traces.baseline.states if not state.is_final
    }
    step_by_component: dict[str, int] = {}
    # In the order in which they were traced, so that the first one counts. A final state is no checkpoint's.
    for state in traces.resumed.states:
        if state.is_final or state.step not in baseline_digests_by_step:
            continue
        baseline_digests = baseline_digests_by_step[state.step]
        for component in _differing_components(baseline_digests, state.digest_by_component):
            step_by_component.setdefault(component, state.step)
    return step_by_component


def _differing_components(
    baseline_digests: Mapping[str, str], resumed_digests: Mapping[str, str]
) -> list[str]:
    """Return the names of components whose SHA-256 differs, or that one of the mappings lacks, sorted."""
    return [
        component
        for component in sorted({*baseline_digests, *resumed_digests})
        if baseline_digests.get(component) != resumed_digests.get(component)
    ]


def _is_unused_generator(name: str, trace: RankTrace) -> bool:
    return name in trace.generator_names and name not in trace.drawn_generator_names
