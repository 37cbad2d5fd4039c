"""Compares two runs of one script: the first difference and its likely causes. Pure.

The comparison follows cause and effect: the samples of a step, then its loss, then the state that it leaves,
then the files made from it. The result says what was compared and what was not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from smlaunch.verify import causes
from smlaunch.verify.archive_contents import MODEL_PREFIX, OUTPUT_PREFIX, ArtifactFile, ArtifactFiles
from smlaunch.verify.script_lint import LintFindings
from smlaunch.verify.step_traces import RankTrace, TracedStep

_MAX_SHOWN_ITEMS = 8
_SAMPLE_ORDER_COMPONENT = "order"


@dataclass(frozen=True)
class RunRecord:
    """One run as it happened."""

    job_names: tuple[str, ...]
    trace_by_rank: Mapping[int, RankTrace]
    artifact_files: ArtifactFiles = field(default_factory=dict)
    """Files of the last job."""
    artifact_files_of_earlier_jobs: tuple[ArtifactFiles | None, ...] = ()
    """Files of each earlier job; None for a failed job, whose output the service does not store."""

    @property
    def last_step(self) -> int:
        return max((rank_trace.last_step for rank_trace in self.trace_by_rank.values()), default=0)

    @property
    def has_step_traces(self) -> bool:
        return bool(self.trace_by_rank)


class RunDifference(NamedTuple):
    """One difference between the baseline and the resumed run. ``kind`` "run": the resumed run did not reach
    its end."""

    kind: Literal["run", "ranks", "steps", "state", "file"]
    name: str = ""
    """Name of a component or a file."""
    value_path: str = ""
    """Path of the value among the values that the file holds, such as ``layers.0.weight``."""
    description: str = ""
    """How it differs, for a message; of a whole file ``missing`` from the resumed run, or ``only`` there."""
    is_weight_like: bool = True
    """The value is as large as weights are."""
    short_value_texts: tuple[str, ...] = ()
    """The value in the unsplit and in the resumed run, as text; an empty text for a long or missing one."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.name, self.value_path


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
    differences: list[RunDifference] = []
    likely_causes: list[str] = []
    rank_count_difference = _diff_rank_counts(baseline_run, resumed_run)
    if rank_count_difference is not None:
        differences.append(rank_count_difference)
        likely_causes.append(causes.RANK_COUNT_DIFFERS)
    step_difference = _find_first_step_difference(baseline_run, resumed_run, lint_findings)
    if step_difference is not None:
        differences.append(step_difference.difference)
        likely_causes += step_difference.likely_causes
    random_generators = _traced_generator_names(baseline_run)  # a part of the components' names
    state_differences, unused_generators = _diff_component_states(baseline_run, resumed_run)
    # A generator without a seed starts differently in every run: no fault of the resume.
    unseeded_generators = [
        difference.name
        for difference in state_differences
        if _is_unseeded_generator(difference.name, baseline_run, resumed_run)
    ]
    seed_causes = tuple(
        causes.explain_missing_seed(generator, lint_findings) for generator in unseeded_generators
    )
    differences += state_differences
    # Each level follows from the one before: a cause is sought for the first level that differs.
    if state_differences and not likely_causes:
        other_components = [
            difference.name for difference in state_differences if difference.name not in unseeded_generators
        ]
        likely_causes += causes.explain_state_differences(other_components, random_generators)
    # A log that is only stored in pieces, one from each job, gets a note and is no difference.
    file_differences, note_by_log_file = _diff_artifact_files(baseline_run, resumed_run)
    component_names = _traced_component_names(baseline_run)
    if file_differences and not differences:
        likely_causes += causes.explain_file_differences(component_names, lint_findings)
    differences += file_differences
    compared_items, not_compared_items = _list_compared_items(
        baseline_run, resumed_run, {*unused_generators, *note_by_log_file}
    )
    # Such a generator's state has no effect on the training.
    unused_generator_notes = (f"{name}: no random numbers were drawn from it" for name in unused_generators)
    # The rest is what the training computes: model, optimizer and so on.
    model_components = component_names - random_generators - {_SAMPLE_ORDER_COMPONENT}
    return Comparison(
        differences=tuple(differences),
        causes=(*likely_causes, *seed_causes),
        seed_causes=seed_causes,
        compared_items=compared_items,
        not_compared_items=(*not_compared_items, *unused_generator_notes, *note_by_log_file.values()),
        has_compared_state=bool(model_components) or _has_equal_weights(baseline_run, resumed_run),
    )


