"""S3 operations on single objects: put, get, head, copy, delete, tags, attributes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from smlaunch.local.api_errors import ApiError
from smlaunch.local.http_messages import FileRange, Payload, Request, Response
from smlaunch.local.object_files import write_all
from smlaunch.local.object_store import Attributes, ObjectInfo, ObjectStore, WriteCondition
from smlaunch.local.services.s3 import checksums
from smlaunch.local.services.s3.responses import (
    children,
    http_date,
    iso_date,
    not_implemented,
    read_http_date,
    read_xml,
    text_of,
    xml_response,
)

_STORED_HEADERS = {
    "content-type": "Content-Type",
    "content-encoding": "Content-Encoding",
    "content-disposition": "Content-Disposition",
    "content-language": "Content-Language",
    "cache-control": "Cache-Control",
    "expires": "Expires",
    # Stored and returned, without an effect.
    "x-amz-server-side-encryption": "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-storage-class": "x-amz-storage-class",
}
_UNSUPPORTED_HEADERS = (
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-legal-hold",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
)
_RESPONSE_OVERRIDES = (
    "content-type",
    "content-language",
    "expires",
    "cache-control",
    "content-disposition",
    "content-encoding",
)
_METADATA_PREFIX = "x-amz-meta-"
_MAX_METADATA_BYTES = 2048


class ReceivedBody(NamedTuple):
    """A body that was written to a file. ``etag``: MD5 in hex; ``checksums``: base64 by algorithm."""

    etag: str
    size: int
    checksums: dict[str, str]


class S3Objects:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, request: Request, payload: Payload, bucket: str, key: str) -> Response:
        attributes = attributes_from_headers(request)
        condition = write_precondition(request)
        self._store.require_bucket(bucket)  # raises for a missing bucket before the body is read
        with self._store.incoming_file() as body:
            received = receive_body(request, payload, body)
            if received.checksums:
                attributes["checksums"] = received.checksums
                attributes["checksum_type"] = "FULL_OBJECT"
            info = self._store.publish(bucket, key, body, received.etag, attributes, condition)
        return Response(
            200, {"ETag": f'"{info.etag}"', **_checksum_headers(info), **_stored_headers(info, "x-amz-")}
        )

    def get(self, request: Request, bucket: str, key: str) -> Response:
        info, file = self._store.open(bucket, key)
        try:
            response = self._describe(request, info, file)
        except BaseException:
            file.close()
            raise
        if not isinstance(response.body, FileRange):
            file.close()
        return response

    def _describe(self, request: Request, info: ObjectInfo, file: BinaryIO) -> Response:
        """Return the response to GetObject or HeadObject for an open object."""
        headers = {
            "ETag": f'"{info.etag}"',
            "Last-Modified": http_date(info.modified),
            "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream",
            **_stored_headers(info),
        }
        if not _check_preconditions(request.headers, info):
            return Response(304, {name: headers[name] for name in ("ETag", "Last-Modified")})
        for name in _RESPONSE_OVERRIDES:
            override = request.query.get(f"response-{name}")
            if override is not None:
                headers[_STORED_HEADERS[name]] = override
        for name, value in info.attributes.get("metadata", {}).items():
            headers[_METADATA_PREFIX + name] = value
        tags = info.attributes.get("tags")
        if tags:
            headers["x-amz-tagging-count"] = str(len(tags))
        requested_range = None
        if "partNumber" in request.query:
            requested_range = _part_range(info, request.query["partNumber"])
            headers["x-amz-mp-parts-count"] = str(max(1, len(info.attributes.get("parts", ()))))
        elif "range" in request.headers:
            requested_range = parse_range(request.headers["range"], info.size)
        start, length = requested_range or (0, info.size)
        if requested_range is not None and info.size:
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{info.size}"
        is_complete = length == info.size
        if is_complete and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            headers.update(_checksum_headers(info))
        return Response(206 if requested_range else 200, headers, FileRange(file, start, length))

    def copy(self, request: Request, bucket: str, key: str) -> Response:
        source_bucket, source_key = copy_source(request)
        info, file = self._store.open(source_bucket, source_key)
        with file, self._store.incoming_file() as body:
            check_copy_conditions(request, info)
            changes_object = _replaces_metadata(request) or _storage_headers(request)
            if (source_bucket, source_key) == (bucket, key) and not changes_object:
                message = (
                    "This copy request is illegal because it is trying to copy an object to itself without"
                    " changing the object's metadata, storage class, website redirect location or encryption"
                    " attributes."
                )
                raise ApiError("InvalidRequest", message)
            attributes = _attributes_of_copy(request, info)
            etag = copy_range(file, body, 0, info.size)
            copied = self._store.publish(bucket, key, body, etag, attributes, write_precondition(request))
        result = {
            "LastModified": iso_date(copied.modified),
            "ETag": f'"{copied.etag}"',
            **_checksum_elements(copied),
        }
        return xml_response("CopyObjectResult", result)

    def delete(self, request: Request, bucket: str, key: str) -> Response:
        self._store.delete_object(bucket, key, delete_precondition(request.headers.get("if-match")))
        return Response(204)

    def delete_many(self, payload: Payload, bucket: str) -> Response:
        """Delete the objects that the request's document lists (DeleteObjects), and report each that could
        not be deleted."""
        root = read_xml(payload)
        quiet = text_of(root, "Quiet") == "true"
        deleted, errors = [], []
        objects = list(children(root, "Object"))
        if not 0 < len(objects) <= 1000:
            raise ApiError("MalformedXML", "Between 1 and 1000 objects can be deleted in one request")
        self._store.require_bucket(bucket)
        for entry in objects:
            key = text_of(entry, "Key") or ""
            try:
                self._store.delete_object(bucket, key, delete_precondition(text_of(entry, "ETag")))
                deleted.append({"Key": key})
            except ApiError as error:
                errors.append({"Key": key, "Code": error.code, "Message": error.message})
        return xml_response("DeleteResult", {"Deleted": [] if quiet else deleted, "Error": errors})

    def get_tags(self, bucket: str, key: str) -> Response:
        tags = self._store.head(bucket, key).attributes.get("tags", {})
        entries = [{"Key": name, "Value": value} for name, value in tags.items()]
        return xml_response("Tagging", {"TagSet": {"Tag": entries}})

    def put_tags(self, payload: Payload, bucket: str, key: str) -> Response:
        tags = {}
        for tag_set in children(read_xml(payload), "TagSet"):
            for tag in children(tag_set, "Tag"):
                tags[text_of(tag, "Key") or ""] = text_of(tag, "Value") or ""
        _check_tags(tags)
        self._store.change_attributes(bucket, key, lambda attributes: {**attributes, "tags": tags})
        return Response(200)

    def delete_tags(self, bucket: str, key: str) -> Response:
        self._store.change_attributes(bucket, key, lambda attributes: {**attributes, "tags": {}})
        return Response(204)

    def attributes(self, request: Request, bucket: str, key: str) -> Response:
        info = self._store.head(bucket, key)
        requested = {
            attribute.strip() for attribute in request.headers.get("x-amz-object-attributes", "").split(",")
        }
        parts = info.attributes.get("parts", [])
        checksum = _checksum_elements(info)
        all_attributes = {
            "ETag": info.etag,
            "Checksum": checksum or None,
            "ObjectParts": {"TotalPartsCount": len(parts)} if parts else None,
            "StorageClass": info.attributes.get("headers", {}).get("x-amz-storage-class", "STANDARD"),
            "ObjectSize": info.size,
        }
        response = {name: value for name, value in all_attributes.items() if name in requested}
        return xml_response(
            "GetObjectAttributesOutput", response, headers={"Last-Modified": http_date(info.modified)}
        )


def _replaces_metadata(request: Request) -> bool:
    return request.headers.get("x-amz-metadata-directive", "COPY") == "REPLACE"


def _attributes_of_copy(request: Request, source: ObjectInfo) -> Attributes:
    """Return the attributes of a copy: the source's, or the request's where its directives are REPLACE."""
    attributes = source.attributes
    if _replaces_metadata(request):
        attributes = attributes_from_headers(request)
    else:
        attributes["headers"] = {**attributes.get("headers", {}), **_storage_headers(request)}
    replaces_tags = request.headers.get("x-amz-tagging-directive", "COPY") == "REPLACE"
    attributes["tags"] = _tags_from_header(request) if replaces_tags else source.attributes.get("tags", {})
    attributes.pop("parts", None)
    attributes.pop("checksums", None)
    attributes.pop("checksum_type", None)
    if source.attributes.get("checksum_type") == "FULL_OBJECT":
        attributes["checksums"] = source.attributes.get("checksums", {})
        attributes["checksum_type"] = "FULL_OBJECT"
    return attributes


def receive_body(request: Request, payload: Payload, target: Path, extra_algorithm: str = "") -> ReceivedBody:
    """Write a body to a file and verify all checksums that the client sent. ``extra_algorithm``: one more
    checksum to compute, if it is not empty. Raises ApiError."""
    headers = request.headers
    expected = checksums.checksums_in_headers(headers)
    algorithms = {*expected, *([extra_algorithm] if extra_algorithm else [])}
    trailer = headers.get("x-amz-trailer", "").lower().removeprefix("x-amz-checksum-").upper()
    if trailer in checksums.ALGORITHMS:
        algorithms.add(trailer)
    digests = {name: digest for name in algorithms if (digest := checksums.new_digest(name)) is not None}
    md5 = hashlib.md5(usedforsecurity=False)
    size = 0
    with target.open("wb", buffering=0) as file:
        for block in payload.blocks():
            md5.update(block)
            for digest in digests.values():
                digest.update(block)
            write_all(file.fileno(), block)
            size += len(block)
    stated_length = headers.get("x-amz-decoded-content-length")
    if stated_length is not None and stated_length != str(size):
        raise ApiError(
            "IncompleteBody", f"The body holds {size} bytes, not the {stated_length} that it states"
        )
    expected.update(checksums.checksums_in_headers(payload.trailers))
    stated_md5 = headers.get("content-md5")
    if stated_md5 is not None and stated_md5 != base64.b64encode(md5.digest()).decode():
        raise ApiError("BadDigest", "The Content-MD5 you specified did not match what we received.")
    checksum_by_algorithm = dict(expected)
    for name, digest in digests.items():
        value = checksums.encode(digest)
        if expected.get(name, value) != value:
            raise checksums.mismatch_error(name)
        checksum_by_algorithm[name] = value
    return ReceivedBody(md5.hexdigest(), size, checksum_by_algorithm)


def attributes_from_headers(request: Request) -> Attributes:
    """Return the attributes that the headers of a write set. Raises ApiError for unsupported headers."""
    for name in _UNSUPPORTED_HEADERS:
        if name in request.headers:
            raise not_implemented(f"the header {name}")
    acl = request.headers.get("x-amz-acl", "private")
    if acl not in ("private", "bucket-owner-full-control") or any(
        name.startswith("x-amz-grant-") for name in request.headers
    ):
        raise ApiError("AccessControlListNotSupported", "The bucket does not allow ACLs")
    headers = {
        _STORED_HEADERS[name]: value for name, value in request.headers.items() if name in _STORED_HEADERS
    }
    encodings = [encoding.strip() for encoding in headers.pop("Content-Encoding", "").split(",")]
    stored_encodings = ",".join(encoding for encoding in encodings if encoding and encoding != "aws-chunked")
    if stored_encodings:
        headers["Content-Encoding"] = stored_encodings
    metadata = {
        name[len(_METADATA_PREFIX) :]: value
        for name, value in request.headers.items()
        if name.startswith(_METADATA_PREFIX)
    }
    if sum(len(name) + len(value) for name, value in metadata.items()) > _MAX_METADATA_BYTES:
        raise ApiError("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size")
    return {"headers": headers, "metadata": metadata, "tags": _tags_from_header(request)}


def write_precondition(request: Request) -> WriteCondition | None:
    """Return the check for If-Match and If-None-Match of a write, which runs in the write's transaction."""
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if none_match not in (None, "*"):
        raise not_implemented("If-None-Match with anything but * on a write")
    if match is None and none_match is None:
        return None

    def check(old_object: ObjectInfo | None) -> None:
        """Raise ApiError unless the object that the write replaces, None without one, meets the
        conditions."""
        if none_match and old_object is not None:
            raise _precondition_failed("If-None-Match")
        if match and old_object is None:
            raise ApiError("NoSuchKey", "The specified key does not exist.", 404)
        if match and old_object is not None and not _etag_matches(match, old_object.etag):
            raise _precondition_failed("If-Match")

    return check


