"""Packs the user's source into one archive. The same files give the same bytes on every machine.

Excluded (docs/source.md) are files that ``.gitignore`` and ``.smlaunchignore`` name, as git reads them, in
every folder and in the parent folders up to the repository's root (``.smlaunchignore`` overrides); version
control, caches, virtual environments and smlaunch's own state; files that look like secrets, and links that
lead out of the folder. The user gets a warning about the last two.
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

from smlaunch.discovery.local_files import FULL_LIST_HINT, INCLUDE_HINT, excluded_secrets_warning
from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.discovery.script_analysis import unreadable_reason
from smlaunch.errors import JobError, Problem
from smlaunch.runs.source_tree import ExcludedFiles, SourceEntry, SourceTree
from smlaunch.text.format import list_names

WARN_BYTES = 50_000_000
LIMIT_BYTES = 500_000_000
LIMIT_FILES = 20_000
"""A larger source tree holds data, which belongs into an input channel. It is rejected instead of uploaded
slowly."""

_FIXED_MTIME = 315532800  # 1980-01-01: a time of its own would make every archive another one


@dataclass(frozen=True)
class SourceArchive:
    """The packed source folder."""

    root: Path
    sha256: str
    """Hash of the archive before compression, so that it does not depend on the zlib version."""
    files: tuple[str, ...]
    size_bytes: int
    """Sum of the files on disk."""
    warnings: tuple[str, ...]
    tar_bytes: bytes = field(repr=False)
    excluded_files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Reason why a file or folder was excluded, a clause, by its path."""

    def compressed(self) -> bytes:
        """Return the .tar.gz file. Level 1: source is small, and the user waits for it."""
        return gzip.compress(self.tar_bytes, compresslevel=1, mtime=0)

    def explain_missing_file(self, relative_path: str) -> str:
        """Return a sentence about a file of the folder that is not in the archive."""
        for path in (relative_path, *map(str, PurePosixPath(relative_path).parents)):
            if path in self.excluded_files:
                return f"{path} {self.excluded_files[path]}"
        real_path = os.path.relpath(os.path.realpath(self.root / relative_path), os.path.realpath(self.root))
        if real_path in self.files:
            return f"{relative_path} is behind a link; name it by its own path, {real_path}"
        return (
            f"{relative_path} is left out of the source by an ignore file; add a line '!{relative_path}' to "
            ".smlaunchignore"
        )


def pack_source(root: Path, include_secrets: bool = False) -> SourceArchive:
    """Read the folder and return its archive. Raises JobError for a folder that cannot be sent."""
    if (unreadable := unreadable_reason(root)) is not None:
        raise JobError([Problem("source", unreadable)])
    if not root.is_dir():
        problem = "is a file, a folder is needed" if root.exists() else "does not exist"
        raise JobError([Problem("source", f"{root} {problem}")])
    if protected := protected_folder_reason(root):
        advice = "keep the script in a folder of its own, with what it needs, or name one with --source"
        raise JobError([Problem("source", f"{root} {protected}; {advice}")])
    with SourceTree(root, include_secrets) as tree:
        entries = sorted(
            tree.apply_link_names(_collect_entries(tree)), key=lambda entry: os.fsencode(entry.relative_path)
        )
        names, content = _write_tar(tree, entries)
    size_bytes = sum(entry.status.st_size for entry in entries if entry.relative_path in names)
    warnings = list(_exclusion_warnings(root, tree.excluded))
    if size_bytes > WARN_BYTES:
        warnings.append(
            f"source: {root} is {_megabytes(size_bytes)} ({_describe_largest(entries)}); {_SIZE_ADVICE}"
        )
    digest = hashlib.sha256(content).hexdigest()
    return SourceArchive(
        root, digest, tuple(names), size_bytes, tuple(warnings), content, _exclusion_reasons(tree.excluded)
    )


