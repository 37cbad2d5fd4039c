"""Buckets, and the listings of what is in them."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import quote

from smlaunch.local.caller import ACCOUNT, current
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.object_index import after_prefix
from smlaunch.local.objects import ObjectInfo, ObjectStore, Page
from smlaunch.local.services.s3.answers import iso_date, read_xml, text_of, xml

_OWNER = {"ID": ACCOUNT, "DisplayName": "smlaunch"}
_PAGE = 1000


class Buckets:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def all(self, request: Request) -> Response:
        prefix, region = request.query.get("prefix", ""), request.query.get("bucket-region")
        entries = [
            {"Name": bucket.name, "CreationDate": iso_date(bucket.created), "BucketRegion": bucket.region}
            for bucket in self._store.buckets()
            if bucket.name.startswith(prefix) and region in (None, bucket.region)
        ]
        return xml("ListAllMyBucketsResult", {"Owner": _OWNER, "Buckets": {"Bucket": entries}})

    def create(self, payload: Payload, bucket: str) -> Response:
        root = read_xml(payload) if payload_has_body(payload) else None
        region = text_of(root, "LocationConstraint") if root is not None else None
        if region is None and current().region != "us-east-1":
            text = (
                "The unspecified location constraint is incompatible for the region specific endpoint this"
                " request was sent to."
            )
            raise ApiError("IllegalLocationConstraintException", text)
        region = region or "us-east-1"
        made = self._store.create_bucket(bucket, region)
        if (
            not made and current().region != "us-east-1"
        ):  # there S3 answers 200 to the owner, for old times' sake
            text = "Your previous request to create the named bucket succeeded and you already own it."
            raise ApiError("BucketAlreadyOwnedByYou", text, 409, BucketName=bucket)
        return Response(200, {"Location": f"/{bucket}"})

    def head(self, bucket: str) -> Response:
        return Response(200, {"x-amz-bucket-region": self._store.bucket(bucket).region})

    def delete(self, bucket: str) -> Response:
        self._store.delete_bucket(bucket)
        return Response(204)

    def location(self, bucket: str) -> Response:
        region = self._store.bucket(bucket).region
        return xml("LocationConstraint", "" if region == "us-east-1" else region)

    def list_v2(self, request: Request, bucket: str) -> Response:
        query = request.query
        token, start_after = query.get("continuation-token"), query.get("start-after", "")
        after = _decode_token(token) if token is not None else b""
        if token is None and start_after:
            after = start_after.encode() + b"\0"
        document, page = self._page(request, bucket, after)
        count = len(document["Contents"]) + len(document["CommonPrefixes"])
        owner = {"Owner": _OWNER} if query.get("fetch-owner") == "true" else {}
        document["Contents"] = [{**entry, **owner} for entry in document["Contents"]]
        document |= {
            "KeyCount": count,
            "ContinuationToken": token,
            "StartAfter": _written(request, start_after) if start_after else None,
            "NextContinuationToken": None
            if page.next is None
            else base64.urlsafe_b64encode(page.next).decode(),
        }
        return xml("ListBucketResult", document)

    def list_v1(self, request: Request, bucket: str) -> Response:
        query = request.query
        marker, delimiter = query.get("marker", ""), query.get("delimiter", "")
        after = marker.encode() + b"\0" if marker else b""
        if delimiter and marker.endswith(delimiter):
            after = after_prefix(marker.encode()) or b"\xff"  # a common prefix was the last thing told
        document, page = self._page(request, bucket, after)
        for entry in document["Contents"]:
            entry["Owner"] = _OWNER
        document["Marker"] = _written(request, marker)
        if page.next is not None and delimiter:
            told = [info.key for info in page.objects] + page.prefixes
            document["NextMarker"] = _written(request, max(told, key=str.encode))
        return xml("ListBucketResult", document)

    def list_versions(self, request: Request, bucket: str) -> Response:
        """Versioning is never on here: each object is its own one version, called ``null``."""
        marker = request.query.get("key-marker", "")
        document, page = self._page(request, bucket, marker.encode() + b"\0" if marker else b"")
        versions = [{**entry, "VersionId": "null", "IsLatest": True} for entry in document.pop("Contents")]
        document |= {"KeyMarker": _written(request, marker), "Version": versions}
        if page.next is not None and versions:
            document |= {"NextKeyMarker": versions[-1]["Key"], "NextVersionIdMarker": "null"}
        return xml("ListVersionsResult", document)

    def _page(self, request: Request, bucket: str, after: bytes) -> tuple[dict[str, Any], Page]:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = _limit(query.get("max-keys"))
        page = self._store.page(bucket, prefix, delimiter=delimiter, after=after, limit=limit)
        if limit == 0:
            page = Page([], [], None)  # S3 calls that the end, not a page of nothing
        document = {
            "Name": bucket,
            "Prefix": _written(request, prefix),
            "Delimiter": _written(request, delimiter) if delimiter else None,
            "MaxKeys": limit,
            "EncodingType": query.get("encoding-type"),
            "IsTruncated": page.next is not None,
            "Contents": [self._entry(request, info) for info in page.objects],
            "CommonPrefixes": [{"Prefix": _written(request, shared)} for shared in page.prefixes],
        }
        return document, page

    @staticmethod
    def _entry(request: Request, info: ObjectInfo) -> dict[str, Any]:
        algorithms = list(info.attributes.get("checksums", ()))
        return {
            "Key": _written(request, info.key),
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


def _written(request: Request, text: str) -> str:
    return quote(text, safe="/-_.~") if request.query.get("encoding-type") == "url" else text


def _limit(text: str | None) -> int:
    if text is None:
        return _PAGE
    if not (text.isascii() and text.isdigit()):
        raise ApiError(
            "InvalidArgument", "max-keys must be a number", ArgumentName="max-keys", ArgumentValue=text
        )
    return min(int(text), _PAGE)


def _decode_token(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("InvalidArgument", "The continuation token provided is incorrect") from None
