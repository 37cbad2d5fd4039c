"""Where shards go, and what is kept there while a pack goes on."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Protocol

from smlaunch.data.shard_index import INDEX, SHARDS, ShardIndex, ShardRecord, index_json, read_index
from smlaunch.data.tar_shards import Shard, is_whole
from smlaunch.errors import JobError, Problem

WORK = ".pack/"
"""Records of finished shards, until the index says it all."""

_OURS = re.compile(r"shard-[0-9]{5,}\.tar")

UNFINISHED = "holds a pack that was not finished; --resume goes on with it"
FINISHED = "holds a finished pack; --resume checks that it is the same, or pack to another place"
FOREIGN = "holds {name}, which is no shard of ours; pack to an empty place"


def is_shard(name: str) -> bool:
    """Whether a name, relative to the place, is one that a pack gives."""
    return name.startswith(SHARDS) and _OURS.fullmatch(name[len(SHARDS) :]) is not None


class Place(Protocol):
    """Where shards go: empty, or with what an earlier pack has left there."""

    def open(self, resume: bool) -> AbstractContextManager[object]:
        """Refuses, by JobError, a place that holds anything else, or in which another pack is at work."""

    def index(self) -> ShardIndex | None:
        """The index of a finished pack."""

    def clear(self, names: set[str]) -> None:
        """Deletes shards of an earlier plan that are not called one of these names."""

    def kept(self, shard: Shard, fingerprint: str) -> str | None:
        """The checksum of a shard that is there and whole; None when it has to be written."""

    def holds(self, record: ShardRecord) -> bool:
        """Whether a shard is there with these bytes."""

    def room(self, shard: Shard) -> Path:
        """A path that does not exist, for a writer to write to."""

    def take(self, shard: Shard, written: Path, checksum: str, fingerprint: str) -> None:
        """Publishes the shard, then its record."""

    def finish(self, index: ShardIndex) -> None:
        """Publishes the index; nothing else of the work is left."""


def record_key(shard: Shard) -> str:
    return WORK + shard.name[len(SHARDS) :] + ".json"


def record_of(shard: Shard, checksum: str, fingerprint: str) -> bytes:
    row = {"name": shard.name, "bytes": shard.size, "checksum": checksum, "files": fingerprint}
    return json.dumps(row).encode()


def recorded(content: bytes | None, shard: Shard, fingerprint: str) -> str | None:
    """The checksum in a record, when it is one of this very shard."""
    if content is None:
        return None
    try:
        row = json.loads(content)
    except ValueError:
        return None
    wanted = {"name": shard.name, "bytes": shard.size, "files": fingerprint}
    if not isinstance(row, dict) or {**row, **wanted} != row:
        return None
    return str(row.get("checksum"))


def refuse(message: str) -> JobError:
    return JobError([Problem("DST", message)])


class FolderPlace:
    """A directory. A shard is written beside its place and renamed: what is there under its name is whole."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._work = root / WORK

    @contextmanager
    def open(self, resume: bool) -> Iterator[None]:
        work = self._work.exists()
        if not resume and (self._root / INDEX).exists():
            raise refuse(f"{self._root} {FINISHED}")
        if not resume and work:
            raise refuse(f"{self._root} {UNFINISHED}")
        shards = self._root / SHARDS
        there = sorted(path.name for path in shards.iterdir()) if shards.exists() else []
        ours = work or (self._root / INDEX).exists()
        foreign = [name for name in there if not ours or not is_shard(SHARDS + name)]
        if foreign:
            raise refuse(f"{shards} " + FOREIGN.format(name=foreign[0]))
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            shards.mkdir(exist_ok=True)
        except OSError as error:
            raise refuse(f"{self._root} cannot be written to: {error.strerror}") from error
        lock = os.open(self._work, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise refuse(f"another pack is at work in {self._root}") from None
            # What a killed pack was writing. Its processes may be at it still: into files without a name.
            for left in self._work.glob("writing-*"):
                shutil.rmtree(left)
            self._rooms = Path(mkdtemp(prefix="writing-", dir=self._work))
            try:
                yield
            finally:
                if self._rooms.exists():
                    shutil.rmtree(self._rooms)
        finally:
            os.close(lock)

    def index(self) -> ShardIndex | None:
        try:
            content = (self._root / INDEX).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return read_index(content)
        except ValueError as error:
            raise refuse(f"{self._root / INDEX}: {error}") from None

    def clear(self, names: set[str]) -> None:
        for path in (self._root / SHARDS).iterdir():
            if SHARDS + path.name not in names:
                path.unlink()

    def kept(self, shard: Shard, fingerprint: str) -> str | None:
        record = self._root / record_key(shard)
        checksum = recorded(record.read_bytes() if record.exists() else None, shard, fingerprint)
        whole = checksum is not None and is_whole(self._root / shard.name, checksum, shard.size)
        return checksum if whole else None

    def holds(self, record: ShardRecord) -> bool:
        return is_whole(self._root / record.name, record.checksum, record.bytes)

    def room(self, shard: Shard) -> Path:
        return self._rooms / shard.name[len(SHARDS) :]

    def take(self, shard: Shard, written: Path, checksum: str, fingerprint: str) -> None:
        written.replace(self._root / shard.name)
        record = self._root / record_key(shard)
        self._publish(record, record_of(shard, checksum, fingerprint))

    def finish(self, index: ShardIndex) -> None:
        self._publish(self._root / INDEX, index_json(index))
        shutil.rmtree(self._work)

    def _publish(self, path: Path, content: bytes) -> None:
        beside = self._rooms / path.name
        beside.write_bytes(content)
        beside.replace(path)
