"""S3 operations on single objects: put, get, head, copy, delete, tags, attributes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import FileRange, Payload, Request, Response
from smlaunch.local.services.s3 import checksums
from smlaunch.local.services.s3.responses import (
    child_elements,
    child_text,
    format_http_date,
    format_iso_date,
    not_implemented_error,
    parse_http_date,
    parse_xml_body,
    xml_response,
)
from smlaunch.local.stores.object_bodies import write_all
from smlaunch.local.stores.object_store import Attributes, ObjectInfo, ObjectStore, WritePrecondition

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
_OVERRIDABLE_RESPONSE_HEADERS = (
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

    def put_object(self, request: Request, payload: Payload, bucket: str, key: str) -> Response:
        attributes = attributes_from_headers(request)
        precondition = precondition_of_write(request)
        self._store.require_bucket(bucket)  # raises for a missing bucket before the body is read
        with self._store.temporary_body_path() as body_path:
            received_body = receive_body(request, payload, body_path)
            if received_body.checksums:
                attributes["checksums"] = received_body.checksums
                attributes["checksum_type"] = "FULL_OBJECT"
            stored_object = self._store.publish_object(
                bucket, key, body_path, received_body.etag, attributes, precondition
            )
        return Response(
            200,
            {
                "ETag": f'"{stored_object.etag}"',
                **_checksum_headers(stored_object),
                **_stored_headers(stored_object, "x-amz-"),
            },
        )

    def get_object(self, request: Request, bucket: str, key: str) -> Response:
        object_info, body_file = self._store.open_object(bucket, key)
        try:
            response = self._object_response(request, object_info, body_file)
        except BaseException:
            body_file.close()
            raise
        if not isinstance(response.body, FileRange):
            body_file.close()
        return response

    def _object_response(self, request: Request, object_info: ObjectInfo, body_file: BinaryIO) -> Response:
        """Return the response to GetObject or HeadObject. ``body_file``: the open file with the object's
        bytes, of which the response sends the requested range or part and which it then closes. Raises
        ApiError."""
        headers = {
            "ETag": f'"{object_info.etag}"',
            "Last-Modified": format_http_date(object_info.modified),
            "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream",
            **_stored_headers(object_info),  # those of the upload, such as its Content-Type
        }
        if not _should_send_object(request.headers, object_info):  # by If-None-Match and the like
            return Response(304, {name: headers[name] for name in ("ETag", "Last-Modified")})
        headers.update(_overriding_headers(request))  # by parameters such as response-content-type
        for name, value in object_info.attributes.get("metadata", {}).items():
            headers[_METADATA_PREFIX + name] = value
        tags = object_info.attributes.get("tags")
        if tags:
            headers["x-amz-tagging-count"] = str(len(tags))
        requested_range: tuple[int, int] | None = None  # (start, length) in bytes; None: the whole object
        if "partNumber" in request.query:
            requested_range = _byte_range_of_part(object_info, request.query["partNumber"])
            headers["x-amz-mp-parts-count"] = str(max(1, len(object_info.attributes.get("parts", ()))))
        elif "range" in request.headers:
            requested_range = parse_byte_range(request.headers["range"], object_info.size)
        start, length = requested_range or (0, object_info.size)
        # An empty object has no bytes that the header could name.
        if requested_range is not None and object_info.size:
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{object_info.size}"
        is_complete = length == object_info.size
        # The checksum is of the whole object, so clients could not check a range with it.
        if is_complete and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            headers.update(_checksum_headers(object_info))
        return Response(206 if requested_range else 200, headers, FileRange(body_file, start, length))

    def copy_object(self, request: Request, bucket: str, key: str) -> Response:
        source_bucket, source_key = copy_source_bucket_and_key(request)
        source_object, source_file = self._store.open_object(source_bucket, source_key)
        with source_file, self._store.temporary_body_path() as body_path:
            check_copy_conditions(request, source_object)
            changes_metadata = _replaces_metadata(request) or _storage_headers(request)
            if (source_bucket, source_key) == (bucket, key) and not changes_metadata:
                message = (
                    "This copy request is illegal because it is trying to copy an object to itself without"
                    " changing the object's metadata, storage class, website redirect location or encryption"
                    " attributes."
                )
                raise ApiError("InvalidRequest", message)
            attributes = _attributes_of_copy(request, source_object)
            etag = copy_byte_range(source_file, body_path, 0, source_object.size)
            copied_object = self._store.publish_object(
                bucket, key, body_path, etag, attributes, precondition_of_write(request)
            )
        result = {
            "LastModified": format_iso_date(copied_object.modified),
            "ETag": f'"{copied_object.etag}"',
            **_checksum_elements(copied_object),
        }
        return xml_response("CopyObjectResult", result)

    def delete_object(self, request: Request, bucket: str, key: str) -> Response:
        self._store.delete_object(bucket, key, precondition_of_delete(request.headers.get("if-match")))
        return Response(204)

    def delete_objects(self, payload: Payload, bucket: str) -> Response:
        """Respond to DeleteObjects: delete the objects that the request's XML lists, and report each that
        could not be deleted."""
        request_document = parse_xml_body(payload)
        reports_only_errors = child_text(request_document, "Quiet") == "true"  # text of a child element
        deleted_elements: list[dict[str, str]] = []
        error_elements: list[dict[str, str]] = []
        object_elements = list(child_elements(request_document, "Object"))
        if not 0 < len(object_elements) <= 1000:
            raise ApiError("MalformedXML", "Between 1 and 1000 objects can be deleted in one request")
        self._store.require_bucket(bucket)  # raises NoSuchBucket
        for object_element in object_elements:
            key = child_text(object_element, "Key") or ""
            # An object with another ETag than the requested one stays, and is reported as an error.
            precondition = precondition_of_delete(if_match=child_text(object_element, "ETag"))
            try:
                self._store.delete_object(bucket, key, precondition)
                deleted_elements.append({"Key": key})
            except ApiError as error:
                error_elements.append({"Key": key, "Code": error.code, "Message": error.message})
        return xml_response(
            "DeleteResult",
            {"Deleted": [] if reports_only_errors else deleted_elements, "Error": error_elements},
        )

    def get_object_tagging(self, bucket: str, key: str) -> Response:
        tags = self._store.head_object(bucket, key).attributes.get("tags", {})
        tag_elements = [{"Key": name, "Value": value} for name, value in tags.items()]
        return xml_response("Tagging", {"TagSet": {"Tag": tag_elements}})

    def put_object_tagging(self, payload: Payload, bucket: str, key: str) -> Response:
        tags = {}
        for tag_set in child_elements(parse_xml_body(payload), "TagSet"):
            for tag in child_elements(tag_set, "Tag"):
                tags[child_text(tag, "Key") or ""] = child_text(tag, "Value") or ""
        _check_tags(tags)
        self._store.update_object_attributes(bucket, key, lambda attributes: {**attributes, "tags": tags})
        return Response(200)

    def delete_object_tagging(self, bucket: str, key: str) -> Response:
        self._store.update_object_attributes(bucket, key, lambda attributes: {**attributes, "tags": {}})
        return Response(204)

    def get_object_attributes(self, request: Request, bucket: str, key: str) -> Response:
        object_info = self._store.head_object(bucket, key)
        requested_names = {
            attribute.strip() for attribute in request.headers.get("x-amz-object-attributes", "").split(",")
        }
        parts = object_info.attributes.get("parts", [])
        checksum = _checksum_elements(object_info)
        all_attributes = {
            "ETag": object_info.etag,
            "Checksum": checksum or None,
            "ObjectParts": {"TotalPartsCount": len(parts)} if parts else None,
            "StorageClass": object_info.attributes.get("headers", {}).get("x-amz-storage-class", "STANDARD"),
            "ObjectSize": object_info.size,
        }
        requested_attributes = {
            name: value for name, value in all_attributes.items() if name in requested_names
        }
        return xml_response(
            "GetObjectAttributesOutput",
            requested_attributes,
            headers={"Last-Modified": format_http_date(object_info.modified)},
        )


def _overriding_headers(request: Request) -> dict[str, str]:
    """Return the response headers that a read request sets itself, by parameters such as
    ``response-content-type``."""
    return {
        _STORED_HEADERS[name]: request.query[f"response-{name}"]
        for name in _OVERRIDABLE_RESPONSE_HEADERS
        if f"response-{name}" in request.query
    }


def _replaces_metadata(request: Request) -> bool:
    return request.headers.get("x-amz-metadata-directive", "COPY") == "REPLACE"


def _attributes_of_copy(request: Request, source_object: ObjectInfo) -> Attributes:
    """Return the attributes (HTTP headers, metadata, tags, checksums) of the object that CopyObject creates:
    those of the source, or those in the request's headers where its directives are REPLACE."""
    attributes = source_object.attributes
    if _replaces_metadata(request):  # x-amz-metadata-directive, default COPY
        attributes = attributes_from_headers(request)
    else:
        # The request's headers for storage class and encryption count without the directive.
        attributes["headers"] = {**attributes.get("headers", {}), **_storage_headers(request)}
    replaces_tags = request.headers.get("x-amz-tagging-directive", "COPY") == "REPLACE"
    if replaces_tags:
        attributes["tags"] = _tags_from_header(request)
    else:
        attributes["tags"] = source_object.attributes.get("tags", {})
    # A copy has no parts, so a composite checksum of the source is not its checksum.
    attributes.pop("parts", None)
    attributes.pop("checksums", None)
    attributes.pop("checksum_type", None)
    if source_object.attributes.get("checksum_type") == "FULL_OBJECT":
        attributes["checksums"] = source_object.attributes.get("checksums", {})
        attributes["checksum_type"] = "FULL_OBJECT"
    return attributes


