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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.stores.log_writer import LogWriter

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
    """Milliseconds since the epoch. The client states it."""
    ingestion_time: int
    """Milliseconds since the epoch."""
    message: str
    start: int
    """Offset of its line in the stream's file, in bytes."""
    end: int
    """Offset after its line, in bytes."""


class StreamInfo(NamedTuple):
    """A stream. Times are in milliseconds since the epoch, those of events None in an empty stream."""

    group: str
    name: str
    created: int
    """Milliseconds since the epoch."""
    first_timestamp: int | None
    """Milliseconds since the epoch; None without events."""
    last_timestamp: int | None
    """Milliseconds since the epoch; None without events."""
    last_ingestion: int | None
    """Milliseconds since the epoch; None without events."""
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
        folder = self._group_folder(group)
        folder.mkdir(exist_ok=True)
        return _create_file(folder / _GROUP_FILE, {"group": group, "created": _now_ms()})

    def create_stream(self, group: str, stream: str) -> bool:
        """Create a stream in an existing group. Returns False when it exists already."""
        self._require_group_folder(group)
        return _create_file(
            self._stream_path(group, stream), {"group": group, "stream": stream, "created": _now_ms()}
        )

    def append_events(self, group: str, stream: str, events: Sequence[tuple[int, str]]) -> None:
        """Append events to a log stream, given as (milliseconds since the epoch, message). Creates log group
        and stream if they are missing."""
        if not events:
            return
        stream_fd = self._open_stream_for_append(group, stream)
        try:
            encoded_events = encode_events(events)  # one line each
            file_size_bytes = os.fstat(stream_fd).st_size
            has_incomplete_line = file_size_bytes > 0 and os.pread(stream_fd, 1, file_size_bytes - 1) != b"\n"
            if has_incomplete_line:  # a writer was killed in the middle of its line
                encoded_events = b"\n" + encoded_events
            unwritten = memoryview(encoded_events)
            while unwritten:
                unwritten = unwritten[os.write(stream_fd, unwritten) :]
        finally:
            os.close(stream_fd)

    def open_writer(self, group: str, stream: str) -> LogWriter:
        """Return a writer that keeps the file open and buffers lines that cannot be written."""
        return LogWriter(stream, partial(self._open_stream_for_append, group, stream), encode_events)

    def delete_group(self, group: str) -> None:
        folder = self._require_group_folder(group)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()

    def delete_stream(self, group: str, stream: str) -> None:
        self._require_stream_path(group, stream).unlink(missing_ok=True)

    def _open_stream_for_append(self, group: str, stream: str) -> int:
        """Open a stream's file for appending. Creates group and stream."""
        path, flags = self._stream_path(group, stream), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            self.create_group(group)
            self.create_stream(group, stream)
            return os.open(path, flags)

    # Reading

    def list_groups(self, name_prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield (name, creation time) of each group, sorted by name."""
        groups = []
        for path in self.root.glob(f"*/{_GROUP_FILE}"):
            with suppress(FileNotFoundError):
                header = _parse_header_line(path.read_bytes(), path.parent, "group")
                groups.append((str(header["group"]), int(header["created"])))
        yield from sorted(entry for entry in groups if entry[0].startswith(name_prefix))

    def group_size_bytes(self, group: str) -> int:
        """Return the total size of a group's streams in bytes."""
        total = 0
        for path in self._require_group_folder(group).glob("*.log"):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def list_streams(self, group: str, name_prefix: str = "") -> Iterator[StreamInfo]:
        """Yield the streams of a log group whose names begin with a prefix, sorted by name. Raises
        NoSuchLog."""
        stream_infos = []
        for stream_path in self._require_group_folder(group).glob("*.log"):
            # The file is named after its stream, so most others need not be read. Of a long name (more than
            # 160 bytes) the file's name has only the beginning and a hash.
            is_cut_name = len(stream_path.stem) > _MAX_NAME_BYTES
            # Characters that a file name cannot have are in it as %xx, so in the prefix too.
            if not is_cut_name and not stream_path.stem.startswith(_encode_as_file_name(name_prefix)):
                continue
            with suppress(FileNotFoundError):  # deleted meanwhile
                stream_info = _read_stream_info(stream_path)
                if stream_info.name.startswith(name_prefix):
                    stream_infos.append(stream_info)
        yield from sorted(stream_infos, key=lambda stream_info: stream_info.name)

    def stream_size_bytes(self, group: str, stream: str) -> int:
        """Return the byte offset of the stream's end."""
        return self._require_stream_path(group, stream).stat().st_size

    def read_events(self, group: str, stream: str, offset: int = 0) -> Iterator[StoredLogEvent]:
        """Yield events from a byte offset on, oldest first, up to the last complete line."""
        path = self._require_stream_path(group, stream)
        with path.open("rb") as file:
            file.seek(offset)
            for line in file:
                event = _parse_event_line(line, offset)
                offset += len(line)
                if event is not None:
                    yield event

    def read_events_backward(self, group: str, stream: str, end_offset: int) -> Iterator[StoredLogEvent]:
        """Yield the events of a log stream that end at or before a byte offset of its file, newest first."""
        stream_path = self._require_stream_path(group, stream)
        with stream_path.open("rb") as file:
            incomplete_line = b""  # its beginning is in an earlier block
            block_end = end_offset
            while block_end > 0:
                block_start = max(0, block_end - _BLOCK_BYTES)  # blocks of 64 KiB
                file.seek(block_start)
                block = file.read(block_end - block_start) + incomplete_line
                # Bytes before the first newline may belong to a line that begins in an earlier block.
                first_line_start = 0
                if block_start > 0:
                    first_line_start = block.find(b"\n") + 1 or len(block)  # without a newline, all bytes
                incomplete_line = block[:first_line_start]
                lines = block[first_line_start:].splitlines(keepends=True)
                line_start = block_start + len(block)  # end of the last line
                for line in reversed(lines):
                    line_start -= len(line)
                    event = _parse_event_line(line, start=line_start)
                    if event is not None:  # not the header or an incomplete line
                        yield event
                block_end = block_start

    # Names

    def _group_folder(self, group: str) -> Path:
        return self.root / _encode_as_file_name(group)

    def _stream_path(self, group: str, stream: str) -> Path:
        return self._group_folder(group) / f"{_encode_as_file_name(stream)}.log"

    def _require_group_folder(self, group: str) -> Path:
        folder = self._group_folder(group)
        if not (folder / _GROUP_FILE).exists():
            raise NoSuchLog("log group")
        return folder

    def _require_stream_path(self, group: str, stream: str) -> Path:
        path = self._stream_path(group, stream)
        if not path.exists():
            self._require_group_folder(group)
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


def _read_stream_info(stream_path: Path) -> StreamInfo:
    """Return a log stream's name, size and times (in milliseconds since the epoch), from the header, the
    first and the last event of its file. Only its beginning and its end are read."""
    with stream_path.open("rb") as file:
        # JSON with the group, the stream and its creation time; for a damaged header, the path has the names.
        header = _parse_header_line(file.readline(), stream_path.with_suffix(""), "stream")
        first_event = _first_valid_event(file)
        file_size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, file_size_bytes - _BLOCK_BYTES))  # the last 64 KiB
        lines_at_end = file.read().splitlines(keepends=True)  # the first one may be incomplete
        # None if one very long line fills the block: then the first event is the best guess.
        last_event = _first_valid_event(reversed(lines_at_end)) or first_event
    return StreamInfo(
        group=header.get("group", unquote(stream_path.parent.name)),
        name=header["stream"],
        created=header["created"],
        first_timestamp=first_event.timestamp if first_event else None,
        last_timestamp=last_event.timestamp if last_event else None,
        last_ingestion=last_event.ingestion_time if last_event else None,
        size_bytes=file_size_bytes,
    )


