"""The Amazon States Language, as far as exports need it: paths, intrinsic functions, rules and states.

Query language JSONPath. Source: the States Language specification (states-language.net) and the Step
Functions developer guide. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from smlaunch.api.retry_policy import BackoffPolicy
from smlaunch.export.run_template import JOB_NAME_TEMPLATE, JobVariable, NumberTemplate, TextTemplate

State = dict[str, Any]
ChoiceRule = dict[str, Any]

JSON_PATH_BY_VARIABLE: Mapping[JobVariable, str] = {
    JobVariable.RUN: "$.run",
    JobVariable.SEGMENT: "$.position.segment",
    JobVariable.ATTEMPT: "$.position.attempt",
    JobVariable.COMMITTED_STEP: "$.position.step",
    JobVariable.REPORTED_STEP: "$.position.reported",
    JobVariable.MAX_RUNTIME: "$.time_limits.limit",
    JobVariable.STOP_AFTER: "$.time_limits.stop_after",
    JobVariable.DRIVER: "$$.Execution.Id",
}
"""Paths of the job variables in the context of a state machine."""

JOB_NAME_PATH = "$.job.name"


@dataclass(frozen=True)
class ShardValue:
    """A value that differs between the shards of a sharded run (``sfn_shards``)."""

    key: str


# ---- intrinsic functions --------------------------------------------------------------------------------


def _escape_literal(text: str) -> str:
    """Escape the characters that have a meaning inside a quoted text of an intrinsic function."""
    for character in "\\'{}":
        text = text.replace(character, "\\" + character)
    return text


def states_format(pieces: Sequence[str | JobVariable]) -> str:
    """Return the intrinsic function ``States.Format('pattern with {}', paths...)`` (Amazon States Language),
    which joins the pieces: literal texts, job variables (run, segment, ...: values that are at a JSON path
    of the execution), and JSON paths themselves, which begin with ``$.``."""
    format_pattern = ""
    paths: list[str] = []
    for piece in pieces:
        if isinstance(piece, JobVariable):
            format_pattern += "{}"
            paths.append(JSON_PATH_BY_VARIABLE[piece])
        elif piece.startswith("$."):
            format_pattern += "{}"
            paths.append(piece)
        else:
            format_pattern += _escape_literal(piece)
    return f"States.Format('{format_pattern}', {', '.join(paths)})"


def states_math_add(path: str, other: str | int) -> str:
    """``States.MathAdd`` of a path and a number or path."""
    if isinstance(other, int) and other < 0:
        other = f"States.StringToJson('{other}')"  # a sign in a literal is not documented
    return f"States.MathAdd({path}, {other})"


def states_subtract(path: str, other: str) -> str:
    """Subtract two paths. The language has no subtraction: the second number is negated as text."""
    return states_math_add(path, f"States.StringToJson(States.Format('-{{}}', {other}))")


def states_merge_defaults(defaults: str, path: str) -> str:
    """The object at ``path``, with missing members from ``defaults``."""
    return f"States.JsonMerge({defaults}, {path}, false)"


def to_asl_parameters(node: Any) -> Any:
    """Convert a request template to the ``Parameters`` of a Task state (Amazon States Language). A value that
    is computed in the execution is a TextTemplate, NumberTemplate or ShardValue in the template; here the
    name of its member ends in ``.$``, and its value is a JSON path or a function.

    Raises ValueError for such a value in a list, which the language cannot express.
    """
    if isinstance(node, Mapping):
        return dict(_asl_member(key, item) for key, item in node.items())
    if isinstance(node, (list, tuple)):
        return [to_asl_parameters(item) for item in node]
    if isinstance(node, (TextTemplate, NumberTemplate, ShardValue)):
        raise ValueError(f"a variable value in a list: {node}")
    return node


def _asl_member(member_name: str, value: Any) -> tuple[str, Any]:
    """Return the name and value of one member of a Task state's ``Parameters``. A value that is computed in
    the execution becomes a JSON path or an intrinsic function, and its name gets the suffix ``.$``: a
    TextTemplate (literals and job variables such as the run id), a NumberTemplate (one variable), a
    ShardValue (differs between the runs for parts of the data)."""
    if isinstance(value, NumberTemplate):
        return f"{member_name}.$", JSON_PATH_BY_VARIABLE[value.variable]
    if isinstance(value, ShardValue):
        return f"{member_name}.$", f"$.shard.{value.key}"  # this shard's own value, from the input
    if value == JOB_NAME_TEMPLATE:  # a state before has computed it
        return f"{member_name}.$", JOB_NAME_PATH
    if isinstance(value, TextTemplate):
        # A variable alone that is a text already needs no States.Format; a number would.
        if value.pieces in ((JobVariable.RUN,), (JobVariable.STOP_AFTER,), (JobVariable.DRIVER,)):
            return f"{member_name}.$", JSON_PATH_BY_VARIABLE[JobVariable(value.pieces[0])]
        return f"{member_name}.$", states_format(value.pieces)
    return member_name, to_asl_parameters(value)


# ---- rules of a choice ----------------------------------------------------------------------------------


def comparison_rule(path: str, operator: str, value: Any) -> ChoiceRule:
    return {"Variable": path, operator: value}


def and_rule(*rules: ChoiceRule) -> ChoiceRule:
    return rules[0] if len(rules) == 1 else {"And": list(rules)}


def or_rule(*rules: ChoiceRule) -> ChoiceRule:
    return rules[0] if len(rules) == 1 else {"Or": list(rules)}


def rule_to_state(next_state: str, rule: ChoiceRule) -> ChoiceRule:
    return {**rule, "Next": next_state}


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
    service_integration: str,
    parameters: Mapping[str, Any],
    result_path: str | None,
    next_state: str,
    *,
    result_selector: Mapping[str, Any] | None = None,
    retriers: Sequence[State] = (),
    catchers: Sequence[State] = (),
) -> State:
    """Return a Task state of the Amazon States Language. ``service_integration``: the end of its ARN, such as
    ``sagemaker:createTrainingJob.sync``. ``result_path``: None to discard the result."""
    state: State = {"Type": "Task", "Comment": comment, "Resource": f"arn:aws:states:::{service_integration}"}
    state["Parameters"] = dict(parameters)
    if result_selector is not None:
        state["ResultSelector"] = dict(result_selector)
    state["ResultPath"] = result_path
    if retriers:
        state["Retry"] = list(retriers)
    if catchers:
        state["Catch"] = list(catchers)
    return {**state, "Next": next_state}


def merge_states(*tables: Mapping[str, State]) -> dict[str, State]:
    """Return the states of all tables by name, in order. Raises ValueError for a name that comes twice."""
    merged: dict[str, State] = {}
    for name, state in chain.from_iterable(table.items() for table in tables):
        if name in merged:
            raise ValueError(f"two states have the name {name!r}")
        merged[name] = state
    return merged


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
