"""Finds and reads the files of a source folder, and never leaves that folder.

Folders are opened component by component, and no component may be a link: replacing a folder or file by a
link between listing and reading gains nothing. No file is opened that could block.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
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
    load_ignore_rules,
    load_pattern_file,
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

_NOTEBOOK_SUFFIX = ".ipynb"
"""Whoever launches from a notebook saves it again and again, with all its outputs: it would be another source
each time, although no program reads it."""

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MAX_READ_TRIES = 3
"""Tries to read a file that is being written."""

_ERRNOS_OF_REPLACED_ITEM = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT)
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


_MAX_RECORDED_IGNORED_FILES = 1_000
"""A folder counts as one. Only explanations of failures need them."""


@dataclass
class ExcludedFiles:
    """Files that are not sent, by relative path."""

    secrets: dict[str, str] = field(default_factory=dict)
    """The kind of secret that the file seems to hold."""
    outside_links: dict[str, str] = field(default_factory=dict)
    """Where the link leads, out of the source."""
    special_files: dict[str, str] = field(default_factory=dict)
    """What the file is."""
    notebooks: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """What ignore files name, up to a number."""


class _PendingFolder(NamedTuple):
    """A folder of the source that is still to be listed."""

    prefix: str
    """Its path relative to the root, with a slash at the end; empty for the root."""
    rules: list[IgnoreRules]
    """Of the ignore files above it, nearest first."""
    skip_secret_check: bool
    """Send its files with any name and content."""


class SourceTree:
    """A source folder, to be used as a context manager. ``include_secrets`` sends files with any content;
    ``left_out_paths``, relative to the folder, are neither listed nor read. ``command``: the program's words;
    a notebook that one of them names is sent."""

    def __init__(
        self,
        root: Path,
        include_secrets: bool = False,
        left_out_paths: Collection[str] = (),
        command: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.excluded_files = ExcludedFiles()
        self._real_root = os.path.realpath(root)
        self._include_secrets = include_secrets
        self._left_out_paths = frozenset(left_out_paths)
        self._command = tuple(command)
        self._state_folder = state_folder_id()
        self._open_folders: list[tuple[str, int]] = []
        self._secret_pattern_by_link_target: dict[str, SecretPattern] = {}

    def __enter__(self) -> SourceTree:
        with _translate_os_errors(str(self.root)):
            self._open_folders = [("", os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]
        return self

    def __exit__(self, *_: object) -> None:
        while self._open_folders:
            os.close(self._open_folders.pop()[1])

    # ---- finding -----------------------------------------------------------------------------------------

    def iter_entries(self) -> Iterator[SourceEntry]:
        """Yield the files of the source folder that are sent, and links within it, except those that ignore
        files or the names of secrets exclude; the latter are recorded. Folders are not yielded, so that an
        empty one is not sent."""
        parent_rules = _load_rules_of_parent_folders(self._real_root)
        pending_folders = [_PendingFolder("", parent_rules, skip_secret_check=self._include_secrets)]
        while pending_folders:
            folder = pending_folders.pop()
            with _translate_os_errors(self._display_path(folder.prefix)):  # into JobError with this path
                folder_descriptor = self._open_folder(folder.prefix)
                with os.scandir(folder_descriptor) as listing:
                    items = sorted(listing, key=lambda item: item.name)
            item_names = {item.name for item in items}
            if folder.prefix and is_state_folder(item_names):  # where a local endpoint keeps its data
                continue
            rules = self._add_rules_of_folder(folder.rules, folder.prefix, item_names)
            for item in items:
                relative_path = folder.prefix + item.name
                is_folder = item.is_dir(follow_symlinks=False)
                # Names that tools give, such as .git and __pycache__.
                if item.name in ALWAYS_EXCLUDED or item.name.endswith(".pyc"):
                    continue
                if relative_path in self._left_out_paths:
                    continue
                if rules and is_ignored(rules, relative_path, is_folder):
                    if len(self.excluded_files.ignored) < _MAX_RECORDED_IGNORED_FILES:
                        self.excluded_files.ignored.append(relative_path)
                    continue
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError as error:
                    raise _unreadable_error(self._display_path(relative_path), error) from error
                if not is_folder:
                    yield from self._iter_file_entry(relative_path, status, rules, folder.skip_secret_check)
                elif not self._is_always_excluded_folder(relative_path, status):  # a virtual environment, say
                    subfolder = self._subfolder_unless_secret(relative_path, rules, folder.skip_secret_check)
                    if subfolder is not None:
                        pending_folders.append(subfolder)

    def _add_rules_of_folder(
        self, parent_rules: list[IgnoreRules], prefix: str, item_names: Collection[str]
    ) -> list[IgnoreRules]:
        """Return the rules for a folder's items: those of its own ignore files, before those from above."""
        ignore_files = [name for name in IGNORE_FILES if name in item_names]
        if not ignore_files:
            return parent_rules
        with _translate_ignore_errors():
            return [*load_ignore_rules(Path(self.root, prefix), prefix, ignore_files), *parent_rules]

    def _subfolder_unless_secret(
        self, relative_path: str, rules: list[IgnoreRules], skip_secret_check: bool
    ) -> _PendingFolder | None:
        """Return a folder to be listed later; None, and a record of the exclusion, if its name is one for
        secrets. Of a folder that the user has included by name, all files are sent without a check."""
        if not skip_secret_check:
            pattern = match_secret_name(relative_path, is_folder=True)
            if pattern is not None and not is_explicitly_included(rules, relative_path):
                self.excluded_files.secrets[relative_path + "/"] = pattern.kind
                return None
            skip_secret_check = pattern is not None
        return _PendingFolder(relative_path + "/", rules, skip_secret_check)

    def _is_always_excluded_folder(self, relative_path: str, status: os.stat_result) -> bool:
        """Return whether the folder is a virtual environment or smlaunch's own state, where each archive
        would contain the earlier ones."""
        return folder_id(status) == self._state_folder or os.path.lexists(
            f"{self._display_path(relative_path)}/pyvenv.cfg"
        )

    def _iter_file_entry(
        self, relative_path: str, status: os.stat_result, rules: list[IgnoreRules], skip_secret_check: bool
    ) -> Iterator[SourceEntry]:
        """Yield a file or link of the source folder as an entry of the archive, unless it is excluded;
        exclusions are recorded with their reasons. A file whose name only may be a secret's is yielded with
        the pattern of the name, so that its content decides.

        ``status``: of the item itself, not of a link's target. ``rules``: of the ignore files above it,
        nearest first. ``skip_secret_check``: send it with any name and content.
        """
        is_link = stat.S_ISLNK(status.st_mode)
        if not is_link and not stat.S_ISREG(status.st_mode):
            self.excluded_files.special_files[relative_path] = "neither file nor folder"
            return
        link_target = self._resolve_link_or_exclude(relative_path) if is_link else None
        if is_link and link_target is None:
            return
        is_named = is_explicitly_included(rules, relative_path)
        if (
            relative_path.endswith(_NOTEBOOK_SUFFIX)
            and not is_named
            and not self._is_in_command(relative_path)
        ):
            self.excluded_files.notebooks.append(relative_path)
            return
        skip_secret_check = skip_secret_check or is_named
        secret_pattern = None
        if not skip_secret_check:
            secret_pattern = match_secret_name(relative_path)
            if secret_pattern is None and is_link:  # it may lead to a folder
                secret_pattern = match_secret_name(relative_path, is_folder=True)
        if secret_pattern is not None and link_target is not None:
            # A file that a link calls .env, for example, is treated as if that was its own name.
            target_path = os.path.normpath(Path(relative_path).parent / link_target)
            self._secret_pattern_by_link_target[target_path] = secret_pattern
        if secret_pattern is not None and secret_pattern.content_check is None:  # the name is enough
            self.excluded_files.secrets[relative_path] = secret_pattern.kind
            return
        yield SourceEntry(relative_path, status, link_target, secret_pattern, skip_secret_check)

    def _is_in_command(self, relative_path: str) -> bool:
        """Return whether a word of the program's command ends in the file's name, as in ``papermill
        train.ipynb`` or ``--notebook=train.ipynb``."""
        name = relative_path.rpartition("/")[2]
        return any(word.endswith(name) for word in self._command)

    def _resolve_link_or_exclude(self, relative_path: str) -> str | None:
        """Return where a link within the source folder leads, relative to the link's own folder, by the
        shortest path; that path holds wherever the source is unpacked. Returns None, and records the
        exclusion, for a link that leads out of the source or cannot be followed."""
        path = Path(self._real_root, relative_path)
        with _translate_os_errors(str(path)):
            stated_target = path.readlink()
        real_target = Path(os.path.realpath(path))
        if not real_target.is_relative_to(self._real_root):
            self.excluded_files.outside_links[relative_path] = str(stated_target)
            return None
        try:
            path.stat()
        except FileNotFoundError:
            pass  # the target may exist on the host later
        except OSError as error:
            self.excluded_files.special_files[relative_path] = f"a link to {stated_target}: {error.strerror}"
            return None
        return os.path.relpath(real_target, path.parent)

    def exclude_targets_of_secret_links(self, entries: Iterable[SourceEntry]) -> Iterator[SourceEntry]:
        """Yield the entries of the source folder, once all are found, without those that a link in it gives a
        secret's name (a link ``.env`` to ``settings.txt``, for example). An entry whose content has to decide
        is yielded with the secret's pattern."""
        for entry in entries:
            secret_pattern = self._find_secret_pattern_of_links_to(entry.relative_path)
            if secret_pattern is None or entry.skip_secret_check or entry.link_target is not None:
                yield entry
            elif secret_pattern.content_check is not None:
                yield entry._replace(secret_pattern=secret_pattern)
            else:
                self.excluded_files.secrets[entry.relative_path] = secret_pattern.kind

    def _find_secret_pattern_of_links_to(self, relative_path: str) -> SecretPattern | None:
        """Return the pattern of a secret's name that a link to this file, or to a folder that contains it,
        matches; None without such a link."""
        if not self._secret_pattern_by_link_target:  # the usual case
            return None
        for path in (relative_path, *map(str, Path(relative_path).parents)):
            if path in self._secret_pattern_by_link_target:
                return self._secret_pattern_by_link_target[path]
        return None

    # ---- reading -----------------------------------------------------------------------------------------

    def read_content(self, entry: SourceEntry) -> bytes | None:
        """Return the content of a file of the source folder, or None, and a record of the exclusion, where it
        holds a secret.

        A file with a name such as ``.env`` has a check of its own (``secret_pattern``); any file is searched
        for known forms of keys. Raises JobError for a file that cannot be read, was replaced, or changes
        during every read.
        """
        content = self._read_unchanged(entry.relative_path)
        if entry.skip_secret_check:
            return content
        pattern = entry.secret_pattern
        secret_kind: str | None  # in words, for the warning
        if pattern is not None and pattern.content_check is not None and pattern.content_check(content):
            secret_kind = pattern.kind
        else:
            secret_kind = find_secret(content)
        if secret_kind is None:
            return content
        self.excluded_files.secrets[entry.relative_path] = secret_kind
        return None

    def _read_unchanged(self, relative_path: str) -> bytes:
        """Return the content of a file of the source folder, as it was at one time: read again if it changes
        meanwhile.

        Raises JobError for a file that cannot be read, was replaced by a link or another kind of file, or
        changes during every try.
        """
        folder_prefix, _, name = relative_path.rpartition("/")
        try:
            file_descriptor = os.open(name, _OPEN_FLAGS, dir_fd=self._open_folder(folder_prefix))
            try:
                for _ in range(_MAX_READ_TRIES):
                    status_before = os.fstat(file_descriptor)
                    if not stat.S_ISREG(status_before.st_mode):  # replaced since it was listed
                        break
                    # One byte more shows that the file has grown.
                    content = _read_at_most(file_descriptor, status_before.st_size + 1)
                    status_after = os.fstat(file_descriptor)
                    has_same_time = status_before.st_mtime_ns == status_after.st_mtime_ns
                    if has_same_time and len(content) == status_after.st_size:
                        return content
                    os.lseek(file_descriptor, 0, os.SEEK_SET)
            finally:
                os.close(file_descriptor)
        except OSError as error:
            if error.errno not in _ERRNOS_OF_REPLACED_ITEM:
                raise _unreadable_error(self._display_path(relative_path), error) from error
        raise JobError(
            [
                Problem(
                    "source", f"{self._display_path(relative_path)} changes while it is being read; try again"
                )
            ]
        )

    def _open_folder(self, prefix: str) -> int:
        """Return a descriptor of a folder of the source, valid until the next call. ``prefix``: its path
        relative to the root, with or without a slash at its end.

        The path is opened component by component, and no component may be a link. Folders above the last one
        opened stay open, because most files lie side by side.
        """
        components = [component for component in prefix.split("/") if component]
        # Name and descriptor of each folder on the last path. The first one is the root, with an empty name.
        open_folders = self._open_folders
        common_depth = 0  # number of components that both paths begin with
        for component, (open_name, _) in zip(components, open_folders[1:], strict=False):
            if component != open_name:
                break
            common_depth += 1
        while len(open_folders) > common_depth + 1:  # leave the last path's other folders
            _, descriptor = open_folders.pop()
            os.close(descriptor)
        for component in components[common_depth:]:
            _, parent_descriptor = open_folders[-1]
            descriptor = os.open(component, _OPEN_FLAGS | os.O_DIRECTORY, dir_fd=parent_descriptor)
            open_folders.append((component, descriptor))
        _, last_descriptor = open_folders[-1]
        return last_descriptor

    def _display_path(self, relative_path: str) -> str:
        return os.path.join(self.root, relative_path)  # noqa: PTH118


