"""HTTP requests, responses and bodies, shared by all protocols of the endpoint."""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote_plus

from smlaunch.local.front.api_errors import ApiError

BLOCK_BYTES = 1 << 20
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class Request:
    """An HTTP request.

    ``target``: path and query, not decoded. ``headers``: names in lower case, repeated ones joined by commas.
    ``stream``: the body without transfer encoding; the first read sends 100 Continue to a client that waits
    for it. ``on_verified``: called when the signature is verified; it lifts the time limit for that.
    """

    def __init__(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        stream: io.BufferedIOBase,
        on_verified: Callable[[], None] = lambda: None,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.stream = stream
        self.on_verified = on_verified

    @property
    def content_length(self) -> int | None:
        """Length of the body in bytes; None with transfer encoding, where it is not known before the end."""
        if "transfer-encoding" in self.headers:
            return None
        text = self.headers.get("content-length", "0")
        return int(text) if text.isdigit() else 0

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def named_operation(self) -> str:
        """The operation of an API call whose header (JSON protocol) or path (CBOR) names it, otherwise
        empty."""
        in_header = self.headers.get("x-amz-target", "").rpartition(".")[2]
        return in_header or (self.path.rpartition("/")[2] if "/operation/" in self.path else "")

    @cached_property
    def raw_query(self) -> list[tuple[str, str]]:
        """Names and values, percent-encoded as received; ``?uploads`` has an empty value."""
        text = self.target.partition("?")[2]
        return [
            (name, value)
            for name, _, value in (parameter.partition("=") for parameter in text.split("&") if parameter)
        ]

    @cached_property
    def query(self) -> dict[str, str]:
        return {unquote_plus(name): unquote_plus(value) for name, value in self.raw_query}


class FileRange(NamedTuple):
    """``length`` bytes of an open file from offset ``start``. The sender closes the file."""

    file: BinaryIO
    start: int
    """Offset of the first byte in the file."""
    length: int


class Response:
    def __init__(
        self, status: int = 200, headers: dict[str, str] | None = None, body: bytes | FileRange = b""
    ) -> None:
        self.status = status
        self.headers = {} if headers is None else headers
        self.body = body


class Payload:
    """The decoded bytes of a body, checked against the signed hash.

    ``sha256``: the signed hash of the body; None if it is not signed, or if every chunk is. The hash is
    checked at the end, so the bytes must not be published before the iteration is over. ``trailers`` are
    complete by then. ``max_bytes``: upper bound of the length, if known.
    """

    def __init__(
        self,
        stream: io.BufferedIOBase,
        sha256: str | None = None,
        trailers: dict[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.stream = stream
        self._block_bytes = min(BLOCK_BYTES, max_bytes + 1) if max_bytes is not None else BLOCK_BYTES
        self.sha256 = sha256
        self.trailers = {} if trailers is None else trailers

    def iterate_blocks(self) -> Iterator[memoryview]:
        """Yield a request's body in blocks; each is valid until the next one, which overwrites it. Raises
        ApiError at the end for a body that does not match its signed SHA-256."""
        expected_sha256 = self.sha256  # None: the signature does not cover the body
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(self._block_bytes))
        while read_count := self.stream.readinto(buffer):
            block = buffer[:read_count]
            if expected_sha256 is not None:
                digest.update(block)
            yield block
        if expected_sha256 is not None and not hmac.compare_digest(digest.hexdigest(), expected_sha256):
            message = "The provided 'x-amz-content-sha256' header does not match what was computed."
            raise ApiError("XAmzContentSHA256Mismatch", message)

    def read_all(self, max_bytes: int) -> bytes:
        """Return the complete body. Raises ApiError when it is longer than ``max_bytes``."""
        blocks: list[bytes] = []
        total_bytes = 0
        for block in self.iterate_blocks():
            total_bytes += len(block)
            if total_bytes > max_bytes:
                raise ApiError("RequestEntityTooLarge", f"The body is longer than {max_bytes} bytes", 413)
            blocks.append(bytes(block))
        return b"".join(blocks)


class BufferedPayload(Payload):
    """A body that has already been read and verified."""

    def __init__(self, body: bytes) -> None:
        super().__init__(io.BytesIO(body))
        self._body = body

    def read_all(self, max_bytes: int) -> bytes:
        return self._body if len(self._body) <= max_bytes else super().read_all(max_bytes)


class FixedLengthBody(io.RawIOBase):
    """A body of ``length`` bytes; reads no byte beyond it from the connection."""

    def __init__(
        self, connection_stream: io.BufferedIOBase, length: int, on_first_read: Callable[[], None]
    ) -> None:
        self._connection_stream = connection_stream
        self._on_first_read: Callable[[], None] | None = on_first_read
        self.remaining_bytes = length

    @property
    def is_at_end(self) -> bool:
        """Whether the whole body has been read."""
        return self.remaining_bytes == 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read bytes of a request's body, whose length its header states, into ``buffer``; return their
        number, 0 at the end. Raises ApiError when the connection ends before that."""
        if self._on_first_read is not None:
            self._on_first_read()  # sends 100 Continue if the client waits for it
            self._on_first_read = None
        if self.is_at_end:
            return 0
        read_count = self._connection_stream.readinto1(memoryview(buffer)[: self.remaining_bytes])
        if read_count == 0:
            raise ApiError("IncompleteBody", "The body ended before the length that its header states")
        self.remaining_bytes -= read_count
        return read_count


class ChunkedBody(io.RawIOBase):
    """A body with HTTP/1.1 ``Transfer-Encoding: chunked``. Its length is not known before its end
    (``remaining_bytes`` None)."""

    def __init__(self, connection_stream: io.BufferedIOBase, on_first_read: Callable[[], None]) -> None:
        self._connection_stream = connection_stream
        self._on_first_read: Callable[[], None] | None = on_first_read
        self._chunk_remaining_bytes = 0
        self.remaining_bytes: int | None = None
        self.is_at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read bytes of a request's body with ``Transfer-Encoding: chunked`` into ``buffer``, at most to the
        end of a chunk; return their number, 0 at the end. Raises ApiError for malformed chunks."""
        if self._on_first_read is not None:
            self._on_first_read()  # sends 100 Continue if the client waits for it
            self._on_first_read = None
        if not self.is_at_end and self._chunk_remaining_bytes == 0:
            self._read_chunk_header()
        if self.is_at_end:
            return 0
        read_count = self._connection_stream.readinto1(memoryview(buffer)[: self._chunk_remaining_bytes])
        if read_count == 0:
            raise ApiError("IncompleteBody", "The body ended in the middle of a chunk")
        self._chunk_remaining_bytes -= read_count
        if self._chunk_remaining_bytes == 0 and self._connection_stream.read(2) != b"\r\n":
            raise ApiError("IncompleteBody", "A chunk of the body is longer than it states")
        return read_count

    def _read_chunk_header(self) -> None:
        """Read the line with the size of the next chunk. Size 0 is the end of the body."""
        chunk_header = self._connection_stream.readline(256)
        self._chunk_remaining_bytes = parse_chunk_size(chunk_header.partition(b";")[0])
        if self._chunk_remaining_bytes == 0:
            while self._connection_stream.readline(4096).strip():
                pass  # trailers of the transfer encoding are not used
            self.is_at_end = True


def parse_chunk_size(text: bytes) -> int:
    """Parse the hexadecimal size at the beginning of a chunk. Raises ApiError."""
    digits = text.strip()
    if not digits or len(digits) > 16 or not all(byte in b"0123456789abcdefABCDEF" for byte in digits):
        raise ApiError("IncompleteBody", "A chunk of the body does not begin with its size")
    return int(digits, 16)
