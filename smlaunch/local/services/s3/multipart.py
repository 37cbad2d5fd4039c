"""S3 multipart uploads. Parts are files in the store's ``incoming`` folder until they are joined."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Request, Response
from smlaunch.local.services.s3 import checksums
from smlaunch.local.services.s3.object_attributes import attributes_from_headers
from smlaunch.local.services.s3.object_conditions import check_copy_conditions, precondition_of_write
from smlaunch.local.services.s3.object_transfers import (
    ReceivedBody,
    copy_byte_range,
    parse_byte_range,
    receive_body,
)
from smlaunch.local.services.s3.objects import copy_source_bucket_and_key
from smlaunch.local.services.s3.operations import S3Call
from smlaunch.local.services.s3.responses import (
    child_elements,
    child_text,
    format_iso_date,
    parse_xml_body,
    xml_response,
)
from smlaunch.local.state_errors import STATE_DAMAGED_CODE
from smlaunch.local.stores.object_bodies import sync_file
from smlaunch.local.stores.object_store import Attributes, ObjectStore

_MIN_PART_BYTES = 5 << 20
_MAX_PART_NUMBER = 10_000
_MAX_LISTED_ENTRIES = 1000


class _MultipartUpload(NamedTuple):
    """An upload in progress. ``algorithm``: its checksum algorithm, empty without one."""

    id: str
    bucket: str
    key: str
    attributes: Attributes
    checksum_algorithm: str
    checksum_type: str


class _ListedUpload(NamedTuple):
    """An upload in progress, as ListMultipartUploads returns it. ``created_at``: seconds since the epoch."""

    key: str
    id: str
    created_at: float


class _StoredPart(NamedTuple):
    """A part of an upload in progress. ``modified``: seconds since the epoch; ``checksums``: base64 by
    algorithm; ``file``: path relative to the root of the store."""

    number: int
    size: int
    etag: str
    modified: float
    """Seconds since the epoch."""
    checksums: dict[str, str]
    file: str


class S3MultipartUploads:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create_multipart_upload(self, call: S3Call) -> Response:
        """Respond to CreateMultipartUpload: store the attributes of the object that the parts will become,
        under a new upload id. Raises ApiError for a checksum that S3 does not know, or if there is no such
        bucket."""
        request, _, bucket, key = call
        algorithm, checksum_type = _requested_checksum(request)
        self._store.require_bucket(bucket)  # raises NoSuchBucket
        upload_id = secrets.token_hex(24)
        upload_json = json.dumps(
            {"object": attributes_from_headers(request), "algorithm": algorithm, "type": checksum_type}
        )
        with self._store.index.write_transaction() as connection:
            row = (upload_id, bucket, key.encode(), time.time(), upload_json)
            connection.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?)", row)
        headers = {}
        if algorithm:
            headers = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": checksum_type}
        result = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
        return xml_response("InitiateMultipartUploadResult", result, headers=headers)

    def upload_part(self, call: S3Call) -> Response:
        """Store a part of an upload: the request's body (UploadPart), or a range of another object's bytes
        (UploadPartCopy)."""
        request = call.request
        upload, part_number = self._find_upload(call), _part_number(request)
        if "x-amz-copy-source" in request.headers:
            return self._copy_part(request, upload, part_number)
        with self._store.temporary_body_path() as body_path:
            received = receive_body(
                request, call.payload, body_path, extra_algorithm=upload.checksum_algorithm
            )
            self._store_part(upload, part_number, body_path, received)
        return Response(200, {"ETag": f'"{received.etag}"', **checksums.checksum_headers(received.checksums)})

    def _copy_part(self, request: Request, upload: _MultipartUpload, part_number: int) -> Response:
        source_object, source_file = self._store.open_object(*copy_source_bucket_and_key(request))
        with source_file, self._store.temporary_body_path() as part_path:
            check_copy_conditions(request, source_object)
            start, length = 0, source_object.size
            range_text = request.headers.get("x-amz-copy-source-range")
            if range_text is not None:
                requested_range = parse_byte_range(range_text, source_object.size)
                if requested_range is None:
                    message = "The x-amz-copy-source-range value must be of the form bytes=first-last"
                    raise ApiError("InvalidArgument", message)
                start, length = requested_range
            etag = copy_byte_range(source_file, part_path, start, length)
            received_body = ReceivedBody(
                etag, length, _compute_file_checksum(part_path, upload.checksum_algorithm)
            )
            modified_at = self._store_part(upload, part_number, part_path, received_body)
        elements = {"LastModified": format_iso_date(modified_at), "ETag": f'"{etag}"'}
        return xml_response("CopyPartResult", elements | checksums.checksum_elements(received_body.checksums))

    def complete_multipart_upload(self, call: S3Call) -> Response:
        """Join the parts that the request's document lists to the object ``key``
        (CompleteMultipartUpload)."""
        request, payload, bucket, key = call
        upload = self._find_upload(call)
        parts = self._select_requested_parts(upload, parse_xml_body(payload))
        declared_size = request.headers.get("x-amz-mp-object-size")
        total_bytes = sum(part.size for part in parts)
        if declared_size is not None and declared_size != str(total_bytes):
            message = (
                f"The provided 'x-amz-mp-object-size' header value {declared_size} does not match what was"
            )
            raise ApiError("InvalidRequest", f"{message} computed: {total_bytes}")
        attributes: Attributes = {**upload.attributes, "parts": [part.size for part in parts]}
        attributes.update(_verified_object_checksum(request, upload, parts))
        md5_of_part_md5s = hashlib.md5(
            b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False
        )
        etag = f"{md5_of_part_md5s.hexdigest()}-{len(parts)}"
        with self._store.temporary_body_path() as body_path:
            self._concatenate_parts(parts, body_path)
            completed_object = self._store.publish_object(
                bucket, key, body_path, etag, attributes, precondition_of_write(request)
            )
        self._delete_upload(upload)
        elements = checksums.checksum_elements(
            attributes.get("checksums", {}), attributes.get("checksum_type", "")
        )
        host = request.headers.get("host", "")
        result = {
            "Location": f"http://{host}/{bucket}/{key}",
            "Bucket": bucket,
            "Key": key,
            "ETag": f'"{completed_object.etag}"',
        }
        return xml_response("CompleteMultipartUploadResult", {**result, **elements})

    def abort_multipart_upload(self, call: S3Call) -> Response:
        self._delete_upload(self._find_upload(call))
        return Response(204)

    def list_parts(self, call: S3Call) -> Response:
        """Respond to ListParts with a page of an upload's parts, sorted by number. The page begins after the
        part that the request's marker names. Raises ApiError."""
        request, _, bucket, key = call
        upload = self._find_upload(call)
        part_number_marker = _parse_query_number(request, "part-number-marker", 0)
        max_parts = min(_parse_query_number(request, "max-parts", _MAX_LISTED_ENTRIES), _MAX_LISTED_ENTRIES)
        parts = [part for part in self._stored_parts(upload) if part.number > part_number_marker]
        page_parts = parts[:max_parts]
        part_elements = [
            {
                "PartNumber": part.number,
                "LastModified": format_iso_date(part.modified),
                "ETag": f'"{part.etag}"',
                "Size": part.size,
                **checksums.checksum_elements(part.checksums),
            }
            for part in page_parts
        ]
        is_truncated = len(parts) > len(page_parts)
        document = {
            "Bucket": bucket,
            "Key": key,
            "UploadId": upload.id,
            "PartNumberMarker": part_number_marker,
            "NextPartNumberMarker": page_parts[-1].number if page_parts and is_truncated else None,
            "MaxParts": max_parts,
            "IsTruncated": is_truncated,
            "StorageClass": "STANDARD",
            "ChecksumAlgorithm": upload.checksum_algorithm or None,
            "ChecksumType": upload.checksum_type or None,
            "Part": part_elements,
        }
        return xml_response("ListPartsResult", document)

    def list_multipart_uploads(self, call: S3Call) -> Response:
        """Respond to ListMultipartUploads with a page of a bucket's uploads in progress, sorted by key and
        time. The page begins after the upload that the request's markers name."""
        request, bucket = call.request, call.bucket
        prefix = request.query.get("prefix", "")
        key_marker = request.query.get("key-marker", "")
        upload_id_marker = request.query.get("upload-id-marker", "")
        self._store.require_bucket(bucket)  # raises NoSuchBucket
        with self._store.index.read_access() as connection:
            statement = "SELECT key, id, created FROM uploads WHERE bucket = ? ORDER BY key, created, id"
            rows = connection.execute(statement, (bucket,)).fetchall()
        uploads = [_ListedUpload(key.decode(), upload_id, created_at) for key, upload_id, created_at in rows]
        uploads = [upload for upload in uploads if upload.key.startswith(prefix)]
        if key_marker:  # without it, S3 ignores the other marker
            uploads = _uploads_after(uploads, key_marker, upload_id_marker)
        # At most 1000, which is also the default.
        page_size = min(_parse_query_number(request, "max-uploads", _MAX_LISTED_ENTRIES), _MAX_LISTED_ENTRIES)
        page = uploads[:page_size]
        is_truncated = len(uploads) > len(page)
        document = {
            "Bucket": bucket,
            "KeyMarker": key_marker,
            "UploadIdMarker": upload_id_marker,
            "Prefix": prefix,
            "MaxUploads": _MAX_LISTED_ENTRIES,
            "IsTruncated": is_truncated,
            "NextKeyMarker": page[-1].key if is_truncated and page else None,
            "NextUploadIdMarker": page[-1].id if is_truncated and page else None,
            "Upload": [
                {"Key": upload.key, "UploadId": upload.id, "Initiated": format_iso_date(upload.created_at)}
                for upload in page
            ],
        }
        return xml_response("ListMultipartUploadsResult", document)

    # Parts

    def _find_upload(self, call: S3Call) -> _MultipartUpload:
        request, _, bucket, key = call
        upload_id = request.query.get("uploadId", "")
        with self._store.index.read_access() as db:
            statement = "SELECT attributes FROM uploads WHERE id = ? AND bucket = ? AND key = ?"
            row = db.execute(statement, (upload_id, bucket, key.encode())).fetchone()
        if row is None:
            self._store.require_bucket(bucket)
            raise _no_such_upload_error(upload_id)
        stored = json.loads(row[0])
        return _MultipartUpload(upload_id, bucket, key, stored["object"], stored["algorithm"], stored["type"])

    def _stored_parts(self, upload: _MultipartUpload) -> list[_StoredPart]:
        with self._store.index.read_access() as db:
            columns = "number, size, etag, modified, checksums, file"
            statement = f"SELECT {columns} FROM parts WHERE upload = ? ORDER BY number"  # noqa: S608
            rows = db.execute(statement, (upload.id,)).fetchall()
        return [
            _StoredPart(number, size, etag, modified, json.loads(checksums_json), file)
            for number, size, etag, modified, checksums_json, file in rows
        ]

    def _store_part(
        self, upload: _MultipartUpload, part_number: int, body_path: Path, received_body: ReceivedBody
    ) -> float:
        """Make the file ``body_path`` a part of a multipart upload, which replaces an earlier part with its
        number. Returns its modification time, in seconds since the epoch. Raises ApiError if the upload does
        not exist."""
        part_file = body_path.with_name(f"{upload.id}.{part_number}.{secrets.token_hex(4)}")
        stored_part = _StoredPart(
            number=part_number,
            size=received_body.size,
            etag=received_body.etag,
            modified=time.time(),
            checksums=received_body.checksums,
            file=str(part_file.relative_to(self._store.root)),
        )
        sync_file(body_path)

        def store_in_transaction(connection: sqlite3.Connection, folders_to_sync: set[str]) -> str | None:
            """Move the part into place and write its row; return the path of the replaced part, if any."""
            replaced_file = _replace_part_row(connection, upload.id, stored_part)
            body_path.replace(part_file)
            folders_to_sync.add(str(part_file.parent))  # its entries have changed
            return replaced_file

        # Parts that are uploaded at the same time share a transaction.
        replaced_file = self._store.index.run_in_shared_transaction(store_in_transaction)
        if replaced_file is not None:
            (self._store.root / replaced_file).unlink(missing_ok=True)
        return stored_part.modified

    def _delete_upload(self, upload: _MultipartUpload) -> None:
        with self._store.index.write_transaction() as db:
            files = db.execute("SELECT file FROM parts WHERE upload = ?", (upload.id,)).fetchall()
            db.execute("DELETE FROM parts WHERE upload = ?", (upload.id,))
            db.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
        for (part_file,) in files:
            (self._store.root / part_file).unlink(missing_ok=True)

    def _select_requested_parts(
        self, upload: _MultipartUpload, request_document: ElementTree.Element
    ) -> list[_StoredPart]:
        """Return the stored parts that the XML of a CompleteMultipartUpload request lists, checked as S3
        checks them: they exist with the ETag and checksum that the request states, are in ascending order,
        and only the last may be smaller than 5 MiB. Raises ApiError."""
        part_by_number = {str(stored_part.number): stored_part for stored_part in self._stored_parts(upload)}
        selected_parts: list[_StoredPart] = []
        for part_element in child_elements(request_document, "Part"):
            number_text = (child_text(part_element, "PartNumber") or "").lstrip("0")  # 01 is part 1
            stored_part = part_by_number.get(number_text)
            if stored_part is None or not _element_matches_stored_part(part_element, stored_part):
                message = "One or more of the specified parts could not be found. The part may not have been"
                raise ApiError(
                    "InvalidPart", f"{message} uploaded, or the specified entity tag may not match."
                )
            if selected_parts and stored_part.number <= selected_parts[-1].number:
                message = "The list of parts was not in ascending order. The parts list must be specified in"
                raise ApiError("InvalidPartOrder", f"{message} order by part number.")
            selected_parts.append(stored_part)
        if not selected_parts:
            raise ApiError("MalformedXML", "You must specify at least one part")
        if any(stored_part.size < _MIN_PART_BYTES for stored_part in selected_parts[:-1]):
            message = "Your proposed upload is smaller than the minimum allowed object size."
            raise ApiError("EntityTooSmall", message, MinSizeAllowed=str(_MIN_PART_BYTES))
        return selected_parts

    def _concatenate_parts(self, parts: Sequence[_StoredPart], target_path: Path) -> None:
        """Write the bytes of a multipart upload's parts one after the other to the file ``target_path``.
        Raises ApiError for a part whose file cannot be read or has another size than the uploaded part."""
        with target_path.open("wb") as target_file:
            for part in parts:
                part_file = self._store.root / part.file  # part.file: relative to the store's root
                try:
                    with part_file.open("rb") as part_stream:
                        part_file_size = os.fstat(part_stream.fileno()).st_size
                        shutil.copyfileobj(part_stream, target_file, 1 << 20)
                except OSError as error:
                    raise _damaged_part_error(
                        part, f"{part_file} cannot be read: {error.strerror}"
                    ) from error
                if part_file_size != part.size:
                    raise _damaged_part_error(part, f"{part_file} has {part_file_size} bytes of {part.size}")


