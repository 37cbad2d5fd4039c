"""The S3 service: chooses the operation by method, path and sub-resource in the query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from smlaunch.local.api_errors import ApiError
from smlaunch.local.http_messages import Payload, Request, Response
from smlaunch.local.object_store import MAX_KEY_BYTES, ObjectStore
from smlaunch.local.request_context import ACCOUNT
from smlaunch.local.services.s3.buckets import S3Buckets
from smlaunch.local.services.s3.multipart import S3MultipartUploads
from smlaunch.local.services.s3.objects import S3Objects, copy_source
from smlaunch.local.services.s3.responses import S3Errors, not_implemented, xml_response

SUBRESOURCES = frozenset(
    """
    accelerate acl analytics attributes cors delete encryption intelligent-tiering inventory legal-hold
    lifecycle location logging metadataTable metrics notification object-lock ownershipControls policy
    policyStatus publicAccessBlock renameObject replication requestPayment restore retention select
    session tagging torrent uploadId uploads versioning versions website
    """.split()  # noqa: SIM905  a list of thirty quoted words reads worse
)
_ACCOUNT_ID = re.compile("[0-9]{12}")

_ABSENT_CONFIGURATION_ERRORS: Mapping[str, tuple[str, str]] = {
    "cors": ("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
    "encryption": (
        "ServerSideEncryptionConfigurationNotFoundError",
        "The server side encryption configuration was not found",
    ),
    "lifecycle": ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
    "policy": ("NoSuchBucketPolicy", "The bucket policy does not exist"),
    "publicAccessBlock": (
        "NoSuchPublicAccessBlockConfiguration",
        "The public access block configuration was not found",
    ),
    "replication": ("ReplicationConfigurationNotFoundError", "The replication configuration was not found"),
    "tagging": ("NoSuchTagSet", "The TagSet does not exist"),
    "website": ("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration"),
}


class S3Service(S3Errors):
    """S3 with buckets in the path (``/bucket/key``) or in the host name (``bucket.localhost``)."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._buckets = S3Buckets(store)
        self._objects = S3Objects(store)
        self._multipart = S3MultipartUploads(store)

    def serve(self, request: Request, payload: Payload) -> Response:
        """Respond to a request: choose its operation by its method, its path and its subresource. Raises
        ApiError."""
        bucket, key = bucket_and_key(request)
        self._check_owner(request, bucket)
        subresources = sorted(SUBRESOURCES.intersection(request.query))
        # uploadId is a sub-resource; partNumber beside it is not.
        subresource = subresources[0] if subresources else ""
        if request.query.get("versionId", "null") != "null":
            raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
        if not bucket:
            if request.method != "GET":
                raise _not_allowed(request)
            return self._buckets.list_buckets(request)
        if not key:
            return self._bucket_operation(request, payload, bucket, subresource)
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ApiError("KeyTooLongError", "Your key is too long", Size=str(len(key.encode())))
        return self._object_operation(request, payload, bucket, key, subresource)

    def owner_of(self, bucket: str) -> str | None:
        """Return the bucket's owner, which is this account; None for a bucket that does not exist."""
        try:
            self._store.require_bucket(bucket)
        except ApiError:
            return None
        return ACCOUNT

    def _check_owner(self, request: Request, bucket: str) -> None:
        """Raise ApiError when a header expects another owner of the bucket."""
        for header in ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"):
            expected = request.headers.get(header)
            if expected is None:
                continue
            if not _ACCOUNT_ID.fullmatch(expected):
                message = "The value of the expected bucket owner parameter must be an AWS account ID"
                raise ApiError("InvalidBucketOwnerAWSAccountID", message)
            checked_bucket = bucket
            if "source" in header:
                if "x-amz-copy-source" not in request.headers:
                    continue
                checked_bucket, _ = copy_source(request)
            if self.owner_of(checked_bucket) not in (expected, None):
                raise ApiError("AccessDenied", "Access Denied", 403)

    def _bucket_operation(
        self, request: Request, payload: Payload, bucket: str, subresource: str
    ) -> Response:
        match request.method, subresource:
            case "PUT", "":
                return self._buckets.create(payload, bucket)
            case "HEAD", "":
                return self._buckets.head(bucket)
            case "DELETE", "":
                return self._buckets.delete(bucket)
            case "GET", "":
                if request.query.get("list-type") == "2":
                    return self._buckets.list_v2(request, bucket)
                return self._buckets.list_v1(request, bucket)
            case "GET", "location":
                return self._buckets.location(bucket)
            case "GET", "versions":
                return self._buckets.list_versions(request, bucket)
            case "GET", "uploads":
                return self._multipart.list_uploads(request, bucket)
            case "POST", "delete":
                return self._objects.delete_many(payload, bucket)
            case "GET", ("versioning" | "acl" | "requestPayment" | "logging" | "accelerate" | "notification"):
                self._store.require_bucket(bucket)
                return _default_configuration(subresource)
            case "GET", _ if subresource in _ABSENT_CONFIGURATION_ERRORS:
                self._store.require_bucket(bucket)
                code, message = _ABSENT_CONFIGURATION_ERRORS[subresource]
                raise ApiError(code, message, 404, BucketName=bucket)
        raise (
            _not_allowed(request)
            if not subresource
            else not_implemented(f"{request.method} of a bucket's {subresource}")
        )

    def _object_operation(
        self, request: Request, payload: Payload, bucket: str, key: str, subresource: str
    ) -> Response:
        """Respond to an operation on an object. ``subresource``: the query parameter that selects one, such
        as tagging; empty for the object itself."""
        is_copy = "x-amz-copy-source" in request.headers
        match request.method, subresource:
            case "GET" | "HEAD", "":
                return self._objects.get(request, bucket, key)
            case "PUT", "":
                if is_copy:
                    return self._objects.copy(request, bucket, key)
                return self._objects.put(request, payload, bucket, key)
            case "DELETE", "":
                return self._objects.delete(request, bucket, key)
            case "GET", "tagging":
                return self._objects.get_tags(bucket, key)
            case "PUT", "tagging":
                return self._objects.put_tags(payload, bucket, key)
            case "DELETE", "tagging":
                return self._objects.delete_tags(bucket, key)
            case "GET", "attributes":
                return self._objects.attributes(request, bucket, key)
            case "GET", "acl":
                self._store.head(bucket, key)
                return _default_configuration("acl")
            case "POST", "uploads":
                return self._multipart.create_upload(request, bucket, key)
            case "PUT", "uploadId":
                if is_copy:
                    return self._multipart.copy_part(request, bucket, key)
                return self._multipart.put_part(request, payload, bucket, key)
            case "POST", "uploadId":
                return self._multipart.complete(request, payload, bucket, key)
            case "DELETE", "uploadId":
                return self._multipart.abort(request, bucket, key)
            case "GET", "uploadId":
                return self._multipart.list_parts(request, bucket, key)
        raise (
            _not_allowed(request)
            if not subresource
            else not_implemented(f"{request.method} of an object's {subresource}")
        )


