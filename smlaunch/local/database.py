"""An SQLite file of the endpoint's own, opened so that what is written there survives a kill -9."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smlaunch.errors import EndpointError


def open_database(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """Made with ``schema`` when it is not there. For many threads, one at a time, and for many processes.
    Raises EndpointError for a file of another version.
    """
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    # WAL with NORMAL loses the last commits when the machine itself goes down, never when a process does.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found not in (0, version):
        connection.close()
        raise EndpointError(
            f"{path} was written by another version of smlaunch (schema {found}, this one knows "
            f"{version}): move it away, or set SMLAUNCH_HOME to another directory"
        )
    if found == 0:
        connection.executescript(schema + f"PRAGMA user_version={version};")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is read and written inside is one step to all others; when anything is raised, nothing was
    written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
