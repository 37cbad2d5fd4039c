"""Which host had which key: the lists of an earlier split, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlaunch.data.keys import Keys
from smlaunch.data.lists import LISTS
from smlaunch.errors import JobError, Problem
from smlaunch.protocol.part_lists import PARTS_INDEX, PartsIndex

_READ = 1 << 20
"""Bytes of each list that are read at a time."""


def hosts_before(keys: Keys, folder: Path) -> Any:
    """For each row the host it has in the lists that ``write_lists`` put into a folder, or -1.

    Lists and keys are in the same order and read side by side; neither is held. Raises JobError when lists
    are missing, or are none.
    """
    ahead = [_Ahead(path) for path in _lists_of(folder)]
    found = np.full(keys.count, -1, dtype=np.int32)
    for batch in keys.batches():
        if not len(batch.names):
            continue
        last = batch.names[-1].as_py()
        parts = [one.upto(last) for one in ahead]
        hosts = np.repeat(np.arange(len(parts)), [len(names) for names in parts])
        at = pc.index_in(batch.names.cast(pa.large_binary()), value_set=pa.concat_arrays(parts))
        known = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
        found[batch.start + known] = hosts[at.drop_null().to_numpy()]
    return found


def _lists_of(folder: Path) -> list[Path]:
    index = folder / LISTS / PARTS_INDEX
    try:
        parts = PartsIndex.from_json(index.read_text(encoding="utf-8")).parts
    except (OSError, ValueError) as error:
        text = f"{folder} is not what smlaunch data split --out writes: {index}: {error}"
        raise JobError([Problem("--previous", text)]) from None
    return [folder / LISTS / part.file for part in parts]


class _Ahead:
    """Reads one list as far as is asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._held = pa.array([], pa.large_binary())

    def upto(self, last: bytes) -> Any:
        """Names up to ``last`` that were not given out before."""
        while (not len(self._held) or self._held[-1].as_py() <= last) and self._read():
            pass
        names = self._held
        cut = pc.sum(pc.less_equal(names, last), min_count=0).as_py()
        self._held = names.slice(cut)
        return names.slice(0, cut)

    def _read(self) -> bool:
        """Whether there was more."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                content = file.read(_READ)
                content += file.readline()
            names = _names(content)
        except (OSError, ValueError, AttributeError) as error:
            text = f"{self._path} is not a list of keys: {error}"
            raise JobError([Problem("--previous", text)]) from None
        self._at += len(content)
        self._held = pa.concat_arrays([self._held, names])
        return bool(content)


def _names(lines: bytes) -> Any:
    """Raises ValueError or AttributeError for what is no JSON string on each line."""
    if not lines:
        return pa.array([], pa.large_binary())
    if lines[:1] != b'"' or lines[-2:] != b'"\n':
        raise ValueError("a line is no JSON string")
    if b"\\" in lines:
        texts = [json.loads(line) for line in lines.split(b"\n")[:-1]]
        return pa.array([text.encode() for text in texts], pa.large_binary())
    return pc.split_pattern(pa.array([lines[1:-2]], pa.large_binary()), b'"\n"').flatten()
