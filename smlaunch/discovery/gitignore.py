"""Rules of .gitignore and .smlaunchignore files: which files of a folder are ignored. Same rules as git's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SMLAUNCHIGNORE = ".smlaunchignore"

_MAX_FILE_BYTES = 1 << 20
"""Limit for the size of an ignore file."""


class IgnoreFileError(OSError):
    """An ignore file that cannot be read or has an invalid pattern."""


class IncludePattern(NamedTuple):
    """A line ``!PATTERN`` that names files."""

    spec: GitIgnoreSpec
    name_pattern: str
    """Pattern of the file's own name, without its folders."""


class IgnoreRules(NamedTuple):
    """The rules of one ignore file."""

    spec: GitIgnoreSpec
    removed_prefix_length: int
    """Number of characters to remove from the front of a path, for an ignore file in a subfolder."""
    added_prefix: str
    """Text to put in front of a path, for an ignore file in a parent folder."""
    include_patterns: tuple[IncludePattern, ...] = ()
    """Files that .smlaunchignore includes by name."""


def load_ignore_rules(folder: Path, prefix: str, file_names: Iterable[str]) -> list[IgnoreRules]:
    """Load the ignore files of a folder.

    ``file_names`` are the existing ones in order of precedence. ``prefix`` is the folder's relative path with
    a slash at its end, or empty.
    """
    return [_load_ignore_file(folder / name, len(prefix)) for name in file_names]


def load_pattern_file(path: Path) -> GitIgnoreSpec:
    return _compile_patterns(path, _read_lines(path))


def is_ignored(rules: Sequence[IgnoreRules], relative_path: str, is_folder: bool) -> bool:
    """Return whether ignore files exclude a path. ``rules``: of all ignore files above the path, nearest
    first; the first one with a matching pattern decides, as in git."""
    suffix = "/" if is_folder else ""
    for file_rules in rules:
        # Patterns are relative to the ignore file's own folder. For one below the root, a part of the path is
        # removed; for one above it, a prefix is added.
        path_in_its_folder = relative_path[file_rules.removed_prefix_length :]
        path_for_patterns = file_rules.added_prefix + path_in_its_folder + suffix
        is_excluded = file_rules.spec.check_file(path_for_patterns).include  # the last pattern decides
        if is_excluded is not None:  # None: no pattern of this file matches
            return is_excluded
    return False


def is_explicitly_included(rules: Sequence[IgnoreRules], relative_path: str) -> bool:
    """Return whether a line of .smlaunchignore such as ``!.env`` or ``!certs/*.pem`` names this very file or
    folder.

    A line that only includes its folder (``!src/``) or everything (``!*``) does not count. ``rules``: of all
    ignore files above the path.
    """
    file_name = relative_path.rpartition("/")[2]
    for file_rules in rules:
        # Patterns are relative to the ignore file's own folder.
        path = relative_path[file_rules.removed_prefix_length :]
        for include_pattern in file_rules.include_patterns:
            # With a slash, a pattern for folders matches too.
            is_path_matched = any(include_pattern.spec.match_file(text) for text in (path, path + "/"))
            # A pattern also matches everything below a folder: the last part has to match by itself.
            if is_path_matched and fnmatchcase(file_name, include_pattern.name_pattern):
                return True
    return False


def _load_ignore_file(path: Path, folder_prefix_length: int) -> IgnoreRules:
    """Return the rules of one .gitignore or .smlaunchignore file. ``folder_prefix_length``: number of
    characters of its folder's path relative to the root, with the slash at the end.

    Raises IgnoreFileError.
    """
    lines = _read_lines(path)
    # Only .smlaunchignore includes secrets: a .gitignore says nothing about what may be uploaded.
    include_patterns = _find_include_patterns(path, lines) if path.name == SMLAUNCHIGNORE else []
    return IgnoreRules(
        spec=_compile_patterns(path, lines),
        removed_prefix_length=folder_prefix_length,
        added_prefix="",
        include_patterns=tuple(include_patterns),
    )


def _find_include_patterns(path: Path, lines: Sequence[str]) -> list[IncludePattern]:
    """Return the patterns of the lines such as ``!.env`` that name files or folders, and do not include all
    of them as ``!*`` does. ``path``: of the ignore file, for errors."""
    include_patterns: list[IncludePattern] = []
    for line in lines:
        if not line.startswith("!"):
            continue
        pattern = line.strip()[1:]
        name_pattern = pattern.rstrip("/").rpartition("/")[2]
        is_only_wildcards = not name_pattern.strip("*?")
        if not is_only_wildcards:
            include_patterns.append(IncludePattern(_compile_patterns(path, [pattern]), name_pattern))
    return include_patterns


def _compile_patterns(path: Path, lines: list[str]) -> GitIgnoreSpec:
    # Imported only when there is an ignore file, because the import takes 20 ms.
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise IgnoreFileError(f"{path} cannot be used: {error}") from error


def _read_lines(path: Path) -> list[str]:
    """Return the lines of an ignore file. It is opened without blocking, because a file of this name may be a
    pipe or a device. Raises IgnoreFileError."""
    try:
        file_descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(file_descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file_descriptor).st_mode):
                raise IgnoreFileError(f"{path} cannot be used: it is not a regular file")
            content = file.read(_MAX_FILE_BYTES + 1)  # one more byte shows that the file is too large
    except IgnoreFileError:  # itself an OSError, with its message
        raise
    except OSError as error:
        raise IgnoreFileError(f"{path} cannot be used: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise IgnoreFileError(f"{path} cannot be used: {_MAX_FILE_BYTES >> 20} MB of patterns are the most")
    return content.decode("utf-8", "surrogateescape").splitlines()
