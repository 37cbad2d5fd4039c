"""A violation of the API's rules, with messages for smlaunch's users and, in AWS's words, for any AWS
client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from smlaunch.api.validation.pattern_words import pattern_text
from smlaunch.errors import Problem
from smlaunch.secrets.masking import MASK
from smlaunch.secrets.shown_values import hides_value

_MAX_SHOWN_LENGTH = 80
_MAX_LISTED_NAMES = 12
_RULES_WITH_VALUE = ("type", "min", "max", "pattern", "enum")
"""Those whose messages quote the value."""


class Violation(NamedTuple):
    """``value`` at ``path`` violates ``rule``."""

    path: tuple[str | int, ...]
    """Member names, map keys and list indices from 0."""

    value: Any
    rule: str
    """``required``, ``unknown``, ``type``, ``min``, ``max``, ``min_length``, ``max_length``,
    ``min_items``, ``max_items``, ``pattern``, ``enum``, ``union`` or ``service``."""

    limit: Any
    """The rule's bound: None (``required``), the known names (``unknown``), the model's type name
    (``type``), a number (``min`` to ``max_items``: value, characters or entries), the pattern, the allowed
    values (``enum``), the members of which exactly one must be given (``union``), or a sentence
    (``service``: a rule of the service beyond its model)."""

    map_entry_part: str = ""
    """``key`` or ``value`` if the rule is about a map's keys or values; ``path`` then ends in that key."""

    def to_problem(self) -> Problem:
        """Return the violation for the author of the request: ``HyperParameters.lr: is 3000 characters long;
        ...``."""
        is_name = self.map_entry_part == "key" or self.path[-1:] == ("Key",)
        is_hidden = self.rule in _RULES_WITH_VALUE and not is_name and hides_value(self.path, self.value)
        message = _CLIENT_MESSAGE_BY_RULE[self.rule](MASK if is_hidden else self.value, self.limit)
        return Problem(self.dotted_path(), f"the name {message}" if self.map_entry_part == "key" else message)

    def dotted_path(self) -> str:
        """Return the violation's path in the request as text, such as ``InputDataConfig[0].ChannelName``."""
        return path_text(self.path)

    def aws_text(self) -> str:
        """Return the violation in AWS's words: ``Value 'x' at 'trainingJobName' failed to satisfy
        constraint: ...``

        The format is AWS's; the texts of constraints follow the service's public error reports and were
        not compared with the service itself. For a map, only the invalid entry is shown.
        """
        if self.rule == "service":  # a rule of the service, not of the API model: its limit is the message
            return str(self.limit)
        constraint = _AWS_CONSTRAINT_BY_RULE[self.rule](self.limit)
        path, value_text = self.path, _aws_value_text(self.value)
        if self.map_entry_part:  # the path ends in the entry's key
            *map_path, key = self.path
            path = tuple(map_path)
            is_about_key = self.map_entry_part == "key"
            value_text = f"{{{value_text}}}" if is_about_key else f"{{{key}={value_text}}}"
            constraint = f"Map {'keys' if is_about_key else 'value'} must satisfy constraint: [{constraint}]"
        quoted_value = value_text if self.value is None else f"'{value_text}'"
        return f"Value {quoted_value} at '{_aws_path_text(path)}' failed to satisfy constraint: {constraint}"


def path_text(path: Iterable[str | int]) -> str:
    """Return a path in a request as text, such as ``InputDataConfig[0].ChannelName``."""
    text = ""
    for element in path:
        if isinstance(element, int):
            text += f"[{element}]"
        else:
            text += f".{element}" if text else element
    return text


def aws_message(violations: Iterable[Violation]) -> str:
    """Return the message of a ValidationException: the model's rules counted, as AWS does, then the
    others."""
    rule_by_text = {violation.aws_text(): violation.rule for violation in violations}
    model_texts = [text for text, rule in rule_by_text.items() if rule != "service"]
    service_texts = [text for text, rule in rule_by_text.items() if rule == "service"]
    if not model_texts:
        return "; ".join(service_texts)
    plural_ending = "s" if len(model_texts) > 1 else ""
    counted_texts = f"{len(model_texts)} validation error{plural_ending} detected: {'; '.join(model_texts)}"
    return "; ".join([counted_texts, *service_texts])


def _aws_path_text(path: tuple[str | int, ...]) -> str:
    """AWS counts list members from 1 and begins names with a lower-case letter: ``tags.1.member.key``."""
    steps = [f"{step + 1}.member" if isinstance(step, int) else step[:1].lower() + step[1:] for step in path]
    return ".".join(steps)


def _aws_value_text(value: Any) -> str:
    """Return a value of a request in AWS's notation, such as ``{Key=a, Value=null}``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        member_texts = [f"{key}={_aws_value_text(member)}" for key, member in value.items()]
        return "{" + ", ".join(member_texts) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_aws_value_text(item) for item in value) + "]"
    return str(value)


def _abbreviated_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}..."


def _name_suggestion(value: Any, known_names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: ``; did you mean 'x'?``, or the known names if there
    are few."""
    from difflib import get_close_matches  # a millisecond, and seldom needed

    known_name_list = list(known_names)
    close_names = get_close_matches(str(value), known_name_list, n=1, cutoff=0.6)
    if close_names:
        return f"; did you mean {close_names[0]!r}?"
    if len(known_name_list) <= _MAX_LISTED_NAMES:
        return f"; known: {', '.join(known_name_list)}" if known_name_list else ""
    return f"; {len(known_name_list)} others are known"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


_CLIENT_MESSAGE_BY_RULE: dict[str, Callable[[Any, Any], str]] = {
    "required": lambda value, limit: "is required and missing",
    "unknown": lambda value, limit: f"is not a field of this API{_name_suggestion(value, limit)}",
    "type": lambda value, limit: f"must be of type {limit}, not {_abbreviated_json(value)}",
    "min": lambda value, limit: f"is {value}; at least {limit} is needed",
    "max": lambda value, limit: f"is {value}; at most {limit} is allowed",
    "min_length": lambda value, limit: f"is {_plural(len(value), 'character')} long; at least {limit} needed",
    "max_length": lambda value, limit: f"is {_plural(len(value), 'character')} long; at most {limit} allowed",
    "min_items": lambda value, limit: (
        f"has {len(value)} entries; at least {limit} needed"
        + ("; leave the field out instead" if not value else "")
    ),
    "max_items": lambda value, limit: f"has {len(value)} entries; at most {limit} allowed",
    "pattern": lambda value, limit: f"{_abbreviated_json(value)} is not {pattern_text(limit)}",
    "enum": lambda value, limit: (
        f"{_abbreviated_json(value)} is not an allowed value{_name_suggestion(value, limit)}"
    ),
    "union": lambda value, limit: (
        f"must hold exactly one of {', '.join(limit)}; it holds {_names_text(value)}"
    ),
    "service": lambda value, limit: str(limit),
}

_AWS_CONSTRAINT_BY_RULE: dict[str, Callable[[Any], str]] = {
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


def _names_text(value: Any) -> str:
    return ", ".join(value) if value else "none"
