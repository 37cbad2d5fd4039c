"""CloudWatch's numbers: one SQLite file, shared by all endpoints of a state directory."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.database import Contents, OneConnection

_CONTENTS = Contents(
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
    version=1,
    durable=False,
)


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
    """Safe for many threads and processes. A kill -9 loses nothing, a power cut the last seconds."""

    def __init__(self, path: Path) -> None:
        self._known: dict[tuple[str, str, str], int] = {}
        self._db = OneConnection(path, _CONTENTS)

    def close(self) -> None:
        self._db.close()

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
        names = {sample.name for sample in held}
        with self._db.writing() as connection:
            ids = {name: self._series(connection, (namespace, name, key)) for name in names}
            rows = [(ids[sample.name], *sample[1:]) for sample in held]
            connection.executemany("INSERT INTO points VALUES (?,?,?,?,?,?,?)", rows)
        self._known.update({(namespace, name, key): number for name, number in ids.items()})

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
        with self._db.reading() as connection:
            rows = connection.execute(statement, values).fetchall()
        return [Bucket(row[0] * period, *row[1:]) for row in rows]

    def metrics(self, namespace: str | None, name: str | None) -> list[tuple[str, str, dict[str, str]]]:
        """Namespace, name and dimensions of all that was ever put, in that order."""
        statement = """
            SELECT namespace, name, dimensions FROM series
            WHERE (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR name = ?2) ORDER BY 1, 2, 3"""
        with self._db.reading() as connection:
            rows = connection.execute(statement, (namespace, name)).fetchall()
        return [(space, metric, json.loads(dimensions)) for space, metric, dimensions in rows]

    def _series(self, connection: sqlite3.Connection, words: tuple[str, str, str]) -> int:
        """The number that stands for a metric."""
        if words in self._known:
            return self._known[words]
        insert = "INSERT OR IGNORE INTO series (namespace, name, dimensions) VALUES (?, ?, ?)"
        connection.execute(insert, words)
        select = "SELECT id FROM series WHERE namespace = ? AND name = ? AND dimensions = ?"
        (number,) = connection.execute(select, words).fetchone()
        return int(number)


def _key(dimensions: Mapping[str, str]) -> str:
    return json.dumps(dict(dimensions), sort_keys=True)
