"""Safe access to files that a job's programs may have created.

At any moment a job may replace a file or directory of its tree by a link, a FIFO or a device, and the
endpoint may run as another user than the job's programs. So every name below a tree's root is opened relative
to its parent directory and never through a link; nothing blocks on a FIFO or a lease; the type is checked
again after opening; and only regular files are read.
"""
# Works with descriptors and single names, so pathlib does not apply.
# ruff: noqa: PTH101

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER_FLAGS = _FILE_FLAGS | os.O_DIRECTORY
OWN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""For directories that the endpoint created; their path may contain links."""
_O_PATH = getattr(os, "O_PATH", None)
MAX_PATH_BYTES = 4096
"""Programs can open shorter paths only (Linux, PATH_MAX)."""
_MAX_SHOWN_CHARACTERS = 100
"""Of the beginning and of the end of a long name."""

_FILE_TYPES = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISREG, "a file"),
)


class UnexpectedFileType(OSError):
    """A path is neither a regular file nor a directory, or not the expected one of them."""

    def __init__(self, status: os.stat_result) -> None:
        self.file_type = file_type_name(status)
        self.is_link = stat.S_ISLNK(status.st_mode)
        super().__init__(errno.EINVAL, f"it is {self.file_type}")


class WalkEntry(NamedTuple):
    """A file or directory found by ``walk``. ``name``: relative to the walked directory, empty for that
    directory. ``error``: why it, or its content, cannot be read."""

    name: str
    status: os.stat_result | None
    error: OSError | None = None


def file_type_name(status: os.stat_result) -> str:
    return next((name for test, name in _FILE_TYPES if test(status.st_mode)), "of an unknown kind")


def printable_name(name: str) -> str:
    """Return a file name for messages: printable, on one line, shortened in the middle if it is long."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    line = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
    if len(line) <= 2 * _MAX_SHOWN_CHARACTERS:
        return line
    return f"{line[:_MAX_SHOWN_CHARACTERS]}...{line[-_MAX_SHOWN_CHARACTERS:]}"


def error_text(error: BaseException) -> str:
    """Return an error's message without the file name, which the caller adds."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def open_folder(root: Path, relative_path: str = "", fix_permissions: bool = False) -> int:
    """Open a directory below ``root``, a path of the endpoint's own. ``fix_permissions``: add this user's
    missing rights to its own directories; only after the job's programs have exited. Raises OSError."""
    folder_fd = os.open(root.parent, OWN_FOLDER_FLAGS)
    for name in filter(None, (root.name, *relative_path.split("/"))):
        try:
            child_fd = open_folder_at(folder_fd, name, fix_permissions)
        finally:
            os.close(folder_fd)
        folder_fd = child_fd
    return folder_fd


def open_folder_at(parent_fd: int, name: str, fix_permissions: bool = False) -> int:
    """Open the directory ``name`` in an open directory; arguments as in ``open_folder``. Raises OSError."""
    descriptor = _open(parent_fd, name, _FOLDER_FLAGS, fix_permissions)
    if fix_permissions:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and ~status.st_mode & 0o700:
            # It could be opened for reading, but write or search permission is missing.
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | 0o700)
    return descriptor


