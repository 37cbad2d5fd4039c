"""Packs the user's source into one archive. The same files give the same bytes on every machine.

Excluded (docs/source.md) are files that ``.gitignore`` and ``.smlaunchignore`` name, as git reads them, in
every folder and in the parent folders up to the repository's root (``.smlaunchignore`` overrides); version
control, caches, notebooks, virtual environments and smlaunch's own state; files that look like secrets, and
links that lead out of the folder. The user gets a warning about the last two.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from smlaunch.discovery.local_files import FULL_LIST_HINT, INCLUDE_HINT, excluded_secrets_warning
from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.discovery.script_analysis import unreadable_path_reason
from smlaunch.errors import JobError, Problem
from smlaunch.facts.discovered_facts import ignored_reason
from smlaunch.runs.source_tree import ExcludedFiles, SourceEntry, SourceTree
from smlaunch.text.format import list_names

WARN_ABOVE_BYTES = 50_000_000
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
    """Reason why a file or folder was excluded, a clause, by its path; without those that ignore files
    name."""
    ignored_files: tuple[str, ...] = field(default=(), repr=False)
    """Files and folders that ignore files name, up to a number."""
    digest_by_file: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Hash of each file's content, or of where the link leads, and of its permission."""

    def compressed(self) -> bytes:
        """Return the .tar.gz file. Level 1: source is small, and the user waits for it."""
        return gzip.compress(self.tar_bytes, compresslevel=1, mtime=0)

    def explain_missing_file(self, relative_path: str) -> str:
        """Return a sentence about why a file of the source folder is not in this archive. ``relative_path``:
        its path from that folder."""
        # Excluded itself, or with a folder that contains it.
        for path in (relative_path, *map(str, PurePosixPath(relative_path).parents)):
            if path in self.excluded_files:
                reason = self.excluded_files[path]
                return f"{path} {reason}"
        path_without_links = os.path.relpath(
            os.path.realpath(self.root / relative_path), os.path.realpath(self.root)
        )
        if path_without_links in self.files:
            return f"{relative_path} is behind a link; name it by its own path, {path_without_links}"
        return f"{relative_path} {ignored_reason(relative_path)}"


def pack_source(
    root: Path,
    include_secrets: bool = False,
    left_out_paths: Collection[str] = (),
    added_files: Mapping[str, bytes] = MappingProxyType({}),
    command: Sequence[str] = (),
) -> SourceArchive:
    """Read the user's source folder and return its archive, with warnings about files that are not sent.

    ``include_secrets`` sends files that look like secrets too. ``left_out_paths``: relative to the folder, of
    files and folders that are no part of the source. ``added_files``: the content, by relative path, of files
    that are in no folder; their paths are ones that are never sent from a folder. ``command``: the program's
    words; a notebook is sent if one of them names it. Nothing is read before the sizes of all files are
    known. Raises JobError for a folder that cannot be sent: missing, unreadable,
    protected (a home folder, for example) or too large.
    """
    if (unreadable_reason := unreadable_path_reason(root)) is not None:
        raise JobError([Problem("source", unreadable_reason)])
    if not root.is_dir():
        problem = "is a file, a folder is needed" if root.exists() else "does not exist"
        raise JobError([Problem("source", f"{root} {problem}")])
    if protected_reason := protected_folder_reason(root):  # a home folder, for example
        advice = "keep the script in a folder of its own, with what it needs, or name one with --source"
        raise JobError([Problem("source", f"{root} {protected_reason}; {advice}")])
    with SourceTree(
        root, include_secrets, left_out_paths, command
    ) as tree:  # lists and reads the files, and records exclusions
        # Sorted, so that the same files always give the same archive.
        entries = sorted(
            tree.exclude_targets_of_secret_links(_collect_entries(tree)),
            key=lambda entry: os.fsencode(entry.relative_path),
        )
        digest_by_file, tar_bytes = _write_tar(tree, entries, added_files)
    size_bytes = sum(entry.status.st_size for entry in entries if entry.relative_path in digest_by_file)
    warnings = list(_describe_exclusions(root, tree.excluded_files))
    if size_bytes > WARN_ABOVE_BYTES:
        warnings.append(
            f"source: {root} is {_megabytes(size_bytes)} ({_describe_largest(entries)}); "
            f"{_size_advice(root, entries)}"
        )
    return SourceArchive(
        root=root,
        sha256=hashlib.sha256(tar_bytes).hexdigest(),
        files=tuple(digest_by_file),
        size_bytes=size_bytes,
        warnings=tuple(warnings),
        tar_bytes=tar_bytes,
        excluded_files=_exclusion_reasons(tree.excluded_files),
        ignored_files=tuple(tree.excluded_files.ignored),
        digest_by_file=digest_by_file,
    )


def _collect_entries(tree: SourceTree) -> list[SourceEntry]:
    entries: list[SourceEntry] = []
    size_bytes = 0
    for entry in tree.iter_entries():
        entries.append(entry)
        size_bytes += entry.status.st_size
        if size_bytes > LIMIT_BYTES or len(entries) > LIMIT_FILES:
            raise JobError([Problem("source", _size_problem(tree.root, entries, size_bytes))])
    return entries


