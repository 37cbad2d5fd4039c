"""Names for the types of JSON documents, such as the fields of a request or of a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]
"""An object that the function does not change."""
