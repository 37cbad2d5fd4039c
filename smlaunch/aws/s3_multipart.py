"""Implements PartStorage on botocore."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from smlaunch.aws.client import call_api
from smlaunch.aws.interfaces import CallError, MultipartUpload, ObjectChecksum, UploadedPart

_CHUNK_BYTES = 1 << 20
"""Bytes read at a time: they stay in the processor's cache while they are hashed and written."""

_MD5_ETAG = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")
_ENCRYPTION_WITH_MD5_ETAG = (None, "AES256")
"""Encryption under which an ETag is an MD5 sum (S3 API reference, Object)."""


class S3Multipart:
    def __init__(self, client: Any) -> None:
        self._client = client

    def begin(self, bucket: str, key: str) -> str:
        params = {"Bucket": bucket, "Key": key, "ChecksumAlgorithm": "SHA256"}
        return str(
            call_api("CreateMultipartUpload", self._client.create_multipart_upload, **params)["UploadId"]
        )

    def put_part(self, bucket: str, key: str, upload_id: str, number: int, content: bytes) -> UploadedPart:
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        params = {"Bucket": bucket, "Key": key, "UploadId": upload_id, "PartNumber": number, "Body": content}
        response = call_api("UploadPart", self._client.upload_part, ChecksumSHA256=digest, **params)
        return UploadedPart(len(content), _strip_quotes(response["ETag"]), digest)

    def complete(self, bucket: str, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        part_rows = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumSHA256": part.sha256}
            for number, part in enumerate(parts, 1)
        ]
        params = {
            "Bucket": bucket,
            "Key": key,
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": part_rows},
        }
        try:
            call_api("CompleteMultipartUpload", self._client.complete_multipart_upload, **params)
        except CallError as error:
            # If an earlier try completed it and its response was lost, the object has these parts.
            if error.code != "NoSuchUpload" or self.object_checksum(bucket, key).sha256 != _composite_sha256(
                parts
            ):
                raise

    def list_resumable_uploads(self, bucket: str, key: str) -> Sequence[MultipartUpload]:
        """Return the unfinished uploads of this key that can be continued: those with parts that all have a
        SHA-256."""
        params: dict[str, Any] = {"Bucket": bucket, "Prefix": key}
        uploads: list[MultipartUpload] = []
        while True:
            page = call_api("ListMultipartUploads", self._client.list_multipart_uploads, **params)
            for row in page.get("Uploads", []):
                if row["Key"] == key:
                    parts = dict(self._list_parts(bucket, key, row["UploadId"]))
                    if parts and all(part.sha256 for part in parts.values()):
                        uploads.append(MultipartUpload(row["UploadId"], parts))
            if not page.get("IsTruncated"):
                return uploads
            params["KeyMarker"] = page["NextKeyMarker"]
            params["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _list_parts(self, bucket: str, key: str, upload_id: str) -> Iterator[tuple[int, UploadedPart]]:
        """Yield number and checksum of each part that an unfinished upload has."""
        params: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
        while True:
            page = call_api("ListParts", self._client.list_parts, **params)
            for row in page.get("Parts", []):
                part = UploadedPart(
                    int(row["Size"]), _strip_quotes(row["ETag"]), row.get("ChecksumSHA256", "")
                )
                yield int(row["PartNumber"]), part
            if not page.get("IsTruncated"):
                return
            params["PartNumberMarker"] = page["NextPartNumberMarker"]

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        params: dict[str, Any] = {"Bucket": bucket, "Key": key}
        params["Range"] = f"bytes={start}-{start + length - 1}"
        if etag is not None:
            params["IfMatch"] = f'"{etag}"'
        body = call_api("GetObject", self._client.get_object, **params)["Body"]
        with closing(body):
            while chunk := call_api("GetObject", body.read, amt=_CHUNK_BYTES):
                yield chunk

    def object_checksum(self, bucket: str, key: str) -> ObjectChecksum:
        """Return the object's checksums. An object of several parts takes two requests, because a part's size
        is only in its own response."""
        params = {"Bucket": bucket, "Key": key}
        head = call_api("HeadObject", self._client.head_object, ChecksumMode="ENABLED", **params)
        etag = _strip_quotes(head["ETag"])
        is_encrypted = (
            head.get("ServerSideEncryption") not in _ENCRYPTION_WITH_MD5_ETAG
            or "SSECustomerAlgorithm" in head
        )
        md5 = etag if _MD5_ETAG.fullmatch(etag) and not is_encrypted else None
        sha256, crc32 = head.get("ChecksumSHA256"), head.get("ChecksumCRC32")
        if crc32 is not None and head.get("ChecksumType") == "FULL_OBJECT":
            return ObjectChecksum(None, None, None, crc32)  # of the content, independent of its parts
        part_size = None
        if "-" in etag:
            first_part = call_api("HeadObject", self._client.head_object, PartNumber=1, **params)
            part_size = int(first_part["ContentLength"])
        if part_size is not None and sha256 is not None and "-" not in sha256:
            # HeadObject gives the composite digest without the number of parts; the ETag has it.
            sha256 += etag[etag.index("-") :]
        if part_size is not None and crc32 is not None and "-" not in crc32:
            crc32 += etag[etag.index("-") :]
        return ObjectChecksum(part_size, sha256, md5, crc32)


def _composite_sha256(parts: Sequence[UploadedPart]) -> str:
    """Return the composite digest of an object with these parts, as ``ObjectChecksum`` has it."""
    digest = hashlib.sha256(b"".join(base64.b64decode(part.sha256) for part in parts)).digest()
    return f"{base64.b64encode(digest).decode()}-{len(parts)}"


def _strip_quotes(etag: str) -> str:
    return etag.strip('"')
