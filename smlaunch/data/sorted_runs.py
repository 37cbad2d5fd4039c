"""External sort of inventory rows: sorted runs on disk, merged in key order.

Memory holds a few row groups, however many rows there are. Each run file records which input it covers. A run
counts from the moment it has its final name, so a listing resumes after a kill and neither loses nor repeats
rows.
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

from smlaunch.data.inventory_file import fsync_and_rename, require_replaceable
from smlaunch.errors import JobError, Problem, write_error

_RUN_GROUP_ROWS = 8192
"""Rows per row group of a run. The merge holds one such group of each overlapping run in memory."""

_MERGE_ROWS = 262_144
"""Rows that the merge sorts and yields together."""

_STATE_FILE = "state.json"
_METADATA_KEY = b"smlaunch.taken"


class SortedRuns:
    """The folder of runs beside the inventory to be written. As a context manager it locks the folder: a
    second process is refused."""

    def __init__(self, out: Path, subject: Mapping[str, Any], *, resume: bool) -> None:
        """``subject``: what is being listed. An unfinished inventory is resumed only if its subject
        is equal."""
        self.folder = out.with_name(f".{out.name}.unfinished")
        self._output_path = out
        self._inventory_subject = json.loads(json.dumps(dict(subject)))
        self._may_resume = resume
        self._lock = Lock()
        self._next_number = 0

    def __enter__(self) -> SortedRuns:
        """Create the working folder for the sorted runs of an inventory (files of rows, each sorted by key),
        beside the output file, and lock it against other processes. What an interrupted process left there is
        kept to be resumed, or removed. Raises JobError if the folder cannot be used."""
        require_replaceable(self._output_path)
        try:
            is_resumed = self._has_unfinished_to_resume()  # JobError if there is one, but not for this
            self.folder.mkdir(exist_ok=True)
            self._lock_fd = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise write_error("--out", self._output_path, error) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_fd)
            message = f"another process is writing it: {self.folder} is locked"
            raise JobError([Problem(str(self._output_path), message)]) from None
        try:
            self._prepare_folder(is_resumed)  # writes what this inventory lists; deletes temporary files
        except OSError as error:
            self.__exit__()
            raise write_error("--out", self._output_path, error) from error
        return self

    def _prepare_folder(self, is_resumed: bool) -> None:
        """Write the subject of a new folder; delete temporary files; find the next free number."""
        if not is_resumed:
            temporary_path = self.folder / f"{_STATE_FILE}.tmp"
            temporary_path.write_text(json.dumps(self._inventory_subject))
            fsync_and_rename(temporary_path, self.folder / _STATE_FILE)
        for stale_path in self.folder.glob("*.tmp"):
            stale_path.unlink()
        self._next_number = max((int(path.stem) + 1 for path in self.paths()), default=0)

    def _has_unfinished_to_resume(self) -> bool:
        """Return whether an unfinished inventory exists that this one resumes. Raises JobError if it may not
        be resumed: without permission, or because it lists something else than this one (another subject,
        such as bucket and prefix)."""
        if not (self.folder / _STATE_FILE).exists():
            return False
        if not self._may_resume:  # the user has to ask for it
            message = f"an unfinished inventory exists: continue it with --resume, or remove {self.folder}"
            raise JobError([Problem(str(self._output_path), message)])
        try:
            subject = json.loads((self.folder / _STATE_FILE).read_text())
        except ValueError as error:
            raise JobError([Problem(str(self.folder / _STATE_FILE), f"cannot be read: {error}")]) from error
        if subject != self._inventory_subject:
            message = (
                f"the unfinished inventory lists {subject}, not {self._inventory_subject}; "
                f"remove {self.folder}"
            )
            raise JobError([Problem(str(self._output_path), message)])
        return True

    def __exit__(self, *raised: object) -> None:
        if self.folder.exists() and not self.paths():  # nothing to resume
            self.remove()
        os.close(self._lock_fd)

    def remove(self) -> None:
        """Delete the folder, after the inventory has been written."""
        shutil.rmtree(self.folder)

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"))

    def remove_unless(self, is_wanted: Callable[[Any], bool]) -> None:
        """Delete the runs whose coverage does not satisfy ``is_wanted``."""
        for path in self.paths():
            if not is_wanted(json.loads(pq.read_metadata(path).metadata[_METADATA_KEY])["taken"]):
                path.unlink()

    def coverage(self) -> Iterator[tuple[Any, int, int]]:
        """Yield for each run its coverage as given to ``add``, its number of rows and the sum of their sizes
        in bytes."""
        for path in self.paths():
            metadata = pq.read_metadata(path)
            run_facts = json.loads(metadata.metadata[_METADATA_KEY])
            yield run_facts["taken"], metadata.num_rows, run_facts["bytes"]

    def add(self, table: Any, coverage: Any) -> None:
        """Write these rows, in any order, as one run. Thread-safe.

        ``coverage``: which input these rows complete, as JSON values.
        """
        table = sorted_by_key(table)
        run_facts = {"taken": coverage, "bytes": pc.sum(table.column("size"), min_count=0).as_py()}
        with self._lock:
            number, self._next_number = self._next_number, self._next_number + 1
        path = self.folder / f"{number:08d}.parquet"
        temporary_path = path.with_suffix(".tmp")
        try:
            pq.write_table(
                table.replace_schema_metadata({_METADATA_KEY: json.dumps(run_facts).encode()}),
                temporary_path,
                row_group_size=_RUN_GROUP_ROWS,
                compression="zstd",
                compression_level=1,
                use_dictionary=False,
            )
            fsync_and_rename(temporary_path, path)
        except OSError as error:
            raise write_error("--out", self._output_path, error) from error

    def iter_merged_tables(self, batch_rows: int = _MERGE_ROWS) -> Iterator[Any]:
        """Merge the sorted runs on disk: yield all rows in key order, in tables of about ``batch_rows`` rows.

        Row groups (the units in which a run's file is read) are read in the order of their first keys, so
        that all rows before the next group's first key are complete. The rest is merged with later groups."""
        row_groups = sorted(self._iter_row_groups())
        pending_tables: list[Any] = []
        pending_rows, wanted_rows = 0, batch_rows
        for group_index, row_group in enumerate(row_groups):
            pending_tables.append(row_group.read())
            pending_rows += pending_tables[-1].num_rows
            is_last = group_index + 1 == len(row_groups)
            if pending_rows < wanted_rows and not is_last:
                continue
            table = sorted_by_key(pa.concat_tables(pending_tables))
            keys = table.column("key")
            complete_rows = len(keys)
            if not is_last:
                # Rows not yet read have the next group's first key or a later one.
                # A _StringColumn is a sequence, as bisect wants it.
                complete_rows = bisect_left(_StringColumn(keys), row_groups[group_index + 1].first_key)
            if complete_rows:
                yield table.slice(0, complete_rows)
            pending_rows = len(keys) - complete_rows
            pending_tables = []
            if pending_rows:
                # A copy, so that the memory of the complete rows is freed.
                pending_tables.append(table.slice(complete_rows).take(pa.array(range(pending_rows))))
            wanted_rows = max(batch_rows, 2 * pending_rows)  # else the same rows are sorted again and again

    def _iter_row_groups(self) -> Iterator[_RowGroup]:
        """Yield the non-empty row groups of the Parquet files of all runs, with their first keys."""
        for path in self.paths():
            metadata = pq.read_metadata(path)
            for number in range(metadata.num_row_groups):
                row_group = metadata.row_group(number)
                if row_group.num_rows:  # a run may cover an input without any row
                    # Column 0 is the key; the row group is sorted, so its least key is the first.
                    first_key = row_group.column(0).statistics.min
                    yield _RowGroup(first_key=first_key, path=path, group_index=number)


class _RowGroup(NamedTuple):
    first_key: str
    path: Path
    group_index: int

    def read(self) -> Any:
        with pq.ParquetFile(self.path, memory_map=True) as file:
            return file.read_row_group(self.group_index, use_threads=False).replace_schema_metadata(None)


class _StringColumn:
    """A column of text as a sequence that ``bisect`` can search."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, number: int) -> str:
        text: str = self._column[number].as_py()
        return text


def sorted_by_key(table: Any) -> Any:
    """Return the table sorted by key, in one chunk. A table that is already sorted is returned without
    sorting."""
    table = table.combine_chunks()
    keys = table.column("key")
    count = len(keys)
    if count < 2 or pc.all(pc.less_equal(keys.slice(0, count - 1), keys.slice(1))).as_py():
        return table
    return table.take(pc.sort_indices(keys)).combine_chunks()