def _write_tar(
    tree: SourceTree, entries: list[SourceEntry], added_files: Mapping[str, bytes]
) -> tuple[dict[str, str], bytes]:
    """Return the names of the files in the archive, in their order, with their hashes, and the tar archive. A
    file that turns out to hold a secret is left out. Raises JobError with all unreadable files."""
    buffer = io.BytesIO()
    digest_by_file: dict[str, str] = {}
    problems: list[Problem] = []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:

        def add(tar_info: tarfile.TarInfo, content: bytes = b"") -> None:
            tar.addfile(tar_info, io.BytesIO(content))
            digest = hashlib.sha256(f"{tar_info.mode} {tar_info.linkname} ".encode(errors="surrogateescape"))
            digest.update(content)
            digest_by_file[tar_info.name] = digest.hexdigest()

        for path, added_content in sorted(added_files.items()):
            add(_tar_info_of_file(path, len(added_content)), added_content)
        for entry in entries:
            if entry.link_target is not None:
                add(_tar_info_of_link(entry.relative_path, entry.link_target))
                continue
            try:
                content = tree.read_content(entry)
            except JobError as error:
                problems += error.problems
                continue
            if content is not None:  # None: it holds a secret
                is_executable = bool(entry.status.st_mode & 0o100)
                add(_tar_info_of_file(entry.relative_path, len(content), is_executable), content)
    if problems:
        raise JobError(problems)
    return digest_by_file, buffer.getvalue()


def _tar_info_of_link(relative_path: str, link_target: str) -> tarfile.TarInfo:
    tar_info = tarfile.TarInfo(relative_path)
    tar_info.mtime = _FIXED_MTIME
    tar_info.type, tar_info.linkname, tar_info.mode = tarfile.SYMTYPE, link_target, 0o777
    return tar_info


def _tar_info_of_file(path: str, size_bytes: int, is_executable: bool = False) -> tarfile.TarInfo:
    tar_info = tarfile.TarInfo(path)
    tar_info.mtime = _FIXED_MTIME
    tar_info.size = size_bytes
    # As git: other bits differ with the umask, and would make other archives of the same files.
    tar_info.mode = 0o755 if is_executable else 0o644
    return tar_info


def _describe_exclusions(root: Path, excluded_files: ExcludedFiles) -> list[str]:
    """Return warnings about files of the source folder ``root`` that are not sent: likely secrets, links that
    lead outside, and special files such as pipes."""
    warnings = []
    if kind_by_secret_file := excluded_files.secrets:
        names_and_kinds = (f"{name} ({kind})" for name, kind in kind_by_secret_file.items())
        warnings.append(f"source: {excluded_secrets_warning(names_and_kinds)}")
    if target_by_link := excluded_files.outside_links:
        # The first names of the list, with a hint at where the complete one is.
        listed_files = list_names(
            (f"{name} (to {target})" for name, target in target_by_link.items()),
            where_to_find_all=FULL_LIST_HINT,
        )
        warnings.append(
            f"source: not sent, as links out of {root} are not followed: {listed_files}; copy into the "
            "folder what they lead to, or give it as --input"
        )
    if kind_by_special_file := excluded_files.special_files:
        listed_files = list_names(
            (f"{name} ({kind})" for name, kind in kind_by_special_file.items()),
            where_to_find_all=FULL_LIST_HINT,
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
        **{
            name: "is a notebook, which is not sent unless the program's command names it or .smlaunchignore "
            f"has a line !{name}"
            for name in excluded.notebooks
        },
        **{name: f"cannot be sent: {kind}" for name, kind in excluded.special_files.items()},
    }


def _size_problem(root: Path, entries: list[SourceEntry], size_bytes: int) -> str:
    return (
        f"{root} holds more than can be sent as source ({len(entries):,} files, {_megabytes(size_bytes)} "
        f"so far; "
        f"limits: {LIMIT_FILES:,} files, {_megabytes(LIMIT_BYTES)}): {_describe_largest(entries)}; "
        f"{_size_advice(root, entries)}, "
        "or name a smaller folder with --source"
    )


def _size_advice(root: Path, entries: list[SourceEntry]) -> str:
    """Return what makes the source smaller: an ignore file, or the largest item as an input."""
    name, _ = _largest_items(entries)[0]
    channel = re.sub(r"[^A-Za-z0-9_]", "_", PurePosixPath(name).stem)
    return (
        "name what is not code in .smlaunchignore, or give data as an input, which is not sent with the "
        f"source (--input {channel}={root / name})"
    )


def _largest_items(entries: list[SourceEntry]) -> list[tuple[str, list[int]]]:
    """Return name, bytes and number of files of the three largest items at the top of the source."""
    totals: dict[str, list[int]] = {}
    for entry in entries:
        total = totals.setdefault(entry.relative_path.split("/")[0], [0, 0])
        total[0] += entry.status.st_size
        total[1] += 1
    return sorted(totals.items(), key=lambda pair: pair[1], reverse=True)[:3]


def _describe_largest(entries: list[SourceEntry]) -> str:
    return "largest: " + ", ".join(
        f"{name} {_megabytes(size_bytes)}" + (f" in {count:,} files" if count > 1 else "")
        for name, (size_bytes, count) in _largest_items(entries)
    )


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1_000_000:,.1f} MB"
