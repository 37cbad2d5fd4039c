"""Implements PartStorage on botocore."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from smlaunch.aws.api_call import call_api
from smlaunch.aws.interfaces import CallError, MultipartUpload, ObjectChecksum, UploadedPart

_CHUNK_BYTES = 1 << 20
"""Bytes read at a time: they stay in the processor's cache while they are hashed and written."""

_MD5_ETAG = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")
"""Of a multipart upload: an MD5 of the parts' MD5 digests, a ``-``, and the number of parts."""
_ENCRYPTION_KEEPING_MD5_AS_ETAG = (None, "AES256")
"""Values of ServerSideEncryption with which an ETag is an MD5 sum (S3 API reference, Object)."""


class S3Multipart:
    def __init__(self, client: Any) -> None:
        self._client = client

    def create_multipart_upload(self, bucket: str, key: str) -> str:
        params = {"Bucket": bucket, "Key": key, "ChecksumAlgorithm": "SHA256"}
        return str(
            call_api("CreateMultipartUpload", self._client.create_multipart_upload, **params)["UploadId"]
        )

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, content: bytes) -> UploadedPart:
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        params = {"Bucket": bucket, "Key": key, "UploadId": upload_id, "PartNumber": number, "Body": content}
        response = call_api("UploadPart", self._client.upload_part, ChecksumSHA256=digest, **params)
        return UploadedPart(len(content), _strip_quotes(response["ETag"]), digest)

    def complete_multipart_upload(
        self, bucket: str, key: str, upload_id: str, parts: Sequence[UploadedPart]
    ) -> None:
        """Make an object of the uploaded parts, which are in their order. Not an error if an earlier try has
        done so."""
        part_entries = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumSHA256": part.sha256}
            for number, part in enumerate(parts, 1)
        ]
        params = {
            "Bucket": bucket,
            "Key": key,
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": part_entries},
        }
        try:
            call_api("CompleteMultipartUpload", self._client.complete_multipart_upload, **params)
        except CallError as error:
            if error.code != "NoSuchUpload":
                raise
            # If an earlier try completed it and its response was lost, the object has these parts.
            if self.get_object_checksum(bucket, key).sha256 != _composite_sha256(parts):
                raise

    def list_resumable_uploads(self, bucket: str, key: str) -> Sequence[MultipartUpload]:
        """Return the unfinished multipart uploads of this key that can be continued: those with parts that
        all have a SHA-256, by which each can be compared with the file."""
        params: dict[str, Any] = {"Bucket": bucket, "Prefix": key}
        uploads: list[MultipartUpload] = []
        while True:
            page = call_api("ListMultipartUploads", self._client.list_multipart_uploads, **params)
            for upload in page.get("Uploads", []):
                if upload["Key"] != key:  # it only begins with this key
                    continue
                # Without any part there is nothing to continue.
                part_by_number = dict(self._list_uploaded_parts(bucket, key, upload["UploadId"]))
                if part_by_number and all(part.sha256 for part in part_by_number.values()):
                    uploads.append(MultipartUpload(upload["UploadId"], part_by_number))
            if not page.get("IsTruncated"):
                return uploads
            params["KeyMarker"] = page["NextKeyMarker"]
            params["UploadIdMarker"] = page["NextUploadIdMarker"]

    def _list_uploaded_parts(
        self, bucket: str, key: str, upload_id: str
    ) -> Iterator[tuple[int, UploadedPart]]:
        """Yield number, size and checksums of each part that an unfinished multipart upload has. The SHA-256
        is "" for a part that was uploaded without it."""
        params: dict[str, Any] = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
        while True:
            page = call_api("ListParts", self._client.list_parts, **params)
            for part_entry in page.get("Parts", []):
                part = UploadedPart(
                    size=int(part_entry["Size"]),
                    etag=_strip_quotes(part_entry["ETag"]),
                    sha256=part_entry.get("ChecksumSHA256", ""),
                )
                yield int(part_entry["PartNumber"]), part
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

    def get_object_checksum(self, bucket: str, key: str) -> ObjectChecksum:
        """Return the checksums that S3 has of an object. For an object that was uploaded in several parts,
        they are those of the parts' digests, followed by ``-`` and the number of parts. Such an object takes
        two requests, because a part's size is only in its own response."""
        params = {"Bucket": bucket, "Key": key}
        object_head = call_api("HeadObject", self._client.head_object, ChecksumMode="ENABLED", **params)
        etag = _strip_quotes(object_head["ETag"])
        sha256, crc32 = object_head.get("ChecksumSHA256"), object_head.get("ChecksumCRC32")
        if crc32 is not None and object_head.get("ChecksumType") == "FULL_OBJECT":
            # Of the whole content, however many parts there were: it can be compared with a file at once.
            return ObjectChecksum(part_size=None, sha256=None, md5=None, crc32=crc32)
        md5 = etag if _is_etag_md5(object_head, etag) else None  # it is not with KMS encryption, for example
        is_multipart = "-" in etag  # as in "9b2c...-3" for three parts
        if not is_multipart:
            return ObjectChecksum(part_size=None, sha256=sha256, md5=md5, crc32=crc32)
        first_part = call_api("HeadObject", self._client.head_object, PartNumber=1, **params)
        part_count_suffix = etag[etag.index("-") :]
        return ObjectChecksum(
            part_size=int(first_part["ContentLength"]),
            sha256=_add_part_count(sha256, part_count_suffix),
            md5=md5,
            crc32=_add_part_count(crc32, part_count_suffix),
        )


def _composite_sha256(parts: Sequence[UploadedPart]) -> str:
    """Return the composite digest of an object with these parts, as ``ObjectChecksum`` has it."""
    digest = hashlib.sha256(b"".join(base64.b64decode(part.sha256) for part in parts)).digest()
    return f"{base64.b64encode(digest).decode()}-{len(parts)}"


def _strip_quotes(etag: str) -> str:
    return etag.strip('"')


def _is_etag_md5(object_head: Mapping[str, Any], etag: str) -> bool:
    """Return whether an object's ETag is made of MD5 sums, from the response of HeadObject: not with
    encryption by keys of KMS or of the customer."""
    return (
        _MD5_ETAG.fullmatch(etag) is not None
        and object_head.get("ServerSideEncryption") in _ENCRYPTION_KEEPING_MD5_AS_ETAG
        and "SSECustomerAlgorithm" not in object_head
    )


def _add_part_count(digest: str | None, suffix: str) -> str | None:
    """Add ``-`` and the number of parts to a digest of the parts' digests: HeadObject leaves that out, and
    other servers may have it already. None for None."""
    return digest if digest is None or "-" in digest else digest + suffix
