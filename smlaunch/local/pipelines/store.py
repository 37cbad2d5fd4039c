"""Pipelines and their executions in one SQLite file, shared by all endpoints of a state directory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from smlaunch.contract import formats
from smlaunch.local.database import DatabaseSpec, SingleConnection
from smlaunch.local.pipelines.records import EXECUTION_ENDED, Execution, Pipeline, StepRecord

_CONTENTS = DatabaseSpec(
    "every pipeline, its executions and their steps",
    schema="""
CREATE TABLE IF NOT EXISTS pipelines (
    arn TEXT PRIMARY KEY, region TEXT NOT NULL, document TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS executions (
    arn TEXT PRIMARY KEY, pipeline TEXT NOT NULL, owner TEXT NOT NULL, status TEXT NOT NULL,
    document TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS executions_by_pipeline ON executions (pipeline);
CREATE INDEX IF NOT EXISTS executions_by_owner ON executions (owner, status);
CREATE TABLE IF NOT EXISTS steps (
    execution TEXT NOT NULL, name TEXT NOT NULL, pipeline TEXT NOT NULL, status TEXT NOT NULL,
    key TEXT, ended REAL, document TEXT NOT NULL,
    PRIMARY KEY (execution, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS steps_by_key ON steps (pipeline, name, key, ended);
""",
    stored_format=formats.PIPELINES_DATABASE,
)


class Taken(Exception):
    """There is a pipeline, or an execution, of this name."""


class PipelineStore:
    """Safe for many threads and processes. A write is there once the call returns, also after a power cut."""

    def __init__(self, path: Path) -> None:
        self._db = SingleConnection(path, _CONTENTS)

    def close(self) -> None:
        self._db.close()

    # ---- pipelines

    def create(self, pipeline: Pipeline) -> None:
        """Raises Taken."""
        row = (pipeline.arn, pipeline.region, json.dumps(asdict(pipeline)))
        self._insert("INSERT INTO pipelines VALUES (?, ?, ?)", row)

    def change(self, arn: str, how: Callable[[Pipeline], Pipeline]) -> Pipeline | None:
        """Reads, changes and writes a pipeline at once; None when there is none. What ``how`` raises comes
        through."""
        with self._db.writing() as connection:
            found = self.pipeline(arn)
            changed = None if found is None else how(found)
            if changed is not None:
                document = json.dumps(asdict(changed))
                connection.execute("UPDATE pipelines SET document = ? WHERE arn = ?", (document, arn))
        return changed

    def tags_of(self, arn: str) -> Mapping[str, str] | None:
        """None when there is no such pipeline; likewise below."""
        found = self.pipeline(arn)
        return None if found is None else found.tags

    def change_tags(
        self, arn: str, how: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str] | None:
        changed = self.change(arn, lambda one: replace(one, tags=how(one.tags)))
        return None if changed is None else changed.tags

    def pipeline(self, arn: str) -> Pipeline | None:
        rows = self._rows("SELECT document FROM pipelines WHERE arn = ?", arn)
        return Pipeline(**rows[0]) if rows else None

    def pipelines(self, region: str) -> list[Pipeline]:
        return [
            Pipeline(**row) for row in self._rows("SELECT document FROM pipelines WHERE region = ?", region)
        ]

    def delete(self, arn: str) -> None:
        """The pipeline with all its executions."""
        with self._db.writing() as connection:
            connection.execute("DELETE FROM steps WHERE pipeline = ?", (arn,))
            connection.execute("DELETE FROM executions WHERE pipeline = ?", (arn,))
            connection.execute("DELETE FROM pipelines WHERE arn = ?", (arn,))

    # ---- executions

    def start(self, execution: Execution) -> None:
        row = (execution.arn, execution.pipeline, execution.owner, execution.status)
        self._insert("INSERT INTO executions VALUES (?, ?, ?, ?, ?)", (*row, json.dumps(asdict(execution))))

    def save(self, execution: Execution) -> None:
        self._do(
            "UPDATE executions SET owner = ?, status = ?, document = ? WHERE arn = ?",
            *(execution.owner, execution.status, json.dumps(asdict(execution)), execution.arn),
        )

    def execution(self, arn: str) -> Execution | None:
        rows = self._rows("SELECT document FROM executions WHERE arn = ?", arn)
        return Execution(**rows[0]) if rows else None

    def executions(self, pipeline: str) -> list[Execution]:
        rows = self._rows("SELECT document FROM executions WHERE pipeline = ?", pipeline)
        return [Execution(**row) for row in rows]

    def unfinished(self, owner: str) -> list[Execution]:
        """The executions of one endpoint that have not ended."""
        sql = "SELECT document FROM executions WHERE owner = ? AND status NOT IN (?, ?, ?)"
        return [Execution(**row) for row in self._rows(sql, owner, *EXECUTION_ENDED)]

    # ---- steps

    def save_step(self, step: StepRecord) -> None:
        row = (step.execution, step.name, step.pipeline, step.status, step.key, step.ended)
        marks = ",".join("?" * 7)
        self._do(f"INSERT OR REPLACE INTO steps VALUES ({marks})", *row, json.dumps(asdict(step)))  # noqa: S608

    def steps(self, execution: str) -> dict[str, StepRecord]:
        """In the order in which they began."""
        rows = self._rows("SELECT document FROM steps WHERE execution = ?", execution)
        found = sorted((StepRecord(**row) for row in rows), key=lambda one: one.number)
        return {step.name: step for step in found}

    def forget_steps(self, execution: str, names: Iterable[str]) -> None:
        for name in names:
            self._do("DELETE FROM steps WHERE execution = ? AND name = ?", execution, name)

    def cached(self, pipeline: str, name: str, key: str, since: float) -> StepRecord | None:
        """The newest success of a step with the same arguments, itself not from the cache."""
        sql = (
            "SELECT document FROM steps WHERE pipeline = ? AND name = ? AND key = ? AND ended >= ?"
            " AND status = 'Succeeded' ORDER BY ended DESC"
        )
        found = (StepRecord(**row) for row in self._rows(sql, pipeline, name, key, since))
        return next((step for step in found if step.hit is None), None)

    def _do(self, sql: str, *values: Any) -> None:
        with self._db.writing() as connection:
            connection.execute(sql, values)

    def _insert(self, sql: str, values: tuple[Any, ...]) -> None:
        try:
            self._do(sql, *values)
        except sqlite3.IntegrityError:
            raise Taken(values[0]) from None

    def _rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        with self._db.reading() as connection:
            rows = connection.execute(sql, values).fetchall()
        try:
            return [json.loads(text) for (text,) in rows]
        except (ValueError, TypeError) as error:
            raise self._db.damaged_error(f"has a row that cannot be read ({error!r})") from error
