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

from smlaunch.local.api_errors import ApiError
from smlaunch.local.http_messages import Payload, Request, Response
from smlaunch.local.object_files import sync_file
from smlaunch.local.object_store import Attributes, ObjectStore
from smlaunch.local.services.s3 import checksums
from smlaunch.local.services.s3.objects import (
    ReceivedBody,
    attributes_from_headers,
    check_copy_conditions,
    copy_range,
    copy_source,
    parse_range,
    receive_body,
    write_precondition,
)
from smlaunch.local.services.s3.responses import children, iso_date, read_xml, text_of, xml_response

_MIN_PART_BYTES = 5 << 20
_MAX_PART_NUMBER = 10_000
_MAX_ENTRIES = 1000


class _Upload(NamedTuple):
    """An upload in progress. ``algorithm``: its checksum algorithm, empty without one."""

    id: str
    bucket: str
    key: str
    attributes: Attributes
    algorithm: str
    checksum_type: str


class _StoredPart(NamedTuple):
    number: int
    size: int
    etag: str
    modified: float
    checksums: dict[str, str]
    file: str


class S3MultipartUploads:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create_upload(self, request: Request, bucket: str, key: str) -> Response:
        """Begin a multipart upload of the object ``key`` (CreateMultipartUpload): store its attributes under
        a new upload id. Raises ApiError for a checksum that S3 does not know, or if there is no such
        bucket."""
        algorithm = request.headers.get("x-amz-checksum-algorithm", "").upper()
        default_type = "FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE"
        checksum_type = request.headers.get("x-amz-checksum-type", default_type if algorithm else "").upper()
        if algorithm and algorithm not in checksums.ALGORITHMS:
            raise ApiError("InvalidRequest", f"Checksum algorithm {algorithm!r} is not known")
        if (algorithm.startswith("SHA") and checksum_type == "FULL_OBJECT") or (
            algorithm == "CRC64NVME" and checksum_type == "COMPOSITE"
        ):
            message = (
                f"The {checksum_type} checksum type cannot be used with the {algorithm.lower()} checksum"
            )
            raise ApiError("InvalidRequest", f"{message} algorithm.")
        self._store.require_bucket(bucket)  # raises NoSuchBucket
        upload_id = secrets.token_hex(24)
        upload_json = json.dumps(
            {"object": attributes_from_headers(request), "algorithm": algorithm, "type": checksum_type}
        )
        with self._store.index_db.writing() as db:
            row = (upload_id, bucket, key.encode(), time.time(), upload_json)
            db.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?)", row)
        headers = {}
        if algorithm:
            headers = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": checksum_type}
        result = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
        return xml_response("InitiateMultipartUploadResult", result, headers=headers)

    def put_part(self, request: Request, payload: Payload, bucket: str, key: str) -> Response:
        """Store the request's body as a part of an upload (UploadPart)."""
        upload, number = self._upload(request, bucket, key), _part_number(request)
        with self._store.incoming_file() as body:
            received = receive_body(request, payload, body, extra_algorithm=upload.algorithm)
            self._store_part(upload, number, body, received)
        checksum_headers = {checksums.header_name(name): value for name, value in received.checksums.items()}
        return Response(200, {"ETag": f'"{received.etag}"', **checksum_headers})

    def copy_part(self, request: Request, bucket: str, key: str) -> Response:
        """Store a range of another object's bytes as a part of an upload (UploadPartCopy)."""
        upload, number = self._upload(request, bucket, key), _part_number(request)
        info, file = self._store.open(*copy_source(request))
        with file, self._store.incoming_file() as body:
            check_copy_conditions(request, info)
            start, length = 0, info.size
            range_text = request.headers.get("x-amz-copy-source-range")
            if range_text is not None:
                requested_range = parse_range(range_text, info.size)
                if requested_range is None:
                    message = "The x-amz-copy-source-range value must be of the form bytes=first-last"
                    raise ApiError("InvalidArgument", message)
                start, length = requested_range
            etag = copy_range(file, body, start, length)
            received = ReceivedBody(etag, length, _checksum_of(body, upload.algorithm))
            modified = self._store_part(upload, number, body, received)
        checksum_elements = {f"Checksum{name}": value for name, value in received.checksums.items()}
        return xml_response(
            "CopyPartResult", {"LastModified": iso_date(modified), "ETag": f'"{etag}"', **checksum_elements}
        )

    def complete(self, request: Request, payload: Payload, bucket: str, key: str) -> Response:
        """Join the parts that the request's document lists to the object ``key``
        (CompleteMultipartUpload)."""
        upload = self._upload(request, bucket, key)
        parts = self._parts_to_join(upload, read_xml(payload))
        stated_size, size = request.headers.get("x-amz-mp-object-size"), sum(part.size for part in parts)
        if stated_size is not None and stated_size != str(size):
            message = (
                f"The provided 'x-amz-mp-object-size' header value {stated_size} does not match what was"
            )
            raise ApiError("InvalidRequest", f"{message} computed: {size}")
        attributes: Attributes = {**upload.attributes, "parts": [part.size for part in parts]}
        attributes.update(_object_checksum(request, upload, parts))
        digest = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False)
        etag = f"{digest.hexdigest()}-{len(parts)}"
        with self._store.incoming_file() as body:
            self._concatenate(parts, body)
            info = self._store.publish(bucket, key, body, etag, attributes, write_precondition(request))
        self._delete_upload(upload)
        checksum_elements = {
            f"Checksum{name}": value for name, value in attributes.get("checksums", {}).items()
        }
        if checksum_elements:
            checksum_elements["ChecksumType"] = attributes["checksum_type"]
        host = request.headers.get("host", "")
        result = {
            "Location": f"http://{host}/{bucket}/{key}",
            "Bucket": bucket,
            "Key": key,
            "ETag": f'"{info.etag}"',
        }
        return xml_response("CompleteMultipartUploadResult", {**result, **checksum_elements})

    def abort(self, request: Request, bucket: str, key: str) -> Response:
        self._delete_upload(self._upload(request, bucket, key))
        return Response(204)

    def list_parts(self, request: Request, bucket: str, key: str) -> Response:
        upload = self._upload(request, bucket, key)
        after, limit = (
            _query_number(request, "part-number-marker", 0),
            min(_query_number(request, "max-parts", _MAX_ENTRIES), _MAX_ENTRIES),
        )
        parts = [part for part in self._parts(upload) if part.number > after]
        page = parts[:limit]
        entries = [
            {
                "PartNumber": part.number,
                "LastModified": iso_date(part.modified),
                "ETag": f'"{part.etag}"',
                "Size": part.size,
                **{f"Checksum{name}": value for name, value in part.checksums.items()},
            }
            for part in page
        ]
        truncated = len(parts) > len(page)
        document = {
            "Bucket": bucket,
            "Key": key,
            "UploadId": upload.id,
            "PartNumberMarker": after,
            "NextPartNumberMarker": page[-1].number if page and truncated else None,
            "MaxParts": limit,
            "IsTruncated": truncated,
            "StorageClass": "STANDARD",
            "ChecksumAlgorithm": upload.algorithm or None,
            "ChecksumType": upload.checksum_type or None,
            "Part": entries,
        }
        return xml_response("ListPartsResult", document)

    def list_uploads(self, request: Request, bucket: str) -> Response:
        """Return a page of the uploads in progress (ListMultipartUploads), sorted by key and time. The page
        begins after the upload that the request's markers name."""
        prefix = request.query.get("prefix", "")
        key_marker, id_marker = request.query.get("key-marker", ""), request.query.get("upload-id-marker", "")
        self._store.require_bucket(bucket)  # raises NoSuchBucket
        with self._store.index_db.reading() as db:
            statement = "SELECT key, id, created FROM uploads WHERE bucket = ? ORDER BY key, created, id"
            rows = [(key.decode(), id_, created) for key, id_, created in db.execute(statement, (bucket,))]
        rows = [row for row in rows if row[0].startswith(prefix)]
        if key_marker:
            keys_and_ids = [row[:2] for row in rows]
            if (key_marker, id_marker) in keys_and_ids:
                rows = rows[keys_and_ids.index((key_marker, id_marker)) + 1 :]
            else:
                rows = [row for row in rows if row[0].encode() > key_marker.encode()]
        page = rows[: min(_query_number(request, "max-uploads", _MAX_ENTRIES), _MAX_ENTRIES)]
        truncated = len(rows) > len(page)
        document = {
            "Bucket": bucket,
            "KeyMarker": key_marker,
            "UploadIdMarker": id_marker,
            "Prefix": prefix,
            "MaxUploads": _MAX_ENTRIES,
            "IsTruncated": truncated,
            "NextKeyMarker": page[-1][0] if truncated and page else None,
            "NextUploadIdMarker": page[-1][1] if truncated and page else None,
            "Upload": [
                {"Key": key, "UploadId": upload_id, "Initiated": iso_date(created)}
                for key, upload_id, created in page
            ],
        }
        return xml_response("ListMultipartUploadsResult", document)

    # Parts

    def _upload(self, request: Request, bucket: str, key: str) -> _Upload:
        upload_id = request.query.get("uploadId", "")
        with self._store.index_db.reading() as db:
            statement = "SELECT attributes FROM uploads WHERE id = ? AND bucket = ? AND key = ?"
            row = db.execute(statement, (upload_id, bucket, key.encode())).fetchone()
        if row is None:
            self._store.require_bucket(bucket)
            raise _no_such_upload(upload_id)
        stored = json.loads(row[0])
        return _Upload(upload_id, bucket, key, stored["object"], stored["algorithm"], stored["type"])

    def _parts(self, upload: _Upload) -> list[_StoredPart]:
        with self._store.index_db.reading() as db:
            columns = "number, size, etag, modified, checksums, file"
            statement = f"SELECT {columns} FROM parts WHERE upload = ? ORDER BY number"  # noqa: S608
            rows = db.execute(statement, (upload.id,)).fetchall()
        return [
            _StoredPart(number, size, etag, modified, json.loads(checksums_json), file)
            for number, size, etag, modified, checksums_json, file in rows
        ]

    def _store_part(self, upload: _Upload, number: int, body: Path, received: ReceivedBody) -> float:
        """Store a part, which replaces an earlier one with its number. Returns its modification time."""
        part_file = body.with_name(f"{upload.id}.{number}.{secrets.token_hex(4)}")
        now = time.time()
        relative = str(part_file.relative_to(self._store.root))
        values = (received.size, received.etag, now, json.dumps(received.checksums), relative)
        sync_file(body)

        def store(db: sqlite3.Connection, folders: set[str]) -> str | None:
            if db.execute("SELECT 1 FROM uploads WHERE id = ?", (upload.id,)).fetchone() is None:
                raise _no_such_upload(upload.id)
            where = (upload.id, number)
            old = db.execute("SELECT file FROM parts WHERE upload = ? AND number = ?", where).fetchone()
            body.replace(part_file)
            folders.add(str(part_file.parent))
            db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)", (*where, *values))
            return None if old is None else str(old[0])

        replaced_file = self._store.index_db.change(store)
        if replaced_file is not None:
            (self._store.root / replaced_file).unlink(missing_ok=True)
        return now

    def _delete_upload(self, upload: _Upload) -> None:
        with self._store.index_db.writing() as db:
            files = db.execute("SELECT file FROM parts WHERE upload = ?", (upload.id,)).fetchall()
            db.execute("DELETE FROM parts WHERE upload = ?", (upload.id,))
            db.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
        for (file,) in files:
            (self._store.root / file).unlink(missing_ok=True)

    def _parts_to_join(self, upload: _Upload, root: ElementTree.Element) -> list[_StoredPart]:
        """Return the parts that a CompleteMultipartUpload names, checked as S3 checks them. Raises
        ApiError."""
        part_by_number = {str(part.number): part for part in self._parts(upload)}
        chosen: list[_StoredPart] = []
        for entry in children(root, "Part"):
            part = part_by_number.get((text_of(entry, "PartNumber") or "").lstrip("0"))
            if part is None or not _matches_part(entry, part):
                message = "One or more of the specified parts could not be found. The part may not have been"
                raise ApiError(
                    "InvalidPart", f"{message} uploaded, or the specified entity tag may not match."
                )
            if chosen and part.number <= chosen[-1].number:
                message = "The list of parts was not in ascending order. The parts list must be specified in"
                raise ApiError("InvalidPartOrder", f"{message} order by part number.")
            chosen.append(part)
        if not chosen:
            raise ApiError("MalformedXML", "You must specify at least one part")
        if any(part.size < _MIN_PART_BYTES for part in chosen[:-1]):
            message = "Your proposed upload is smaller than the minimum allowed object size."
            raise ApiError("EntityTooSmall", message, MinSizeAllowed=str(_MIN_PART_BYTES))
        return chosen

    def _concatenate(self, parts: Sequence[_StoredPart], target: Path) -> None:
        """Write the parts' bytes one after the other to the file ``target``. Raises ApiError for a part whose
        file is damaged."""
        with target.open("wb") as target_file:
            for part in parts:
                part_file = self._store.root / part.file
                try:
                    with part_file.open("rb") as file:
                        size = os.fstat(file.fileno()).st_size
                        shutil.copyfileobj(file, target_file, 1 << 20)
                except OSError as error:
                    raise _torn_part(part, f"{part_file} cannot be read: {error.strerror}") from error
                if size != part.size:
                    raise _torn_part(part, f"{part_file} has {size} bytes of {part.size}")


