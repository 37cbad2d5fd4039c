"""A run's checkpoints in S3: list, verify and delete them.

``contract.checkpoint_layout`` defines the layout of the directory. Reading it needs one listing and a few
small files; only ``verify_hashes`` downloads parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from typing import Any, NamedTuple

from smlaunch.aws.interfaces import CallError, ObjectStorage
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract import checkpoint_layout as checkpoint_format
from smlaunch.contract.checkpoint_layout import Manifest, Shard
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.contract.segment_outcome import (
    OUTCOME_PATH_PREFIX,
    SegmentOutcome,
    find_newest_outcome,
    outcome_paths_of_run,
)
from smlaunch.errors import JobError, Problem

_PARALLEL_DOWNLOADS = 4
"""A stream from S3 carries 50 to 100 MB/s and a core hashes 1.8 GB/s: a few streams fill most networks."""


class CheckpointStep(NamedTuple):
    """A step directory in S3."""

    step: int
    size_bytes: int
    """Sum of all its files."""
    is_committed: bool
    """Whether a COMMIT file exists, even if it cannot be read or parts are missing."""
    manifest: Manifest | None
    """The files of a committed step; None if it cannot be read."""
    problems: tuple[str, ...]
    """Reasons why a reader rejects the step; empty for a complete one."""

    @property
    def is_complete(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return one step's checkpoint as a member of the JSON output of ``smlaunch checkpoints``. Its keys
        are a fixed format. The manifest lists the checkpoint's files, and is written when all are complete;
        values from it are None where there is none (not committed). A checkpoint is whole if all these files
        are there."""
        manifest = self.manifest
        return {
            "step": self.step,
            "size": self.size_bytes,
            "committed": self.is_committed,
            "whole": self.is_complete,
            "world_size": manifest.world_size if manifest else None,
            "samples": manifest.samples if manifest else None,
            "job": manifest.job if manifest else None,
            "problems": list(self.problems),
        }