class FileOpener:
    """Opens many files. The directory of the last file stays open, because most files are in the directory of
    the one before. ``fix_permissions`` as in ``open_folder``."""

    def __init__(self, fix_permissions: bool = False) -> None:
        self._fix_permissions = fix_permissions
        self._latest: tuple[Path, str] | None = None
        self._folder_fd = -1

    def __enter__(self) -> FileOpener:
        return self

    def __exit__(self, *_: object) -> None:
        if self._latest is not None:
            os.close(self._folder_fd)
            self._latest = None

    def open(self, root: Path, name: str) -> int:
        """Open a regular file for reading; ``name`` is relative to the root. Raises OSError, and its subclass
        UnexpectedFileType."""
        folder, _, file_name = name.rpartition("/")
        if self._latest != (root, folder):
            self.__exit__()
            self._folder_fd = open_folder(root, folder, self._fix_permissions)
            self._latest = root, folder
        status = os.stat(file_name, dir_fd=self._folder_fd, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise UnexpectedFileType(status)  # before opening it: opening a device may have an effect
        descriptor = _open(self._folder_fd, file_name, _FILE_FLAGS, self._fix_permissions)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return descriptor
        os.close(descriptor)
        raise UnexpectedFileType(status)


def open_file(root: Path, name: str, fix_permissions: bool = False) -> int:
    """Open one file, like FileOpener.open."""
    with FileOpener(fix_permissions) as opener:
        return opener.open(root, name)


def read_beginning(root: Path, name: str, max_bytes: int) -> tuple[bytes, float]:
    """Return at most ``max_bytes`` of a file, and its mtime in seconds since the epoch. Raises OSError."""
    with os.fdopen(open_file(root, name), "rb") as file:
        return file.read(max_bytes), os.fstat(file.fileno()).st_mtime


def read_link(root: Path, name: str) -> str:
    """Return the target of a symbolic link. Raises OSError."""
    folder, _, file_name = name.rpartition("/")
    folder_fd = open_folder(root, folder)
    try:
        return os.readlink(file_name, dir_fd=folder_fd)
    finally:
        os.close(folder_fd)


def hard_link(root: Path, name: str, target: str) -> None:
    """Create a hard link to a file of any type at ``target``, a path of the endpoint's own on the same disk.
    The caller checks the type there, where no job can replace the file. Raises OSError."""
    folder, _, file_name = name.rpartition("/")
    folder_fd = open_folder(root, folder, fix_permissions=True)
    try:
        os.link(file_name, target, src_dir_fd=folder_fd, follow_symlinks=False)
    finally:
        os.close(folder_fd)


def path_too_long(name: str) -> OSError | None:
    """Return an error for a name that no program could open by its path. For ``walk``."""
    if len(os.fsencode(name)) < MAX_PATH_BYTES:
        return None
    return OSError(errno.ENAMETOOLONG, f"its path has {MAX_PATH_BYTES} bytes or more")


def walk(
    root: Path,
    relative_path: str = "",
    find_problem: Callable[[str], OSError | None] = path_too_long,
    fix_permissions: bool = False,
) -> Iterator[WalkEntry]:
    """Yield everything below a directory, in no order. A directory that cannot be read is yielded again, with
    the error. ``find_problem`` returns an error for names whose content is skipped; it has to return one for
    names that are too long, so that the walk of a tree of any depth ends."""
    pending_folders = [""]
    while pending_folders:
        folder = pending_folders.pop()
        try:
            folder_fd = open_folder(root, f"{relative_path}/{folder}", fix_permissions)
        except OSError as error:
            yield WalkEntry(folder, None, error)
            continue
        try:
            for entry in _entries(folder_fd, folder, find_problem):
                if entry.error is None and entry.status is not None and stat.S_ISDIR(entry.status.st_mode):
                    pending_folders.append(entry.name)
                yield entry
        except OSError as error:
            yield WalkEntry(folder, None, error)
        finally:
            os.close(folder_fd)


def _entries(
    folder_fd: int, folder: str, find_problem: Callable[[str], OSError | None]
) -> Iterator[WalkEntry]:
    """Yield the entries of an open folder. ``folder`` is its path in the tree; ``find_problem`` returns why a
    path cannot be used."""
    with os.scandir(folder_fd) as entries:
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield WalkEntry(name, None, error)
                continue
            yield WalkEntry(name, status, find_problem(name))


def _open(folder_fd: int, name: str, flags: int, fix_permissions: bool) -> int:
    """Open an entry of the folder ``folder_fd``, without following a link if ``flags`` say so, and return its
    descriptor. ``fix_permissions``: whether missing rights are added. Raises UnexpectedFileType for an entry
    of another type."""
    try:
        return os.open(name, flags, dir_fd=folder_fd)
    except PermissionError:
        if not fix_permissions:
            raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO):
            raise UnexpectedFileType(os.stat(name, dir_fd=folder_fd, follow_symlinks=False)) from None
        raise
    _grant_access(folder_fd, name)
    return os.open(name, flags, dir_fd=folder_fd)


def _grant_access(folder_fd: int, name: str) -> None:
    """Add this user's missing rights to its own file or directory. Not to a file with several hard links,
    which may be outside the tree. Raises OSError."""
    if _O_PATH is None:
        if _is_safe_to_chmod(os.stat(name, dir_fd=folder_fd, follow_symlinks=False)):
            os.chmod(name, 0o700, dir_fd=folder_fd, follow_symlinks=False)
        return
    path_fd = os.open(name, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        status = os.fstat(path_fd)
        if _is_safe_to_chmod(status):
            os.chmod(f"/proc/self/fd/{path_fd}", stat.S_IMODE(status.st_mode) | 0o700)
    finally:
        os.close(path_fd)


def _is_safe_to_chmod(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
