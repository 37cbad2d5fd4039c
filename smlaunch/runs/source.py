"""The user's source as one archive: the same files give the same bytes, on every machine.

What is left out (docs/source.md): what ``.gitignore`` and ``.smlaunchignore`` name (as git reads them, in
every folder, and in the folders above up to the repository's root; ``.smlaunchignore`` has the last word);
version control, caches, virtual environments and smlaunch's own state; files that look like secrets, and
links that lead out of the folder, which the user is told of.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from smlaunch.errors import JobError, Problem
from smlaunch.local_files import NAMED_IN_JSON, WISH, secrets_stay
from smlaunch.planning.prose import some
from smlaunch.private_places import private_place
from smlaunch.runs.source_walk import Entry, LeftOut, SourceTree
from smlaunch.scripts import closed

WARN_BYTES = 50_000_000
LIMIT_BYTES = 500_000_000
LIMIT_FILES = 20_000
"""A source tree past these holds data, which belongs into an input channel: refused, not slowly uploaded."""

_FIXED_TIME = 315532800  # 1980-01-01: a time of its own would make every archive another one


@dataclass(frozen=True)
class PackedSource:
    """``sha256`` is that of the archive before compression, so that it does not depend on the zlib at hand.

    ``size`` is in bytes, of the files as they lie on disk. ``notes`` are things the user should know.
    ``left_out``: why a file or folder is not there, a clause, by its path.
    """

    root: Path
    sha256: str
    files: tuple[str, ...]
    size: int
    notes: tuple[str, ...]
    tar: bytes = field(repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict, repr=False)

    def archive(self) -> bytes:
        """The .tar.gz. Level 1: source is small, and the wait is seen by the user."""
        return gzip.compress(self.tar, compresslevel=1, mtime=0)

    def why_absent(self, relative: str) -> str:
        """A sentence about a file of the folder that is not in the archive."""
        for path in (relative, *map(str, PurePosixPath(relative).parents)):
            if path in self.left_out:
                return f"{path} {self.left_out[path]}"
        real = os.path.relpath(os.path.realpath(self.root / relative), os.path.realpath(self.root))
        if real in self.files:
            return f"{relative} lies behind a link; name it by its own path, {real}"
        return (
            f"{relative} is left out of the source by an ignore file; add a line '!{relative}' to "
            ".smlaunchignore"
        )


def pack(root: Path, include_secrets: bool = False) -> PackedSource:
    """Reads the folder and returns its archive. JobError for a folder that cannot be sent."""
    if (shut := closed(root)) is not None:
        raise JobError([Problem("source", shut)])
    if not root.is_dir():
        what = "is a file, a folder is needed" if root.exists() else "does not exist"
        raise JobError([Problem("source", f"{root} {what}")])
    if private := private_place(root):
        cure = "keep the script in a folder of its own, with what it needs, or name one with --source"
        raise JobError([Problem("source", f"{root} {private}; {cure}")])
    with SourceTree(root, include_secrets) as tree:
        entries = sorted(tree.named_by_links(_found(tree)), key=lambda entry: os.fsencode(entry.relative))
        names, content = _archive(tree, entries)
    size = sum(entry.status.st_size for entry in entries if entry.relative in names)
    notes = list(_notes(root, tree.left_out))
    if size > WARN_BYTES:
        notes.append(f"source: {root} is {_megabytes(size)} ({_largest(entries)}); {_CURE}")
    digest = hashlib.sha256(content).hexdigest()
    return PackedSource(root, digest, tuple(names), size, tuple(notes), content, _reasons(tree.left_out))


def _found(tree: SourceTree) -> list[Entry]:
    entries: list[Entry] = []
    size = 0
    for entry in tree.entries():
        entries.append(entry)
        size += entry.status.st_size
        if size > LIMIT_BYTES or len(entries) > LIMIT_FILES:
            raise JobError([Problem("source", _too_much(tree.root, entries, size))])
    return entries


def _archive(tree: SourceTree, entries: list[Entry]) -> tuple[dict[str, None], bytes]:
    """The names in it, in their order, and the archive. Raises JobError with all that cannot be read."""
    buffer = io.BytesIO()
    names: dict[str, None] = {}
    problems: list[Problem] = []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.relative)
            info.mtime = _FIXED_TIME
            if entry.target is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
                tar.addfile(info)
            else:
                try:
                    content = tree.content(entry)
                except JobError as error:
                    problems += error.problems
                    continue
                if content is None:
                    continue
                info.size = len(content)
                info.mode = 0o755 if entry.status.st_mode & 0o100 else 0o644
                tar.addfile(info, io.BytesIO(content))
            names[entry.relative] = None
    if problems:
        raise JobError(problems)
    return names, buffer.getvalue()


def _notes(root: Path, left_out: LeftOut) -> list[str]:
    notes = []
    if secrets := left_out.secrets:
        notes.append(f"source: {secrets_stay(f'{name} ({what})' for name, what in secrets.items())}")
    if links := left_out.links:
        told = some((f"{name} (to {target})" for name, target in links.items()), all_of_them=NAMED_IN_JSON)
        notes.append(
            f"source: not sent, as links out of {root} are not followed: {told}; copy into the folder what "
            "they lead to, or give it as --input"
        )
    if others := left_out.others:
        told = some((f"{name} ({what})" for name, what in others.items()), all_of_them=NAMED_IN_JSON)
        notes.append(f"source: not sent: {told}")
    return notes


def _reasons(left_out: LeftOut) -> dict[str, str]:
    return {
        **{
            name.rstrip("/"): f"may hold secrets ({what}); {WISH.format(name=name)}"
            for name, what in left_out.secrets.items()
        },
        **{
            name: f"is a link out of the source folder, to {target}; name that file itself, or with --source "
            "a folder that holds both"
            for name, target in left_out.links.items()
        },
        **{name: f"is no file that can be sent: {what}" for name, what in left_out.others.items()},
    }


_CURE = "name what is not code in .smlaunchignore, or give data as --input"


def _too_much(root: Path, entries: list[Entry], size: int) -> str:
    return (
        f"{root} holds more than can be sent as source ({len(entries):,} files, {_megabytes(size)} so far; "
        f"limits: {LIMIT_FILES:,} files, {_megabytes(LIMIT_BYTES)}): {_largest(entries)}; {_CURE}, "
        "or name a smaller folder with --source"
    )


def _largest(entries: list[Entry]) -> str:
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
    return f"{size / 1_000_000:,.1f} MB"
