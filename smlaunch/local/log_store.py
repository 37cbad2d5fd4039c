"""The log store behind CloudWatch Logs: one plain file per stream, appended to, readable by a person.

    <root>/<group>/<stream>.log        names percent-encoded; long ones are cut and end in a hash

The first line of a file is a JSON object naming group, stream and the time it was made. Every other line is
one event: timestamp, ingestion time (both in milliseconds since the epoch) and message, parted by tabs, with
backslash, newline and carriage return in the message written as ``\\\\``, ``\\n`` and ``\\r``. A batch is one
``write`` with O_APPEND: what was appended is in the kernel at once and survives a ``kill -9`` of the server,
and several processes may append. Positions are byte offsets, so a reader that follows a stream pays only for
what is new.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from smlaunch.local.errors import ApiError
from smlaunch.local.log_writer import LogWriter

_NAME_LIMIT = 160
_BLOCK = 1 << 16
_ESCAPED = re.compile(r"[\\\n\r]")
_WRITTEN = re.compile(r"\\[\\nr]")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {written: meant for meant, written in _ESCAPES.items()}
_GROUP_FILE = "group.json"


class LogEvent(NamedTuple):
    """Times in milliseconds since the epoch; the event is the bytes from ``start`` to ``end`` of its file."""

    timestamp: int
    ingestion: int
    message: str
    start: int
    end: int


class StreamInfo(NamedTuple):
    """``first`` and ``last`` are timestamps of events, None in an empty stream; ``size`` is in bytes."""

    group: str
    name: str
    created: int
    first: int | None
    last: int | None
    last_ingestion: int | None
    size: int


class NoSuchLog(ApiError, KeyError):
    def __init__(self, what: str) -> None:
        super().__init__("ResourceNotFoundException", f"The specified {what} does not exist.")


class LogStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    # Writing

    def create_group(self, group: str) -> bool:
        """False when it was there already."""
        folder = self._folder(group)
        folder.mkdir(exist_ok=True)
        return _create(folder / _GROUP_FILE, {"group": group, "created": _now()})

    def create_stream(self, group: str, stream: str) -> bool:
        """False when it was there already. The group must exist."""
        self._need_group(group)
        return _create(self._file(group, stream), {"group": group, "stream": stream, "created": _now()})

    def append(self, group: str, stream: str, events: Sequence[tuple[int, str]]) -> None:
        """Events are (milliseconds since the epoch, message); group and stream are made when missing."""
        if not events:
            return
        descriptor = self._open(group, stream)
        try:
            size = os.fstat(descriptor).st_size
            data = encode(events)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a writer was killed in the middle of its line
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def writer(self, group: str, stream: str) -> LogWriter:
        """For one who has much to say, and nowhere else to put it."""
        return LogWriter(stream, partial(self._open, group, stream), encode)

    def delete_group(self, group: str) -> None:
        folder = self._need_group(group)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()

    def delete_stream(self, group: str, stream: str) -> None:
        self._need_stream(group, stream).unlink(missing_ok=True)

    def _open(self, group: str, stream: str) -> int:
        """To append to; group and stream are made when missing."""
        path, flags = self._file(group, stream), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            self.create_group(group)
            self.create_stream(group, stream)
            return os.open(path, flags)

    # Reading

    def groups(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """(name, created) of each group, by name."""
        found = []
        for path in self.root.glob(f"*/{_GROUP_FILE}"):
            with suppress(FileNotFoundError):
                header = _header(path.read_bytes(), path.parent, "group")
                found.append((str(header["group"]), int(header["created"])))
        yield from sorted(entry for entry in found if entry[0].startswith(prefix))

    def group_size(self, group: str) -> int:
        """Bytes of all its streams."""
        total = 0
        for path in self._need_group(group).glob("*.log"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def streams(self, group: str, prefix: str = "") -> Iterator[StreamInfo]:
        """The group's streams, by name."""
        found = []
        for path in self._need_group(group).glob("*.log"):
            # Cheap first: a file's name, unless it was cut, tells whether its stream can match.
            if len(path.stem) > _NAME_LIMIT or path.stem.startswith(_file_name(prefix)):
                with suppress(FileNotFoundError):
                    info = _describe(path)
                    if info.name.startswith(prefix):
                        found.append(info)
        yield from sorted(found, key=lambda info: info.name)

    def size(self, group: str, stream: str) -> int:
        """The stream's end as an offset, in bytes."""
        return self._need_stream(group, stream).stat().st_size

    def read(self, group: str, stream: str, offset: int = 0) -> Iterator[LogEvent]:
        """Events from a byte offset on, oldest first, up to the last complete line."""
        path = self._need_stream(group, stream)
        with path.open("rb") as file:
            file.seek(offset)
            for line in file:
                event = _event(line, offset)
                offset += len(line)
                if event is not None:
                    yield event

    def read_back(self, group: str, stream: str, offset: int) -> Iterator[LogEvent]:
        """Events that end at or before a byte offset, newest first."""
        path = self._need_stream(group, stream)
        with path.open("rb") as file:
            tail = b""
            while offset > 0:
                begin = max(0, offset - _BLOCK)
                file.seek(begin)
                data = file.read(offset - begin) + tail
                # What stands before the first newline may belong to a line that begins in an earlier block.
                cut = (data.find(b"\n") + 1 or len(data)) if begin > 0 else 0
                tail, lines = data[:cut], data[cut:].splitlines(keepends=True)
                end = begin + len(data)
                for line in reversed(lines):
                    end -= len(line)
                    event = _event(line, end)
                    if event is not None:
                        yield event
                offset = begin

    # Names

    def _folder(self, group: str) -> Path:
        return self.root / _file_name(group)

    def _file(self, group: str, stream: str) -> Path:
        return self._folder(group) / f"{_file_name(stream)}.log"

    def _need_group(self, group: str) -> Path:
        folder = self._folder(group)
        if not (folder / _GROUP_FILE).exists():
            raise NoSuchLog("log group")
        return folder

    def _need_stream(self, group: str, stream: str) -> Path:
        path = self._file(group, stream)
        if not path.exists():
            self._need_group(group)
            raise NoSuchLog("log stream")
        return path


