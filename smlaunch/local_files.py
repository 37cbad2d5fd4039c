"""The files of a local input, as they are counted, hashed and sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from smlaunch.ignoring import OWN_FILE, Rules, ignored, rules_in, wished
from smlaunch.planning.prose import some
from smlaunch.private_places import holds_state, identity, state_folder
from smlaunch.secret_contents import LOOKED_AT
from smlaunch.secret_files import named_secret


class LocalFile(NamedTuple):
    """``relative`` has forward slashes; for a single file it is the file's name. ``path``: no link."""

    relative: str
    path: Path
    size: int


def local_files(path: Path, left_out: list[str] | None = None) -> Iterator[LocalFile]:
    """All files of a local input, sorted by name, but for what ``.smlaunchignore`` leaves out, in any of its
    folders, and for smlaunch's own state. Links are followed, as reading the data would, but not out of the
    folder. ``left_out``: files whose names are those of secrets stay here, and their names come in there.

    Raises OSError for what cannot be read, for links out of the folder and to one above themselves, and for
    what is neither file nor folder.
    """
    real = Path(os.path.realpath(path))
    status = real.stat()
    if stat.S_ISREG(status.st_mode):
        yield LocalFile(path.name, real, status.st_size)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{path} is neither file nor folder")
    walk = _Walk(real, left_out)
    found = walk.files()
    walk.complain(path)
    yield from sorted(found, key=lambda file: os.fsencode(file.relative))


class _Walk:
    def __init__(self, root: Path, left_out: list[str] | None) -> None:
        self._root = root
        self._left_out = left_out
        self._state = state_folder()
        self._leading_out: list[str] = []
        self._odd: list[str] = []

    def files(self) -> list[LocalFile]:
        found: list[LocalFile] = []
        none: list[Rules] = []
        pending = [("", str(self._root), frozenset({str(self._root)}), none, self._left_out is None)]
        while pending:
            prefix, folder, above, rules, clear = pending.pop()
            with os.scandir(folder) as listing:
                items = list(listing)
            if prefix and holds_state({item.name for item in items}):
                continue
            if any(item.name == OWN_FILE for item in items):
                rules = [*rules_in(Path(folder), prefix, [OWN_FILE]), *rules]
            for item in items:
                relative = prefix + item.name
                if item.name == OWN_FILE:
                    continue
                real = ""
                if item.is_symlink():
                    real = os.path.realpath(item.path)
                    if not Path(real).is_relative_to(self._root):
                        if not ignored(rules, relative, item.is_dir()):
                            self._leading_out.append(f"{relative} (to {Path(item.path).readlink()})")
                        continue
                is_folder = item.is_dir()
                if rules and ignored(rules, relative, is_folder):
                    continue
                status = item.stat()
                if is_folder:
                    if identity(status) == self._state:
                        continue
                    if real and real in above:
                        raise OSError(f"{item.path} is a link to a folder that contains it")
                    sure = self._is_clear(relative, item.path, real, rules, is_folder=True, clear=clear)
                    if sure is not None:
                        inner = real or item.path
                        pending.append((relative + "/", inner, above | {inner}, rules, sure))
                elif not stat.S_ISREG(status.st_mode):
                    self._odd.append(relative)
                elif (
                    self._is_clear(relative, item.path, real, rules, is_folder=False, clear=clear) is not None
                ):
                    found.append(LocalFile(relative, Path(real or item.path), status.st_size))
        return found

    def _is_clear(
        self, relative: str, path: str, real: str, rules: list[Rules], is_folder: bool, clear: bool
    ) -> bool | None:
        """As for a source, but data is looked into only where its name calls for it. ``real``: where a link
        leads, empty for what is none."""
        if clear or self._left_out is None:
            return True
        sign = named_secret(relative, is_folder)
        if sign is None and real:
            own = Path(real).relative_to(self._root)
            above = (named_secret(str(folder), is_folder=True) for folder in own.parents)
            sign = named_secret(str(own), is_folder) or next(filter(None, above), None)
        if sign is None:
            return False
        if wished(rules, relative) or (
            sign.holds is not None and not is_folder and not sign.holds(_beginning(real or path))
        ):
            return True
        self._left_out.append(relative + "/" * is_folder)
        return None

    def complain(self, path: Path) -> None:
        """Data that lacks some of its files would be other data: so nothing is left out for these."""
        if self._leading_out:
            raise OSError(
                f"links out of {path} are not followed: {some(self._leading_out)}; name what they lead to "
                f"as the input, or a folder that holds both, or leave them out by {OWN_FILE}"
            )
        if self._odd:
            raise OSError(f"neither file nor folder: {some(self._odd)}; leave it out by {OWN_FILE}")


def _beginning(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(LOOKED_AT)


NAMED_IN_JSON = " (plan --json names all of them, in left_out)"

WISH = "--include-secrets sends it all the same, or a line !{name} in .smlaunchignore"


def secrets_stay(names: Iterable[str]) -> str:
    """The warning about files that are not sent, of a source and of an input alike."""
    told = some(names, all_of_them=NAMED_IN_JSON)
    return (
        f"not sent, for the secrets that they may hold: {told}; --include-secrets (include_secrets: true) "
        "sends them all, a line !NAME in .smlaunchignore that one"
    )
