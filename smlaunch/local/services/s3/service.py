"""Which S3 operation a request is, by its method, its path and the sub-resource in its query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from smlaunch.local.caller import ACCOUNT
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.objects import KEY_LIMIT, ObjectStore
from smlaunch.local.services.s3.answers import S3Errors, not_provided, xml
from smlaunch.local.services.s3.listing import Buckets
from smlaunch.local.services.s3.multipart import Multipart
from smlaunch.local.services.s3.transfer import Objects, copy_source

SUBRESOURCES = frozenset(
    """
    accelerate acl analytics attributes cors delete encryption intelligent-tiering inventory legal-hold
    lifecycle location logging metadataTable metrics notification object-lock ownershipControls policy
    policyStatus publicAccessBlock renameObject replication requestPayment restore retention select
    session tagging torrent uploadId uploads versioning versions website
    """.split()  # noqa: SIM905  a list of thirty quoted words reads worse
)
_ACCOUNT_ID = re.compile("[0-9]{12}")

_ABSENT: Mapping[str, tuple[str, str]] = {
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
    """Buckets in the path (``/bucket/key``) or in front of the host (``bucket.localhost``)."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._buckets = Buckets(store)
        self._objects = Objects(store)
        self._multipart = Multipart(store)

    def serve(self, request: Request, payload: Payload) -> Response:
        bucket, key = bucket_and_key(request)
        self._check_owner(request, bucket)
        found = sorted(SUBRESOURCES.intersection(request.query))
        # An upload's id stands beside its part number, and is a sub-resource of the object for all methods.
        what = found[0] if found else ""
        if request.query.get("versionId", "null") != "null":
            raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
        if not bucket:
            if request.method != "GET":
                raise _not_allowed(request)
            return self._buckets.all(request)
        if not key:
            return self._on_bucket(request, payload, bucket, what)
        if len(key.encode()) > KEY_LIMIT:
            raise ApiError("KeyTooLongError", "Your key is too long", Size=str(len(key.encode())))
        return self._on_object(request, payload, bucket, key, what)

    def owner_of(self, bucket: str) -> str | None:
        """All buckets are this endpoint's; None for one that does not exist, which the operation tells."""
        try:
            self._store.bucket(bucket)
        except ApiError:
            return None
        return ACCOUNT

    def _check_owner(self, request: Request, bucket: str) -> None:
        """Every operation, on a bucket or on an object, is refused where the bucket is somebody else's."""
        for header in ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"):
            expected = request.headers.get(header)
            if expected is None:
                continue
            if not _ACCOUNT_ID.fullmatch(expected):
                text = "The value of the expected bucket owner parameter must be an AWS account ID"
                raise ApiError("InvalidBucketOwnerAWSAccountID", text)
            whose = bucket
            if "source" in header:
                if "x-amz-copy-source" not in request.headers:
                    continue
                whose, _ = copy_source(request)
            if self.owner_of(whose) not in (expected, None):
                raise ApiError("AccessDenied", "Access Denied", 403)

    def _on_bucket(self, request: Request, payload: Payload, bucket: str, what: str) -> Response:
        match request.method, what:
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
                self._store.bucket(bucket)
                return _as_new(what)
            case "GET", _ if what in _ABSENT:
                self._store.bucket(bucket)
                code, message = _ABSENT[what]
                raise ApiError(code, message, 404, BucketName=bucket)
        raise _not_allowed(request) if not what else not_provided(f"{request.method} of a bucket's {what}")

    def _on_object(self, request: Request, payload: Payload, bucket: str, key: str, what: str) -> Response:
        copying = "x-amz-copy-source" in request.headers
        match request.method, what:
            case "GET" | "HEAD", "":
                return self._objects.get(request, bucket, key)
            case "PUT", "":
                if copying:
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
                return _as_new("acl")
            case "POST", "uploads":
                return self._multipart.create(request, bucket, key)
            case "PUT", "uploadId":
                if copying:
                    return self._multipart.copy_part(request, bucket, key)
                return self._multipart.put_part(request, payload, bucket, key)
            case "POST", "uploadId":
                return self._multipart.complete(request, payload, bucket, key)
            case "DELETE", "uploadId":
                return self._multipart.abort(request, bucket, key)
            case "GET", "uploadId":
                return self._multipart.list_parts(request, bucket, key)
        raise _not_allowed(request) if not what else not_provided(f"{request.method} of an object's {what}")


def bucket_and_key(request: Request) -> tuple[str, str]:
    """(bucket, key), each empty where there is none."""
    try:
        path = unquote_to_bytes(request.path).decode("utf-8").removeprefix("/")
    except UnicodeDecodeError:
        raise ApiError("InvalidURI", "Couldn't parse the specified URI.") from None
    host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
    if host.endswith(".localhost"):
        return host.removesuffix(".localhost"), path
    bucket, _, key = path.partition("/")
    return bucket, key


def _as_new(what: str) -> Response:
    """The settings of a bucket that nobody has changed, which is all that there are here."""
    if what == "acl":
        grantee = (
            f'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
            f"<ID>{ACCOUNT}</ID></Grantee>"
        )
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<AccessControlPolicy>'
            f"<Owner><ID>{ACCOUNT}</ID></Owner><AccessControlList><Grant>{grantee}"
            "<Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>"
        )
        return Response(200, {"Content-Type": "application/xml"}, text.encode())
    if what == "requestPayment":
        return xml("RequestPaymentConfiguration", {"Payer": "BucketOwner"})
    roots = {
        "versioning": "VersioningConfiguration",
        "logging": "BucketLoggingStatus",
        "accelerate": "AccelerateConfiguration",
        "notification": "NotificationConfiguration",
    }
    return xml(roots[what], {})


def _not_allowed(request: Request) -> ApiError:
    message = "The specified method is not allowed against this resource."
    return ApiError("MethodNotAllowed", message, 405, Method=request.method)
