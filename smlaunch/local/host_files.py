"""Files that a job's programs may have made, opened so that they neither lead elsewhere nor keep us waiting.

A job may put a link, a FIFO or a device in the place of any file or directory of its tree, at any moment, and
the endpoint may be another user than the job's programs. So every name below a tree's root is opened relative
to the directory above it and never through a link; nothing waits for a FIFO's other end or a lease; what was
opened is looked at again; and only regular files are read.
"""
# Descriptors and single names: there are no paths that could be handed to pathlib.
# ruff: noqa: PTH101

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_COMMON = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = _COMMON | os.O_DIRECTORY
OWN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""How a directory is opened that the endpoint has made: its path may well go through links."""
_PATH_ONLY = getattr(os, "O_PATH", None)
LONGEST_PATH = 4096
"""Bytes. No program can open a path of as many (Linux, PATH_MAX)."""
_SHOWN = 100
"""Characters at either end of a long name."""

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISREG, "a file"),
)


class Refused(OSError):
    """It is of another ``kind``: neither the regular file nor the directory that is wanted."""

    def __init__(self, status: os.stat_result) -> None:
        self.kind = kind_of(status)
        self.is_link = stat.S_ISLNK(status.st_mode)
        super().__init__(errno.EINVAL, f"it is {self.kind}")


class Found(NamedTuple):
    """``name`` is relative to the directory that is walked, and empty for itself. ``error``: why it, or what
    is in it, cannot be had."""

    name: str
    status: os.stat_result | None
    error: OSError | None = None


def kind_of(status: os.stat_result) -> str:
    return next((kind for test, kind in _KINDS if test(status.st_mode)), "of an unknown kind")


def shown(name: str) -> str:
    """A name for people: of any bytes, on one line, and not too long."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return line if len(line) <= 2 * _SHOWN else f"{line[:_SHOWN]}...{line[-_SHOWN:]}"


def why(error: BaseException) -> str:
    """An error in a few words; the name of the file stands beside it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def open_folder(root: Path, below: str = "", grant: bool = False) -> int:
    """The directory ``below`` the root, a path of the endpoint's own. ``grant``: what is ours and shut is
    opened: only once the job's programs have ended. Raises OSError."""
    at = os.open(root.parent, OWN_FOLDER)
    for name in filter(None, (root.name, *below.split("/"))):
        try:
            following = open_folder_at(at, name, grant)
        finally:
            os.close(at)
        at = following
    return at


def open_folder_at(above: int, name: str, grant: bool = False) -> int:
    """The directory ``name`` in the open one ``above``. ``grant`` as in ``open_folder``. Raises OSError."""
    descriptor = _open(above, name, _FOLDER, grant)
    if grant:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and ~status.st_mode & 0o700:
            os.fchmod(
                descriptor, stat.S_IMODE(status.st_mode) | 0o700
            )  # it can be read and may still be shut
    return descriptor


class Opener:
    """Opens files one after the other. The directory of the latest one stays open: most lie side by side.
    ``grant`` as in ``open_folder``."""

    def __init__(self, grant: bool = False) -> None:
        self._grant = grant
        self._latest: tuple[Path, str] | None = None
        self._at = -1

    def __enter__(self) -> Opener:
        return self

    def __exit__(self, *_: object) -> None:
        if self._latest is not None:
            os.close(self._at)
            self._latest = None

    def open(self, root: Path, name: str) -> int:
        """A regular file, for reading; ``name`` is relative to the root. Raises OSError, of which Refused."""
        above, _, last = name.rpartition("/")
        if self._latest != (root, above):
            self.__exit__()
            self._at = open_folder(root, above, self._grant)
            self._latest = root, above
        status = os.stat(last, dir_fd=self._at, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(status)  # unopened: to open a device may do something already
        descriptor = _open(self._at, last, _COMMON, self._grant)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return descriptor
        os.close(descriptor)
        raise Refused(status)


def open_file(root: Path, name: str, grant: bool = False) -> int:
    """One alone, as Opener.open."""
    with Opener(grant) as opener:
        return opener.open(root, name)


def read_beginning(root: Path, name: str, limit: int) -> tuple[bytes, float]:
    """At most ``limit`` bytes, and when the file was written, in seconds since the epoch. Raises OSError."""
    with os.fdopen(open_file(root, name), "rb") as file:
        return file.read(limit), os.fstat(file.fileno()).st_mtime


def read_link(root: Path, name: str) -> str:
    """Where a symbolic link says that it leads. Raises OSError."""
    above, _, last = name.rpartition("/")
    at = open_folder(root, above)
    try:
        return os.readlink(last, dir_fd=at)
    finally:
        os.close(at)


def link_to(root: Path, name: str, target: str) -> None:
    """Gives a file a second name, ``target``, a path of the endpoint's own on the same disk. Of whatever kind
    it is: look at it there, where nobody can replace it. Raises OSError."""
    above, _, last = name.rpartition("/")
    at = open_folder(root, above, grant=True)
    try:
        os.link(last, target, src_dir_fd=at, follow_symlinks=False)
    finally:
        os.close(at)


def too_long(name: str) -> OSError | None:
    """For ``walk``: where no program could open it by its path."""
    if len(os.fsencode(name)) < LONGEST_PATH:
        return None
    return OSError(errno.ENAMETOOLONG, f"its path has {LONGEST_PATH} bytes or more")


def walk(
    root: Path, below: str = "", refuse: Callable[[str], OSError | None] = too_long, grant: bool = False
) -> Iterator[Found]:
    """Everything below a directory, in no order; a directory that cannot be read comes a second time, with
    the error. What ``refuse`` has an error for is not looked into: some name must be too long for it, so that
    a tree of any depth comes to an end."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            at = open_folder(root, f"{below}/{folder}", grant)
        except OSError as error:
            yield Found(folder, None, error)
            continue
        try:
            for found in _entries(at, folder, refuse):
                if found.error is None and found.status is not None and stat.S_ISDIR(found.status.st_mode):
                    waiting.append(found.name)
                yield found
        except OSError as error:
            yield Found(folder, None, error)
        finally:
            os.close(at)


def _entries(at: int, folder: str, refuse: Callable[[str], OSError | None]) -> Iterator[Found]:
    with os.scandir(at) as entries:
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield Found(name, None, error)
                continue
            yield Found(name, status, refuse(name))


def _open(at: int, name: str, flags: int, grant: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=at)
    except PermissionError:
        if not grant:
            raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO):
            raise Refused(os.stat(name, dir_fd=at, follow_symlinks=False)) from None
        raise
    _allow(at, name)
    return os.open(name, flags, dir_fd=at)


def _allow(at: int, name: str) -> None:
    """Lets this user into what is its own. Not into a file with further names, which may lie outside the
    tree. Raises OSError."""
    if _PATH_ONLY is None:
        if _may_be_opened(os.stat(name, dir_fd=at, follow_symlinks=False)):
            os.chmod(name, 0o700, dir_fd=at, follow_symlinks=False)
        return
    handle = os.open(name, _PATH_ONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        status = os.fstat(handle)
        if _may_be_opened(status):
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode) | 0o700)
    finally:
        os.close(handle)


def _may_be_opened(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1)
