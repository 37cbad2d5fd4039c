"""SQLite databases of the endpoint: durable writes, and detection of lost data.

    <name>                the database, with SQLite's own <name>-wal and <name>-shm while it is in use
    <name>.made           the counter file: the number of committed transactions, as a line of text

SQLite takes an empty file for a new database, and a lost write-ahead log (-wal) for one that never existed.
So each transaction increments a counter, in the database and then in ``<name>.made``. A database whose
counter is lower than the recorded one has lost data, and is reported as damaged.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from smlaunch.contract.formats import Format
from smlaunch.local.state_errors import (
    StateDamaged,
    move_away,
    permission_error,
    require_kind,
    unusable_file_error,
)

_COUNTER = "smlaunch_writes"
_COUNTER_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {_COUNTER} (n INTEGER NOT NULL);
INSERT INTO {_COUNTER} SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM {_COUNTER});
"""  # noqa: S608
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")
_VERSION_FACTOR = 1000
"""SQLite's user_version is the major version times this, plus the minor version."""
_MIN_FREE_BYTES = 1 << 16
"""With less free disk space, SQLite's errors mean a full disk. SQLite allocates its -shm file in 32 KiB."""
_TRANSIENT_ERRORS = (
    "database or disk is full",
    "database is locked",
    "database table is locked",
    "interrupted",
)
"""Prefixes of SQLite's messages that do not mean a damaged file."""


@dataclass(frozen=True)
class DatabaseSpec:
    """Schema and durability of a database."""

    description: str
    """Its data in words, for the error when the database is lost."""
    schema: str
    """SQL statements that create the tables, if they do not exist."""
    stored_format: Format
    """Format of the schema."""
    migrations: tuple[str, ...] = ()
    """SQL statements from minor version 0 to 1, from 1 to 2, and so on."""
    durable: bool = True
    """Whether a committed transaction survives a power cut, not only the end of the process."""
    quarantine_dir: Path | None = None
    """Folder that has to be moved away with a damaged database; by default only the database's files."""

    @property
    def user_version(self) -> int:
        """Version of the format as SQLite's user_version."""
        major, minor = self.stored_format.version.split(".")
        return int(major) * _VERSION_FACTOR + int(minor)

    def migration_from(self, user_version: int) -> str | None:
        """Return SQL that migrates a database from an older minor version; None for any other version."""
        minor = user_version % _VERSION_FACTOR
        if user_version // _VERSION_FACTOR != self.stored_format.major or user_version > self.user_version:
            return None
        return "".join(self.migrations[minor:])


class _FileState(NamedTuple):
    """State of the files of an open database. A ``wal_inode`` of 0 means that there is no log yet."""

    inode: int
    size: int
    wal_inode: int


