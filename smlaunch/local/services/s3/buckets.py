"""S3 operations on buckets, and listings of their objects."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import quote

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import ACCOUNT, current_request_context
from smlaunch.local.json_types import JsonObject
from smlaunch.local.services.s3.operations import S3Call
from smlaunch.local.services.s3.responses import (
    child_text,
    default_acl_response,
    format_iso_date,
    parse_xml_body,
    xml_response,
)
from smlaunch.local.stores.object_index import first_key_after_prefix
from smlaunch.local.stores.object_store import ObjectInfo, ObjectPage, ObjectStore

_OWNER = {"ID": ACCOUNT, "DisplayName": "smlaunch"}
_MAX_KEYS = 1000


class S3Buckets:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def list_buckets(self, call: S3Call) -> Response:
        query = call.request.query
        name_prefix, requested_region = query.get("prefix", ""), query.get("bucket-region")
        bucket_elements = [
            {
                "Name": bucket.name,
                "CreationDate": format_iso_date(bucket.created),
                "BucketRegion": bucket.region,
            }
            for bucket in self._store.list_buckets()
            if bucket.name.startswith(name_prefix) and requested_region in (None, bucket.region)
        ]
        return xml_response(
            "ListAllMyBucketsResult", {"Owner": _OWNER, "Buckets": {"Bucket": bucket_elements}}
        )

    def create_bucket(self, call: S3Call) -> Response:
        """Respond to CreateBucket: create a bucket in the region that the request's XML names
        (LocationConstraint). Raises ApiError if it names none and was signed for another region than
        us-east-1, or if the bucket exists."""
        region = None
        if payload_has_body(call.payload):  # the XML is optional
            region = child_text(parse_xml_body(call.payload), "LocationConstraint")
        request_region = current_request_context().region  # of the request's signature
        if region is None and request_region != "us-east-1":
            message = (
                "The unspecified location constraint is incompatible for the region specific endpoint this"
                " request was sent to."
            )
            raise ApiError("IllegalLocationConstraintException", message)
        region = region or "us-east-1"
        is_created = self._store.create_bucket(call.bucket, region)
        if not is_created and request_region != "us-east-1":  # in us-east-1, S3 responds with 200
            message = "Your previous request to create the named bucket succeeded and you already own it."
            raise ApiError("BucketAlreadyOwnedByYou", message, 409, BucketName=call.bucket)
        return Response(200, {"Location": f"/{call.bucket}"})

    def head_bucket(self, call: S3Call) -> Response:
        return Response(200, {"x-amz-bucket-region": self._store.require_bucket(call.bucket).region})

    def delete_bucket(self, call: S3Call) -> Response:
        self._store.delete_bucket(call.bucket)
        return Response(204)

    def get_bucket_location(self, call: S3Call) -> Response:
        region = self._store.require_bucket(call.bucket).region
        return xml_response("LocationConstraint", "" if region == "us-east-1" else region)

    def get_bucket_acl(self, call: S3Call) -> Response:
        self._store.require_bucket(call.bucket)  # raises NoSuchBucket
        return default_acl_response()  # ACLs cannot be changed here

    def list_objects_v2(self, call: S3Call) -> Response:
        """Respond to ListObjectsV2 with a page of a bucket's objects. The page begins with the key that the
        request's continuation token encodes, or else after the key ``start-after``."""
        request, query = call.request, call.request.query
        token, start_after = query.get("continuation-token"), query.get("start-after", "")
        if token is not None:
            first_key = _decode_continuation_token(token)  # made below, for the page before
        else:
            first_key = _smallest_key_after(start_after) if start_after else b""
        document, page = self._list_page_of_objects(request, call.bucket, first_key)
        if query.get("fetch-owner") == "true":
            document["Contents"] = [{**entry, "Owner": _OWNER} for entry in document["Contents"]]
        next_token = None  # on the last page
        if page.next_key is not None:
            next_token = base64.urlsafe_b64encode(page.next_key).decode()
        document |= {
            "KeyCount": len(document["Contents"]) + len(document["CommonPrefixes"]),
            "ContinuationToken": token,
            "StartAfter": _url_encode_if_requested(request, start_after) if start_after else None,
            "NextContinuationToken": next_token,
        }
        return xml_response("ListBucketResult", document)

    def list_objects(self, call: S3Call) -> Response:
        """Respond to ListObjects (version 1) with a page of a bucket's objects after the key ``marker``: the
        last key or common prefix of the page before."""
        request, query = call.request, call.request.query
        marker, delimiter = query.get("marker", ""), query.get("delimiter", "")
        first_key = _smallest_key_after(marker) if marker else b""
        is_marker_common_prefix = bool(delimiter) and marker.endswith(delimiter)
        if is_marker_common_prefix:
            # All keys with this prefix belong to the page before. No key begins with byte 0xFF.
            first_key = first_key_after_prefix(marker.encode()) or b"\xff"
        document, page = self._list_page_of_objects(request, call.bucket, first_key)
        for entry in document["Contents"]:
            entry["Owner"] = _OWNER
        document["Marker"] = _url_encode_if_requested(request, marker)
        # Without a delimiter S3 leaves NextMarker out: clients use the last key of the page.
        if page.next_key is not None and delimiter:
            listed_keys = [info.key for info in page.objects] + page.prefixes
            document["NextMarker"] = _url_encode_if_requested(request, max(listed_keys, key=str.encode))
        return xml_response("ListBucketResult", document)

    def list_object_versions(self, call: S3Call) -> Response:
        """List versions: without versioning, each object has one version with the id ``null``."""
        request, marker = call.request, call.request.query.get("key-marker", "")
        first_key = _smallest_key_after(marker) if marker else b""
        document, page = self._list_page_of_objects(request, call.bucket, first_key)
        versions = [{**entry, "VersionId": "null", "IsLatest": True} for entry in document.pop("Contents")]
        document |= {"KeyMarker": _url_encode_if_requested(request, marker), "Version": versions}
        if page.next_key is not None and versions:
            document |= {"NextKeyMarker": versions[-1]["Key"], "NextVersionIdMarker": "null"}
        return xml_response("ListVersionsResult", document)

    def _list_page_of_objects(
        self, request: Request, bucket: str, first_key: bytes
    ) -> tuple[JsonObject, ObjectPage]:
        """Return a page of a bucket's objects from ``first_key`` on (empty: from the beginning), and the
        document of the response with the elements that all list operations have. Raises ApiError."""
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        max_keys = _parse_max_keys(query.get("max-keys"))
        page = self._store.list_page(
            bucket, prefix, delimiter=delimiter, first_key=first_key, max_entries=max_keys
        )
        if max_keys == 0:
            page = ObjectPage([], [], None)  # S3 reports the end of the list, not an empty page
        document = {
            "Name": bucket,
            "Prefix": _url_encode_if_requested(request, prefix),
            "Delimiter": _url_encode_if_requested(request, delimiter) if delimiter else None,
            "MaxKeys": max_keys,
            "EncodingType": query.get("encoding-type"),
            "IsTruncated": page.next_key is not None,
            "Contents": [self._contents_entry(request, info) for info in page.objects],
            "CommonPrefixes": [
                {"Prefix": _url_encode_if_requested(request, common_prefix)}
                for common_prefix in page.prefixes
            ],
        }
        return document, page

    @staticmethod
    def _contents_entry(request: Request, info: ObjectInfo) -> JsonObject:
        algorithms = list(info.attributes.get("checksums", ()))
        return {
            "Key": _url_encode_if_requested(request, info.key),
            "LastModified": format_iso_date(info.modified),
            "ETag": f'"{info.etag}"',
            "ChecksumAlgorithm": algorithms,
            "ChecksumType": info.attributes.get("checksum_type") if algorithms else None,
            "Size": info.size,
            "StorageClass": info.attributes.get("headers", {}).get("x-amz-storage-class", "STANDARD"),
        }


def payload_has_body(payload: Payload) -> bool:
    peek = getattr(payload.stream, "peek", None)
    return bool(peek(1)) if peek is not None else True


def _url_encode_if_requested(request: Request, text: str) -> str:
    return quote(text, safe="/-_.~") if request.query.get("encoding-type") == "url" else text


def _parse_max_keys(text: str | None) -> int:
    """Return the maximum number of entries of a page: the parameter max-keys (None: not given), at most 1000.
    Raises ApiError."""
    if text is None:
        return _MAX_KEYS
    if not (text.isascii() and text.isdigit()):
        raise ApiError(
            "InvalidArgument", "max-keys must be a number", ArgumentName="max-keys", ArgumentValue=text
        )
    return min(int(text), _MAX_KEYS)


def _smallest_key_after(key: str) -> bytes:
    return key.encode() + b"\0"


def _decode_continuation_token(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("InvalidArgument", "The continuation token provided is incorrect") from None
