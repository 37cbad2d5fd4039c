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
_ABANDONED_SECONDS = 86_400.0
"""Age of the last write after which a body in ``incoming`` is abandoned."""


def is_valid_path(key: str, root_length: int, is_case_insensitive: bool) -> bool:
    """Return whether a key may be a body's path below its bucket's folder."""
    try:
        as_bytes = os.fsencode(key)
    except UnicodeEncodeError:
        return False
    if as_bytes != key.encode() or b"\0" in as_bytes or root_length + len(as_bytes) > _MAX_PATH_BYTES:
        return False
    if is_case_insensitive and not (key.isascii() and key == key.lower()):
        return False  # `A` and `a` would be the same file
    names = as_bytes.split(b"/")
    return all(name not in (b"", b".", b"..") and len(name) <= _MAX_NAME_BYTES for name in names)


def hashed_path(bucket: str, key: str) -> str:
    """Return the path for the body of a key that cannot be a path, relative to the store's root."""
    return f"_store/odd/{hashlib.sha256(f'{bucket}/{key}'.encode()).hexdigest()}"


def remove_abandoned(incoming: Path, root: Path, known_files: Collection[str]) -> None:
    """Remove bodies that a killed process left long ago. ``known_files``: files of multipart uploads, which
    stay; relative to the store's root."""
    for path in incoming.iterdir():
        with suppress(FileNotFoundError):
            is_abandoned = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
            if is_abandoned and path.is_dir():
                shutil.rmtree(path)
            elif is_abandoned and str(path.relative_to(root)) not in known_files:
                path.unlink()


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
