"""Read the catalog's JSON files, each once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def load_catalog_table(name: str) -> dict[str, Any]:
    """The document ``<name>.json`` beside this module. Callers must not modify it."""
    document: dict[str, Any] = json.loads(Path(__file__).with_name(f"{name}.json").read_bytes())
    return document
