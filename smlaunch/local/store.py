"""The endpoint's memory of jobs: one SQLite file, shared by all endpoints of a state directory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smlaunch.local.database import Contents, OneConnection
from smlaunch.local.jobs.states import JobState

_CONTENTS = Contents(
    "every run and job of this state directory, and how it ended",
    schema="""
CREATE TABLE IF NOT EXISTS jobs (
    kind TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
    arn TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    created REAL NOT NULL, modified REAL NOT NULL, status TEXT NOT NULL,
    request TEXT NOT NULL, state TEXT NOT NULL, result TEXT NOT NULL, tags TEXT NOT NULL,
    PRIMARY KEY (kind, region, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_by_time ON jobs (kind, region, created, name);
CREATE INDEX IF NOT EXISTS jobs_by_owner ON jobs (owner, status);
""",
    version=1,
)
_ENDED = ("Completed", "Failed", "Stopped")


class NameTaken(Exception):
    """A job of this kind, region and name exists."""


@dataclass(frozen=True)
class JobRecord:
    """A job as it is remembered. ``result`` holds what Describe adds at the end, such as ModelArtifacts."""

    kind: str
    region: str
    name: str
    arn: str
    owner: str
    request: Mapping[str, Any]
    state: JobState
    result: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobQuery:
    """What ListTrainingJobs may ask; ``result_contains`` is text of the result's JSON, a ``limit`` of -1
    none. Times are seconds since the epoch; ``after`` is a page's start."""

    created_after: float | None = None
    created_before: float | None = None
    modified_after: float | None = None
    modified_before: float | None = None
    name_contains: str | None = None
    status: str | None = None
    result_contains: str | None = None
    sort_by: str = "CreationTime"
    descending: bool = False
    limit: int = 10
    after: tuple[str | float, str] | None = None


_SORT_COLUMNS = {"CreationTime": "created", "Name": "name", "Status": "status"}


class JobStore:
    """Safe for many threads and processes. A write is there once the call returns, also after a power cut."""

    def __init__(self, path: Path) -> None:
        self._db = OneConnection(path, _CONTENTS)

    def close(self) -> None:
        self._db.close()

    def create(self, record: JobRecord) -> None:
        """Raises NameTaken."""
        row = (
            *(record.kind, record.region, record.name, record.arn, record.owner),
            *(record.state.created, record.state.modified, record.state.status),
            *map(json.dumps, (record.request, record.state.to_dict(), record.result, record.tags)),
        )
        try:
            with self._db.writing() as connection:
                connection.execute(f"INSERT INTO jobs VALUES ({','.join('?' * len(row))})", row)  # noqa: S608
        except sqlite3.IntegrityError:
            raise NameTaken(record.name) from None

    def get(self, kind: str, region: str, name: str) -> JobRecord | None:
        rows = self._select("kind = ? AND region = ? AND name = ?", (kind, region, name))
        return rows[0] if rows else None

    def by_arn(self, arn: str) -> JobRecord | None:
        rows = self._select("arn = ?", (arn,))
        return rows[0] if rows else None

    def save(self, arn: str, state: JobState, result: Mapping[str, Any] | None = None) -> None:
        """Remembers where the job stands; ``result``, when given, is added to what was there."""
        if result:
            self.change(arn, lambda record: replace(record, state=state, result={**record.result, **result}))
            return
        # After a power cut a job that had not ended is Failed, wherever it stood.
        with self._db.writing(durable=state.status in _ENDED) as connection:
            connection.execute(
                "UPDATE jobs SET modified = ?, status = ?, state = ? WHERE arn = ?",
                (state.modified, state.status, json.dumps(state.to_dict()), arn),
            )

    def change(self, arn: str, how: Callable[[JobRecord], JobRecord | None]) -> JobRecord | None:
        """Reads, changes and writes a job at once; ``how`` returns None to leave it. Returns what is stored
        now; None when ``how`` left it, or when there is no such job. What ``how`` raises comes through."""
        with self._db.writing() as connection:
            record = self.by_arn(arn)
            changed = None if record is None else how(record)
            if changed is not None:
                connection.execute(
                    "UPDATE jobs SET modified = ?, status = ?, request = ?, state = ?, result = ?,"
                    " tags = ? WHERE arn = ?",
                    (
                        *(changed.state.modified, changed.state.status),
                        *map(
                            json.dumps,
                            (changed.request, changed.state.to_dict(), changed.result, changed.tags),
                        ),
                        arn,
                    ),
                )
        return changed

    def tags_of(self, arn: str) -> Mapping[str, str] | None:
        """None when there is no such job; likewise below."""
        record = self.by_arn(arn)
        return None if record is None else record.tags

    def change_tags(
        self, arn: str, how: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str] | None:
        changed = self.change(arn, lambda record: replace(record, tags=how(record.tags)))
        return None if changed is None else changed.tags

    def merge(self, arn: str, result: Mapping[str, Any]) -> JobRecord | None:
        """Adds to what Describe shows of a job."""
        return self.change(arn, lambda record: replace(record, result={**record.result, **result}))

    def delete(self, arn: str) -> None:
        with self._db.writing() as connection:
            connection.execute("DELETE FROM jobs WHERE arn = ?", (arn,))

    def unfinished(self, owner: str) -> list[JobRecord]:
        """The jobs of one endpoint that have not ended."""
        return self._select(f"owner = ? AND status NOT IN ({','.join('?' * len(_ENDED))})", (owner, *_ENDED))

    def query(self, kind: str, region: str, query: JobQuery) -> list[JobRecord]:
        """One page in the order asked for; equal keys are ordered by name, so that pages never overlap."""
        column = _SORT_COLUMNS[query.sort_by]
        direction, beyond = ("DESC", "<") if query.descending else ("ASC", ">")
        conditions: list[tuple[str, Sequence[Any]]] = [("kind = ? AND region = ?", (kind, region))]
        bounds = (
            ("created > ?", query.created_after),
            ("created < ?", query.created_before),
            ("modified > ?", query.modified_after),
            ("modified < ?", query.modified_before),
            ("instr(name, ?) > 0", query.name_contains),
            ("status = ?", query.status),
            ("instr(result, ?) > 0", query.result_contains),
        )
        conditions += [(text, (value,)) for text, value in bounds if value is not None]
        if query.after is not None:
            conditions.append((f"({column}, name) {beyond} (?, ?)", query.after))
        where = " AND ".join(text for text, _ in conditions)
        values = [value for _, some in conditions for value in some]
        return self._select(
            f"{where} ORDER BY {column} {direction}, name {direction} LIMIT ?", (*values, query.limit)
        )

    def _select(self, rest: str, values: Iterable[Any]) -> list[JobRecord]:
        """``rest`` is made of this module's own words only; every value is bound."""
        columns = "kind, region, name, arn, owner, request, state, result, tags"
        with self._db.reading() as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM jobs WHERE {rest}",  # noqa: S608
                tuple(values),
            ).fetchall()
        try:
            return [_record(row) for row in rows]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._db.damaged(f"has a row that cannot be read ({error!r})") from error


def _record(row: Sequence[Any]) -> JobRecord:
    return JobRecord(
        kind=row[0],
        region=row[1],
        name=row[2],
        arn=row[3],
        owner=row[4],
        request=json.loads(row[5]),
        state=JobState.from_dict(json.loads(row[6])),
        result=json.loads(row[7]),
        tags=json.loads(row[8]),
    )


def sort_key(record: JobRecord, sort_by: str) -> tuple[str | float, str]:
    """Where a job stands in an order: what the next page begins after."""
    values: dict[str, str | float] = {
        "CreationTime": record.state.created,
        "Name": record.name,
        "Status": record.state.status,
    }
    return values[sort_by], record.name
