"""The log store behind CloudWatch Logs: one plain text file for each stream.

    <root>/<group>/<stream>.log        names percent-encoded; long ones are cut and end in a hash

The first line of a file is a JSON object with group, stream and the time of creation. Every other line is one
event: timestamp, ingestion time (both in milliseconds since the epoch) and message, separated by tabs, with
backslash, newline and carriage return in the message written as ``\\\\``, ``\\n`` and ``\\r``. A batch is one
``write`` with O_APPEND: it is in the kernel at once and survives ``kill -9`` of the endpoint, and several
processes may append. Positions are byte offsets, so a reader that follows a stream reads only new bytes.
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

from smlaunch.local.api_errors import ApiError
from smlaunch.local.log_writer import LogWriter

_MAX_NAME_BYTES = 160
_BLOCK_BYTES = 1 << 16
_ESCAPED = re.compile(r"[\\\n\r]")
_WRITTEN = re.compile(r"\\[\\nr]")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {written: meant for meant, written in _ESCAPES.items()}
_GROUP_FILE = "group.json"


class StoredLogEvent(NamedTuple):
    """An event. Times are in milliseconds since the epoch; ``start`` and ``end`` are byte offsets."""

    timestamp: int
    ingestion_time: int
    message: str
    start: int
    end: int


class StreamInfo(NamedTuple):
    """A stream. Times are in milliseconds since the epoch, those of events None in an empty stream."""

    group: str
    name: str
    created: int
    first_timestamp: int | None
    last_timestamp: int | None
    last_ingestion: int | None
    size_bytes: int


class NoSuchLog(ApiError, KeyError):
    def __init__(self, resource: str) -> None:
        super().__init__("ResourceNotFoundException", f"The specified {resource} does not exist.")


class LogStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    # Writing

    def create_group(self, group: str) -> bool:
        """Create a group. Returns False when it exists already."""
        folder = self._folder(group)
        folder.mkdir(exist_ok=True)
        return _create_file(folder / _GROUP_FILE, {"group": group, "created": _now_ms()})

    def create_stream(self, group: str, stream: str) -> bool:
        """Create a stream in an existing group. Returns False when it exists already."""
        self._require_group(group)
        return _create_file(
            self._file(group, stream), {"group": group, "stream": stream, "created": _now_ms()}
        )

    def append(self, group: str, stream: str, events: Sequence[tuple[int, str]]) -> None:
        """Append events, given as (milliseconds since the epoch, message). Creates group and stream."""
        if not events:
            return
        descriptor = self._open(group, stream)
        try:
            size = os.fstat(descriptor).st_size
            data = encode_events(events)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a writer was killed in the middle of its line
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def open_writer(self, group: str, stream: str) -> LogWriter:
        """Return a writer that keeps the file open and buffers lines that cannot be written."""
        return LogWriter(stream, partial(self._open, group, stream), encode_events)

    def delete_group(self, group: str) -> None:
        folder = self._require_group(group)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()

    def delete_stream(self, group: str, stream: str) -> None:
        self._require_stream(group, stream).unlink(missing_ok=True)

    def _open(self, group: str, stream: str) -> int:
        """Open a stream's file for appending. Creates group and stream."""
        path, flags = self._file(group, stream), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            self.create_group(group)
            self.create_stream(group, stream)
            return os.open(path, flags)

    # Reading

    def groups(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield (name, creation time) of each group, sorted by name."""
        groups = []
        for path in self.root.glob(f"*/{_GROUP_FILE}"):
            with suppress(FileNotFoundError):
                header = _parse_header(path.read_bytes(), path.parent, "group")
                groups.append((str(header["group"]), int(header["created"])))
        yield from sorted(entry for entry in groups if entry[0].startswith(prefix))

    def group_size(self, group: str) -> int:
        """Return the total size of a group's streams in bytes."""
        total = 0
        for path in self._require_group(group).glob("*.log"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def streams(self, group: str, prefix: str = "") -> Iterator[StreamInfo]:
        """Yield the group's streams, sorted by name."""
        streams = []
        for path in self._require_group(group).glob("*.log"):
            # The file's name shows whether its stream can match, unless the name was cut.
            if len(path.stem) > _MAX_NAME_BYTES or path.stem.startswith(_file_name(prefix)):
                with suppress(FileNotFoundError):
                    info = _stream_info(path)
                    if info.name.startswith(prefix):
                        streams.append(info)
        yield from sorted(streams, key=lambda info: info.name)

    def end_offset(self, group: str, stream: str) -> int:
        """Return the byte offset of the stream's end."""
        return self._require_stream(group, stream).stat().st_size

    def read(self, group: str, stream: str, offset: int = 0) -> Iterator[StoredLogEvent]:
        """Yield events from a byte offset on, oldest first, up to the last complete line."""
        path = self._require_stream(group, stream)
        with path.open("rb") as file:
            file.seek(offset)
            for line in file:
                event = _parse_event(line, offset)
                offset += len(line)
                if event is not None:
                    yield event

    def read_backward(self, group: str, stream: str, offset: int) -> Iterator[StoredLogEvent]:
        """Yield events that end at or before a byte offset, newest first."""
        path = self._require_stream(group, stream)
        with path.open("rb") as file:
            tail = b""
            while offset > 0:
                block_start = max(0, offset - _BLOCK_BYTES)
                file.seek(block_start)
                data = file.read(offset - block_start) + tail
                # Bytes before the first newline may belong to a line that begins in an earlier block.
                first_line_start = (data.find(b"\n") + 1 or len(data)) if block_start > 0 else 0
                tail, lines = data[:first_line_start], data[first_line_start:].splitlines(keepends=True)
                end = block_start + len(data)
                for line in reversed(lines):
                    end -= len(line)
                    event = _parse_event(line, end)
                    if event is not None:
                        yield event
                offset = block_start

    # Names

    def _folder(self, group: str) -> Path:
        return self.root / _file_name(group)

    def _file(self, group: str, stream: str) -> Path:
        return self._folder(group) / f"{_file_name(stream)}.log"

    def _require_group(self, group: str) -> Path:
        folder = self._folder(group)
        if not (folder / _GROUP_FILE).exists():
            raise NoSuchLog("log group")
        return folder

    def _require_stream(self, group: str, stream: str) -> Path:
        path = self._file(group, stream)
        if not path.exists():
            self._require_group(group)
            raise NoSuchLog("log stream")
        return path


def encode_events(events: Sequence[tuple[int, str]]) -> bytes:
    """Encode events as lines, with the current time as ingestion time."""
    ingestion_column = f"\t{_now_ms()}\t"
    text = "".join([f"{timestamp}{ingestion_column}{_escape(message)}\n" for timestamp, message in events])
    return text.encode("utf-8", "backslashreplace")


def _create_file(path: Path, header: dict[str, str | int]) -> bool:
    """Create a file atomically with its header line. Returns False when it exists already."""
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


def _stream_info(path: Path) -> StreamInfo:
    """Return a log stream's name and times, from the header, the first and the last event of its file."""
    with path.open("rb") as file:
        line = file.readline()
        header = _parse_header(line, path.with_suffix(""), "stream")
        first = next(filter(None, (_parse_event(line, 0) for line in file)), None)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _BLOCK_BYTES))
        events = (_parse_event(line, 0) for line in reversed(file.read().splitlines(keepends=True)))
        last = next(filter(None, events), first)
    return StreamInfo(
        group=header.get("group", unquote(path.parent.name)),
        name=header["stream"],
        created=header["created"],
        first_timestamp=first.timestamp if first else None,
        last_timestamp=last.timestamp if last else None,
        last_ingestion=last.ingestion_time if last else None,
        size_bytes=size,
    )