def bucket_and_key(request: Request) -> tuple[str, str]:
    """Return (bucket, key) of a request; an empty string for a missing one."""
    try:
        path = unquote_to_bytes(request.path).decode("utf-8").removeprefix("/")
    except UnicodeDecodeError:
        raise ApiError("InvalidURI", "Couldn't parse the specified URI.") from None
    host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
    if host.endswith(".localhost"):
        return host.removesuffix(".localhost"), path
    bucket, _, key = path.partition("/")
    return bucket, key


def _default_configuration(subresource: str) -> Response:
    """Return the default configuration of a bucket; configurations cannot be changed here."""
    if subresource == "acl":
        grantee = (
            f'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
            f"<ID>{ACCOUNT}</ID></Grantee>"
        )
        document = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<AccessControlPolicy>'
            f"<Owner><ID>{ACCOUNT}</ID></Owner><AccessControlList><Grant>{grantee}"
            "<Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>"
        )
        return Response(200, {"Content-Type": "application/xml"}, document.encode())
    if subresource == "requestPayment":
        return xml_response("RequestPaymentConfiguration", {"Payer": "BucketOwner"})
    roots = {
        "versioning": "VersioningConfiguration",
        "logging": "BucketLoggingStatus",
        "accelerate": "AccelerateConfiguration",
        "notification": "NotificationConfiguration",
    }
    return xml_response(roots[subresource], {})


def _not_allowed(request: Request) -> ApiError:
    message = "The specified method is not allowed against this resource."
    return ApiError("MethodNotAllowed", message, 405, Method=request.method)
