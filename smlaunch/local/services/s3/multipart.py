"""Multipart uploads: parts lie in the store's ``incoming`` folder until a completion joins them."""

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

from smlaunch.local.bodies import sync_file
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.objects import Attributes, ObjectStore
from smlaunch.local.services.s3 import checksums
from smlaunch.local.services.s3.answers import children, iso_date, read_xml, text_of, xml
from smlaunch.local.services.s3.transfer import (
    Received,
    check_copy_conditions,
    copy_range,
    copy_source,
    described,
    parse_range,
    receive,
    write_condition,
)

_SMALLEST_PART = 5 << 20
_PART_LIMIT = 10_000
_PAGE = 1000


class _Upload(NamedTuple):
    """``algorithm`` is the checksum that the client chose for it, empty without one."""

    id: str
    bucket: str
    key: str
    attributes: Attributes
    algorithm: str
    checksum_type: str


class _Part(NamedTuple):
    number: int
    size: int
    etag: str
    modified: float
    checksums: dict[str, str]
    file: str


class Multipart:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create(self, request: Request, bucket: str, key: str) -> Response:
        algorithm = request.headers.get("x-amz-checksum-algorithm", "").upper()
        default_type = "FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE"
        checksum_type = request.headers.get("x-amz-checksum-type", default_type if algorithm else "").upper()
        if algorithm and algorithm not in checksums.ALGORITHMS:
            raise ApiError("InvalidRequest", f"Checksum algorithm {algorithm!r} is not known")
        if (algorithm.startswith("SHA") and checksum_type == "FULL_OBJECT") or (
            algorithm == "CRC64NVME" and checksum_type == "COMPOSITE"
        ):
            text = f"The {checksum_type} checksum type cannot be used with the {algorithm.lower()} checksum"
            raise ApiError("InvalidRequest", f"{text} algorithm.")
        self._store.bucket(bucket)
        upload = secrets.token_hex(24)
        held = json.dumps({"object": described(request), "algorithm": algorithm, "type": checksum_type})
        with self._store.index.writing() as db:
            row = (upload, bucket, key.encode(), time.time(), held)
            db.execute("INSERT INTO uploads VALUES (?, ?, ?, ?, ?)", row)
        headers = {}
        if algorithm:
            headers = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": checksum_type}
        result = {"Bucket": bucket, "Key": key, "UploadId": upload}
        return xml("InitiateMultipartUploadResult", result, headers=headers)

    def put_part(self, request: Request, payload: Payload, bucket: str, key: str) -> Response:
        upload, number = self._upload(request, bucket, key), _part_number(request)
        with self._store.incoming() as body:
            received = receive(request, payload, body, extra=upload.algorithm)
            self._keep(upload, number, body, received)
        known = {checksums.header(name): value for name, value in received.checksums.items()}
        return Response(200, {"ETag": f'"{received.etag}"', **known})

    def copy_part(self, request: Request, bucket: str, key: str) -> Response:
        upload, number = self._upload(request, bucket, key), _part_number(request)
        info, file = self._store.open(*copy_source(request))
        with file, self._store.incoming() as body:
            check_copy_conditions(request, info)
            start, length = 0, info.size
            wanted = request.headers.get("x-amz-copy-source-range")
            if wanted is not None:
                found = parse_range(wanted, info.size)
                if found is None:
                    text = "The x-amz-copy-source-range value must be of the form bytes=first-last"
                    raise ApiError("InvalidArgument", text)
                start, length = found
            etag = copy_range(file, body, start, length)
            received = Received(etag, length, _checksum_of(body, upload.algorithm))
            modified = self._keep(upload, number, body, received)
        known = {f"Checksum{name}": value for name, value in received.checksums.items()}
        return xml("CopyPartResult", {"LastModified": iso_date(modified), "ETag": f'"{etag}"', **known})

    def complete(self, request: Request, payload: Payload, bucket: str, key: str) -> Response:
        upload = self._upload(request, bucket, key)
        parts = self._chosen(upload, read_xml(payload))
        stated, size = request.headers.get("x-amz-mp-object-size"), sum(part.size for part in parts)
        if stated is not None and stated != str(size):
            text = (
                f"The provided 'x-amz-mp-object-size' header value {stated} does not match what was computed:"
            )
            raise ApiError("InvalidRequest", f"{text} {size}")
        attributes: Attributes = {**upload.attributes, "parts": [part.size for part in parts]}
        attributes.update(_whole_checksum(request, upload, parts))
        digest = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in parts), usedforsecurity=False)
        etag = f"{digest.hexdigest()}-{len(parts)}"
        with self._store.incoming() as body:
            self._join(parts, body)
            info = self._store.publish(bucket, key, body, etag, attributes, write_condition(request))
        self._forget(upload)
        known = {f"Checksum{name}": value for name, value in attributes.get("checksums", {}).items()}
        if known:
            known["ChecksumType"] = attributes["checksum_type"]
        host = request.headers.get("host", "")
        result = {
            "Location": f"http://{host}/{bucket}/{key}",
            "Bucket": bucket,
            "Key": key,
            "ETag": f'"{info.etag}"',
        }
        return xml("CompleteMultipartUploadResult", {**result, **known})

    def abort(self, request: Request, bucket: str, key: str) -> Response:
        self._forget(self._upload(request, bucket, key))
        return Response(204)

    def list_parts(self, request: Request, bucket: str, key: str) -> Response:
        upload = self._upload(request, bucket, key)
        after, limit = (
            _number(request, "part-number-marker", 0),
            min(_number(request, "max-parts", _PAGE), _PAGE),
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
        return xml("ListPartsResult", document)

    def list_uploads(self, request: Request, bucket: str) -> Response:
        prefix = request.query.get("prefix", "")
        key_marker, id_marker = request.query.get("key-marker", ""), request.query.get("upload-id-marker", "")
        self._store.bucket(bucket)
        with self._store.index.reading() as db:
            statement = "SELECT id, key, created FROM uploads WHERE bucket = ? ORDER BY key, created, id"
            rows = [(id_, key.decode(), made) for id_, key, made in db.execute(statement, (bucket,))]
        rows = [row for row in rows if row[1].startswith(prefix)]
        if key_marker:
            passed = [n for n, row in enumerate(rows) if (row[1], row[0]) == (key_marker, id_marker)]
            later = (row for row in rows if row[1].encode() > key_marker.encode())
            rows = rows[passed[0] + 1 :] if passed else list(later)
        page = rows[: min(_number(request, "max-uploads", _PAGE), _PAGE)]
        truncated = len(rows) > len(page)
        document = {
            "Bucket": bucket,
            "KeyMarker": key_marker,
            "UploadIdMarker": id_marker,
            "Prefix": prefix,
            "MaxUploads": _PAGE,
            "IsTruncated": truncated,
            "NextKeyMarker": page[-1][1] if truncated and page else None,
            "NextUploadIdMarker": page[-1][0] if truncated and page else None,
            "Upload": [{"Key": row[1], "UploadId": row[0], "Initiated": iso_date(row[2])} for row in page],
        }
        return xml("ListMultipartUploadsResult", document)

    # Parts

    def _upload(self, request: Request, bucket: str, key: str) -> _Upload:
        wanted = request.query.get("uploadId", "")
        with self._store.index.reading() as db:
            statement = "SELECT attributes FROM uploads WHERE id = ? AND bucket = ? AND key = ?"
            row = db.execute(statement, (wanted, bucket, key.encode())).fetchone()
        if row is None:
            self._store.bucket(bucket)
            raise _no_such_upload(wanted)
        held = json.loads(row[0])
        return _Upload(wanted, bucket, key, held["object"], held["algorithm"], held["type"])

    def _parts(self, upload: _Upload) -> list[_Part]:
        with self._store.index.reading() as db:
            columns = "number, size, etag, modified, checksums, file"
            statement = f"SELECT {columns} FROM parts WHERE upload = ? ORDER BY number"  # noqa: S608
            rows = db.execute(statement, (upload.id,)).fetchall()
        return [
            _Part(number, size, etag, modified, json.loads(known), file)
            for number, size, etag, modified, known, file in rows
        ]

    def _keep(self, upload: _Upload, number: int, body: Path, received: Received) -> float:
        """Publishes one part; a part sent again replaces the earlier one. Returns the time of it."""
        place = body.with_name(f"{upload.id}.{number}.{secrets.token_hex(4)}")
        now = time.time()
        relative = str(place.relative_to(self._store.root))
        values = (received.size, received.etag, now, json.dumps(received.checksums), relative)
        sync_file(body)

        def work(db: sqlite3.Connection, folders: set[str]) -> str | None:
            if db.execute("SELECT 1 FROM uploads WHERE id = ?", (upload.id,)).fetchone() is None:
                raise _no_such_upload(upload.id)
            where = (upload.id, number)
            old = db.execute("SELECT file FROM parts WHERE upload = ? AND number = ?", where).fetchone()
            body.replace(place)
            folders.add(str(place.parent))
            db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)", (*where, *values))
            return None if old is None else str(old[0])

        replaced = self._store.index.change(work)
        if replaced is not None:
            (self._store.root / replaced).unlink(missing_ok=True)
        return now

    def _forget(self, upload: _Upload) -> None:
        with self._store.index.writing() as db:
            files = db.execute("SELECT file FROM parts WHERE upload = ?", (upload.id,)).fetchall()
            db.execute("DELETE FROM parts WHERE upload = ?", (upload.id,))
            db.execute("DELETE FROM uploads WHERE id = ?", (upload.id,))
        for (file,) in files:
            (self._store.root / file).unlink(missing_ok=True)

    def _chosen(self, upload: _Upload, root: ElementTree.Element) -> list[_Part]:
        """The parts that a completion names, checked as S3 checks them."""
        known = {part.number: part for part in self._parts(upload)}
        chosen: list[_Part] = []
        for entry in children(root, "Part"):
            text = text_of(entry, "PartNumber") or ""
            part = known.get(int(text)) if text.isascii() and text.isdigit() else None
            etag = (text_of(entry, "ETag") or "").strip('"')
            told = {name: text_of(entry, f"Checksum{name}") for name in checksums.ALGORITHMS}
            if (
                part is None
                or etag != part.etag
                or any(
                    value is not None and part.checksums.get(name, value) != value
                    for name, value in told.items()
                )
            ):
                text = "One or more of the specified parts could not be found. The part may not have been"
                raise ApiError("InvalidPart", f"{text} uploaded, or the specified entity tag may not match.")
            if chosen and part.number <= chosen[-1].number:
                text = "The list of parts was not in ascending order. The parts list must be specified in"
                raise ApiError("InvalidPartOrder", f"{text} order by part number.")
            chosen.append(part)
        if not chosen:
            raise ApiError("MalformedXML", "You must specify at least one part")
        if any(part.size < _SMALLEST_PART for part in chosen[:-1]):
            text = "Your proposed upload is smaller than the minimum allowed object size."
            raise ApiError("EntityTooSmall", text, MinSizeAllowed=str(_SMALLEST_PART))
        return chosen

    def _join(self, parts: Sequence[_Part], target: Path) -> None:
        with target.open("wb") as whole:
            for part in parts:
                place = self._store.root / part.file
                try:
                    with place.open("rb") as file:
                        size = os.fstat(file.fileno()).st_size
                        shutil.copyfileobj(file, whole, 1 << 20)
                except OSError as error:
                    raise _torn(part, f"{place} cannot be read: {error.strerror}") from error
                if size != part.size:
                    raise _torn(part, f"{place} has {size} bytes of {part.size}")


