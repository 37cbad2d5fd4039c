"""Values in error messages about a field: whether a message may show one, and what stands for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from smlaunch.secrets.masking import MASK, is_secret_name, mask_argument

_SECTIONS_WITH_SECRETS = frozenset({"environment", "hyperparameters", "secrets", "tags"})
"""Of a job and, in capital letters, of a request: whose values may be secrets whatever their names are."""

_MAX_SHOWN_LENGTH = 60


def hides_value(location: Iterable[str | int], value: Any) -> bool:
    """Return whether a message about a field must not show its value. ``location``: keys and list indexes
    that lead to it. Of the values that may be secrets, only numbers of other names are shown: text in the
    wrong place has no name by which it could be known."""
    if value is None or isinstance(value, bool):
        return False
    names = [step for step in location if isinstance(step, str)]
    if any(map(is_secret_name, names)):
        return True
    return not isinstance(value, (int, float)) and _is_in_section_with_secrets(names)


def shown_value(location: Iterable[str | int], value: Any) -> str:
    """Return the value of a field as an error message shows it, in at most 60 characters: a list, a mapping
    and what must not be shown as what it is, since names in it may be misspelt."""
    return kind_of_value(value) if hides_value(location, value) else shorten_value(value)


def shown_key(location: Iterable[str | int], key: str) -> str:
    """Return a key as an error message shows it: ``DB_PASSWORD=X`` may be one by mistake."""
    names = [step for step in location if isinstance(step, str)]
    return mask_argument(key) if _is_in_section_with_secrets(names) else key


def kind_of_value(value: Any) -> str:
    """Return what a value is, without the value."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)):
        return MASK
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def shorten_value(value: Any) -> str:
    """Return the value as an error message shows it, in at most 60 characters; a list and a mapping as what
    they are."""
    if isinstance(value, (Mapping, list, tuple, Set, bytes)):
        return kind_of_value(value)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except ValueError:  # Python prints at most 4,300 digits
        return "a number of more than 4,300 digits"
    return text if len(text) <= _MAX_SHOWN_LENGTH else text[: _MAX_SHOWN_LENGTH - 3] + "..."


def _is_in_section_with_secrets(names: Iterable[str]) -> bool:
    return any(name.lower() in _SECTIONS_WITH_SECRETS for name in names)
