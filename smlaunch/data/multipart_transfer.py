"""Transfer large objects by their parts, over the S3 interfaces: upload, download, and resume an interrupted
upload.

S3 stores the parts of an upload that was never completed, whichever client sent them, and returns their
SHA-256.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from smlaunch.aws.interfaces import CallError, MultipartUpload, PartStorage, TransferItem, UploadedPart
from smlaunch.data.s3_checksums import (
    MIN_PART_BYTES,
    AtomicFile,
    RunningDigest,
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
    require_sha256,
    wrong_content_error,
)
from smlaunch.data.thread_pool import for_each_in_threads

OnTransferred = Callable[[int, int], None]
"""Is called with the numbers of bytes and of files transferred since the last call."""
GetRange = Callable[[str, str, int, int, "str | None"], Iterator[bytes]]
"""Bucket, key, start, length, ETag: as ``PartStorage.get_range``."""

NumberedRange = tuple[int, tuple[int, int]]
"""Number of a part, with its start and length in bytes."""
NumberedContent = tuple[int, bytes]
"""Number of a part, with its content."""

_MAX_CHECKED_PART_BYTES = 64 << 20
"""Parts of other clients' uploads up to this size are downloaded and checked one by one. Larger ones are
downloaded in pieces of ``MIN_PART_BYTES``, and the complete file is checked."""


class MultipartTransfer:
    """Transfers files part by part, several parts at a time."""

    def __init__(self, storage: PartStorage) -> None:
        self._storage = storage

    def upload_file(
        self, bucket: str, item: TransferItem, max_concurrent_parts: int, on_transferred: OnTransferred
    ) -> None:
        """Upload a file in parts, ``max_concurrent_parts`` at a time."""
        self._upload_parts(bucket, item, max_concurrent_parts, part_size(item.size), None, on_transferred)

    def resume_upload(
        self, bucket: str, item: TransferItem, max_concurrent_parts: int, on_transferred: OnTransferred
    ) -> bool:
        """Resume an interrupted multipart upload of this file, if there is one: only missing parts are sent.
        Return whether the file has been uploaded in this way; ``on_transferred`` gets the numbers of bytes
        and files since its last call."""
        try:
            uploads = self._storage.list_resumable_uploads(bucket, item.key)
        except CallError:
            # Resuming only saves time; a role that may upload may not be allowed to list uploads.
            return False
        for upload in uploads:
            part_bytes = _find_uniform_part_size(upload, item.size)  # of the parts that S3 has already
            if part_bytes is not None:  # else they cannot be equal parts of this file
                self._upload_parts(bucket, item, max_concurrent_parts, part_bytes, upload, on_transferred)
                return True
        return False

    def _upload_parts(
        self,
        bucket: str,
        item: TransferItem,
        max_concurrent_parts: int,
        part_bytes: int,
        resumed_upload: MultipartUpload | None,
        on_transferred: OnTransferred,
    ) -> None:
        """Upload a file in parts of ``part_bytes`` and complete the multipart upload.

        ``resumed_upload``: an interrupted one, whose parts are sent again only if their content differs; None
        begins a new one. ``on_transferred`` gets the bytes of a part, or a complete file. Raises JobError if
        the file changes meanwhile, or has not the SHA-256 that the item states; no object appears then.
        """
        existing_part_by_number: Mapping[int, UploadedPart] = {}
        if resumed_upload is not None:
            upload_id, existing_part_by_number = resumed_upload.upload_id, resumed_upload.parts
        else:
            upload_id = self._storage.create_multipart_upload(bucket, item.key)
        part_by_number: dict[int, UploadedPart] = {}
        with explain_read_error(item.path):  # raises a JobError in place of an OSError
            descriptor = os.open(item.path, os.O_RDONLY)
        try:
            stat_before = os.fstat(descriptor)

            def send_part_unless_present(numbered_content: NumberedContent) -> None:
                number, content = numbered_content
                part = existing_part_by_number.get(number)
                # The content is only hashed here if S3 has such a part; the storage hashes what it sends.
                if part is None or part.sha256 != _encoded_sha256(content):
                    part = self._storage.upload_part(bucket, item.key, upload_id, number, content)
                part_by_number[number] = part
                on_transferred(len(content), 0)  # bytes, files

            # The threads draw the parts one after the other, so that the file is read and hashed in order.
            parts_of_file = _iter_parts(item, descriptor, part_bytes)
            for_each_in_threads(send_part_unless_present, parts_of_file, max_concurrent_parts)
            stat_after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (stat_after.st_size, stat_after.st_mtime_ns) != (item.size, stat_before.st_mtime_ns):
            raise changed_file_error(item)
        parts = [part_by_number[number] for number in sorted(part_by_number)]
        self._storage.complete_multipart_upload(bucket, item.key, upload_id, parts)
        on_transferred(0, 1)

    def download_file(
        self,
        bucket: str,
        item: TransferItem,
        get_range: GetRange,
        max_concurrent_parts: int,
        on_transferred: OnTransferred,
    ) -> None:
        """Download a file by ranges, several at a time, and compare its digest with S3's. The file gets its
        name when it is complete. ``get_range``: yields a range of the object. Raises JobError if the digests
        differ."""
        checksum = self._storage.get_object_checksum(bucket, item.key)
        expected = expected_digest(checksum, item.size)  # None if S3 has none that can be compared
        # S3's digest may be one of the digests of the object's parts. Then the same parts are downloaded, and
        # each is hashed while it is in memory, if they are at most 64 MiB large. Otherwise the complete file
        # is hashed afterwards.
        part_bytes, s3_part_bytes = MIN_PART_BYTES, checksum.part_size
        part_digests: list[RunningDigest] = []
        if expected is not None and s3_part_bytes is not None and s3_part_bytes <= _MAX_CHECKED_PART_BYTES:
            part_bytes = s3_part_bytes
            part_digests = [new_digest(expected.algorithm) for _ in part_ranges(item.size, part_bytes)]
        numbered_ranges = list(enumerate(part_ranges(item.size, part_bytes)))
        target_file = AtomicFile(item.path)  # under a temporary name until it is complete
        is_complete = False
        try:

            def download_part(numbered_range: NumberedRange) -> None:
                """Download one part, given by its index, start and length in bytes."""
                part_index, (start, length) = numbered_range
                pieces = get_range(bucket, item.key, start, length, item.etag)
                digest = part_digests[part_index] if part_digests else None
                # Also updates the digest, and reports the bytes.
                received_bytes = _write_pieces(target_file, start, pieces, digest, on_transferred)
                if received_bytes != length:
                    raise wrong_content_error(item.key)

            for_each_in_threads(download_part, numbered_ranges, max_concurrent_parts)
            if expected is not None:
                if part_digests:
                    digests = [digest.digest() for digest in part_digests]
                    actual_value = multipart_digest(expected.algorithm, digests)
                else:
                    actual_value = file_digest(
                        target_file.temporary_path, expected.algorithm, checksum.part_size
                    )
                if actual_value != expected.value:
                    raise wrong_content_error(item.key)
            is_complete = True
        finally:
            target_file.close(is_complete=is_complete)
        on_transferred(0, 1)

    def has_planned_content(self, bucket: str, item: TransferItem, sha256: bytes) -> bool:
        """Return whether the object has the content with this SHA-256: by S3's own SHA-256 of the whole
        object if it has one, otherwise by the item's file, which is read once. False if that cannot be found
        out."""
        checksum = self._storage.get_object_checksum(bucket, item.key)
        if checksum.part_size is None and checksum.sha256 is not None:
            return checksum.sha256 == encode_digest("sha256", sha256)
        expected = expected_digest(checksum, item.size)
        if expected is None:
            return False
        content_digest = new_digest("sha256")
        file_value = file_digest(item.path, expected.algorithm, checksum.part_size, content_digest)
        return file_value == expected.value and content_digest.digest() == sha256

    def has_same_content(self, bucket: str, item: TransferItem, path: Path) -> bool | None:
        """Return whether the file's content is the object's. None if S3 returns nothing to compare."""
        if is_md5(item.etag) and file_digest(path, "md5", None) == item.etag:
            return True
        # An ETag need not be an MD5 sum, or may be one of the parts' sums: ask S3 for its checksums.
        checksum = self._storage.get_object_checksum(bucket, item.key)
        expected = expected_digest(checksum, item.size)
        if expected is None:
            return None
        return file_digest(path, expected.algorithm, checksum.part_size) == expected.value


def _iter_parts(item: TransferItem, descriptor: int, part_bytes: int) -> Iterator[NumberedContent]:
    """Yield number and content of each part of a file, in order. Raises JobError for a file that has become
    shorter, and in place of the end for one that has not the SHA-256 that the item states."""
    content_digest = None if item.sha256 is None else new_digest("sha256")
    for number, (start, length) in enumerate(part_ranges(item.size, part_bytes), 1):
        with explain_read_error(item.path):
            content = os.pread(descriptor, length, start)
        if len(content) != length:
            raise changed_file_error(item)
        if content_digest is not None:
            content_digest.update(content)
        yield number, content
    if content_digest is not None:
        require_sha256(item, content_digest)


def _encoded_sha256(content: bytes) -> str:
    """Return the SHA-256 as S3 states it."""
    return encode_digest("sha256", new_digest("sha256", content).digest())


def _write_pieces(
    target_file: AtomicFile,
    start: int,
    pieces: Iterator[bytes],
    digest: RunningDigest | None,
    on_transferred: OnTransferred,
) -> int:
    """Write the pieces of a part to their position in the file, from ``start`` on, and hash them if
    ``digest`` is given. Return the number of bytes."""
    received_bytes = 0
    for content in pieces:
        if digest is not None:
            digest.update(content)
        target_file.write(content, start + received_bytes)
        received_bytes += len(content)
        on_transferred(len(content), 0)
    return received_bytes


def _find_uniform_part_size(upload: MultipartUpload, size: int) -> int | None:
    """Return the bytes of each part, if the parts that an interrupted upload has sent are equal parts of a
    content of ``size`` bytes, of which only the last may be smaller; else None."""
    part_bytes = max((part.size for part in upload.parts.values()), default=0)
    if part_bytes < (5 << 20) or -(-size // part_bytes) > 10_000:  # S3's limits
        return None
    length_by_number = {number: length for number, (_, length) in enumerate(part_ranges(size, part_bytes), 1)}
    are_parts_equal = all(length_by_number.get(number) == part.size for number, part in upload.parts.items())
    return part_bytes if are_parts_equal else None
