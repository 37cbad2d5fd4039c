"""The files of a local input, as they are counted, hashed and sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from smlaunch.ignoring import OWN_FILE, Rules, ignored, rules_in


class LocalFile(NamedTuple):
    """``relative`` has forward slashes; for a single file it is the file's name."""

    relative: str
    path: Path
    size: int


def local_files(path: Path) -> Iterator[LocalFile]:
    """All regular files of a local input, sorted by name, but for what ``.smlaunchignore`` leaves out, in any
    of its folders. Links are followed, as reading the data would.

    Raises OSError for what cannot be read, and for a link to a folder above itself.
    """
    if not path.is_dir():
        yield LocalFile(path.name, path, path.stat().st_size)
        return
    found: list[LocalFile] = []
    none: list[Rules] = []
    pending = [("", path, frozenset({os.path.realpath(path)}), none)]
    while pending:
        prefix, folder, above, rules = pending.pop()
        if (folder / OWN_FILE).is_file():
            rules = [*rules_in(folder, prefix, [OWN_FILE]), *rules]
        for item in os.scandir(folder):
            is_folder = item.is_dir()
            if item.name == OWN_FILE or ignored(rules, prefix + item.name, is_folder):
                continue
            if is_folder:
                real = os.path.realpath(item.path)
                if real in above:
                    raise OSError(f"{item.path} is a link to a folder that contains it")
                pending.append((f"{prefix}{item.name}/", Path(item.path), above | {real}, rules))
            else:
                found.append(LocalFile(prefix + item.name, Path(item.path), item.stat().st_size))
    yield from sorted(found, key=lambda file: os.fsencode(file.relative))
