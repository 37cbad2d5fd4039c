"""Finds and reads the files of a source folder, and never leaves that folder.

Folders are opened component by component, and no component may be a link: replacing a folder or file by a
link between listing and reading gains nothing. No file is opened that could block.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from smlaunch.discovery.gitignore import (
    SMLAUNCHIGNORE,
    IgnoreFileError,
    IgnoreRules,
    is_explicitly_included,
    is_ignored,
    load_pattern_file,
    load_rules,
)
from smlaunch.discovery.protected_folders import folder_id, is_state_folder, state_folder_id
from smlaunch.errors import JobError, Problem
from smlaunch.secrets.file_contents import find_secret
from smlaunch.secrets.file_names import SecretPattern, match_secret_name

IGNORE_FILES = (SMLAUNCHIGNORE, ".gitignore")
"""In order of precedence within one folder."""

ALWAYS_EXCLUDED = frozenset(
    (
        *(".git", ".hg", ".svn", ".smlaunch", ".DS_Store", "__pycache__", ".ipynb_checkpoints"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".tox", ".nox", "node_modules"),
    )
)

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MAX_READ_TRIES = 3
"""Tries to read a file that is being written."""

_REPLACED_ERRNOS = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT)
"""Errors of opening an item that was replaced by a link, or removed, after it was listed."""


class SourceEntry(NamedTuple):
    """A file, or a link to ``link_target`` within the source."""

    relative_path: str
    status: os.stat_result
    link_target: str | None = None
    secret_pattern: SecretPattern | None = None
    """Pattern of a secret's name that the file matches, if the content has to be checked."""
    skip_secret_check: bool = False
    """Sent with any content."""


@dataclass
class ExcludedFiles:
    """Files that are not sent although no ignore file names them, by relative path."""

    secrets: dict[str, str] = field(default_factory=dict)
    """The kind of secret that the file seems to hold."""
    outside_links: dict[str, str] = field(default_factory=dict)
    """Where the link leads, out of the source."""
    special_files: dict[str, str] = field(default_factory=dict)
    """What the file is."""


