"""The keys of an inventory as they are shared out: sizes and weights in blocks, names in batches.

Zero-byte objects whose name ends with ``/`` are left out: consoles make them so that a folder shows up, they
are no file on a host, and in a manifest an empty relative name would stand for the whole prefix.
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
from smlaunch.data.split import BLOCK, as_sizes
from smlaunch.errors import JobError, Problem

Item = TypeVar("Item")

SIZE = "size"

_NAMES = 1 << 16
"""Names that are looked at together: some megabytes, which a processor's cache almost holds."""

_HELD = 1 << 24
"""Objects up to which their sizes are kept, 128 MB, rather than read three times."""

_END = 2**31 - 1
"""Of any name. Without an end ``binary_slice`` fails (pyarrow 26: "Negative buffer resize")."""


class Batch(NamedTuple):
    """``names``: relative to ``Keys.base``, UTF-8 as binary; ``start``: the first one's row."""

    start: int
    names: Any


class Keys:
    """An inventory's objects but for folder markers, numbered from 0 in key order.

    ``base``: what all keys begin with and names leave off: the prefix as far as its last slash. A channel
    over ``s3://<bucket>/<base>`` has the files under these names.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.bucket = inventory.bucket
        # A folder's inventory has the folder as its prefix, and keys that are relative to it already.
        self.base = inventory.prefix[: inventory.prefix.rfind("/") + 1] if inventory.bucket else ""
        self._sizes: list[Any] = []
        self._markers = self._find_markers()
        self.count: int = inventory.objects - len(self._markers)

    @property
    def left_out(self) -> int:
        """How many folder markers there are."""
        return len(self._markers)

    def blocks(self, column: str = SIZE) -> Iterator[Any]:
        """One column in arrays for ``split_blocks``. Raises JobError for a column that is not one of numbers,
        or lacks some."""
        self._check_column(column)
        start = 0
        for block in self._sizes if column == SIZE and self._sizes else _ahead(self._read(column)):
            yield self._without_markers(block, start)
            start += len(block)

    def batches(self) -> Iterator[Batch]:
        """Raises JobError for keys that are not UTF-8, come twice, out of order, or not below ``base``."""
        return _ahead(self._read_keys())

    def _read_keys(self) -> Iterator[Batch]:
        last, row, start = None, 0, 0
        for batch in self._inventory.batches(("key",), rows=_NAMES):
            keys = batch.column(0)
            if not len(keys):
                continue
            self._check_keys(keys, row, last)
            last = keys[-1]
            names = self._relative(keys, row)
            if len(self._markers):
                names = names.take(self._without_markers(np.arange(len(keys)), row))
            yield Batch(start, names)
            start += len(names)
            row += len(keys)

    def _read(self, column: str) -> Iterator[Any]:
        start = 0
        for batch in self._inventory.batches((column,), rows=BLOCK):
            values = batch.column(0)
            if values.null_count:
                row = start + pc.index(pc.is_null(values), True).as_py()
                raise self._wrong(f"column {column!r} has no value in row {row:,}; fill it in")
            yield as_sizes(values.to_numpy(zero_copy_only=False))
            start += len(values)

    def _find_markers(self) -> Any:
        rows: list[Any] = []
        start, nothing = 0, False
        for block in _ahead(self._read(SIZE)):
            nothing = nothing or not block.all()
            if self._inventory.objects <= _HELD:
                self._sizes.append(block)
        if nothing:
            for batch in self._inventory.batches(("key", SIZE), rows=_NAMES):
                empty = np.flatnonzero(batch.column(1).to_numpy(zero_copy_only=False) == 0)
                named = pc.ends_with(batch.column(0).take(empty), "/").to_numpy(zero_copy_only=False)
                rows.append(empty[named.astype(bool)] + start)
                start += batch.num_rows
        return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)

    def _without_markers(self, values: Any, start: int) -> Any:
        first, last = np.searchsorted(self._markers, (start, start + len(values)))
        return np.delete(values, self._markers[first:last] - start) if last > first else values

    def _check_column(self, column: str) -> None:
        numbers = [SIZE, *self._inventory.weights]
        if column not in numbers:
            raise JobError(
                [Problem("--weight", f"there is no column {column!r} of numbers; {_named(numbers)}")]
            )

    def _check_keys(self, keys: Any, row: int, last: Any) -> None:
        if keys.null_count:
            at = row + pc.index(pc.is_null(keys), True).as_py()
            raise self._wrong(f"row {at:,} has no key")
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self._wrong(f"a key after row {row:,} is not UTF-8: {error}") from None
        before = pa.concat_arrays([pa.array([last.as_py()], keys.type), keys]) if last is not None else keys
        wrong = pc.greater_equal(before[:-1], before[1:])
        if pc.any(wrong, min_count=0).as_py():
            at = pc.index(wrong, True).as_py() + 1
            key, same = before[at].as_py(), before[at].equals(before[at - 1])
            why = (
                "comes twice; keep one of them" if same else "is not in the order of UTF-8 bytes; sort by key"
            )
            raise self._wrong(f"key {key!r} {why}")

    def _relative(self, keys: Any, row: int) -> Any:
        for key in (keys[0].as_py(), keys[-1].as_py()):  # in order, so that those between begin alike
            if not key.startswith(self.base):
                raise self._wrong(f"key {key!r} is not below the prefix {self.base!r} that the file states")
        try:
            names = keys.cast(pa.binary())
        except pa.ArrowInvalid as error:
            raise self._wrong(f"keys after row {row:,} are longer than S3's: {error}") from None
        return pc.binary_slice(names, len(self.base.encode()), _END) if self.base else names

    def _wrong(self, message: str) -> JobError:
        return JobError([Problem(os.fspath(self._inventory.path), message)])


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same, one more being read while one is used: pyarrow reads without holding up other threads."""
    with ThreadPoolExecutor(1, "keys") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def _named(columns: list[str]) -> str:
    return "there is " + ", ".join(columns)