def receive_body(
    request: Request, payload: Payload, target_path: Path, extra_algorithm: str = ""
) -> ReceivedBody:
    """Write the body of an upload to the file ``target_path`` and verify all checksums that the client sent,
    in the request's headers or after the body. ``extra_algorithm``: one more checksum to compute, if it is
    not empty. Raises ApiError for a body that does not match its checksums or its length."""
    headers = request.headers
    # Those of the checksums that the headers hold, or announce for after the body.
    algorithms = _checksum_algorithms_of_upload(headers) | ({extra_algorithm} if extra_algorithm else set())
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


def attributes_from_headers(request: Request) -> Attributes:
    """Return the attributes of an object (HTTP headers, metadata, tags) that the headers of a PUT or POST
    request set. Raises ApiError for headers of S3 that the local endpoint does not support."""
    for name in _UNSUPPORTED_HEADERS:  # such as those of object lock and of customers' encryption keys
        if name in request.headers:
            raise not_implemented_error(f"the header {name}")
    grants_access = any(name.startswith("x-amz-grant-") for name in request.headers)
    acl = request.headers.get("x-amz-acl", "private")
    # As in a new bucket, ACLs are off; these two would change nothing.
    if grants_access or acl not in ("private", "bucket-owner-full-control"):
        raise ApiError("AccessControlListNotSupported", "The bucket does not allow ACLs")
    # Those that a GET returns, such as Content-Type, by their names in lower case.
    headers = {
        _STORED_HEADERS[name]: value for name, value in request.headers.items() if name in _STORED_HEADERS
    }
    encodings = [encoding.strip() for encoding in headers.pop("Content-Encoding", "").split(",")]
    # aws-chunked is the encoding of the upload, not of the object.
    stored_encodings = ",".join(encoding for encoding in encodings if encoding and encoding != "aws-chunked")
    if stored_encodings:
        headers["Content-Encoding"] = stored_encodings
    metadata = {  # headers with the prefix x-amz-meta-
        name[len(_METADATA_PREFIX) :]: value
        for name, value in request.headers.items()
        if name.startswith(_METADATA_PREFIX)
    }
    metadata_bytes = sum(len(name) + len(value) for name, value in metadata.items())
    if metadata_bytes > _MAX_METADATA_BYTES:  # 2 KiB, as in S3
        raise ApiError("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size")
    return {"headers": headers, "metadata": metadata, "tags": _tags_from_header(request)}


