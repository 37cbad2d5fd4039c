"""Transfer many files, or large ones, to and from S3: by obstore if it is installed, otherwise by the S3
interfaces.

obstore (Rust) takes a tenth of botocore's time for small objects, and half of it for large ones. It is only
an accelerator: keys and set-ups that it does not support go by botocore, and so does everything after its
first failure, so that an error is always S3's own response to botocore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from threading import Event
from typing import Protocol

from smlaunch.aws.interfaces import ObjectStorage, PartStorage, TransferItem
from smlaunch.data.checksums import (
    LARGE_FILE_BYTES,
    AtomicFile,
    is_md5,
    new_digest,
    read_file,
    wrong_content_error,
)
from smlaunch.data.multipart_transfer import MultipartTransfer, OnMoved
from smlaunch.data.thread_pool import Cancelled, for_each
from smlaunch.errors import JobError, Problem

CONNECTIONS = 10
"""Connections that a botocore client keeps (its default); more threads would wait for each other."""

_CONCURRENT_LARGE_FILES = 4
"""The connections are divided among them."""

_RESUMABLE_BYTES = 1 << 30
"""From this size on, an upload that can be resumed after an error or Ctrl-C is worth more than a faster one:
obstore discards the parts of an upload that it cannot complete."""

_MIN_FAST_OBJECTS = 16
"""Loading obstore takes as long as sending a few objects."""

_MAX_KEY_BYTES = 1024
"""Bytes of UTF-8 (S3 user guide, object keys)."""


class FastTransferFailed(Exception):
    """obstore could not transfer an object; botocore has to try."""


class FastTransfer(Protocol):
    """The part of obstore that a transfer uses. Every method raises FastTransferFailed."""

    def supports_key(self, key: str) -> bool:
        """Return whether the object gets exactly this key."""

    def put(self, bucket: str, key: str, content: bytes) -> None: ...

    def put_file(self, bucket: str, item: TransferItem, at_once: int, on_moved: OnMoved) -> None:
        """Upload in parts. Raises JobError if the file cannot be read or has changed."""

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        """Like PartStorage's; may fail after some pieces."""