def _element_matches_stored_part(part_element: ElementTree.Element, part: _StoredPart) -> bool:
    """Return whether the ETag and checksums in an entry of CompleteMultipartUpload are those of the stored
    part; a checksum that one of the two does not have counts as equal."""
    if (child_text(part_element, "ETag") or "").strip('"') != part.etag:
        return False
    for algorithm in checksums.ALGORITHMS:
        declared_checksum = child_text(part_element, f"Checksum{algorithm}")
        stored_checksum = part.checksums.get(algorithm)
        if None not in (declared_checksum, stored_checksum) and declared_checksum != stored_checksum:
            return False
    return True


def _uploads_after(
    uploads: list[_ListedUpload], key_marker: str, upload_id_marker: str
) -> list[_ListedUpload]:
    """Return the uploads of a sorted list after the one with this key and id, or, without such an upload,
    those of later keys."""
    for index, upload in enumerate(uploads):
        if (upload.key, upload.id) == (key_marker, upload_id_marker):
            return uploads[index + 1 :]
    return [upload for upload in uploads if upload.key.encode() > key_marker.encode()]


def _replace_part_row(connection: sqlite3.Connection, upload_id: str, new_part: _StoredPart) -> str | None:
    """Write the row of an upload's part in the index, and return the file of the part that had its number;
    None without one. Raises ApiError if the upload does not exist."""
    if connection.execute("SELECT 1 FROM uploads WHERE id = ?", (upload_id,)).fetchone() is None:
        raise _no_such_upload_error(upload_id)
    previous_row = connection.execute(
        "SELECT file FROM parts WHERE upload = ? AND number = ?", (upload_id, new_part.number)
    ).fetchone()
    row = (
        upload_id,
        new_part.number,
        new_part.size,
        new_part.etag,
        new_part.modified,
        json.dumps(new_part.checksums),
        new_part.file,
    )
    connection.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    return None if previous_row is None else str(previous_row[0])


