"""Filter patterns of CloudWatch Logs for unstructured text.

    ERROR timeout          both terms           ?ERROR ?WARN       either
    "exit code"            a phrase             ERROR -retrying    one without the other
    %Epoch [0-9]+%         a regular expression

Source: CloudWatch Logs user guide, "Filter pattern syntax". Patterns for JSON (``{ ... }``) and for columns
(``[ ... ]``) are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from smlaunch.local.api_errors import ApiError

_TERM = re.compile(r'([?-]?)(?:"((?:[^"\\]|\\.)*)"|%([^%]*)%|(\S+))')


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a message matches the pattern. Raises ApiError."""
    text = pattern.strip()
    if text[:1] in ("{", "["):
        error_text = "smlaunch's local endpoint does not provide JSON or column patterns"
        raise ApiError("InvalidParameterException", error_text)
    required: list[Callable[[str], bool]] = []
    optional: list[Callable[[str], bool]] = []
    excluded: list[Callable[[str], bool]] = []
    for sign, phrase, expression, bare_word in _TERM.findall(text):
        {"": required, "?": optional, "-": excluded}[sign].append(_term(phrase, expression, bare_word))
    if required:
        optional.clear()  # with required terms, optional ones have no effect
    return lambda message: (
        all(term(message) for term in required)
        and (not optional or any(term(message) for term in optional))
        and not any(term(message) for term in excluded)
    )


def _term(phrase: str, expression: str, bare_word: str) -> Callable[[str], bool]:
    """Return the match function of one term; two of the arguments are empty. Raises ApiError."""
    if expression:
        try:
            compiled = re.compile(expression)
        except re.error as error:
            error_text = f"Invalid filter pattern: {expression!r}: {error}"
            raise ApiError("InvalidParameterException", error_text) from None
        return lambda message: compiled.search(message) is not None
    literal = re.sub(r"\\(.)", r"\1", phrase) if phrase else bare_word
    return lambda message: literal in message
