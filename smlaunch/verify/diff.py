"""Compares two runs of one script: the first difference and its likely causes. Pure.

The comparison follows cause and effect: the samples of a step, then its loss, then the state that it leaves,
then the files made from it. The result says what was compared and what was not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from smlaunch.verify import causes
from smlaunch.verify.artifacts import MODEL_PREFIX, OUTPUT_PREFIX, ArtifactFile, ArtifactFiles
from smlaunch.verify.lint import LintFindings
from smlaunch.verify.step_traces import RankTrace, TracedStep

_MAX_SHOWN = 8
_ORDER = "order"


@dataclass(frozen=True)
class RunRecord:
    """One run as it happened."""

    jobs: tuple[str, ...]
    trace_by_rank: Mapping[int, RankTrace]
    files: ArtifactFiles = field(default_factory=dict)
    """Files of the last job."""
    earlier_files: tuple[ArtifactFiles | None, ...] = ()
    """Files of each earlier job; None for a failed job, whose output the service does not store."""

    @property
    def last_step(self) -> int:
        return max((rank.last_step for rank in self.trace_by_rank.values()), default=0)

    @property
    def is_traced(self) -> bool:
        return bool(self.trace_by_rank)


class RunDifference(NamedTuple):
    """One difference between two runs. ``kind`` "run": the second run did not reach its end."""

    kind: Literal["run", "ranks", "steps", "state", "file"]
    name: str = ""
    """Name of a component or a file."""
    value_path: str = ""
    """Path of the value among the values that the file holds, such as ``layers.0.weight``."""
    text: str = ""
    """How it differs, for a message; of a whole file ``missing`` from the resumed run, or ``only`` there."""
    is_bulk: bool = True
    """The value is as large as weights are."""
    short_texts: tuple[str, ...] = ()
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
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
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
            "compared": list(self.compared),
            "not_compared": list(self.not_compared),
        }


def compare_runs(unsplit_run: RunRecord, resumed_run: RunRecord, lint_findings: LintFindings) -> Comparison:
    """Compare a run that was cut and resumed with the unsplit run. ``lint_findings`` are those of the
    script's text."""
    differences: list[RunDifference] = []
    likely_causes: list[str] = []
    if set(unsplit_run.trace_by_rank) != set(resumed_run.trace_by_rank):
        text = (
            f"{len(unsplit_run.trace_by_rank)} ranks trained unsplit, {len(resumed_run.trace_by_rank)} "
            "when cut"
        )
        differences.append(RunDifference("ranks", text=text))
        likely_causes.append(causes.RANK_COUNT_DIFFERS)
    for step_difference, step_causes in _diff_steps(unsplit_run, resumed_run, lint_findings):
        differences.append(step_difference)
        likely_causes += step_causes
    generators = {
        name for rank in unsplit_run.trace_by_rank.values() for name in rank.initial_digest_by_generator
    }
    state_differences, unused_generators = _diff_states(unsplit_run, resumed_run)
    unseeded_names = [
        difference.name
        for difference in state_differences
        if _is_unseeded_generator(difference.name, unsplit_run, resumed_run)
    ]
    seed_causes = tuple(causes.explain_missing_seed(name, lint_findings) for name in unseeded_names)
    differences += state_differences
    if state_differences and not likely_causes:
        likely_causes += causes.explain_state_differences(
            [difference.name for difference in state_differences if difference.name not in unseeded_names],
            generators,
        )
    file_differences, log_notes = _diff_files(unsplit_run, resumed_run)
    if file_differences and not differences:
        likely_causes += causes.explain_file_differences(_traced_component_names(unsplit_run), lint_findings)
    differences += file_differences
    compared, not_compared = _compared_scope(unsplit_run, resumed_run, {*unused_generators, *log_notes})
    component_names = _traced_component_names(unsplit_run) - generators - {_ORDER}
    equal_weights = any(
        digest.is_bulk and digest == resumed_run.files[name].values.get(value_path)
        for name, file in unsplit_run.files.items()
        if name in resumed_run.files
        for value_path, digest in file.values.items()
    )
    return Comparison(
        tuple(differences),
        (*likely_causes, *seed_causes),
        seed_causes,
        compared,
        (
            *not_compared,
            *(f"{name}: no random numbers were drawn from it" for name in unused_generators),
            *log_notes.values(),
        ),
        has_compared_state=bool(component_names) or equal_weights,
    )


# ---- steps -----------------------------------------------------------------------------------------------


