"""The store of CloudWatch metrics: one SQLite file, shared by all endpoints of a state directory."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.contract import formats
from smlaunch.local.stores.sqlite_database import DatabaseSpec, SingleConnection

_CONTENTS = DatabaseSpec(
    "the metrics that jobs and clients have put (CloudWatch)",
    schema="""
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, dimensions TEXT NOT NULL,
    UNIQUE (namespace, name, dimensions)
);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL, ms INTEGER NOT NULL,
    many REAL NOT NULL, total REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, unit TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS points_by_time ON points (series, ms);
""",
    stored_format=formats.METRICS_DATABASE,
    durable=False,
)


class MetricSample(NamedTuple):
    """A value of a metric, or statistics of ``sample_count`` values. ``timestamp_ms``: milliseconds since the
    epoch; ``total``: the sum."""

    name: str
    timestamp_ms: int
    sample_count: float
    total: float
    minimum: float
    maximum: float
    unit: str = "None"


class PeriodStatistics(NamedTuple):
    """Statistics of a metric in one period. ``start``: seconds since the epoch; ``total``: the sum."""

    start: int
    sample_count: float
    total: float
    minimum: float
    maximum: float
    unit: str


class MetricStore:
    """Metrics, for many threads and processes. kill -9 loses nothing, a power cut the last seconds."""

    def __init__(self, path: Path) -> None:
        self._id_by_series: dict[tuple[str, str, str], int] = {}
        self._db = SingleConnection(path, _CONTENTS)

    def close(self) -> None:
        self._db.close()

    def put_points(
        self, namespace: str, dimensions: Mapping[str, str], points: Sequence[tuple[str, int, float]]
    ) -> None:
        """Store ``points``, given as (name, milliseconds since the epoch, value), without values that are not
        finite, which CloudWatch rejects."""
        self.put_samples(
            namespace,
            dimensions,
            [
                MetricSample(name, ms, 1, value, value, value)
                for name, ms, value in points
                if math.isfinite(value)
            ],
        )

    def put_samples(
        self, namespace: str, dimensions: Mapping[str, str], samples: Iterable[MetricSample]
    ) -> None:
        """Store samples of metrics that have this namespace and these dimensions."""
        dimensions_key = _dimensions_key(dimensions)
        samples_list = list(samples)
        with self._db.write_transaction() as connection:
            series_id_by_name = {
                name: self._series_id(connection, (namespace, name, dimensions_key))
                for name in {sample.name for sample in samples_list}
            }
            rows = [(series_id_by_name[sample.name], *sample[1:]) for sample in samples_list]
            connection.executemany("INSERT INTO points VALUES (?,?,?,?,?,?,?)", rows)
        for name, series_id in series_id_by_name.items():
            self._id_by_series[namespace, name, dimensions_key] = series_id

    def statistics_by_period(
        self,
        namespace: str,
        name: str,
        dimensions: Mapping[str, str],
        start: float,
        end: float,
        period_seconds: int,
    ) -> list[PeriodStatistics]:
        """Return the statistics of each period from ``start`` (inclusive) to ``end``, in seconds since the
        epoch, in chronological order. Periods without samples are left out."""
        statement = """
            SELECT ms / ? AS period, sum(many), sum(total), min(low), max(high), max(unit)
            FROM points JOIN series ON series.id = points.series
            WHERE namespace = ? AND name = ? AND dimensions = ? AND ms >= ? AND ms < ?
            GROUP BY period ORDER BY period"""
        # The first period begins at or before the start, as CloudWatch rounds it.
        first_period_start = math.floor(start / period_seconds) * period_seconds
        parameters = (
            period_seconds * 1000,
            namespace,
            name,
            _dimensions_key(dimensions),
            first_period_start * 1000,
            math.ceil(end * 1000),
        )
        with self._db.read_access() as connection:
            rows = connection.execute(statement, parameters).fetchall()
        return [
            PeriodStatistics(period_number * period_seconds, *statistics)
            for period_number, *statistics in rows
        ]

    def list_metrics(self, namespace: str | None, name: str | None) -> list[tuple[str, str, dict[str, str]]]:
        """Return (namespace, name, dimensions) of all metrics, sorted."""
        statement = """
            SELECT namespace, name, dimensions FROM series
            WHERE (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR name = ?2) ORDER BY 1, 2, 3"""
        with self._db.read_access() as connection:
            rows = connection.execute(statement, (namespace, name)).fetchall()
        return [(space, metric, json.loads(dimensions)) for space, metric, dimensions in rows]

    def _series_id(self, connection: sqlite3.Connection, metric: tuple[str, str, str]) -> int:
        """Return the row id of a metric, given as (namespace, name, dimensions key). Creates the row."""
        if metric in self._id_by_series:
            return self._id_by_series[metric]
        insert = "INSERT OR IGNORE INTO series (namespace, name, dimensions) VALUES (?, ?, ?)"
        connection.execute(insert, metric)
        select = "SELECT id FROM series WHERE namespace = ? AND name = ? AND dimensions = ?"
        (series_id,) = connection.execute(select, metric).fetchone()
        return int(series_id)


def _dimensions_key(dimensions: Mapping[str, str]) -> str:
    return json.dumps(dict(dimensions), sort_keys=True)
