"""Lists the files of a local input, for counting, hashing and uploading."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from smlaunch.discovery.gitignore import (
    SMLAUNCHIGNORE,
    IgnoreRules,
    is_explicitly_included,
    is_ignored,
    load_rules,
)
from smlaunch.discovery.protected_folders import folder_id, is_state_folder, state_folder_id
from smlaunch.secrets.file_contents import SCANNED_BYTES
from smlaunch.secrets.file_names import match_secret_name
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
    walk = _InputWalk(real_path, excluded_secrets)
    files = walk.files()
    walk.raise_for_unsendable(path)
    yield from sorted(files, key=lambda file: os.fsencode(file.relative_path))


class _InputWalk:
    def __init__(self, root: Path, excluded_secrets: list[str] | None) -> None:
        self._root = root
        self._excluded_secrets = excluded_secrets
        self._state_folder = state_folder_id()
        self._outside_links: list[str] = []
        self._special_files: list[str] = []

    def files(self) -> list[LocalFile]:
        """Return all files below the root that are not ignored and hold no secrets, without following links
        that lead outside. Outside links and excluded secrets are recorded."""
        files: list[LocalFile] = []
        no_rules: list[IgnoreRules] = []
        pending_folders = [
            ("", str(self._root), frozenset({str(self._root)}), no_rules, self._excluded_secrets is None)
        ]
        while pending_folders:
            prefix, folder, ancestors, rules, skip_check = pending_folders.pop()
            with os.scandir(folder) as listing:
                folder_items = list(listing)
            if prefix and is_state_folder({item.name for item in folder_items}):
                continue
            if any(item.name == SMLAUNCHIGNORE for item in folder_items):
                rules = [*load_rules(Path(folder), prefix, [SMLAUNCHIGNORE]), *rules]
            for item in folder_items:
                relative_path = prefix + item.name
                if item.name == SMLAUNCHIGNORE:
                    continue
                link_target = ""
                if item.is_symlink():
                    link_target = os.path.realpath(item.path)
                    if not Path(link_target).is_relative_to(self._root):
                        if not is_ignored(rules, relative_path, item.is_dir()):
                            self._outside_links.append(f"{relative_path} (to {Path(item.path).readlink()})")
                        continue
                is_folder = item.is_dir()
                if rules and is_ignored(rules, relative_path, is_folder):
                    continue
                status = item.stat()
                if is_folder:
                    if folder_id(status) == self._state_folder:
                        continue
                    if link_target and link_target in ancestors:
                        raise OSError(f"{item.path} is a link to a folder that contains it")
                    needs_no_check = self._check_secret_name(
                        relative_path, item.path, link_target, rules, is_folder=True, skip_check=skip_check
                    )
                    if needs_no_check is not None:
                        real_folder = link_target or item.path
                        pending_folders.append(
                            (
                                relative_path + "/",
                                real_folder,
                                ancestors | {real_folder},
                                rules,
                                needs_no_check,
                            )
                        )
                elif not stat.S_ISREG(status.st_mode):
                    self._special_files.append(relative_path)
                else:
                    needs_no_check = self._check_secret_name(
                        relative_path, item.path, link_target, rules, is_folder=False, skip_check=skip_check
                    )
                    if needs_no_check is not None:
                        real_path = Path(link_target or item.path)
                        files.append(LocalFile(relative_path, real_path, status.st_size))
        return files

    def _check_secret_name(
        self,
        relative_path: str,
        path: str,
        link_target: str,
        rules: list[IgnoreRules],
        is_folder: bool,
        skip_check: bool,
    ) -> bool | None:
        """Return True if the item is sent without further checks, None if it is excluded, else False.

        Unlike source files, data is read only where its name matches a secret's pattern. ``link_target`` is
        empty for a file that is no link.
        """
        if skip_check or self._excluded_secrets is None:
            return True
        pattern = match_secret_name(relative_path, is_folder)
        if pattern is None and link_target:
            target_path = Path(link_target).relative_to(self._root)
            parent_patterns = (
                match_secret_name(str(folder), is_folder=True) for folder in target_path.parents
            )
            pattern = match_secret_name(str(target_path), is_folder)
            pattern = pattern or next(filter(None, parent_patterns), None)
        if pattern is None:
            return False
        if is_explicitly_included(rules, relative_path) or (
            pattern.content_check is not None
            and not is_folder
            and not pattern.content_check(_read_beginning(link_target or path))
        ):
            return True
        self._excluded_secrets.append(relative_path + "/" * is_folder)
        return None

    def raise_for_unsendable(self, path: Path) -> None:
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