def _diff_rank_counts(baseline_run: RunRecord, resumed_run: RunRecord) -> RunDifference | None:
    """Return the difference if other ranks have traced their steps than in the baseline; None otherwise."""
    if set(baseline_run.trace_by_rank) == set(resumed_run.trace_by_rank):
        return None
    baseline_count, resumed_count = len(baseline_run.trace_by_rank), len(resumed_run.trace_by_rank)
    return RunDifference(
        "ranks", description=f"{baseline_count} ranks trained unsplit, {resumed_count} when cut"
    )


def _traced_generator_names(run: RunRecord) -> set[str]:
    """Return the names of the random number generators whose state the ranks traced at the start."""
    return {name for trace in run.trace_by_rank.values() for name in trace.initial_digest_by_generator}


def _has_equal_weights(baseline_run: RunRecord, resumed_run: RunRecord) -> bool:
    """Return whether any value that looks like weights (many numbers) is the same in the output files of both
    runs."""
    for file_name, file in baseline_run.artifact_files.items():
        resumed_file = resumed_run.artifact_files.get(file_name)
        if resumed_file is None:
            continue
        for value_path, digest in file.digest_by_value_path.items():
            # Many numbers, which are not equal by chance.
            if digest.is_weight_like and digest == resumed_file.digest_by_value_path.get(value_path):
                return True
    return False


# ---- steps -----------------------------------------------------------------------------------------------


class _StepMismatch(NamedTuple):
    """A step of one rank that is not the same in both runs. Sorts by step, then by rank."""

    step: int
    rank: int
    step_in_baseline: TracedStep | None
    """None for a step that only the resumed run has done."""
    step_in_resumed_run: TracedStep | None
    """None for a step that only the baseline has done."""


class _StepDifference(NamedTuple):
    """The difference that a mismatch of steps amounts to, with its likely causes."""

    difference: RunDifference
    likely_causes: Sequence[str]


def _find_first_step_difference(
    baseline_run: RunRecord, resumed_run: RunRecord, lint_findings: LintFindings
) -> _StepDifference | None:
    """Return the first step, over all ranks, whose samples or loss differ between the baseline (an
    uninterrupted run) and the resumed run, or that only one of them did; None if all steps agree.

    ``lint_findings``: what the script's text shows about its data loaders and random generators.
    """
    # Each has the step as both runs traced it (TracedStep); None for a run that did not do it.
    mismatches: list[_StepMismatch] = []
    for rank in sorted(set(baseline_run.trace_by_rank) & set(resumed_run.trace_by_rank)):
        mismatches += _iter_step_mismatches_of_rank(
            rank, baseline_run.trace_by_rank[rank].steps, resumed_run.trace_by_rank[rank].steps
        )
    if not mismatches:
        return None
    first = min(mismatches, key=lambda mismatch: (mismatch.step, mismatch.rank))
    if first.step_in_resumed_run is None:  # only the baseline did it
        description = f"step {first.step} was skipped (rank {first.rank})"
        return _StepDifference(RunDifference("steps", description=description), [causes.STEP_MISSING])
    if first.step_in_baseline is None:  # only the resumed run did it
        description = f"step {first.step} was done, and is not in the unsplit run (rank {first.rank})"
        return _StepDifference(RunDifference("steps", description=description), [causes.STEP_UNEXPECTED])
    # Both did it: whether samples or loss differ decides about the causes.
    return _describe_unequal_step(
        first.rank,
        first.step_in_baseline,
        first.step_in_resumed_run,
        baseline_run,
        resumed_run,
        lint_findings,
    )


