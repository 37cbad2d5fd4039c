"""S3's operations: how a request names one, and the IAM action that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request

SUBRESOURCES = frozenset(
    """
    accelerate acl analytics attributes cors delete encryption intelligent-tiering inventory legal-hold
    lifecycle location logging metadataTable metrics notification object-lock ownershipControls policy
    policyStatus publicAccessBlock renameObject replication requestPayment restore retention select
    session tagging torrent uploadId uploads versioning versions website
    """.split()  # noqa: SIM905  a list of thirty quoted words reads worse
)


class S3Operation(NamedTuple):
    """An operation that the endpoint has."""

    name: str
    iam_action: str
    """Without ``s3:`` (Service Authorization Reference, "Actions, resources, and condition keys for S3")."""


class S3Call(NamedTuple):
    """A request for an operation, with its bucket and key; an empty string for a missing one."""

    request: Request
    payload: Payload
    bucket: str
    key: str


_OBJECT_OPERATIONS: Mapping[tuple[str, str], S3Operation] = {
    ("GET", ""): S3Operation("GetObject", "GetObject"),
    ("HEAD", ""): S3Operation("HeadObject", "GetObject"),
    ("PUT", ""): S3Operation("PutObject", "PutObject"),
    ("DELETE", ""): S3Operation("DeleteObject", "DeleteObject"),
    ("GET", "tagging"): S3Operation("GetObjectTagging", "GetObjectTagging"),
    ("PUT", "tagging"): S3Operation("PutObjectTagging", "PutObjectTagging"),
    ("DELETE", "tagging"): S3Operation("DeleteObjectTagging", "DeleteObjectTagging"),
    ("GET", "attributes"): S3Operation("GetObjectAttributes", "GetObjectAttributes"),
    ("GET", "acl"): S3Operation("GetObjectAcl", "GetObjectAcl"),
    ("POST", "uploads"): S3Operation("CreateMultipartUpload", "PutObject"),
    ("PUT", "uploadId"): S3Operation("UploadPart", "PutObject"),
    ("POST", "uploadId"): S3Operation("CompleteMultipartUpload", "PutObject"),
    ("DELETE", "uploadId"): S3Operation("AbortMultipartUpload", "AbortMultipartUpload"),
    ("GET", "uploadId"): S3Operation("ListParts", "ListMultipartUploadParts"),
}
_BUCKET_OPERATIONS: Mapping[tuple[str, str], S3Operation] = {
    ("GET", ""): S3Operation("ListObjects", "ListBucket"),
    ("HEAD", ""): S3Operation("HeadBucket", "ListBucket"),
    ("PUT", ""): S3Operation("CreateBucket", "CreateBucket"),
    ("DELETE", ""): S3Operation("DeleteBucket", "DeleteBucket"),
    ("GET", "acl"): S3Operation("GetBucketAcl", "GetBucketAcl"),
    ("GET", "location"): S3Operation("GetBucketLocation", "GetBucketLocation"),
    ("GET", "versions"): S3Operation("ListObjectVersions", "ListBucketVersions"),
    ("GET", "uploads"): S3Operation("ListMultipartUploads", "ListBucketMultipartUploads"),
    ("POST", "delete"): S3Operation("DeleteObjects", "DeleteObject"),
}
"""By method and sub-resource."""


def requested_subresource(request: Request) -> str:
    """Return the query parameter that selects an operation, such as ``tagging``; empty without one. Only one
    is expected: ``uploadId`` is a sub-resource, ``partNumber`` beside it is not."""
    return min(SUBRESOURCES.intersection(request.query), default="")


def find_operation(request: Request) -> S3Operation | None:
    """Return the operation that a request names by method, path and sub-resource; None for one that the
    endpoint lacks. Raises ApiError for a path that is not UTF-8."""
    bucket, key = bucket_and_key(request)
    if not bucket:
        return S3Operation("ListBuckets", "ListAllMyBuckets") if request.method == "GET" else None
    operations = _OBJECT_OPERATIONS if key else _BUCKET_OPERATIONS
    operation = operations.get((request.method, requested_subresource(request)))
    if operation is None:
        return None
    if operation.name == "ListObjects" and request.query.get("list-type") == "2":
        return operation._replace(name="ListObjectsV2")
    if operation.name == "PutObject" and "x-amz-copy-source" in request.headers:
        return operation._replace(name="CopyObject")
    return operation


def bucket_and_key(request: Request) -> tuple[str, str]:
    """Return (bucket, key) of a request: from its path, ``/bucket/key``, or with the bucket from its host,
    ``bucket.localhost:8000``. An empty string stands for a missing one. Raises ApiError."""
    try:
        path = unquote_to_bytes(request.path).decode("utf-8").removeprefix("/")
    except UnicodeDecodeError:
        raise ApiError("InvalidURI", "Couldn't parse the specified URI.") from None
    host_header = request.headers.get("host", "")
    host_name = host_header.rpartition(":")[0] or host_header
    if host_name.endswith(".localhost"):
        return host_name.removesuffix(".localhost"), path
    bucket, _, key = path.partition("/")
    return bucket, key
