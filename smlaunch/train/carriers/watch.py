"""An eye on an upload: how much is still to go, and a word when it does not move."""

import threading
from typing import Any, Callable

from smlaunch.train.carriers.base import Behind

STILL_SECONDS = 60.0
"""As long as botocore waits for an answer. It then tries the request again, nine times, without a word."""


class Watch:
    """A context around the upload of ``size`` bytes of ``name``. ``told`` hears every ``still_seconds`` when
    none of them has moved since; ``now`` gives seconds."""

    def __init__(
        self,
        name: str,
        size: int,
        told: Callable[[str], None],
        now: Callable[[], float],
        still_seconds: float = STILL_SECONDS,
    ) -> None:
        self._name = name
        self._size = self._left = size
        self._told = told
        self._now = now
        self._still_seconds = still_seconds
        self._moved_at = now()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="smlaunch-upload", daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._over.set()
        self._thread.join()

    def begin(self) -> None:
        """All bytes have to go, maybe again."""
        with self._lock:
            self._left = self._size
            self._moved_at = self._now()

    def moved(self, size: int) -> None:
        """Bytes that are on their way; negative when they have to go again. From any thread."""
        with self._lock:
            self._left -= size
            self._moved_at = self._now()

    def behind(self) -> Behind:
        with self._lock:
            return Behind(self._left, self._now() - self._moved_at)

    def _look(self) -> None:
        while not self._over.wait(self._still_seconds):
            behind = self.behind()
            if behind.still >= self._still_seconds:
                self._told(
                    "checkpoint {}: its upload does not move: {:,} bytes are to go and none has in {:.0f} s; "
                    "the next save waits for it".format(self._name, behind.size, behind.still)
                )
