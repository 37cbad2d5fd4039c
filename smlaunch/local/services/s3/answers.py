"""S3's XML, its errors and its dates."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate, parsedate_to_datetime
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Response

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_BODY_LIMIT = 8 << 20
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class S3Errors:
    protocol = "s3"

    def error(self, error: ApiError, request_id: str) -> Response:
        fields = {"Code": error.code, "Message": error.message, **error.details, "RequestId": request_id}
        return Response(error.status, {"Content-Type": "application/xml"}, element("Error", fields))


def element(name: str, value: Any, namespace: str = "") -> bytes:
    """A document. Mappings become elements, a list repeats its element, None is left out."""
    attribute = f' xmlns="{namespace}"' if namespace else ""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{attribute}>{_inner(value)}</{name}>'.encode()


def xml(name: str, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    held = {"Content-Type": "application/xml", **(headers or {})}
    return Response(status, held, element(name, value, NAMESPACE))


def _inner(value: Any) -> str:
    if not isinstance(value, Mapping):
        text = "true" if value is True else "false" if value is False else str(value)
        # What XML 1.0 cannot say at all is replaced; clients that list such keys ask for encoding-type=url.
        return escape(_NOT_XML.sub("\ufffd", text), {"\r": "&#13;", "\n": "&#10;"})
    parts = []
    for name, held in value.items():
        items = held if isinstance(held, (list, tuple)) else (held,)
        parts += [f"<{name}>{_inner(item)}</{name}>" for item in items if item is not None]
    return "".join(parts)


def read_xml(payload: Payload) -> ElementTree.Element:
    """The root element of a request's body. Raises ApiError for one that cannot be read."""
    text = payload.read(_BODY_LIMIT)
    try:
        return ElementTree.fromstring(text)  # noqa: S314  signed by the endpoint's own user
    except ElementTree.ParseError:
        message = "The XML you provided was not well-formed or did not validate against our published schema"
        raise ApiError("MalformedXML", message) from None


def children(parent: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Its elements of that name, in whatever namespace the client wrote them."""
    return (child for child in parent if child.tag.rpartition("}")[2] == name)


def text_of(parent: ElementTree.Element, name: str) -> str | None:
    found = next(children(parent, name), None)
    return None if found is None else found.text or ""


def iso_date(seconds: float) -> str:
    whole = int(seconds)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{stamp}.{int((seconds - whole) * 1000):03d}Z"


def http_date(seconds: float) -> str:
    return formatdate(int(seconds), usegmt=True)


def read_http_date(text: str) -> float | None:
    """None for what is no date, which HTTP says to ignore."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return None


def not_provided(what: str) -> ApiError:
    message = f"smlaunch's local S3 does not provide {what}"
    return ApiError("NotImplemented", message, 501)