def _iter_step_mismatches_of_rank(
    rank: int, baseline_steps: Sequence[TracedStep], resumed_steps: Sequence[TracedStep]
) -> Iterator[_StepMismatch]:
    """Yield the first step of a rank that the resumed run did differently from the baseline (an uninterrupted
    run), and the first that it left out. Both sequences are the rank's steps as it traced them."""
    baseline_by_step = {traced.step: traced for traced in baseline_steps}
    for resumed in resumed_steps:
        baseline = baseline_by_step.get(resumed.step)
        is_equal_step = (
            baseline is not None
            and resumed.sample_numbers == baseline.sample_numbers
            and resumed.loss == baseline.loss
        )
        if not is_equal_step:
            yield _StepMismatch(resumed.step, rank, step_in_baseline=baseline, step_in_resumed_run=resumed)
            break
    missing_steps = set(baseline_by_step) - {resumed.step for resumed in resumed_steps}
    if missing_steps:
        first_missing = min(missing_steps)
        yield _StepMismatch(
            first_missing, rank, step_in_baseline=baseline_by_step[first_missing], step_in_resumed_run=None
        )


def _describe_unequal_step(
    rank: int,
    baseline_step: TracedStep,
    resumed_step: TracedStep,
    baseline_run: RunRecord,
    resumed_run: RunRecord,
    lint_findings: LintFindings,
) -> _StepDifference:
    """Return the difference of a step that both runs did, by its samples or else by its loss."""
    trace = resumed_run.trace_by_rank[rank]
    location = f"step {resumed_step.step} on rank {rank}, {_position_after_cut(trace, resumed_step)}"
    if resumed_step.sample_numbers != baseline_step.sample_numbers:
        description = (
            f"{location} used samples {_format_sample_numbers(resumed_step.sample_numbers)} "
            f"in place of {_format_sample_numbers(baseline_step.sample_numbers)}"
        )
        return _StepDifference(
            RunDifference("steps", description=description), [causes.explain_sample_order(lint_findings)]
        )
    description = (
        f"{location} had loss {resumed_step.loss} in place of {baseline_step.loss}, with the same samples"
    )
    is_first_after_cut = (
        resumed_step.job_index > 0 and trace.first_step_of(resumed_step.job_index) == resumed_step.step
    )
    component_names = _traced_component_names(resumed_run) | _traced_component_names(baseline_run)
    return _StepDifference(
        RunDifference("steps", description=description),
        list(causes.explain_loss_difference(is_first_after_cut, component_names, lint_findings)),
    )


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


# ---- state -----------------------------------------------------------------------------------------------


def _traced_component_names(record: RunRecord) -> set[str]:
    """Return the names of the components whose state the ranks have traced."""
    return {name for rank in record.trace_by_rank.values() for name in rank.final_digest_by_component}