def delete_precondition(match: str | None) -> WriteCondition | None:
    if match is None:
        return None

    def check(old_object: ObjectInfo | None) -> None:
        if old_object is None or not _etag_matches(match, old_object.etag):
            raise _precondition_failed("If-Match")

    return check


def copy_source(request: Request) -> tuple[str, str]:
    """Return (bucket, key) of a copy's source. Raises ApiError."""
    text, _, version = request.headers["x-amz-copy-source"].partition("?versionId=")
    if version not in ("", "null"):
        raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
    bucket, _, key = unquote_plus(text).removeprefix("/").partition("/")
    if not key:
        raise ApiError("InvalidArgument", "Copy Source must mention the source bucket and key: /bucket/key")
    return bucket, key


def check_copy_conditions(request: Request, info: ObjectInfo) -> None:
    prefix = "x-amz-copy-source-"
    headers = {
        name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)
    }
    if not _check_preconditions(headers, info):
        raise _precondition_failed("x-amz-copy-source-If-None-Match or -Modified-Since")


def copy_range(source: BinaryIO, target: Path, start: int, length: int) -> str:
    """Copy bytes of an open file into a new file and return their MD5 in hex. Raises ApiError when the source
    is too short."""
    digest = hashlib.md5(usedforsecurity=False)
    source.seek(start)
    with target.open("wb", buffering=0) as writer:
        while length and (block := source.read(min(length, 1 << 20))):
            digest.update(block)
            write_all(writer.fileno(), block)
            length -= len(block)
    if length:
        raise ApiError("InternalError", f"{source.name} was cut off while it was being copied", 500)
    return digest.hexdigest()


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """Parse ``bytes=a-b``, ``bytes=a-`` or ``bytes=-n`` and return (start, length); None for a range that
    HTTP requires to ignore. Raises ApiError for a range outside the object."""
    unit, _, range_text = text.partition("=")
    first, dash, last = range_text.strip().partition("-")
    if (
        unit.strip() != "bytes"
        or not dash
        or not _is_digits(first)
        or not _is_digits(last)
        or not first + last
    ):
        return None
    if not first:
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        length = (min(int(last), size - 1) if last else size - 1) - start + 1
        if last and int(last) < start:
            return None
    if length <= 0:
        message = "The requested range is not satisfiable"
        raise ApiError("InvalidRange", message, 416, RangeRequested=text, ActualObjectSize=str(size))
    return start, length


