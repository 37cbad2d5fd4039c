"""What kind, how large and how old each file below a folder is, looked up by several processes at once.

To ask for a file's size takes six times as long as to read its name from the folder, and far longer on a
network file system. So names are read here, and the rest by ``FolderWorkers``.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

from smlaunch.data.folder_worker import FACTS, facts_of
from smlaunch.data.folder_workers import FolderWorkers

_CHUNK = 4096
"""Files asked for at once."""

_ALONE = 2
"""Up to so many chunks are looked up here: to start processes would take longer."""

Facts = Sequence[int]
"""Mode, size and time of each file in turn."""

Unreadable = list[tuple[bytes, str]]


def look_up(
    root: str, workers: FolderWorkers, follow_links: bool = False
) -> tuple[list[bytes], list[Facts], Unreadable]:
    """Names of everything below ``root`` but its folders, relative and in order; columns of their modes,
    sizes and times; and the folders that cannot be read, with the reason.

    ``follow_links``: a link to a file is told of as that file.
    """
    unreadable: Unreadable = []
    names: list[bytes] = []
    chunks = _chunks(root, names, unreadable)
    first = list(islice(chunks, _ALONE))
    if len(first) < _ALONE:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            answers = [facts_of(folder, names, follow_links)]
        finally:
            os.close(folder)
    else:
        workers.start()
        with ThreadPoolExecutor(workers.count, "sizes") as pool:
            asked = [pool.submit(workers.ask, FACTS, b"\0".join(chunk)) for chunk in chain(first, chunks)]
        answers = [answer.result()[0] for answer in asked]
    facts = array("q", b"".join(answers))
    return names, [facts[part::3] for part in range(3)], unreadable


def _chunks(root: str, names: list[bytes], unreadable: Unreadable) -> Iterator[list[bytes]]:
    """What is added to ``names``, so many at a time."""
    told = 0
    for some in _in_order(root, unreadable):
        names += some
        while len(names) - told >= _CHUNK:
            yield names[told : told + _CHUNK]
            told += _CHUNK
    if told < len(names):
        yield names[told:]


def _in_order(root: str, unreadable: Unreadable) -> Iterator[list[bytes]]:
    """A folder stands among its neighbours where its name and a slash do: all names are in order then."""
    top = os.fsencode(root)
    pending = [b""]  # the first is the last; folders end in a slash
    while pending:
        name = pending.pop()
        if name and not name.endswith(b"/"):
            yield [name]
            continue
        files: list[bytes] = []
        folders: list[bytes] = []
        try:
            with os.scandir(os.path.join(top, name)) as entries:  # noqa: PTH118 (bytes)
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else files).append(name + entry.name)
        except OSError as error:
            unreadable.append((name or b".", error.strerror or str(error)))
        if folders:
            pending += sorted([*files, *[folder + b"/" for folder in folders]], reverse=True)
        else:
            yield sorted(files)
