"""Transfer large objects by their parts, over the S3 interfaces: upload, download, and resume an interrupted
upload.

S3 stores the parts of an upload that was never completed, whichever client sent them, and returns their
SHA-256.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from smlaunch.aws.interfaces import CallError, MultipartUpload, PartStorage, TransferItem, UploadedPart
from smlaunch.data.checksums import (
    MIN_PART_BYTES,
    AtomicFile,
    changed_file_error,
    encode_digest,
    expected_digest,
    explain_read_error,
    file_digest,
    is_md5,
    multipart_digest,
    new_digest,
    part_ranges,
    part_size,
    wrong_content_error,
)
from smlaunch.data.thread_pool import for_each

OnMoved = Callable[[int, int], None]
GetRange = Callable[[str, str, int, int, "str | None"], Iterator[bytes]]
"""Bucket, key, start, length, ETag: as ``PartStorage.get_range``."""

_MAX_CHECKED_PART_BYTES = 64 << 20
"""Parts of other clients' uploads up to this size are downloaded and checked one by one. Larger ones are
downloaded in pieces of ``MIN_PART_BYTES``, and the complete file is checked."""


class MultipartTransfer:
    """Transfers files part by part, several parts at a time."""

    def __init__(self, storage: PartStorage) -> None:
        self._storage = storage

    def put(self, bucket: str, item: TransferItem, max_concurrent: int, on_moved: OnMoved) -> None:
        """``max_concurrent``: parts under way at a time, here and below."""
        self._upload_parts(bucket, item, max_concurrent, part_size(item.size), None, on_moved)

    def resume(self, bucket: str, item: TransferItem, max_concurrent: int, on_moved: OnMoved) -> bool:
        """Resume an interrupted upload of this file: only missing parts are sent. Return False if there is
        none."""
        try:
            uploads = self._storage.list_resumable_uploads(bucket, item.key)
        except CallError:
            return (
                False  # resuming only saves time; a role that may upload may not be allowed to list uploads
            )
        for upload in uploads:
            part_bytes = _uniform_part_size(upload, item.size)
            if part_bytes is not None:
                self._upload_parts(bucket, item, max_concurrent, part_bytes, upload, on_moved)
                return True
        return False

    def _upload_parts(
        self,
        bucket: str,
        item: TransferItem,
        max_concurrent: int,
        part_bytes: int,
        unfinished: MultipartUpload | None,
        on_moved: OnMoved,
    ) -> None:
        """Upload the parts that ``unfinished`` lacks or has with another content, and complete the upload."""
        upload = unfinished.upload_id if unfinished is not None else self._storage.begin(bucket, item.key)
        existing_part_by_number = unfinished.parts if unfinished is not None else {}
        numbered_ranges = list(enumerate(part_ranges(item.size, part_bytes), 1))
        sent_part_by_number: dict[int, UploadedPart] = {}
        with explain_read_error(item.path):
            descriptor = os.open(item.path, os.O_RDONLY)
        try:
            status_before = os.fstat(descriptor)

            def send(piece: tuple[int, tuple[int, int]]) -> None:
                number, (start, length) = piece
                with explain_read_error(item.path):
                    content = os.pread(descriptor, length, start)
                if len(content) != length:
                    raise changed_file_error(item.path)
                part = existing_part_by_number.get(number)
                if part is None or part.sha256 != encode_digest(
                    "sha256", new_digest("sha256", content).digest()
                ):
                    part = self._storage.put_part(bucket, item.key, upload, number, content)
                sent_part_by_number[number] = part
                on_moved(length, 0)

            for_each(send, numbered_ranges, max_concurrent)
            status_after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (status_after.st_size, status_after.st_mtime_ns) != (item.size, status_before.st_mtime_ns):
            raise changed_file_error(item.path)
        self._storage.complete(
            bucket, item.key, upload, [sent_part_by_number[number] for number, _ in numbered_ranges]
        )
        on_moved(0, 1)

    def get(
        self, bucket: str, item: TransferItem, get_range: GetRange, max_concurrent: int, on_moved: OnMoved
    ) -> None:
        """Download a file by ranges and compare its digest with S3's. Raises JobError if they differ."""
        checksum = self._storage.object_checksum(bucket, item.key)
        expected = expected_digest(checksum, item.size)
        # By the object's own parts if their digests are known: each is then hashed while it is in memory.
        object_part_bytes = (
            checksum.part_size if expected is not None and checksum.part_size is not None else None
        )
        object_part_bytes = (
            object_part_bytes
            if object_part_bytes is not None and object_part_bytes <= _MAX_CHECKED_PART_BYTES
            else None
        )
        numbered_ranges = list(enumerate(part_ranges(item.size, object_part_bytes or MIN_PART_BYTES)))
        digests = [b""] * len(numbered_ranges)
        target = AtomicFile(item.path)
        is_complete = False
        try:

            def fetch(piece: tuple[int, tuple[int, int]]) -> None:
                """Download one part of the object to its position in the target file. ``piece``: number of
                the part, with its start and length in bytes."""
                number, (start, length) = piece
                digest = (
                    new_digest(expected[0])
                    if expected is not None and object_part_bytes is not None
                    else None
                )
                received_bytes = 0
                for content in get_range(bucket, item.key, start, length, item.etag):
                    if digest is not None:
                        digest.update(content)
                    target.write(content, start + received_bytes)
                    received_bytes += len(content)
                    on_moved(len(content), 0)
                if received_bytes != length:
                    raise wrong_content_error(item.key)
                if digest is not None:
                    digests[number] = digest.digest()

            for_each(fetch, numbered_ranges, max_concurrent)
            if expected is not None:
                algorithm, expected_value = expected
                has_part_digests = object_part_bytes is not None
                actual_value = (
                    multipart_digest(algorithm, digests)
                    if has_part_digests
                    else file_digest(target.temporary_path, algorithm, checksum.part_size)
                )
                if actual_value != expected_value:
                    raise wrong_content_error(item.key)
            is_complete = True
        finally:
            target.close(is_complete=is_complete)
        on_moved(0, 1)

    def has_same_content(self, bucket: str, item: TransferItem, path: Path) -> bool | None:
        """Return whether the file's content is the object's. None if S3 returns nothing to compare."""
        if is_md5(item.etag) and file_digest(path, "md5", None) == item.etag:
            return True
        # An ETag need not be an MD5 sum, or may be one of the parts' sums: ask S3 for its checksums.
        checksum = self._storage.object_checksum(bucket, item.key)
        expected = expected_digest(checksum, item.size)
        return None if expected is None else file_digest(path, expected[0], checksum.part_size) == expected[1]


def _uniform_part_size(upload: MultipartUpload, size: int) -> int | None:
    """Return the bytes of each part, if the existing parts are equal parts of a content of this size; else
    None."""
    sizes = {number: part_bytes.size for number, part_bytes in upload.parts.items()}
    part_bytes = max(sizes.values(), default=0)
    if part_bytes < (5 << 20) or -(-size // part_bytes) > 10_000:  # S3's limits
        return None
    length_by_number = {number: length for number, (_, length) in enumerate(part_ranges(size, part_bytes), 1)}
    return (
        part_bytes
        if all(length_by_number.get(number) == length for number, length in sizes.items())
        else None
    )
