"""Mode, size and time of files: the other processes of ``file_sizes``. It needs nothing but Python.

    python -I -S file_facts.py ROOT [--follow-links]

It is asked in chunks: eight bytes of length, then names with a NUL between. The answer is three 64-bit
numbers for each name: mode (0: it is gone), size in bytes, nanoseconds of the last change.
"""

from __future__ import annotations

import os
import stat
import sys
from array import array

TYPE_CHECKING = False  # as type checkers know it: `typing` and `collections` are most of a start
if TYPE_CHECKING:
    from collections.abc import Sequence

FOLLOW = "--follow-links"


def facts_of(root: int, names: Sequence[bytes], follow_links: bool) -> bytes:
    """The answer for a chunk of names below the open folder ``root``."""
    look, facts = os.stat, array("q")
    add = facts.extend
    for name in names:
        try:
            found = look(name, dir_fd=root, follow_symlinks=False)
            mode = found.st_mode
            if follow_links and stat.S_ISLNK(mode):
                target = look(name, dir_fd=root)
                if stat.S_ISREG(target.st_mode):
                    found, mode = target, target.st_mode
        except FileNotFoundError:
            add((0, 0, 0))
            continue
        add((mode, found.st_size, found.st_mtime_ns))
    return facts.tobytes()


def main(root: str, follow: str = "") -> None:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    while length := sys.stdin.buffer.read(8):
        names = sys.stdin.buffer.read(int.from_bytes(length, "little")).split(b"\0")
        sys.stdout.buffer.write(facts_of(folder, names, follow == FOLLOW))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
