"""Monitor an upload: how much is still to be sent, and a message if it stalls."""

import threading
from typing import Any, Callable

from smlaunch.train.transports.base import PendingUpload

STALL_SECONDS = 60.0
"""As long as botocore waits for a response. It then retries the request, nine times, without a message."""


class UploadMonitor:
    """A context around the upload of ``size`` bytes of ``name``. ``on_message`` is called every
    ``stall_seconds`` in which no byte was sent; ``clock`` returns seconds."""

    def __init__(
        self,
        name: str,
        size: int,
        on_message: Callable[[str], None],
        clock: Callable[[], float],
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._name = name
        self._size = self._remaining_bytes = size
        self._on_message = on_message
        self._clock = clock
        self._stall_seconds = stall_seconds
        self._moved_at = clock()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._report_stalls, name="smlaunch-upload", daemon=True)

    def __enter__(self) -> "UploadMonitor":
        self._thread.start()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stopped.set()
        self._thread.join()

    def restart(self) -> None:
        """All bytes have to be sent, possibly again."""
        with self._lock:
            self._remaining_bytes = self._size
            self._moved_at = self._clock()

    def add_progress(self, size: int) -> None:
        """Count bytes sent; negative if they have to be sent again. Thread-safe."""
        with self._lock:
            self._remaining_bytes -= size
            self._moved_at = self._clock()

    def pending_upload(self) -> PendingUpload:
        with self._lock:
            return PendingUpload(self._remaining_bytes, self._clock() - self._moved_at)

    def _report_stalls(self) -> None:
        while not self._stopped.wait(self._stall_seconds):
            pending = self.pending_upload()
            if pending.stalled_seconds >= self._stall_seconds:
                self._on_message(
                    "checkpoint {}: the upload has stalled: {:,} bytes remain and none was sent for {:.0f} "
                    "s; the next save waits for it".format(
                        self._name, pending.remaining_bytes, pending.stalled_seconds
                    )
                )