def _diff_steps(
    unsplit_run: RunRecord, resumed_run: RunRecord, lint_findings: LintFindings
) -> Iterator[tuple[RunDifference, Sequence[str]]]:
    """Yield the first step, over all ranks, whose samples or loss differ between the runs, with its likely
    causes; nothing if all steps agree.

    ``lint_findings``: what the script's text shows about its data loaders and random generators.
    """
    first_differences: list[tuple[int, int, TracedStep | None, TracedStep | None]] = []
    for rank in sorted(set(unsplit_run.trace_by_rank) & set(resumed_run.trace_by_rank)):
        expected_by_step = {step_row.step: step_row for step_row in unsplit_run.trace_by_rank[rank].steps}
        for step_row in resumed_run.trace_by_rank[rank].steps:
            expected_row = expected_by_step.get(step_row.step)
            if expected_row is None or (step_row.samples, step_row.loss) != (
                expected_row.samples,
                expected_row.loss,
            ):
                first_differences.append((step_row.step, rank, step_row, expected_row))
                break
        missing_step = min(
            set(expected_by_step) - {step_row.step for step_row in resumed_run.trace_by_rank[rank].steps},
            default=None,
        )
        if missing_step is not None:
            first_differences.append((missing_step, rank, None, expected_by_step[missing_step]))
    if not first_differences:
        return
    step, rank, resumed_row, expected_row = min(first_differences, key=lambda first: first[:2])
    if resumed_row is None:
        text = f"step {step} was skipped (rank {rank})"
        yield RunDifference("steps", text=text), [causes.STEP_MISSING]
        return
    if expected_row is None:
        text = f"step {step} was done, and is not in the unsplit run (rank {rank})"
        yield RunDifference("steps", text=text), [causes.STEP_UNEXPECTED]
        return
    is_first_after_cut = (
        resumed_row.job_index > 0
        and resumed_run.trace_by_rank[rank].first_step_of(resumed_row.job_index) == resumed_row.step
    )
    location = f"step {step} on rank {rank}, " + _position_after_cut(
        resumed_run.trace_by_rank[rank], resumed_row
    )
    if resumed_row.samples != expected_row.samples:
        used_samples, expected_samples = (
            _shorten_samples(resumed_row.samples),
            _shorten_samples(expected_row.samples),
        )
        text = f"{location} used samples {used_samples} in place of {expected_samples}"
        yield RunDifference("steps", text=text), [causes.explain_sample_order(lint_findings)]
        return
    text = f"{location} had loss {resumed_row.loss} in place of {expected_row.loss}, with the same samples"
    component_names = _traced_component_names(resumed_run) | _traced_component_names(unsplit_run)
    yield (
        RunDifference("steps", text=text),
        list(causes.explain_loss_difference(is_first_after_cut, component_names, lint_findings)),
    )


def _position_after_cut(trace: RankTrace, row: TracedStep) -> str:
    """Return where the step is relative to the last cut before it, for a message."""
    first_step = trace.first_step_of(row.job_index)
    if row.job_index == 0 or first_step is None:
        return "before any cut"
    if first_step == row.step:
        return f"the first one after cut {row.job_index}"
    return f"{row.step - first_step} after the first one that followed cut {row.job_index}"


# ---- state -----------------------------------------------------------------------------------------------


def _traced_component_names(record: RunRecord) -> set[str]:
    """Return the names of the components whose state the ranks have traced."""
    return {name for rank in record.trace_by_rank.values() for name in rank.final_digest_by_component}


def _diff_states(unsplit_run: RunRecord, resumed_run: RunRecord) -> tuple[list[RunDifference], list[str]]:
    """Compare the components' final states, and their states where both runs took a checkpoint after the same
    step.

    Returns the differences, and the generators that differ only because they are unseeded and unused.
    """
    ranks_by_final_component: dict[str, list[int]] = {}
    step_by_checkpoint_component: dict[str, int] = {}
    unused_generators: set[str] = set()
    for rank in sorted(set(unsplit_run.trace_by_rank) & set(resumed_run.trace_by_rank)):
        unsplit_trace, resumed_trace = unsplit_run.trace_by_rank[rank], resumed_run.trace_by_rank[rank]
        final = unsplit_trace.final_digest_by_component, resumed_trace.final_digest_by_component
        if all(final):
            for name in _differing_components(*final, unsplit_trace, resumed_trace, unused_generators):
                ranks_by_final_component.setdefault(name, []).append(rank)
        digests_by_step = {state.step: state.digests for state in unsplit_trace.states if not state.is_final}
        for state in resumed_trace.states:
            if not state.is_final and state.step in digests_by_step:
                states = digests_by_step[state.step], state.digests
                for name in _differing_components(*states, unsplit_trace, resumed_trace, unused_generators):
                    step_by_checkpoint_component.setdefault(name, state.step)
    differences = []
    for name, ranks in ranks_by_final_component.items():
        is_on_all_ranks = len(ranks) == len(unsplit_run.trace_by_rank)
        text = "" if is_on_all_ranks else f"rank {_join_numbers(ranks)}"
        differences.append(RunDifference("state", name, text=text))
    for name, step in step_by_checkpoint_component.items():
        if name not in ranks_by_final_component:
            differences.append(RunDifference("state", name, text=f"after step {step}, but not at the end"))
    return differences, sorted(unused_generators)


