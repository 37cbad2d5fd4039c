"""Files of the folder that is sent: where they lie here, and on a host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class SentFile:
    """The path of a file in the folder that is sent; on a host, whose working directory that is, a text."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.path.abspath, (self.path,)


def find_sent_file(file: str, folder: Path | None) -> str | SentFile:
    """Return the file as it is to be pickled; its path here if it does not lie in the folder."""
    if folder is None:
        return file
    real_file, real_folder = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    if not real_file.is_relative_to(real_folder):
        return file
    return SentFile(real_file.relative_to(real_folder).as_posix())
