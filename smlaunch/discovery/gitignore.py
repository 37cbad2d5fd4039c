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
    prefix_length: int
    """Number of characters to remove from the front of a path, for an ignore file in a subfolder."""
    added_prefix: str
    """Text to put in front of a path, for an ignore file in a parent folder."""
    include_patterns: tuple[IncludePattern, ...] = ()
    """Files that .smlaunchignore includes by name."""


def load_rules(folder: Path, prefix: str, file_names: Iterable[str]) -> list[IgnoreRules]:
    """Load the ignore files of a folder.

    ``file_names`` are the existing ones in order of precedence. ``prefix`` is the folder's relative path with
    a slash at its end, or empty.
    """
    return [_load_rules_file(folder / name, len(prefix)) for name in file_names]


def load_pattern_file(path: Path) -> GitIgnoreSpec:
    return _compile_patterns(path, _read_lines(path))


def is_ignored(rules: Sequence[IgnoreRules], relative_path: str, is_folder: bool) -> bool:
    """Return whether the path is ignored. ``rules`` are the nearest first; the first one with a matching
    pattern decides, as in git."""
    suffix = "/" if is_folder else ""
    for file_rules in rules:
        path = file_rules.added_prefix + relative_path[file_rules.prefix_length :] + suffix
        is_match = file_rules.spec.check_file(path).include
        if is_match is not None:
            return is_match
    return False


def is_explicitly_included(rules: Sequence[IgnoreRules], relative_path: str) -> bool:
    """Return whether a line such as ``!.env`` or ``!certs/*.pem`` names this very file or folder.

    A line that only includes its folder (``!src/``) or everything (``!*``) does not count.
    """
    name = relative_path.rpartition("/")[2]
    for file_rules in rules:
        path = relative_path[file_rules.prefix_length :]
        for pattern in file_rules.include_patterns:
            if fnmatchcase(name, pattern.name_pattern) and (
                pattern.spec.match_file(path) or pattern.spec.match_file(path + "/")
            ):
                return True
    return False


def _load_rules_file(path: Path, prefix_length: int) -> IgnoreRules:
    """Return the rules of one ignore file. ``prefix_length``: characters of the path of its folder, relative
    to the root."""
    lines = _read_lines(path)
    include_patterns = []
    for line in lines if path.name == SMLAUNCHIGNORE else ():
        pattern = line.strip()[1:]
        name = pattern.rstrip("/").rpartition("/")[2]
        if line.startswith("!") and name.strip("*?"):
            include_patterns.append(IncludePattern(_compile_patterns(path, [pattern]), name))
    return IgnoreRules(_compile_patterns(path, lines), prefix_length, "", tuple(include_patterns))


def _compile_patterns(path: Path, lines: list[str]) -> GitIgnoreSpec:
    # Imported only when there is an ignore file, because the import takes 20 ms.
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise IgnoreFileError(f"{path} cannot be used: {error}") from error


def _read_lines(path: Path) -> list[str]:
    """Read an ignore file. Opened without blocking, because a name may belong to a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise IgnoreFileError(f"{path} cannot be used: it is not a regular file")
            content = file.read(_MAX_FILE_BYTES + 1)
    except IgnoreFileError:
        raise
    except OSError as error:
        raise IgnoreFileError(f"{path} cannot be used: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise IgnoreFileError(f"{path} cannot be used: {_MAX_FILE_BYTES >> 20} MB of patterns are the most")
    return content.decode("utf-8", "surrogateescape").splitlines()
