"""A request that shows itself without its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smlaunch.secrets.masking import mask_document


class MaskedRequest(dict[str, Any]):
    """A request with all its values, for boto3. What a notebook or ``print`` shows of it, or of a mapping in
    it, has secrets masked: a notebook stores what it shows."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__({key: _with_masked_display(value) for key, value in request.items()})

    def __repr__(self) -> str:
        return repr(_as_shown(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Let IPython lay it out in several lines."""
        printer.pretty(_as_shown(self))


def _with_masked_display(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MaskedRequest(value)
    return [_with_masked_display(item) for item in value] if isinstance(value, list) else value


def _as_shown(request: Mapping[str, Any]) -> Any:
    return _as_plain_types(mask_document(request))


def _as_plain_types(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_plain_types(item) for key, item in value.items()}
    return [_as_plain_types(item) for item in value] if isinstance(value, list) else value
