"""Small JSON documents that may be cut off: what a file holds, or None."""

import json
from typing import Any, Dict, Mapping, Optional

from smlaunch.contract.formats import Format


def to_json_bytes(document: Mapping[str, Any]) -> bytes:
    # No newline at the end: if anything is cut off, the rest does not parse.
    return json.dumps(document, indent=1, sort_keys=True).encode("ascii")


def parse_document(document_format: Format, content: bytes, document_name: str) -> Optional[Dict[str, Any]]:
    """Return the parsed content of a file; None for a text that is no JSON object: it was cut off. Raises
    FormatError."""
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):  # RecursionError: thousands of brackets
        return None
    return document_format.upgrade_document(document, document_name) if isinstance(document, dict) else None


def integer_or_none(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text_or_none(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None
