"""Single objects: put, get, head, copy, delete, tags, attributes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from smlaunch.local.bodies import write_all
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import FileRange, Payload, Request, Response
from smlaunch.local.objects import Attributes, Condition, ObjectInfo, ObjectStore
from smlaunch.local.services.s3 import checksums
from smlaunch.local.services.s3.answers import (
    children,
    http_date,
    iso_date,
    not_provided,
    read_http_date,
    read_xml,
    text_of,
    xml,
)

_KEPT = {
    "content-type": "Content-Type",
    "content-encoding": "Content-Encoding",
    "content-disposition": "Content-Disposition",
    "content-language": "Content-Language",
    "cache-control": "Cache-Control",
    "expires": "Expires",
    # Kept and given back, and without any effect on what is stored here.
    "x-amz-server-side-encryption": "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-storage-class": "x-amz-storage-class",
}
_REFUSED_HEADERS = (
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-legal-hold",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
)
_OVERRIDES = (
    "content-type",
    "content-language",
    "expires",
    "cache-control",
    "content-disposition",
    "content-encoding",
)
_META = "x-amz-meta-"
_META_LIMIT = 2048


class Received(NamedTuple):
    """A body that is on disk: its MD5 in hex, and the checksums that are known of it."""

    etag: str
    size: int
    checksums: dict[str, str]


class Objects:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, request: Request, payload: Payload, bucket: str, key: str) -> Response:
        attributes = described(request)
        condition = write_condition(request)
        self._store.bucket(bucket)  # before a gigabyte is taken in for nothing
        with self._store.incoming() as body:
            received = receive(request, payload, body)
            if received.checksums:
                attributes["checksums"] = received.checksums
                attributes["checksum_type"] = "FULL_OBJECT"
            info = self._store.publish(bucket, key, body, received.etag, attributes, condition)
        return Response(
            200, {"ETag": f'"{info.etag}"', **_checksum_headers(info), **_stored_headers(info, "x-amz-")}
        )

    def get(self, request: Request, bucket: str, key: str) -> Response:
        info, file = self._store.open(bucket, key)
        try:
            response = self._describe(request, info, file)
        except BaseException:
            file.close()
            raise
        if not isinstance(response.body, FileRange):
            file.close()
        return response

    def _describe(self, request: Request, info: ObjectInfo, file: BinaryIO) -> Response:
        headers = {
            "ETag": f'"{info.etag}"',
            "Last-Modified": http_date(info.modified),
            "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream",
            **_stored_headers(info),
        }
        if not _precondition(request.headers, info):
            return Response(304, {name: headers[name] for name in ("ETag", "Last-Modified")})
        for name in _OVERRIDES:
            wanted = request.query.get(f"response-{name}")
            if wanted is not None:
                headers[_KEPT[name]] = wanted
        for name, value in info.attributes.get("metadata", {}).items():
            headers[_META + name] = value
        tags = info.attributes.get("tags")
        if tags:
            headers["x-amz-tagging-count"] = str(len(tags))
        start, length, status = 0, info.size, 200
        if "partNumber" in request.query:
            start, length = _part(info, request.query["partNumber"])
            status = 206
            headers["x-amz-mp-parts-count"] = str(max(1, len(info.attributes.get("parts", ()))))
        elif "range" in request.headers:
            wanted_range = parse_range(request.headers["range"], info.size)
            if wanted_range is not None:
                start, length = wanted_range
                status = 206
        if status == 206 and info.size:
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{info.size}"
        whole = length == info.size
        if whole and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            headers.update(_checksum_headers(info))
        return Response(status, headers, FileRange(file, start, length))

    def copy(self, request: Request, bucket: str, key: str) -> Response:
        source_bucket, source_key = copy_source(request)
        wants_new = request.headers.get("x-amz-metadata-directive", "COPY") == "REPLACE"
        new_tags = request.headers.get("x-amz-tagging-directive", "COPY") == "REPLACE"
        info, file = self._store.open(source_bucket, source_key)
        with file, self._store.incoming() as body:
            check_copy_conditions(request, info)
            if (source_bucket, source_key) == (bucket, key) and not wants_new and not _storage(request):
                text = (
                    "This copy request is illegal because it is trying to copy an object to itself without"
                    " changing the object's metadata, storage class, website redirect location or encryption"
                    " attributes."
                )
                raise ApiError("InvalidRequest", text)
            attributes = described(request) if wants_new else info.attributes
            if not wants_new:
                attributes = {**attributes, "headers": {**attributes.get("headers", {}), **_storage(request)}}
            attributes["tags"] = _header_tags(request) if new_tags else info.attributes.get("tags", {})
            attributes.pop("parts", None)
            attributes.pop("checksums", None)
            attributes.pop("checksum_type", None)
            if info.attributes.get("checksum_type") == "FULL_OBJECT":
                attributes["checksums"] = info.attributes.get("checksums", {})
                attributes["checksum_type"] = "FULL_OBJECT"
            etag = copy_range(file, body, 0, info.size)
            made = self._store.publish(bucket, key, body, etag, attributes, write_condition(request))
        result = {
            "LastModified": iso_date(made.modified),
            "ETag": f'"{made.etag}"',
            **_checksum_elements(made),
        }
        return xml("CopyObjectResult", result)

    def delete(self, request: Request, bucket: str, key: str) -> Response:
        self._store.delete(bucket, key, delete_condition(request.headers.get("if-match")))
        return Response(204)

    def delete_many(self, payload: Payload, bucket: str) -> Response:
        root = read_xml(payload)
        quiet = text_of(root, "Quiet") == "true"
        deleted, errors = [], []
        objects = list(children(root, "Object"))
        if not 0 < len(objects) <= 1000:
            raise ApiError("MalformedXML", "Between 1 and 1000 objects can be deleted in one request")
        self._store.bucket(bucket)
        for entry in objects:
            key = text_of(entry, "Key") or ""
            try:
                self._store.delete(bucket, key, delete_condition(text_of(entry, "ETag")))
                deleted.append({"Key": key})
            except ApiError as error:
                errors.append({"Key": key, "Code": error.code, "Message": error.message})
        return xml("DeleteResult", {"Deleted": [] if quiet else deleted, "Error": errors})

    def get_tags(self, bucket: str, key: str) -> Response:
        tags = self._store.head(bucket, key).attributes.get("tags", {})
        entries = [{"Key": name, "Value": value} for name, value in tags.items()]
        return xml("Tagging", {"TagSet": {"Tag": entries}})

    def put_tags(self, payload: Payload, bucket: str, key: str) -> Response:
        tags = {}
        for tag_set in children(read_xml(payload), "TagSet"):
            for tag in children(tag_set, "Tag"):
                tags[text_of(tag, "Key") or ""] = text_of(tag, "Value") or ""
        _check_tags(tags)
        self._store.change(bucket, key, lambda attributes: {**attributes, "tags": tags})
        return Response(200)

    def delete_tags(self, bucket: str, key: str) -> Response:
        self._store.change(bucket, key, lambda attributes: {**attributes, "tags": {}})
        return Response(204)

    def attributes(self, request: Request, bucket: str, key: str) -> Response:
        info = self._store.head(bucket, key)
        wanted = {word.strip() for word in request.headers.get("x-amz-object-attributes", "").split(",")}
        parts = info.attributes.get("parts", [])
        checksum = _checksum_elements(info)
        everything = {
            "ETag": info.etag,
            "Checksum": checksum or None,
            "ObjectParts": {"TotalPartsCount": len(parts)} if parts else None,
            "StorageClass": info.attributes.get("headers", {}).get("x-amz-storage-class", "STANDARD"),
            "ObjectSize": info.size,
        }
        chosen = {name: value for name, value in everything.items() if name in wanted}
        return xml("GetObjectAttributesOutput", chosen, headers={"Last-Modified": http_date(info.modified)})


def receive(request: Request, payload: Payload, target: Path, extra: str = "") -> Received:
    """Takes a body in, and checks every digest the client gave. ``extra``: one more checksum to compute."""
    headers = request.headers
    expected = checksums.stated(headers)
    names = {*expected, *([extra] if extra else [])}
    trailer = headers.get("x-amz-trailer", "").lower().removeprefix("x-amz-checksum-").upper()
    if trailer in checksums.ALGORITHMS:
        names.add(trailer)
    digests = {name: digest for name in names if (digest := checksums.new(name)) is not None}
    md5 = hashlib.md5(usedforsecurity=False)
    size = 0
    with target.open("wb", buffering=0) as file:
        for block in payload.blocks():
            md5.update(block)
            for digest in digests.values():
                digest.update(block)
            write_all(file.fileno(), block)
            size += len(block)
    decoded = headers.get("x-amz-decoded-content-length")
    if decoded is not None and decoded != str(size):
        raise ApiError("IncompleteBody", f"The body holds {size} bytes, not the {decoded} that it states")
    expected.update(checksums.stated(payload.trailers))
    stated_md5 = headers.get("content-md5")
    if stated_md5 is not None and stated_md5 != base64.b64encode(md5.digest()).decode():
        raise ApiError("BadDigest", "The Content-MD5 you specified did not match what we received.")
    known = dict(expected)
    for name, digest in digests.items():
        value = checksums.encode(digest)
        if expected.get(name, value) != value:
            raise checksums.mismatch(name)
        known[name] = value
    return Received(md5.hexdigest(), size, known)


def described(request: Request) -> Attributes:
    """What the headers of a write say of the object. Raises ApiError for what is not provided."""
    for name in _REFUSED_HEADERS:
        if name in request.headers:
            raise not_provided(f"what the header {name} asks for")
    acl = request.headers.get("x-amz-acl", "private")
    if acl not in ("private", "bucket-owner-full-control") or any(
        name.startswith("x-amz-grant-") for name in request.headers
    ):
        raise ApiError("AccessControlListNotSupported", "The bucket does not allow ACLs")
    headers = {_KEPT[name]: value for name, value in request.headers.items() if name in _KEPT}
    encodings = [word.strip() for word in headers.pop("Content-Encoding", "").split(",")]
    kept = ",".join(word for word in encodings if word and word != "aws-chunked")
    if kept:
        headers["Content-Encoding"] = kept
    metadata = {
        name[len(_META) :]: value for name, value in request.headers.items() if name.startswith(_META)
    }
    if sum(len(name) + len(value) for name, value in metadata.items()) > _META_LIMIT:
        raise ApiError("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size")
    return {"headers": headers, "metadata": metadata, "tags": _header_tags(request)}


def write_condition(request: Request) -> Condition | None:
    """If-Match and If-None-Match of a write, judged at the moment it takes the old object's place."""
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if none_match not in (None, "*"):
        raise not_provided("If-None-Match with anything but * on a write")
    if match is None and none_match is None:
        return None

    def judge(old: ObjectInfo | None) -> None:
        if none_match and old is not None:
            raise _failed("If-None-Match")
        if match and old is None:
            raise ApiError("NoSuchKey", "The specified key does not exist.", 404)
        if match and old is not None and not _same(match, old.etag):
            raise _failed("If-Match")

    return judge