def _requested_checksum(request: Request) -> tuple[str, str]:
    """Return the checksum algorithm that CreateMultipartUpload requests (empty: none), and its type:
    FULL_OBJECT is a checksum of the object's bytes, COMPOSITE one of the parts' checksums. Raises ApiError
    for an unknown algorithm, or one that S3 does not offer with this type."""
    algorithm = request.headers.get("x-amz-checksum-algorithm", "").upper()
    default_type = ""
    if algorithm:
        default_type = "FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE"
    checksum_type = request.headers.get("x-amz-checksum-type", default_type).upper()
    if algorithm and algorithm not in checksums.ALGORITHMS:
        raise ApiError("InvalidRequest", f"Checksum algorithm {algorithm!r} is not known")
    # SHA checksums of parts cannot be combined to that of the object, and S3 combines CRC64NVME always.
    is_sha_of_object = algorithm.startswith("SHA") and checksum_type == "FULL_OBJECT"
    is_composite_crc64 = algorithm == "CRC64NVME" and checksum_type == "COMPOSITE"
    if is_sha_of_object or is_composite_crc64:
        message = f"The {checksum_type} checksum type cannot be used with the {algorithm.lower()} checksum"
        raise ApiError("InvalidRequest", f"{message} algorithm.")
    return algorithm, checksum_type