class S3Transfer:
    """Implements Transfer. ``open_fast`` is called when it pays off, and returns None if obstore cannot be
    used."""

    def __init__(
        self, storage: ObjectStorage, parts: PartStorage, open_fast: Callable[[], FastTransfer | None]
    ) -> None:
        self._storage = storage
        self._parts = parts
        self._multipart = MultipartTransfer(parts)
        self._open_fast = open_fast
        self._fast_has_failed = False

    def put(self, bucket: str, items: Sequence[TransferItem], on_progress: OnMoved) -> None:
        """Upload files: small ones whole, large ones in parts."""
        _check_keys(items)
        fast = self._fast_transfer_for(items)
        cancelled, on_progress = _cancellable(on_progress)

        def send(item: TransferItem) -> None:
            content = read_file(item)
            if not self._try_fast(fast, item.key, lambda using: using.put(bucket, item.key, content)):
                self._storage.put_bytes(bucket, item.key, content)
            on_progress(item.size, 1)

        for_each(send, (item for item in items if item.size < LARGE_FILE_BYTES), CONNECTIONS, cancelled)
        large = [item for item in items if item.size >= LARGE_FILE_BYTES]
        for_each(
            lambda item: self._put_large(bucket, item, _connections_per_file(large), fast, on_progress),
            large,
            _CONCURRENT_LARGE_FILES,
            cancelled,
        )

    def _put_large(
        self, bucket: str, item: TransferItem, at_once: int, fast: FastTransfer | None, on_moved: OnMoved
    ) -> None:
        """Upload one large file: resume it if possible, else by obstore, else by botocore."""
        if self._multipart.resume(bucket, item, at_once, on_moved):
            return
        fast = fast if item.size < _RESUMABLE_BYTES else None
        moved_bytes = 0

        def count(size: int, files: int) -> None:
            nonlocal moved_bytes
            moved_bytes += size
            on_moved(size, files)

        if not self._try_fast(fast, item.key, lambda using: using.put_file(bucket, item, at_once, count)):
            on_moved(-moved_bytes, 0)
            self._multipart.put(bucket, item, at_once, on_moved)

    def get(self, bucket: str, items: Sequence[TransferItem], on_progress: OnMoved) -> None:
        """Download files: small ones whole, large ones by ranges."""
        fast = self._fast_transfer_for(items)
        cancelled, on_progress = _cancellable(on_progress)

        def get_range(bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
            received_bytes = 0
            if fast is not None and not self._fast_has_failed and fast.supports_key(key):
                try:
                    for piece in fast.get_range(bucket, key, start, length, etag):
                        received_bytes += len(piece)
                        yield piece
                    return
                except FastTransferFailed:
                    self._fast_has_failed = True
            if received_bytes < length:
                yield from self._parts.get_range(
                    bucket, key, start + received_bytes, length - received_bytes, etag
                )

        def fetch(item: TransferItem) -> None:
            pieces = get_range(bucket, item.key, 0, item.size, item.etag) if item.size else ()
            self._write_file(bucket, item, b"".join(pieces))
            on_progress(item.size, 1)

        for_each(fetch, (item for item in items if item.size < LARGE_FILE_BYTES), CONNECTIONS, cancelled)
        large = [item for item in items if item.size >= LARGE_FILE_BYTES]
        at_once = _connections_per_file(large)
        for_each(
            lambda item: self._multipart.get(bucket, item, get_range, at_once, on_progress),
            large,
            _CONCURRENT_LARGE_FILES,
            cancelled,
        )

    def has_same_content(self, bucket: str, item: TransferItem) -> bool:
        """Return whether the file already has the object's content. False if that cannot be determined."""
        try:
            if item.path.stat().st_size != item.size:
                return False
            return self._multipart.has_same_content(bucket, item, item.path) is True
        except OSError:
            return False

    def _write_file(self, bucket: str, item: TransferItem, content: bytes) -> None:
        """Write a downloaded file after comparing its digest with S3's."""
        if len(content) != item.size:
            raise wrong_content_error(item.key)
        target = AtomicFile(item.path)
        is_complete = False
        try:
            target.write(content, 0)
            has_md5 = is_md5(item.etag) and new_digest("md5", content).hexdigest() == item.etag
            if not has_md5 and self._multipart.has_same_content(bucket, item, target.temporary_path) is False:
                raise wrong_content_error(item.key)
            is_complete = True
        finally:
            target.close(is_complete=is_complete)

    # ---- obstore -----------------------------------------------------------------------------------------

    @cached_property
    def _fast_transfer(self) -> FastTransfer | None:
        return self._open_fast()

    def _fast_transfer_for(self, items: Sequence[TransferItem]) -> FastTransfer | None:
        """Return obstore if it pays off for these items and can be used."""
        pays = len(items) >= _MIN_FAST_OBJECTS or any(item.size >= LARGE_FILE_BYTES for item in items)
        return self._fast_transfer if pays else None

    def _try_fast(self, fast: FastTransfer | None, key: str, action: Callable[[FastTransfer], None]) -> bool:
        """Run the action with obstore. Return whether it succeeded; obstore is not tried again after a
        failure."""
        if fast is None or self._fast_has_failed or not fast.supports_key(key):
            return False
        try:
            action(fast)
        except FastTransferFailed:
            self._fast_has_failed = True
            return False
        return True


def _cancellable(on_moved: OnMoved) -> tuple[Event, OnMoved]:
    """Return an event, and a callback for progress that raises Cancelled once the event is set."""
    cancelled = Event()

    def check_cancelled(size: int, files: int) -> None:
        if cancelled.is_set() and not files:
            raise Cancelled
        on_moved(size, files)

    return cancelled, check_cancelled


def _connections_per_file(large: Sequence[TransferItem]) -> int:
    """Return how many parts of each large file are transferred at a time."""
    return CONNECTIONS // max(1, min(len(large), _CONCURRENT_LARGE_FILES))


def _check_keys(items: Sequence[TransferItem]) -> None:
    """Raises JobError naming all files that cannot have an S3 key, before anything is sent."""
    problems: list[Problem] = []
    for item in items:
        try:
            length = len(item.key.encode())
        except UnicodeEncodeError:
            text = f"the name of {str(item.path)!r} is not UTF-8, as S3's keys are; rename it, or pack it"
            problems.append(Problem("inputs", text))
            continue
        if length > _MAX_KEY_BYTES:
            text = (
                f"{item.path}: its key would have {length:,} bytes, and S3's have at most {_MAX_KEY_BYTES:,}"
            )
            problems.append(Problem("inputs", text))
    if problems:
        raise JobError(problems)
