"""Bodies that have to be read before the signature of their request can be verified.

Clients of JSON and query services sign the body's hash and do not send it, so the body is needed to check the
signature. Anybody who knows an access key can send such a request (every presigned URL contains the key), so
the memory for these bodies is limited, and requests beyond the limit wait.
"""

from __future__ import annotations

import hashlib
import mmap
import threading

from smlaunch.local.api_errors import ApiError
from smlaunch.local.http_messages import Request

MAX_BODY_BYTES = 64 << 20
_SMALL_BODY_BYTES = 1 << 20
_MEMORY_WAIT_SECONDS = 60.0


class _MemoryBudget:
    """A number of bytes that concurrent requests share."""

    def __init__(self, size_bytes: int) -> None:
        self._free_bytes = size_bytes
        self._released = threading.Condition()

    def reserve(self, size_bytes: int) -> None:
        """Wait until so many bytes are free, and take them. Raises ApiError after a minute."""
        with self._released:
            if not self._released.wait_for(lambda: self._free_bytes >= size_bytes, _MEMORY_WAIT_SECONDS):
                raise ApiError("ServiceUnavailable", "Too many large requests at a time: try again", 503)
            self._free_bytes -= size_bytes

    def release(self, size_bytes: int) -> None:
        with self._released:
            self._free_bytes += size_bytes
            self._released.notify_all()


_SMALL_BODIES, _LARGE_BODIES = _MemoryBudget(32 << 20), _MemoryBudget(MAX_BODY_BYTES)


class UnverifiedBody:
    """Context in which a request's signature is verified and its memory is reserved.

    ``content``: the body if ``sha256`` read it, available after a context without an exception.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._reserved_bytes = 0
        self._buffer: mmap.mmap | None = None
        self._length = 0
        self.content: bytes | None = None

    def sha256(self) -> str:
        """Read the body and return its SHA-256. Raises ApiError for a body that is too long, and when there
        is no memory for it."""
        content_length = self._request.content_length
        max_bytes = MAX_BODY_BYTES if content_length is None else content_length
        if max_bytes > MAX_BODY_BYTES:
            raise _body_too_long()
        _budget_for(max_bytes).reserve(max_bytes)
        self._reserved_bytes = max_bytes
        stream = self._request.stream
        if max_bytes <= _SMALL_BODY_BYTES:
            self.content = stream.read(max_bytes)
            return hashlib.sha256(self.content).hexdigest()
        # Mapped, because unmapped pages go back to the system; freed heap may stay with each thread.
        self._buffer = mmap.mmap(-1, max_bytes)
        with memoryview(self._buffer) as view:
            while self._length < max_bytes:
                with view[self._length :] as free_space:
                    read_bytes = stream.readinto(free_space)
                if not read_bytes:
                    break
                self._length += read_bytes
            if content_length is None and self._length == max_bytes and stream.read(1):
                raise _body_too_long()
            with view[: self._length] as body:
                return hashlib.sha256(body).hexdigest()

    def __enter__(self) -> UnverifiedBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Keep the body in ``content`` if the signature was verified, and give its memory back."""
        if kind is not None:
            self.content = None
        elif self._buffer is not None:
            self.content = self._buffer[: self._length]
        if self._buffer is not None:
            self._buffer.close()
        _budget_for(self._reserved_bytes).release(self._reserved_bytes)


def _budget_for(size_bytes: int) -> _MemoryBudget:
    return _SMALL_BODIES if size_bytes <= _SMALL_BODY_BYTES else _LARGE_BODIES


def _body_too_long() -> ApiError:
    return ApiError("RequestEntityTooLarge", f"The body is longer than {MAX_BODY_BYTES} bytes", 413)