def _verified_object_checksum(
    request: Request, upload: _MultipartUpload, parts: Sequence[_StoredPart]
) -> Attributes:
    """Compute the checksum of the object that a multipart upload becomes, from the checksums of its parts: of
    the object's bytes (FULL_OBJECT), or of the parts' checksums (COMPOSITE). Return it as attributes of the
    object; empty when it is not known. Raises ApiError if the client sent another."""
    algorithm = upload.checksum_algorithm
    client_checksums = checksums.checksums_in_headers(request.headers)
    part_checksums = [part.checksums.get(algorithm) for part in parts]
    known_checksums = [checksum for checksum in part_checksums if checksum is not None]
    if not algorithm or len(known_checksums) < len(parts):
        # The upload was begun without an algorithm, or it is not installed here: the client's value is stored
        # unverified.
        return {"checksums": client_checksums, "checksum_type": "FULL_OBJECT"} if client_checksums else {}
    object_checksum = _combined_checksum(upload, parts, known_checksums)
    if object_checksum is None:  # the algorithm is not installed here
        return {}
    client_checksum = client_checksums.get(algorithm)
    # A composite checksum may end in a hyphen and the number of parts.
    if client_checksum is not None and client_checksum.partition("-")[0] != object_checksum.partition("-")[0]:
        raise checksums.checksum_mismatch_error(algorithm)
    return {"checksums": {algorithm: object_checksum}, "checksum_type": upload.checksum_type}


