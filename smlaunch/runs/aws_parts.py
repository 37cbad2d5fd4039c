"""PartStorage on botocore."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from smlaunch.ports import CallError, Check, Part, Unfinished
from smlaunch.runs.aws import call

_PIECE = 1 << 20
"""Bytes read at a time: they stay in the processor's cache while they are hashed and written."""

_PARTS_MD5 = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")
_MD5_BY = (None, "AES256")
"""Encryption under which an ETag is an MD5 sum (S3 API reference, Object)."""


class S3Parts:
    def __init__(self, client: Any) -> None:
        self._client = client

    def begin(self, bucket: str, key: str) -> str:
        params = {"Bucket": bucket, "Key": key, "ChecksumAlgorithm": "SHA256"}
        return str(call("CreateMultipartUpload", self._client.create_multipart_upload, **params)["UploadId"])

    def put_part(self, bucket: str, key: str, upload: str, number: int, content: bytes) -> Part:
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        params = {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": number, "Body": content}
        answer = call("UploadPart", self._client.upload_part, ChecksumSHA256=digest, **params)
        return Part(len(content), _bare(answer["ETag"]), digest)

    def complete(self, bucket: str, key: str, upload: str, parts: Sequence[Part]) -> None:
        rows = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumSHA256": part.sha256}
            for number, part in enumerate(parts, 1)
        ]
        params = {"Bucket": bucket, "Key": key, "UploadId": upload, "MultipartUpload": {"Parts": rows}}
        try:
            call("CompleteMultipartUpload", self._client.complete_multipart_upload, **params)
        except CallError as error:
            # An earlier try may have completed it and its answer been lost: then the object has these parts.
            if error.code != "NoSuchUpload" or self.check(bucket, key).sha256 != _sha256_of(parts):
                raise

    def unfinished(self, bucket: str, key: str) -> Sequence[Unfinished]:
        params: dict[str, Any] = {"Bucket": bucket, "Prefix": key}
        found: list[Unfinished] = []
        while True:
            page = call("ListMultipartUploads", self._client.list_multipart_uploads, **params)
            for row in page.get("Uploads", []):
                if row["Key"] == key:
                    parts = dict(self._parts(bucket, key, row["UploadId"]))
                    if parts and all(part.sha256 for part in parts.values()):
                        found.append(Unfinished(row["UploadId"], parts))
            if not page.get("IsTruncated"):
                return found
            params["KeyMarker"] = page["NextKeyMarker"]
            params["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _parts(self, bucket: str, key: str, upload: str) -> Iterator[tuple[int, Part]]:
        params: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload}
        while True:
            page = call("ListParts", self._client.list_parts, **params)
            for row in page.get("Parts", []):
                part = Part(int(row["Size"]), _bare(row["ETag"]), row.get("ChecksumSHA256", ""))
                yield int(row["PartNumber"]), part
            if not page.get("IsTruncated"):
                return
            params["PartNumberMarker"] = page["NextPartNumberMarker"]

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        params: dict[str, Any] = {"Bucket": bucket, "Key": key}
        params["Range"] = f"bytes={start}-{start + length - 1}"
        if etag is not None:
            params["IfMatch"] = f'"{etag}"'
        body = call("GetObject", self._client.get_object, **params)["Body"]
        with closing(body):
            while piece := call("GetObject", body.read, amt=_PIECE):
                yield piece

    def check(self, bucket: str, key: str) -> Check:
        """Two requests for an object of several parts: the size of one is told only of itself."""
        params = {"Bucket": bucket, "Key": key}
        head = call("HeadObject", self._client.head_object, ChecksumMode="ENABLED", **params)
        etag = _bare(head["ETag"])
        encrypted = head.get("ServerSideEncryption") not in _MD5_BY or "SSECustomerAlgorithm" in head
        md5 = etag if _PARTS_MD5.fullmatch(etag) and not encrypted else None
        sha256, crc32 = head.get("ChecksumSHA256"), head.get("ChecksumCRC32")
        if crc32 is not None and head.get("ChecksumType") == "FULL_OBJECT":
            return Check(None, None, None, crc32)  # of the content, whatever parts it was sent in
        part = None
        if "-" in etag:
            first = call("HeadObject", self._client.head_object, PartNumber=1, **params)
            part = int(first["ContentLength"])
        if part is not None and sha256 is not None and "-" not in sha256:
            # HeadObject gives the digest of an object of parts without saying how many; the ETag does.
            sha256 += etag[etag.index("-") :]
        if part is not None and crc32 is not None and "-" not in crc32:
            crc32 += etag[etag.index("-") :]
        return Check(part, sha256, md5, crc32)


def _sha256_of(parts: Sequence[Part]) -> str:
    """As ``Check`` has it of an object that was put in these parts."""
    digest = hashlib.sha256(b"".join(base64.b64decode(part.sha256) for part in parts)).digest()
    return f"{base64.b64encode(digest).decode()}-{len(parts)}"


def _bare(etag: str) -> str:
    return etag.strip('"')
