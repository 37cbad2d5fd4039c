"""The S3 service: chooses the operation by method, path and sub-resource in the query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from smlaunch.api.job_kinds import method_name
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import ACCOUNT
from smlaunch.local.services.s3.buckets import S3Buckets
from smlaunch.local.services.s3.multipart import S3MultipartUploads
from smlaunch.local.services.s3.objects import S3Objects, copy_source_bucket_and_key
from smlaunch.local.services.s3.operations import (
    S3Call,
    S3Operation,
    bucket_and_key,
    find_operation,
    requested_subresource,
)
from smlaunch.local.services.s3.responses import S3Errors, not_implemented_error, xml_response
from smlaunch.local.stores.object_store import MAX_KEY_BYTES, ObjectStore

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
_DEFAULT_CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "accelerate": ("AccelerateConfiguration", {}),
    "logging": ("BucketLoggingStatus", {}),
    "notification": ("NotificationConfiguration", {}),
    "requestPayment": ("RequestPaymentConfiguration", {"Payer": "BucketOwner"}),
    "versioning": ("VersioningConfiguration", {}),
}
"""Root element and content."""


class S3Service(S3Errors):
    """S3 with buckets in the path (``/bucket/key``) or in the host name (``bucket.localhost``)."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._operation_groups = (S3Buckets(store), S3Objects(store), S3MultipartUploads(store))

    def serve(self, request: Request, payload: Payload) -> Response:
        """Respond to an S3 request: choose its operation by its method, its path and its sub-resource, a name
        in the query such as ``tagging``. Raises ApiError."""
        bucket, key = bucket_and_key(request)
        self._check_expected_bucket_owner(request, bucket)
        if request.query.get("versionId", "null") != "null":  # without versioning, the only version's id
            raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ApiError("KeyTooLongError", "Your key is too long", Size=str(len(key.encode())))
        operation = find_operation(request)
        if operation is not None:
            return self._find_method(operation)(S3Call(request, payload, bucket, key))
        subresource = requested_subresource(request)
        if not bucket or not subresource:
            message = "The specified method is not allowed against this resource."
            raise ApiError("MethodNotAllowed", message, 405, Method=request.method)
        if request.method == "GET" and not key:
            return self._bucket_configuration(bucket, subresource)
        raise not_implemented_error(
            f"{request.method} of {'an object' if key else 'a bucket'}'s {subresource}"
        )

    def _find_method(self, operation: S3Operation) -> Callable[[S3Call], Response]:
        name = method_name(operation.name)
        operations = next(group for group in self._operation_groups if hasattr(group, name))
        method: Callable[[S3Call], Response] = getattr(operations, name)
        return method

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

    def _bucket_configuration(self, bucket: str, subresource: str) -> Response:
        """Return a configuration of a bucket, the default one: configurations cannot be changed here. Raises
        ApiError for one that a new bucket does not have, and for one that the endpoint lacks."""
        if subresource not in _ABSENT_CONFIGURATION_ERRORS and subresource not in _DEFAULT_CONFIGURATIONS:
            raise not_implemented_error(f"GET of a bucket's {subresource}")
        self._store.require_bucket(bucket)  # raises NoSuchBucket
        if subresource in _ABSENT_CONFIGURATION_ERRORS:
            code, message = _ABSENT_CONFIGURATION_ERRORS[subresource]
            raise ApiError(code, message, 404, BucketName=bucket)
        return xml_response(*_DEFAULT_CONFIGURATIONS[subresource])


def _require_account_id(text: str) -> None:
    if not _ACCOUNT_ID.fullmatch(text):
        message = "The value of the expected bucket owner parameter must be an AWS account ID"
        raise ApiError("InvalidBucketOwnerAWSAccountID", message)
