"""One broken rule, told to a user of smlaunch or, in AWS's words, to any AWS client."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from smlaunch.errors import Problem

_SHOWN = 80
_FEW = 12


class Violation(NamedTuple):
    """``value`` at ``path`` breaks ``rule``, whose bound is ``limit``.

    ``path`` holds member names, map keys and list indices from 0. ``part`` is ``key`` or ``value`` when the
    rule is one of a map's keys or values; ``path`` then ends in that key.

    Rules and their limits: ``required`` (None), ``unknown`` (the names there are), ``type`` (the model's name
    of the type), ``min`` and ``max`` (numbers), ``min_length`` and ``max_length`` (characters), ``min_items``
    and ``max_items``, ``pattern``, ``enum`` (the values there are), ``union`` (the members, exactly one of
    which is to be given), ``service`` (a sentence: a rule of the service that is not in its model).
    """

    path: tuple[str | int, ...]
    value: Any
    rule: str
    limit: Any
    part: str = ""

    def problem(self) -> Problem:
        """For people who wrote the request: ``HyperParameters.lr: is 3000 characters long; ...``."""
        message = _CLIENT[self.rule](self.value, self.limit)
        return Problem(self.dotted(), f"the name {message}" if self.part == "key" else message)

    def dotted(self) -> str:
        """``InputDataConfig[0].ChannelName``"""
        text = ""
        for step in self.path:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text

    def aws_text(self) -> str:
        """``Value 'x' at 'trainingJobName' failed to satisfy constraint: ...``

        The form is AWS's; the words of single constraints are as the service's public error reports show
        them, and were not compared with the service itself. An offending entry of a map is shown alone.
        """
        if self.rule == "service":
            return str(self.limit)
        constraint = _AWS[self.rule](self.limit)
        path, value = self.path, _aws_value(self.value)
        if self.part:
            path = path[:-1]
            value = "{" + (value if self.part == "key" else f"{self.path[-1]}={value}") + "}"
            constraint = (
                f"Map {'keys' if self.part == 'key' else 'value'} must satisfy constraint: [{constraint}]"
            )
        shown = value if self.value is None else f"'{value}'"
        return f"Value {shown} at '{_aws_path(path)}' failed to satisfy constraint: {constraint}"


def aws_message(violations: Iterable[Violation]) -> str:
    """The message of a ValidationException: the model's rules counted, as AWS does, then the others."""
    told = {violation.aws_text(): violation.rule for violation in violations}
    texts = [text for text, rule in told.items() if rule != "service"]
    rules = [text for text, rule in told.items() if rule == "service"]
    if texts:
        counted = f"{len(texts)} validation error{'s' if len(texts) > 1 else ''} detected: {'; '.join(texts)}"
        return "; ".join([counted, *rules])
    return "; ".join(rules)


def _aws_path(path: tuple[str | int, ...]) -> str:
    """AWS counts list members from 1 and begins names with a small letter: ``tags.1.member.key``."""
    steps = [f"{step + 1}.member" if isinstance(step, int) else step[:1].lower() + step[1:] for step in path]
    return ".".join(steps)


def _aws_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_aws_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_aws_value(item) for item in value) + "]"
    return str(value)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _suggestion(value: Any, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or the names there are when they are few."""
    names = list(known)
    close = difflib.get_close_matches(str(value), names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if len(names) <= _FEW:
        return f"; known: {', '.join(names)}" if names else ""
    return f"; {len(names)} others are known"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


_CLIENT: dict[str, Callable[[Any, Any], str]] = {
    "required": lambda value, limit: "is required and missing",
    "unknown": lambda value, limit: f"is not a field of this API{_suggestion(value, limit)}",
    "type": lambda value, limit: f"must be of type {limit}, not {_shown(value)}",
    "min": lambda value, limit: f"is {value}; at least {limit} is needed",
    "max": lambda value, limit: f"is {value}; at most {limit} is allowed",
    "min_length": lambda value, limit: f"is {_plural(len(value), 'character')} long; at least {limit} needed",
    "max_length": lambda value, limit: f"is {_plural(len(value), 'character')} long; at most {limit} allowed",
    "min_items": lambda value, limit: (
        f"has {len(value)} entries; at least {limit} needed"
        + ("; leave the field out instead" if not value else "")
    ),
    "max_items": lambda value, limit: f"has {len(value)} entries; at most {limit} allowed",
    "pattern": lambda value, limit: f"{_shown(value)} does not match {limit}",
    "enum": lambda value, limit: (
        f"{_shown(value)} is not one of the values there are{_suggestion(value, limit)}"
    ),
    "union": lambda value, limit: f"must hold exactly one of {', '.join(limit)}; it holds {_held(value)}",
    "service": lambda value, limit: str(limit),
}

_AWS: dict[str, Callable[[Any], str]] = {
    "required": lambda limit: "Member must not be null",
    "unknown": lambda limit: "Member is not known to this version of the API",
    "type": lambda limit: f"Member must be of type {limit}",
    "min": lambda limit: f"Member must have value greater than or equal to {limit}",
    "max": lambda limit: f"Member must have value less than or equal to {limit}",
    "min_length": lambda limit: f"Member must have length greater than or equal to {limit}",
    "max_length": lambda limit: f"Member must have length less than or equal to {limit}",
    "min_items": lambda limit: f"Member must have length greater than or equal to {limit}",
    "max_items": lambda limit: f"Member must have length less than or equal to {limit}",
    "pattern": lambda limit: f"Member must satisfy regular expression pattern: {limit}",
    "enum": lambda limit: f"Member must satisfy enum value set: [{', '.join(limit)}]",
    "union": lambda limit: f"Member must have exactly one of: [{', '.join(limit)}]",
}


def _held(value: Any) -> str:
    return ", ".join(value) if value else "none"
