"""A run's checkpoints as they lie in S3: what there is, whether it is whole, and what may go.

The directory's order is ``protocol.checkpoint``'s. All that is asked of a prefix is one listing and the few
small files in it; parts are downloaded by ``verify`` only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.ports import CallError, ObjectStorage
from smlaunch.protocol import checkpoint as protocol
from smlaunch.protocol.addresses import split_s3
from smlaunch.protocol.checkpoint import Manifest, Outcome, Part
from smlaunch.runs.retry import retrying

_AT_ONCE = 4
"""A stream from S3 carries 50 to 100 MB/s, a core hashes 1.8 GB/s: a few streams fill most networks."""


class Step(NamedTuple):
    """A step directory. ``size``: bytes of all its files. ``problems``: why a reader does not take it; none
    for a whole one. ``manifest``: what COMMIT says, None when it says nothing."""

    step: int
    size: int
    manifest: Manifest | None
    problems: tuple[str, ...]

    @property
    def committed(self) -> bool:
        """Somebody has said that it is complete, true or not."""
        return self.manifest is not None

    @property
    def whole(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        manifest = self.manifest
        return {
            "step": self.step,
            "size": self.size,
            "committed": self.committed,
            "whole": self.whole,
            "world_size": manifest.world_size if manifest else None,
            "samples": manifest.samples if manifest else None,
            "job": manifest.job if manifest else None,
            "problems": list(self.problems),
        }


class Checkpoints:
    """``uri``: ``s3://bucket/prefix``. Every method looks anew, and raises CallError when S3 refuses; a
    bucket that does not exist has no checkpoints."""

    def __init__(self, uri: str, storage: ObjectStorage) -> None:
        """Raises JobError for an address that is none."""
        found = split_s3(uri)
        if found is None:
            raise JobError([Problem("checkpoints", f"{uri!r} is no place in S3: s3://bucket/prefix/")])
        self.bucket, prefix = found
        self.prefix = prefix.rstrip("/") + "/" if prefix.strip("/") else ""
        self._storage = storage

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def committed(self) -> list[Manifest]:
        """Steps that are whole as far as names and sizes tell, newest first."""
        return list(protocol.committed(self._files(), self._read))

    def steps(self) -> list[Step]:
        """All step directories, newest first, whole or not."""
        files = self._files()
        return [self._step(step, files) for step in sorted(_steps_of(files), reverse=True)]

    def outcome(self) -> Outcome | None:
        """How the run's last segment ended; None when nobody has said."""
        content = retrying(lambda: self._storage.get_bytes(self.bucket, self.prefix + protocol.OUTCOME))
        return None if content is None else protocol.parse_outcome(content)

    def verify(self, step: Step, on_bytes: Callable[[int], None] | None = None) -> tuple[str, ...]:
        """Downloads every part of a committed step and compares its hash. What is wrong, in sentences; none
        when a reader would take it. ``on_bytes`` hears how much has been read, from several threads.
        """
        if step.problems or step.manifest is None:
            return step.problems
        leaving = Event()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                check = partial(self._check, step.step, leaving, on_bytes or _unheard)
                return tuple(problem for problem in pool.map(check, step.manifest.parts) if problem)
            finally:
                leaving.set()

    def retain(self, keep: int) -> list[int]:
        """Deletes what is older than the newest ``keep`` whole steps; the steps that are gone. For whoever
        drives a run, while none of its jobs is running."""
        whole = self.committed()
        return self.delete_older_than(whole[keep - 1].step) if len(whole) >= keep > 0 else []

    def delete_older_than(self, step: int) -> list[int]:
        """Deletes all steps before this one, which must be whole itself; the steps that are gone.

        Raises LookupError when it is not: nothing older is given up for it.
        """
        files = self._files()
        if all(manifest.step != step for manifest in protocol.committed(files, self._read)):
            raise LookupError(f"{self.uri}: step {step} is not whole, so nothing before it is deleted")
        old = sorted(path for path in files if (found := _step_of(path)) is not None and found < step)
        # COMMIT first: what is taken apart has stopped to count before anything of it is missing.
        commits = [path for path in old if path.endswith("/" + protocol.COMMIT)]
        for paths in (commits, [path for path in old if path not in set(commits)]):
            if paths:
                keys = [self.prefix + path for path in paths]
                retrying(partial(self._storage.delete, self.bucket, keys))
        return sorted(_steps_of(old))

    def _check(self, step: int, leaving: Event, on_bytes: Callable[[int], None], part: Part) -> str | None:
        try:
            digest = retrying(partial(self._hash, step, leaving, on_bytes, part))
        except CallError as error:
            if error.code not in ("NoSuchKey", "404"):
                raise
            return f"{part.name}: deleted while it was looked at"
        return None if digest == part.sha256 else f"{part.name}: its content is not what the manifest says"

    def _hash(self, step: int, leaving: Event, on_bytes: Callable[[int], None], part: Part) -> str:
        digest = hashlib.sha256()
        key = f"{self.prefix}{protocol.step_directory(step)}/{part.name}"
        for chunk in self._storage.chunks(self.bucket, key):
            if leaving.is_set():  # another part could not be read: nobody waits for this one
                break
            digest.update(chunk)
            on_bytes(len(chunk))
        return digest.hexdigest()

    def _step(self, step: int, files: Mapping[str, int]) -> Step:
        directory = protocol.step_directory(step) + "/"
        own = {path: size for path, size in files.items() if path.startswith(directory)}
        manifest = protocol.manifest_of(step, own, self._read)
        if manifest is not None:
            problems = tuple(_missing(manifest, own))
        elif directory + protocol.COMMIT in own:
            problems = ("its manifest is missing or torn",)
        else:
            problems = ("not committed",)
        return Step(step, sum(own.values()), manifest, problems)

    def _files(self) -> dict[str, int]:
        """Paths below the prefix with their sizes."""
        try:
            rows = retrying(lambda: list(self._storage.list(self.bucket, self.prefix)))
        except CallError as error:
            if error.code != "NoSuchBucket":
                raise
            return {}
        return {row.key[len(self.prefix) :]: row.size for row in rows}

    def _read(self, path: str) -> bytes:
        content = retrying(lambda: self._storage.get_bytes(self.bucket, self.prefix + path))
        if content is None:  # deleted since it was listed
            raise KeyError(path)
        return content


def _missing(manifest: Manifest, files: Mapping[str, int]) -> Iterator[str]:
    for part in manifest.parts:
        size = files.get(f"{protocol.step_directory(manifest.step)}/{part.name}")
        if size is None:
            yield f"{part.name}: missing"
        elif size != part.size:
            yield f"{part.name}: {size:,} bytes of {part.size:,}"


def _steps_of(paths: Mapping[str, int] | list[str]) -> set[int]:
    return {step for path in paths if (step := _step_of(path)) is not None}


def _step_of(path: str) -> int | None:
    directory, slash, _ = path.partition("/")
    return protocol.parse_step(directory) if slash else None


def _unheard(count: int) -> None:
    """Nobody wants to know how much has been read."""
