"""An SQLite file of the endpoint's own: what is written there survives a power cut, and is missed when lost.

    <name>                the database, with SQLite's own <name>-wal and <name>-shm while it is in use
    <name>.made           that it was made, and how many transactions it has; a line of text

SQLite takes an empty file for a new database, and a log (-wal) that was lost for one that never was. So each
transaction counts itself, in the database and then in ``<name>.made``: a database that has counted less than
was written down has lost something, and says so instead of going on without it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from smlaunch.local.damage import StateDamaged, forbidden, unusable

_COUNTER = "smlaunch_writes"
_COUNTING = f"""
CREATE TABLE IF NOT EXISTS {_COUNTER} (n INTEGER NOT NULL);
INSERT INTO {_COUNTER} SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM {_COUNTER});
"""  # noqa: S608
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")
_LEAST_ROOM = 1 << 16
"""Bytes. SQLite takes its -shm file in pieces of 32 KiB."""
_PASSING = ("database or disk is full", "database is locked", "database table is locked", "interrupted")
"""Begins of SQLite's messages that say nothing about the file."""


@dataclass(frozen=True)
class Contents:
    """What a database is for. ``holds``: what is lost with it, in words. ``durable``: whether a transaction
    is on the disk, and not only in the kernel, once it is done. ``version`` of ``schema``.

    ``aside``: the folder to move away, where going on without it takes more than a new database.
    """

    holds: str
    schema: str
    version: int
    durable: bool = True
    aside: Path | None = None


