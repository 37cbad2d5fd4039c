"""Bodies that have to be read before the signature of their request can be verified.

Clients of JSON and query services sign the body's hash and do not send it, so the body is needed to check the
signature. Anybody who knows an access key can send such a request (every presigned URL contains the key), so
the memory for these bodies is limited, and requests beyond the limit wait.
"""

from __future__ import annotations

import hashlib
import mmap
import threading

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Request

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
        self._mapped_body: mmap.mmap | None = None
        self._mapped_body_bytes = 0
        self.content: bytes | None = None

    def read_and_hash(self) -> str:
        """Read a request's body into memory and return its SHA-256 in hex. Anybody can send such a body
        before its signature is verified, so the memory for all of them is limited. Raises ApiError for a body
        over 64 MiB, and when no memory for it becomes free within a minute."""
        content_length = self._request.content_length  # None: chunked, so the length is not known
        max_bytes = MAX_BODY_BYTES if content_length is None else content_length
        if max_bytes > MAX_BODY_BYTES:
            raise _body_too_long_error()
        # Small and large bodies have separate limits, so that large ones do not keep small ones waiting.
        _memory_budget_for(max_bytes).reserve(max_bytes)  # waits; __exit__ gives it back
        self._reserved_bytes = max_bytes
        body_stream = self._request.stream
        if max_bytes <= _SMALL_BODY_BYTES:  # 1 MiB
            self.content = body_stream.read(max_bytes)
            return hashlib.sha256(self.content).hexdigest()
        # Mapped, because unmapped pages go back to the system; freed heap may stay with each thread.
        self._mapped_body = mmap.mmap(-1, max_bytes)
        with memoryview(self._mapped_body) as buffer_view:
            while self._mapped_body_bytes < max_bytes:
                with buffer_view[self._mapped_body_bytes :] as free_space:
                    read_count = body_stream.readinto(free_space)
                if not read_count:
                    break
                self._mapped_body_bytes += read_count
            # Without a Content-Length only one more byte shows that the body is too long.
            if content_length is None and self._mapped_body_bytes == max_bytes and body_stream.read(1):
                raise _body_too_long_error()
            with buffer_view[: self._mapped_body_bytes] as body_view:
                return hashlib.sha256(body_view).hexdigest()

    def __enter__(self) -> UnverifiedBody:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        """Keep the request's body in ``content`` if the context has verified the signature, that is, raised
        nothing, and give the memory back that was reserved for it."""
        is_verified = exception_type is None
        if not is_verified:
            self.content = None
        elif self._mapped_body is not None:  # a large body; a small one is in ``content`` already
            self.content = self._mapped_body[: self._mapped_body_bytes]
        if self._mapped_body is not None:
            self._mapped_body.close()
        _memory_budget_for(self._reserved_bytes).release(self._reserved_bytes)


def _memory_budget_for(size_bytes: int) -> _MemoryBudget:
    return _SMALL_BODIES if size_bytes <= _SMALL_BODY_BYTES else _LARGE_BODIES


def _body_too_long_error() -> ApiError:
    return ApiError("RequestEntityTooLarge", f"The body is longer than {MAX_BODY_BYTES} bytes", 413)