def _differing_components(
    unsplit_digests: Mapping[str, str],
    resumed_digests: Mapping[str, str],
    unsplit_trace: RankTrace,
    resumed_trace: RankTrace,
    unused_generators: set[str],
) -> Iterator[str]:
    """Yield the names of components that differ. Unused generators go to ``unused_generators`` instead."""
    for name in sorted({*unsplit_digests, *resumed_digests}):
        if unsplit_digests.get(name) == resumed_digests.get(name):
            continue
        if _is_unused_generator(name, unsplit_trace) and _is_unused_generator(name, resumed_trace):
            unused_generators.add(name)
        else:
            yield name


def _is_unused_generator(name: str, trace: RankTrace) -> bool:
    return name in trace.generators and name not in trace.drawn_generators


def _is_unseeded_generator(name: str, unsplit_run: RunRecord, resumed_run: RunRecord) -> bool:
    """Return whether the generator started in another state although no cut had been made."""
    return any(
        name in unsplit_run.trace_by_rank[rank].initial_digest_by_generator
        and unsplit_run.trace_by_rank[rank].initial_digest_by_generator[name]
        != resumed_run.trace_by_rank[rank].initial_digest_by_generator.get(name)
        for rank in set(unsplit_run.trace_by_rank) & set(resumed_run.trace_by_rank)
    )


# ---- files -----------------------------------------------------------------------------------------------


def _diff_files(unsplit_run: RunRecord, resumed_run: RunRecord) -> tuple[list[RunDifference], dict[str, str]]:
    """Compare files value by value: return the differences, and notes by file name about files that match
    only in part."""
    differences, notes = [], {}
    resumed_files = {
        name: file
        for files in resumed_run.earlier_files
        for name, file in (files or {}).items()
        if _is_output(name)
    }
    resumed_files.update(resumed_run.files)
    for name in sorted(set(unsplit_run.files) | set(resumed_files)):
        unsplit_file, resumed_file = unsplit_run.files.get(name), resumed_files.get(name)
        if unsplit_file is None or resumed_file is None:
            file = unsplit_file or resumed_file
            assert file is not None
            is_bulk = any(digest.is_bulk for digest in file.values.values())
            differences.append(
                RunDifference(
                    "file", name, text="missing" if resumed_file is None else "only", is_bulk=is_bulk
                )
            )
            continue
        value_differences = [
            RunDifference(
                "file",
                name,
                value_path,
                is_bulk=any(
                    digest.is_bulk for digest in (unsplit_value, resumed_value) if digest is not None
                ),
                short_texts=tuple(
                    digest.short_text if digest is not None else ""
                    for digest in (unsplit_value, resumed_value)
                ),
            )
            for value_path in sorted(set(unsplit_file.values) | set(resumed_file.values))
            if (unsplit_value := unsplit_file.values.get(value_path))
            != (resumed_value := resumed_file.values.get(value_path))
        ]
        pieces_note = (
            _explain_log_pieces(name, unsplit_file, resumed_run)
            if value_differences and _is_output(name)
            else None
        )
        if pieces_note is not None:
            notes[name] = pieces_note
        else:
            differences += value_differences
    return differences, notes


def _is_output(name: str) -> bool:
    return name.startswith(OUTPUT_PREFIX)


def _explain_log_pieces(name: str, unsplit_file: ArtifactFile, resumed_run: RunRecord) -> str | None:
    """Return a note if the pieces of a log together equal the unsplit run's log; else None.

    Each job begins with an empty output/data and has an archive of its own, so that a log that grows during
    the training is stored in pieces.
    """
    if unsplit_file.log_lines is None or not resumed_run.earlier_files:
        return None
    expected_lines, piece_lines = set(unsplit_file.log_lines), set[str]()
    files = [
        *(files.get(name) for files in resumed_run.earlier_files if files is not None),
        resumed_run.files.get(name),
    ]
    pieces = [file.log_lines or () for file in files if file is not None]
    for lines in pieces:
        # A stopped job may have left its last line incomplete.
        piece_lines.update(
            lines[:-1]
            if lines is not pieces[-1] and lines[-1:] and lines[-1] not in expected_lines
            else lines
        )
    if not piece_lines or piece_lines - expected_lines:
        return None
    if piece_lines == expected_lines:
        return f"{name} as one file: it is in pieces, which together have the lines of the unsplit run"
    if None in resumed_run.earlier_files:
        return f"{name}: the lines of failed jobs, whose output the service does not store; the others agree"
    return None


