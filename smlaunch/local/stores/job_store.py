"""The store of jobs: one SQLite file, shared by all endpoints of a state directory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smlaunch.api.job_kinds import TERMINAL_STATUSES
from smlaunch.contract import formats
from smlaunch.contract.run_names import is_run_id
from smlaunch.local.jobs.job_state import JobState
from smlaunch.local.json_types import JsonMapping
from smlaunch.local.stores.sqlite_database import DatabaseSpec, SingleConnection

_CONTENTS = DatabaseSpec(
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
    stored_format=formats.JOBS_DATABASE,
)


def has_job_of_run(database: Path, run: str) -> bool:
    """Return whether a database has a job of a run, or one of this name, without changing anything. False
    where it cannot be read."""
    patterns = (run, f"{run}-s[0-9]*-a[0-9]*", f"{run}-p[0-9]*-s[0-9]*") if is_run_id(run) else ()
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            return any(
                connection.execute("SELECT 1 FROM jobs WHERE name GLOB ? LIMIT 1", (pattern,)).fetchone()
                for pattern in patterns
            )
    except (sqlite3.Error, ValueError):
        return False


class JobNameTaken(Exception):
    """A job of this kind, region and name exists already."""


@dataclass(frozen=True)
class JobRecord:
    """A stored job. ``request``: the create request without tags; ``result``: further fields of the Describe
    response, such as ModelArtifacts; ``endpoint_id``: of the endpoint that runs it."""

    kind: str
    region: str
    name: str
    arn: str
    endpoint_id: str
    request: JsonMapping
    state: JobState
    result: JsonMapping = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobQuery:
    """Filters and order of a list of jobs. Times are in seconds since the epoch.

    ``result_contains``: text in the result's JSON. ``limit``: maximum number of jobs; -1 for all.
    ``after_key``: ``job_sort_key`` of the last job of the previous page.
    """

    created_after: float | None = None
    """Seconds since the epoch, as in the next three."""
    created_before: float | None = None
    modified_after: float | None = None
    modified_before: float | None = None
    name_contains: str | None = None
    status: str | None = None
    result_contains: str | None = None
    sort_by: str = "CreationTime"
    descending: bool = False
    limit: int = 10
    """Maximum number of jobs in the answer."""
    after_key: tuple[str | float, str] | None = None


_SORT_COLUMNS = {"CreationTime": "created", "Name": "name", "Status": "status"}


class JobStore:
    """Jobs, for many threads and processes. A completed write survives a power cut."""

    def __init__(self, path: Path) -> None:
        self._db = SingleConnection(path, _CONTENTS)

    def close(self) -> None:
        self._db.close()

    def insert_job(self, record: JobRecord) -> None:
        """Store a new job. Raises JobNameTaken."""
        row = (
            *(record.kind, record.region, record.name, record.arn, record.endpoint_id),
            *(record.state.created, record.state.modified, record.state.status),
            *map(json.dumps, (record.request, record.state.to_dict(), record.result, record.tags)),
        )
        try:
            with self._db.write_transaction() as connection:
                connection.execute(f"INSERT INTO jobs VALUES ({','.join('?' * len(row))})", row)  # noqa: S608
        except sqlite3.IntegrityError:
            raise JobNameTaken(record.name) from None

    def get_job(self, kind: str, region: str, name: str) -> JobRecord | None:
        rows = self._select("kind = ? AND region = ? AND name = ?", (kind, region, name))
        return rows[0] if rows else None

    def get_job_by_arn(self, arn: str) -> JobRecord | None:
        rows = self._select("arn = ?", (arn,))
        return rows[0] if rows else None

    def save_job_state(self, arn: str, state: JobState, result: JsonMapping | None = None) -> None:
        """Store a job's state, and add ``result`` to its result."""
        if result:
            self.update_job(
                arn, lambda record: replace(record, state=state, result={**record.result, **result})
            )
            return
        # Only terminal states have to be durable: after a power cut, all other jobs are Failed anyway.
        with self._db.write_transaction(durable=state.status in TERMINAL_STATUSES) as connection:
            connection.execute(
                "UPDATE jobs SET modified = ?, status = ?, state = ? WHERE arn = ?",
                (state.modified, state.status, json.dumps(state.to_dict()), arn),
            )

    def update_job(self, arn: str, modify: Callable[[JobRecord], JobRecord | None]) -> JobRecord | None:
        """Read, modify and write a job in one transaction. ``modify`` returns None to leave the job
        unchanged, and may raise. Returns the stored job; None when it was not changed or does not exist."""
        with self._db.write_transaction() as connection:
            record = self.get_job_by_arn(arn)
            changed = None if record is None else modify(record)
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
        """Return a job's tags; None when it does not exist."""
        record = self.get_job_by_arn(arn)
        return None if record is None else record.tags

    def change_tags(
        self, arn: str, modify: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str] | None:
        changed = self.update_job(arn, lambda record: replace(record, tags=modify(record.tags)))
        return None if changed is None else changed.tags

    def add_to_result(self, arn: str, result: JsonMapping) -> JobRecord | None:
        """Add fields to the Describe response of a job."""
        return self.update_job(arn, lambda record: replace(record, result={**record.result, **result}))

    def delete_job(self, arn: str) -> None:
        with self._db.write_transaction() as connection:
            connection.execute("DELETE FROM jobs WHERE arn = ?", (arn,))

    def unfinished_jobs(self, endpoint_id: str) -> list[JobRecord]:
        """Return the jobs of one endpoint that are not in a terminal state."""
        return self._select(
            f"owner = ? AND status NOT IN ({','.join('?' * len(TERMINAL_STATUSES))})",
            (endpoint_id, *TERMINAL_STATUSES),
        )

    def owners_of_unfinished_jobs(self) -> list[str]:
        with self._db.read_access() as connection:
            rows = connection.execute(
                "SELECT DISTINCT owner FROM jobs"  # noqa: S608
                f" WHERE status NOT IN ({','.join('?' * len(TERMINAL_STATUSES))})",
                tuple(TERMINAL_STATUSES),
            ).fetchall()
        return [owner for (owner,) in rows]

    def query_jobs(self, kind: str, region: str, query: JobQuery) -> list[JobRecord]:
        """Return one page of jobs, sorted by the requested key and then by name, so that pages do not
        overlap."""
        sort_column = _SORT_COLUMNS[query.sort_by]
        direction, comparison = ("DESC", "<") if query.descending else ("ASC", ">")
        conditions: list[str] = []
        parameters: list[Any] = []
        optional_conditions = (
            ("kind = ?", kind),
            ("region = ?", region),
            ("created > ?", query.created_after),
            ("created < ?", query.created_before),
            ("modified > ?", query.modified_after),
            ("modified < ?", query.modified_before),
            ("instr(name, ?) > 0", query.name_contains),
            ("status = ?", query.status),
            ("instr(result, ?) > 0", query.result_contains),
        )
        for condition, value in optional_conditions:
            if value is not None:
                conditions.append(condition)
                parameters.append(value)
        if query.after_key is not None:
            conditions.append(f"({sort_column}, name) {comparison} (?, ?)")
            parameters += query.after_key
        where = " AND ".join(conditions)
        return self._select(
            f"{where} ORDER BY {sort_column} {direction}, name {direction} LIMIT ?",
            (*parameters, query.limit),
        )

    def _select(self, where_clause: str, values: Iterable[Any]) -> list[JobRecord]:
        """Run a query. ``where_clause`` must contain constants of this module only; all values are bound."""
        columns = "kind, region, name, arn, owner, request, state, result, tags"
        with self._db.read_access() as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM jobs WHERE {where_clause}",  # noqa: S608
                tuple(values),
            ).fetchall()
        try:
            return [_record_from_row(row) for row in rows]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._db.state_damaged_error(f"has a row that cannot be read ({error!r})") from error


def _record_from_row(row: Sequence[Any]) -> JobRecord:
    return JobRecord(
        kind=row[0],
        region=row[1],
        name=row[2],
        arn=row[3],
        endpoint_id=row[4],
        request=json.loads(row[5]),
        state=JobState.from_dict(json.loads(row[6])),
        result=json.loads(row[7]),
        tags=json.loads(row[8]),
    )


def job_sort_key(record: JobRecord, sort_by: str) -> tuple[str | float, str]:
    """Return a job's position in a sorted list, from which the next page continues."""
    values: dict[str, str | float] = {
        "CreationTime": record.state.created,
        "Name": record.name,
        "Status": record.state.status,
    }
    return values[sort_by], record.name
