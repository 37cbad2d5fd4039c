"""S3 operations on single objects: put, get, head, copy, delete, tags, attributes."""

from __future__ import annotations

from typing import BinaryIO
from urllib.parse import unquote_plus

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import FileRange, Request, Response
from smlaunch.local.services.s3.checksums import checksum_elements, checksum_headers
from smlaunch.local.services.s3.object_attributes import (
    METADATA_PREFIX,
    attributes_from_headers,
    attributes_of_copy,
    check_tags,
    overriding_headers,
    replaces_metadata,
    storage_headers,
    stored_headers,
)
from smlaunch.local.services.s3.object_conditions import (
    check_copy_conditions,
    precondition_of_delete,
    precondition_of_write,
    should_send_object,
)
from smlaunch.local.services.s3.object_transfers import (
    byte_range_of_part,
    copy_byte_range,
    parse_byte_range,
    receive_body,
)
from smlaunch.local.services.s3.operations import S3Call
from smlaunch.local.services.s3.responses import (
    child_elements,
    child_text,
    default_acl_response,
    format_http_date,
    format_iso_date,
    parse_xml_body,
    xml_response,
)
from smlaunch.local.stores.object_store import ObjectInfo, ObjectStore


class S3Objects:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put_object(self, call: S3Call) -> Response:
        request, payload, bucket, key = call
        attributes = attributes_from_headers(request)
        precondition = precondition_of_write(request)
        self._store.require_bucket(bucket)  # raises for a missing bucket before the body is read
        with self._store.temporary_body_path() as body_path:
            received_body = receive_body(request, payload, body_path)
            if received_body.checksums:
                attributes["checksums"] = received_body.checksums
                attributes["checksum_type"] = "FULL_OBJECT"
            stored_object = self._store.publish_object(
                bucket, key, body_path, received_body.etag, attributes, precondition
            )
        return Response(
            200,
            {
                "ETag": f'"{stored_object.etag}"',
                **_checksum_headers_of(stored_object),
                **stored_headers(stored_object, "x-amz-"),
            },
        )

    def get_object(self, call: S3Call) -> Response:
        object_info, body_file = self._store.open_object(call.bucket, call.key)
        try:
            response = self._object_response(call.request, object_info, body_file)
        except BaseException:
            body_file.close()
            raise
        if not isinstance(response.body, FileRange):
            body_file.close()
        return response

    head_object = get_object  # the server leaves the body out

    def _object_response(self, request: Request, object_info: ObjectInfo, body_file: BinaryIO) -> Response:
        """Return the response to GetObject or HeadObject. ``body_file``: the open file with the object's
        bytes, of which the response sends the requested range or part and which it then closes. Raises
        ApiError."""
        headers = {
            "ETag": f'"{object_info.etag}"',
            "Last-Modified": format_http_date(object_info.modified),
            "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream",
            **stored_headers(object_info),  # those of the upload, such as its Content-Type
        }
        if not should_send_object(request.headers, object_info):  # by If-None-Match and the like
            return Response(304, {name: headers[name] for name in ("ETag", "Last-Modified")})
        headers.update(overriding_headers(request))  # by parameters such as response-content-type
        for name, value in object_info.attributes.get("metadata", {}).items():
            headers[METADATA_PREFIX + name] = value
        tags = object_info.attributes.get("tags")
        if tags:
            headers["x-amz-tagging-count"] = str(len(tags))
        if "partNumber" in request.query:
            headers["x-amz-mp-parts-count"] = str(max(1, len(object_info.attributes.get("parts", ()))))
        requested_range = _requested_byte_range(request, object_info)  # None: the whole object
        start, length = requested_range or (0, object_info.size)
        # An empty object has no bytes that the header could name.
        if requested_range is not None and object_info.size:
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{object_info.size}"
        is_complete = length == object_info.size
        # The checksum is of the whole object, so clients could not check a range with it.
        if is_complete and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            headers.update(_checksum_headers_of(object_info))
        return Response(206 if requested_range else 200, headers, FileRange(body_file, start, length))

    def copy_object(self, call: S3Call) -> Response:
        """Respond to CopyObject: store a copy of an object, with its attributes or those of the request.
        Raises ApiError."""
        request, _, bucket, key = call
        source_bucket, source_key = copy_source_bucket_and_key(request)
        source_object, source_file = self._store.open_object(source_bucket, source_key)
        with source_file, self._store.temporary_body_path() as body_path:
            check_copy_conditions(request, source_object)
            changes_metadata = replaces_metadata(request) or storage_headers(request)
            if (source_bucket, source_key) == (bucket, key) and not changes_metadata:
                message = (
                    "This copy request is illegal because it is trying to copy an object to itself without"
                    " changing the object's metadata, storage class, website redirect location or encryption"
                    " attributes."
                )
                raise ApiError("InvalidRequest", message)
            attributes = attributes_of_copy(request, source_object)
            etag = copy_byte_range(source_file, body_path, 0, source_object.size)
            copied_object = self._store.publish_object(
                bucket, key, body_path, etag, attributes, precondition_of_write(request)
            )
        result = {
            "LastModified": format_iso_date(copied_object.modified),
            "ETag": f'"{copied_object.etag}"',
            **_checksum_elements_of(copied_object),
        }
        return xml_response("CopyObjectResult", result)

    def delete_object(self, call: S3Call) -> Response:
        precondition = precondition_of_delete(call.request.headers.get("if-match"))
        self._store.delete_object(call.bucket, call.key, precondition)
        return Response(204)

    def delete_objects(self, call: S3Call) -> Response:
        """Respond to DeleteObjects: delete the objects that the request's XML lists, and report each that
        could not be deleted."""
        request_document = parse_xml_body(call.payload)
        reports_only_errors = child_text(request_document, "Quiet") == "true"  # text of a child element
        deleted_elements: list[dict[str, str]] = []
        error_elements: list[dict[str, str]] = []
        object_elements = list(child_elements(request_document, "Object"))
        if not 0 < len(object_elements) <= 1000:
            raise ApiError("MalformedXML", "Between 1 and 1000 objects can be deleted in one request")
        self._store.require_bucket(call.bucket)  # raises NoSuchBucket
        for object_element in object_elements:
            key = child_text(object_element, "Key") or ""
            # An object with another ETag than the requested one stays, and is reported as an error.
            precondition = precondition_of_delete(if_match=child_text(object_element, "ETag"))
            try:
                self._store.delete_object(call.bucket, key, precondition)
                deleted_elements.append({"Key": key})
            except ApiError as error:
                error_elements.append({"Key": key, "Code": error.code, "Message": error.message})
        return xml_response(
            "DeleteResult",
            {"Deleted": [] if reports_only_errors else deleted_elements, "Error": error_elements},
        )

    def get_object_tagging(self, call: S3Call) -> Response:
        tags = self._store.head_object(call.bucket, call.key).attributes.get("tags", {})
        tag_elements = [{"Key": name, "Value": value} for name, value in tags.items()]
        return xml_response("Tagging", {"TagSet": {"Tag": tag_elements}})

    def put_object_tagging(self, call: S3Call) -> Response:
        """Respond to PutObjectTagging: replace an object's tags by those in the request's XML. Raises
        ApiError."""
        value_by_tag_key = {}
        for tag_set in child_elements(parse_xml_body(call.payload), "TagSet"):
            for tag in child_elements(tag_set, "Tag"):
                value_by_tag_key[child_text(tag, "Key") or ""] = child_text(tag, "Value") or ""
        check_tags(value_by_tag_key)
        self._replace_tags(call, value_by_tag_key)
        return Response(200)

    def delete_object_tagging(self, call: S3Call) -> Response:
        self._replace_tags(call, {})
        return Response(204)

    def _replace_tags(self, call: S3Call, tags: dict[str, str]) -> None:
        self._store.update_object_attributes(
            call.bucket, call.key, lambda attributes: {**attributes, "tags": tags}
        )

    def get_object_acl(self, call: S3Call) -> Response:
        self._store.head_object(call.bucket, call.key)  # raises for a missing object
        return default_acl_response()  # ACLs cannot be changed here

    def get_object_attributes(self, call: S3Call) -> Response:
        """Respond to GetObjectAttributes with those attributes of an object that a header of the request
        names. Raises ApiError."""
        object_info = self._store.head_object(call.bucket, call.key)
        attributes_header = call.request.headers.get("x-amz-object-attributes", "")
        requested_names = {name.strip() for name in attributes_header.split(",")}
        parts = object_info.attributes.get("parts", [])
        all_attributes = {
            "ETag": object_info.etag,
            "Checksum": _checksum_elements_of(object_info) or None,
            "ObjectParts": {"TotalPartsCount": len(parts)} if parts else None,
            "StorageClass": object_info.attributes.get("headers", {}).get("x-amz-storage-class", "STANDARD"),
            "ObjectSize": object_info.size,
        }
        requested_attributes = {
            name: value for name, value in all_attributes.items() if name in requested_names
        }
        return xml_response(
            "GetObjectAttributesOutput",
            requested_attributes,
            headers={"Last-Modified": format_http_date(object_info.modified)},
        )