class Database:
    """For many threads and processes. Raises StateDamaged, when it is opened and whenever it is used, for a
    file that is not what was written there."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self.path = path
        self._contents = contents
        self._log = f"{path}-wal"
        self._mark, made = _marked(path)
        with self._telling():
            try:
                fcntl.flock(self._mark, fcntl.LOCK_EX)
                known = self._known(made)
                self._first: sqlite3.Connection | None = self._connect()
                self._check_contents(known)
                self._stamp = self._look()
            except BaseException:
                os.close(self._mark)
                raise
            fcntl.flock(self._mark, fcntl.LOCK_UN)

    def take(self) -> sqlite3.Connection:
        """One more connection, which the caller closes."""
        first, self._first = self._first, None
        return first or self._connect()

    def close(self) -> None:
        """After all connections that were taken."""
        if self._first is not None:
            self._first.close()
        os.close(self._mark)

    @contextmanager
    def reading(self, connection: sqlite3.Connection) -> Iterator[None]:
        with self._telling():
            self._stamp = self._look(self._stamp)
            yield

    @contextmanager
    def writing(self, connection: sqlite3.Connection, durable: bool = True) -> Iterator[None]:
        """What is read and written inside is one step to all others; when anything is raised, nothing was
        written. Not ``durable``: it survives a kill -9, and a power cut once a later one is."""
        durable = durable and self._contents.durable
        with self._telling():
            self._stamp = self._look(self._stamp)
            # With NORMAL a kill -9 loses nothing either, but a power cut loses the last commits.
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
            if durable:  # what stands there is never more than what is safe in the database
                self._write_down(count)

    def damaged(self, what: str) -> StateDamaged:
        """The error that says so."""
        return lost(self.path, what, self._contents)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def _known(self, made: bool) -> int | None:
        """How many transactions there were; None for a database that was never made. ``made``: whether this
        is the first look at it by a release that writes that down."""
        text = os.pread(self._mark, 64, 0).strip()
        try:
            size = os.stat(self.path).st_size  # noqa: PTH116
        except FileNotFoundError:
            if text:
                raise self.damaged("is gone") from None
            # SQLite would make it for all to read.
            os.close(os.open(self.path, os.O_CREAT | os.O_CLOEXEC, 0o600))
            return None
        if size == 0 and (text or made):
            # An older release may have left it; this one marks a database before it makes it.
            raise self.damaged("is empty")
        return (int(text) if text.isdigit() else 0) if text else None

    def _check_contents(self, known: int | None) -> None:
        connection = self._first
        assert connection is not None
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        wanted = set(_TABLE.findall(self._contents.schema))
        found = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith("sqlite_")
        }
        if version not in (0, self._contents.version):
            connection.close()
            raise StateDamaged(
                f"{self.path} was written by another version of smlaunch (schema {version}, this one knows "
                f"{self._contents.version}): use that one, set SMLAUNCH_HOME to another directory, or go on "
                f"without {self._contents.holds}: {_move_away(self.path, self._contents)}"
            )
        if found and not wanted & found:
            connection.close()
            raise self.damaged(f"is another database: its tables are {', '.join(sorted(found))}")
        if known is not None and not found:
            connection.close()
            raise self.damaged("is an empty database")
        if version == 0 or not {*wanted, _COUNTER} <= found:
            connection.executescript(
                f"BEGIN IMMEDIATE; {self._contents.schema} {_COUNTING}"
                f" PRAGMA user_version={self._contents.version}; COMMIT;"
            )
        row = connection.execute(f"SELECT n FROM {_COUNTER}").fetchone()  # noqa: S608
        count = row[0] if row else -1
        if self._contents.durable and known is not None and count < known:
            connection.close()
            mark = shlex.quote(f"{self.path}.made")
            raise StateDamaged(
                f"{self.path} is older than it was: its last {known - count} changes are lost ({self._log} "
                "is gone or damaged, or an older copy was put back). Put the newest copy back, with its -wal "
                f"file; to go on with this one: `rm {mark}`"
            )
        if known is None:
            os.fsync(self._mark)
            sync_folder(self.path.parent)
        self._write_down(max(count, 0))

    def _write_down(self, count: int) -> None:
        os.pwrite(self._mark, b"%020d\n" % count, 0)

    def _look(self, before: tuple[int, int, int] | None = None) -> tuple[int, int, int]:
        """The file's inode and size and its log's inode: a database that is in use keeps the first and the
        last and never shrinks. SQLite itself would go on in a file that has no name any more."""
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            raise self.damaged("is gone") from None
        try:
            log = os.stat(self._log).st_ino  # noqa: PTH116
        except FileNotFoundError:
            log = 0  # not made yet
        if before is not None and before[0] != found.st_ino:
            raise self.damaged("was replaced while an endpoint was using it")
        if before is not None and found.st_size < before[1]:
            how = "is empty" if found.st_size == 0 else "was cut off"
            raise self.damaged(f"{how} since an endpoint opened it")
        if before is not None and before[2] and before[2] != log:
            raise self.damaged("has lost its -wal file while an endpoint was using it")
        return found.st_ino, found.st_size, log

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What SQLite and the disk say of the file, as an error that names it."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.DatabaseError as error:
            if str(error).startswith(_PASSING):
                raise
            if _has_no_room(
                self.path.parent
            ):  # it has other words for that too: disk I/O error, unable to open
                raise sqlite3.OperationalError(f"database or disk is full: {error}") from error
            if self.path.is_dir():
                raise self.damaged("is a directory") from error
            for path in (self.path.parent, self.path):
                if path.exists() and not os.access(path, os.R_OK | os.W_OK):
                    raise forbidden(path) from error
            raise self.damaged(f"cannot be read: {error}") from error


class OneConnection:
    """A database with one connection, which threads use in turn."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self._lock = threading.RLock()
        self._database = Database(path, contents)
        self._connection = self._database.take()

    def close(self) -> None:
        with self._lock:
            self._connection.close()
            self._database.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database.reading(self._connection):
            yield self._connection

    @contextmanager
    def writing(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """As Database.writing."""
        with self._lock, self._database.writing(self._connection, durable):
            yield self._connection

    def damaged(self, what: str) -> StateDamaged:
        """The error that says so."""
        return self._database.damaged(what)


def lost(path: Path, what: str, contents: Contents) -> StateDamaged:
    """The error for a database that ``what`` is wrong with."""
    return StateDamaged(
        f"{path} {what}. Lost with it: {contents.holds}. Put a copy of it back if you have one; to go on "
        f"without it: {_move_away(path, contents)}"
    )


def _move_away(path: Path, contents: Contents) -> str:
    files = shlex.quote(contents.aside.name) if contents.aside else f"{shlex.quote(path.name)}*"
    folder = shlex.quote(str((contents.aside or path).parent))
    place = time.strftime("damaged-%Y%m%dT%H%M%S", time.gmtime())
    return f"`smlaunch local stop; cd {folder} && mkdir {place} && mv {files} {place}/`"


def _has_no_room(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _LEAST_ROOM or found.f_files > 0 == found.f_favail


def sync_folder(folder: str | Path) -> None:
    """The names in it are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _marked(path: Path) -> tuple[int, bool]:
    """The open mark, made when there was none; whether it was made now. Raises StateDamaged."""
    mark = Path(f"{path}.made")
    made = not mark.exists()
    try:
        return os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), made
    except PermissionError as error:
        raise forbidden(mark if mark.exists() else mark.parent) from error
    except OSError as error:
        raise unusable(mark, f"cannot be opened: {error.strerror}", "nothing") from error