def _read_at_most(descriptor: int, max_bytes: int) -> bytes:
    """Read at most so many bytes, because a file may grow without end."""
    blocks = []
    while max_bytes > 0 and (block := os.read(descriptor, max_bytes)):
        blocks.append(block)
        max_bytes -= len(block)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _load_rules_of_parent_folders(real_root: str) -> list[IgnoreRules]:
    """Return the rules of the .gitignore files above the source folder, up to the root of its git repository,
    nearest first; none when it is in no repository. ``real_root``: the source folder's path without links."""
    rules: list[IgnoreRules] = []
    folder, source_path_in_folder = Path(real_root), ""
    while not os.path.lexists(folder / ".git"):
        if folder.parent == folder:  # the root of the file system: there is no repository
            return []
        folder, source_path_in_folder = folder.parent, f"{folder.name}/{source_path_in_folder}"
        ignore_file = folder / ".gitignore"
        if os.path.isfile(ignore_file):  # noqa: PTH113  Path.is_file raises for a closed folder
            with _translate_ignore_errors():
                # The prefix turns a path in the source into one relative to this folder.
                folder_rules = IgnoreRules(
                    spec=load_pattern_file(ignore_file),
                    removed_prefix_length=0,
                    added_prefix=source_path_in_folder,
                )
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