def _first_valid_event(lines: Iterable[bytes]) -> StoredLogEvent | None:
    """Return the first event of some lines, without its position; None if they have no complete event."""
    for line in lines:
        event = _parse_event_line(line, start=0)
        if event is not None:
            return event
    return None


def _parse_header_line(line: bytes, path: Path, name_field: str) -> dict[str, Any]:
    """Parse a file's first line: JSON with a name in ``name_field`` and the time ``created``. For a damaged
    one, the two come from the file's name and folder; the cut part of a long name is lost."""
    with suppress(ValueError):
        header = json.loads(line)
        has_name = isinstance(header, dict) and isinstance(header.get(name_field), str)
        if has_name and isinstance(header["created"], int):
            return dict(header)
    return {name_field: unquote(path.name), "created": int(path.parent.stat().st_mtime * 1000)}


def _parse_event_line(line: bytes, start: int) -> StoredLogEvent | None:
    """Parse a line of a log stream's file, ``TIME<tab>INGESTION TIME<tab>MESSAGE``, which begins at the byte
    offset ``start``. Returns None for the header and for an incomplete line."""
    timestamp, _, after_timestamp = line.partition(b"\t")
    ingestion, separator, message = after_timestamp.partition(b"\t")
    if not (separator and line.endswith(b"\n") and timestamp.isdigit() and ingestion.isdigit()):
        return None
    text = message[:-1].decode("utf-8", "replace")
    return StoredLogEvent(int(timestamp), int(ingestion), _unescape(text), start, start + len(line))


def _escape(message: str) -> str:
    """Return a message without line breaks, which end a line of the file; ``_unescape`` restores it."""
    if "\n" in message or "\\" in message or "\r" in message:
        return _ESCAPED.sub(lambda match: _ESCAPES[match.group()], message)
    return message


def _unescape(text: str) -> str:
    if "\\" in text:
        return _WRITTEN.sub(lambda match: _UNESCAPES[match.group()], text)
    return text


def _encode_as_file_name(name: str) -> str:
    """Encode a name as a path component: not hidden, not ``..``, not too long."""
    quoted = quote(name, safe="#")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) > _MAX_NAME_BYTES:
        quoted = f"{quoted[:_MAX_NAME_BYTES]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
