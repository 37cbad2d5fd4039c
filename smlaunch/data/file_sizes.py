"""What kind, how large and how old each file below a folder is, looked up by several processes at once.

To ask for a file's size takes six times as long as to read its name from the folder, and far longer on a
network file system. So names are read here, and the rest by processes of ``file_facts``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, islice
from queue import SimpleQueue

from smlaunch.data import file_facts
from smlaunch.data.file_facts import facts_of

_CHUNK = 4096
"""Files asked for at once."""

_ALONE = 2
"""Up to so many chunks are looked up here: to start processes would take longer."""

Facts = Sequence[int]
"""Mode, size and time of each file in turn."""

Unreadable = list[tuple[bytes, str]]


def look_up(
    root: str, workers: int, follow_links: bool = False
) -> tuple[list[bytes], list[Facts], Unreadable]:
    """Names of everything below ``root`` but its folders, relative and in no order; columns of their modes,
    sizes and times; and the folders that cannot be read, with the reason.

    ``follow_links``: a link to a file is told of as that file.
    """
    unreadable: Unreadable = []
    names = _names(root, unreadable)
    chunks = iter(lambda: list(islice(names, _CHUNK)), [])
    first = list(islice(chunks, _ALONE))
    if len(first) < _ALONE:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        asked = [(chunk, facts_of(folder, chunk, follow_links)) for chunk in first]
        os.close(folder)
    else:
        asked = _ask_all(root, chain(first, chunks), workers, follow_links)
    facts = array("q", b"".join([answer for _, answer in asked]))
    return [name for chunk, _ in asked for name in chunk], [facts[part::3] for part in range(3)], unreadable


def _names(root: str, unreadable: Unreadable) -> Iterator[bytes]:
    pending = [b""]
    top = os.fsencode(root)
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(os.path.join(top, prefix)) as entries:  # noqa: PTH118 (bytes)
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(prefix + entry.name + b"/")
                    else:
                        yield prefix + entry.name
        except OSError as error:
            unreadable.append((prefix or b".", error.strerror or str(error)))


def _ask_all(
    root: str, chunks: Iterator[list[bytes]], workers: int, follow_links: bool
) -> list[tuple[list[bytes], bytes]]:
    command = [
        sys.executable,
        "-I",
        "-S",
        file_facts.__file__,
        root,
        *([file_facts.FOLLOW] if follow_links else []),
    ]
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def ask(names: list[bytes]) -> bytes:
        process = free.get()
        try:
            assert process.stdin is not None and process.stdout is not None
            question = b"\0".join(names)
            process.stdin.write(len(question).to_bytes(8, "little") + question)
            process.stdin.flush()
            answer = process.stdout.read(24 * len(names))
        finally:
            free.put(process)
        if len(answer) != 24 * len(names):
            raise OSError(f"a process that looked up files below {root} has ended")
        return answer

    with ExitStack() as stack:
        for _ in range(workers):
            pipe = subprocess.PIPE
            free.put(stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe)))
        pool = stack.enter_context(ThreadPoolExecutor(workers, "sizes"))
        asked = [(chunk, pool.submit(ask, chunk)) for chunk in chunks]
        return [(chunk, answer.result()) for chunk, answer in asked]
