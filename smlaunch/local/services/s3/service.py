"""The S3 service: chooses the operation by method, path and sub-resource in the query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import ACCOUNT
from smlaunch.local.services.s3.buckets import S3Buckets
from smlaunch.local.services.s3.multipart import S3MultipartUploads
from smlaunch.local.services.s3.objects import S3Objects, copy_source_bucket_and_key
from smlaunch.local.services.s3.responses import S3Errors, not_implemented_error, xml_response
from smlaunch.local.stores.object_store import MAX_KEY_BYTES, ObjectStore

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
        """Respond to an S3 request: choose its operation by its method, its path and its sub-resource, a name
        in the query such as ``tagging``. Raises ApiError."""
        bucket, key = bucket_and_key(request)
        self._check_expected_bucket_owner(request, bucket)
        # Only one is expected: uploadId is a sub-resource, partNumber beside it is not.
        subresource = min(SUBRESOURCES.intersection(request.query), default="")  # empty: none
        if request.query.get("versionId", "null") != "null":  # without versioning, the only version's id
            raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
        if not bucket:
            if request.method != "GET":
                raise _method_not_allowed_error(request)
            return self._buckets.list_buckets(request)
        if not key:
            return self._serve_bucket_operation(request, payload, bucket, subresource)
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ApiError("KeyTooLongError", "Your key is too long", Size=str(len(key.encode())))
        return self._serve_object_operation(request, payload, bucket, key, subresource)

    def owner_of(self, bucket: str) -> str | None:
        """Return the bucket's owner, which is this account; None for a bucket that does not exist."""
        try:
            self._store.require_bucket(bucket)
        except ApiError:
            return None
        return ACCOUNT

    def _check_expected_bucket_owner(self, request: Request, bucket: str) -> None:
        """Raise ApiError when a header of an S3 request expects another account to own the bucket, or the
        bucket that a copy reads."""
        expected_owner = request.headers.get("x-amz-expected-bucket-owner")
        if expected_owner is not None:
            self._require_owner(expected_owner, bucket)  # raises for another owner, not for a missing bucket
        expected_source_owner = request.headers.get("x-amz-source-expected-bucket-owner")
        if expected_source_owner is not None:
            _require_account_id(expected_source_owner)  # 12 digits
            if "x-amz-copy-source" in request.headers:  # other requests have no source
                source_bucket, _ = copy_source_bucket_and_key(request)
                self._require_owner(expected_source_owner, source_bucket)

    def _require_owner(self, expected_owner: str, bucket: str) -> None:
        """Raise ApiError for a bucket of another owner. A missing bucket is the operation's own error."""
        _require_account_id(expected_owner)
        actual_owner = self.owner_of(bucket)
        if actual_owner is not None and actual_owner != expected_owner:
            raise ApiError("AccessDenied", "Access Denied", 403)

    def _serve_bucket_operation(
        self, request: Request, payload: Payload, bucket: str, subresource: str
    ) -> Response:
        match request.method, subresource:
            case "PUT", "":
                return self._buckets.create_bucket(payload, bucket)
            case "HEAD", "":
                return self._buckets.head_bucket(bucket)
            case "DELETE", "":
                return self._buckets.delete_bucket(bucket)
            case "GET", "":
                if request.query.get("list-type") == "2":
                    return self._buckets.list_objects_v2(request, bucket)
                return self._buckets.list_objects_v1(request, bucket)
            case "GET", "location":
                return self._buckets.get_bucket_location(bucket)
            case "GET", "versions":
                return self._buckets.list_object_versions(request, bucket)
            case "GET", "uploads":
                return self._multipart.list_multipart_uploads(request, bucket)
            case "POST", "delete":
                return self._objects.delete_objects(payload, bucket)
            case "GET", ("versioning" | "acl" | "requestPayment" | "logging" | "accelerate" | "notification"):
                self._store.require_bucket(bucket)
                return _default_configuration(subresource)
            case "GET", _ if subresource in _ABSENT_CONFIGURATION_ERRORS:
                self._store.require_bucket(bucket)
                code, message = _ABSENT_CONFIGURATION_ERRORS[subresource]
                raise ApiError(code, message, 404, BucketName=bucket)
        if not subresource:
            raise _method_not_allowed_error(request)
        raise not_implemented_error(f"{request.method} of a bucket's {subresource}")

    def _serve_object_operation(
        self, request: Request, payload: Payload, bucket: str, key: str, subresource: str
    ) -> Response:
        """Respond to an S3 request for an object. ``subresource``: the query parameter that selects the
        operation, such as ``tagging``; empty for the object itself. Raises ApiError for an operation that the
        endpoint lacks."""
        is_copy = "x-amz-copy-source" in request.headers
        match request.method, subresource:
            case "GET" | "HEAD", "":
                return self._objects.get_object(request, bucket, key)
            case "PUT", "":
                if is_copy:
                    return self._objects.copy_object(request, bucket, key)
                return self._objects.put_object(request, payload, bucket, key)
            case "DELETE", "":
                return self._objects.delete_object(request, bucket, key)
            case "GET", "tagging":
                return self._objects.get_object_tagging(bucket, key)
            case "PUT", "tagging":
                return self._objects.put_object_tagging(payload, bucket, key)
            case "DELETE", "tagging":
                return self._objects.delete_object_tagging(bucket, key)
            case "GET", "attributes":
                return self._objects.get_object_attributes(request, bucket, key)
            case "GET", "acl":
                self._store.head_object(bucket, key)  # raises for a missing object
                return _default_configuration("acl")  # ACLs cannot be changed here
            case "POST", "uploads":
                return self._multipart.create_multipart_upload(request, bucket, key)
            case "PUT", "uploadId":
                if is_copy:
                    return self._multipart.upload_part_copy(request, bucket, key)
                return self._multipart.upload_part(request, payload, bucket, key)
            case "POST", "uploadId":
                return self._multipart.complete_multipart_upload(request, payload, bucket, key)
            case "DELETE", "uploadId":
                return self._multipart.abort_multipart_upload(request, bucket, key)
            case "GET", "uploadId":
                return self._multipart.list_parts(request, bucket, key)
        if not subresource:
            raise _method_not_allowed_error(request)
        raise not_implemented_error(f"{request.method} of an object's {subresource}")


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


def _require_account_id(text: str) -> None:
    if not _ACCOUNT_ID.fullmatch(text):
        message = "The value of the expected bucket owner parameter must be an AWS account ID"
        raise ApiError("InvalidBucketOwnerAWSAccountID", message)


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


def _method_not_allowed_error(request: Request) -> ApiError:
    message = "The specified method is not allowed against this resource."
    return ApiError("MethodNotAllowed", message, 405, Method=request.method)