def _diff_component_states(
    baseline_run: RunRecord, resumed_run: RunRecord
) -> tuple[list[RunDifference], list[str]]:
    """Compare the state of each component (model, optimizer, random generator ...) between two runs: at the
    end, and where both runs took a checkpoint after the same step.

    Returns the differences, and the generators that differ only because they are unseeded and unused.
    """
    ranks_by_final_component: dict[str, list[int]] = {}  # of components that differ at the end
    step_by_checkpoint_component: dict[str, int] = {}  # of components that differ at a checkpoint
    unused_generators: set[str] = set()
    for rank in sorted(set(baseline_run.trace_by_rank) & set(resumed_run.trace_by_rank)):
        baseline_trace, resumed_trace = baseline_run.trace_by_rank[rank], resumed_run.trace_by_rank[rank]
        differing_at_end = _components_differing_at_end(baseline_trace, resumed_trace)  # names
        step_by_component = _first_differing_checkpoint_step_by_component(baseline_trace, resumed_trace)
        # A generator that neither run has drawn from has no effect on the training.
        unused_on_rank = {
            component
            for component in (*differing_at_end, *step_by_component)
            if _is_unused_generator(component, baseline_trace)
            and _is_unused_generator(component, resumed_trace)
        }
        unused_generators |= unused_on_rank
        for component in differing_at_end:
            if component not in unused_on_rank:
                ranks_by_final_component.setdefault(component, []).append(rank)
        for component, step in step_by_component.items():
            if component not in unused_on_rank:
                step_by_checkpoint_component.setdefault(component, step)
    differences: list[RunDifference] = []
    for component, ranks in ranks_by_final_component.items():
        is_on_all_ranks = len(ranks) == len(baseline_run.trace_by_rank)
        description = "" if is_on_all_ranks else f"rank {_join_numbers(ranks)}"
        differences.append(RunDifference(kind="state", name=component, description=description))
    for component, step in step_by_checkpoint_component.items():
        if component not in ranks_by_final_component:
            description = f"after step {step}, but not at the end"
            differences.append(RunDifference(kind="state", name=component, description=description))
    return differences, sorted(unused_generators)


def _components_differing_at_end(baseline_trace: RankTrace, resumed_trace: RankTrace) -> list[str]:
    """Return the components whose final state on a rank differs; none if a run did not trace that state."""
    baseline_digests = baseline_trace.final_digest_by_component
    resumed_digests = resumed_trace.final_digest_by_component
    if not baseline_digests or not resumed_digests:
        return []
    return _differing_components(baseline_digests, resumed_digests)


def _first_differing_checkpoint_step_by_component(
    baseline_trace: RankTrace, resumed_trace: RankTrace
) -> dict[str, int]:
    """Return the step of the first checkpoint, of those that both runs took, in which the state of a
    component on a rank differs, by component."""
    baseline_digests_by_step = {
        state.step: state.digest_by_component for state in baseline_trace.states if not state.is_final
    }
    step_by_component: dict[str, int] = {}
    # In the order in which they were traced, so that the first one counts. A final state is no checkpoint's.
    for state in resumed_trace.states:
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


def _is_unseeded_generator(name: str, baseline_run: RunRecord, resumed_run: RunRecord) -> bool:
    """Return whether the generator started in another state although no cut had been made."""
    return any(
        name in baseline_run.trace_by_rank[rank].initial_digest_by_generator
        and baseline_run.trace_by_rank[rank].initial_digest_by_generator[name]
        != resumed_run.trace_by_rank[rank].initial_digest_by_generator.get(name)
        for rank in set(baseline_run.trace_by_rank) & set(resumed_run.trace_by_rank)
    )


# ---- files -----------------------------------------------------------------------------------------------


def _diff_artifact_files(
    baseline_run: RunRecord, resumed_run: RunRecord
) -> tuple[list[RunDifference], dict[str, str]]:
    """Compare the files of both runs' model and output archives value by value (a tensor, for example).

    Returns the differences, and a note by file name for each log that the jobs of the resumed run have stored
    in pieces: such a log differs from the baseline's, but has the same lines.
    """
    differences: list[RunDifference] = []
    note_by_log_file: dict[str, str] = {}
    resumed_files = _files_of_all_jobs(resumed_run)  # of a name that several jobs stored, the newest file
    for file_name in sorted(set(baseline_run.artifact_files) | set(resumed_files)):
        baseline_file = baseline_run.artifact_files.get(file_name)
        resumed_file = resumed_files.get(file_name)
        if baseline_file is None and resumed_file is not None:
            differences.append(_make_whole_file_difference(file_name, resumed_file, "only"))  # there only
        if baseline_file is not None and resumed_file is None:
            differences.append(_make_whole_file_difference(file_name, baseline_file, "missing"))
        if baseline_file is None or resumed_file is None:
            continue
        value_differences = list(_diff_file_values(file_name, baseline_file, resumed_file))
        # Logs are in the output archive; the model's has none.
        pieces_note = None
        if value_differences and _is_from_output_archive(file_name):
            pieces_note = _describe_log_in_pieces(file_name, baseline_file, resumed_run)
        if pieces_note is not None:
            note_by_log_file[file_name] = pieces_note
        else:
            differences += value_differences
    return differences, note_by_log_file


