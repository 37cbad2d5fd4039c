"""The storage interfaces that jobs use, as protocols; tests replace them by fakes.

``smlaunch.local`` implements them in object_store.py, log_store.py, log_writer.py and metric_store.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class ListedObject(Protocol):
    """One object of a bucket."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def modified(self) -> float:
        """Time of the last change, in seconds since the epoch."""


class S3ObjectStore(Protocol):
    """The endpoint's S3 objects."""

    @property
    def root(self) -> Path:
        """The directory of the store: ``root / bucket / key`` is an object's file."""

    def create_bucket(self, name: str) -> bool:
        """Create a bucket. Return False if it exists already."""

    def list_objects(self, bucket: str, prefix: str = "") -> Iterator[ListedObject]:
        """Yield the objects whose keys begin with ``prefix``. Raises KeyError for an unknown bucket."""

    def list_object_bodies(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """Yield (key, size in bytes, path of the file) of the same objects, in the same order.

        Raises KeyError if the bucket does not exist, and DamagedObject.
        """

    def object_body_path(self, bucket: str, key: str) -> Path:
        """Return the path of an object's file, which must not be written. Raises KeyError if the object does
        not exist, and DamagedObject."""

    def put_object_file(self, bucket: str, key: str, source: Path, move: bool = False) -> Any:
        """Store a file as an object. ``move`` removes the source. Raises KeyError if the bucket does not
        exist."""

    def put_object_files(
        self, bucket: str, files: Sequence[tuple[str, Path]], move: bool = False
    ) -> Mapping[str, Exception]:
        """Store many files, given as (key, source), and return the errors by key. ``move`` removes the
        sources of the objects that are stored."""

    def delete_object(self, bucket: str, key: str) -> Any:
        """Delete an object, if it exists."""


class LogWriter(Protocol):
    """Writes to one log stream."""

    def append_events(self, events: Sequence[tuple[int, str]]) -> None:
        """Append events, given as (milliseconds since the epoch, line). Never raises: events that cannot be
        written wait in memory."""

    def flush(self, timeout: float = 0.0) -> None:
        """Write the events that wait in memory. With ``timeout``, try for so many seconds and then drop
        them."""


class LogStorage(Protocol):
    """The endpoint's CloudWatch Logs."""

    def open_writer(self, group: str, stream: str) -> LogWriter: ...


class MetricStorage(Protocol):
    """The endpoint's CloudWatch metrics."""

    def put_points(
        self, namespace: str, dimensions: Mapping[str, str], points: Sequence[tuple[str, int, float]]
    ) -> None:
        """Store points, given as (metric name, milliseconds since the epoch, value)."""
