"""XML, errors and dates of S3 responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate, parsedate_to_datetime
from typing import Any
from xml.etree import ElementTree

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Response
from smlaunch.local.front.request_context import ACCOUNT
from smlaunch.local.services.xml_encoding import xml_document

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_MAX_BODY_BYTES = 8 << 20


class S3Errors:
    error_format = "s3"

    def error_response(self, error: ApiError, request_id: str) -> Response:
        fields = {"Code": error.code, "Message": error.message, **error.details, "RequestId": request_id}
        return Response(error.status, {"Content-Type": "application/xml"}, xml_document("Error", fields))


def xml_response(
    name: str, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    all_headers = {"Content-Type": "application/xml", **(headers or {})}
    return Response(status, all_headers, xml_document(name, value, NAMESPACE))


def default_acl_response() -> Response:
    """Return the access control list that every bucket and object has."""
    grantee = (
        f'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
        f"<ID>{ACCOUNT}</ID></Grantee>"
    )
    document = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<AccessControlPolicy>'
        f"<Owner><ID>{ACCOUNT}</ID></Owner><AccessControlList><Grant>{grantee}"
        "<Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>"
    )
    return Response(200, {"Content-Type": "application/xml"}, document.encode())


def parse_xml_body(payload: Payload) -> ElementTree.Element:
    """Parse a request's body and return its root element. Raises ApiError."""
    text = payload.read_all(_MAX_BODY_BYTES)
    try:
        return ElementTree.fromstring(text)  # noqa: S314  signed by the endpoint's own user
    except ElementTree.ParseError:
        message = "The XML you provided was not well-formed or did not validate against our published schema"
        raise ApiError("MalformedXML", message) from None


def child_elements(parent: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Yield the child elements with a name, in any namespace."""
    return (child for child in parent if child.tag.rpartition("}")[2] == name)


def child_text(parent: ElementTree.Element, name: str) -> str | None:
    child = next(child_elements(parent, name), None)
    return None if child is None else child.text or ""


def format_iso_date(seconds: float) -> str:
    whole_seconds = int(seconds)
    timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole_seconds))
    return f"{timestamp}.{int((seconds - whole_seconds) * 1000):03d}Z"


def format_http_date(seconds: float) -> str:
    return formatdate(int(seconds), usegmt=True)


def parse_http_date(text: str) -> float | None:
    """Parse a date; None for an invalid one, which HTTP requires to ignore."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None


def not_implemented_error(feature: str) -> ApiError:
    message = f"smlaunch's local S3 does not provide {feature}"
    return ApiError("NotImplemented", message, 501)