def delete_condition(match: str | None) -> Condition | None:
    if match is None:
        return None

    def judge(old: ObjectInfo | None) -> None:
        if old is None or not _same(match, old.etag):
            raise _failed("If-Match")

    return judge


def copy_source(request: Request) -> tuple[str, str]:
    """(bucket, key)"""
    text, _, version = request.headers["x-amz-copy-source"].partition("?versionId=")
    if version not in ("", "null"):
        raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
    bucket, _, key = unquote_plus(text).removeprefix("/").partition("/")
    if not key:
        raise ApiError("InvalidArgument", "Copy Source must mention the source bucket and key: /bucket/key")
    return bucket, key


def check_copy_conditions(request: Request, info: ObjectInfo) -> None:
    prefix = "x-amz-copy-source-"
    headers = {
        name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)
    }
    if not _precondition(headers, info):
        raise _failed("x-amz-copy-source-If-None-Match or -Modified-Since")


def copy_range(source: BinaryIO, target: Path, start: int, length: int) -> str:
    """Copies bytes of an open file into a new one; returns their MD5 in hex. Raises ApiError when the file
    ends before."""
    digest = hashlib.md5(usedforsecurity=False)
    source.seek(start)
    with target.open("wb", buffering=0) as writer:
        while length and (block := source.read(min(length, 1 << 20))):
            digest.update(block)
            write_all(writer.fileno(), block)
            length -= len(block)
    if length:
        raise ApiError("InternalError", f"{source.name} was cut off while it was being copied", 500)
    return digest.hexdigest()


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """(start, length) of ``bytes=a-b``, ``bytes=a-`` or ``bytes=-n``; None for what HTTP says to ignore."""
    unit, _, rest = text.partition("=")
    first, dash, last = rest.strip().partition("-")
    if unit.strip() != "bytes" or not dash or not _digits(first) or not _digits(last) or not first + last:
        return None
    if not first:
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        length = (min(int(last), size - 1) if last else size - 1) - start + 1
        if last and int(last) < start:
            return None
    if length <= 0:
        message = "The requested range is not satisfiable"
        raise ApiError("InvalidRange", message, 416, RangeRequested=text, ActualObjectSize=str(size))
    return start, length


