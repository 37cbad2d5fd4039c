"""The inventory of a local folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa

from smlaunch.data.inventory_file import SCHEMA, InventoryWriter
from smlaunch.data.sorted_runs import SortedRuns
from smlaunch.errors import JobError, Problem

_RUN_ROWS = 131_072

_COLUMNS = SCHEMA.remove(SCHEMA.get_field_index("etag"))


class FolderCounts(NamedTuple):
    """The files of a folder, counted."""

    objects: int
    bytes: int
    skipped: int
    """Links, devices and the like, which are left out."""


def list_folder(folder: Path, out: Path) -> FolderCounts:
    """Write the inventory of a folder's regular files; keys are their paths in it, with ``/``.

    Raises JobError for files that cannot be read, and for a name that is not UTF-8, which no object's key
    could be.
    """
    skipped: list[str] = []
    rows = _iter_file_rows(folder, skipped)
    with (
        TemporaryDirectory(prefix="smlaunch-") as work_folder,
        SortedRuns(Path(work_folder, "folder"), {"folder": os.fspath(folder)}, resume=False) as runs,
    ):
        while row_batch := list(islice(rows, _RUN_ROWS)):
            runs.add(_to_table(row_batch), None)
        with InventoryWriter(out, "", os.fspath(folder.resolve()), _COLUMNS) as file:
            for table in runs.iter_merged_tables():
                file.write(table)
    return FolderCounts(file.object_count, file.total_bytes, len(skipped))


def _to_table(rows: list[tuple[str, int, int]]) -> Any:
    keys, sizes, modified = zip(*rows, strict=True)
    timestamps = pa.array(modified, pa.int64()).cast(SCHEMA.field("modified").type)
    return pa.table([pa.array(keys), pa.array(sizes, pa.int64()), timestamps], schema=_COLUMNS)


def _iter_file_rows(folder: Path, skipped_paths: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield key (path relative to the folder), size in bytes and time of the last change (microseconds since
    the epoch) of every regular file below a folder; paths of links, devices and the like are added to
    ``skipped_paths``. Raises JobError for what cannot be read."""
    prefix_length = len(os.path.join(folder, ""))  # noqa: PTH118 - with the slash at the end
    pending_folders = [os.fspath(folder)]  # still to be listed
    while pending_folders:
        try:
            with os.scandir(pending_folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending_folders.append(entry.path)
                        continue
                    file_stat = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(file_stat.st_mode):
                        yield (
                            _require_utf8_name(entry.path[prefix_length:], folder),
                            file_stat.st_size,
                            file_stat.st_mtime_ns // 1000,
                        )
                    else:
                        skipped_paths.append(entry.path)
        except OSError as error:
            raise JobError([Problem(str(folder), f"cannot be read: {error}")]) from error


def _require_utf8_name(name: str, folder: Path) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise JobError([Problem(str(folder), f"the name {name!r} is not UTF-8; rename it")]) from None
    return name
