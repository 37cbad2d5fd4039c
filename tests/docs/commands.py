"""Finds the commands that README.md and the pages of docs/ tell a user to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT

PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md")),
)

SHELL_LANGUAGES = ("", "console", "sh", "bash")
_FENCE = re.compile(r"^\s*```(\S*)\s*$")
_COMMENT = re.compile(r"\s{2,}#.*$")
_PLACEHOLDER = re.compile(r"^\[?(?:[A-Z][A-Z0-9_.|/-]*|\.\.\.)\]?$")
"""A word that stands for the user's own, such as ``RUN`` or ``SCRIPT|JOB.yaml``."""


class DocCommand(NamedTuple):
    page: str
    """Relative to the project's root."""
    line: int
    words: tuple[str, ...]
    """The command as the shell splits it, without its comment."""

    @property
    def is_example(self) -> bool:
        """Whether a user can type it as it is; False for a synopsis such as ``smlaunch show RUN``."""
        return not any("|" in word or _PLACEHOLDER.match(word) for word in self.words[1:])


def fenced_blocks(path: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Yields language, number of the first line, and lines of each block."""
    block: list[str] | None = None
    language, start = "", 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and block is None:
            block, language, start = [], fence[1], number + 1
        elif fence:
            yield language, start, block or []
            block = None
        elif block is not None:
            block.append(line)


def block_commands(path: Path) -> Iterator[DocCommand]:
    """Yields each command of smlaunch in the page's blocks; a backslash joins lines."""
    for language, start, lines in fenced_blocks(path):
        if language not in SHELL_LANGUAGES:
            continue
        joined = ""
        for offset, line in enumerate(lines):
            joined += _COMMENT.sub("", line.strip().removeprefix("$ "))
            if joined.endswith("\\"):
                joined = joined[:-1]
                continue
            if re.match(r"smlaunch\s", joined):
                yield DocCommand(str(path.relative_to(ROOT)), start + offset, tuple(shlex.split(joined)))
            joined = ""


def inline_commands(path: Path) -> Iterator[DocCommand]:
    """Yields each command in single backquotes that begins with ``smlaunch`` and names a subcommand."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for match in re.finditer(r"`(smlaunch [a-z-][^`]*)`", line):
            yield DocCommand(str(path.relative_to(ROOT)), number, tuple(shlex.split(match[1])))
