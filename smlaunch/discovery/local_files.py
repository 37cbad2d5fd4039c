"""Lists the files of a local input, for counting, hashing and uploading."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from smlaunch.discovery.gitignore import (
    SMLAUNCHIGNORE,
    IgnoreRules,
    is_explicitly_included,
    is_ignored,
    load_ignore_rules,
)
from smlaunch.discovery.protected_folders import folder_id, is_state_folder, state_folder_id
from smlaunch.secrets.file_contents import SCANNED_BYTES
from smlaunch.secrets.file_names import SecretPattern, match_secret_name
from smlaunch.text.format import list_names


class LocalFile(NamedTuple):
    """One file of an input."""

    relative_path: str
    """With forward slashes; the file's name for an input that is a single file."""
    path: Path
    """Path without links."""
    size: int


def list_local_files(path: Path, excluded_secrets: list[str] | None = None) -> Iterator[LocalFile]:
    """Yield all files of a local input, sorted by name.

    Excluded are files that a ``.smlaunchignore`` in any folder names, and smlaunch's own state. Links are
    followed, as reading the data would, but not out of the folder. If ``excluded_secrets`` is a list, files
    with names of secrets are excluded too and their names are added to it.

    Raises OSError for unreadable files, for links out of the folder or to a parent of themselves, and for
    special files.
    """
    real_path = Path(os.path.realpath(path))
    status = real_path.stat()
    if stat.S_ISREG(status.st_mode):
        yield LocalFile(path.name, real_path, status.st_size)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{path} is neither file nor folder")
    walk = _InputFolderWalk(real_path, excluded_secrets)
    files = walk.find_files()
    walk.raise_for_unsendable_files(path)
    yield from sorted(files, key=lambda file: os.fsencode(file.relative_path))


class _PendingFolder(NamedTuple):
    """A folder of an input that is still to be listed."""

    prefix: str
    """Path relative to the input, with a slash at its end; empty for the input itself."""
    real_path: str
    ancestors: frozenset[str]
    """Real paths of the folder itself and of those above it, to find links that form a circle."""
    rules: list[IgnoreRules]
    """Of the folders above it, nearest first."""
    skip_secret_check: bool


class _SecretCheck(Enum):
    """Result of a check of a file or folder for secrets, by its name."""

    ORDINARY_NAME = "ordinary name"
    """Sent. Of a folder, each file is still checked."""
    CLEARED = "cleared"
    """Sent in spite of a secret's name: it holds none, or the user includes it. Of a folder, all files
    are."""
    EXCLUDED = "excluded"
    """Not sent, because it may hold a secret."""


