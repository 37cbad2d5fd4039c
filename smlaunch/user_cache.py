"""Stores in the user's cache folder what takes long to compute from installed files.

An entry is read only if this user wrote it: the file is a regular one of theirs that nobody else may write,
and begins with a SHA-256 of its key and content. Whatever is wrong, reading gives None and writing gives up:
no command depends on the folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from threading import get_ident

_MAX_BYTES = 8 << 20
"""Of an entry; the largest, the runtime's archive, has 1.8 MB."""

_MAX_ENTRIES_PER_NAME = 8
"""Versions of the files that are in use at the same time, in several environments."""

_DIGEST_BYTES = 64
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def cache_folder() -> Path | None:
    """Return the folder: smlaunch in $XDG_CACHE_HOME, or in ~/.cache. None without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # also if it is unset; the XDG specification ignores a relative path
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "smlaunch" if base.is_absolute() else None


def read_entry(name: str, key: str) -> bytes | None:
    """Return the content that was written under this name and key; None if there is none."""
    folder = cache_folder()
    if folder is None:
        return None
    with suppress(OSError, ValueError):  # ValueError: a NUL in the path
        descriptor = os.open(folder / _file_name(name, key), _READ_FLAGS)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _is_private(status) or status.st_size > _MAX_BYTES:
                return None
            digest, content = file.read(_DIGEST_BYTES), file.read(_MAX_BYTES)
        return content if digest == _digest(key, content) else None
    return None


def write_entry(name: str, key: str, content: bytes) -> None:
    """Write the content, if that is possible; remove the oldest of many entries with this name."""
    folder = cache_folder()
    if folder is None:
        return
    with suppress(OSError, ValueError):
        _make_folder(folder)
        path = folder / _file_name(name, key)
        # Unique among processes and threads: each publishes its own file, and the last one stays.
        unfinished = path.with_suffix(f".{os.getpid()}-{get_ident()}")
        try:
            with os.fdopen(os.open(unfinished, _WRITE_FLAGS, 0o600), "wb") as file:
                file.write(_digest(key, content) + content)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        entries = sorted(folder.glob(f"{name}-*"), key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
        for outdated in entries[_MAX_ENTRIES_PER_NAME:]:
            outdated.unlink(missing_ok=True)


def _file_name(name: str, key: str) -> str:
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _digest(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(content)
    return digest.hexdigest().encode()


def _make_folder(folder: Path) -> None:
    """Make the folder, and the one that it is in. Raises OSError for one that another user may write."""
    for path in (folder.parent, folder):
        with suppress(FileExistsError):
            path.mkdir(0o700)
    if not _is_private(folder.stat()):
        raise PermissionError(f"others may write in {folder}")


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
