"""A folder and a prefix in S3, the one made to hold what the other does. Nothing is deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.data.workers import each
from smlaunch.errors import JobError, Problem
from smlaunch.local_files import local_files
from smlaunch.ports import ObjectStorage, Parcel, StoredObject, Transfer
from smlaunch.private_places import private_place
from smlaunch.protocol.addresses import split_s3

_AT_ONCE = 8
_TOLD = 10
"""Names that cannot be had of which each is told; more are counted."""

_LONGEST_NAME = 255
"""Bytes of a file's name on the usual file systems."""


class Mirror(NamedTuple):
    """What is to be moved, and how many files have the right content already."""

    bucket: str
    parcels: list[Parcel]
    kept: int

    @property
    def size(self) -> int:
        return sum(parcel.size for parcel in self.parcels)


def pulling(storage: ObjectStorage, transfer: Transfer, uri: str, folder: Path) -> Mirror:
    """What of ``uri`` (an object, or a folder of objects with or without its last slash) the folder lacks.

    Raises CallError, and JobError for keys that no file below the folder could have: all of them at once.
    """
    bucket, prefix = address(uri)
    objects = list(storage.list(bucket, prefix))
    whole = [stored for stored in objects if stored.key == prefix and not prefix.endswith("/")]
    inside = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    start = prefix.rfind("/") + 1 if whole else len(inside)
    wanted = whole or [stored for stored in objects if stored.key.startswith(inside)]
    if not wanted:
        raise JobError([Problem("SRC", f"there is no object under {uri}")])
    return _lacking(transfer, bucket, list(_landing(wanted, start, folder)))


def pushing(storage: ObjectStorage, transfer: Transfer, folder: Path, uri: str) -> Mirror:
    """What of the folder (or file) the prefix lacks.

    Raises CallError, and JobError for what cannot be read."""
    bucket, prefix = address(uri)
    inside = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    try:
        if private := private_place(folder):
            raise JobError([Problem("SRC", f"{folder} {private}; name the folder of the data itself")])
        files = list(local_files(folder))
    except OSError as error:
        raise JobError([Problem("SRC", f"it cannot be read: {error}")]) from error
    if not files:
        raise JobError([Problem("SRC", f"{folder} holds no files")])
    there = {stored.key: stored for stored in storage.list(bucket, inside)}
    parcels = [Parcel(inside + file.relative, file.path, file.size) for file in files]

    def known(parcel: Parcel) -> Parcel:
        stored = there.get(parcel.key)
        return parcel if stored is None or stored.size != parcel.size else parcel._replace(etag=stored.etag)

    found = _lacking(transfer, bucket, [known(parcel) for parcel in parcels])
    return found._replace(parcels=[parcel._replace(etag=None) for parcel in found.parcels])


def address(uri: str) -> tuple[str, str]:
    """Bucket and key of an ``s3://`` address. Raises JobError when it is none."""
    found = split_s3(uri)
    if found is None:
        raise JobError([Problem("", f"{uri} is no address in S3; these begin with s3://BUCKET/")])
    return found


def _lacking(transfer: Transfer, bucket: str, parcels: Sequence[Parcel]) -> Mirror:
    """An object that was never seen has no ETag."""
    same: set[str] = set()

    def look(parcel: Parcel) -> None:
        if parcel.etag is not None and transfer.is_there(bucket, parcel):
            same.add(parcel.key)

    each(look, parcels, _AT_ONCE)
    return Mirror(bucket, [parcel for parcel in parcels if parcel.key not in same], len(same))


def _landing(objects: Iterable[StoredObject], start: int, folder: Path) -> Iterator[Parcel]:
    problems: list[str] = []
    names: dict[str, StoredObject] = {}
    folders: set[str] = set()
    for stored in objects:
        name = stored.key[start:]
        if stored.size == 0 and (not name or name.endswith("/")):
            continue  # a folder's marker, as consoles make them
        why = _impossible(name)
        if why is not None:
            problems.append(f"{stored.key!r} {why}")
            continue
        names[name] = stored
        folders.update(name[:place] for place, letter in enumerate(name) if letter == "/")
    problems.extend(f"{names[name].key!r} is an object and a folder too" for name in folders & names.keys())
    problems.extend(_leading_out(folder, folders))
    if problems:
        more = len(problems) - _TOLD
        told = [Problem("SRC", f"{text}; no file can be made of it") for text in problems[:_TOLD]]
        raise JobError(told + ([Problem("SRC", f"and {more:,} more like these")] if more > 0 else []))
    for name, stored in names.items():
        yield Parcel(stored.key, folder / name, stored.size, stored.etag)


def _impossible(name: str) -> str | None:
    parts = name.split("/")
    checks: tuple[tuple[bool, str], ...] = (
        ("" in parts, "has an empty name between slashes"),
        (not {".", ".."}.isdisjoint(parts), "has a part that leads elsewhere ('.' or '..')"),
        ("\0" in name, "has a zero byte"),
        (any(len(part.encode()) > _LONGEST_NAME for part in parts), "has a part of more than 255 bytes"),
    )
    return next((why for found, why in checks if found), None)


def _leading_out(folder: Path, folders: Iterable[str]) -> Iterator[str]:
    """A link in the folder may lead out of it; nothing is written there."""
    inside = os.path.realpath(folder)
    for name in sorted(folders):
        real = os.path.realpath(folder / name)
        if os.path.commonpath([inside, real]) != inside:
            yield f"{str(folder / name)!r} is a link out of {folder}"
