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

from smlaunch.local.front.api_errors import ApiError

_SIGN_AND_TERM = re.compile(r'([?-]?)(?:"((?:[^"\\]|\\.)*)"|%([^%]*)%|(\S+))')


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a log message matches a filter pattern of CloudWatch Logs: it has
    all plain terms (or one of those with ``?``, if there are no plain ones), and none of those with ``-``.
    Raises ApiError for a pattern that is not supported."""
    stripped_pattern = pattern.strip()  # "{...}" matches JSON, "[...]" matches columns
    if stripped_pattern[:1] in ("{", "["):
        error_text = "smlaunch's local endpoint does not provide JSON or column patterns"
        raise ApiError("InvalidParameterException", error_text)
    # A term is a function that tells whether a message contains it.
    required_terms: list[Callable[[str], bool]] = []
    optional_terms: list[Callable[[str], bool]] = []
    excluded_terms: list[Callable[[str], bool]] = []
    terms_by_sign = {"": required_terms, "?": optional_terms, "-": excluded_terms}
    # Each match of the expression: the sign, and the term as "PHRASE", %REGULAR EXPRESSION% or WORD.
    for sign, quoted_phrase, regular_expression, bare_word in _SIGN_AND_TERM.findall(stripped_pattern):
        terms_by_sign[sign].append(_compile_term(quoted_phrase, regular_expression, bare_word))

    def matches(message: str) -> bool:
        if any(contains_term(message) for contains_term in excluded_terms):
            return False
        if required_terms or not optional_terms:  # with required terms, optional ones have no effect
            return all(contains_term(message) for contains_term in required_terms)
        return any(contains_term(message) for contains_term in optional_terms)

    return matches


def _compile_term(quoted_phrase: str, regular_expression: str, bare_word: str) -> Callable[[str], bool]:
    """Return a function that tells whether a message contains one term of a filter pattern. The term is a
    phrase, a regular expression or a word; the other two arguments are empty. Raises ApiError for an invalid
    regular expression."""
    if regular_expression:
        try:
            compiled_expression = re.compile(regular_expression)
        except re.error as error:
            error_text = f"Invalid filter pattern: {regular_expression!r}: {error}"
            raise ApiError("InvalidParameterException", error_text) from None
        return lambda message: compiled_expression.search(message) is not None
    # A backslash in a quoted phrase escapes the next character.
    literal = re.sub(r"\\(.)", r"\1", quoted_phrase) if quoted_phrase else bare_word
    return lambda message: literal in message
