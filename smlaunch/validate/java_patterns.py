"""The API model's patterns, which are written for Java, as Python ones.

Most mean the same in both. What does not: ``\\p{L}`` and its like, code points beyond the basic plane written
as surrogate pairs, a quantified ``$``, a hyphen behind a class (``[\\w-_]``), and ``\\d \\w \\s``, which are
ASCII in Java.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

_STAND_INS = {"L": "\ue000", "M": "\ue001", "N": "\ue002", "P": "\ue003", "S": "\ue004", "Z": "\ue005"}
_OTHER = "\ue006"
_ASCII = {
    category: "".join(chr(code) for code in range(128) if unicodedata.category(chr(code))[0] == category)
    for category in _STAND_INS
}
_PROPERTY = re.compile(r"\\p\{(\w+)\}")


@lru_cache(maxsize=512)
def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a value matches as a whole.

    Python's ``re`` knows no Unicode categories. So every non-ASCII character of the value is replaced by a
    stand-in for its category, and ``\\p{L}`` becomes the ASCII letters plus the stand-in for letters.
    """
    text = pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010FFFF")
    text = re.sub(r"\$\{\d+(?:,\d*)?\}", "$", text)
    text = re.sub(r"(\\[wds])-(?=[^\]])", r"\1\-", text)
    if not _PROPERTY.search(text):
        compiled = re.compile(text, re.ASCII)
        return lambda value: compiled.fullmatch(value) is not None
    compiled = re.compile(_PROPERTY.sub(_property, text), re.ASCII)
    return lambda value: compiled.fullmatch(_stand_ins(value)) is not None


def _property(found: re.Match[str]) -> str:
    name = found.group(1)
    if name == "Alnum":  # one of Java's POSIX classes, which are ASCII
        return "a-zA-Z0-9"
    return re.escape(_ASCII[name]) + _STAND_INS[name]


def _stand_ins(value: str) -> str:
    if value.isascii():
        return value
    return "".join(
        character if character.isascii() else _STAND_INS.get(unicodedata.category(character)[0], _OTHER)
        for character in value
    )