def _files_of_all_jobs(run: RunRecord) -> dict[str, ArtifactFile]:
    """Return the files of a run's archives by name. Of its earlier jobs only the output counts: their model
    is an unfinished one. The newest job's file replaces earlier ones of the same name."""
    file_by_name: dict[str, ArtifactFile] = {}
    for files_of_earlier_job in run.artifact_files_of_earlier_jobs:
        output_files = {
            file_name: file
            for file_name, file in (files_of_earlier_job or {}).items()  # None for a failed job
            if _is_from_output_archive(file_name)
        }
        file_by_name.update(output_files)
    file_by_name.update(run.artifact_files)
    return file_by_name


def _make_whole_file_difference(
    file_name: str, file: ArtifactFile, description: Literal["missing", "only"]
) -> RunDifference:
    is_weight_like = any(digest.is_weight_like for digest in file.digest_by_value_path.values())
    return RunDifference("file", file_name, description=description, is_weight_like=is_weight_like)


def _diff_file_values(
    file_name: str, baseline_file: ArtifactFile, resumed_file: ArtifactFile
) -> Iterator[RunDifference]:
    """Yield a difference for each value of a file that is not the same in the baseline (an uninterrupted run)
    and the resumed run, or is in one of them only. A value is a tensor in a file of weights, or a number in a
    JSON file, for example; its digest is a hash, with the text of a short value and whether it is as large as
    weights are."""
    value_paths = {*baseline_file.digest_by_value_path, *resumed_file.digest_by_value_path}
    for value_path in sorted(value_paths):
        baseline_digest = baseline_file.digest_by_value_path.get(value_path)
        resumed_digest = resumed_file.digest_by_value_path.get(value_path)
        if baseline_digest == resumed_digest:
            continue
        digests = (baseline_digest, resumed_digest)
        yield RunDifference(
            kind="file",
            name=file_name,
            value_path=value_path,
            is_weight_like=any(digest is not None and digest.is_weight_like for digest in digests),
            short_value_texts=tuple("" if digest is None else digest.short_value_text for digest in digests),
        )


def _is_from_output_archive(name: str) -> bool:
    return name.startswith(OUTPUT_PREFIX)


def _describe_log_in_pieces(
    file_name: str, baseline_file: ArtifactFile, resumed_run: RunRecord
) -> str | None:
    """Return a note if the pieces of a log, one from each job of the resumed run, together have the lines of
    the baseline's log; None otherwise.

    Each job begins with an empty output/data and has an archive of its own, so that a log that grows during
    the training is stored in pieces.
    """
    if baseline_file.log_lines is None or not resumed_run.artifact_files_of_earlier_jobs:
        return None
    pieces: list[tuple[str, ...]] = []  # the lines that each job has stored
    for files in (*resumed_run.artifact_files_of_earlier_jobs, resumed_run.artifact_files):
        file = None if files is None else files.get(file_name)
        if file is not None:
            pieces.append(file.log_lines or ())
    expected_lines = set(baseline_file.log_lines)
    lines_of_pieces: set[str] = set()
    for piece_number, lines in enumerate(pieces, 1):
        is_last_piece = piece_number == len(pieces)
        if lines and not is_last_piece and lines[-1] not in expected_lines:
            lines = lines[:-1]  # a stopped job may have left its last line incomplete
        lines_of_pieces.update(lines)
    unexpected_lines = lines_of_pieces - expected_lines
    if not lines_of_pieces or unexpected_lines:
        return None
    if lines_of_pieces == expected_lines:
        return f"{file_name} as one file: it is in pieces, which together have the lines of the unsplit run"
    if None in resumed_run.artifact_files_of_earlier_jobs:  # a failed job, which explains missing lines
        lost_lines = "the lines of failed jobs, whose output the service does not store"
        return f"{file_name}: {lost_lines}; the others agree"
    return None


