"""What a folder's ignore files leave out, read as git reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OWN_FILE = ".smlaunchignore"


class Unusable(OSError):
    """An ignore file that cannot be read, or has a pattern that is none."""


class Rules(NamedTuple):
    """One ignore file: its patterns, and where the walk's relative paths start, seen from its folder.

    ``strip`` is cut from the front of a path (a folder inside what is walked), ``add`` is put there (one
    above).
    """

    spec: GitIgnoreSpec
    strip: int
    add: str


def rules_in(folder: Path, prefix: str, names: Iterable[str]) -> list[Rules]:
    """``names``: the ignore files that are there, the most authoritative first. ``prefix``: the folder's own
    relative path, ending in a slash, or empty."""
    return [Rules(read_spec(folder / name), len(prefix), "") for name in names]


def read_spec(path: Path) -> GitIgnoreSpec:
    # Imported only when there is an ignore file: 20 ms that most commands need not pay.
    from pathspec import GitIgnoreSpec

    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        return GitIgnoreSpec.from_lines(lines)
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} cannot be used: {error}") from error


def ignored(rules: Sequence[Rules], relative: str, is_folder: bool) -> bool:
    """The nearest ignore file that says anything about the path decides, as in git. ``rules``: nearest
    first."""
    for spec, strip, add in rules:
        answer = spec.check_file(add + relative[strip:] + ("/" if is_folder else "")).include
        if answer is not None:
            return answer
    return False
