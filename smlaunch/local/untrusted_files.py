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
from itertools import takewhile
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
    """A file or directory found by ``walk_folder``. ``relative_path``: its path in the walked directory,
    empty for that directory. ``error``: why it, or its content, cannot be read."""

    relative_path: str
    file_stat: os.stat_result | None
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
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, with no rights for others than their owner:
    ``mkdir(parents=True)`` gives its mode to the last one only."""
    missing_folders = [folder, *takewhile(lambda parent: not parent.exists(), folder.parents)]
    for missing_folder in reversed(missing_folders):
        missing_folder.mkdir(mode=0o700, exist_ok=True)


def open_folder(root: Path, relative_path: str = "", fix_permissions: bool = False) -> int:
    """Open a directory below ``root``, a path of the endpoint's own. ``fix_permissions``: add this
    user's missing rights to its own directories; only after the job's programs have exited. Raises
    OSError."""
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
    folder_fd = _open_entry(parent_fd, name, _FOLDER_FLAGS, fix_permissions)
    if fix_permissions:
        folder_stat = os.fstat(folder_fd)
        lacks_owner_permission = bool(~folder_stat.st_mode & 0o700)  # it can be read, but not be written, say
        if folder_stat.st_uid == os.geteuid() and lacks_owner_permission:
            os.fchmod(folder_fd, stat.S_IMODE(folder_stat.st_mode) | 0o700)
    return folder_fd


class FileOpener:
    """Opens many files. The directory of the last file stays open, because most files are in the directory of
    the one before. ``fix_permissions`` as in ``open_folder``."""

    def __init__(self, fix_permissions: bool = False) -> None:
        self._fix_permissions = fix_permissions
        self._open_root_and_folder: tuple[Path, str] | None = None
        self._folder_fd = -1

    def __enter__(self) -> FileOpener:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_folder()

    def _close_folder(self) -> None:
        """Close the folder of the last opened file, if there was one."""
        if self._open_root_and_folder is not None:
            os.close(self._folder_fd)
            self._open_root_and_folder = None

    def open(self, root: Path, relative_path: str) -> int:
        """Open the regular file ``root/relative_path`` for reading, never through a link below the root, and
        return its file descriptor. The folder of the file before stays open and is used again. Raises
        OSError, and its subclass UnexpectedFileType."""
        folder_path, _, file_name = relative_path.rpartition("/")
        if self._open_root_and_folder != (root, folder_path):
            self._close_folder()
            self._folder_fd = open_folder(root, folder_path, self._fix_permissions)
            self._open_root_and_folder = root, folder_path
        # The folder was opened without following links below the root.
        file_stat = os.stat(file_name, dir_fd=self._folder_fd, follow_symlinks=False)
        if not stat.S_ISREG(file_stat.st_mode):
            raise UnexpectedFileType(file_stat)  # before opening it: opening a device may have an effect
        file_fd = _open_entry(self._folder_fd, file_name, _FILE_FLAGS, self._fix_permissions)
        file_stat = os.fstat(file_fd)  # the job may have replaced the file since the check
        if stat.S_ISREG(file_stat.st_mode):
            return file_fd
        os.close(file_fd)
        raise UnexpectedFileType(file_stat)


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


def walk_folder(
    root: Path,
    relative_path: str = "",
    find_path_problem: Callable[[str], OSError | None] = path_too_long,
    fix_permissions: bool = False,
) -> Iterator[WalkEntry]:
    """Yield all files and directories below ``root/relative_path``, in no order, without following links. A
    directory that cannot be read is yielded again, with the error. ``find_path_problem`` returns an error for
    a path (relative to the walked directory) that is yielded with it and not entered; it has to reject paths
    that are too long, so that the walk of a tree of any depth ends. ``fix_permissions``: add this user's
    missing rights to its own directories, so that they can be read."""
    pending_folders = [""]  # "" is the walked directory
    while pending_folders:
        folder_path = pending_folders.pop()
        try:
            # Raises UnexpectedFileType, an OSError, for a link that has taken the directory's place.
            folder_fd = open_folder(root, f"{relative_path}/{folder_path}", fix_permissions)
        except OSError as error:
            yield WalkEntry(folder_path, file_stat=None, error=error)
            continue
        try:
            for entry in _scan_folder(folder_fd, folder_path, find_path_problem):
                is_folder = entry.file_stat is not None and stat.S_ISDIR(entry.file_stat.st_mode)
                if is_folder and entry.error is None:
                    pending_folders.append(entry.relative_path)
                yield entry
        except OSError as error:  # of reading the directory
            yield WalkEntry(folder_path, file_stat=None, error=error)
        finally:
            os.close(folder_fd)


def _scan_folder(
    folder_fd: int, folder_path: str, find_path_problem: Callable[[str], OSError | None]
) -> Iterator[WalkEntry]:
    """Yield the entries of an open folder, without those that disappear meanwhile. ``folder_path``: its path
    relative to the walked directory, "" for that itself; ``find_path_problem``: returns why such a path
    cannot be used, None if it can."""
    with os.scandir(folder_fd) as entries:
        for entry in entries:
            relative_path = f"{folder_path}/{entry.name}" if folder_path else entry.name
            try:
                file_stat = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                yield WalkEntry(relative_path, file_stat=None, error=error)
                continue
            yield WalkEntry(relative_path, file_stat, error=find_path_problem(relative_path))


def _open_entry(folder_fd: int, name: str, flags: int, fix_permissions: bool) -> int:
    """Open the entry ``name`` of an open folder and return its file descriptor. ``flags``: of os.open, among
    them O_NOFOLLOW. ``fix_permissions``: if permission is denied, add this user's missing rights to its own
    entry and try again. Raises UnexpectedFileType for an entry that ``flags`` do not fit, such as a link, and
    OSError."""
    try:
        return os.open(name, flags, dir_fd=folder_fd)
    except PermissionError:
        if not fix_permissions:
            raise
        _grant_owner_access(folder_fd, name)
        return os.open(name, flags, dir_fd=folder_fd)
    except OSError as error:
        # A link (EMLINK on FreeBSD), no directory, or a socket or device without a driver.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO):
            raise UnexpectedFileType(os.stat(name, dir_fd=folder_fd, follow_symlinks=False)) from None
        raise


def _grant_owner_access(folder_fd: int, name: str) -> None:
    """Give this user all rights to its own file or directory ``name`` in an open folder, never through a
    link. Does nothing for a file with several hard links (not safe to chmod): one may be outside the tree
    that is being read. Raises OSError."""
    if _O_PATH is None:  # not Linux
        if _is_safe_to_chmod(os.stat(name, dir_fd=folder_fd, follow_symlinks=False)):
            os.chmod(name, 0o700, dir_fd=folder_fd, follow_symlinks=False)
        return
    # Opening with O_PATH needs no rights, and the check and the change are of the same file.
    path_fd = os.open(name, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        file_stat = os.fstat(path_fd)
        if _is_safe_to_chmod(file_stat):
            # fchmod rejects a descriptor that was opened with O_PATH.
            os.chmod(f"/proc/self/fd/{path_fd}", stat.S_IMODE(file_stat.st_mode) | 0o700)
    finally:
        os.close(path_fd)


def _is_safe_to_chmod(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
