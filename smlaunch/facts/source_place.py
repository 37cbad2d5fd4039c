"""A place in the user's source, as messages name it."""

from __future__ import annotations

from typing import NamedTuple


class SourcePlace(NamedTuple):
    """A line of a file of the source."""

    file: str
    """Relative to the source folder, with forward slashes."""

    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class LineEdit(NamedTuple):
    """A line of the source in which something is to be replaced or inserted."""

    place: SourcePlace
    before: str
    """The line before the new text."""

    after: str
    """The line after the new text."""

    def with_text(self, text: str) -> str:
        """``train.py:41: `` and the line with the new text."""
        return f"{self.place}: {self.before}{text}{self.after}"


class OutsideFile(NamedTuple):
    """A file or folder outside the source that the script names."""

    path: str
    """Relative to the source folder, such as ``../data``."""

    place: SourcePlace
    """Where the script names it."""

    folder_with_both: str
    """The folder that holds it and the source, relative to the working directory; empty for one that is never
    sent."""
