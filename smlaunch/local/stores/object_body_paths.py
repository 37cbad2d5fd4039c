"""Paths of object bodies: which keys can be paths, renames, and the removal of abandoned bodies."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 3800
_ABANDONED_AFTER_SECONDS = 86_400.0
"""Age of the last write after which a body in ``incoming`` is abandoned."""


def is_valid_body_path(key: str, root_path_bytes: int, is_case_insensitive: bool) -> bool:
    """Return whether an S3 object's key can be the path of the file with its bytes, below the bucket's
    folder. ``root_path_bytes``: length of the path of the store's root; ``is_case_insensitive``: whether its
    file system ignores case."""
    try:
        key_bytes = os.fsencode(key)
    except UnicodeEncodeError:
        return False
    # The names of files are not UTF-8 in every locale.
    if key_bytes != key.encode() or b"\0" in key_bytes:
        return False
    # 3800: below Linux's limit of 4096, so that the bucket's name fits too.
    if root_path_bytes + len(key_bytes) > _MAX_PATH_BYTES:
        return False
    if is_case_insensitive and not (key.isascii() and key == key.lower()):
        return False  # `A` and `a` would be the same file
    path_components = key_bytes.split(b"/")
    return all(
        component not in (b"", b".", b"..") and len(component) <= _MAX_NAME_BYTES
        for component in path_components
    )


def hashed_body_path(bucket: str, key: str) -> str:
    """Return the path for the body of a key that cannot be a path, relative to the store's root."""
    return f"_store/odd/{hashlib.sha256(f'{bucket}/{key}'.encode()).hexdigest()}"


def remove_abandoned_bodies(incoming_folder: Path, store_root: Path, part_files: Collection[str]) -> None:
    """Remove files that a killed process was writing more than a day ago and that became no object.
    ``incoming_folder``: folder of the files that are being written; ``part_files``: those in it that belong
    to multipart uploads, which may last long: they stay. Their paths are relative to ``store_root``."""
    for body_path in incoming_folder.iterdir():
        with suppress(FileNotFoundError):  # it has become an object's file, or was removed, meanwhile
            is_abandoned = time.time() - body_path.stat().st_mtime > _ABANDONED_AFTER_SECONDS
            if is_abandoned and body_path.is_dir():  # files that were to be stored in one transaction
                shutil.rmtree(body_path)
            elif is_abandoned and str(body_path.relative_to(store_root)) not in part_files:
                body_path.unlink()


def rename_with_parents(source: str, target: str) -> bool:
    """Rename a file and create missing parent folders. Returns whether folders were created."""
    try:
        os.replace(source, target)  # noqa: PTH105
    except FileNotFoundError:
        # No delete removes the new folder in between: both run inside a write transaction.
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)  # noqa: PTH105
        return True
    return False


def is_disk_case_insensitive(folder: Path) -> bool:
    """Return whether the file system ignores case."""
    probe = folder / f"Case-{secrets.token_hex(6)}"
    probe.touch()
    try:
        return probe.with_name(probe.name.lower()).exists()
    finally:
        probe.unlink()
