"""Where shards are written, and the records kept there while a pack runs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Protocol

from smlaunch.data.shard_index import (
    INDEX_FILE,
    SHARDS_FOLDER,
    ShardIndex,
    ShardRecord,
    encode_index,
    parse_index,
)
from smlaunch.data.tar_shards import TarShard, is_intact
from smlaunch.errors import JobError, Problem

WORK_FOLDER = ".pack/"
"""Records of finished shards, until the index replaces them."""

LOCK_WAIT_SECONDS = 5.0
"""How long a resumed pack waits for the lock. A worker process that a killed pack was just starting holds the
lock until its exec."""

_SHARD_NAME = re.compile(r"shard-[0-9]{5,}\.tar")

UNFINISHED_MESSAGE = "holds an unfinished pack; continue it with --resume"
FINISHED_MESSAGE = "holds a finished pack; check it with --resume, or choose another destination"
FOREIGN_FILE_MESSAGE = "holds {name}, which is not a shard of a pack; choose an empty destination"


def is_shard(name: str) -> bool:
    """Return whether a name, relative to the destination, is one that a pack uses."""
    return name.startswith(SHARDS_FOLDER) and _SHARD_NAME.fullmatch(name[len(SHARDS_FOLDER) :]) is not None


class PackDestination(Protocol):
    """Where shards are written: empty, or with the results of an earlier pack."""

    def open(self, resume: bool) -> AbstractContextManager[object]:
        """Lock the destination. Raises JobError if it holds anything else, or another pack is writing
        to it."""

    def finished_index(self) -> ShardIndex | None:
        """Return the index of a finished pack; None without one."""

    def delete_other_shards(self, names: set[str]) -> None:
        """Delete shards of an earlier plan that have none of these names."""

    def reusable_checksum(self, shard: TarShard, fingerprint: str) -> str | None:
        """Return the checksum of a shard that exists and is intact; None if it has to be written."""

    def has_shard(self, record: ShardRecord) -> bool:
        """Return whether a shard exists with these bytes."""

    def temporary_path(self, shard: TarShard) -> Path:
        """Return a path that does not exist, for a writer to write to."""

    def publish_shard(self, shard: TarShard, archive_path: Path, checksum: str, fingerprint: str) -> None:
        """Publish the shard, then its record."""

    def publish_index(self, index: ShardIndex) -> None:
        """Publish the index and delete the records."""


def record_key(shard: TarShard) -> str:
    return WORK_FOLDER + shard.name[len(SHARDS_FOLDER) :] + ".json"


def encode_record(shard: TarShard, checksum: str, fingerprint: str) -> bytes:
    row = {"name": shard.name, "bytes": shard.archive_bytes, "checksum": checksum, "files": fingerprint}
    return json.dumps(row).encode()


def checksum_in_record(content: bytes | None, shard: TarShard, fingerprint: str) -> str | None:
    """Return the checksum in a record, if the record is of this very shard."""
    if content is None:
        return None
    try:
        row = json.loads(content)
    except ValueError:
        return None
    expected = {"name": shard.name, "bytes": shard.archive_bytes, "files": fingerprint}
    if not isinstance(row, dict) or {**row, **expected} != row:
        return None
    return str(row.get("checksum"))


def destination_error(message: str) -> JobError:
    return JobError([Problem("DST", message)])


def _remove_stale(folder: Path) -> None:
    """Remove a folder in which a worker of a killed pack may still create files, until it notices."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _lock_folder(descriptor: int, seconds: float) -> bool:
    """Lock a directory for this pack; False if another process still holds the lock after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)


class FolderDestination:
    """A directory. A shard is written to a temporary path and renamed, so a file under a shard's name is
    complete."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._work_folder = root / WORK_FOLDER

    @contextmanager
    def open(self, resume: bool) -> Iterator[None]:
        """Check and lock the folder, and delete what a killed pack left."""
        has_records = self._work_folder.exists()
        if not resume and (self._root / INDEX_FILE).exists():
            raise destination_error(f"{self._root} {FINISHED_MESSAGE}")
        if not resume and has_records:
            raise destination_error(f"{self._root} {UNFINISHED_MESSAGE}")
        shards = self._root / SHARDS_FOLDER
        existing_names = sorted(path.name for path in shards.iterdir()) if shards.exists() else []
        is_pack = has_records or (self._root / INDEX_FILE).exists()
        foreign_names = [name for name in existing_names if not is_pack or not is_shard(SHARDS_FOLDER + name)]
        if foreign_names:
            raise destination_error(f"{shards} " + FOREIGN_FILE_MESSAGE.format(name=foreign_names[0]))
        try:
            self._work_folder.mkdir(parents=True, exist_ok=True)
            shards.mkdir(exist_ok=True)
        except OSError as error:
            raise destination_error(f"{self._root} cannot be written to: {error.strerror}") from error
        lock = os.open(self._work_folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not _lock_folder(lock, LOCK_WAIT_SECONDS if resume else 0):
                raise destination_error(f"another pack is writing to {self._root}")
            # Files that a killed pack was writing. Its processes may still write to them, after they have no
            # name.
            for stale_folder in self._work_folder.glob("writing-*"):
                _remove_stale(stale_folder)
            self._temporary_folder = Path(mkdtemp(prefix="writing-", dir=self._work_folder))
            try:
                yield
            finally:
                if self._temporary_folder.exists():
                    shutil.rmtree(self._temporary_folder)
        finally:
            os.close(lock)

    def finished_index(self) -> ShardIndex | None:
        try:
            content = (self._root / INDEX_FILE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return parse_index(content)
        except ValueError as error:
            raise destination_error(f"{self._root / INDEX_FILE}: {error}") from None

    def delete_other_shards(self, names: set[str]) -> None:
        for path in (self._root / SHARDS_FOLDER).iterdir():
            if SHARDS_FOLDER + path.name not in names:
                path.unlink()

    def reusable_checksum(self, shard: TarShard, fingerprint: str) -> str | None:
        """Return the recorded checksum of a shard if its bytes still have it."""
        record_path = self._root / record_key(shard)
        checksum = checksum_in_record(
            record_path.read_bytes() if record_path.exists() else None, shard, fingerprint
        )
        is_reusable = checksum is not None and is_intact(
            self._root / shard.name, checksum, shard.archive_bytes
        )
        return checksum if is_reusable else None

    def has_shard(self, record: ShardRecord) -> bool:
        return is_intact(self._root / record.name, record.checksum, record.bytes)

    def temporary_path(self, shard: TarShard) -> Path:
        return self._temporary_folder / shard.name[len(SHARDS_FOLDER) :]

    def publish_shard(self, shard: TarShard, archive_path: Path, checksum: str, fingerprint: str) -> None:
        archive_path.replace(self._root / shard.name)
        record_path = self._root / record_key(shard)
        self._write_atomically(record_path, encode_record(shard, checksum, fingerprint))

    def publish_index(self, index: ShardIndex) -> None:
        self._write_atomically(self._root / INDEX_FILE, encode_index(index))
        shutil.rmtree(self._work_folder)

    def _write_atomically(self, path: Path, content: bytes) -> None:
        temporary_path = self._temporary_folder / path.name
        temporary_path.write_bytes(content)
        temporary_path.replace(path)
