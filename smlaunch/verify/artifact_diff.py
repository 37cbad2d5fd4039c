"""Compares the files of two runs' model and output archives, value by value. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from smlaunch.verify.archive_contents import OUTPUT_PREFIX, ArtifactFile
from smlaunch.verify.run_pair import RunDifference, RunPair, RunRecord


def has_equal_weights(pair: RunPair) -> bool:
    """Return whether any value that looks like weights is the same in the output files of both runs. Weights
    are many numbers, which are not equal by chance."""
    for file_name, baseline_file in pair.baseline.artifact_files.items():
        resumed_file = pair.resumed.artifact_files.get(file_name)
        if resumed_file is None:
            continue
        for value_path, digest in baseline_file.digest_by_value_path.items():
            if digest.is_weight_like and digest == resumed_file.digest_by_value_path.get(value_path):
                return True
    return False


def diff_artifact_files(pair: RunPair) -> tuple[list[RunDifference], dict[str, str]]:
    """Compare the files of both runs' model and output archives value by value (a tensor, for example).

    Returns the differences, and a note by file name for each log that the jobs of the resumed run have stored
    in pieces: such a log differs from the baseline's, but has the same lines.
    """
    differences: list[RunDifference] = []
    note_by_log_file: dict[str, str] = {}
    baseline_files = pair.baseline.artifact_files
    resumed_files = _files_of_all_jobs(pair.resumed)  # of a name that several jobs stored, the newest file
    for file_name in sorted({*baseline_files, *resumed_files}):
        if file_name not in baseline_files:
            differences.append(_make_whole_file_difference(file_name, resumed_files[file_name], "only"))
            continue
        if file_name not in resumed_files:
            differences.append(_make_whole_file_difference(file_name, baseline_files[file_name], "missing"))
            continue
        baseline_file, resumed_file = baseline_files[file_name], resumed_files[file_name]
        value_differences = list(_diff_file_values(file_name, baseline_file, resumed_file))
        # Logs are in the output archive; the model's has none.
        pieces_note = None
        if value_differences and _is_from_output_archive(file_name):
            pieces_note = _describe_log_in_pieces(file_name, baseline_file, pair.resumed)
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
