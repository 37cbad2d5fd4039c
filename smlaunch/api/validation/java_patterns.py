"""Translate the API model's patterns from Java to Python.

Most mean the same in both. Differences: ``\\p{L}`` and similar classes, code points beyond the basic plane
written as surrogate pairs, a quantified ``$``, a hyphen after a class (``[\\w-_]``), and ``\\d \\w \\s``,
which are ASCII in Java.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

_STAND_IN_BY_CATEGORY = {
    "L": "\ue000",
    "M": "\ue001",
    "N": "\ue002",
    "P": "\ue003",
    "S": "\ue004",
    "Z": "\ue005",
}
_OTHER_STAND_IN = "\ue006"
_ASCII_BY_CATEGORY = {
    category: "".join(chr(code) for code in range(128) if unicodedata.category(chr(code))[0] == category)
    for category in _STAND_IN_BY_CATEGORY
}
_PROPERTY_CLASS = re.compile(r"\\p\{(\w+)\}")


@lru_cache(maxsize=512)
def compile_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a value matches ``pattern``, a Java one, as a whole.

    Python's ``re`` does not support Unicode categories. So every non-ASCII character of the value is
    replaced by a stand-in for its category, and ``\\p{L}`` becomes the ASCII letters plus the stand-in for
    letters.
    """
    # A range of surrogate pairs becomes one of code points; ${0,2} is $; a hyphen after \w is a literal one.
    python_pattern = pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010FFFF")
    python_pattern = re.sub(r"\$\{\d+(?:,\d*)?\}", "$", python_pattern)
    python_pattern = re.sub(r"(\\[wds])-(?=[^\]])", r"\1\-", python_pattern)
    if not _PROPERTY_CLASS.search(python_pattern):
        regex = re.compile(python_pattern, re.ASCII)
        return lambda value: regex.fullmatch(value) is not None
    regex = re.compile(_PROPERTY_CLASS.sub(_python_class, python_pattern), re.ASCII)
    return lambda value: regex.fullmatch(_with_stand_ins(value)) is not None


_POSIX_CLASSES = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "XDigit": "0-9a-fA-F",
    "Space": r"\s",
    "Blank": r" \t",
    "Punct": r"!-/:-@\[-`{-~",
}
_METRIC_TOKEN = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\p\{(?P<posix>\w+)\}|\\k<(?P<group>\w+)>|(?P<end>\\z)|(?P<blank>\\h)"
    r"|\(\?<(?P<name>[A-Za-z]\w*)>|(?P<possessive>(?:[*+?]|\{\d+(?:,\d*)?\})\+)|\\.|.",
    re.DOTALL,
)


def python_metric_pattern(pattern: str) -> str:
    """Return the pattern of a metric, which the service reads as Java's, as Python's: named groups, quotes,
    classes such as ``\\p{Digit}``, and possessive quantifiers, which become ordinary ones. What else
    differs stays as it is."""
    parts, is_in_class = [], False
    for token in _METRIC_TOKEN.finditer(pattern):
        text = token[0]
        if text == "[" and not is_in_class:
            is_in_class = True
        elif text == "]":
            is_in_class = False
        parts.append(_python_token(token, is_in_class))
    return "".join(parts)


def _python_token(token: re.Match[str], is_in_class: bool) -> str:
    if token["quoted"] is not None:
        return re.escape(token["quoted"])
    if token["posix"] in _POSIX_CLASSES or token["blank"]:
        members = _POSIX_CLASSES[token["posix"] or "Blank"]
        return members if is_in_class else f"[{members}]"
    if is_in_class:
        return token[0]
    if token["group"]:
        return f"(?P={token['group']})"
    if token["name"]:
        return f"(?P<{token['name']}>"
    if token["end"]:
        return r"\Z"
    return token[0].removesuffix("+") if token["possessive"] else token[0]


def _python_class(property_match: re.Match[str]) -> str:
    class_name = property_match.group(1)
    if class_name == "Alnum":  # one of Java's POSIX classes, which are ASCII
        return "a-zA-Z0-9"
    return re.escape(_ASCII_BY_CATEGORY[class_name]) + _STAND_IN_BY_CATEGORY[class_name]


def _with_stand_ins(value: str) -> str:
    """The value with each non-ASCII character replaced by the stand-in of its category."""
    if value.isascii():
        return value
    return "".join(
        character
        if character.isascii()
        else _STAND_IN_BY_CATEGORY.get(unicodedata.category(character)[0], _OTHER_STAND_IN)
        for character in value
    )
