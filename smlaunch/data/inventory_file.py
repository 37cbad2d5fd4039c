"""The inventory file: the objects below a prefix (or in a folder), one Parquet row each, in key order.

Columns: ``key`` (relative to the bucket), ``size`` (bytes) and, if known, ``etag``, ``modified`` and columns
of weights. The order is that of the keys' UTF-8 bytes, which is the order S3 lists in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smlaunch.errors import JobError, Problem, write_error

INVENTORY_VERSION = "1.0"

ROW_GROUP_ROWS = 131_072
"""Rows that a reader has in memory at a time: about 10 MB of ordinary keys."""

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("modified", pa.timestamp("us", tz="UTC")),
    ]
)


class Inventory:
    """An existing inventory file. Only its footer has been read.

    ``bucket`` is empty if the keys are paths in the folder ``prefix``. ``total_bytes`` is None if the file
    does not record the sum.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises JobError if the file is not an inventory."""
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path, memory_map=True)
        except (OSError, pa.ArrowInvalid) as error:
            raise _inventory_error(self.path, f"cannot be read as Parquet: {error}") from error
        metadata = {
            name.decode(): text.decode() for name, text in (self._file.metadata.metadata or {}).items()
        }
        self.version = metadata.get("smlaunch.version", "")
        self.bucket = metadata.get("smlaunch.bucket", "")
        self.prefix = metadata.get("smlaunch.prefix", "")
        self.created_at = metadata.get("smlaunch.at", "")
        self.total_bytes = int(metadata["smlaunch.bytes"]) if "smlaunch.bytes" in metadata else None
        self.object_count: int = self._file.metadata.num_rows
        self.schema = self._file.schema_arrow
        self._check_version_and_columns()

    def _check_version_and_columns(self) -> None:
        """Raise JobError unless the Parquet file has a known version and the columns of an inventory."""
        major_version = self.version.partition(".")[0]
        # Another tool's file states no version: its columns decide.
        if major_version not in ("", INVENTORY_VERSION.partition(".")[0]):
            raise _inventory_error(
                self.path, f"is of version {self.version}; this smlaunch reads {INVENTORY_VERSION}"
            )
        self._check_column("key", _is_text_type, "text")
        self._check_column("size", pa.types.is_integer, "whole numbers")

    def _check_column(self, name: str, has_valid_type: Callable[[Any], bool], valid_types: str) -> None:
        """Raise JobError unless there is such a column with a valid type. ``valid_types``: for messages."""
        if name not in self.schema.names:
            existing_columns = ", ".join(self.schema.names) or "none"
            raise _inventory_error(
                self.path, f"has no column {name!r}, which an inventory needs; it has: {existing_columns}"
            )
        column_type = self.schema.field(name).type
        if not has_valid_type(column_type):
            raise _inventory_error(self.path, f"column {name!r} must hold {valid_types}, not {column_type}")

    @property
    def weight_columns(self) -> list[str]:
        """The columns besides ``size`` that a split may balance: numbers, one per object."""
        return [
            field.name
            for field in self.schema
            if field.name != "size" and (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
        ]

    def batches(self, columns: Sequence[str] = ("key", "size"), rows: int = ROW_GROUP_ROWS) -> Iterator[Any]:
        """Yield ``pyarrow.RecordBatch`` after ``pyarrow.RecordBatch``, in key order."""
        yield from self._file.iter_batches(batch_size=rows, columns=list(columns))

    def column(self, name: str) -> Any:
        """Return one whole numeric column as a NumPy array of 8 bytes per object. Raises JobError on
        a null."""
        values = self._file.read(columns=[name]).column(0)
        if values.null_count:
            raise _inventory_error(
                self.path, f"column {name!r} has no value for {values.null_count:,} objects"
            )
        return values.to_numpy()


class InventoryWriter:
    """Writes an inventory. The complete file appears when the ``with`` block ends without an error."""

    def __init__(self, path: str | os.PathLike[str], bucket: str, prefix: str, schema: Any = SCHEMA) -> None:
        """``schema``: that of the tables to come; its first two columns are ``key`` and ``size``."""
        self._path = Path(path)
        self._temporary_path = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        metadata = {
            "smlaunch.version": INVENTORY_VERSION,
            "smlaunch.bucket": bucket,
            "smlaunch.prefix": prefix,
            "smlaunch.at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        self._schema = schema.with_metadata(metadata)
        self._pending_tables: list[Any] = []
        self._last_key: str | None = None
        self.object_count = 0
        self.total_bytes = 0

    def __enter__(self) -> InventoryWriter:
        require_replaceable(self._path)
        try:
            # Values hardly repeat: dictionaries for every row group would only cost time.
            self._file = pq.ParquetWriter(
                self._temporary_path,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
            )
        except OSError as error:
            self._temporary_path.unlink(missing_ok=True)
            raise write_error("--out", self._path, error) from error
        return self

    def write(self, table: Any) -> None:
        """Append the next rows, in key order. Raises JobError for a repeated key."""
        if not table.num_rows:
            return
        self._check_order(table.column("key"))
        self.object_count += table.num_rows
        self.total_bytes += pc.sum(table.column("size")).as_py()
        self._pending_tables.append(table)
        if sum(pending.num_rows for pending in self._pending_tables) >= ROW_GROUP_ROWS:
            self._write_pending_rows(full_groups_only=True)

    def _check_order(self, keys: Any) -> None:
        """Raise JobError unless these keys ascend and follow the last one written."""
        first_key, last_key = keys[0].as_py(), keys[-1].as_py()
        wrong_key: str | None = None
        if self._last_key is not None and first_key <= self._last_key:
            wrong_key = first_key
        else:
            is_not_below_next = pc.greater_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
            wrong_index = pc.index(is_not_below_next, True).as_py()  # -1: all are
            if wrong_index >= 0:
                wrong_key = keys[wrong_index + 1].as_py()
        if wrong_key is not None:
            raise _inventory_error(self._path, f"key {wrong_key!r} is repeated or out of order")
        self._last_key = last_key

    def _write_pending_rows(self, full_groups_only: bool) -> None:
        """Write the rows that are pending into the inventory's Parquet file; with ``full_groups_only`` only
        as many as fill row groups (the units that a Parquet file is read by), the others stay pending."""
        table = pa.concat_tables(self._pending_tables)
        row_count = table.num_rows
        if full_groups_only:
            row_count -= table.num_rows % ROW_GROUP_ROWS
        try:
            self._file.write_table(table.slice(0, row_count), row_group_size=ROW_GROUP_ROWS)
        except OSError as error:
            raise write_error("--out", self._path, error) from error
        self._pending_tables = [table.slice(row_count)] if row_count < table.num_rows else []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            with suppress(OSError):  # of a full disk, which is already reported
                self._file.close()
            self._temporary_path.unlink(missing_ok=True)

    def _finish(self) -> None:
        """Write the remaining rows and move the file to its path."""
        if self._pending_tables:
            self._write_pending_rows(full_groups_only=False)
        self._file.add_key_value_metadata({"smlaunch.bytes": str(self.total_bytes)})
        try:
            self._file.close()
            fsync_and_rename(self._temporary_path, self._path)
        except OSError as error:
            raise write_error("--out", self._path, error) from error


def require_replaceable(path: Path) -> None:
    """Raise JobError for a folder, and for a device or pipe, which a new file would replace."""
    if path.exists() and not path.is_file():
        raise JobError([Problem("--out", f"{path} is no ordinary file; name one, or a new one")])


def fsync_and_rename(temporary_path: Path, path: Path) -> None:
    """Move a finished file to its final path, so that it survives a crash of the machine too."""
    descriptor = os.open(temporary_path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary_path.replace(path)


def _is_text_type(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _inventory_error(path: Path, message: str) -> JobError:
    return JobError([Problem(str(path), message)])
