"""Facts of the checkpoint prefix that a job names: how large it is, and which runs have written to it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from smlaunch.aws.interfaces import CallError, ObjectStorage
from smlaunch.contract.checkpoint_layout import is_smlaunch_path, parse_commit_path, parse_step_path
from smlaunch.contract.formats import FormatError
from smlaunch.contract.run_names import parse_shard_number
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.contract.segment_outcome import FINISHED, find_newest_outcome, runs_with_outcomes
from smlaunch.discovery.input_facts import MAX_LISTED_OBJECTS
from smlaunch.facts.discovered_facts import CheckpointedRun, CheckpointFacts
from smlaunch.job.model import Job

_MAX_RUNS_READ = 16
"""Runs whose outcomes are read, a request or two each. Whether others have finished is not known."""

_SHARD_FOLDER = re.compile(r"p[0-9]+/")
"""Folder of a shard's checkpoints below the prefix of a sharded run."""


def gather_checkpoint_facts(job: Job, storage: ObjectStorage) -> CheckpointFacts | None:
    """Return what the S3 prefix that the job names for checkpoints contains. None where the job names no
    prefix or it cannot be listed. At most MAX_LISTED_OBJECTS files are counted."""
    address = split_s3_uri((job.checkpoints and job.checkpoints.uri) or "")
    if address is None:
        return None
    bucket, prefix = address
    folder_prefix = prefix.rstrip("/") + "/"
    try:
        size_by_path = {
            stored.key[len(folder_prefix) :]: stored.size
            for stored in islice(storage.list_objects(bucket, folder_prefix), MAX_LISTED_OBJECTS)
        }
        runs = tuple(sorted(_find_runs(bucket, folder_prefix, list(size_by_path), storage)))
    except CallError:
        return None
    bytes_by_step: dict[int, int] = defaultdict(int)
    for path, size in size_by_path.items():
        step = parse_step_path(path)  # None for a file that belongs to no step
        if step is not None:
            bytes_by_step[step] += size
    newest_step = max(bytes_by_step, default=None)
    return CheckpointFacts(
        total_bytes=sum(size_by_path.values()),
        step_bytes=None if newest_step is None else bytes_by_step[newest_step],
        runs=runs,
    )


def _find_runs(
    bucket: str, prefix: str, paths: list[str], storage: ObjectStorage
) -> Iterator[CheckpointedRun]:
    """Yield the runs that have left checkpoints (committed steps, or the script's own files and an outcome)
    among ``paths``, relative to the prefix; of a sharded run what its first shard there shows, whose
    checkpoints are in a folder of the prefix."""
    first_shard_folder = min(
        (match[0] for path in paths if (match := _SHARD_FOLDER.match(path))), key=_natural_order, default=None
    )
    for folder in ("",) if first_shard_folder is None else ("", first_shard_folder):
        paths_in_folder = [path[len(folder) :] for path in paths if path.startswith(folder)]
        commits = [commit for path in paths_in_folder if (commit := parse_commit_path(path)) is not None]
        newest_step_by_run = {run: step for step, run in sorted(commits)}
        run_names = sorted(newest_step_by_run)
        if any(not is_smlaunch_path(path) for path in paths_in_folder):
            # The script's own files, which no run's name is in: of any run that has left an outcome there.
            run_names = sorted({*runs_with_outcomes(paths_in_folder), *newest_step_by_run})
        for number, run in enumerate(run_names):
            is_known = number < _MAX_RUNS_READ
            has_finished = is_known and _has_finished(bucket, prefix + folder, paths_in_folder, run, storage)
            whole_run = run
            if folder and parse_shard_number(run.rpartition("-p")[0], run) is not None:
                whole_run = run.rpartition("-p")[0]
            yield CheckpointedRun(whole_run, newest_step_by_run.get(run), has_finished, bool(folder))


def _natural_order(folder: str) -> tuple[int, str]:
    return len(folder), folder


def _has_finished(bucket: str, prefix: str, paths: list[str], run: str, storage: ObjectStorage) -> bool:
    """Return whether the newest outcome of the run says so. False for an outcome that this release cannot
    read."""

    def read_file(path: str) -> bytes:
        content = storage.get_bytes(bucket, prefix + path)
        if content is None:
            raise FileNotFoundError(path)
        return content

    try:
        outcome = find_newest_outcome(paths, read_file, run)
    except FormatError:
        return False
    return outcome is not None and outcome.result == FINISHED
