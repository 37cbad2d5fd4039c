"""The inventory file: which objects lie below a prefix (or in a folder), one Parquet row each, in key order.

Columns: ``key`` (relative to the bucket), ``size`` (bytes) and, where they are known, ``etag``, ``modified``
and columns of weights. Order is that of the keys' UTF-8 bytes, which is the order S3 lists in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smlaunch.errors import JobError, Problem

VERSION = "1.0"

ROW_GROUP = 131_072
"""Rows that a reader has in memory at a time: some 10 MB of usual keys."""

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("modified", pa.timestamp("us", tz="UTC")),
    ]
)


class Inventory:
    """An inventory file that is there. Only its footer has been read.

    ``bucket`` is empty where the keys are paths in the folder ``prefix``. ``bytes`` is None where whoever
    wrote the file has not kept the sum.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises JobError when the file is none, or lacks what an inventory must have."""
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path, memory_map=True)
        except (OSError, pa.ArrowInvalid) as error:
            raise _wrong(self.path, f"cannot be read as Parquet: {error}") from error
        kept = {name.decode(): text.decode() for name, text in (self._file.metadata.metadata or {}).items()}
        self.version = kept.get("smlaunch.version", "")
        self.bucket = kept.get("smlaunch.bucket", "")
        self.prefix = kept.get("smlaunch.prefix", "")
        self.at = kept.get("smlaunch.at", "")
        self.bytes = int(kept["smlaunch.bytes"]) if "smlaunch.bytes" in kept else None
        self.objects: int = self._file.metadata.num_rows
        self.schema = self._file.schema_arrow
        self._check()

    def _check(self) -> None:
        if self.version.partition(".")[0] not in ("", VERSION.partition(".")[0]):
            raise _wrong(self.path, f"is of version {self.version}; this smlaunch reads {VERSION}")
        names = self.schema.names
        for name, fits, kind in (("key", _is_text, "text"), ("size", pa.types.is_integer, "whole numbers")):
            if name not in names:
                there = ", ".join(names) or "none"
                raise _wrong(self.path, f"has no column {name!r}, which an inventory must; it has: {there}")
            if not fits(self.schema.field(name).type):
                found = self.schema.field(name).type
                raise _wrong(self.path, f"column {name!r} must hold {kind}, not {found}")

    @property
    def weights(self) -> list[str]:
        """The columns besides ``size`` that parts may be balanced by: numbers, one for each object."""
        return [
            field.name
            for field in self.schema
            if field.name != "size" and (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
        ]

    def batches(self, columns: Sequence[str] = ("key", "size"), rows: int = ROW_GROUP) -> Iterator[Any]:
        """``pyarrow.RecordBatch`` by ``pyarrow.RecordBatch``, in key order."""
        yield from self._file.iter_batches(batch_size=rows, columns=list(columns))

    def column(self, name: str) -> Any:
        """One column of numbers whole, as a NumPy array of 8 bytes per object. Raises JobError on a null."""
        values = self._file.read(columns=[name]).column(0)
        if values.null_count:
            raise _wrong(self.path, f"column {name!r} has no value for {values.null_count:,} objects")
        return values.to_numpy()


class InventoryWriter:
    """Writes an inventory; the file appears, whole, when the ``with`` block ends without an error."""

    def __init__(self, path: str | os.PathLike[str], bucket: str, prefix: str, schema: Any = SCHEMA) -> None:
        """``schema``: that of the tables to come, its first two columns ``key`` and ``size``."""
        self._path = Path(path)
        self._unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        kept = {
            "smlaunch.version": VERSION,
            "smlaunch.bucket": bucket,
            "smlaunch.prefix": prefix,
            "smlaunch.at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        self._schema = schema.with_metadata(kept)
        self._waiting: list[Any] = []
        self._last: str | None = None
        self.objects = 0
        self.bytes = 0

    def __enter__(self) -> InventoryWriter:
        try:
            # Hardly a value repeats: a dictionary would be built in vain for every row group.
            self._file = pq.ParquetWriter(
                self._unfinished, self._schema, compression="zstd", compression_level=1, use_dictionary=False
            )
        except OSError as error:
            self._unfinished.unlink(missing_ok=True)
            raise _wrong(self._path, f"cannot be written: {error}") from error
        return self

    def write(self, table: Any) -> None:
        """Takes the next rows, in key order. Raises JobError for a key that is there already."""
        if not table.num_rows:
            return
        self._check_order(table.column("key"))
        self.objects += table.num_rows
        self.bytes += pc.sum(table.column("size")).as_py()
        self._waiting.append(table)
        if sum(one.num_rows for one in self._waiting) >= ROW_GROUP:
            self._flush(whole_groups=True)

    def _check_order(self, keys: Any) -> None:
        first, last = keys[0].as_py(), keys[-1].as_py()
        rising = self._last is None or self._last < first
        if rising and pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)), min_count=0).as_py():
            self._last = last
            return
        if not rising:
            key = first
        else:
            wrong = pc.greater_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
            key = keys[pc.index(wrong, True).as_py() + 1].as_py()
        raise _wrong(self._path, f"key {key!r} comes twice, or out of order")

    def _flush(self, whole_groups: bool) -> None:
        table = pa.concat_tables(self._waiting)
        rows = table.num_rows - table.num_rows % ROW_GROUP if whole_groups else table.num_rows
        try:
            self._file.write_table(table.slice(0, rows), row_group_size=ROW_GROUP)
        except OSError as error:
            raise _wrong(self._path, f"cannot be written: {error}") from error
        self._waiting = [table.slice(rows)] if rows < table.num_rows else []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            with suppress(OSError):  # of a full disk, which has been told
                self._file.close()
            self._unfinished.unlink(missing_ok=True)

    def _finish(self) -> None:
        if self._waiting:
            self._flush(whole_groups=False)
        self._file.add_key_value_metadata({"smlaunch.bytes": str(self.bytes)})
        try:
            self._file.close()
            publish(self._unfinished, self._path)
        except OSError as error:
            raise _wrong(self._path, f"cannot be written: {error}") from error


def publish(unfinished: Path, path: Path) -> None:
    """Puts a finished file in its place, so that it survives a crash of the machine too."""
    descriptor = os.open(unfinished, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    unfinished.replace(path)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _wrong(path: Path, message: str) -> JobError:
    return JobError([Problem(str(path), message)])
