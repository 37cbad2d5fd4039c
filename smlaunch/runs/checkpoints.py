"""A run's checkpoints in S3: list, verify and delete them.

``contract.checkpoint`` defines the layout of the directory. Reading it needs one listing and a few small
files; only ``verify_hashes`` downloads parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any, NamedTuple

from smlaunch.aws.interfaces import CallError, ObjectStorage
from smlaunch.aws.retry import call_with_retries
from smlaunch.contract import checkpoint as checkpoint_format
from smlaunch.contract.checkpoint import Manifest, Shard
from smlaunch.contract.outcome import OUTCOME_PATH_PREFIX, SegmentOutcome, find_newest_outcome
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import JobError, Problem

_PARALLEL_DOWNLOADS = 4
"""A stream from S3 carries 50 to 100 MB/s and a core hashes 1.8 GB/s: a few streams fill most networks."""


class CheckpointStep(NamedTuple):
    """A step directory in S3."""

    step: int
    size_bytes: int
    """Sum of all its files."""
    manifest: Manifest | None
    """Content of COMMIT; None without a readable one."""
    problems: tuple[str, ...]
    """Reasons why a reader rejects the step; empty for a complete one."""

    @property
    def is_committed(self) -> bool:
        """Whether a readable COMMIT exists, even if parts are missing."""
        return self.manifest is not None

    @property
    def is_complete(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the checkpoint as a member of the command's JSON output."""
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

    def complete_manifests(self) -> list[Manifest]:
        """Return the manifests of steps whose files have the right names and sizes, newest first."""
        return list(checkpoint_format.iter_committed(self._list_sizes(), self._read_file))

    def list_steps(self) -> list[CheckpointStep]:
        """Return all step directories, newest first, complete or not."""
        files = self._list_sizes()
        return [self._inspect_step(step, files) for step in sorted(_steps_in_paths(files), reverse=True)]

    def read_outcome(self, run: str | None = None) -> SegmentOutcome | None:
        """Return how the newest attempt with an outcome file ended; None without one.

        ``run`` limits the search to one run; None reads any run's.
        """
        return find_newest_outcome(self._list_sizes(OUTCOME_PATH_PREFIX), self._read_file, run)

    def verify_hashes(
        self, step: CheckpointStep, on_bytes: Callable[[int], None] | None = None
    ) -> tuple[str, ...]:
        """Download every part of a committed step and compare its hash.

        Returns the problems as sentences; empty when a reader would accept the step. ``on_bytes`` receives
        the number of bytes read, from several threads.
        """
        if step.problems or step.manifest is None:
            return step.problems
        cancelled = Event()
        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
            try:
                verify_part = partial(self._verify_part, step.step, cancelled, on_bytes or _ignore_bytes)
                return tuple(problem for problem in pool.map(verify_part, step.manifest.shards) if problem)
            finally:
                cancelled.set()

    def keep_newest(self, count: int) -> list[int]:
        """Delete the steps older than the newest ``count`` complete ones, and return the deleted steps.

        Only the driver of a run may call this, while none of its jobs runs.
        """
        manifests = self.complete_manifests()
        return self.delete_older_than(manifests[count - 1].step) if len(manifests) >= count > 0 else []

    def delete_older_than(self, step: int) -> list[int]:
        """Delete all steps before this one, and return them.

        Raises LookupError when the step itself is not complete.
        """
        files = self._list_sizes()
        if all(
            manifest.step != step for manifest in checkpoint_format.iter_committed(files, self._read_file)
        ):
            raise LookupError(f"{self.uri}: step {step} is not complete, so nothing before it is deleted")
        old_paths = sorted(
            path
            for path in files
            if (path_step := checkpoint_format.parse_step_path(path)) is not None and path_step < step
        )
        # COMMIT goes first, so that no reader takes a step with missing parts.
        commit_paths = [path for path in old_paths if checkpoint_format.is_commit(path.rpartition("/")[2])]
        for paths in (commit_paths, [path for path in old_paths if path not in set(commit_paths)]):
            if paths:
                keys = [self.prefix + path for path in paths]
                call_with_retries(partial(self._storage.delete, self.bucket, keys))
        return sorted(_steps_in_paths(old_paths))

    def _verify_part(
        self, step: int, cancelled: Event, on_bytes: Callable[[int], None], part: Shard
    ) -> str | None:
        """Return what is wrong with one file of a checkpoint, by its SHA-256; None if nothing is."""
        try:
            digest = call_with_retries(partial(self._hash_part, step, cancelled, on_bytes, part))
        except CallError as error:
            if error.code not in ("NoSuchKey", "404"):
                raise
            return f"{part.name}: deleted during verification"
        return None if digest == part.sha256 else f"{part.name}: its content is not what the manifest says"

    def _hash_part(self, step: int, cancelled: Event, on_bytes: Callable[[int], None], part: Shard) -> str:
        digest = hashlib.sha256()
        key = f"{self.prefix}{checkpoint_format.step_directory(step)}/{part.name}"
        for chunk in self._storage.chunks(self.bucket, key):
            if cancelled.is_set():  # another part could not be read
                break
            digest.update(chunk)
            on_bytes(len(chunk))
        return digest.hexdigest()

    def _inspect_step(self, step: int, size_by_path: Mapping[str, int]) -> CheckpointStep:
        directory = checkpoint_format.step_directory(step) + "/"
        step_files = {path: size for path, size in size_by_path.items() if path.startswith(directory)}
        manifest = checkpoint_format.find_manifest(step, step_files, self._read_file)
        if manifest is not None:
            problems = tuple(checkpoint_format.shard_problems(manifest, step_files))
        elif any(checkpoint_format.is_commit(path[len(directory) :]) for path in step_files):
            problems = ("its manifest is missing or torn",)
        else:
            problems = ("not committed",)
        return CheckpointStep(step, sum(step_files.values()), manifest, problems)

    def _list_sizes(self, path_prefix: str = "") -> dict[str, int]:
        """Return the size of each file by its path below the prefix. ``path_prefix`` limits the paths."""
        try:
            stored_objects = call_with_retries(
                lambda: list(self._storage.list(self.bucket, self.prefix + path_prefix))
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
