"""Where a body can lie: which keys are paths, and how a file gets there."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_COMPONENT_LIMIT = 255
_PATH_LIMIT = 3800
_ABANDONED = 86_400.0
"""Seconds without a write after which a body in ``incoming`` is nobody's."""


def can_be_a_path(key: str, root_length: int, folds_case: bool) -> bool:
    """Whether a key may be a body's path below its bucket's folder."""
    try:
        as_bytes = os.fsencode(key)
    except UnicodeEncodeError:
        return False
    if as_bytes != key.encode() or b"\0" in as_bytes or root_length + len(as_bytes) > _PATH_LIMIT:
        return False
    if folds_case and not (key.isascii() and key == key.lower()):
        return False  # such a disk takes `A` for `a`
    names = as_bytes.split(b"/")
    return all(name not in (b"", b".", b"..") and len(name) <= _COMPONENT_LIMIT for name in names)


def odd_place(bucket: str, key: str) -> str:
    """Where the body of any other key lies, relative to the store's root."""
    return f"_store/odd/{hashlib.sha256(f'{bucket}/{key}'.encode()).hexdigest()}"


def sweep(incoming: Path, root: Path, known: Collection[str]) -> None:
    """Removes bodies that a killed process was writing long ago and that no upload knows. ``known``: relative
    to the store's root."""
    for path in incoming.iterdir():
        with suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > _ABANDONED
            if old and path.is_dir():
                shutil.rmtree(path)
            elif old and str(path.relative_to(root)) not in known:
                path.unlink()


def rename_making_parents(source: str, target: str) -> bool:
    """Whether folders had to be made for it."""
    try:
        os.replace(source, target)  # noqa: PTH105
    except FileNotFoundError:
        # Nobody prunes the new folder in between: deletes do so inside a write transaction, as this is.
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)  # noqa: PTH105
        return True
    return False


def disk_folds_case(folder: Path) -> bool:
    """Whether the disk takes ``A`` for ``a``."""
    probe = folder / f"Case-{secrets.token_hex(6)}"
    probe.touch()
    try:
        return probe.with_name(probe.name.lower()).exists()
    finally:
        probe.unlink()