# ---- texts -----------------------------------------------------------------------------------------------


def _compared_scope(
    unsplit_run: RunRecord, resumed_run: RunRecord, handled_separately: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what was compared and what was not, as texts. ``handled_separately``: components and files with
    notes of their own."""
    compared: list[str] = []
    not_compared: list[str] = []
    common_ranks = sorted(set(unsplit_run.trace_by_rank) & set(resumed_run.trace_by_rank))
    steps = [row for rank in common_ranks for row in unsplit_run.trace_by_rank[rank].steps]
    if not unsplit_run.is_traced:
        not_compared.append(
            "samples, losses, state: the script does not use the Checkpointer of smlaunch.train"
        )
    else:
        step_count = f"of {unsplit_run.last_step} steps"
        if any(row.samples for row in steps):
            compared.append(f"samples {step_count}")
        else:
            not_compared.append("samples: no ResumableOrder is passed to the Checkpointer as order=")
        if any(row.loss is not None for row in steps):
            compared.append(f"losses {step_count}")
        else:
            not_compared.append("losses: none is passed to step() as loss=")
        state_names = {
            name
            for rank in common_ranks
            if resumed_run.trace_by_rank[rank].final_digest_by_component
            for name in unsplit_run.trace_by_rank[rank].final_digest_by_component
        }
        if state_names - set(handled_separately):
            compared.append(f"final state: {', '.join(sorted(state_names - set(handled_separately)))}")
        ranks_without_state = [
            rank
            for rank in common_ranks
            if not (
                unsplit_run.trace_by_rank[rank].final_digest_by_component
                and resumed_run.trace_by_rank[rank].final_digest_by_component
            )
        ]
        if ranks_without_state:
            not_compared.append(
                f"state of rank {_join_numbers(ranks_without_state)}: the script ended without closing the "
                "Checkpointer"
            )
    compared += sorted(set(unsplit_run.files) & set(resumed_run.files) - set(handled_separately))
    names = {*unsplit_run.files, *resumed_run.files}
    empty_folders = [
        prefix[:-1]
        for prefix in (MODEL_PREFIX, OUTPUT_PREFIX)
        if not any(name.startswith(prefix) for name in names)
    ]
    return tuple(compared), (
        *not_compared,
        *(f"{prefix}: no file in /opt/ml/{prefix}" for prefix in empty_folders),
    )


def _difference_texts(differences: Sequence[RunDifference]) -> Iterator[str]:
    """Yield one text per difference; those of one file, and those of the final state, are joined."""
    for difference in differences:
        if difference.kind in ("run", "ranks", "steps"):
            yield difference.text
    states = [
        f"{difference.name} ({difference.text})" if difference.text else difference.name
        for difference in differences
        if difference.kind == "state"
    ]
    if states:
        yield "final states that differ: " + ", ".join(states)
    differences_by_file: dict[str, list[RunDifference]] = {}
    for difference in differences:
        if difference.kind == "file":
            differences_by_file.setdefault(difference.name, []).append(difference)
    for name, file_differences in differences_by_file.items():
        yield describe_file_difference(name, file_differences)


def describe_file_difference(name: str, differences: Sequence[RunDifference]) -> str:
    """Return one sentence about how a file of the resumed run, by its ``name`` in the archives, differs from
    that of the unsplit run. ``differences``: all differences of this file, at least one."""
    first_difference = differences[0]
    if first_difference.text == "missing":
        return f"{name} is missing after cuts"
    if first_difference.text == "only":
        return f"{name} exists only after cuts"
    value_texts = [
        _describe_value(difference)
        for difference in differences
        if difference.value_path or any(difference.short_texts)
    ]
    hidden_text = f" and {len(value_texts) - _MAX_SHOWN} more" if len(value_texts) > _MAX_SHOWN else ""
    return f"{name} differs" + (
        f" in {', '.join(value_texts[:_MAX_SHOWN])}{hidden_text}" if value_texts else ""
    )


def _describe_value(difference: RunDifference) -> str:
    value_path = escape_unprintable(difference.value_path)
    values = (
        " in place of ".join(repr(value) for value in reversed(difference.short_texts))
        if all(difference.short_texts)
        else ""
    )
    return " ".join(filter(None, (value_path, f"({values})" if values and value_path else values)))


def escape_unprintable(name: str) -> str:
    """Return the name without terminal control characters, which a file's author could choose."""
    return name if name.isprintable() else ascii(name)


def _join_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _shorten_samples(samples: tuple[int, ...]) -> str:
    first_samples = ", ".join(map(str, samples[:_MAX_SHOWN]))
    return f"[{first_samples}{', ...' if len(samples) > _MAX_SHOWN else ''}]"
