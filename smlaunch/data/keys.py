"""Keys of an inventory as a split reads them: sizes and weights in blocks, names in batches.

Zero-byte objects whose name ends with ``/`` are omitted: consoles create them to display a folder, they are
no file on a host, and in a manifest an empty relative name would stand for the whole prefix.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlaunch.data.inventory import Inventory
from smlaunch.data.split import BLOCK_ROWS, to_size_array
from smlaunch.errors import JobError, Problem

Item = TypeVar("Item")

SIZE_COLUMN = "size"
"""The inventory column that a split balances unless another one is named."""

_NAMES_PER_BATCH = 1 << 16
"""Names processed together: a few megabytes, which almost fit into a processor's cache."""

_MAX_CACHED_SIZES = 1 << 24
"""Up to this many objects, sizes stay in memory (128 MB) instead of being read three times."""

_SLICE_END = 2**31 - 1
"""Greater than any name's length. Without an end ``binary_slice`` fails (pyarrow 26: "Negative buffer
resize")."""


class NameBatch(NamedTuple):
    """Consecutive names of an inventory."""

    start: int
    """Row of the first name."""
    names: Any
    """Relative to ``InventoryKeys.base_prefix``; UTF-8 in a pyarrow binary array."""


class InventoryKeys:
    """The objects of an inventory without folder markers, numbered from 0 in key order.

    ``base_prefix``: the part of the prefix up to its last slash. All keys begin with it, and names omit it. A
    channel over ``s3://<bucket>/<base_prefix>`` has the files under these names.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.bucket = inventory.bucket
        # The prefix of a folder's inventory is the folder, and its keys are already relative to it.
        self.base_prefix = inventory.prefix[: inventory.prefix.rfind("/") + 1] if inventory.bucket else ""
        self._sizes: list[Any] = []
        self._marker_rows = self._find_marker_rows()
        self.count: int = inventory.object_count - len(self._marker_rows)

    @property
    def marker_count(self) -> int:
        """Number of folder markers, which are omitted."""
        return len(self._marker_rows)

    def column_blocks(self, column: str = SIZE_COLUMN) -> Iterator[Any]:
        """Yield one numeric column in arrays, as ``split_blocks`` reads them. Raises JobError for a column
        that is not numeric or has missing values."""
        self._check_column(column)
        start = 0
        for block in (
            self._sizes if column == SIZE_COLUMN and self._sizes else _prefetched(self._read_column(column))
        ):
            yield self._without_markers(block, start)
            start += len(block)

    def name_batches(self) -> Iterator[NameBatch]:
        """Yield all names. Raises JobError for keys that are not UTF-8, are repeated, are out of order, or
        lie outside ``base_prefix``."""
        return _prefetched(self._read_names())

    def _read_names(self) -> Iterator[NameBatch]:
        """Yield names relative to ``base_prefix``, without folder markers."""
        previous_key, row, start = None, 0, 0
        for batch in self._inventory.batches(("key",), rows=_NAMES_PER_BATCH):
            keys = batch.column(0)
            if not len(keys):
                continue
            self._check_keys(keys, row, previous_key)
            previous_key = keys[-1]
            names = self._relative_names(keys, row)
            if len(self._marker_rows):
                names = names.take(self._without_markers(np.arange(len(keys)), row))
            yield NameBatch(start, names)
            start += len(names)
            row += len(keys)

    def _read_column(self, column: str) -> Iterator[Any]:
        start = 0
        for batch in self._inventory.batches((column,), rows=BLOCK_ROWS):
            values = batch.column(0)
            if values.null_count:
                row = start + pc.index(pc.is_null(values), True).as_py()
                raise self._error(f"column {column!r} has no value in row {row:,}; add one")
            yield to_size_array(values.to_numpy(zero_copy_only=False))
            start += len(values)

    def _find_marker_rows(self) -> Any:
        """Return the rows of folder markers; cache the sizes if there are few enough."""
        rows: list[Any] = []
        start, has_empty_objects = 0, False
        for block in _prefetched(self._read_column(SIZE_COLUMN)):
            has_empty_objects = has_empty_objects or not block.all()
            if self._inventory.object_count <= _MAX_CACHED_SIZES:
                self._sizes.append(block)
        if has_empty_objects:
            for batch in self._inventory.batches(("key", SIZE_COLUMN), rows=_NAMES_PER_BATCH):
                empty_rows = np.flatnonzero(batch.column(1).to_numpy(zero_copy_only=False) == 0)
                ends_with_slash = pc.ends_with(batch.column(0).take(empty_rows), "/").to_numpy(
                    zero_copy_only=False
                )
                rows.append(empty_rows[ends_with_slash.astype(bool)] + start)
                start += batch.num_rows
        return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)

    def _without_markers(self, values: Any, start: int) -> Any:
        first, last = np.searchsorted(self._marker_rows, (start, start + len(values)))
        return np.delete(values, self._marker_rows[first:last] - start) if last > first else values

    def _check_column(self, column: str) -> None:
        numbers = [SIZE_COLUMN, *self._inventory.weight_columns]
        if column not in numbers:
            raise JobError(
                [
                    Problem(
                        "--weight", f"there is no column {column!r} of numbers; {_available_columns(numbers)}"
                    )
                ]
            )

    def _check_keys(self, keys: Any, first_row: int, previous_key: Any) -> None:
        """Raise JobError unless the keys are UTF-8, ascend, and follow ``previous_key``."""
        if keys.null_count:
            wrong_row = first_row + pc.index(pc.is_null(keys), True).as_py()
            raise self._error(f"row {wrong_row:,} has no key")
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._error(f"a key after row {first_row:,} is not UTF-8: {error}") from None
        keys_in_order = (
            pa.concat_arrays([pa.array([previous_key.as_py()], keys.type), keys])
            if previous_key is not None
            else keys
        )
        breaks_order = pc.greater_equal(keys_in_order[:-1], keys_in_order[1:])
        if pc.any(breaks_order, min_count=0).as_py():
            wrong_row = pc.index(breaks_order, True).as_py() + 1
            key, is_duplicate = (
                keys_in_order[wrong_row].as_py(),
                keys_in_order[wrong_row].equals(keys_in_order[wrong_row - 1]),
            )
            problem = (
                "is repeated; keep one of them"
                if is_duplicate
                else "is not in the order of UTF-8 bytes; sort by key"
            )
            raise self._error(f"key {key!r} {problem}")

    def _relative_names(self, keys: Any, first_row: int) -> Any:
        """Return the keys without ``base_prefix``. Raises JobError for a key outside of it."""
        for key in (keys[0].as_py(), keys[-1].as_py()):  # in order, so that those between begin alike
            if not key.startswith(self.base_prefix):
                raise self._error(
                    f"key {key!r} is not below the prefix {self.base_prefix!r} that the file states"
                )
        try:
            names = keys.cast(pa.binary())
        except pa.ArrowInvalid as error:
            raise self._error(f"keys after row {first_row:,} are longer than S3's: {error}") from None
        return (
            pc.binary_slice(names, len(self.base_prefix.encode()), _SLICE_END) if self.base_prefix else names
        )

    def _error(self, message: str) -> JobError:
        return JobError([Problem(os.fspath(self._inventory.path), message)])


def _prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; the next one is read while the current one is used (pyarrow releases the GIL
    while it reads)."""
    with ThreadPoolExecutor(1, "keys") as executor:
        next_item = executor.submit(next, items, None)
        while (item := next_item.result()) is not None:
            next_item = executor.submit(next, items, None)
            yield item


def _available_columns(columns: list[str]) -> str:
    return "there is " + ", ".join(columns)
