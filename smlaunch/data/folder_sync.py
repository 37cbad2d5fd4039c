"""Copy a folder to an S3 prefix, or a prefix to a folder, transferring only what differs. Nothing is
deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.aws.interfaces import ObjectStorage, StoredObject, Transfer, TransferItem
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.data.thread_pool import for_each
from smlaunch.discovery.local_files import list_local_files
from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.errors import JobError, Problem

_COMPARE_THREADS = 8
_MAX_PROBLEMS = 10
"""Names with problems that are listed one by one; further ones are counted."""

_MAX_NAME_BYTES = 255
"""Bytes of a file's name on ordinary file systems."""


class SyncPlan(NamedTuple):
    """Files to transfer, and how many have the right content already."""

    bucket: str
    items: list[TransferItem]
    unchanged_files: int

    @property
    def total_bytes(self) -> int:
        return sum(item.size for item in self.items)


def plan_pull(storage: ObjectStorage, transfer: Transfer, uri: str, folder: Path) -> SyncPlan:
    """Return what the folder lacks of ``uri`` (an object, or a folder of objects with or without its last
    slash).

    Raises CallError, and JobError naming all keys that cannot be a file below the folder.
    """
    bucket, prefix = parse_s3_uri(uri)
    objects = list(storage.list(bucket, prefix))
    exact_objects = [stored for stored in objects if stored.key == prefix and not prefix.endswith("/")]
    folder_prefix = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    name_start = prefix.rfind("/") + 1 if exact_objects else len(folder_prefix)
    selected = exact_objects or [stored for stored in objects if stored.key.startswith(folder_prefix)]
    if not selected:
        raise JobError([Problem("SRC", f"there is no object under {uri}")])
    return _compare_files(transfer, bucket, list(_local_files(selected, name_start, folder)))


def plan_push(storage: ObjectStorage, transfer: Transfer, folder: Path, uri: str) -> SyncPlan:
    """Return what the prefix lacks of the folder (or file).

    Raises CallError, and JobError for files that cannot be read.
    """
    bucket, prefix = parse_s3_uri(uri)
    folder_prefix = prefix if not prefix or prefix.endswith("/") else prefix + "/"
    try:
        if refusal := protected_folder_reason(folder):
            raise JobError([Problem("SRC", f"{folder} {refusal}; name the folder of the data itself")])
        files = list(list_local_files(folder))
    except OSError as error:
        raise JobError([Problem("SRC", f"it cannot be read: {error}")]) from error
    if not files:
        raise JobError([Problem("SRC", f"{folder} holds no files")])
    stored_by_key = {stored.key: stored for stored in storage.list(bucket, folder_prefix)}
    items = [TransferItem(folder_prefix + file.relative_path, file.path, file.size) for file in files]

    def with_etag(item: TransferItem) -> TransferItem:
        stored = stored_by_key.get(item.key)
        return item if stored is None or stored.size != item.size else item._replace(etag=stored.etag)

    sync_plan = _compare_files(transfer, bucket, [with_etag(item) for item in items])
    return sync_plan._replace(items=[item._replace(etag=None) for item in sync_plan.items])


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://`` address. Raises JobError if it is not one."""
    address = split_s3_uri(uri)
    if address is None:
        raise JobError([Problem("", f"{uri} is not an S3 address; these begin with s3://BUCKET/")])
    return address


def _compare_files(transfer: Transfer, bucket: str, items: Sequence[TransferItem]) -> SyncPlan:
    """Return a plan without the files whose object has the same content. An object without ETag was not
    listed."""
    unchanged_keys: set[str] = set()

    def compare_file(item: TransferItem) -> None:
        if item.etag is not None and transfer.has_same_content(bucket, item):
            unchanged_keys.add(item.key)

    for_each(compare_file, items, _COMPARE_THREADS)
    return SyncPlan(bucket, [item for item in items if item.key not in unchanged_keys], len(unchanged_keys))


def _local_files(objects: Iterable[StoredObject], name_start: int, folder: Path) -> Iterator[TransferItem]:
    """Yield the files that the objects become. Raises JobError naming all keys that cannot be a file below
    the folder."""
    problems: list[str] = []
    names: dict[str, StoredObject] = {}
    folders: set[str] = set()
    for stored in objects:
        name = stored.key[name_start:]
        if stored.size == 0 and (not name or name.endswith("/")):
            continue  # a folder marker, as consoles create them
        problem = _name_problem(name)
        if problem is not None:
            problems.append(f"{stored.key!r} {problem}")
            continue
        names[name] = stored
        folders.update(name[:position] for position, character in enumerate(name) if character == "/")
    problems.extend(f"{names[name].key!r} is an object and a folder too" for name in folders & names.keys())
    problems.extend(_links_out_of(folder, folders))
    if problems:
        remaining = len(problems) - _MAX_PROBLEMS
        reported = [Problem("SRC", f"{text}; it cannot become a file") for text in problems[:_MAX_PROBLEMS]]
        raise JobError(
            reported + ([Problem("SRC", f"and {remaining:,} more like these")] if remaining > 0 else [])
        )
    for name, stored in names.items():
        yield TransferItem(stored.key, folder / name, stored.size, stored.etag)


def _name_problem(name: str) -> str | None:
    """Return why a key's name cannot be a file below a folder, or None."""
    components = name.split("/")
    checks: tuple[tuple[bool, str], ...] = (
        ("" in components, "has an empty name between slashes"),
        (not {".", ".."}.isdisjoint(components), "contains '.' or '..', which name another folder"),
        ("\0" in name, "has a zero byte"),
        (
            any(len(component.encode()) > _MAX_NAME_BYTES for component in components),
            "has a component of more than 255 bytes",
        ),
    )
    return next((problem for is_wrong, problem in checks if is_wrong), None)


def _links_out_of(folder: Path, folder_names: Iterable[str]) -> Iterator[str]:
    """Yield links in the folder that lead out of it: nothing is written there."""
    real_folder = os.path.realpath(folder)
    for name in sorted(folder_names):
        real_path = os.path.realpath(folder / name)
        if os.path.commonpath([real_folder, real_path]) != real_folder:
            yield f"{str(folder / name)!r} is a link out of {folder}"
