"""CloudWatch's numbers: one SQLite file, shared by all endpoints of a state directory."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, dimensions TEXT NOT NULL,
    UNIQUE (namespace, name, dimensions)
);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL, ms INTEGER NOT NULL,
    many REAL NOT NULL, total REAL NOT NULL, low REAL NOT NULL, high REAL NOT NULL, unit TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS points_by_time ON points (series, ms);
"""


class Sample(NamedTuple):
    """One datum, or ``many`` put as a set. ``ms``: milliseconds since the epoch."""

    name: str
    ms: int
    many: float
    total: float
    low: float
    high: float
    unit: str = "None"


class Bucket(NamedTuple):
    """The ``many`` data of one period, which begins ``start`` seconds after the epoch."""

    start: int
    many: float
    total: float
    low: float
    high: float
    unit: str


class MetricStore:
    """Safe for many threads and processes."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], int] = {}
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def put(
        self, namespace: str, dimensions: Mapping[str, str], points: Sequence[tuple[str, int, float]]
    ) -> None:
        """``points``: name, milliseconds since the epoch, value. Values that are not finite are left out, as
        CloudWatch refuses them."""
        self.add(
            namespace,
            dimensions,
            [Sample(name, ms, 1, value, value, value) for name, ms, value in points if math.isfinite(value)],
        )

    def add(self, namespace: str, dimensions: Mapping[str, str], samples: Iterable[Sample]) -> None:
        key = _key(dimensions)
        held = list(samples)
        with self._lock:
            ids = {name: self._series(namespace, name, key) for name in {sample.name for sample in held}}
            rows = [(ids[sample.name], *sample[1:]) for sample in held]
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO points VALUES (?,?,?,?,?,?,?)", rows)
            self._connection.execute("COMMIT")

    def buckets(
        self,
        namespace: str,
        name: str,
        dimensions: Mapping[str, str],
        start: float,
        end: float,
        period: int,
    ) -> list[Bucket]:
        """What was put from ``start`` to before ``end`` (seconds), by periods, in order of time."""
        statement = """
            SELECT ms / ? AS bucket, sum(many), sum(total), min(low), max(high), max(unit)
            FROM points JOIN series ON series.id = points.series
            WHERE namespace = ? AND name = ? AND dimensions = ? AND ms >= ? AND ms < ?
            GROUP BY bucket ORDER BY bucket"""
        # The first period begins at or before the start, as CloudWatch rounds it.
        first = math.floor(start / period) * period
        values = (period * 1000, namespace, name, _key(dimensions), first * 1000, math.ceil(end * 1000))
        with self._lock:
            rows = self._connection.execute(statement, values).fetchall()
        return [Bucket(row[0] * period, *row[1:]) for row in rows]

    def metrics(self, namespace: str | None, name: str | None) -> list[tuple[str, str, dict[str, str]]]:
        """Namespace, name and dimensions of all that was ever put, in that order."""
        statement = """
            SELECT namespace, name, dimensions FROM series
            WHERE (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR name = ?2) ORDER BY 1, 2, 3"""
        with self._lock:
            rows = self._connection.execute(statement, (namespace, name)).fetchall()
        return [(space, metric, json.loads(dimensions)) for space, metric, dimensions in rows]

    def _series(self, namespace: str, name: str, dimensions: str) -> int:
        """The number that stands for a metric; under the lock."""
        words = (namespace, name, dimensions)
        if words not in self._known:
            insert = "INSERT OR IGNORE INTO series (namespace, name, dimensions) VALUES (?, ?, ?)"
            self._connection.execute(insert, words)
            select = "SELECT id FROM series WHERE namespace = ? AND name = ? AND dimensions = ?"
            (self._known[words],) = self._connection.execute(select, words).fetchone()
        return self._known[words]


def _key(dimensions: Mapping[str, str]) -> str:
    return json.dumps(dict(dimensions), sort_keys=True)