def encode(events: Sequence[tuple[int, str]]) -> bytes:
    """As they stand in a file. They arrive now."""
    arrived = f"\t{_now()}\t"
    text = "".join([f"{timestamp}{arrived}{_escape(message)}\n" for timestamp, message in events])
    return text.encode("utf-8", "backslashreplace")


def _create(path: Path, header: dict[str, str | int]) -> bool:
    """Publishes a file with its header line complete; False when the name is taken."""
    if path.exists():
        return False
    temporary = path.with_name(f"{secrets.token_hex(8)}.new")
    temporary.write_text(json.dumps(header) + "\n")
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _describe(path: Path) -> StreamInfo:
    with path.open("rb") as file:
        line = file.readline()
        header = _header(line, path.with_suffix(""), "stream")
        first = next(filter(None, (_event(line, 0) for line in file)), None)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _BLOCK))
        events = (_event(line, 0) for line in reversed(file.read().splitlines(keepends=True)))
        last = next(filter(None, events), first)
    return StreamInfo(
        group=header.get("group", unquote(path.parent.name)),
        name=header["stream"],
        created=header["created"],
        first=first.timestamp if first else None,
        last=last.timestamp if last else None,
        last_ingestion=last.ingestion if last else None,
        size=size,
    )


def _header(line: bytes, path: Path, name: str) -> dict[str, Any]:
    """What the first line says. One that is damaged loses the time, and a long name's end: the rest is in the
    file's own name."""
    with suppress(ValueError):
        header = json.loads(line)
        if (
            isinstance(header, dict)
            and isinstance(header.get(name), str)
            and isinstance(header["created"], int)
        ):
            return header
    return {name: unquote(path.name), "created": int(path.parent.stat().st_mtime * 1000)}


def _event(line: bytes, start: int) -> LogEvent | None:
    """None for the header and for a line that is not, or not yet, whole."""
    timestamp, _, rest = line.partition(b"\t")
    ingestion, mark, message = rest.partition(b"\t")
    if not (mark and line.endswith(b"\n") and timestamp.isdigit() and ingestion.isdigit()):
        return None
    text = message[:-1].decode("utf-8", "replace")
    return LogEvent(int(timestamp), int(ingestion), _unescape(text), start, start + len(line))


def _escape(message: str) -> str:
    if "\n" in message or "\\" in message or "\r" in message:
        return _ESCAPED.sub(lambda found: _ESCAPES[found.group()], message)
    return message


def _unescape(text: str) -> str:
    if "\\" in text:
        return _WRITTEN.sub(lambda found: _UNESCAPES[found.group()], text)
    return text


def _file_name(name: str) -> str:
    """A name as one path component: never hidden, never ``..``, never too long for a disk."""
    quoted = quote(name, safe="#")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > _NAME_LIMIT:
        quoted = f"{quoted[:_NAME_LIMIT]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted


def _now() -> int:
    return time.time_ns() // 1_000_000
