"""The Amazon States Language, as far as exports need it: paths, intrinsic functions, rules and states.

Query language JSONPath. Source: the States Language specification (states-language.net) and the Step
Functions developer guide. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smlaunch.export.run_template import JOB_NAME_TEMPLATE, JobVariable, NumberTemplate, TextTemplate
from smlaunch.planner.retry_policy import BackoffPolicy

State = dict[str, Any]
ChoiceRule = dict[str, Any]

VARIABLE_PATHS: Mapping[JobVariable, str] = {
    JobVariable.RUN: "$.run",
    JobVariable.SEGMENT: "$.at.segment",
    JobVariable.ATTEMPT: "$.at.attempt",
    JobVariable.COMMITTED_STEP: "$.at.step",
    JobVariable.REPORTED_STEP: "$.at.reported",
    JobVariable.MAX_RUNTIME: "$.size.limit",
    JobVariable.STOP_AFTER: "$.size.stop_after",
    JobVariable.DRIVER: "$$.Execution.Id",
}
"""Paths of the job variables in the context of a state machine."""

JOB_NAME_PATH = "$.job.name"


@dataclass(frozen=True)
class ShardValue:
    """A value that differs between the shards of a sharded run (``sfn_shards``)."""

    key: str


# ---- intrinsic functions --------------------------------------------------------------------------------


def quote_literal(text: str) -> str:
    """Quote a text as an argument of an intrinsic function."""
    for character in "\\'{}":
        text = text.replace(character, "\\" + character)
    return f"'{text}'"


def format_text(pieces: Sequence[str | JobVariable]) -> str:
    """``States.Format`` of literal pieces, variables and paths."""
    pattern, paths = "", []
    for piece in pieces:
        if isinstance(piece, JobVariable):
            pattern += "{}"
            paths.append(VARIABLE_PATHS[piece])
        elif piece.startswith("$."):
            pattern += "{}"
            paths.append(piece)
        else:
            pattern += quote_literal(piece)[1:-1]
    return f"States.Format('{pattern}', {', '.join(paths)})"


def add_numbers(path: str, other: str | int) -> str:
    """``States.MathAdd`` of a path and a number or path."""
    if isinstance(other, int) and other < 0:
        other = f"States.StringToJson('{other}')"  # a sign in a literal is not documented
    return f"States.MathAdd({path}, {other})"


def subtract(path: str, other: str) -> str:
    """Subtract two paths. The language has no subtraction: the second number is negated as text."""
    return add_numbers(path, f"States.StringToJson(States.Format('-{{}}', {other}))")


def merge_defaults(defaults: str, path: str) -> str:
    """The object at ``path``, with missing members from ``defaults``."""
    return f"States.JsonMerge({defaults}, {path}, false)"


def to_parameters(value: Any) -> Any:
    """Write a template as Parameters: the name of a member with a variable value ends in ``.$``.

    Raises ValueError for a variable value in a list, which the language cannot express.
    """
    if isinstance(value, Mapping):
        return dict(_parameter(key, item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [to_parameters(item) for item in value]
    if isinstance(value, (TextTemplate, NumberTemplate, ShardValue)):
        raise ValueError(f"a variable value in a list: {value}")
    return value


def _parameter(key: str, value: Any) -> tuple[str, Any]:
    """Return the key and value of one member of ``Parameters``: a value that the execution computes has a key
    that ends in ``.$`` and a path or an intrinsic function as its value."""
    if isinstance(value, NumberTemplate):
        return f"{key}.$", VARIABLE_PATHS[value.variable]
    if isinstance(value, ShardValue):
        return f"{key}.$", f"$.shard.{value.key}"
    if value == JOB_NAME_TEMPLATE:
        return f"{key}.$", JOB_NAME_PATH
    if isinstance(value, TextTemplate):
        # These variables are texts already.
        if value.pieces in ((JobVariable.RUN,), (JobVariable.STOP_AFTER,), (JobVariable.DRIVER,)):
            return f"{key}.$", VARIABLE_PATHS[JobVariable(value.pieces[0])]
        return f"{key}.$", format_text(value.pieces)
    return key, to_parameters(value)


# ---- rules of a choice ----------------------------------------------------------------------------------


def compare(path: str, comparison: str, value: Any) -> ChoiceRule:
    return {"Variable": path, comparison: value}


def all_of(*rules: ChoiceRule) -> ChoiceRule:
    return rules[0] if len(rules) == 1 else {"And": list(rules)}


def any_of(*rules: ChoiceRule) -> ChoiceRule:
    return rules[0] if len(rules) == 1 else {"Or": list(rules)}


def go_to(target: str, rule: ChoiceRule) -> ChoiceRule:
    return {**rule, "Next": target}


# ---- states ---------------------------------------------------------------------------------------------


def choice_state(comment: str, rules: Sequence[ChoiceRule], default: str) -> State:
    return {"Type": "Choice", "Comment": comment, "Choices": list(rules), "Default": default}


def pass_state(comment: str, values: Mapping[str, Any], result_path: str | None, next_state: str) -> State:
    """A Pass state that puts ``values`` at ``result_path``; None: they replace the whole context."""
    state: State = {"Type": "Pass", "Comment": comment, "Parameters": dict(values)}
    if result_path is not None:
        state["ResultPath"] = result_path
    return {**state, "Next": next_state}


def wait_state(
    comment: str, next_state: str, *, seconds: int | None = None, seconds_path: str | None = None
) -> State:
    duration = {"SecondsPath": seconds_path} if seconds is None else {"Seconds": seconds}
    return {"Type": "Wait", "Comment": comment, **duration, "Next": next_state}


def task_state(
    comment: str,
    resource: str,
    arguments: Mapping[str, Any],
    result_path: str | None,
    next_state: str,
    *,
    selector: Mapping[str, Any] | None = None,
    retry: Sequence[State] = (),
    catch: Sequence[State] = (),
) -> State:
    """Return a Task state. ``resource``: the service integration, as its ARN ends. ``selector``: its
    ResultSelector."""
    state: State = {"Type": "Task", "Comment": comment, "Resource": f"arn:aws:states:::{resource}"}
    state["Parameters"] = dict(arguments)
    if selector is not None:
        state["ResultSelector"] = dict(selector)
    state["ResultPath"] = result_path
    if retry:
        state["Retry"] = list(retry)
    if catch:
        state["Catch"] = list(catch)
    return {**state, "Next": next_state}


def fail_state(comment: str, error: str, cause: str) -> State:
    """A Fail state. ``cause``: a text, an intrinsic function or a path."""
    is_dynamic = cause.startswith(("$.", "States."))
    return {"Type": "Fail", "Comment": comment, "Error": error, "CausePath" if is_dynamic else "Cause": cause}


def retrier(
    errors: Sequence[str], backoff: BackoffPolicy, time_scale: float, max_attempts: int | None = None
) -> State:
    """A Retrier with the waits of ``backoff`` and full jitter."""
    first_seconds = max(1, round(backoff.first_seconds * time_scale))
    max_seconds = max(1, round(backoff.max_seconds * time_scale))
    state: State = {"ErrorEquals": list(errors), "IntervalSeconds": first_seconds, "BackoffRate": 2}
    if max_seconds > first_seconds:
        state["MaxDelaySeconds"] = max_seconds
    else:
        state["BackoffRate"] = 1
    return {
        **state,
        "MaxAttempts": backoff.max_retries if max_attempts is None else max_attempts,
        "JitterStrategy": "FULL",
    }


def catcher(errors: Sequence[str], result_path: str | None, next_state: str) -> State:
    return {"ErrorEquals": list(errors), "ResultPath": result_path, "Next": next_state}