def precondition_of_write(request: Request) -> WritePrecondition | None:
    """Return a function that checks a write's If-Match and If-None-Match headers against the object that the
    write would replace; None without such headers. The store calls it in the write's transaction, so that no
    other write comes in between."""
    if_match, if_none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if if_none_match not in (None, "*"):
        raise not_implemented_error("If-None-Match with anything but * on a write")
    if if_match is None and if_none_match is None:
        return None

    def check_existing_object(existing_object: ObjectInfo | None) -> None:
        """Raise ApiError unless the object that a write would replace (None: there is none) meets the write's
        If-Match and If-None-Match headers."""
        if if_none_match and existing_object is not None:  # its only value is *: any object
            raise _precondition_failed_error("If-None-Match")
        if if_match and existing_object is None:
            raise ApiError("NoSuchKey", "The specified key does not exist.", 404)
        if if_match and existing_object is not None and not _etag_matches(if_match, existing_object.etag):
            raise _precondition_failed_error("If-Match")

    return check_existing_object


def precondition_of_delete(if_match: str | None) -> WritePrecondition | None:
    if if_match is None:
        return None

    def check_existing_object(existing_object: ObjectInfo | None) -> None:
        if existing_object is None or not _etag_matches(if_match, existing_object.etag):
            raise _precondition_failed_error("If-Match")

    return check_existing_object


