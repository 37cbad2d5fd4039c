"""Keys of an inventory as a split reads them: sizes and weights in blocks, names in batches.

Zero-byte objects whose name ends with ``/`` are omitted: consoles create them to display a folder, they are
no file on a host, and in a manifest an empty relative name would stand for the whole prefix.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlaunch.data.inventory_file import Inventory
from smlaunch.data.split import BLOCK_ROWS, to_size_array
from smlaunch.errors import JobError, Problem

Item = TypeVar("Item")

SIZE_COLUMN = "size"
"""The inventory column that a split balances unless another one is named."""

_NAMES_PER_BATCH = 1 << 16
"""Names processed together: a few megabytes, which almost fit into a processor's cache."""

_MAX_CACHED_SIZES = 1 << 24
"""Up to this many objects, sizes stay in memory (128 MB) instead of being read three times."""

_MAX_SLICE_END = 2**31 - 1
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
        self._cached_size_blocks: list[Any] = []
        self._folder_marker_rows = self._find_folder_marker_rows()
        self.count: int = inventory.object_count - len(self._folder_marker_rows)

    @property
    def marker_count(self) -> int:
        """Number of folder markers, which are omitted."""
        return len(self._folder_marker_rows)

    def column_blocks(self, column: str = SIZE_COLUMN) -> Iterator[Any]:
        """Yield one numeric column in arrays, as ``split_size_blocks`` reads them. Raises JobError for a
        column that is not numeric or has missing values."""
        self._check_column(column)
        if column == SIZE_COLUMN and self._cached_size_blocks:
            blocks: Iterable[Any] = self._cached_size_blocks
        else:
            blocks = _prefetch_next(self._iter_column_blocks(column))
        first_row = 0
        for block in blocks:
            yield self._drop_folder_markers(block, first_row)
            first_row += len(block)

    def name_batches(self) -> Iterator[NameBatch]:
        """Yield all names. Raises JobError for keys that are not UTF-8, are repeated, are out of order, or
        lie outside ``base_prefix``."""
        return _prefetch_next(self._iter_name_batches())

    def _iter_name_batches(self) -> Iterator[NameBatch]:
        """Yield the inventory's names relative to ``base_prefix``, batch by batch, without folder markers.
        Raises JobError for keys that are repeated, out of order or outside of the prefix."""
        previous_key: Any = None
        # Folder markers, empty objects that display a folder, are omitted: the rest is numbered anew.
        inventory_row = 0  # of the batch's first key, with folder markers
        name_number = 0  # of the batch's first name, without them
        for batch in self._inventory.batches(("key",), rows=_NAMES_PER_BATCH):
            keys = batch.column(0)
            if not len(keys):
                continue
            self._check_keys_ascend(keys, inventory_row, previous_key)
            previous_key = keys[-1]
            names = self._strip_base_prefix(keys, inventory_row)
            if len(self._folder_marker_rows):
                kept_indices = self._drop_folder_markers(np.arange(len(keys)), inventory_row)
                names = names.take(kept_indices)
            yield NameBatch(name_number, names)
            name_number += len(names)
            inventory_row += len(keys)

    def _iter_column_blocks(self, column: str) -> Iterator[Any]:
        start = 0
        for batch in self._inventory.batches((column,), rows=BLOCK_ROWS):
            values = batch.column(0)
            if values.null_count:
                row = start + pc.index(pc.is_null(values), True).as_py()
                raise self._inventory_error(f"column {column!r} has no value in row {row:,}; add one")
            yield to_size_array(values.to_numpy(zero_copy_only=False))
            start += len(values)

    def _find_folder_marker_rows(self) -> Any:
        """Return the inventory's rows of folder markers: empty objects whose key ends with a slash, as
        consoles create them. Cache all sizes if there are few enough."""
        marker_rows: list[Any] = [np.zeros(0, dtype=np.int64)]
        batch_start, has_empty_objects = 0, False
        # Keys take much longer to read than sizes: they are only read if any object is empty. Sizes come in
        # arrays, of which the next one is read while this one is used.
        for block in _prefetch_next(self._iter_column_blocks(SIZE_COLUMN)):
            has_empty_objects = has_empty_objects or not block.all()
            if self._inventory.object_count <= _MAX_CACHED_SIZES:  # 16 million
                self._cached_size_blocks.append(block)
        if has_empty_objects:
            for batch in self._inventory.batches(("key", SIZE_COLUMN), rows=_NAMES_PER_BATCH):
                empty_rows = np.flatnonzero(batch.column(1).to_numpy(zero_copy_only=False) == 0)
                ends_with_slash = pc.ends_with(batch.column(0).take(empty_rows), "/").to_numpy(
                    zero_copy_only=False
                )
                marker_rows.append(empty_rows[ends_with_slash.astype(bool)] + batch_start)
                batch_start += batch.num_rows
        return np.concatenate(marker_rows)

    def _drop_folder_markers(self, values: Any, start: int) -> Any:
        first, last = np.searchsorted(self._folder_marker_rows, (start, start + len(values)))
        return np.delete(values, self._folder_marker_rows[first:last] - start) if last > first else values

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

    def _check_keys_ascend(self, keys: Any, first_row: int, previous_key: Any) -> None:
        """Raise JobError unless the keys of a batch are UTF-8, ascend, and follow ``previous_key`` (None: the
        first batch). ``first_row``: of the batch, for messages."""
        if keys.null_count:
            wrong_row = first_row + pc.index(pc.is_null(keys), True).as_py()
            raise self._inventory_error(f"row {wrong_row:,} has no key")
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._inventory_error(f"a key after row {first_row:,} is not UTF-8: {error}") from None
        if previous_key is not None:  # compared with the first key, like any two neighbours
            keys = pa.concat_arrays([pa.array([previous_key.as_py()], keys.type), keys])
        breaks_order = pc.greater_equal(keys[:-1], keys[1:])
        if pc.any(breaks_order, min_count=0).as_py():
            wrong_index = pc.index(breaks_order, True).as_py() + 1
            key = keys[wrong_index]
            if key.equals(keys[wrong_index - 1]):
                raise self._inventory_error(f"key {key.as_py()!r} is repeated; keep one of them")
            raise self._inventory_error(
                f"key {key.as_py()!r} is not in the order of UTF-8 bytes; sort by key"
            )

    def _strip_base_prefix(self, keys: Any, first_row: int) -> Any:
        """Return the keys of a batch without the inventory's ``base_prefix`` (up to its last slash; may be
        empty), as bytes. Raises JobError for a key outside of it. ``first_row``: of the batch, for
        messages."""
        for key in (keys[0].as_py(), keys[-1].as_py()):  # in order, so that those between begin alike
            if not key.startswith(self.base_prefix):
                raise self._inventory_error(
                    f"key {key!r} is not below the prefix {self.base_prefix!r} that the file states"
                )
        try:
            names = keys.cast(pa.binary())  # whose offsets have 32 bits
        except pa.ArrowInvalid as error:
            raise self._inventory_error(
                f"keys after row {first_row:,} are longer than S3's: {error}"
            ) from None
        if not self.base_prefix:
            return names
        # Arrow wants an end: the largest there is, since names have different lengths.
        return pc.binary_slice(names, len(self.base_prefix.encode()), _MAX_SLICE_END)

    def _inventory_error(self, message: str) -> JobError:
        return JobError([Problem(os.fspath(self._inventory.path), message)])


def _prefetch_next(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; the next one is read while the current one is used (pyarrow releases the GIL
    while it reads)."""
    with ThreadPoolExecutor(1, "keys") as executor:
        next_item = executor.submit(next, items, None)
        while (item := next_item.result()) is not None:
            next_item = executor.submit(next, items, None)
            yield item


def _available_columns(columns: list[str]) -> str:
    return "there is " + ", ".join(columns)
