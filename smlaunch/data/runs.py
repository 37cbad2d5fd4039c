"""Rows on their way into an inventory: kept as sorted runs on disk, read back in order of their keys.

Memory holds a few row groups, however many rows there are. A run carries, in the file itself, what it has
taken in: it counts from the moment it has its name, so that a listing goes on after a kill with nothing lost
and nothing taken twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smlaunch.data.inventory import publish
from smlaunch.errors import JobError, Problem

_GROUP = 8192
"""Rows of a run that are read at a time: as many as each of many overlapping runs may have in memory."""

_AT_ONCE = 262_144
"""Rows that are brought in order and handed on together."""

_STATE = "state.json"
_TAKEN = b"smlaunch.taken"


class Runs:
    """The folder of runs beside an inventory to be. ``with`` holds it: a second process is refused."""

    def __init__(self, out: Path, subject: Mapping[str, Any], *, resume: bool) -> None:
        """``subject``: what is being listed; only an unfinished inventory of just that is gone on with."""
        self.folder = out.with_name(f".{out.name}.unfinished")
        self._out = out
        self._subject = json.loads(json.dumps(dict(subject)))
        self._resume = resume
        self._lock = Lock()
        self._next = 0

    def __enter__(self) -> Runs:
        try:
            there = self._resume_or_refuse()
            self.folder.mkdir(exist_ok=True)
            self._held = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise JobError([Problem(str(self._out), f"cannot be written: {error}")]) from error
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._held)
            message = f"another process writes it: {self.folder} is locked"
            raise JobError([Problem(str(self._out), message)]) from None
        try:
            self._begin(there)
        except OSError as error:
            self.__exit__()
            raise JobError([Problem(str(self._out), f"cannot be written: {error}")]) from error
        return self

    def _begin(self, there: bool) -> None:
        if not there:
            unfinished = self.folder / f"{_STATE}.tmp"
            unfinished.write_text(json.dumps(self._subject))
            publish(unfinished, self.folder / _STATE)
        for half in self.folder.glob("*.tmp"):
            half.unlink()
        self._next = max((int(path.stem) + 1 for path in self.paths()), default=0)

    def _resume_or_refuse(self) -> bool:
        """Whether there is something to go on with."""
        if not (self.folder / _STATE).exists():
            return False
        if not self._resume:
            message = (
                f"an unfinished inventory is beside it: --resume goes on with it; or remove {self.folder}"
            )
            raise JobError([Problem(str(self._out), message)])
        try:
            subject = json.loads((self.folder / _STATE).read_text())
        except ValueError as error:
            raise JobError([Problem(str(self.folder / _STATE), f"cannot be read: {error}")]) from error
        if subject != self._subject:
            message = f"unfinished is an inventory of {subject}, not of {self._subject}; remove {self.folder}"
            raise JobError([Problem(str(self._out), message)])
        return True

    def __exit__(self, *raised: object) -> None:
        if self.folder.exists() and not self.paths():  # nothing to go on with
            self.remove()
        os.close(self._held)

    def remove(self) -> None:
        """When the inventory is in its place."""
        shutil.rmtree(self.folder)

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))

    def keep_only(self, wanted: Callable[[Any], bool]) -> None:
        """Forgets the runs whose ``taken`` is not wanted."""
        for path in self.paths():
            if not wanted(json.loads(pq.read_metadata(path).metadata[_TAKEN])["taken"]):
                path.unlink()

    def taken(self) -> Iterator[tuple[Any, int, int]]:
        """Of every run: what it has taken in, as ``add`` was told, its rows and their bytes."""
        for path in self.paths():
            metadata = pq.read_metadata(path)
            facts = json.loads(metadata.metadata[_TAKEN])
            yield facts["taken"], metadata.num_rows, facts["bytes"]

    def add(self, table: Any, taken: Any) -> None:
        """Keeps these rows, in any order. ``taken``: what is done with them, as JSON. For any thread."""
        table = in_order(table)
        facts = {"taken": taken, "bytes": pc.sum(table.column("size"), min_count=0).as_py()}
        with self._lock:
            number, self._next = self._next, self._next + 1
        path = self.folder / f"{number:08d}.parquet"
        unfinished = path.with_suffix(".tmp")
        try:
            pq.write_table(
                table.replace_schema_metadata({_TAKEN: json.dumps(facts).encode()}),
                unfinished,
                row_group_size=_GROUP,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
            )
            publish(unfinished, path)
        except OSError as error:
            raise JobError([Problem(str(self._out), f"cannot be written: {error}")]) from error

    def merged(self, at_once: int = _AT_ONCE) -> Iterator[Any]:
        """All rows, table by table, in order of their keys."""
        groups = sorted(self._groups())
        held: list[Any] = []
        rows, enough = 0, at_once
        for number, group in enumerate(groups):
            held.append(group.read())
            rows += held[-1].num_rows
            final = number + 1 == len(groups)
            if rows < enough and not final:
                continue
            table = in_order(pa.concat_tables(held))
            keys = table.column("key")
            # Whatever has not been read begins at the next group's first key, or later.
            cut = len(keys) if final else bisect_left(_Texts(keys), groups[number + 1].first)
            if cut:
                yield table.slice(0, cut)
            # Copied, so that the rows before the cut can go.
            held = [table.slice(cut).take(pa.array(range(len(keys) - cut)))] if cut < len(keys) else []
            rows = len(keys) - cut
            enough = max(at_once, 2 * rows)

    def _groups(self) -> Iterator[_Group]:
        for path in self.paths():
            metadata = pq.read_metadata(path)
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if group.num_rows:  # a run may only say what there is nothing in
                    yield _Group(group.column(0).statistics.min, path, number)


class _Group(NamedTuple):
    first: str
    path: Path
    number: int

    def read(self) -> Any:
        with pq.ParquetFile(self.path, memory_map=True) as file:
            return file.read_row_group(self.number, use_threads=False).replace_schema_metadata(None)


class _Texts:
    """A column of text as a sequence that ``bisect`` can look into."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, number: int) -> str:
        text: str = self._column[number].as_py()
        return text


def in_order(table: Any) -> Any:
    """The table in order of its keys, in one piece; at once where it is so already."""
    table = table.combine_chunks()
    keys = table.column("key")
    count = len(keys)
    if count < 2 or pc.all(pc.less_equal(keys.slice(0, count - 1), keys.slice(1))).as_py():
        return table
    return table.take(pc.sort_indices(keys)).combine_chunks()