# ---- texts -----------------------------------------------------------------------------------------------


def _list_compared_items(
    baseline_run: RunRecord, resumed_run: RunRecord, names_with_own_note: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what of two runs was compared and what was not, as texts for the report.

    Ranks of a script with the Checkpointer of ``smlaunch.train`` trace their steps; only of these, samples,
    losses and states are known. ``names_with_own_note``: components and files that the report explains
    separately, and that are left out here.
    """
    compared: list[str] = []
    not_compared: list[str] = []
    if baseline_run.has_step_traces:
        compared, not_compared = _list_compared_trace_items(baseline_run, resumed_run, names_with_own_note)
    else:
        not_compared.append(
            "samples, losses, state: the script does not use the Checkpointer of smlaunch.train"
        )
    common_files = set(baseline_run.artifact_files) & set(resumed_run.artifact_files)
    compared += sorted(common_files - set(names_with_own_note))
    file_names = {*baseline_run.artifact_files, *resumed_run.artifact_files}
    for prefix in (MODEL_PREFIX, OUTPUT_PREFIX):  # "model/" and "output/data/", with which names begin
        if not any(file_name.startswith(prefix) for file_name in file_names):
            folder = prefix.removesuffix("/")
            not_compared.append(f"{folder}: no file in /opt/ml/{folder}")
    return tuple(compared), tuple(not_compared)


def _list_compared_trace_items(
    baseline_run: RunRecord, resumed_run: RunRecord, names_with_own_note: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return which of the samples, losses and final states in the ranks' step traces were compared between
    two runs, and which were not, as texts for the report.

    A component is what a checkpoint holds the state of, such as ``model``. ``names_with_own_note``:
    components that the report explains separately.
    """
    compared: list[str] = []
    not_compared: list[str] = []
    common_ranks = sorted(set(baseline_run.trace_by_rank) & set(resumed_run.trace_by_rank))
    steps = [traced_step for rank in common_ranks for traced_step in baseline_run.trace_by_rank[rank].steps]
    if any(traced_step.sample_numbers for traced_step in steps):
        compared.append(f"samples of {baseline_run.last_step} steps")
    else:
        not_compared.append("samples: no ResumableOrder is passed to the Checkpointer as order=")
    if any(traced_step.loss is not None for traced_step in steps):
        compared.append(f"losses of {baseline_run.last_step} steps")
    else:
        not_compared.append("losses: none is passed to step() as loss=")
    components: set[str] = set()
    ranks_without_state: list[int] = []
    for rank in common_ranks:
        baseline_digests = baseline_run.trace_by_rank[rank].final_digest_by_component
        if resumed_run.trace_by_rank[rank].final_digest_by_component:
            components.update(baseline_digests)
        if not (baseline_digests and resumed_run.trace_by_rank[rank].final_digest_by_component):
            ranks_without_state.append(rank)
    components -= set(names_with_own_note)
    if components:
        compared.append(f"final state: {', '.join(sorted(components))}")
    if ranks_without_state:
        not_compared.append(
            f"state of rank {_join_numbers(ranks_without_state)}: the script ended without closing the "
            "Checkpointer"
        )
    return compared, not_compared


def _difference_texts(differences: Sequence[RunDifference]) -> Iterator[str]:
    """Yield the differences between two runs as sentences, in the order of cause and effect: steps, states of
    components (model, optimizer ...), files. The differing values of one file are one sentence, and so are
    all differing states."""
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


def _join_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _format_sample_numbers(samples: tuple[int, ...]) -> str:
    first_samples = ", ".join(map(str, samples[:_MAX_SHOWN_ITEMS]))
    return f"[{first_samples}{', ...' if len(samples) > _MAX_SHOWN_ITEMS else ''}]"