def _combined_checksum(
    upload: _MultipartUpload, parts: Sequence[_StoredPart], part_checksums: Sequence[str]
) -> str | None:
    """Return the checksum of an object from those of its parts: of the object's bytes (type FULL_OBJECT), or
    of the parts' checksums (COMPOSITE). None when the algorithm is not installed."""
    algorithm = upload.checksum_algorithm
    if upload.checksum_type != "FULL_OBJECT":
        return checksums.composite_checksum(algorithm, part_checksums)
    part_sizes = [part.size for part in parts]
    return checksums.combined_crc(algorithm, list(zip(part_checksums, part_sizes, strict=True)))


def _compute_file_checksum(path: Path, algorithm: str) -> dict[str, str]:
    """Compute the checksum of the file at ``path``, as {algorithm: base64}; empty when ``algorithm`` is empty
    or not installed here (the package awscrt computes some)."""
    digest = checksums.new_checksum_digest(algorithm) if algorithm else None
    if digest is None:
        return {}
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {algorithm: checksums.encode_digest(digest)}


def _part_number(request: Request) -> int:
    number = _parse_query_number(request, "partNumber", 0)
    if not 1 <= number <= _MAX_PART_NUMBER:
        message = f"Part number must be an integer between 1 and {_MAX_PART_NUMBER}, inclusive"
        raise ApiError("InvalidArgument", message, ArgumentName="partNumber", ArgumentValue=str(number))
    return number


def _parse_query_number(request: Request, name: str, default: int) -> int:
    """Return the number in a parameter of the query, or ``default`` without one. Raises ApiError."""
    text = request.query.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()):
        raise ApiError("InvalidArgument", f"{name} must be a number", ArgumentName=name, ArgumentValue=text)
    return int(text)


def _damaged_part_error(part: _StoredPart, problem: str) -> ApiError:
    message = f"{problem}: it is not part {part.number} as it was uploaded; upload the part again"
    return ApiError(STATE_DAMAGED_CODE, message, 500)


def _no_such_upload_error(upload_id: str) -> ApiError:
    message = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been"
    return ApiError("NoSuchUpload", f"{message} aborted or completed.", 404, UploadId=upload_id)
