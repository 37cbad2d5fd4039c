"""Pipelines and their executions in one SQLite file, shared by all endpoints of a state directory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from smlaunch.contract import formats
from smlaunch.local.pipelines.pipeline_records import FINAL_STATUSES, Execution, Pipeline, StepRecord
from smlaunch.local.stores.sqlite_database import DatabaseSpec, SingleConnection

_SPEC = DatabaseSpec(
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
    cache_key TEXT, ended REAL, document TEXT NOT NULL,
    PRIMARY KEY (execution, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS steps_by_cache_key ON steps (pipeline, name, cache_key, ended);
""",
    stored_format=formats.PIPELINES_DATABASE,
)


class AlreadyExistsError(Exception):
    """A pipeline or an execution of this ARN exists."""


class PipelineStore:
    """Store for many threads and processes. A write survives a power cut once the call has returned. Every
    method raises StateDamaged for a damaged database."""

    def __init__(self, path: Path) -> None:
        self._database = SingleConnection(path, _SPEC)

    def close(self) -> None:
        self._database.close()

    # ---- pipelines

    def add_pipeline(self, pipeline: Pipeline) -> None:
        """Add a pipeline. Raises AlreadyExistsError."""
        row = (pipeline.arn, pipeline.region, json.dumps(asdict(pipeline)))
        self._insert("INSERT INTO pipelines VALUES (?, ?, ?)", row)

    def update_pipeline(self, arn: str, change: Callable[[Pipeline], Pipeline]) -> Pipeline | None:
        """Replace a pipeline by the result of ``change`` in one transaction, and return the result; None if
        there is no such pipeline. Raises what ``change`` raises."""
        with self._database.write_transaction() as connection:
            stored_pipeline = self.get_pipeline(arn)
            changed_pipeline = None if stored_pipeline is None else change(stored_pipeline)
            if changed_pipeline is not None:
                document = json.dumps(asdict(changed_pipeline))
                connection.execute("UPDATE pipelines SET document = ? WHERE arn = ?", (document, arn))
        return changed_pipeline

    def tags_of(self, arn: str) -> Mapping[str, str] | None:
        """Return the tags of a pipeline; None if there is no such pipeline."""
        pipeline = self.get_pipeline(arn)
        return None if pipeline is None else pipeline.tags

    def change_tags(
        self, arn: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str] | None:
        """Replace the tags of a pipeline by the result of ``change``, and return the result; None if there is
        no such pipeline."""
        changed = self.update_pipeline(arn, lambda stored: replace(stored, tags=change(stored.tags)))
        return None if changed is None else changed.tags

    def get_pipeline(self, arn: str) -> Pipeline | None:
        """Return a pipeline; None if there is none of this ARN."""
        rows = self._query("SELECT document FROM pipelines WHERE arn = ?", arn)
        return Pipeline(**rows[0]) if rows else None

    def list_pipelines(self, region: str) -> list[Pipeline]:
        """Return all pipelines of a region."""
        rows = self._query("SELECT document FROM pipelines WHERE region = ?", region)
        return [Pipeline(**row) for row in rows]

    def delete_pipeline(self, arn: str) -> None:
        """Delete a pipeline with all its executions."""
        with self._database.write_transaction() as connection:
            connection.execute("DELETE FROM steps WHERE pipeline = ?", (arn,))
            connection.execute("DELETE FROM executions WHERE pipeline = ?", (arn,))
            connection.execute("DELETE FROM pipelines WHERE arn = ?", (arn,))

    # ---- executions

    def add_execution(self, execution: Execution) -> None:
        """Add an execution. Raises AlreadyExistsError."""
        row = (execution.arn, execution.pipeline, execution.owner, execution.status)
        self._insert("INSERT INTO executions VALUES (?, ?, ?, ?, ?)", (*row, json.dumps(asdict(execution))))

    def save_execution(self, execution: Execution) -> None:
        """Overwrite the stored execution of the same ARN."""
        self._execute(
            "UPDATE executions SET owner = ?, status = ?, document = ? WHERE arn = ?",
            *(execution.owner, execution.status, json.dumps(asdict(execution)), execution.arn),
        )

    def get_execution(self, arn: str) -> Execution | None:
        """Return an execution; None if there is none of this ARN."""
        rows = self._query("SELECT document FROM executions WHERE arn = ?", arn)
        return Execution(**rows[0]) if rows else None

    def list_executions(self, pipeline_arn: str) -> list[Execution]:
        """Return all executions of a pipeline."""
        rows = self._query("SELECT document FROM executions WHERE pipeline = ?", pipeline_arn)
        return [Execution(**row) for row in rows]

    def list_unfinished_executions(self, owner: str) -> list[Execution]:
        """Return the executions of one endpoint that have not ended."""
        sql = "SELECT document FROM executions WHERE owner = ? AND status NOT IN (?, ?, ?)"
        return [Execution(**row) for row in self._query(sql, owner, *FINAL_STATUSES)]

    # ---- steps

    def save_step(self, step: StepRecord) -> None:
        """Add a step, or overwrite the stored one of the same execution and name."""
        row = (step.execution, step.name, step.pipeline, step.status, step.cache_key, step.ended)
        self._execute(
            "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?)", *row, json.dumps(asdict(step))
        )

    def get_steps(self, execution_arn: str) -> dict[str, StepRecord]:
        """Return the steps of an execution by name, in the order in which they started."""
        rows = self._query("SELECT document FROM steps WHERE execution = ?", execution_arn)
        steps = sorted((StepRecord(**row) for row in rows), key=lambda step: step.number)
        return {step.name: step for step in steps}

    def delete_steps(self, execution_arn: str, names: Iterable[str]) -> None:
        """Delete the records of some steps, so that they can start again."""
        for name in names:
            self._execute("DELETE FROM steps WHERE execution = ? AND name = ?", execution_arn, name)

    def find_cached_step(
        self, pipeline_arn: str, name: str, cache_key: str, earliest_end: float
    ) -> StepRecord | None:
        """Return the newest success of a step with the same arguments that ran its own job and ended at
        ``earliest_end``, in seconds since the epoch, or later; None if there is none."""
        sql = (
            "SELECT document FROM steps WHERE pipeline = ? AND name = ? AND cache_key = ? AND ended >= ?"
            " AND status = 'Succeeded' ORDER BY ended DESC"
        )
        rows = self._query(sql, pipeline_arn, name, cache_key, earliest_end)
        steps = (StepRecord(**row) for row in rows)
        return next((step for step in steps if step.cached_from_execution is None), None)

    def _execute(self, sql: str, *values: Any) -> None:
        with self._database.write_transaction() as connection:
            connection.execute(sql, values)

    def _insert(self, sql: str, values: tuple[Any, ...]) -> None:
        try:
            self._execute(sql, *values)
        except sqlite3.IntegrityError:
            raise AlreadyExistsError(values[0]) from None

    def _query(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Return the documents that a query selects."""
        with self._database.read_access() as connection:
            rows = connection.execute(sql, values).fetchall()
        try:
            return [json.loads(text) for (text,) in rows]
        except (ValueError, TypeError) as error:
            raise self._database.state_damaged_error(f"has a row that cannot be read ({error!r})") from error
