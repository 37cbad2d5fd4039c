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
    encode_shard_index,
    parse_shard_index,
)
from smlaunch.data.tar_shard_writers import TarShard, is_intact
from smlaunch.errors import JobError, Problem, write_error

WORK_FOLDER = ".pack/"
"""Records of finished shards, until the index replaces them."""

LOCK_WAIT_SECONDS = 5.0
"""How long a resumed pack waits for the lock. A worker process that a killed pack was just starting holds the
lock until its exec."""

_SHARD_NAME = re.compile(r"shard-[0-9]{5,}\.tar")

UNFINISHED_MESSAGE = "holds an unfinished pack; continue it with --resume"
FINISHED_MESSAGE = "holds a finished pack; check it with --resume, or choose another destination"
FOREIGN_FILE_MESSAGE = "holds {name}, which is not a shard of a pack; choose an empty destination"


def is_shard_name(name: str) -> bool:
    """Return whether a name, relative to the destination, is one that a pack uses."""
    return name.startswith(SHARDS_FOLDER) and _SHARD_NAME.fullmatch(name[len(SHARDS_FOLDER) :]) is not None


class PackDestination(Protocol):
    """Where shards are written: empty, or with the results of an earlier pack."""

    def open_for_writing(self, resume: bool) -> AbstractContextManager[object]:
        """Lock the destination. Raises JobError if it holds anything else, or another pack is writing
        to it."""

    def finished_index(self) -> ShardIndex | None:
        """Return the index of a finished pack; None without one."""

    def delete_other_shards(self, names: set[str]) -> None:
        """Delete shards of an earlier plan that have none of these names."""

    def checksum_of_reusable_shard(self, shard: TarShard, fingerprint: str) -> str | None:
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


def checksum_from_shard_record(record_content: bytes | None, shard: TarShard, fingerprint: str) -> str | None:
    """Return the checksum in the record that is written beside a finished shard; None if it is missing or
    unreadable, or of a shard with other files. ``fingerprint``: a hash of the shard's files."""
    if record_content is None:
        return None
    try:
        record = json.loads(record_content)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    expected = {"name": shard.name, "bytes": shard.archive_bytes, "files": fingerprint}
    if any(record.get(name) != value for name, value in expected.items()):
        return None
    return str(record.get("checksum"))


def destination_error(message: str) -> JobError:
    return JobError([Problem("DST", message)])


