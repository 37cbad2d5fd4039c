"""A request as it came in, its body as a stream, and the answer to it: what all protocols here share."""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote_plus

from smlaunch.local.errors import ApiError

BLOCK = 1 << 20
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class Request:
    """``target``: path and query, undecoded. ``headers``: names in small letters, repeated ones joined.

    ``stream`` is the body, freed from transfer encoding. Reading it is what tells a waiting client to go on.
    ``accept`` is called as soon as the signature was found good: until then the client has little time.
    """

    def __init__(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        stream: io.BufferedIOBase,
        accept: Callable[[], None] = lambda: None,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.stream = stream
        self.accept = accept

    @property
    def length(self) -> int | None:
        """The body's, in bytes; None when it shows only at its end."""
        if "transfer-encoding" in self.headers:
            return None
        text = self.headers.get("content-length", "0")
        return int(text) if text.isdigit() else 0

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @cached_property
    def raw_query(self) -> list[tuple[str, str]]:
        """Names and values still percent-encoded; ``?uploads`` has an empty value."""
        text = self.target.partition("?")[2]
        return [(name, value) for name, _, value in (word.partition("=") for word in text.split("&") if word)]

    @cached_property
    def query(self) -> dict[str, str]:
        return {unquote_plus(name): unquote_plus(value) for name, value in self.raw_query}


class FileRange(NamedTuple):
    """``length`` bytes of an open file from ``start`` on; closed by whoever sends it."""

    file: BinaryIO
    start: int
    length: int


class Response:
    def __init__(
        self, status: int = 200, headers: dict[str, str] | None = None, body: bytes | FileRange = b""
    ) -> None:
        self.status = status
        self.headers = {} if headers is None else headers
        self.body = body


class Payload:
    """A body's bytes as the client meant them, checked against what it signed.

    ``sha256`` is what the client signed for the whole body; None where it signed none, or every chunk on its
    own. The check comes at the end, so what has been read must not be published before the iteration is over.
    ``trailers`` are filled by then. ``length``: how many bytes there are at most, where that is known.
    """

    def __init__(
        self,
        stream: io.BufferedIOBase,
        sha256: str | None = None,
        trailers: dict[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        self.stream = stream
        self._block = min(BLOCK, length + 1) if length is not None else BLOCK
        self.sha256 = sha256
        self.trailers = {} if trailers is None else trailers

    def blocks(self) -> Iterator[memoryview]:
        """Each block is valid until the next is asked for. Raises ApiError for a body that was altered."""
        digest = hashlib.sha256() if self.sha256 is not None else None
        buffer = memoryview(bytearray(self._block))
        while size := self.stream.readinto(buffer):
            block = buffer[:size]
            if digest is not None:
                digest.update(block)
            yield block
        if digest is not None and not hmac.compare_digest(digest.hexdigest(), self.sha256 or ""):
            message = "The provided 'x-amz-content-sha256' header does not match what was computed."
            raise ApiError("XAmzContentSHA256Mismatch", message)

    def read(self, limit: int) -> bytes:
        """All of it. Raises ApiError when it is longer than ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        for block in self.blocks():
            size += len(block)
            if size > limit:
                raise ApiError("RequestEntityTooLarge", f"The body is longer than {limit} bytes", 413)
            parts.append(bytes(block))
        return b"".join(parts)


class Held(Payload):
    """A body that has been read already, and found to be what was signed."""

    def __init__(self, body: bytes) -> None:
        super().__init__(io.BytesIO(body))
        self._body = body

    def read(self, limit: int) -> bytes:
        return self._body if len(self._body) <= limit else super().read(limit)


class PlainBody(io.RawIOBase):
    """``length`` bytes from a connection, and not one more."""

    def __init__(self, source: io.BufferedIOBase, length: int, begin: Callable[[], None]) -> None:
        self._source = source
        self._begin: Callable[[], None] | None = begin
        self.left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._begin is not None:
            self._begin()
            self._begin = None
        if self.left == 0:
            return 0
        size = self._source.readinto1(memoryview(buffer)[: self.left])
        if size == 0:
            raise ApiError("IncompleteBody", "The body ended before the length that its header states")
        self.left -= size
        return size


class ChunkedBody(io.RawIOBase):
    """HTTP/1.1 ``Transfer-Encoding: chunked``; ``left`` is 0 when its end has been read."""

    def __init__(self, source: io.BufferedIOBase, begin: Callable[[], None]) -> None:
        self._source = source
        self._begin: Callable[[], None] | None = begin
        self._chunk = 0
        self.left = 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._begin is not None:
            self._begin()
            self._begin = None
        if self.left and self._chunk == 0:
            self._chunk = chunk_size(self._source.readline(256).partition(b";")[0])
            if self._chunk == 0:
                while self._source.readline(4096).strip():
                    pass  # trailers of the transfer; nothing here uses them
                self.left = 0
        if not self.left:
            return 0
        size = self._source.readinto1(memoryview(buffer)[: self._chunk])
        if size == 0:
            raise ApiError("IncompleteBody", "The body ended in the middle of a chunk")
        self._chunk -= size
        if self._chunk == 0 and self._source.read(2) != b"\r\n":
            raise ApiError("IncompleteBody", "A chunk of the body is longer than it states")
        return size


def chunk_size(text: bytes) -> int:
    digits = text.strip()
    if not digits or len(digits) > 16 or not all(byte in b"0123456789abcdefABCDEF" for byte in digits):
        raise ApiError("IncompleteBody", "A chunk of the body does not begin with its size")
    return int(digits, 16)
