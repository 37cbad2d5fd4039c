"""A disk that forgets what was not synced: the system calls of a traced program, replayed.

The strictest disk that POSIX allows: bytes are kept when their file was synced since, a name when its folder
was. ``Disk.kept`` is then what a power cut at that moment leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

CALLS = (
    *(
        "openat",
        "open",
        "creat",
        "write",
        "pwrite64",
        "ftruncate",
        "fsync",
        "fdatasync",
        "rename",
        "renameat",
    ),
    *("renameat2", "link", "linkat", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "sendto", "sendmsg"),
)
STRACE = ["strace", "-f", "-ff", "-ttt", "-T", "-y", "-xx", "-s", "200000", "-e", f"trace={','.join(CALLS)}"]

_LINE = re.compile(r"(\d+\.\d+) (\w+)\((.*)\) = (-?\d+)(?:<((?:\\x..)*)>)?.* <(\d+\.\d+)>")
_WORDS = re.compile(r"(?:AT_FDCWD|(\d+))<((?:\\x..)*)>|\"((?:\\x..)*)\"")
_ANSWER = b"HTTP/1.1 2"


class Call(NamedTuple):
    """``path``: of the descriptor, else the first that is named; ``other``: the second. ``number``: the last
    argument, where it is one."""

    name: str
    path: str
    other: str
    data: bytes
    number: int
    arguments_text: str


def calls(folder: Path) -> Iterator[Call]:
    """Yields the calls of all threads in the order in which they ended; a response counts from its begin."""
    timed_calls = []
    for file in folder.glob("trace.*"):
        for line in file.read_text("ascii", "replace").splitlines():
            match = _LINE.match(line)
            if match is None or int(match[4]) < 0:
                continue
            call = _read(match[2], match[3])
            end_time = float(match[1]) + float(match[6])
            timed_calls.append((float(match[1]) if is_answer(call) else end_time, call))
    yield from (call for _, call in sorted(timed_calls, key=lambda entry: entry[0]))


def is_answer(call: Call) -> bool:
    return call.name in ("sendto", "sendmsg", "write") and call.data.startswith(_ANSWER)


def _read(name: str, arguments: str) -> Call:
    paths: list[str] = []
    data, folder = b"", ""
    for number, descriptor_path, quoted in _WORDS.findall(arguments):
        if descriptor_path or number:
            text = _bytes(descriptor_path).decode("utf-8", "replace")
            folder = text
            if number and not name.endswith("at") and name != "renameat2":
                paths.append(text)
        elif paths and name in ("write", "pwrite64", "sendto", "sendmsg"):
            data = data or _bytes(quoted)
        else:
            text = _bytes(quoted).decode("utf-8", "replace")
            paths.append(text if text.startswith("/") else f"{folder}/{text}")
    last = arguments.rpartition(", ")[2]
    number = int(last) if last.isdigit() else -1
    return Call(name, paths[0] if paths else "", paths[1] if len(paths) > 1 else "", data, number, arguments)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass(eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)


class Disk:
    """The file tree below ``top``, and what of it is synced."""

    def __init__(self, top: Path) -> None:
        self._top = str(top)
        self._root = Folder()

    def apply(self, call: Call) -> None:
        if not call.path.startswith(self._top) or call.path.endswith(("-shm", "(deleted)")):
            return
        folder, name = self._locate(call.path)
        node = folder.names.get(name) if name else self._root
        match call.name:
            case "openat" | "open" | "creat":
                if node is None and "O_CREAT" in call.arguments_text:
                    node = folder.names[name] = File()
                if isinstance(node, File) and "O_TRUNC" in call.arguments_text:
                    node.data.clear()
            case "write" if isinstance(node, File):
                node.data += call.data
            case "pwrite64" if isinstance(node, File):
                end = call.number + len(call.data)
                node.data.extend(bytes(max(0, end - len(node.data))))
                node.data[call.number : end] = call.data
            case "ftruncate" if isinstance(node, File):
                node.data.extend(bytes(max(0, call.number - len(node.data))))
                del node.data[call.number :]
            case "fsync" | "fdatasync":
                if isinstance(node, File):
                    node.synced = bytes(node.data)
                elif isinstance(node, Folder):
                    node.synced = dict(node.names)
            case "mkdir" | "mkdirat":
                folder.names[name] = Folder()
            case "rename" | "renameat" | "renameat2" if node is not None:
                del folder.names[name]
                new_folder, new = self._locate(call.other)
                new_folder.names[new] = node
            case "link" | "linkat" if node is not None:
                new_folder, new = self._locate(call.other)
                new_folder.names[new] = node
            case "unlink" | "unlinkat" | "rmdir":
                folder.names.pop(name, None)

    def _locate(self, path: str) -> tuple[Folder, str]:
        *above, name = path[len(self._top) :].strip("/").split("/")
        folder = self._root
        for step in above:
            child = folder.names.get(step)
            if not isinstance(child, Folder):
                child = folder.names[step] = Folder()
            folder = child
        return folder, name

    def write_surviving_files(self, target: Path, *, all_names: bool) -> None:
        """Writes what is left after a power cut now. ``all_names``: names survive without a sync, bytes do
        not."""
        self._write(self._root, target, all_names)

    def _write(self, folder: Folder, target: Path, all_names: bool) -> None:
        target.mkdir(parents=True)
        for name, node in (folder.names if all_names else folder.synced).items():
            if isinstance(node, File):
                (target / name).write_bytes(node.synced)
            else:
                self._write(node, target / name, all_names)
