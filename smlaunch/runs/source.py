"""The user's source as one archive: the same files give the same bytes, on every machine.

What is left out: what ``.gitignore`` and ``.smlaunchignore`` name (as git reads them, in every folder, and
in the folders above up to the repository's root; ``.smlaunchignore`` has the last word), and always
version control, caches, virtual environments and ``.env``, which holds secrets more often than code.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.ignoring import OWN_FILE, Rules, Unusable, ignored, read_spec, rules_in

IGNORE_FILES = (OWN_FILE, ".gitignore")
"""In order of authority within one folder."""

_ALWAYS_OUT = frozenset(
    (
        *(".git", ".hg", ".svn", ".env", ".smlaunch", ".DS_Store", "__pycache__", ".ipynb_checkpoints"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".tox", ".nox", "node_modules"),
    )
)

WARN_BYTES = 50 << 20
LIMIT_BYTES = 500 << 20
LIMIT_FILES = 20_000
"""A source tree past these holds data, which belongs into an input channel: refused, not slowly uploaded."""

_FIXED_TIME = 315532800  # 1980-01-01: a time of its own would make every archive another one


@dataclass(frozen=True)
class PackedSource:
    """``sha256`` is that of the archive before compression, so that it does not depend on the zlib at hand.

    ``size`` is in bytes, of the files as they lie on disk. ``notes`` are things the user should know.
    """

    root: Path
    sha256: str
    files: tuple[str, ...]
    size: int
    notes: tuple[str, ...]
    tar: bytes = field(repr=False)

    def archive(self) -> bytes:
        """The .tar.gz. Level 1: source is small, and the wait is seen by the user."""
        return gzip.compress(self.tar, compresslevel=1, mtime=0)


class _Entry(NamedTuple):
    relative: str
    path: Path
    status: os.stat_result


def pack(root: Path) -> PackedSource:
    """Reads the folder and returns its archive. JobError for a folder that cannot be sent."""
    if not root.is_dir():
        what = "is a file, a folder is needed" if root.exists() else "does not exist"
        raise JobError([Problem("source", f"{root} {what}")])
    notes: list[str] = []
    entries: list[_Entry] = []
    size = 0
    for entry in _walk(root, notes):
        entries.append(entry)
        size += entry.status.st_size
        if size > LIMIT_BYTES or len(entries) > LIMIT_FILES:
            raise JobError([Problem("source", _too_much(root, entries, size))])
    if size > WARN_BYTES:
        notes.append(f"source: {root} is {_megabytes(size)} ({_largest(entries)}); {_CURE}")
    entries.sort(key=lambda entry: os.fsencode(entry.relative))
    buffer = io.BytesIO()
    problems: list[Problem] = []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            try:
                _add(tar, entry)
            except OSError as error:
                problems.append(Problem("source", f"{entry.path} cannot be read: {error.strerror}"))
    if problems:
        raise JobError(problems)
    content = buffer.getvalue()
    names = tuple(entry.relative for entry in entries)
    return PackedSource(root, hashlib.sha256(content).hexdigest(), names, size, tuple(notes), content)


def _add(tar: tarfile.TarFile, entry: _Entry) -> None:
    info = tarfile.TarInfo(entry.relative)
    info.mtime = _FIXED_TIME
    if stat.S_ISLNK(entry.status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(entry.path.readlink()), 0o777
        tar.addfile(info)
        return
    content = entry.path.read_bytes()
    info.size = len(content)
    info.mode = 0o755 if entry.status.st_mode & 0o100 else 0o644
    tar.addfile(info, io.BytesIO(content))


def _walk(root: Path, notes: list[str]) -> Iterator[_Entry]:
    """Files and inner links below ``root``; folders are not entries (an empty one is not sent)."""
    real_root = os.path.realpath(root)
    pending = [("", root, _rules_above(root))]
    while pending:
        prefix, folder, inherited = pending.pop()
        try:
            found = sorted(os.scandir(folder), key=lambda item: item.name)
        except OSError as error:
            raise JobError([Problem("source", f"{folder} cannot be read: {error.strerror}")]) from error
        rules = [*_rules(folder, prefix, {item.name for item in found}), *inherited]
        for item in found:
            relative = prefix + item.name
            is_folder = item.is_dir(follow_symlinks=False)
            if item.name in _ALWAYS_OUT or item.name.endswith(".pyc") or ignored(rules, relative, is_folder):
                continue
            if is_folder:
                if not Path(item.path, "pyvenv.cfg").exists():
                    pending.append((relative + "/", Path(item.path), rules))
                continue
            status = item.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield _Entry(relative, Path(item.path), status)
            elif stat.S_ISLNK(status.st_mode):
                yield from _link(Path(item.path), relative, status, real_root, notes)
            else:
                notes.append(f"source: {relative} is neither file nor folder, and is not sent")


def _link(
    link: Path, relative: str, status: os.stat_result, real_root: str, notes: list[str]
) -> Iterator[_Entry]:
    """A link within the source stays a link; one to a file outside is sent as that file."""
    target = link.readlink()
    real = Path(os.path.realpath(link))
    if not target.is_absolute() and real.is_relative_to(real_root):
        yield _Entry(relative, link, status)
    elif real.is_file():
        yield _Entry(relative, real, real.stat())
    else:
        kind = "a folder outside the source" if real.is_dir() else "nothing"
        notes.append(f"source: {relative} is a link to {kind} ({target}), and is not sent")


def _rules(folder: Path, prefix: str, names: set[str]) -> list[Rules]:
    with _usable():
        return rules_in(folder, prefix, [name for name in IGNORE_FILES if name in names])


def _rules_above(root: Path) -> list[Rules]:
    """The rules of the folders above, nearest first, when the source lies inside a git repository."""
    rules: list[Rules] = []
    current, below = Path(os.path.realpath(root)), ""
    while not (current / ".git").exists():
        if current.parent == current:
            return []
        current, below = current.parent, f"{current.name}/{below}"
        ignore = current / ".gitignore"
        if ignore.is_file():
            with _usable():
                above = Rules(read_spec(ignore), 0, below)
            # A folder that is itself ignored was named on purpose: its parent's rules would empty it.
            if not ignored([above], "", is_folder=False):
                rules.append(above)
    return rules


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except Unusable as error:
        raise JobError([Problem("source", str(error))]) from error


_CURE = "name what is not code in .smlaunchignore, or give data as --input"


def _too_much(root: Path, entries: list[_Entry], size: int) -> str:
    return (
        f"{root} holds more than can be sent as source ({len(entries):,} files, {_megabytes(size)} so far; "
        f"limits: {LIMIT_FILES:,} files, {_megabytes(LIMIT_BYTES)}): {_largest(entries)}; {_CURE}, "
        "or name a smaller folder with --source"
    )


def _largest(entries: list[_Entry]) -> str:
    totals: dict[str, list[int]] = {}
    for entry in entries:
        total = totals.setdefault(entry.relative.split("/")[0], [0, 0])
        total[0] += entry.status.st_size
        total[1] += 1
    top = sorted(totals.items(), key=lambda pair: pair[1], reverse=True)[:3]
    return "largest: " + ", ".join(
        f"{name} {_megabytes(bytes_)}" + (f" in {count:,} files" if count > 1 else "")
        for name, (bytes_, count) in top
    )


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MB"
