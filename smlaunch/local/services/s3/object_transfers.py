"""Bodies of objects: how uploads are received and verified, and which bytes a request asks for."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request
from smlaunch.local.services.s3 import checksums
from smlaunch.local.stores.object_bodies import write_all
from smlaunch.local.stores.object_store import ObjectInfo


class ReceivedBody(NamedTuple):
    """A body that was written to a file. ``etag``: MD5 in hex; ``checksums``: base64 by algorithm."""

    etag: str
    size: int
    checksums: dict[str, str]


def receive_body(
    request: Request, payload: Payload, target_path: Path, extra_algorithm: str = ""
) -> ReceivedBody:
    """Write the body of an upload to the file ``target_path`` and verify all checksums that the client sent,
    in the request's headers or after the body. ``extra_algorithm``: one more checksum to compute, if it is
    not empty. Raises ApiError for a body that does not match its checksums or its length."""
    headers = request.headers
    # The headers have the checksums, or announce those that follow the body.
    algorithms = _checksum_algorithms_of_upload(headers)
    if extra_algorithm:
        algorithms = algorithms | {extra_algorithm}
    digest_by_algorithm: dict[str, checksums.ChecksumDigest] = {}
    for algorithm in algorithms:
        new_digest = checksums.new_checksum_digest(algorithm)
        # None: the algorithm is not installed here; the client's checksum is stored unverified.
        if new_digest is not None:
            digest_by_algorithm[algorithm] = new_digest
    md5 = hashlib.md5(usedforsecurity=False)
    size = 0
    with target_path.open("wb", buffering=0) as file:
        for block in payload.iterate_blocks():
            md5.update(block)
            for digest in digest_by_algorithm.values():
                digest.update(block)
            write_all(file.fileno(), block)
            size += len(block)
    # Of a body in chunks, without the lines between them, which Content-Length includes.
    declared_length = headers.get("x-amz-decoded-content-length")
    if declared_length is not None and declared_length != str(size):
        raise ApiError(
            "IncompleteBody", f"The body holds {size} bytes, not the {declared_length} that it states"
        )
    declared_md5 = headers.get("content-md5")
    if declared_md5 is not None and declared_md5 != base64.b64encode(md5.digest()).decode():
        raise ApiError("BadDigest", "The Content-MD5 you specified did not match what we received.")
    # The trailers, headers after the body, are known only now.
    client_checksums = checksums.checksums_in_headers({**headers, **payload.trailers})
    return ReceivedBody(
        etag=md5.hexdigest(),
        size=size,
        checksums=_verify_and_merge_checksums(client_checksums, digest_by_algorithm),
    )


def _checksum_algorithms_of_upload(headers: Mapping[str, str]) -> set[str]:
    """Return the algorithms of the checksums that an upload's headers hold, or announce for after the
    body."""
    algorithms = set(checksums.checksums_in_headers(headers))
    trailer_algorithm = headers.get("x-amz-trailer", "").lower().removeprefix("x-amz-checksum-").upper()
    if trailer_algorithm in checksums.ALGORITHMS:
        algorithms.add(trailer_algorithm)
    return algorithms


def _verify_and_merge_checksums(
    client_checksums: Mapping[str, str], digest_by_algorithm: Mapping[str, checksums.ChecksumDigest]
) -> dict[str, str]:
    """Return the checksums of a received body by algorithm: those that the client sent, and those that were
    computed. Raises ApiError if the two differ for an algorithm."""
    checksum_by_algorithm = dict(client_checksums)
    for algorithm, digest in digest_by_algorithm.items():
        computed_checksum = checksums.encode_digest(digest)
        if client_checksums.get(algorithm, computed_checksum) != computed_checksum:
            raise checksums.checksum_mismatch_error(algorithm)
        checksum_by_algorithm[algorithm] = computed_checksum
    return checksum_by_algorithm


def copy_byte_range(source_file: BinaryIO, target_path: Path, start: int, byte_count: int) -> str:
    """Copy ``byte_count`` bytes of an open file, from the offset ``start`` on, into a new file. Return their
    MD5 in hex. Raises ApiError when the source is too short."""
    md5 = hashlib.md5(usedforsecurity=False)
    source_file.seek(start)
    remaining_bytes = byte_count
    with target_path.open("wb", buffering=0) as target_file:
        while remaining_bytes:
            block = source_file.read(min(remaining_bytes, 1 << 20))
            if not block:
                raise ApiError(
                    "InternalError", f"{source_file.name} was cut off while it was being copied", 500
                )
            md5.update(block)
            write_all(target_file.fileno(), block)
            remaining_bytes -= len(block)
    return md5.hexdigest()


def parse_byte_range(range_header: str, object_size: int) -> tuple[int, int] | None:
    """Parse a Range header, ``bytes=first-last``, ``bytes=first-`` or ``bytes=-n`` (the last n bytes), and
    return (start, length) in bytes; None for a header that HTTP requires to ignore. ``object_size``: in
    bytes. Raises ApiError for a range outside the object."""
    unit, _, range_text = range_header.partition("=")
    first_text, separator, last_text = range_text.strip().partition("-")
    if unit.strip() != "bytes" or not separator:
        return None
    if not _is_empty_or_digits(first_text) or not _is_empty_or_digits(last_text):
        return None  # such as several ranges
    if not first_text and not last_text:
        return None
    if not first_text:  # the last n bytes
        length = min(int(last_text), object_size)
        start = object_size - length
    else:
        start = int(first_text)
        if last_text and int(last_text) < start:
            return None
        last = min(int(last_text), object_size - 1) if last_text else object_size - 1
        length = last - start + 1  # not positive for a start behind the object's end
    if length <= 0:
        message = "The requested range is not satisfiable"
        raise ApiError(
            "InvalidRange", message, 416, RangeRequested=range_header, ActualObjectSize=str(object_size)
        )
    return start, length


def _is_empty_or_digits(text: str) -> bool:
    return text == "" or (text.isascii() and text.isdigit())


def byte_range_of_part(object_info: ObjectInfo, part_number_text: str) -> tuple[int, int]:
    """Return the (start, length) in bytes of a part, by its number from 1, of an object that was uploaded in
    parts; any other object is one part. Raises ApiError."""
    part_sizes = object_info.attributes.get("parts") or [object_info.size]
    if not part_number_text.isdigit() or not 1 <= int(part_number_text) <= len(part_sizes):
        raise ApiError("InvalidPartNumber", "The requested partnumber is not satisfiable", 416)
    part_index = int(part_number_text) - 1
    return sum(part_sizes[:part_index]), part_sizes[part_index]
