"""Transfer many files, or large ones, to and from S3: by obstore if it is installed, otherwise by the S3
interfaces.

obstore (Rust) takes a tenth of botocore's time for small objects, and half of it for large ones. It is only
an accelerator: keys and set-ups that it does not support go by botocore, and so does everything after its
first failure, so that an error is always S3's own response to botocore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from threading import Event
from typing import Protocol

from smlaunch.aws.interfaces import ObjectStorage, PartStorage, TransferItem
from smlaunch.data.multipart_transfer import MultipartTransfer, OnTransferred
from smlaunch.data.s3_checksums import (
    LARGE_FILE_BYTES,
    AtomicFile,
    is_md5,
    new_digest,
    read_file,
    wrong_content_error,
)
from smlaunch.data.thread_pool import Cancelled, for_each_in_threads
from smlaunch.errors import JobError, Problem

CONNECTIONS = 10
"""Connections that a botocore client keeps (its default); more threads would wait for each other."""

_CONCURRENT_LARGE_FILES = 4
"""The connections are divided among them."""

_MIN_RESUMABLE_BYTES = 1 << 30
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

    def upload_file(
        self, bucket: str, item: TransferItem, max_concurrent_parts: int, on_transferred: OnTransferred
    ) -> None:
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
        self._part_storage = parts
        self._multipart_transfer = MultipartTransfer(parts)
        self._open_fast = open_fast
        self._fast_transfer_has_failed = False

    def upload_files(self, bucket: str, items: Sequence[TransferItem], on_progress: OnTransferred) -> None:
        """Upload files to a bucket: small ones whole, large ones in parts, several at a time.
        ``on_progress`` gets the numbers of bytes and files since its last call."""
        _require_valid_keys(items)
        fast_transfer = self._fast_transfer_for(items)
        cancelled, on_transferred = _make_cancellable(on_progress)

        def upload_small_file(item: TransferItem) -> None:
            content = read_file(item)

            def put_fast(transfer: FastTransfer) -> None:
                transfer.put(bucket, item.key, content)

            if not self._try_fast_transfer(fast_transfer, item.key, put_fast):
                self._storage.put_bytes(bucket, item.key, content)
            on_transferred(item.size, 1)

        def upload_large_file(item: TransferItem, max_concurrent_parts: int) -> None:
            self._upload_large_file(bucket, item, max_concurrent_parts, fast_transfer, on_transferred)

        _for_each_file(items, upload_small_file, upload_large_file, cancelled)

    def _upload_large_file(
        self,
        bucket: str,
        item: TransferItem,
        max_concurrent_parts: int,
        fast_transfer: FastTransfer | None,
        on_transferred: OnTransferred,
    ) -> None:
        """Upload one large file: resume an interrupted upload if there is one, else use ``fast_transfer``
        (obstore), else botocore. Very large files are left to botocore, whose uploads can be resumed.

        ``on_transferred`` gets the numbers of bytes and files since its last call.
        """
        if self._multipart_transfer.resume_upload(bucket, item, max_concurrent_parts, on_transferred):
            return
        if item.size >= _MIN_RESUMABLE_BYTES:  # 1 GiB
            fast_transfer = None  # so large an upload has to be resumable
        transferred_bytes = 0

        def count_transferred(byte_count: int, file_count: int) -> None:
            nonlocal transferred_bytes
            transferred_bytes += byte_count
            on_transferred(byte_count, file_count)

        def upload_fast(transfer: FastTransfer) -> None:
            transfer.upload_file(bucket, item, max_concurrent_parts, count_transferred)

        # Returns whether it has uploaded the file; never if the transfer is None.
        if not self._try_fast_transfer(fast_transfer, item.key, upload_fast):
            on_transferred(-transferred_bytes, 0)  # these bytes have to be sent again
            self._multipart_transfer.upload_file(bucket, item, max_concurrent_parts, on_transferred)

    def download_files(self, bucket: str, items: Sequence[TransferItem], on_progress: OnTransferred) -> None:
        """Download files from a bucket: small ones whole, large ones by ranges, several at a time.
        ``on_progress`` gets the numbers of bytes and files since its last call."""
        fast_transfer = self._fast_transfer_for(items)
        cancelled, on_transferred = _make_cancellable(on_progress)

        get_range = partial(self._get_range, fast_transfer)

        def download_small_file(item: TransferItem) -> None:
            chunks = get_range(bucket, item.key, 0, item.size, item.etag) if item.size else ()
            self._write_downloaded_file(bucket, item, b"".join(chunks))
            on_transferred(item.size, 1)

        def download_large_file(item: TransferItem, max_concurrent_parts: int) -> None:
            self._multipart_transfer.download_file(
                bucket, item, get_range, max_concurrent_parts, on_transferred
            )

        _for_each_file(items, download_small_file, download_large_file, cancelled)

    def has_same_content(self, bucket: str, item: TransferItem) -> bool:
        """Return whether the file already has the object's content; of an item with a ``sha256``, whether the
        object has the content with this hash. False if that cannot be determined."""
        try:
            if item.sha256 is not None:
                return self._multipart_transfer.has_planned_content(bucket, item, item.sha256)
            if item.path.stat().st_size != item.size:
                return False
            return self._multipart_transfer.has_same_content(bucket, item, item.path) is True
        except OSError:
            return False

    def _write_downloaded_file(self, bucket: str, item: TransferItem, content: bytes) -> None:
        """Write a downloaded file after comparing its digest with S3's."""
        if len(content) != item.size:
            raise wrong_content_error(item.key)
        target = AtomicFile(item.path)
        is_complete = False
        try:
            target.write(content, 0)
            matches_etag = is_md5(item.etag) and new_digest("md5", content).hexdigest() == item.etag
            if not matches_etag:
                is_same = self._multipart_transfer.has_same_content(bucket, item, target.temporary_path)
                if is_same is False:  # None: S3 has nothing to compare with
                    raise wrong_content_error(item.key)
            is_complete = True
        finally:
            target.close(is_complete=is_complete)

    # ---- obstore -----------------------------------------------------------------------------------------

    def _get_range(
        self,
        fast_transfer: FastTransfer | None,
        bucket: str,
        key: str,
        start: int,
        length: int,
        etag: str | None,
    ) -> Iterator[bytes]:
        """Yield a range of an object, by ``fast_transfer`` (obstore) if possible, and what it did not yield
        by botocore. ``etag``: the object must still have it."""
        received_bytes = 0
        usable_transfer = self._if_usable(fast_transfer, key)
        if usable_transfer is not None:
            try:
                for chunk in usable_transfer.get_range(bucket, key, start, length, etag):
                    received_bytes += len(chunk)
                    yield chunk
                return
            except FastTransferFailed:
                self._fast_transfer_has_failed = True  # from now on botocore is used
        if received_bytes < length:  # botocore's client for parts of objects
            yield from self._part_storage.get_range(
                bucket, key, start + received_bytes, length - received_bytes, etag
            )

    @cached_property
    def _fast_transfer(self) -> FastTransfer | None:
        return self._open_fast()

    def _fast_transfer_for(self, items: Sequence[TransferItem]) -> FastTransfer | None:
        """Return the transfer by obstore, if there is one; None for few and small files, for which it is not
        worth its start."""
        has_large_file = any(item.size >= LARGE_FILE_BYTES for item in items)
        return self._fast_transfer if has_large_file or len(items) >= _MIN_FAST_OBJECTS else None

    def _try_fast_transfer(
        self, fast_transfer: FastTransfer | None, key: str, transfer_file: Callable[[FastTransfer], None]
    ) -> bool:
        """Try to transfer a file by obstore: call ``transfer_file`` with ``fast_transfer``. Return whether
        that has succeeded; after a failure obstore is not tried again."""
        usable_transfer = self._if_usable(fast_transfer, key)
        if usable_transfer is None:
            return False
        try:
            transfer_file(usable_transfer)
        except FastTransferFailed:
            self._fast_transfer_has_failed = True
            return False
        return True

    def _if_usable(self, fast_transfer: FastTransfer | None, key: str) -> FastTransfer | None:
        """Return the fast transfer; None if there is none, or it has failed before, or cannot transfer an
        object of this key."""
        if fast_transfer is None or self._fast_transfer_has_failed or not fast_transfer.supports_key(key):
            return None
        return fast_transfer