class RunCheckpoints:
    """The checkpoints below one S3 prefix.

    Every method reads S3 again, and raises CallError when S3 refuses. A bucket that does not exist has no
    checkpoints.
    """

    def __init__(self, uri: str, storage: ObjectStorage) -> None:
        """Raises JobError when ``uri`` is not of the form ``s3://bucket/prefix``."""
        bucket_and_prefix = split_s3_uri(uri)
        if bucket_and_prefix is None:
            raise JobError(
                [Problem("checkpoints", f"{uri!r} is not an S3 address such as s3://bucket/prefix/")]
            )
        self.bucket, prefix = bucket_and_prefix
        self.prefix = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
        self._storage = storage

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def read_complete_manifests(self) -> list[Manifest]:
        """Return the manifests of steps whose files have the right names and sizes, newest first."""
        return list(checkpoint_format.iter_committed(self._list_size_by_path(), self._read_file))

    def list_steps(self) -> list[CheckpointStep]:
        """Return all step directories, newest first, complete or not."""
        files = self._list_size_by_path()
        return [self._inspect_step(step, files) for step in sorted(_steps_in_paths(files), reverse=True)]

    def read_outcome(self, run: str | None = None, job_hash: str | None = None) -> SegmentOutcome | None:
        """Return how the newest attempt with an outcome file ended; None without one.

        ``run`` limits the search to one run, and ``job_hash`` to one job; None reads any.
        """
        outcome_files = self._list_size_by_path(OUTCOME_PATH_PREFIX)
        return find_newest_outcome(outcome_files, self._read_file, run, job_hash)

    def list_outcome_keys(self, run: str) -> list[str]:
        """Return the keys of the outcome files of a run."""
        paths = outcome_paths_of_run(self._list_size_by_path(OUTCOME_PATH_PREFIX), run)
        return [self.prefix + path for path in paths]

    def verify_hashes(
        self, step: CheckpointStep, on_bytes: Callable[[int], None] | None = None
    ) -> tuple[str, ...]:
        """Download every file of a committed checkpoint, and compare its SHA-256 with the manifest's.

        Returns the problems as sentences; empty when a reader would accept the checkpoint. ``on_bytes``
        receives the number of bytes read, from several threads.
        """
        if step.problems or step.manifest is None:
            return step.problems
        from concurrent.futures import ThreadPoolExecutor  # launches read outcomes by this module

        cancelled = Event()
        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
            try:
                find_problem = partial(
                    self._find_shard_problem, step.step, cancelled, on_bytes or _ignore_bytes
                )
                problems = pool.map(find_problem, step.manifest.shards)
                return tuple(problem for problem in problems if problem is not None)
            finally:
                cancelled.set()  # after an error, the other downloads end at their next chunk

    def delete_all_but_newest(self, count: int) -> list[int]:
        """Delete the steps older than the newest ``count`` complete ones, and return the deleted steps.

        Only the driver of a run may call this, while none of its jobs runs.
        """
        manifests = self.read_complete_manifests()
        return self.delete_older_than(manifests[count - 1].step) if len(manifests) >= count > 0 else []

    def delete_older_than(self, oldest_kept_step: int) -> list[int]:
        """Delete the checkpoints of all earlier steps from S3, and return the deleted steps.

        A checkpoint counts only with a COMMIT file, which lists all others. Raises LookupError when
        ``oldest_kept_step`` itself has no complete checkpoint, and CallError.
        """
        size_by_path = self._list_size_by_path()
        # A manifest is the content of a COMMIT file.
        complete_manifests = checkpoint_format.iter_committed(size_by_path, self._read_file)
        if all(manifest.step != oldest_kept_step for manifest in complete_manifests):
            raise LookupError(
                f"{self.uri}: step {oldest_kept_step} is not complete, so nothing before it is deleted"
            )
        commit_paths: list[str] = []
        other_paths: list[str] = []
        for path in sorted(size_by_path):
            step = checkpoint_format.parse_step_path(path)  # None for a file that belongs to no step
            if step is None or step >= oldest_kept_step:
                continue
            file_name = path.rpartition("/")[2]
            if checkpoint_format.is_commit(file_name):
                commit_paths.append(path)
            else:
                other_paths.append(path)
        # COMMIT files go first, so that no reader takes a step with missing parts.
        for paths in (commit_paths, other_paths):
            if paths:
                keys = [self.prefix + path for path in paths]
                call_with_retries(partial(self._storage.delete_objects, self.bucket, keys))
        return sorted(_steps_in_paths([*commit_paths, *other_paths]))

    def _find_shard_problem(
        self, step: int, cancelled: Event, on_bytes: Callable[[int], None], shard: Shard
    ) -> str | None:
        """Download a shard, one file of a checkpoint, and return what is wrong with its content; None if
        nothing is. ``cancelled``: when set, the download ends early. ``on_bytes`` receives the size of each
        piece that was read."""
        try:
            sha256 = call_with_retries(partial(self._sha256_of_shard, step, cancelled, on_bytes, shard))
        except CallError as error:
            if error.code not in ("NoSuchKey", "404"):
                raise
            return f"{shard.name}: deleted during verification"
        return None if sha256 == shard.sha256 else f"{shard.name}: its content is not what the manifest says"

    def _sha256_of_shard(
        self, step: int, cancelled: Event, on_bytes: Callable[[int], None], shard: Shard
    ) -> str:
        """Download a shard and return its hash. ``cancelled`` ends the download early; ``on_bytes`` receives
        the size of each chunk."""
        digest = hashlib.sha256()
        key = f"{self.prefix}{checkpoint_format.step_directory(step)}/{shard.name}"
        for chunk in self._storage.read_chunks(self.bucket, key):
            if cancelled.is_set():  # another shard could not be read
                break
            digest.update(chunk)
            on_bytes(len(chunk))
        return digest.hexdigest()

    def _inspect_step(self, step: int, size_by_path: Mapping[str, int]) -> CheckpointStep:
        """Return the checkpoint of a step with its problems. ``size_by_path``: all files under the prefix of
        the checkpoints."""
        directory = checkpoint_format.step_directory(step) + "/"
        step_files = {path: size for path, size in size_by_path.items() if path.startswith(directory)}
        is_committed = any(checkpoint_format.is_commit(path[len(directory) :]) for path in step_files)
        manifest = checkpoint_format.find_manifest(step, step_files, self._read_file)
        if manifest is not None:
            problems = tuple(checkpoint_format.find_shard_problems(manifest, step_files))
        else:
            problems = ("its manifest is missing or torn" if is_committed else "not committed",)
        return CheckpointStep(step, sum(step_files.values()), is_committed, manifest, problems)

    def _list_size_by_path(self, path_prefix: str = "") -> dict[str, int]:
        """Return the size of each file by its path below the prefix. ``path_prefix`` limits the paths."""
        try:
            stored_objects = call_with_retries(
                lambda: list(self._storage.list_objects(self.bucket, self.prefix + path_prefix))
            )
        except CallError as error:
            if error.code != "NoSuchBucket":
                raise
            return {}
        return {stored.key[len(self.prefix) :]: stored.size for stored in stored_objects}

    def _read_file(self, path: str) -> bytes:
        content = call_with_retries(lambda: self._storage.get_bytes(self.bucket, self.prefix + path))
        if content is None:  # deleted since it was listed
            raise KeyError(path)
        return content


def _steps_in_paths(paths: Mapping[str, int] | list[str]) -> set[int]:
    return {step for path in paths if (step := checkpoint_format.parse_step_path(path)) is not None}


def _ignore_bytes(count: int) -> None:
    """Ignore the number of bytes read."""
