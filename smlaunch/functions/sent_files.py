"""Files of the folder that is sent: where they lie here, and on a host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
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


def find_plain_folders(modules: Iterable[str], folder: Path | None) -> list[str]:
    """Return the packages of the modules, by their dotted names, that are folders without ``__init__.py`` in
    the folder that is sent, parents first. On a host an installed package of the same name, such as
    ``tests``, would come before them."""
    found = set()
    for module in modules:
        *packages, _ = module.split(".")
        file = getattr(sys.modules.get(module), "__file__", None)
        for depth in range(1, len(packages) + 1) if file and folder else ():
            path = Path(folder or "", *packages[:depth])
            if (
                path.is_dir()
                and not (path / "__init__.py").exists()
                and Path(file or "").is_relative_to(path)
            ):
                found.add(".".join(packages[:depth]))
    return sorted(found)