def _remove_stale_folder(folder: Path) -> None:
    """Remove the temporary folder of a killed pack, trying again for some seconds: its worker processes may
    still create files in it, until they notice. Raises OSError if it cannot be removed."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            # ENOTEMPTY, ENOENT: a file was created, or removed, while the folder was being removed.
            may_vanish = error.errno in (errno.ENOTEMPTY, errno.ENOENT)
            if not may_vanish or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _lock_folder(descriptor: int, timeout_seconds: float) -> bool:
    """Lock the open directory ``descriptor`` for this pack and return True; False if another process still
    holds the lock after ``timeout_seconds``."""
    deadline = time.monotonic() + timeout_seconds
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
        self._destination_folder = root
        self._work_folder = root / WORK_FOLDER

    def _check_existing_files(self, resume: bool) -> None:
        """Raise JobError if the destination has a pack, finished or not, that is not to be resumed, or files
        in the folder for shards that no pack has written."""
        has_records = self._work_folder.exists()  # of finished shards; kept until the whole pack is finished
        has_index = (self._destination_folder / INDEX_FILE).exists()  # written just before
        if not resume and has_index:
            raise destination_error(f"{self._destination_folder} {FINISHED_MESSAGE}")
        if not resume and has_records:
            raise destination_error(f"{self._destination_folder} {UNFINISHED_MESSAGE}")
        shards_folder = self._destination_folder / SHARDS_FOLDER
        if not shards_folder.exists():
            return
        belongs_to_pack = has_records or has_index
        for name in sorted(path.name for path in shards_folder.iterdir()):
            if not belongs_to_pack or not is_shard_name(SHARDS_FOLDER + name):
                raise destination_error(f"{shards_folder} " + FOREIGN_FILE_MESSAGE.format(name=name))

    @contextmanager
    def open_for_writing(self, resume: bool) -> Iterator[None]:
        """Check the destination folder of a pack, lock it, and delete the temporary files of a killed pack.
        Below it are the shards' folder, and a work folder with the records of finished shards, in which the
        temporary folder of this pack is made. ``resume``: an interrupted or finished pack may be there.
        Raises JobError for a folder that holds anything else, or that another pack is writing to."""
        self._check_existing_files(resume)
        shards_folder = self._destination_folder / SHARDS_FOLDER
        try:
            self._work_folder.mkdir(parents=True, exist_ok=True)
            shards_folder.mkdir(exist_ok=True)
        except OSError as error:
            raise write_error("DST", self._destination_folder, error) from error
        lock_descriptor = os.open(self._work_folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # A worker process that a killed pack was just starting still holds the lock for a moment.
            lock_timeout_seconds = LOCK_WAIT_SECONDS if resume else 0
            if not _lock_folder(lock_descriptor, lock_timeout_seconds):  # else it is locked now
                raise destination_error(f"another pack is writing to {self._destination_folder}")
            # Files that a killed pack was writing. Its processes may still write to them, after they have no
            # name.
            for stale_folder in self._work_folder.glob("writing-*"):
                _remove_stale_folder(stale_folder)
            self._temporary_folder = Path(mkdtemp(prefix="writing-", dir=self._work_folder))
            try:
                yield
            finally:
                if self._temporary_folder.exists():
                    shutil.rmtree(self._temporary_folder)
        finally:
            os.close(lock_descriptor)

    def finished_index(self) -> ShardIndex | None:
        """Return the index of a finished pack at the destination; None if there is none. Raises JobError for
        one that cannot be read."""
        try:
            content = (self._destination_folder / INDEX_FILE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return parse_shard_index(content)
        except ValueError as error:
            raise destination_error(f"{self._destination_folder / INDEX_FILE}: {error}") from None

    def delete_other_shards(self, names: set[str]) -> None:
        for path in (self._destination_folder / SHARDS_FOLDER).iterdir():
            if SHARDS_FOLDER + path.name not in names:
                path.unlink()

    def checksum_of_reusable_shard(self, shard: TarShard, fingerprint: str) -> str | None:
        """Return the recorded checksum of a shard if its bytes still have it."""
        record_path = self._destination_folder / record_key(shard)
        checksum = checksum_from_shard_record(
            record_path.read_bytes() if record_path.exists() else None, shard, fingerprint
        )
        is_reusable = checksum is not None and is_intact(
            self._destination_folder / shard.name, checksum, shard.archive_bytes
        )
        return checksum if is_reusable else None

    def has_shard(self, record: ShardRecord) -> bool:
        return is_intact(self._destination_folder / record.name, record.checksum, record.bytes)

    def temporary_path(self, shard: TarShard) -> Path:
        return self._temporary_folder / shard.name[len(SHARDS_FOLDER) :]

    def publish_shard(self, shard: TarShard, archive_path: Path, checksum: str, fingerprint: str) -> None:
        archive_path.replace(self._destination_folder / shard.name)
        record_path = self._destination_folder / record_key(shard)
        self._write_atomically(record_path, encode_record(shard, checksum, fingerprint))

    def publish_index(self, index: ShardIndex) -> None:
        self._write_atomically(self._destination_folder / INDEX_FILE, encode_shard_index(index))
        shutil.rmtree(self._work_folder)

    def _write_atomically(self, path: Path, content: bytes) -> None:
        temporary_path = self._temporary_folder / path.name
        temporary_path.write_bytes(content)
        temporary_path.replace(path)
