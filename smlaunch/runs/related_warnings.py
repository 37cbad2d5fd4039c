"""Which warnings of a plan can have to do with a failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from smlaunch.contract.failure_reason import Failure
from smlaunch.runs.missing_files import reports_missing_file

_PLACE = re.compile(r"([\w./-]+\.(?:py|sh)):(\d+)")
_QUOTED = re.compile(r"'([^'\n]{1,400})'")
_NAME = re.compile(r"(?<![\w-])(?:--[a-z][\w-]+|[A-Z][A-Z0-9]*_[A-Z0-9_]+)")
"""Options and environment variables."""

_REMEDIES = ("SM_MODEL_DIR", "--allow")
_JOINING_FAILURE = re.compile(
    r"MASTER_ADDR|WORLD_SIZE|\bRANK\b|EADDRINUSE|TCPStore|Dist(?:Network|Store)Error|(?i:nccl|gloo)"
)
_JOINING_WARNING = re.compile(r"\branks?\b|process group|MASTER_ADDR|train separately")


def related_warnings(warnings: Iterable[str], failure: Failure | None) -> list[str]:
    """Return those of a plan's warnings that can have to do with a failure: they name a line, a path, an
    option or a variable that its text names, or are about what has failed. All of them for a failure that
    says nothing of its cause."""
    text = "" if failure is None else f"{failure.cause}\n{failure.traceback}".strip()
    if not text:
        return list(warnings)
    return [warning for warning in warnings if _is_related(warning, text)]


def _is_related(warning: str, failure_text: str) -> bool:
    """Whether a failure can have to do with what the plan warned of."""
    if "(allowed: " in warning:  # a rule that the user found wrong may have been right
        return True
    if warning.startswith(("inputs", "source")) and reports_missing_file(failure_text):
        return True
    if _JOINING_WARNING.search(warning) and _JOINING_FAILURE.search(failure_text):
        return True
    if "memory" in warning and ("memory" in failure_text.lower() or "SIGKILL" in failure_text):
        return True
    if any(f'{file}", line {line},' in failure_text for file, line in _PLACE.findall(warning)):
        return True
    names = {*_QUOTED.findall(warning), *_NAME.findall(warning)}.difference(_REMEDIES)
    return any(_is_named(name.rstrip("/"), failure_text) for name in names)


def _is_named(name: str, text: str) -> bool:
    """Whether a text names something itself, and not only a longer name that contains it."""
    return bool(name) and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None