def _make_cancellable(on_transferred: OnTransferred) -> tuple[Event, OnTransferred]:
    """Return an event, and a callback for progress that raises Cancelled once the event is set."""
    cancelled = Event()

    def check_cancelled(size: int, files: int) -> None:
        if cancelled.is_set() and not files:
            raise Cancelled
        on_transferred(size, files)

    return cancelled, check_cancelled


def _for_each_file(
    items: Sequence[TransferItem],
    transfer_small_file: Callable[[TransferItem], None],
    transfer_large_file: Callable[[TransferItem, int], None],
    cancelled: Event,
) -> None:
    """Transfer the small files, each on one connection, and then the large ones, of which each also gets the
    number of its parts that are transferred at a time."""
    small_items = (item for item in items if item.size < LARGE_FILE_BYTES)
    for_each_in_threads(transfer_small_file, small_items, CONNECTIONS, cancelled)
    large_items = [item for item in items if item.size >= LARGE_FILE_BYTES]
    max_concurrent_parts = CONNECTIONS // max(1, min(len(large_items), _CONCURRENT_LARGE_FILES))

    def transfer(item: TransferItem) -> None:
        transfer_large_file(item, max_concurrent_parts)

    for_each_in_threads(transfer, large_items, _CONCURRENT_LARGE_FILES, cancelled)


def _require_valid_keys(items: Sequence[TransferItem]) -> None:
    """Raise JobError naming all files whose names cannot be S3 keys, before anything is sent."""
    problems: list[Problem] = []
    for item in items:
        try:
            key_bytes = len(item.key.encode())
        except UnicodeEncodeError:
            text = f"the name of {str(item.path)!r} is not UTF-8, as S3's keys are; rename it, or pack it"
            problems.append(Problem("inputs", text))
            continue
        if key_bytes > _MAX_KEY_BYTES:
            text = (
                f"{item.path}: its key would have {key_bytes:,} bytes, and S3's have at most "
                f"{_MAX_KEY_BYTES:,}"
            )
            problems.append(Problem("inputs", text))
    if problems:
        raise JobError(problems)