class Database:
    """A database for many threads and processes. Opening and every use raise StateDamaged when its files are
    damaged or lost."""

    def __init__(self, path: Path, spec: DatabaseSpec) -> None:
        self.path = path
        self._spec = spec
        self._wal_path = f"{path}-wal"
        self._first_connection: sqlite3.Connection | None = None
        self._counter_fd, was_created = _open_counter_file(path)
        with self._translate_errors():
            try:
                fcntl.flock(self._counter_fd, fcntl.LOCK_EX)
                recorded_count = self._recorded_count(was_created)
                self._first_connection = self._connect()
                self._check_contents(self._first_connection, recorded_count)
                self._file_state = self._check_files()
            except BaseException:
                self.close()
                raise
            fcntl.flock(self._counter_fd, fcntl.LOCK_UN)

    def open_connection(self) -> sqlite3.Connection:
        """Return one more connection, which the caller closes."""
        connection, self._first_connection = self._first_connection, None
        return connection or self._connect()

    def close(self) -> None:
        """Close the database. Call it after all connections were closed."""
        if self._first_connection is not None:
            self._first_connection.close()
        os.close(self._counter_fd)

    @contextmanager
    def reading(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Context for queries: checks the files and translates errors."""
        with self._translate_errors():
            self._file_state = self._check_files(self._file_state)
            yield

    @contextmanager
    def writing(self, connection: sqlite3.Connection, durable: bool = True) -> Iterator[None]:
        """Context for one transaction, rolled back when anything is raised. Without ``durable`` it survives
        kill -9, but a power cut only once a later durable transaction is committed."""
        durable = durable and self._spec.durable
        with self._translate_errors():
            self._file_state = self._check_files(self._file_state)
            # NORMAL survives kill -9 too, but a power cut may lose the last commits.
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute(f"UPDATE {_COUNTER} SET n = n + 1")  # noqa: S608
                (count,) = connection.execute(f"SELECT n FROM {_COUNTER}").fetchone()  # noqa: S608
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if durable:  # the recorded count must never exceed the durable transactions
                self._record_count(count)

    def damaged_error(self, problem: str) -> StateDamaged:
        """Return the error for this database with the given problem."""
        return lost_data_error(self.path, problem, self._spec)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _recorded_count(self, is_new_counter: bool) -> int | None:
        """Return the number of transactions in the counter file; None for a new database. ``is_new_counter``:
        whether the counter file was created just now."""
        text = os.pread(self._counter_fd, 64, 0).strip()
        try:
            size = os.stat(self.path).st_size  # noqa: PTH116
        except FileNotFoundError:
            if text:
                raise self.damaged_error("is gone") from None
            # Created here, because SQLite would make it readable for all.
            os.close(os.open(self.path, os.O_CREAT | os.O_CLOEXEC, 0o600))
            return None
        if size == 0 and (text or is_new_counter):
            # The counter file is created before the database: an empty database without one is old.
            raise self.damaged_error("is empty")
        return (int(text) if text.isdigit() else 0) if text else None

    def _check_contents(self, connection: sqlite3.Connection, recorded_count: int | None) -> None:
        """Check version and tables, and create or migrate them; then check the transaction count."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        expected_tables = set(_TABLE.findall(self._spec.schema))
        existing_tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite_")
        }
        migration = self._spec.migration_from(version) if version else ""
        if migration is None:
            raise StateDamaged(self._other_version(version))
        if existing_tables and not expected_tables & existing_tables:
            tables = ", ".join(sorted(existing_tables))
            raise self.damaged_error(f"is another database: its tables are {tables}")
        if recorded_count is not None and not existing_tables:
            raise self.damaged_error("is an empty database")
        if version != self._spec.user_version or not {*expected_tables, _COUNTER} <= existing_tables:
            connection.executescript(
                f"BEGIN IMMEDIATE; {migration} {self._spec.schema} {_COUNTER_SCHEMA}"
                f" PRAGMA user_version={self._spec.user_version}; COMMIT;"
            )
        self._check_count(connection, recorded_count)

    def _check_count(self, connection: sqlite3.Connection, recorded_count: int | None) -> None:
        """Compare the database's transaction count with the counter file, and update the file."""
        row = connection.execute(f"SELECT n FROM {_COUNTER}").fetchone()  # noqa: S608
        count = row[0] if row else -1
        if self._spec.durable and recorded_count is not None and count < recorded_count:
            counter_file = shlex.quote(f"{self.path}.made")
            raise StateDamaged(
                f"{self.path} is older than it was: its last {recorded_count - count} changes are lost "
                f"({self._wal_path} is gone or damaged, or an older copy was put back). Put the newest copy "
                f"back, with its -wal file; to go on with this one: `rm {counter_file}`"
            )
        if recorded_count is None:
            os.fsync(self._counter_fd)
            sync_folder(self.path.parent)
        self._record_count(max(count, 0))

    def _other_version(self, user_version: int) -> str:
        """Explain that the database has a format that this release cannot read."""
        spec = self._spec
        version = f"{user_version // _VERSION_FACTOR}.{user_version % _VERSION_FACTOR}"
        return (
            f"{self.path} was written by another version of smlaunch (this {spec.stored_format.title} has "
            f"version {version}, this release knows {spec.stored_format.version}): use that one, set "
            f"SMLAUNCH_HOME to another directory, or go on without {spec.description}: "
            f"{_quarantine_command(self.path, spec)}"
        )

    def _record_count(self, count: int) -> None:
        os.pwrite(self._counter_fd, b"%020d\n" % count, 0)

    def _check_files(self, previous: _FileState | None = None) -> _FileState:
        """Return the files' state, compared with the previous one: in use, a database keeps its inodes and
        never shrinks. SQLite itself would go on with a file that was deleted."""
        try:
            status = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            raise self.damaged_error("is gone") from None
        try:
            wal_inode = os.stat(self._wal_path).st_ino  # noqa: PTH116
        except FileNotFoundError:
            wal_inode = 0
        current = _FileState(status.st_ino, status.st_size, wal_inode)
        if previous is None:
            return current
        if current.inode != previous.inode:
            raise self.damaged_error("was replaced while an endpoint was using it")
        if current.size < previous.size:
            change = "is empty" if current.size == 0 else "was cut off"
            raise self.damaged_error(f"{change} since an endpoint opened it")
        if previous.wal_inode and current.wal_inode != previous.wal_inode:
            raise self.damaged_error("has lost its -wal file while an endpoint was using it")
        return current

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate SQLite's errors into errors that name the file and the cause."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.DatabaseError as error:
            if str(error).startswith(_TRANSIENT_ERRORS):
                raise
            if _is_disk_full(self.path.parent):  # SQLite reports it as "disk I/O error" and others too
                raise sqlite3.OperationalError(f"database or disk is full: {error}") from error
            if self.path.is_dir():
                raise self.damaged_error("is a directory") from error
            for path in (self.path.parent, self.path):
                if path.exists() and not os.access(path, os.R_OK | os.W_OK):
                    raise permission_error(path) from error
            raise self.damaged_error(f"cannot be read: {error}") from error


