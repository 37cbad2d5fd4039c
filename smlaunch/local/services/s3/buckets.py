"""S3 operations on buckets, and listings of their objects."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import quote

from smlaunch.local.api_errors import ApiError
from smlaunch.local.http_messages import Payload, Request, Response
from smlaunch.local.object_index import end_of_prefix
from smlaunch.local.object_store import ObjectInfo, ObjectPage, ObjectStore
from smlaunch.local.request_context import ACCOUNT, current_context
from smlaunch.local.services.s3.responses import iso_date, read_xml, text_of, xml_response

_OWNER = {"ID": ACCOUNT, "DisplayName": "smlaunch"}
_MAX_KEYS = 1000


class S3Buckets:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def list_buckets(self, request: Request) -> Response:
        prefix, region = request.query.get("prefix", ""), request.query.get("bucket-region")
        entries = [
            {"Name": bucket.name, "CreationDate": iso_date(bucket.created), "BucketRegion": bucket.region}
            for bucket in self._store.buckets()
            if bucket.name.startswith(prefix) and region in (None, bucket.region)
        ]
        return xml_response("ListAllMyBucketsResult", {"Owner": _OWNER, "Buckets": {"Bucket": entries}})

    def create(self, payload: Payload, bucket: str) -> Response:
        """Create a bucket (CreateBucket), in the region that the request's document names. Raises ApiError
        if it names none outside us-east-1, or if the bucket exists."""
        configuration = read_xml(payload) if payload_has_body(payload) else None
        region = text_of(configuration, "LocationConstraint") if configuration is not None else None
        request_region = current_context().region
        if region is None and request_region != "us-east-1":
            message = (
                "The unspecified location constraint is incompatible for the region specific endpoint this"
                " request was sent to."
            )
            raise ApiError("IllegalLocationConstraintException", message)
        region = region or "us-east-1"
        is_new = self._store.create_bucket(bucket, region)
        if not is_new and request_region != "us-east-1":  # in us-east-1, S3 responds with 200
            message = "Your previous request to create the named bucket succeeded and you already own it."
            raise ApiError("BucketAlreadyOwnedByYou", message, 409, BucketName=bucket)
        return Response(200, {"Location": f"/{bucket}"})

    def head(self, bucket: str) -> Response:
        return Response(200, {"x-amz-bucket-region": self._store.require_bucket(bucket).region})

    def delete(self, bucket: str) -> Response:
        self._store.delete_bucket(bucket)
        return Response(204)

    def location(self, bucket: str) -> Response:
        region = self._store.require_bucket(bucket).region
        return xml_response("LocationConstraint", "" if region == "us-east-1" else region)

    def list_v2(self, request: Request, bucket: str) -> Response:
        """Return a page of a bucket's objects (ListObjectsV2), from the key of the token or after ``start-
        after``."""
        query = request.query
        token, start_after = query.get("continuation-token"), query.get("start-after", "")
        first_key = _decode_token(token) if token is not None else b""
        if token is None and start_after:
            first_key = start_after.encode() + b"\0"
        document, page = self._page(request, bucket, first_key)
        count = len(document["Contents"]) + len(document["CommonPrefixes"])
        owner = {"Owner": _OWNER} if query.get("fetch-owner") == "true" else {}
        document["Contents"] = [{**entry, **owner} for entry in document["Contents"]]
        document |= {
            "KeyCount": count,
            "ContinuationToken": token,
            "StartAfter": _url_encoded(request, start_after) if start_after else None,
            "NextContinuationToken": None
            if page.next_key is None
            else base64.urlsafe_b64encode(page.next_key).decode(),
        }
        return xml_response("ListBucketResult", document)

    def list_v1(self, request: Request, bucket: str) -> Response:
        """Return a page of a bucket's objects (ListObjects), after the key ``marker``."""
        query = request.query
        marker, delimiter = query.get("marker", ""), query.get("delimiter", "")
        first_key = marker.encode() + b"\0" if marker else b""
        if delimiter and marker.endswith(delimiter):
            first_key = end_of_prefix(marker.encode()) or b"\xff"  # the last entry was a common prefix
        document, page = self._page(request, bucket, first_key)
        for entry in document["Contents"]:
            entry["Owner"] = _OWNER
        document["Marker"] = _url_encoded(request, marker)
        if page.next_key is not None and delimiter:
            listed_keys = [info.key for info in page.objects] + page.prefixes
            document["NextMarker"] = _url_encoded(request, max(listed_keys, key=str.encode))
        return xml_response("ListBucketResult", document)

    def list_versions(self, request: Request, bucket: str) -> Response:
        """List versions: without versioning, each object has one version with the id ``null``."""
        marker = request.query.get("key-marker", "")
        document, page = self._page(request, bucket, marker.encode() + b"\0" if marker else b"")
        versions = [{**entry, "VersionId": "null", "IsLatest": True} for entry in document.pop("Contents")]
        document |= {"KeyMarker": _url_encoded(request, marker), "Version": versions}
        if page.next_key is not None and versions:
            document |= {"NextKeyMarker": versions[-1]["Key"], "NextVersionIdMarker": "null"}
        return xml_response("ListVersionsResult", document)

    def _page(self, request: Request, bucket: str, first_key: bytes) -> tuple[dict[str, Any], ObjectPage]:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = _max_keys(query.get("max-keys"))
        page = self._store.page(bucket, prefix, delimiter=delimiter, first_key=first_key, limit=limit)
        if limit == 0:
            page = ObjectPage([], [], None)  # S3 reports the end of the list, not an empty page
        document = {
            "Name": bucket,
            "Prefix": _url_encoded(request, prefix),
            "Delimiter": _url_encoded(request, delimiter) if delimiter else None,
            "MaxKeys": limit,
            "EncodingType": query.get("encoding-type"),
            "IsTruncated": page.next_key is not None,
            "Contents": [self._entry(request, info) for info in page.objects],
            "CommonPrefixes": [
                {"Prefix": _url_encoded(request, common_prefix)} for common_prefix in page.prefixes
            ],
        }
        return document, page

    @staticmethod
    def _entry(request: Request, info: ObjectInfo) -> dict[str, Any]:
        algorithms = list(info.attributes.get("checksums", ()))
        return {
            "Key": _url_encoded(request, info.key),
            "LastModified": iso_date(info.modified),
            "ETag": f'"{info.etag}"',
            "ChecksumAlgorithm": algorithms,
            "ChecksumType": info.attributes.get("checksum_type") if algorithms else None,
            "Size": info.size,
            "StorageClass": info.attributes.get("headers", {}).get("x-amz-storage-class", "STANDARD"),
        }


def payload_has_body(payload: Payload) -> bool:
    peek = getattr(payload.stream, "peek", None)
    return bool(peek(1)) if peek is not None else True


def _url_encoded(request: Request, text: str) -> str:
    return quote(text, safe="/-_.~") if request.query.get("encoding-type") == "url" else text


def _max_keys(text: str | None) -> int:
    if text is None:
        return _MAX_KEYS
    if not (text.isascii() and text.isdigit()):
        raise ApiError(
            "InvalidArgument", "max-keys must be a number", ArgumentName="max-keys", ArgumentValue=text
        )
    return min(int(text), _MAX_KEYS)


def _decode_token(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("InvalidArgument", "The continuation token provided is incorrect") from None