def _collect_entries(tree: SourceTree) -> list[SourceEntry]:
    entries: list[SourceEntry] = []
    size_bytes = 0
    for entry in tree.entries():
        entries.append(entry)
        size_bytes += entry.status.st_size
        if size_bytes > LIMIT_BYTES or len(entries) > LIMIT_FILES:
            raise JobError([Problem("source", _size_problem(tree.root, entries, size_bytes))])
    return entries


def _write_tar(tree: SourceTree, entries: list[SourceEntry]) -> tuple[dict[str, None], bytes]:
    """Return the names in the archive in their order, and the archive. Raises JobError with all unreadable
    files."""
    buffer = io.BytesIO()
    names: dict[str, None] = {}
    problems: list[Problem] = []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.relative_path)
            info.mtime = _FIXED_MTIME
            if entry.link_target is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link_target, 0o777
                tar.addfile(info)
            else:
                try:
                    content = tree.read_content(entry)
                except JobError as error:
                    problems += error.problems
                    continue
                if content is None:
                    continue
                info.size = len(content)
                info.mode = 0o755 if entry.status.st_mode & 0o100 else 0o644
                tar.addfile(info, io.BytesIO(content))
            names[entry.relative_path] = None
    if problems:
        raise JobError(problems)
    return names, buffer.getvalue()


def _exclusion_warnings(root: Path, excluded: ExcludedFiles) -> list[str]:
    """Return warnings about files that are not sent: likely secrets, links that lead outside, special
    files."""
    warnings = []
    if secrets := excluded.secrets:
        warnings.append(
            f"source: {excluded_secrets_warning(f'{name} ({kind})' for name, kind in secrets.items())}"
        )
    if links := excluded.outside_links:
        listed_files = list_names(
            (f"{name} (to {target})" for name, target in links.items()), where_to_find_all=FULL_LIST_HINT
        )
        warnings.append(
            f"source: not sent, as links out of {root} are not followed: {listed_files}; copy into the "
            f"folder what "
            "they lead to, or give it as --input"
        )
    if others := excluded.special_files:
        listed_files = list_names(
            (f"{name} ({kind})" for name, kind in others.items()), where_to_find_all=FULL_LIST_HINT
        )
        warnings.append(f"source: not sent: {listed_files}")
    return warnings


def _exclusion_reasons(excluded: ExcludedFiles) -> dict[str, str]:
    return {
        **{
            name.rstrip("/"): f"may hold secrets ({kind}); {INCLUDE_HINT.format(name=name)}"
            for name, kind in excluded.secrets.items()
        },
        **{
            name: f"is a link out of the source folder, to {target}; name that file itself, or with --source "
            "a folder that holds both"
            for name, target in excluded.outside_links.items()
        },
        **{name: f"cannot be sent: {kind}" for name, kind in excluded.special_files.items()},
    }


_SIZE_ADVICE = "name what is not code in .smlaunchignore, or give data as --input"


def _size_problem(root: Path, entries: list[SourceEntry], size_bytes: int) -> str:
    return (
        f"{root} holds more than can be sent as source ({len(entries):,} files, {_megabytes(size_bytes)} "
        f"so far; "
        f"limits: {LIMIT_FILES:,} files, {_megabytes(LIMIT_BYTES)}): {_describe_largest(entries)}; "
        f"{_SIZE_ADVICE}, "
        "or name a smaller folder with --source"
    )


def _describe_largest(entries: list[SourceEntry]) -> str:
    totals: dict[str, list[int]] = {}
    for entry in entries:
        total = totals.setdefault(entry.relative_path.split("/")[0], [0, 0])
        total[0] += entry.status.st_size
        total[1] += 1
    largest = sorted(totals.items(), key=lambda pair: pair[1], reverse=True)[:3]
    return "largest: " + ", ".join(
        f"{name} {_megabytes(size_bytes)}" + (f" in {count:,} files" if count > 1 else "")
        for name, (size_bytes, count) in largest
    )


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1_000_000:,.1f} MB"