class _InputFolderWalk:
    """One pass through the folder of a local input. Raises OSError for what cannot be read."""

    def __init__(self, root: Path, excluded_secrets: list[str] | None) -> None:
        """``excluded_secrets`` receives the names of excluded files; None excludes no secrets."""
        self._root = root
        self._excluded_secrets = excluded_secrets
        self._state_folder = state_folder_id()
        self._outside_links: list[str] = []
        self._special_files: list[str] = []

    def find_files(self) -> list[LocalFile]:
        """Return all files below the root that are not ignored and do not look like secrets. Links are
        followed inside the root; links that lead outside and special files are recorded, for an error."""
        files: list[LocalFile] = []
        root_path = str(self._root)
        root_folder = _PendingFolder(
            prefix="",
            real_path=root_path,
            ancestors=frozenset({root_path}),
            rules=[],
            skip_secret_check=self._excluded_secrets is None,  # None: the user has included all secrets
        )
        pending_folders = [root_folder]
        while pending_folders:
            folder = pending_folders.pop()
            with os.scandir(folder.real_path) as listing:
                items = list(listing)
            item_names = {item.name for item in items}
            if folder.prefix and is_state_folder(item_names):  # where a local endpoint keeps its data
                continue
            if SMLAUNCHIGNORE in item_names:
                own_rules = load_ignore_rules(Path(folder.real_path), folder.prefix, [SMLAUNCHIGNORE])
                folder = folder._replace(rules=[*own_rules, *folder.rules])
            for item in items:
                if item.name == SMLAUNCHIGNORE:
                    continue
                found = self._inspect_item(item, folder)  # records what it excludes
                if isinstance(found, LocalFile):
                    files.append(found)
                elif found is not None:
                    pending_folders.append(found)
        return files

    def _inspect_item(
        self, item: os.DirEntry[str], folder: _PendingFolder
    ) -> LocalFile | _PendingFolder | None:
        """Return a folder's item as a file to send or a folder to list; None for an excluded one. A link that
        leads out of the input, and what is neither file nor folder, is recorded, for an error."""
        relative_path = folder.prefix + item.name
        link_target = os.path.realpath(item.path) if item.is_symlink() else ""  # empty: no link
        if link_target and not Path(link_target).is_relative_to(self._root):
            if not is_ignored(folder.rules, relative_path, item.is_dir()):
                self._outside_links.append(f"{relative_path} (to {Path(item.path).readlink()})")
            return None
        is_folder = item.is_dir()
        if folder.rules and is_ignored(folder.rules, relative_path, is_folder):
            return None
        status = item.stat()
        if is_folder:
            # Device and inode: smlaunch's own state folder, by whatever name.
            if folder_id(status) == self._state_folder:
                return None
            if link_target and link_target in folder.ancestors:
                raise OSError(f"{item.path} is a link to a folder that contains it")
        elif not stat.S_ISREG(status.st_mode):
            self._special_files.append(relative_path)
            return None
        secret_check = (
            _SecretCheck.CLEARED
            if folder.skip_secret_check
            else self._check_for_secret(relative_path, item.path, link_target, folder.rules, is_folder)
        )
        if secret_check is _SecretCheck.EXCLUDED:
            return None
        real_path = link_target or item.path
        if not is_folder:
            return LocalFile(relative_path, Path(real_path), status.st_size)
        return _PendingFolder(
            prefix=relative_path + "/",
            real_path=real_path,
            ancestors=folder.ancestors | {real_path},
            rules=folder.rules,
            skip_secret_check=secret_check is _SecretCheck.CLEARED,
        )

    def _check_for_secret(
        self, relative_path: str, path: str, link_target: str, rules: list[IgnoreRules], is_folder: bool
    ) -> _SecretCheck:
        """Return whether a file or folder of the input may be sent, by its name. One that may hold a secret
        is excluded, and recorded, unless the user includes it by name.

        Unlike source files, data is read only where its name matches a secret's pattern. ``link_target`` is
        empty for a file that is no link.
        """
        if self._excluded_secrets is None:  # the user has included all secrets
            return _SecretCheck.CLEARED
        secret_pattern = match_secret_name(relative_path, is_folder)
        if secret_pattern is None and link_target:
            secret_pattern = self._match_secret_name_of_target(link_target, is_folder)
        if secret_pattern is None:
            return _SecretCheck.ORDINARY_NAME  # what a folder holds is still to be checked
        if is_explicitly_included(rules, relative_path):
            return _SecretCheck.CLEARED
        if secret_pattern.content_check is not None and not is_folder:
            has_secret = secret_pattern.content_check(_read_beginning(link_target or path))
            if not has_secret:
                return _SecretCheck.CLEARED
        self._excluded_secrets.append(relative_path + "/" if is_folder else relative_path)
        return _SecretCheck.EXCLUDED

    def _match_secret_name_of_target(self, link_target: str, is_folder: bool) -> SecretPattern | None:
        """Return the pattern that a link's target, or a folder above it inside the root, matches."""
        target_path = Path(link_target).relative_to(self._root)
        secret_pattern = match_secret_name(str(target_path), is_folder)
        for parent in target_path.parents:
            secret_pattern = secret_pattern or match_secret_name(str(parent), is_folder=True)
        return secret_pattern

    def raise_for_unsendable_files(self, path: Path) -> None:
        """Raise OSError for files that cannot be sent. They are not skipped, because incomplete data would be
        other data."""
        if self._outside_links:
            raise OSError(
                f"links out of {path} are not followed: {list_names(self._outside_links)}; name their "
                f"targets as the input, or a folder that holds both, or exclude them in {SMLAUNCHIGNORE}"
            )
        if self._special_files:
            raise OSError(
                f"neither file nor folder: {list_names(self._special_files)}; exclude it in {SMLAUNCHIGNORE}"
            )


def _read_beginning(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(SCANNED_BYTES)


FULL_LIST_HINT = " (plan --json names all of them, in left_out)"

INCLUDE_HINT = "--include-secrets sends it anyway, and so does a line !{name} in .smlaunchignore"


def excluded_secrets_warning(names: Iterable[str]) -> str:
    """Return the warning about excluded files, for a source and for an input."""
    listed_names = list_names(names, where_to_find_all=FULL_LIST_HINT)
    return (
        f"not sent because they may contain secrets: {listed_names}; --include-secrets (include_secrets: "
        f"true) "
        "sends all of them, a line !NAME in .smlaunchignore sends one"
    )
