"""Compares two runs of one script: the first difference and its likely causes. Pure.

The comparison follows cause and effect: the samples of a step, then its loss, then the state that it leaves,
then the files made from it. The result says what was compared and what was not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.verify import causes
from smlaunch.verify.archive_contents import MODEL_PREFIX, OUTPUT_PREFIX
from smlaunch.verify.artifact_diff import diff_artifact_files, has_equal_weights
from smlaunch.verify.run_pair import RunDifference, RunPair, RunRecord
from smlaunch.verify.script_lint import LintFindings
from smlaunch.verify.state_diff import diff_component_states, is_unseeded_generator
from smlaunch.verify.step_diff import find_first_step_difference

_MAX_SHOWN_ITEMS = 8
_SAMPLE_ORDER_COMPONENT = "order"


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs, and why."""

    differences: tuple[RunDifference, ...] = ()
    """In the order of cause and effect."""
    causes: tuple[str, ...] = ()
    """Likely causes with advice."""
    seed_causes: tuple[str, ...] = ()
    """Those of the causes that exist without any cut, too."""
    compared_items: tuple[str, ...] = ()
    not_compared_items: tuple[str, ...] = ()
    has_compared_state: bool = False
    """State or weights were compared, and not only files beside them."""

    @property
    def is_identical(self) -> bool:
        return not self.differences

    @property
    def difference_texts(self) -> list[str]:
        return list(_difference_texts(self.differences))

    def to_dict(self) -> dict[str, Any]:
        return {
            "identical": self.is_identical,
            "differences": self.difference_texts,
            "causes": list(self.causes),
            "compared": list(self.compared_items),
            "not_compared": list(self.not_compared_items),
        }


def compare_runs(baseline_run: RunRecord, resumed_run: RunRecord, lint_findings: LintFindings) -> Comparison:
    """Compare a run that was interrupted on purpose and resumed with the baseline, an uninterrupted run of
    the same script: number of ranks, training steps, state of the components (model, optimizer, random
    generators ...) and output files.

    ``lint_findings``: calls in the script that may break an exact resume; they make the causes more precise.
    """
    pair = RunPair(baseline_run, resumed_run)
    step_difference = find_first_step_difference(pair, lint_findings)
    state_differences, unused_generators = diff_component_states(pair)
    # A generator without a seed starts differently in every run: no fault of the resume.
    unseeded_generators = [
        difference.name for difference in state_differences if is_unseeded_generator(difference.name, pair)
    ]
    seed_causes = tuple(
        causes.explain_missing_seed(generator, lint_findings) for generator in unseeded_generators
    )
    # A log that is only stored in pieces, one from each job, gets a note and is no difference.
    file_differences, note_by_log_file = diff_artifact_files(pair)
    differences: list[RunDifference] = []
    likely_causes: list[str] = []
    if set(baseline_run.trace_by_rank) != set(resumed_run.trace_by_rank):
        baseline_count, resumed_count = (len(run.trace_by_rank) for run in pair)
        description = f"{baseline_count} ranks trained unsplit, {resumed_count} when cut"
        differences.append(RunDifference("ranks", description=description))
        likely_causes.append(causes.RANK_COUNT_DIFFERS)
    if step_difference is not None:
        differences.append(step_difference.difference)
        likely_causes += step_difference.likely_causes
    # States follow from the steps, and files from the states: causes are sought for what differs first.
    if state_differences and not likely_causes:
        other_components = [
            difference.name for difference in state_differences if difference.name not in unseeded_generators
        ]
        likely_causes += causes.explain_state_differences(other_components, baseline_run.generator_names)
    differences += state_differences
    if file_differences and not differences:
        likely_causes += causes.explain_file_differences(baseline_run.component_names, lint_findings)
    differences += file_differences
    compared_items, not_compared_items = _list_compared_items(pair, {*unused_generators, *note_by_log_file})
    # Such a generator's state has no effect on the training.
    unused_generator_notes = (f"{name}: no random numbers were drawn from it" for name in unused_generators)
    # What the training computes: model, optimizer and so on.
    model_components = baseline_run.component_names - baseline_run.generator_names - {_SAMPLE_ORDER_COMPONENT}
    return Comparison(
        differences=tuple(differences),
        causes=(*likely_causes, *seed_causes),
        seed_causes=seed_causes,
        compared_items=compared_items,
        not_compared_items=(*not_compared_items, *unused_generator_notes, *note_by_log_file.values()),
        has_compared_state=bool(model_components) or has_equal_weights(pair),
    )


# ---- texts -----------------------------------------------------------------------------------------------