def _is_digits(text: str) -> bool:
    return text == "" or (text.isascii() and text.isdigit())


def _part_range(info: ObjectInfo, text: str) -> tuple[int, int]:
    sizes = info.attributes.get("parts") or [info.size]
    if not text.isdigit() or not 1 <= int(text) <= len(sizes):
        raise ApiError("InvalidPartNumber", "The requested partnumber is not satisfiable", 416)
    number = int(text)
    return sum(sizes[: number - 1]), sizes[number - 1]


def _check_preconditions(headers: Mapping[str, str], info: ObjectInfo) -> bool:
    """Check the conditions of a read. Returns False for "not modified". Raises ApiError when one fails."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and not _etag_matches(match, info.etag):
        raise _precondition_failed("If-Match")
    unmodified = read_http_date(headers.get("if-unmodified-since", ""))
    if match is None and unmodified is not None and int(info.modified) > unmodified:
        raise _precondition_failed("If-Unmodified-Since")
    if none_match is not None:
        return not _etag_matches(none_match, info.etag)
    modified = read_http_date(headers.get("if-modified-since", ""))
    return modified is None or int(info.modified) > modified


def _etag_matches(condition: str, etag: str) -> bool:
    return any(
        candidate.strip().removeprefix("W/").strip('"') in ("*", etag) for candidate in condition.split(",")
    )


def _precondition_failed(condition: str) -> ApiError:
    message = "At least one of the pre-conditions you specified did not hold"
    return ApiError("PreconditionFailed", message, 412, Condition=condition)


def _tags_from_header(request: Request) -> dict[str, str]:
    tags = dict(parse_qsl(request.headers.get("x-amz-tagging", ""), keep_blank_values=True))
    _check_tags(tags)
    return tags


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > 10:
        raise ApiError("BadRequest", "Object tags cannot be greater than 10")
    if any(not 0 < len(name) <= 128 or len(value) > 256 for name, value in tags.items()):
        raise ApiError("InvalidTag", "The TagKey or TagValue you have provided is invalid")


def _storage_headers(request: Request) -> dict[str, str]:
    return {
        name: request.headers[name]
        for name in _STORED_HEADERS
        if name.startswith("x-amz-") and name in request.headers
    }


def _stored_headers(info: ObjectInfo, prefix: str = "") -> dict[str, str]:
    stored = info.attributes.get("headers", {})
    return {name: value for name, value in stored.items() if name.startswith(prefix)}


def _checksum_headers(info: ObjectInfo) -> dict[str, str]:
    checksums_by_name = info.attributes.get("checksums", {})
    headers = {checksums.header_name(name): value for name, value in checksums_by_name.items()}
    if headers:
        headers["x-amz-checksum-type"] = info.attributes.get("checksum_type", "FULL_OBJECT")
    return headers


def _checksum_elements(info: ObjectInfo) -> dict[str, str]:
    elements = {f"Checksum{name}": value for name, value in info.attributes.get("checksums", {}).items()}
    if elements:
        elements["ChecksumType"] = info.attributes.get("checksum_type", "FULL_OBJECT")
    return elements
