"""Filter patterns of CloudWatch Logs for unstructured text.

    ERROR timeout          both terms           ?ERROR ?WARN       either
    "exit code"            a phrase             ERROR -retrying    one without the other
    %Epoch [0-9]+%         a regular expression

Source: CloudWatch Logs user guide, "Filter pattern syntax". Patterns over JSON (``{ ... }``) and over columns
(``[ ... ]``) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from smlaunch.local.errors import ApiError

_TERM = re.compile(r'([?-]?)(?:"((?:[^"\\]|\\.)*)"|%([^%]*)%|(\S+))')


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    text = pattern.strip()
    if text[:1] in ("{", "["):
        refusal = "smlaunch's local endpoint does not provide JSON or column patterns"
        raise ApiError("InvalidParameterException", refusal)
    needed: list[Callable[[str], bool]] = []
    either: list[Callable[[str], bool]] = []
    unwanted: list[Callable[[str], bool]] = []
    for sign, phrase, expression, word in _TERM.findall(text):
        {"": needed, "?": either, "-": unwanted}[sign].append(_term(phrase, expression, word))
    if needed:
        either.clear()  # beside terms that are needed, optional ones decide nothing
    return lambda message: (
        all(term(message) for term in needed)
        and (not either or any(term(message) for term in either))
        and not any(term(message) for term in unwanted)
    )


def _term(phrase: str, expression: str, word: str) -> Callable[[str], bool]:
    if expression:
        try:
            compiled = re.compile(expression)
        except re.error as error:
            text = f"Invalid filter pattern: {expression!r}: {error}"
            raise ApiError("InvalidParameterException", text) from None
        return lambda message: compiled.search(message) is not None
    literal = re.sub(r"\\(.)", r"\1", phrase) if phrase else word
    return lambda message: literal in message
