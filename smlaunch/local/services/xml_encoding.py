"""XML of responses, as S3 and the query protocol write it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from smlaunch.local.services.timestamp import Timestamp

_INVALID_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML 1.0 excludes."""


def xml_document(name: str, value: Any, namespace: str = "", list_item_tag: str = "") -> bytes:
    """Encode a document with the root element ``name``. Mappings become elements, and fields that are None
    are left out. The items of a list are elements ``list_item_tag`` in the list's own element; without that
    tag each item repeats the list's element: ``{"A": [1, 2], "B": None}`` becomes ``<A>1</A><A>2</A>``."""
    element = _encode_element(name, value, list_item_tag)
    attribute = f' xmlns="{namespace}"' if namespace else ""
    root = f"<{name}{attribute}{element.removeprefix(f'<{name}')}"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{root}'.encode()


def _encode_element(name: str, value: Any, list_item_tag: str) -> str:
    """Encode a value as an element ``name``, a list without ``list_item_tag`` as one element per item, and
    None as nothing."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        content = "".join(
            _encode_element(child_name, child, list_item_tag) for child_name, child in value.items()
        )
        return f"<{name}>{content}</{name}>"
    if isinstance(value, (list, tuple)):
        items = "".join(_encode_element(list_item_tag or name, item, list_item_tag) for item in value)
        return f"<{name}>{items}</{name}>" if list_item_tag else items
    return f"<{name}>{_escape_text(value)}</{name}>"


def _escape_text(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, Timestamp):
        text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))
    # A parser would change bare line breaks. Clients that list keys with invalid characters ask for URLs.
    return escape(_INVALID_CHARACTERS.sub("\ufffd", text), {"\r": "&#13;", "\n": "&#10;"})