def _whole_checksum(request: Request, upload: _Upload, parts: Sequence[_Part]) -> Attributes:
    """The finished object's checksum from those of its parts, compared with what the client expects."""
    name = upload.algorithm
    expected = checksums.stated(request.headers)
    values = [part.checksums.get(name) for part in parts]
    known = [value for value in values if value is not None]
    if not name or len(known) < len(parts):
        # None was chosen, or its algorithm is not at hand: the client's word stands.
        return {"checksums": expected, "checksum_type": "FULL_OBJECT"} if expected else {}
    if upload.checksum_type == "FULL_OBJECT":
        value: str | None = checksums.combined(name, [(v, p.size) for v, p in zip(known, parts, strict=True)])
    else:
        value = checksums.composite(name, known)
    if value is None:
        return {}
    told = expected.get(name)
    if told is not None and told.partition("-")[0] != value.partition("-")[0]:
        raise checksums.mismatch(name)
    return {"checksums": {name: value}, "checksum_type": upload.checksum_type}


def _checksum_of(path: Path, algorithm: str) -> dict[str, str]:
    digest = checksums.new(algorithm) if algorithm else None
    if digest is None:
        return {}
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {algorithm: checksums.encode(digest)}


def _part_number(request: Request) -> int:
    number = _number(request, "partNumber", 0)
    if not 1 <= number <= _PART_LIMIT:
        text = f"Part number must be an integer between 1 and {_PART_LIMIT}, inclusive"
        raise ApiError("InvalidArgument", text, ArgumentName="partNumber", ArgumentValue=str(number))
    return number


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit()):
        raise ApiError("InvalidArgument", f"{name} must be a number", ArgumentName=name, ArgumentValue=text)
    return int(text)


def _torn(part: _Part, what: str) -> ApiError:
    text = f"{what}: it is not part {part.number} as it was uploaded; upload the part again"
    return ApiError("InternalError", text, 500)


def _no_such_upload(upload: str) -> ApiError:
    text = "The specified upload does not exist. The upload ID may be invalid, or the upload may have been"
    return ApiError("NoSuchUpload", f"{text} aborted or completed.", 404, UploadId=upload)
