"""A listing of S3 in memory, and its failures."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import takewhile
from threading import Lock

from smlaunch.aws.interfaces import KeyPage

MODIFIED_AT = "2026-11-21T12:34:56.000Z"


class MemoryPager:
    """``on_request`` gets the number of every request before it is answered; it may raise."""

    def __init__(
        self, keys: Iterable[str], size: int = 1000, on_request: Callable[[int], None] = lambda number: None
    ) -> None:
        self.keys = sorted(keys)
        self.size = size
        self.on_request = on_request
        self.requests = 0
        self._lock = Lock()

    def list_page(self, bucket: str, prefix: str, start_after: str) -> KeyPage:
        with self._lock:
            self.requests += 1
            number = self.requests
        self.on_request(number)
        start = max(bisect_left(self.keys, prefix), bisect_right(self.keys, start_after))
        window = self.keys[start : start + self.size + 1]
        keys = list(takewhile(lambda key: key.startswith(prefix), window))
        is_truncated, keys = len(keys) > self.size, keys[: self.size]
        return KeyPage(
            keys, [len(key) for key in keys], ["etag"] * len(keys), [MODIFIED_AT] * len(keys), is_truncated
        )