def _parse_header(line: bytes, path: Path, name: str) -> dict[str, Any]:
    """Parse a file's first line. For a damaged one, name and time come from the file's name and folder; the
    cut part of a long name is lost."""
    with suppress(ValueError):
        header = json.loads(line)
        if (
            isinstance(header, dict)
            and isinstance(header.get(name), str)
            and isinstance(header["created"], int)
        ):
            return header
    return {name: unquote(path.name), "created": int(path.parent.stat().st_mtime * 1000)}


def _parse_event(line: bytes, start: int) -> StoredLogEvent | None:
    """Parse a line. Returns None for the header and for an incomplete line."""
    timestamp, _, after_timestamp = line.partition(b"\t")
    ingestion, separator, message = after_timestamp.partition(b"\t")
    if not (separator and line.endswith(b"\n") and timestamp.isdigit() and ingestion.isdigit()):
        return None
    text = message[:-1].decode("utf-8", "replace")
    return StoredLogEvent(int(timestamp), int(ingestion), _unescape(text), start, start + len(line))


def _escape(message: str) -> str:
    if "\n" in message or "\\" in message or "\r" in message:
        return _ESCAPED.sub(lambda match: _ESCAPES[match.group()], message)
    return message


def _unescape(text: str) -> str:
    if "\\" in text:
        return _WRITTEN.sub(lambda match: _UNESCAPES[match.group()], text)
    return text


def _file_name(name: str) -> str:
    """Encode a name as a path component: not hidden, not ``..``, not too long."""
    quoted = quote(name, safe="#")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > _MAX_NAME_BYTES:
        quoted = f"{quoted[:_MAX_NAME_BYTES]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
