"""Read the lists of an earlier split: which host had which key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlaunch.contract.shard_lists import SHARDS_FILE, ShardListIndex
from smlaunch.data.inventory_keys import InventoryKeys
from smlaunch.data.split_files import LISTS_FOLDER
from smlaunch.errors import JobError, Problem

_READ_BYTES = 1 << 20
"""Bytes of each list that are read at a time."""


def read_previous_hosts(keys: InventoryKeys, folder: Path) -> Any:
    """Return for each row (a key of the inventory) its host in the lists that ``write_split`` wrote into a
    folder, as an array; -1 for a key that is in none.

    Lists and keys are in the same order and are read in parallel; neither is held in memory. Raises JobError
    if lists are missing or invalid.
    """
    readers = [_ListReader(path) for path in _list_paths(folder)]
    host_by_row = np.full(keys.count, -1, dtype=np.int32)
    for batch in keys.name_batches():
        if not len(batch.names):
            continue
        last_name = batch.names[-1].as_py()
        names_by_host = [reader.names_up_to(last_name) for reader in readers]
        listed_names = pa.concat_arrays(names_by_host)  # those of the first host, of the second ...
        host_by_listed_name = np.repeat(
            np.arange(len(names_by_host)), [len(names) for names in names_by_host]
        )
        # For each name of the batch its index in listed_names, or null.
        indices = pc.index_in(batch.names.cast(pa.large_binary()), value_set=listed_names)
        listed_rows = np.flatnonzero(indices.is_valid().to_numpy(zero_copy_only=False))
        host_by_row[batch.start + listed_rows] = host_by_listed_name[indices.drop_null().to_numpy()]
    return host_by_row


def _list_paths(folder: Path) -> list[Path]:
    """Return the paths of the lists by host. Raises JobError if the index is missing or invalid."""
    index = folder / LISTS_FOLDER / SHARDS_FILE
    try:
        parts = ShardListIndex.from_json(index.read_text(encoding="utf-8")).shards
    except (OSError, ValueError) as error:
        text = f"{folder} was not written by smlaunch data split --out: {index}: {error}"
        raise JobError([Problem("--previous", text)]) from None
    return [folder / LISTS_FOLDER / part.file for part in parts]


class _ListReader:
    """Reads one list incrementally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._pending_names = pa.array([], pa.large_binary())
        """A sorted Arrow array of the names that were read and not returned yet."""
        self._is_at_end = False

    def names_up_to(self, last_name: bytes) -> Any:
        """Return the names up to ``last_name`` that were not returned before, as an Arrow array."""
        while not self._is_at_end and not self._has_read_beyond(last_name):
            self._read_next_piece()
        sorted_names = self._pending_names
        name_count = pc.sum(pc.less_equal(sorted_names, last_name), min_count=0).as_py()
        self._pending_names = sorted_names.slice(name_count)
        return sorted_names.slice(0, name_count)

    def _has_read_beyond(self, name: bytes) -> bool:
        return len(self._pending_names) > 0 and self._pending_names[-1].as_py() > name

    def _read_next_piece(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read(_READ_BYTES)
                content += file.readline()
            names = _parse_name_lines(content)
        except (OSError, ValueError, AttributeError) as error:
            text = f"{self._path} is not a list of keys: {error}"
            raise JobError([Problem("--previous", text)]) from None
        self._is_at_end = not content
        self._offset += len(content)
        self._pending_names = pa.concat_arrays([self._pending_names, names])


def _parse_name_lines(lines: bytes) -> Any:
    """Return the names in whole lines of a shard list, each line a JSON string, as a binary Arrow array.
    Raises ValueError or AttributeError for a line that is not a JSON string."""
    if not lines:
        return pa.array([], pa.large_binary())
    if lines[:1] != b'"' or lines[-2:] != b'"\n':
        raise ValueError("a line is not a JSON string")
    if b"\\" in lines:  # an escape sequence of JSON
        names = [json.loads(line) for line in lines.split(b"\n")[:-1]]
        return pa.array([name.encode() for name in names], pa.large_binary())
    # Nothing is escaped, so that the lines need not be parsed one by one.
    return pc.split_pattern(pa.array([lines[1:-2]], pa.large_binary()), b'"\n"').flatten()
