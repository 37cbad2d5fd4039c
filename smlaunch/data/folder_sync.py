"""Copy a folder to an S3 prefix, or a prefix to a folder, transferring only what differs. Nothing is
deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.aws.interfaces import ObjectStorage, StoredObject, Transfer, TransferItem
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.data.thread_pool import for_each_in_threads
from smlaunch.discovery.local_files import list_local_files
from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.errors import JobError, Problem

_COMPARE_THREADS = 8
_MAX_REPORTED_PROBLEMS = 10
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
    """Return the plan of a download: the objects under ``uri`` that the local folder lacks or has with
    another content. ``uri``: an object, or a prefix with or without its last slash.

    Raises CallError, and JobError naming all keys that cannot be a file below the folder.
    """
    bucket, prefix = parse_s3_uri(uri)
    objects = list(storage.list_objects(bucket, prefix))
    object_at_uri = [stored for stored in objects if stored.key == prefix and not prefix.endswith("/")]
    if object_at_uri:
        selected_objects = object_at_uri
        name_offset = prefix.rfind("/") + 1  # the file is called like the last part of the key
    else:
        folder_prefix = _with_last_slash(prefix)
        selected_objects = [stored for stored in objects if stored.key.startswith(folder_prefix)]
        name_offset = len(folder_prefix)
    if not selected_objects:
        raise JobError([Problem("SRC", f"there is no object under {uri}")])
    return _plan_without_unchanged(
        transfer, bucket, list(_iter_download_items(selected_objects, name_offset, folder))
    )


def plan_push(storage: ObjectStorage, transfer: Transfer, folder: Path, uri: str) -> SyncPlan:
    """Return the plan of an upload: the files of a local folder (or the one file) that the prefix ``uri``
    lacks or has with another content.

    Raises CallError, and JobError for files that cannot be read.
    """
    bucket, prefix = parse_s3_uri(uri)
    folder_prefix = _with_last_slash(prefix)
    try:
        protection_reason = protected_folder_reason(folder)  # such as a home folder with credentials
        if protection_reason:
            raise JobError(
                [Problem("SRC", f"{folder} {protection_reason}; name the folder of the data itself")]
            )
        files = list(list_local_files(folder))
    except OSError as error:
        raise JobError([Problem("SRC", f"it cannot be read: {error}")]) from error
    if not files:
        raise JobError([Problem("SRC", f"{folder} holds no files")])
    stored_by_key = {stored.key: stored for stored in storage.list_objects(bucket, folder_prefix)}
    items = [TransferItem(folder_prefix + file.relative_path, file.path, file.size) for file in files]

    def with_etag_to_compare(item: TransferItem) -> TransferItem:
        """Add the ETag of the object if it has the file's size: then their contents have to be compared."""
        stored = stored_by_key.get(item.key)
        return item if stored is None or stored.size != item.size else item._replace(etag=stored.etag)

    # Compares the contents of the files that have an ETag now, and leaves out those that are equal.
    sync_plan = _plan_without_unchanged(transfer, bucket, [with_etag_to_compare(item) for item in items])
    # The upload itself does not depend on what is there.
    return sync_plan._replace(items=[item._replace(etag=None) for item in sync_plan.items])


def _with_last_slash(prefix: str) -> str:
    """Return a prefix that ends with a slash; an empty one, the whole bucket, unchanged."""
    return prefix if not prefix or prefix.endswith("/") else prefix + "/"


def parse_s3_uri(uri: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://`` address. Raises JobError if it is not one."""
    address = split_s3_uri(uri)
    if address is None:
        raise JobError([Problem("", f"{uri} is not an S3 address; these begin with s3://BUCKET/")])
    return address


def _plan_without_unchanged(transfer: Transfer, bucket: str, items: Sequence[TransferItem]) -> SyncPlan:
    """Return the plan to transfer ``items`` but those whose file has the same content as the object. An item
    without ETag is not compared: there is no object, or it has another size."""
    unchanged_keys: set[str] = set()

    def compare_file(item: TransferItem) -> None:
        if item.etag is not None and transfer.has_same_content(bucket, item):
            unchanged_keys.add(item.key)

    for_each_in_threads(compare_file, items, _COMPARE_THREADS)
    return SyncPlan(bucket, [item for item in items if item.key not in unchanged_keys], len(unchanged_keys))


def _iter_download_items(
    objects: Iterable[StoredObject], name_offset: int, folder: Path
) -> Iterator[TransferItem]:
    """Yield the files below a local folder that the objects become, each with its key. ``name_offset``: where
    in the keys the file names begin. Raises JobError naming the keys that cannot be a file there."""
    problems: list[str] = []
    object_by_name: dict[str, StoredObject] = {}
    parent_folders: set[str] = set()
    for stored in objects:
        name = stored.key[name_offset:]
        if stored.size == 0 and (not name or name.endswith("/")):
            continue  # a folder marker, as consoles create them
        problem = _find_local_name_problem(name)
        if problem is not None:
            problems.append(f"{stored.key!r} {problem}")
            continue
        object_by_name[name] = stored
        # Every folder above the file: "a/b/c" is in "a" and "a/b".
        parent_folders.update(name[:position] for position, character in enumerate(name) if character == "/")
    names_of_both_kinds = parent_folders & object_by_name.keys()
    problems.extend(
        f"{object_by_name[name].key!r} is an object and a folder too" for name in names_of_both_kinds
    )
    problems.extend(_find_symlink_problems(folder, parent_folders))  # links that lead out of the folder
    if problems:
        raise _keys_error(problems)
    for name, stored in object_by_name.items():
        yield TransferItem(stored.key, folder / name, stored.size, stored.etag)


def _keys_error(problems: Sequence[str]) -> JobError:
    """Return an error with the first problems of keys that cannot be files, and the number of the others."""
    reported_problems = [
        Problem("SRC", f"{problem}; it cannot become a file") for problem in problems[:_MAX_REPORTED_PROBLEMS]
    ]
    unreported_count = len(problems) - _MAX_REPORTED_PROBLEMS
    if unreported_count > 0:
        reported_problems.append(Problem("SRC", f"and {unreported_count:,} more like these"))
    return JobError(reported_problems)


def _find_local_name_problem(name: str) -> str | None:
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


def _find_symlink_problems(folder: Path, folder_names: Iterable[str]) -> Iterator[str]:
    """Yield links in the folder that lead out of it: nothing is written there."""
    real_folder = os.path.realpath(folder)
    for name in sorted(folder_names):
        real_path = os.path.realpath(folder / name)
        if os.path.commonpath([real_folder, real_path]) != real_folder:
            yield f"{str(folder / name)!r} is a link out of {folder}"
