"""The files of object bodies: their paths, how they get there, and the removal of abandoned ones."""

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
_MAX_REMEMBERED_FOLDERS = 10_000
_ABANDONED_AFTER_SECONDS = 86_400.0
"""Age of the last write after which a body in ``incoming`` is abandoned."""


class BodyFiles:
    """The files with the bodies of objects, below the store's root: ``<bucket>/<key>``, or a path made of a
    hash for a key that cannot be one."""

    def __init__(self, root: Path, store_folder: Path) -> None:
        self._root = root
        self._incoming_folder = store_folder / "incoming"
        self._root_path_bytes = len(os.fsencode(root))
        self._is_case_insensitive = is_disk_case_insensitive(store_folder)
        self._folders_with_synced_parents: set[str] = set()
        """Folders whose entries in all parent folders, up to the root, are synced."""

    def new_incoming_path(self) -> Path:
        """Return a path for a body, or a folder of bodies, that is being written."""
        return self._incoming_folder / secrets.token_hex(12)

    def remove_abandoned(self, part_files: Collection[str]) -> None:
        """Remove files that a killed process was writing more than a day ago and that became no object.
        ``part_files``: those that belong to multipart uploads, which may last long: they stay. Their paths
        are relative to the root."""
        for body_path in self._incoming_folder.iterdir():
            with suppress(FileNotFoundError):  # it has become an object's file, or was removed, meanwhile
                is_abandoned = time.time() - body_path.stat().st_mtime > _ABANDONED_AFTER_SECONDS
                if is_abandoned and body_path.is_dir():  # files that were to be stored in one transaction
                    shutil.rmtree(body_path)
                elif is_abandoned and str(body_path.relative_to(self._root)) not in part_files:
                    body_path.unlink()

    def move_into_place(self, bucket: str, key: str, source_path: str, folders_to_sync: set[str]) -> str:
        """Move the file ``source_path`` to the path of an object's body. Returns that path, relative to the
        root. Adds to ``folders_to_sync`` the folders whose entries have changed."""
        if self._can_be_path(key):
            target_path = f"{self._root}/{bucket}/{key}"
            try:
                # True: it created folders that were missing above the target.
                created_folders = _rename_with_parents(source_path, target_path)
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                pass  # `a` beside `a/b`: the later one gets a hashed path
            else:
                if created_folders:  # their entries in the folders above are not synced yet
                    self._folders_with_synced_parents.clear()
                self._add_folders_to_sync(target_path, folders_to_sync)
                return f"{bucket}/{key}"
        hashed_path = _hashed_path(bucket, key)
        os.replace(source_path, self._root / hashed_path)  # noqa: PTH105
        folders_to_sync.add(str((self._root / hashed_path).parent))
        return hashed_path

    def move_back(self, bucket: str, key: str, source_path: str) -> None:
        """Move a body from where ``move_into_place`` has put it to where it was. Raises OSError."""
        relative_path = f"{bucket}/{key}" if self._can_be_path(key) else _hashed_path(bucket, key)
        os.replace(self._root / relative_path, source_path)  # noqa: PTH105
        self.remove(bucket, relative_path)  # and its folders, if they are empty now

    def remove(self, bucket: str, relative_path: str) -> None:
        """Remove the body of an object in ``bucket``, and the folders that become empty. ``relative_path`` is
        relative to the root."""
        body_path = self._root / relative_path
        body_path.unlink(missing_ok=True)
        bucket_folder = self._root / bucket
        for folder in body_path.parents:
            if bucket_folder not in folder.parents:
                return  # the bucket's own folder stays
            try:
                folder.rmdir()
                # When it is created again, the folders above it have to be synced again.
                self._folders_with_synced_parents.discard(str(folder))
            except OSError:
                return  # not empty, or removed by another process

    def _add_folders_to_sync(self, body_path: str, folders_to_sync: set[str]) -> None:
        """Add the folder of an object's body to ``folders_to_sync`` and, the first time that this process
        stores something in it, the folders above it up to the root: a process that created them may have been
        killed before they were synced."""
        folder = body_path.rpartition("/")[0]
        folders_to_sync.add(folder)
        if folder in self._folders_with_synced_parents:
            return
        if len(self._folders_with_synced_parents) >= _MAX_REMEMBERED_FOLDERS:  # to bound the memory
            self._folders_with_synced_parents.clear()
        self._folders_with_synced_parents.add(folder)
        while len(folder) > self._root_path_bytes:
            folder = folder.rpartition("/")[0]  # its parent
            folders_to_sync.add(folder)

    def _can_be_path(self, key: str) -> bool:
        """Return whether an object's key can be the path of its body, below the bucket's folder."""
        try:
            key_bytes = os.fsencode(key)
        except UnicodeEncodeError:
            return False
        # The names of files are not UTF-8 in every locale.
        if key_bytes != key.encode() or b"\0" in key_bytes:
            return False
        # 3800: below Linux's limit of 4096, so that the bucket's name fits too.
        if self._root_path_bytes + len(key_bytes) > _MAX_PATH_BYTES:
            return False
        if self._is_case_insensitive and not (key.isascii() and key == key.lower()):
            return False  # `A` and `a` would be the same file
        path_components = key_bytes.split(b"/")
        return all(
            component not in (b"", b".", b"..") and len(component) <= _MAX_NAME_BYTES
            for component in path_components
        )


def _hashed_path(bucket: str, key: str) -> str:
    return f"_store/odd/{hashlib.sha256(f'{bucket}/{key}'.encode()).hexdigest()}"


def _rename_with_parents(source: str, target: str) -> bool:
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