class SourceTree:
    """A source folder, to be used as a context manager. ``include_secrets`` sends files with any content."""

    def __init__(self, root: Path, include_secrets: bool = False) -> None:
        self.root = root
        self.excluded = ExcludedFiles()
        self._real_root = os.path.realpath(root)
        self._include_secrets = include_secrets
        self._state_folder = state_folder_id()
        self._open_folders: list[tuple[str, int]] = []
        self._pattern_by_link_target: dict[str, SecretPattern] = {}

    def __enter__(self) -> SourceTree:
        with _translate_os_errors(str(self.root)):
            self._open_folders = [("", os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]
        return self

    def __exit__(self, *_: object) -> None:
        while self._open_folders:
            os.close(self._open_folders.pop()[1])

    # ---- finding -----------------------------------------------------------------------------------------

    def entries(self) -> Iterator[SourceEntry]:
        """Yield files and inside links. Folders are not yielded, so that an empty one is not sent."""
        parent_rules = _rules_of_parent_folders(self._real_root)
        pending: list[tuple[str, list[IgnoreRules], bool]] = [("", parent_rules, self._include_secrets)]
        while pending:
            prefix, rules, skip_secret_check = pending.pop()
            with _translate_os_errors(self._full_path(prefix)):
                folder = self._open_folder(prefix)
                with os.scandir(folder) as listing:
                    items = sorted(listing, key=lambda item: item.name)
            names = {item.name for item in items}
            if prefix and is_state_folder(names):
                continue
            ignore_files = [name for name in IGNORE_FILES if name in names]
            if ignore_files:
                with _translate_ignore_errors():
                    rules = [*load_rules(Path(self.root, prefix), prefix, ignore_files), *rules]
            for item in items:
                relative_path = prefix + item.name
                is_folder = item.is_dir(follow_symlinks=False)
                if item.name in ALWAYS_EXCLUDED or item.name.endswith(".pyc"):
                    continue
                if rules and is_ignored(rules, relative_path, is_folder):
                    continue
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError as error:
                    raise _unreadable_error(self._full_path(relative_path), error) from error
                if is_folder:
                    if self._is_always_excluded_folder(relative_path, status):
                        continue
                    is_cleared = skip_secret_check or self._check_secret_name(
                        relative_path, rules, is_folder=True
                    )
                    if is_cleared is not None:
                        pending.append((relative_path + "/", rules, is_cleared))
                    continue
                yield from self._entries_of_file(relative_path, status, rules, skip_secret_check)

    def _is_always_excluded_folder(self, relative_path: str, status: os.stat_result) -> bool:
        """Return whether the folder is a virtual environment or smlaunch's own state, where each archive
        would contain the earlier ones."""
        return folder_id(status) == self._state_folder or os.path.lexists(
            f"{self._full_path(relative_path)}/pyvenv.cfg"
        )

    def _check_secret_name(
        self, relative_path: str, rules: list[IgnoreRules], is_folder: bool = False
    ) -> bool | None:
        """Return True where a secret's name is explicitly included, None where the file is excluded, else
        False."""
        pattern = match_secret_name(relative_path, is_folder)
        if pattern is None:
            return False
        if is_explicitly_included(rules, relative_path):
            return True
        self.excluded.secrets[relative_path + "/" * is_folder] = pattern.kind
        return None

    def _entries_of_file(
        self, relative_path: str, status: os.stat_result, rules: list[IgnoreRules], skip_secret_check: bool
    ) -> Iterator[SourceEntry]:
        """Yield the file as an entry of the archive, unless it is excluded; exclusions are recorded with
        their reasons."""
        is_link = stat.S_ISLNK(status.st_mode)
        if not is_link and not stat.S_ISREG(status.st_mode):
            self.excluded.special_files[relative_path] = "neither file nor folder"
            return
        target = self._resolve_link(relative_path) if is_link else None
        if is_link and target is None:
            return
        skip_secret_check = skip_secret_check or is_explicitly_included(rules, relative_path)
        pattern = None
        if not skip_secret_check:
            pattern = match_secret_name(relative_path) or (
                match_secret_name(relative_path, is_folder=True) if is_link else None
            )
        if pattern is not None and target is not None:
            self._pattern_by_link_target[os.path.normpath(Path(relative_path).parent / target)] = pattern
        if pattern is not None and pattern.content_check is None:
            self.excluded.secrets[relative_path] = pattern.kind
            return
        yield SourceEntry(relative_path, status, target, pattern, skip_secret_check)

    def _resolve_link(self, relative_path: str) -> str | None:
        """Return where an inside link leads, relative to its folder, by the shortest path. That path holds
        wherever the source is unpacked."""
        path = Path(self._real_root, relative_path)
        with _translate_os_errors(str(path)):
            stated_target = path.readlink()
        real_target = Path(os.path.realpath(path))
        if not real_target.is_relative_to(self._real_root):
            self.excluded.outside_links[relative_path] = str(stated_target)
            return None
        try:
            path.stat()
        except FileNotFoundError:
            pass  # the target may exist on the host later
        except OSError as error:
            self.excluded.special_files[relative_path] = f"a link to {stated_target}: {error.strerror}"
            return None
        return os.path.relpath(real_target, path.parent)

    def apply_link_names(self, entries: Iterable[SourceEntry]) -> Iterator[SourceEntry]:
        """Yield the entries, once all are found, except those to which a link gives a secret's name."""
        pattern_by_target = self._pattern_by_link_target
        for entry in entries:
            pattern = pattern_by_target.get(entry.relative_path) if pattern_by_target else None
            for parent in Path(entry.relative_path).parents if pattern_by_target else ():
                pattern = pattern or pattern_by_target.get(str(parent))
            if pattern is None or entry.skip_secret_check or entry.link_target is not None:
                yield entry
            elif pattern.content_check is not None:
                yield entry._replace(secret_pattern=pattern)
            else:
                self.excluded.secrets[entry.relative_path] = pattern.kind

    # ---- reading -----------------------------------------------------------------------------------------

    def read_content(self, entry: SourceEntry) -> bytes | None:
        """Return the file's content, or None where it holds a secret.

        Raises JobError for a file that cannot be read, was replaced, or changes during every read.
        """
        content = self._read_unchanged(entry.relative_path)
        if entry.skip_secret_check:
            return content
        pattern = entry.secret_pattern
        has_named_secret = (
            pattern is not None and pattern.content_check is not None and pattern.content_check(content)
        )
        secret_kind = pattern.kind if pattern is not None and has_named_secret else find_secret(content)
        if secret_kind is None:
            return content
        self.excluded.secrets[entry.relative_path] = secret_kind
        return None

    def _read_unchanged(self, relative_path: str) -> bytes:
        """Return the content of a file. Raises JobError for a file that cannot be read, or changes during
        every try."""
        prefix, _, name = relative_path.rpartition("/")
        try:
            descriptor = os.open(name, _OPEN_FLAGS, dir_fd=self._open_folder(prefix))
            try:
                for _ in range(_MAX_READ_TRIES):
                    before = os.fstat(descriptor)
                    if not stat.S_ISREG(before.st_mode):
                        break
                    content = _read_at_most(descriptor, before.st_size + 1)
                    after = os.fstat(descriptor)
                    if len(content) == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                        return content
                    os.lseek(descriptor, 0, os.SEEK_SET)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _REPLACED_ERRNOS:
                raise _unreadable_error(self._full_path(relative_path), error) from error
        raise JobError(
            [Problem("source", f"{self._full_path(relative_path)} changes while it is being read; try again")]
        )

    def _open_folder(self, prefix: str) -> int:
        """Return the folder's descriptor, valid until the next call. Parent folders stay open, because most
        files lie side by side."""
        parts = [part for part in prefix.split("/") if part]
        open_folders = self._open_folders
        depth = 0
        while (
            depth < len(parts)
            and depth + 1 < len(open_folders)
            and open_folders[depth + 1][0] == parts[depth]
        ):
            depth += 1
        while len(open_folders) > depth + 1:
            os.close(open_folders.pop()[1])
        for part in parts[depth:]:
            open_folders.append(
                (part, os.open(part, _OPEN_FLAGS | os.O_DIRECTORY, dir_fd=open_folders[-1][1]))
            )
        return open_folders[-1][1]

    def _full_path(self, relative_path: str) -> str:
        return os.path.join(self.root, relative_path)  # noqa: PTH118


def _read_at_most(descriptor: int, max_bytes: int) -> bytes:
    """Read at most so many bytes, because a file may grow without end."""
    blocks = []
    while max_bytes > 0 and (block := os.read(descriptor, max_bytes)):
        blocks.append(block)
        max_bytes -= len(block)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _rules_of_parent_folders(real_root: str) -> list[IgnoreRules]:
    """Return the rules of the parent folders, nearest first, when the source lies inside a git repository."""
    rules: list[IgnoreRules] = []
    current, path_below = Path(real_root), ""
    while not os.path.lexists(current / ".git"):
        if current.parent == current:
            return []
        current, path_below = current.parent, f"{current.name}/{path_below}"
        ignore_file = current / ".gitignore"
        if os.path.isfile(ignore_file):  # noqa: PTH113  Path.is_file raises for a closed folder
            with _translate_ignore_errors():
                folder_rules = IgnoreRules(load_pattern_file(ignore_file), 0, path_below)
            # An ignored folder was named on purpose; its parent's rules would exclude all its files.
            if not is_ignored([folder_rules], "", is_folder=False):
                rules.append(folder_rules)
    return rules


@contextmanager
def _translate_ignore_errors() -> Iterator[None]:
    try:
        yield
    except IgnoreFileError as error:
        raise JobError([Problem("source", str(error))]) from error


@contextmanager
def _translate_os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: str, error: OSError) -> JobError:
    return JobError([Problem("source", f"{path} cannot be read: {error.strerror}")])