def _digits(text: str) -> bool:
    return text == "" or (text.isascii() and text.isdigit())


def _part(info: ObjectInfo, text: str) -> tuple[int, int]:
    sizes = info.attributes.get("parts") or [info.size]
    if not text.isdigit() or not 1 <= int(text) <= len(sizes):
        raise ApiError("InvalidPartNumber", "The requested partnumber is not satisfiable", 416)
    number = int(text)
    return sum(sizes[: number - 1]), sizes[number - 1]


def _precondition(headers: Mapping[str, str], info: ObjectInfo) -> bool:
    """False for "not modified". Raises ApiError when the condition of a read has failed."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is not None and not _same(match, info.etag):
        raise _failed("If-Match")
    unmodified = read_http_date(headers.get("if-unmodified-since", ""))
    if match is None and unmodified is not None and int(info.modified) > unmodified:
        raise _failed("If-Unmodified-Since")
    if none_match is not None:
        return not _same(none_match, info.etag)
    modified = read_http_date(headers.get("if-modified-since", ""))
    return modified is None or int(info.modified) > modified


def _same(condition: str, etag: str) -> bool:
    return any(word.strip().removeprefix("W/").strip('"') in ("*", etag) for word in condition.split(","))


def _failed(condition: str) -> ApiError:
    message = "At least one of the pre-conditions you specified did not hold"
    return ApiError("PreconditionFailed", message, 412, Condition=condition)


def _header_tags(request: Request) -> dict[str, str]:
    tags = dict(parse_qsl(request.headers.get("x-amz-tagging", ""), keep_blank_values=True))
    _check_tags(tags)
    return tags


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > 10:
        raise ApiError("BadRequest", "Object tags cannot be greater than 10")
    if any(not 0 < len(name) <= 128 or len(value) > 256 for name, value in tags.items()):
        raise ApiError("InvalidTag", "The TagKey or TagValue you have provided is invalid")


def _storage(request: Request) -> dict[str, str]:
    return {
        name: request.headers[name] for name in _KEPT if name.startswith("x-amz-") and name in request.headers
    }


def _stored_headers(info: ObjectInfo, prefix: str = "") -> dict[str, str]:
    held = info.attributes.get("headers", {})
    return {name: value for name, value in held.items() if name.startswith(prefix)}


def _checksum_headers(info: ObjectInfo) -> dict[str, str]:
    known = info.attributes.get("checksums", {})
    headers = {checksums.header(name): value for name, value in known.items()}
    if headers:
        headers["x-amz-checksum-type"] = info.attributes.get("checksum_type", "FULL_OBJECT")
    return headers


def _checksum_elements(info: ObjectInfo) -> dict[str, str]:
    known = {f"Checksum{name}": value for name, value in info.attributes.get("checksums", {}).items()}
    if known:
        known["ChecksumType"] = info.attributes.get("checksum_type", "FULL_OBJECT")
    return known
