"""The Amazon States Language, as far as an export needs it: paths, intrinsic functions, and kinds of states.

Query language JSONPath. Source: the States Language specification (states-language.net) and the Step
Functions developer guide. Everything here is text in, text out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.export.flow import NAME, Number, Place, Text
from smlaunch.planning.patience import Patience

State = dict[str, Any]
Rule = dict[str, Any]

PATHS: Mapping[Place, str] = {
    Place.RUN: "$.run",
    Place.SEGMENT: "$.at.segment",
    Place.ATTEMPT: "$.at.attempt",
    Place.STEP: "$.at.step",
    Place.REPORTED: "$.at.reported",
    Place.LIMIT: "$.size.limit",
    Place.STOP_AFTER: "$.size.stop_after",
    Place.DRIVER: "$$.Execution.Id",
}
"""Where a machine keeps what a template leaves open."""

JOB_NAME = "$.job.name"


@dataclass(frozen=True)
class Own:
    """A value that each part of a run in parts has its own of (``fan_out``)."""

    key: str


# ---- intrinsic functions --------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """As an argument of an intrinsic function."""
    for character in "\\'{}":
        text = text.replace(character, "\\" + character)
    return f"'{text}'"


def formatted(words: Sequence[str | Place]) -> str:
    """One text of literal pieces and values by their paths."""
    pattern, paths = "", []
    for word in words:
        if isinstance(word, Place):
            pattern += "{}"
            paths.append(PATHS[word])
        elif word.startswith("$."):
            pattern += "{}"
            paths.append(word)
        else:
            pattern += quoted(word)[1:-1]
    return f"States.Format('{pattern}', {', '.join(paths)})"


def sum_of(path: str, other: str | int) -> str:
    """``other``: a number or a path."""
    if isinstance(other, int) and other < 0:
        other = f"States.StringToJson('{other}')"  # nobody promises that a literal may have a sign
    return f"States.MathAdd({path}, {other})"


def difference_of(path: str, other: str) -> str:
    """There is no subtraction: the other number gets a sign as text, and is read again."""
    return sum_of(path, f"States.StringToJson(States.Format('-{{}}', {other}))")


def merged(defaults: str, path: str) -> str:
    """What is at ``path``, with the members of ``defaults`` that it lacks."""
    return f"States.JsonMerge({defaults}, {path}, false)"


def parameters(value: Any) -> Any:
    """A template in the language: a member with an open value gets ``.$`` behind its name.

    Raises ValueError for an open value in a list, which the language has no way to write.
    """
    if isinstance(value, Mapping):
        return dict(_member(key, item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [parameters(item) for item in value]
    if isinstance(value, (Text, Number, Own)):
        raise ValueError(f"an open value stands in a list: {value}")
    return value


def _member(key: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, Number):
        return f"{key}.$", PATHS[value.place]
    if isinstance(value, Own):
        return f"{key}.$", f"$.part.{value.key}"
    if value == NAME:
        return f"{key}.$", JOB_NAME
    if isinstance(value, Text):
        # These are text already.
        if value.words in ((Place.RUN,), (Place.STOP_AFTER,), (Place.DRIVER,)):
            return f"{key}.$", PATHS[Place(value.words[0])]
        return f"{key}.$", formatted(value.words)
    return key, parameters(value)


# ---- rules of a choice ----------------------------------------------------------------------------------


def when(path: str, comparison: str, value: Any) -> Rule:
    return {"Variable": path, comparison: value}


def all_of(*rules: Rule) -> Rule:
    return rules[0] if len(rules) == 1 else {"And": list(rules)}


def any_of(*rules: Rule) -> Rule:
    return rules[0] if len(rules) == 1 else {"Or": list(rules)}


def to(target: str, rule: Rule) -> Rule:
    return {**rule, "Next": target}


# ---- states ---------------------------------------------------------------------------------------------


def choice(comment: str, rules: Sequence[Rule], default: str) -> State:
    return {"Type": "Choice", "Comment": comment, "Choices": list(rules), "Default": default}


def note(comment: str, values: Mapping[str, Any], result: str | None, following: str) -> State:
    """A Pass state: computes ``values`` and puts them at ``result``; None: they are all that is kept."""
    state: State = {"Type": "Pass", "Comment": comment, "Parameters": dict(values)}
    if result is not None:
        state["ResultPath"] = result
    return {**state, "Next": following}


def pause(comment: str, following: str, *, seconds: int | None = None, path: str | None = None) -> State:
    length = {"SecondsPath": path} if seconds is None else {"Seconds": seconds}
    return {"Type": "Wait", "Comment": comment, **length, "Next": following}


def task(
    comment: str,
    resource: str,
    values: Mapping[str, Any],
    result: str | None,
    following: str,
    *,
    selector: Mapping[str, Any] | None = None,
    retry: Sequence[State] = (),
    catch: Sequence[State] = (),
) -> State:
    state: State = {"Type": "Task", "Comment": comment, "Resource": f"arn:aws:states:::{resource}"}
    state["Parameters"] = dict(values)
    if selector is not None:
        state["ResultSelector"] = dict(selector)
    state["ResultPath"] = result
    if retry:
        state["Retry"] = list(retry)
    if catch:
        state["Catch"] = list(catch)
    return {**state, "Next": following}


def fail(comment: str, error: str, cause: str) -> State:
    """``cause``: a text, or an intrinsic function or path that makes one."""
    dynamic = cause.startswith(("$.", "States."))
    return {"Type": "Fail", "Comment": comment, "Error": error, "CausePath" if dynamic else "Cause": cause}


def retrier(errors: Sequence[str], patience: Patience, pace: float, tries: int | None = None) -> State:
    """Waits as ``patience`` says, each random up to its length."""
    first = max(1, round(patience.first * pace))
    longest = max(1, round(patience.longest * pace))
    state: State = {"ErrorEquals": list(errors), "IntervalSeconds": first, "BackoffRate": 2}
    if longest > first:
        state["MaxDelaySeconds"] = longest
    else:
        state["BackoffRate"] = 1
    return {**state, "MaxAttempts": patience.tries if tries is None else tries, "JitterStrategy": "FULL"}


def catcher(errors: Sequence[str], result: str | None, following: str) -> State:
    return {"ErrorEquals": list(errors), "ResultPath": result, "Next": following}