class SingleConnection:
    """A database with one connection, which threads use in turn."""

    def __init__(self, path: Path, spec: DatabaseSpec) -> None:
        self._lock = threading.RLock()
        self._database = Database(path, spec)
        self._connection = self._database.open_connection()

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            self._database.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Like Database.reading."""
        with self._lock, self._database.reading(self._connection):
            yield self._connection

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Like Database.writing."""
        with self._lock, self._database.writing(self._connection, durable):
            yield self._connection

    def damaged_error(self, problem: str) -> StateDamaged:
        """Like Database.damaged_error."""
        return self._database.damaged_error(problem)


def lost_data_error(path: Path, problem: str, spec: DatabaseSpec) -> StateDamaged:
    """Return the error for a damaged or missing database, with its lost data and the way to go on."""
    return StateDamaged(
        f"{path} {problem}. Lost with it: {spec.description}. Put a copy of it back if you have one; to "
        f"go on without it: {_quarantine_command(path, spec)}"
    )


def _quarantine_command(path: Path, spec: DatabaseSpec) -> str:
    files = shlex.quote(spec.quarantine_dir.name) if spec.quarantine_dir else f"{shlex.quote(path.name)}*"
    return move_away((spec.quarantine_dir or path).parent, files, first="smlaunch local stop; ")


def _is_disk_full(folder: Path) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _MIN_FREE_BYTES or status.f_files > 0 == status.f_favail


def sync_folder(folder: str | Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_counter_file(path: Path) -> tuple[int, bool]:
    """Open the counter file, and create it if it is missing. Returns its descriptor and whether it is new.
    Raises StateDamaged."""
    counter_file = Path(f"{path}.made")
    is_new = not counter_file.exists()
    try:
        if not is_new:
            require_kind(counter_file, counter_file.stat(), directory=False)
        return os.open(counter_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), is_new
    except PermissionError as error:
        raise permission_error(counter_file if counter_file.exists() else counter_file.parent) from error
    except OSError as error:
        raise unusable_file_error(counter_file, f"cannot be opened: {error.strerror}", "nothing") from error