def copy_source_bucket_and_key(request: Request) -> tuple[str, str]:
    """Return (bucket, key) of a copy's source. Raises ApiError."""
    text, _, version = request.headers["x-amz-copy-source"].partition("?versionId=")
    if version not in ("", "null"):
        raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
    bucket, _, key = unquote_plus(text).removeprefix("/").partition("/")
    if not key:
        raise ApiError("InvalidArgument", "Copy Source must mention the source bucket and key: /bucket/key")
    return bucket, key


def check_copy_conditions(request: Request, source_object: ObjectInfo) -> None:
    prefix = "x-amz-copy-source-"
    headers = {
        name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)
    }
    if not _should_send_object(headers, source_object):
        raise _precondition_failed_error("x-amz-copy-source-If-None-Match or -Modified-Since")


def copy_byte_range(source_file: BinaryIO, target_path: Path, start: int, remaining_bytes: int) -> str:
    """Copy bytes of an open file into a new file and return their MD5 in hex. Raises ApiError when the source
    is too short."""
    md5 = hashlib.md5(usedforsecurity=False)
    source_file.seek(start)
    with target_path.open("wb", buffering=0) as target_file:
        while remaining_bytes and (block := source_file.read(min(remaining_bytes, 1 << 20))):
            md5.update(block)
            write_all(target_file.fileno(), block)
            remaining_bytes -= len(block)
    if remaining_bytes:
        raise ApiError("InternalError", f"{source_file.name} was cut off while it was being copied", 500)
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


def _byte_range_of_part(object_info: ObjectInfo, part_number_text: str) -> tuple[int, int]:
    part_sizes = object_info.attributes.get("parts") or [object_info.size]
    if not part_number_text.isdigit() or not 1 <= int(part_number_text) <= len(part_sizes):
        raise ApiError("InvalidPartNumber", "The requested partnumber is not satisfiable", 416)
    number = int(part_number_text)
    return sum(part_sizes[: number - 1]), part_sizes[number - 1]


def _should_send_object(headers: Mapping[str, str], object_info: ObjectInfo) -> bool:
    """Return whether the conditional headers of a GET, HEAD or copy (If-Match, If-None-Match,
    If-Modified-Since, If-Unmodified-Since) ask for the object; False: the client's copy is up to date (304
    Not Modified). Raises ApiError for a failed If-Match or If-Unmodified-Since. ``headers``: names in lower
    case."""
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    modified_at = int(object_info.modified)  # HTTP dates have whole seconds
    if if_match is not None and not _etag_matches(if_match, object_info.etag):
        raise _precondition_failed_error("If-Match")
    # By RFC 9110, 13.2.2, a condition on the ETag takes the place of the one on the date.
    unmodified_since = parse_http_date(headers.get("if-unmodified-since", ""))
    if if_match is None and unmodified_since is not None and modified_at > unmodified_since:
        raise _precondition_failed_error("If-Unmodified-Since")
    if if_none_match is not None:
        return not _etag_matches(if_none_match, object_info.etag)
    modified_since = parse_http_date(headers.get("if-modified-since", ""))
    return modified_since is None or modified_at > modified_since


def _etag_matches(condition: str, etag: str) -> bool:
    return any(
        candidate.strip().removeprefix("W/").strip('"') in ("*", etag) for candidate in condition.split(",")
    )


def _precondition_failed_error(condition: str) -> ApiError:
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


def _stored_headers(object_info: ObjectInfo, prefix: str = "") -> dict[str, str]:
    stored = object_info.attributes.get("headers", {})
    return {name: value for name, value in stored.items() if name.startswith(prefix)}


def _checksum_headers(object_info: ObjectInfo) -> dict[str, str]:
    checksum_by_algorithm = object_info.attributes.get("checksums", {})
    headers = {checksums.header_name(name): value for name, value in checksum_by_algorithm.items()}
    if headers:
        headers["x-amz-checksum-type"] = object_info.attributes.get("checksum_type", "FULL_OBJECT")
    return headers


def _checksum_elements(object_info: ObjectInfo) -> dict[str, str]:
    elements = {
        f"Checksum{name}": value for name, value in object_info.attributes.get("checksums", {}).items()
    }
    if elements:
        elements["ChecksumType"] = object_info.attributes.get("checksum_type", "FULL_OBJECT")
    return elements