def _matches_part(entry: ElementTree.Element, part: _StoredPart) -> bool:
    """Return whether ETag and checksums of a CompleteMultipartUpload's entry are those of the stored part."""
    if (text_of(entry, "ETag") or "").strip('"') != part.etag:
        return False
    stated_checksums = {name: text_of(entry, f"Checksum{name}") for name in checksums.ALGORITHMS}
    return all(
        value is None or part.checksums.get(name, value) == value for name, value in stated_checksums.items()
    )


def _object_checksum(request: Request, upload: _Upload, parts: Sequence[_StoredPart]) -> Attributes:
    """Compute the object's checksum from those of its parts, and compare it with the client's."""
    name = upload.algorithm
    expected = checksums.checksums_in_headers(request.headers)
    values = [part.checksums.get(name) for part in parts]
    known_values = [value for value in values if value is not None]
    if not name or len(known_values) < len(parts):
        # No algorithm was chosen, or it is not installed: the client's value is stored unverified.
        return {"checksums": expected, "checksum_type": "FULL_OBJECT"} if expected else {}
    if upload.checksum_type == "FULL_OBJECT":
        sizes = [part.size for part in parts]
        value: str | None = checksums.combined_crc(name, list(zip(known_values, sizes, strict=True)))
    else:
        value = checksums.composite_checksum(name, known_values)
    if value is None:
        return {}
    stated = expected.get(name)
    if stated is not None and stated.partition("-")[0] != value.partition("-")[0]:
        raise checksums.mismatch_error(name)
    return {"checksums": {name: value}, "checksum_type": upload.checksum_type}


def _checksum_of(path: Path, algorithm: str) -> dict[str, str]:
    """Compute a file's checksum, as {algorithm: base64}; empty when the algorithm is not installed."""
    digest = checksums.new_digest(algorithm) if algorithm else None
    if digest is None:
        return {}
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {algorithm: checksums.encode(digest)}


def _part_number(request: Request) -> int:
    number = _query_number(request, "partNumber", 0)
    if not 1 <= number <= _MAX_PART_NUMBER:
        message = f"Part number must be an integer between 1 and {_MAX_PART_NUMBER}, inclusive"
        raise ApiError("InvalidArgument", message, ArgumentName="partNumber", ArgumentValue=str(number))
    return number


def _query_number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()):
        raise ApiError("InvalidArgument", f"{name} must be a number", ArgumentName=name, ArgumentValue=text)
    return int(text)


def _torn_part(part: _StoredPart, problem: str) -> ApiError:
    message = f"{problem}: it is not part {part.number} as it was uploaded; upload the part again"
    return ApiError("InternalError", message, 500)


def _no_such_upload(upload: str) -> ApiError:
    message = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been"
    return ApiError("NoSuchUpload", f"{message} aborted or completed.", 404, UploadId=upload)
