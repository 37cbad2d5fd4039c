"""The output of ``--json``: one document, which every JSON parser reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import click


def print_json(document: Any) -> None:
    click.echo(json_text(document))


def json_text(document: Any) -> str:
    """Return the text of a document of mappings, sequences, texts and numbers. NaN and the infinities, which
    JSON lacks, are null: metrics of a training that has diverged, for example."""
    return json.dumps(_without_infinities(document), indent=2, allow_nan=False)


def _without_infinities(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(item) for item in value]
    return value
