"""Bodies that have to be read before it is known who sent them.

JSON and query services sign the body's hash without stating it, so it takes the body to check a signature.
Whoever knows an access key can send one (the key stands in every link), so all such bodies together have only
so much memory, and the others wait.
"""

from __future__ import annotations

import hashlib
import mmap
import threading

from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Request

BODY_LIMIT = 64 << 20
_SMALL = 1 << 20
_WAIT_SECONDS = 60.0


class _Room:
    def __init__(self, size: int) -> None:
        self._left = size
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._left >= size, _WAIT_SECONDS):
                raise ApiError("ServiceUnavailable", "Too many large requests at a time: try again", 503)
            self._left -= size

    def give_back(self, size: int) -> None:
        with self._changed:
            self._left += size
            self._changed.notify_all()


_SMALL_BODIES, _LARGE_BODIES = _Room(32 << 20), _Room(BODY_LIMIT)


class UnverifiedBody:
    """A request's, in a ``with`` block in which its signature is checked. ``content`` is what was read, if
    anything was, once the block has ended well."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._taken = 0
        self._pages: mmap.mmap | None = None
        self._end = 0
        self.content: bytes | None = None

    def hash(self) -> str:
        """Its SHA-256. Raises ApiError for a body that is too long, or that there is no room for."""
        length = self._request.length
        size = BODY_LIMIT if length is None else length
        if size > BODY_LIMIT:
            raise _too_long()
        _room(size).take(size)
        self._taken = size
        stream = self._request.stream
        if size <= _SMALL:
            self.content = stream.read(size)
            return hashlib.sha256(self.content).hexdigest()
        # Pages of its own go back to the system; what is freed of the heap may stay with each thread.
        self._pages = mmap.mmap(-1, size)
        with memoryview(self._pages) as whole:
            while self._end < size:
                with whole[self._end :] as rest:
                    got = stream.readinto(rest)
                if not got:
                    break
                self._end += got
            if length is None and self._end == size and stream.read(1):
                raise _too_long()
            with whole[: self._end] as body:
                return hashlib.sha256(body).hexdigest()

    def __enter__(self) -> UnverifiedBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.content = None
        elif self._pages is not None:
            self.content = self._pages[: self._end]
        if self._pages is not None:
            self._pages.close()
        _room(self._taken).give_back(self._taken)


def _room(size: int) -> _Room:
    return _SMALL_BODIES if size <= _SMALL else _LARGE_BODIES


def _too_long() -> ApiError:
    return ApiError("RequestEntityTooLarge", f"The body is longer than {BODY_LIMIT} bytes", 413)
