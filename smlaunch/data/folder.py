"""The inventory of a folder of this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa

from smlaunch.data.inventory import SCHEMA, InventoryWriter
from smlaunch.data.runs import Runs
from smlaunch.errors import JobError, Problem

_RUN_ROWS = 131_072

_COLUMNS = SCHEMA.remove(SCHEMA.get_field_index("etag"))


class Found(NamedTuple):
    """``others``: links, devices and the like, which are left out: none of the folder's bytes."""

    objects: int
    bytes: int
    others: int


def list_folder(folder: Path, out: Path) -> Found:
    """Writes the inventory of a folder's regular files; keys are their paths in it, with ``/``.

    Raises JobError for what cannot be read, and for a name that is not UTF-8, which no object's key could be.
    """
    others: list[str] = []
    rows = _rows(folder, others)
    with (
        TemporaryDirectory(prefix="smlaunch-") as work,
        Runs(Path(work, "folder"), {"folder": os.fspath(folder)}, resume=False) as runs,
    ):
        while some := list(islice(rows, _RUN_ROWS)):
            runs.add(_table(some), None)
        with InventoryWriter(out, "", os.fspath(folder.resolve()), _COLUMNS) as file:
            for table in runs.merged():
                file.write(table)
    return Found(file.objects, file.bytes, len(others))


def _table(rows: list[tuple[str, int, int]]) -> Any:
    keys, sizes, modified = zip(*rows, strict=True)
    at = pa.array(modified, pa.int64()).cast(SCHEMA.field("modified").type)
    return pa.table([pa.array(keys), pa.array(sizes, pa.int64()), at], schema=_COLUMNS)


def _rows(folder: Path, others: list[str]) -> Iterator[tuple[str, int, int]]:
    """Key, size and microseconds since the epoch of every regular file; what is none goes to ``others``."""
    start = len(os.path.join(folder, ""))  # noqa: PTH118 - with the slash at the end
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield _utf8(entry.path[start:], folder), found.st_size, found.st_mtime_ns // 1000
                    else:
                        others.append(entry.path)
        except OSError as error:
            raise JobError([Problem(str(folder), f"cannot be read: {error}")]) from error


def _utf8(name: str, folder: Path) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise JobError([Problem(str(folder), f"the name {name!r} is not UTF-8; rename it")]) from None
    return name
