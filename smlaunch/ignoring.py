"""What a folder's ignore files leave out, read as git reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OWN_FILE = ".smlaunchignore"

_LARGEST = 1 << 20
"""Bytes of an ignore file."""


class Unusable(OSError):
    """An ignore file that cannot be read, or has a pattern that is none."""


class Wish(NamedTuple):
    """A line that begins with ``!`` and names files: its pattern, and what a file's own name must match."""

    spec: GitIgnoreSpec
    name: str


class Rules(NamedTuple):
    """One ignore file: its patterns, and where the walk's relative paths start, seen from its folder.

    ``strip`` is cut from the front of a path (a folder inside what is walked), ``add`` is put there (one
    above). ``wishes``: what it wants sent, by name; only our own file is written for that.
    """

    spec: GitIgnoreSpec
    strip: int
    add: str
    wishes: tuple[Wish, ...] = ()


def rules_in(folder: Path, prefix: str, names: Iterable[str]) -> list[Rules]:
    """``names``: the ignore files that are there, the most authoritative first. ``prefix``: the folder's own
    relative path, ending in a slash, or empty."""
    return [_rules(folder / name, len(prefix)) for name in names]


def read_spec(path: Path) -> GitIgnoreSpec:
    return _spec(path, _lines(path))


def ignored(rules: Sequence[Rules], relative: str, is_folder: bool) -> bool:
    """The nearest ignore file that says anything about the path decides, as in git. ``rules``: nearest
    first."""
    for spec, strip, add, _ in rules:
        answer = spec.check_file(add + relative[strip:] + ("/" if is_folder else "")).include
        if answer is not None:
            return answer
    return False


def wished(rules: Sequence[Rules], relative: str) -> bool:
    """Whether a line such as ``!.env`` or ``!certs/*.pem`` names this very file or folder. A line that only
    brings back what it lies in (``!src/``), or everything (``!*``), does not."""
    name = relative.rpartition("/")[2]
    return any(
        fnmatchcase(name, wish.name)
        and (wish.spec.match_file(relative[strip:]) or wish.spec.match_file(relative[strip:] + "/"))
        for _, strip, _, wishes in rules
        for wish in wishes
    )


def _rules(path: Path, strip: int) -> Rules:
    lines = _lines(path)
    wishes = []
    for line in lines if path.name == OWN_FILE else ():
        pattern = line.strip()[1:]
        name = pattern.rstrip("/").rpartition("/")[2]
        if line.startswith("!") and name.strip("*?"):
            wishes.append(Wish(_spec(path, [pattern]), name))
    return Rules(_spec(path, lines), strip, "", tuple(wishes))


def _spec(path: Path, lines: list[str]) -> GitIgnoreSpec:
    # Imported only when there is an ignore file: 20 ms that most commands need not pay.
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise Unusable(f"{path} cannot be used: {error}") from error


def _lines(path: Path) -> list[str]:
    """What is no file may never end, or never begin."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unusable(f"{path} cannot be used: it is no file")
            content = file.read(_LARGEST + 1)
    except Unusable:
        raise
    except OSError as error:
        raise Unusable(f"{path} cannot be used: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise Unusable(f"{path} cannot be used: {_LARGEST >> 20} MB of patterns are the most")
    return content.decode("utf-8", "surrogateescape").splitlines()
