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
    permission_error,
    quarantine_command,
    require_folder_or_file,
    unusable_file_error,
)

_COUNTER_TABLE = "smlaunch_writes"
_COUNTER_TABLE_SQL = f"""
CREATE TABLE IF NOT EXISTS {_COUNTER_TABLE} (n INTEGER NOT NULL);
INSERT INTO {_COUNTER_TABLE} SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM {_COUNTER_TABLE});
"""  # noqa: S608
_CREATE_TABLE_PATTERN = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")
_MAJOR_VERSION_FACTOR = 1000
"""SQLite's user_version is the major version times this, plus the minor version."""
_MIN_FREE_DISK_BYTES = 1 << 16
"""With less free disk space, SQLite's errors mean a full disk. SQLite allocates its -shm file in 32 KiB."""
_TRANSIENT_ERROR_PREFIXES = (
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
        return int(major) * _MAJOR_VERSION_FACTOR + int(minor)

    def migration_sql_from(self, user_version: int) -> str | None:
        """Return SQL that migrates a database from an older minor version; None for any other version."""
        minor = user_version % _MAJOR_VERSION_FACTOR
        if (
            user_version // _MAJOR_VERSION_FACTOR != self.stored_format.major
            or user_version > self.user_version
        ):
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
        with self._translate_sqlite_errors():
            try:
                fcntl.flock(self._counter_fd, fcntl.LOCK_EX)
                count_in_file = self._read_transaction_count_or_create_database(was_created)
                self._first_connection = self._connect()
                self._check_schema(self._first_connection, count_in_file)
                self._file_state = self._require_unchanged_files()
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
    def read_access(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Context for queries: checks the files and translates errors."""
        with self._translate_sqlite_errors():
            self._file_state = self._require_unchanged_files(self._file_state)
            yield

    @contextmanager
    def write_transaction(self, connection: sqlite3.Connection, durable: bool = True) -> Iterator[None]:
        """Context for one write transaction of this database, rolled back when anything is raised. A durable
        one survives a power cut; another one survives kill -9, but a power cut only once a later durable
        transaction is committed. Raises StateDamaged when the database's files are lost."""
        durable = durable and self._spec.durable  # False for a database that never is
        with self._translate_sqlite_errors():
            # Raises StateDamaged when the files were replaced or have shrunk since the last check.
            self._file_state = self._require_unchanged_files(self._file_state)
            # NORMAL is faster and survives kill -9 too, but a power cut may lose the last commits.
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                # Counts transactions: a database with fewer than its counter file says has lost some.
                connection.execute(f"UPDATE {_COUNTER_TABLE} SET n = n + 1")  # noqa: S608
                (transaction_count,) = connection.execute(f"SELECT n FROM {_COUNTER_TABLE}").fetchone()  # noqa: S608
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            if durable:  # the recorded count must never exceed the durable transactions
                self._write_transaction_count(transaction_count)

    def state_damaged_error(self, problem: str) -> StateDamaged:
        """Return the error for this database with the given problem."""
        return lost_data_error(self.path, problem, self._spec)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _read_transaction_count_or_create_database(self, is_new_counter_file: bool) -> int | None:
        """Return the number of transactions in the database's counter file (``<name>.made``); None for a new
        database, whose empty file is created. ``is_new_counter_file``: whether the counter file was created
        just now. Raises StateDamaged for a database that is gone or empty."""
        counter_text = os.pread(self._counter_fd, 64, 0).strip()  # empty before the first transaction
        try:
            database_bytes = os.stat(self.path).st_size  # noqa: PTH116
        except FileNotFoundError:
            if counter_text:
                raise self.state_damaged_error("is gone") from None
            # Created here, because SQLite would make it readable for all.
            os.close(os.open(self.path, os.O_CREAT | os.O_CLOEXEC, 0o600))
            return None
        # The counter file is created before the database: an empty database that had none has lost its data.
        # With an old and empty counter file, a process was killed while it created the two.
        if database_bytes == 0 and (counter_text or is_new_counter_file):
            raise self.state_damaged_error("is empty")
        if not counter_text:
            return None
        return int(counter_text) if counter_text.isdigit() else 0  # 0: a damaged file proves nothing

    def _check_schema(self, connection: sqlite3.Connection, count_in_file: int | None) -> None:
        """Check the database's format version (SQLite's ``user_version``) and tables, and create or migrate
        the tables; then check the transaction count. ``count_in_file``: the number of transactions in the
        counter file beside the database, None for a new one; the database has the same number in a table.
        Raises StateDamaged."""
        # self._spec describes this database: its schema as SQL, its version, its migrations.
        (user_version,) = connection.execute("PRAGMA user_version").fetchone()  # 0: not set, a new file
        expected_tables = set(_CREATE_TABLE_PATTERN.findall(self._spec.schema))
        existing_tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite_")  # SQLite's own
        }
        migration_sql = self._spec.migration_sql_from(user_version) if user_version else ""
        if migration_sql is None:  # a version of a later smlaunch, or unknown
            raise StateDamaged(self._unsupported_version_message(user_version))
        if existing_tables and not expected_tables & existing_tables:
            table_names = ", ".join(sorted(existing_tables))
            raise self.state_damaged_error(f"is another database: its tables are {table_names}")
        if count_in_file is not None and not existing_tables:
            raise self.state_damaged_error("is an empty database")
        if existing_tables and not user_version:
            raise self.state_damaged_error("has tables, but no version")
        has_all_tables = {*expected_tables, _COUNTER_TABLE} <= existing_tables
        # The schema only creates what is missing.
        if user_version != self._spec.user_version or not has_all_tables:
            connection.executescript(
                f"BEGIN IMMEDIATE; {migration_sql} {self._spec.schema} {_COUNTER_TABLE_SQL}"
                f" PRAGMA user_version={self._spec.user_version}; COMMIT;"
            )
        self._check_transaction_count(connection, count_in_file)

    def _check_transaction_count(self, connection: sqlite3.Connection, count_in_file: int | None) -> None:
        """Compare the number of transactions in the database with the one in the counter file beside it
        (None: a new database), and update the file. Raises StateDamaged when the database has lost
        transactions."""
        row = connection.execute(f"SELECT n FROM {_COUNTER_TABLE}").fetchone()  # noqa: S608
        count_in_database = row[0] if row else -1  # -1: the row was lost, which is fewer than any number
        # Of a database that is not durable, a power cut may lose transactions, without damage.
        if self._spec.durable and count_in_file is not None and count_in_database < count_in_file:
            counter_file = shlex.quote(f"{self.path}.made")
            raise StateDamaged(
                f"{self.path} is older than it was: its last {count_in_file - count_in_database} changes are "
                f"lost ({self._wal_path} is gone or damaged, or an older copy was put back). Put the newest "
                f"copy back, with its -wal file; to go on with this one: `rm {counter_file}`"
            )
        if count_in_file is None:  # new files: they must survive a power cut
            os.fsync(self._counter_fd)
            sync_folder(self.path.parent)
        self._write_transaction_count(max(count_in_database, 0))

    def _unsupported_version_message(self, user_version: int) -> str:
        """Explain that the database has a format that this release cannot read."""
        spec = self._spec
        version = f"{user_version // _MAJOR_VERSION_FACTOR}.{user_version % _MAJOR_VERSION_FACTOR}"
        return (
            f"{self.path} was written by another version of smlaunch (this {spec.stored_format.title} has "
            f"version {version}, this release knows {spec.stored_format.version}): use that one, set "
            f"SMLAUNCH_HOME to another directory, or go on without {spec.description}: "
            f"{_quarantine_command(self.path, spec)}"
        )

    def _write_transaction_count(self, count: int) -> None:
        os.pwrite(self._counter_fd, b"%020d\n" % count, 0)

    def _require_unchanged_files(self, previous_state: _FileState | None = None) -> _FileState:
        """Return the state of the database's files. Raises StateDamaged when they were lost or replaced since
        ``previous_state``: in use, a database keeps its inodes and never shrinks. SQLite itself would go on
        with a file that was deleted. ``previous_state``: None when the database is opened."""
        try:
            database_stat = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            raise self.state_damaged_error("is gone") from None
        try:
            wal_inode = os.stat(self._wal_path).st_ino  # noqa: PTH116  of SQLite's write-ahead log
        except FileNotFoundError:
            wal_inode = 0  # there is none yet
        current_state = _FileState(
            inode=database_stat.st_ino, size=database_stat.st_size, wal_inode=wal_inode
        )
        if previous_state is None:
            return current_state
        if current_state.inode != previous_state.inode:
            raise self.state_damaged_error("was replaced while an endpoint was using it")
        if current_state.size < previous_state.size:
            change = "is empty" if current_state.size == 0 else "was cut off"
            raise self.state_damaged_error(f"{change} since an endpoint opened it")
        if previous_state.wal_inode and current_state.wal_inode != previous_state.wal_inode:
            raise self.state_damaged_error("has lost its -wal file while an endpoint was using it")
        return current_state

    @contextmanager
    def _translate_sqlite_errors(self) -> Iterator[None]:
        """Context that translates SQLite's errors into errors that name the file and the cause: StateDamaged
        for a damaged file or missing rights, OperationalError for a full disk."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # for the caller: a key that exists already, or a mistake in the code
        except sqlite3.DatabaseError as error:
            is_file_intact = str(error).startswith(_TRANSIENT_ERROR_PREFIXES)  # such as "database is locked"
            if is_file_intact:
                raise
            if _is_disk_full(self.path.parent):  # SQLite reports it as "disk I/O error" and others too
                raise sqlite3.OperationalError(f"database or disk is full: {error}") from error
            if self.path.is_dir():
                raise self.state_damaged_error("is a directory") from error
            for path in (self.path.parent, self.path):
                if path.exists() and not os.access(path, os.R_OK | os.W_OK):
                    raise permission_error(path) from error
            raise self.state_damaged_error(f"cannot be read: {error}") from error


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
    def read_access(self) -> Iterator[sqlite3.Connection]:
        """Like Database.reading."""
        with self._lock, self._database.read_access(self._connection):
            yield self._connection

    @contextmanager
    def write_transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Like Database.writing."""
        with self._lock, self._database.write_transaction(self._connection, durable):
            yield self._connection

    def state_damaged_error(self, problem: str) -> StateDamaged:
        """Like Database.state_damaged_error."""
        return self._database.state_damaged_error(problem)


def lost_data_error(path: Path, problem: str, spec: DatabaseSpec) -> StateDamaged:
    """Return the error for a damaged or missing database, with its lost data and the way to go on."""
    return StateDamaged(
        f"{path} {problem}. Lost with it: {spec.description}. Put a copy of it back if you have one; to "
        f"go on without it: {_quarantine_command(path, spec)}"
    )


def _quarantine_command(path: Path, spec: DatabaseSpec) -> str:
    files = shlex.quote(spec.quarantine_dir.name) if spec.quarantine_dir else f"{shlex.quote(path.name)}*"
    return quarantine_command((spec.quarantine_dir or path).parent, files, first="smlaunch local stop; ")


def _is_disk_full(folder: Path) -> bool:
    try:
        file_system = os.statvfs(folder)
    except OSError:
        return False
    return (
        file_system.f_bavail * file_system.f_frsize < _MIN_FREE_DISK_BYTES
        or file_system.f_files > 0 == file_system.f_favail
    )


def sync_folder(folder: str | Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_counter_file(path: Path) -> tuple[int, bool]:
    """Open the counter file of the database at ``path`` (``<name>.made``, with the number of its
    transactions), and create it if it is missing. Returns its file descriptor and whether it is new. Raises
    StateDamaged."""
    counter_file = Path(f"{path}.made")
    is_new_file = not counter_file.exists()
    try:
        if not is_new_file:
            require_folder_or_file(counter_file, counter_file.stat(), is_folder=False)
        return os.open(counter_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), is_new_file
    except PermissionError as error:
        # A StateDamaged.
        raise permission_error(counter_file if counter_file.exists() else counter_file.parent) from error
    except OSError as error:
        problem = f"cannot be opened: {error.strerror}"
        raise unusable_file_error(counter_file, problem, lost_data="nothing") from error