def _list_compared_items(
    pair: RunPair, names_with_own_note: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what of two runs was compared and what was not, as texts for the report.

    Ranks of a script with the Checkpointer of ``smlaunch.train`` trace their steps; only of these, samples,
    losses and states are known. ``names_with_own_note``: components and files that the report explains
    separately, and that are left out here.
    """
    compared: list[str] = []
    not_compared = ["samples, losses, state: the script does not use the Checkpointer of smlaunch.train"]
    if pair.baseline.has_step_traces:
        compared, not_compared = _list_compared_trace_items(pair, names_with_own_note)
    baseline_names, resumed_names = (set(run.artifact_files) for run in pair)
    compared += sorted((baseline_names & resumed_names) - set(names_with_own_note))
    for prefix in (MODEL_PREFIX, OUTPUT_PREFIX):  # "model/" and "output/data/", with which names begin
        if not any(file_name.startswith(prefix) for file_name in baseline_names | resumed_names):
            folder = prefix.removesuffix("/")
            not_compared.append(f"{folder}: no file in /opt/ml/{folder}")
    return tuple(compared), tuple(not_compared)


def _list_compared_trace_items(
    pair: RunPair, names_with_own_note: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return which of the samples, losses and final states in the ranks' step traces were compared between
    two runs, and which were not, as texts for the report.

    A component is what a checkpoint holds the state of, such as ``model``. ``names_with_own_note``:
    components that the report explains separately.
    """
    compared: list[str] = []
    not_compared: list[str] = []
    traces_by_rank = pair.traces_by_rank
    steps = [traced_step for traces in traces_by_rank.values() for traced_step in traces.baseline.steps]
    if any(traced_step.sample_numbers for traced_step in steps):
        compared.append(f"samples of {pair.baseline.last_step} steps")
    else:
        not_compared.append("samples: no ResumableOrder is passed to the Checkpointer as order=")
    if any(traced_step.loss is not None for traced_step in steps):
        compared.append(f"losses of {pair.baseline.last_step} steps")
    else:
        not_compared.append("losses: none is passed to step() as loss=")
    components: set[str] = set()
    ranks_without_state: list[int] = []
    for rank, traces in traces_by_rank.items():
        baseline_digests, resumed_digests = (trace.final_digest_by_component for trace in traces)
        if resumed_digests:
            components.update(baseline_digests)
        if not (baseline_digests and resumed_digests):
            ranks_without_state.append(rank)
    components -= set(names_with_own_note)
    if components:
        compared.append(f"final state: {', '.join(sorted(components))}")
    if ranks_without_state:
        ranks_text = ", ".join(map(str, ranks_without_state))
        not_compared.append(f"state of rank {ranks_text}: the script ended without closing the Checkpointer")
    return compared, not_compared


def _difference_texts(differences: Sequence[RunDifference]) -> Iterator[str]:
    """Yield the differences between two runs as sentences, in the order of cause and effect: a run that did
    not end, the number of ranks, and steps (one sentence each); the states of components such as the model
    (all in one); files (one for each)."""
    for difference in differences:
        if difference.kind in ("run", "ranks", "steps"):
            yield difference.description
    state_texts = [
        f"{difference.name} ({difference.description})" if difference.description else difference.name
        for difference in differences
        if difference.kind == "state"
    ]
    if state_texts:
        yield "final states that differ: " + ", ".join(state_texts)
    differences_by_file: dict[str, list[RunDifference]] = {}
    for difference in differences:
        if difference.kind == "file":
            differences_by_file.setdefault(difference.name, []).append(difference)
    for file_name, file_differences in differences_by_file.items():
        yield describe_file_difference(file_name, file_differences)


def describe_file_difference(file_name: str, differences: Sequence[RunDifference]) -> str:
    """Return one sentence about how a file in the resumed run's archives differs from that of the baseline.

    ``differences``: all differences of this file, at least one: either a single one of the whole file
    (``missing`` from the resumed run, or ``only`` there), or one for each differing value.
    """
    presence = differences[0].description  # empty for a file that both runs have
    if presence == "missing":
        return f"{file_name} is missing after cuts"
    if presence == "only":
        return f"{file_name} exists only after cuts"
    # A file that is one large value has neither a path of the value nor a text that could be shown.
    value_texts = [
        _describe_value_difference(difference)
        for difference in differences
        if difference.value_path or any(difference.short_value_texts)
    ]
    if not value_texts:
        return f"{file_name} differs"
    hidden_count = len(value_texts) - _MAX_SHOWN_ITEMS
    hidden_text = f" and {hidden_count} more" if hidden_count > 0 else ""
    return f"{file_name} differs in {', '.join(value_texts[:_MAX_SHOWN_ITEMS])}{hidden_text}"


def _describe_value_difference(difference: RunDifference) -> str:
    """Return where a value lies in its file, and both values where they are short enough."""
    value_path = escape_unprintable(difference.value_path)
    if not difference.short_value_texts or not all(difference.short_value_texts):
        return value_path
    baseline_text, resumed_text = difference.short_value_texts
    values = f"{resumed_text!r} in place of {baseline_text!r}"
    return f"{value_path} ({values})" if value_path else values


def escape_unprintable(name: str) -> str:
    """Return the name without terminal control characters, which a file's author could choose."""
    return name if name.isprintable() else ascii(name)
