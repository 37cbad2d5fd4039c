"""The text that the API has for a hyperparameter. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_LINE_BREAK_PATTERN = re.compile("[\n\r\x85\u2028\u2029]")
"""What ``.`` excludes in the service's pattern ``.*`` for hyperparameters."""


def hyperparameter_text(value: Any, is_verbatim: bool = False) -> str:
    """Return the API's text of a hyperparameter; reading it as JSON if it is JSON gives the value back.

    Text is sent unchanged, so that ``lr: "1e-3"`` arrives as those four characters, unless a reader would
    parse it as something other than text or a number, or the service would reject its line breaks: then it
    is sent as a JSON string. A number is sent as its job file has it (its ``repr``), if the reader takes that
    for a number. Everything else is JSON. (The SageMaker SDK sends all values as JSON.)
    ``is_verbatim``: another program than smlaunch's reads it, such as an algorithm: text is always sent
    unchanged.
    """
    if isinstance(value, str) and is_verbatim:
        return value
    if isinstance(value, float) and (is_verbatim or _is_json(repr(value))):
        return repr(value)
    if not isinstance(value, str):
        return json.dumps(value)
    has_line_break = _LINE_BREAK_PATTERN.search(value) is not None
    # Numbers stay as they are: a reader gets the same value from their text.
    if has_line_break or _is_json_but_no_number(value):
        return json.dumps(value)
    return value


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_json_but_no_number(text: str) -> bool:
    """Return whether the text is JSON other than a number."""
    try:
        value = json.loads(text)
    except ValueError:
        # Also what is a number to JSON and too long for Python: more than 4,300 digits.
        return False
    except RecursionError:
        return True
    return isinstance(value, bool) or not isinstance(value, (int, float))
