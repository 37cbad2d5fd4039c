"""What running a job needs of the endpoint's other rooms: a few methods of its object and log stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class ObjectEntry(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def modified(self) -> float: ...


class Objects(Protocol):
    """``create_bucket`` says whether it was not there. ``list`` and ``put_file`` raise a KeyError for a
    bucket that does not exist, ``path`` for a key."""

    @property
    def root(self) -> Path: ...
    def create_bucket(self, name: str) -> bool: ...
    def list(self, bucket: str, prefix: str = "") -> Iterator[ObjectEntry]: ...
    def bodies(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, int, str]]: ...
    def path(self, bucket: str, key: str) -> Path: ...
    def put_file(self, bucket: str, key: str, source: Path, move: bool = False) -> Any: ...
    def put_files(
        self, bucket: str, files: Sequence[tuple[str, Path]], move: bool = False
    ) -> Mapping[str, Exception]: ...
    def delete(self, bucket: str, key: str) -> Any: ...


class LogWriter(Protocol):
    """``append`` never fails: what cannot be written waits. ``settle`` writes that, for at most ``patience``
    seconds."""

    def append(self, events: Sequence[tuple[int, str]]) -> None: ...
    def settle(self, patience: float = 0.0) -> None: ...


class Logs(Protocol):
    def writer(self, group: str, stream: str) -> LogWriter: ...


class Metrics(Protocol):
    def put(
        self, namespace: str, dimensions: Mapping[str, str], points: Sequence[tuple[str, int, float]]
    ) -> None:
        """``points``: name, milliseconds since the epoch, value."""
