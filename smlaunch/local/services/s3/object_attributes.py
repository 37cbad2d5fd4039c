"""What S3 stores with an object beside its bytes: from the headers of requests, and in those of responses."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Request
from smlaunch.local.services.s3.responses import not_implemented_error
from smlaunch.local.stores.object_store import Attributes, ObjectInfo

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
METADATA_PREFIX = "x-amz-meta-"
_MAX_METADATA_BYTES = 2048


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
        name[len(METADATA_PREFIX) :]: value
        for name, value in request.headers.items()
        if name.startswith(METADATA_PREFIX)
    }
    metadata_bytes = sum(len(name) + len(value) for name, value in metadata.items())
    if metadata_bytes > _MAX_METADATA_BYTES:  # 2 KiB, as in S3
        raise ApiError("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size")
    return {"headers": headers, "metadata": metadata, "tags": _tags_from_header(request)}


def attributes_of_copy(request: Request, source_object: ObjectInfo) -> Attributes:
    """Return the attributes (HTTP headers, metadata, tags, checksums) of the object that CopyObject creates:
    those of the source, or those in the request's headers where its directives are REPLACE."""
    attributes = source_object.attributes
    if replaces_metadata(request):  # x-amz-metadata-directive, default COPY
        attributes = attributes_from_headers(request)
    else:
        # The request's headers for storage class and encryption count without the directive.
        attributes["headers"] = {**attributes.get("headers", {}), **storage_headers(request)}
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


def replaces_metadata(request: Request) -> bool:
    return request.headers.get("x-amz-metadata-directive", "COPY") == "REPLACE"


def _tags_from_header(request: Request) -> dict[str, str]:
    tags = dict(parse_qsl(request.headers.get("x-amz-tagging", ""), keep_blank_values=True))
    check_tags(tags)
    return tags


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise ApiError for tags that S3 would reject: too many, or with too long a name or value."""
    if len(tags) > 10:
        raise ApiError("BadRequest", "Object tags cannot be greater than 10")
    if any(not 0 < len(name) <= 128 or len(value) > 256 for name, value in tags.items()):
        raise ApiError("InvalidTag", "The TagKey or TagValue you have provided is invalid")


def storage_headers(request: Request) -> dict[str, str]:
    return {
        name: request.headers[name]
        for name in _STORED_HEADERS
        if name.startswith("x-amz-") and name in request.headers
    }


def stored_headers(object_info: ObjectInfo, prefix: str = "") -> dict[str, str]:
    stored = object_info.attributes.get("headers", {})
    return {name: value for name, value in stored.items() if name.startswith(prefix)}


def overriding_headers(request: Request) -> dict[str, str]:
    """Return the response headers that a read request sets itself, by parameters such as
    ``response-content-type``."""
    return {
        _STORED_HEADERS[name]: request.query[f"response-{name}"]
        for name in _OVERRIDABLE_RESPONSE_HEADERS
        if f"response-{name}" in request.query
    }
