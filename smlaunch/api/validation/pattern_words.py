"""What the patterns of the API's model want, in words: a user is never shown the regular expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ON_ONE_LINE = "text on one line"
_NAME = "letters, digits and single dashes between them"

_WORDS_BY_PATTERN: Mapping[str, str] = {
    r".*": _ON_ONE_LINE,
    r".+": f"{_ON_ONE_LINE}, at least one character",
    r"[\S\s]*": "text",
    r"[\s\S]+": "text of at least one character",
    r"[A-Za-z0-9\.\-_]+": "made of letters, digits, dots, dashes and underscores",
    r"[a-zA-Z0-9._-]+": "made of letters, digits, dots, dashes and underscores",
    r"[-0-9a-zA-Z]+": "made of letters, digits and dashes, such as subnet-0123456789abcdef0",
    r"[a-zA-Z0-9:/_-]*": "the id, the ARN or the alias of a KMS key",
    r"(https|s3)://([^/]+)/?(.*)": "an address in S3, such as s3://bucket/prefix/",
    r"(fs-[0-9a-f]{8,})": "the id of a file system, such as fs-0123456789abcdef0",
    r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\t]*": "text without control characters",
    r"\d+K": "a number of thousands, such as 4K",
    r"[a-zA-Z_][a-zA-Z0-9_]*": "made of letters, digits and underscores, with no digit first",
    r"[a-zA-Z0-9]([_-]*[a-zA-Z0-9]){0,63}": "made of letters and digits, with - or _ between them",
    r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)": "made of letters, digits, spaces and _ . : / = + - @",
}

_SAGEMAKER = "arn:aws:sagemaker:REGION:ACCOUNT"
_RESOURCE_WORDS: Mapping[str, tuple[str, str]] = {
    ":role/": ("an IAM role", "arn:aws:iam::123456789012:role/NAME"),
    ":function:": ("a Lambda function", "arn:aws:lambda:REGION:ACCOUNT:function:NAME"),
    ":training-plan/": ("a training plan", f"{_SAGEMAKER}:training-plan/NAME"),
    "/DataSet": ("a data set in a hub", f"{_SAGEMAKER}:hub-content/HUB/DataSet/NAME"),
    "/Model": ("a model in a hub", f"{_SAGEMAKER}:hub-content/HUB/Model/NAME"),
    ":mlflow-": ("an MLflow app or server", f"{_SAGEMAKER}:mlflow-app/NAME"),
    ":model-package-group/": ("a group of model packages", f"{_SAGEMAKER}:model-package-group/NAME"),
    ":model-package/": ("a model package", f"{_SAGEMAKER}:model-package/NAME/1"),
}
"""What an ARN is of, and an example, by what only its pattern contains."""

_UNKNOWN = "in the form that the service wants for it; see its page in the API reference"


def words_of_pattern(pattern: str) -> str | None:
    """Return what a pattern of the model wants, as the end of a sentence: ``it is not ...``; None for one
    without words. ``pattern``: of the model, in Java's dialect."""
    if pattern in _WORDS_BY_PATTERN:
        return _WORDS_BY_PATTERN[pattern]
    if re.match(r"^\[a-zA-Z0-9\]\(-\*\[a-zA-Z0-9\]\)\{0,\d+\}$", pattern):
        return f"a name of {_NAME}"
    if "arn:" in pattern:
        plain_pattern = pattern.replace("\\", "")
        for part, (resource, example) in _RESOURCE_WORDS.items():
            if part in plain_pattern:
                return f"the ARN of {resource}, such as {example}"
    return None


def pattern_text(pattern: str) -> str:
    """Return the end of a message about a value that does not match a pattern."""
    return words_of_pattern(pattern) or _UNKNOWN