def copy_source_bucket_and_key(request: Request) -> tuple[str, str]:
    """Return (bucket, key) of a copy's source. Raises ApiError."""
    text, _, version = request.headers["x-amz-copy-source"].partition("?versionId=")
    if version not in ("", "null"):
        raise ApiError("NoSuchVersion", "The specified version does not exist.", 404)
    bucket, _, key = unquote_plus(text).removeprefix("/").partition("/")
    if not key:
        raise ApiError("InvalidArgument", "Copy Source must mention the source bucket and key: /bucket/key")
    return bucket, key


def _requested_byte_range(request: Request, object_info: ObjectInfo) -> tuple[int, int] | None:
    """Return (start, length) in bytes of the part or range of an object that a request asks for; None for the
    whole object. Raises ApiError."""
    if "partNumber" in request.query:
        return byte_range_of_part(object_info, request.query["partNumber"])
    if "range" in request.headers:
        return parse_byte_range(request.headers["range"], object_info.size)
    return None


def _checksum_headers_of(object_info: ObjectInfo) -> dict[str, str]:
    attributes = object_info.attributes
    return checksum_headers(attributes.get("checksums", {}), attributes.get("checksum_type", "FULL_OBJECT"))


def _checksum_elements_of(object_info: ObjectInfo) -> dict[str, str]:
    attributes = object_info.attributes
    return checksum_elements(attributes.get("checksums", {}), attributes.get("checksum_type", "FULL_OBJECT"))
