"""A run as an Airflow DAG with operators of the Amazon provider; it does not need smlaunch.

A single training or processing job is one task. A chain is unrolled: one training task for each segment, each
followed by a task that skips the remaining ones when the training is finished. Each try of a task is the next
attempt of its segment. Decisions that ``planner.reconcile`` makes after every job cannot be expressed in a
fixed DAG: a job that needs them is refused, and other differences are listed at the top of the file.
``SmlaunchOperator`` (docs/airflow.md) makes all of these decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.contract.names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.contract.outcome import FINISHED, OUTCOME_PATH_PREFIX
from smlaunch.contract.segment import FROM_REPORTED_VARIABLE, FROM_STEP_VARIABLE
from smlaunch.errors import JobError, Problem
from smlaunch.export.airflow_source import (
    ATTEMPTS_SOURCE,
    CHAIN_SOURCE,
    HEADER_SOURCE,
    PROCESSING_NOTES,
    SINGLE_JOB_SOURCE,
    TRAINING_NOTES,
)
from smlaunch.export.run_template import (
    JobVariable,
    NumberTemplate,
    RunTemplate,
    TextTemplate,
    VariantTemplate,
    build_run_template,
    map_open_values,
)
from smlaunch.planner.plan import Plan
from smlaunch.planner.reconcile import OUTCOME_GRACE_SECONDS
from smlaunch.planner.retry_policy import CREATE_BACKOFF
from smlaunch.planner.workflow import ENDING_BY_FAILURE, ENDING_BY_STOP, ENDING_RULES, Ending, Remedy

MAX_SEGMENTS = 200
"""Limit of smlaunch, so that a DAG stays readable."""

CHECK_INTERVAL_SECONDS = 30
"""Interval of the provider's waiter."""

WAIT_SLACK_SECONDS = 86400
"""Additional wait for a job beyond its limit: capacity, start and upload are not training time."""

_RUN_EXPRESSION = "{{ run_of(dag_run) }}"
_TIME_SUFFIX_LENGTH = len("-20260102t030405")
_LINE_LENGTH = 110


@dataclass(frozen=True)
class _Expression:
    """A Python expression."""

    text: str


@dataclass(frozen=True)
class _Segment:
    """One segment of the chain, with its limits in seconds."""

    number: int
    variant_index: int
    max_runtime_seconds: int
    stop_after: int | None


def export_airflow(
    plan: Plan, name: str, *, run: str | None = None, time_scale: float = 1.0
) -> dict[str, str]:
    """Return the file of the DAG, ``<name>.py``.

    ``name``: of the DAG, and prefix of its run ids. ``run``: fixed run id; None: every DAG run is a new run
    with the id ``<name>-<time>``. Raises JobError with everything in the plan that a DAG cannot do, each
    problem by its field.
    """
    template = build_run_template(plan, run=run, time_scale=time_scale)
    problems = [*_name_problems(name, run), *_unsupported_problems(template)]
    if problems:
        raise JobError(problems)
    return {f"{name}.py": "".join(_file_sections(template, name))}


def _name_problems(name: str, run: str | None) -> Iterator[Problem]:
    if run is None and not (is_run_id(name) and len(name) + _TIME_SUFFIX_LENGTH <= MAX_RUN_ID_LENGTH):
        max_length = MAX_RUN_ID_LENGTH - _TIME_SUFFIX_LENGTH
        text = (
            f"{name!r}, followed by the time of a DAG run, is no valid run id: lower-case letters, digits "
            f"and single dashes, at most {max_length} characters; choose another --called"
        )
        yield Problem("--called", text)


def _unsupported_problems(template: RunTemplate) -> Iterator[Problem]:
    """Yield a problem for each thing that the run needs and the provider's operators cannot do."""
    alternative = "; SmlaunchOperator does it (docs/airflow.md)"
    workflow, policy = template.workflow, template.policy
    if template.shards:
        yield Problem(
            "inputs.*.split_via",
            f"a sharded run cannot be a single DAG of the provider's operators{alternative}",
        )
        return
    if policy.max_cost is not None and not workflow.is_single_job:
        text = f"the provider's operator does not count billed time{alternative}"
        yield Problem("limits.max_cost", text)
    if any(variant.on_demand_request is not None for variant in template.variants):
        text = f"the provider's operator cannot retry with another request{alternative}"
        yield Problem("compute.on_demand_fallback", text)
    if any(variant.until_step is not None for variant in template.variants):
        text = f"the segment that reaches a step is not known when the DAG is written{alternative}"
        yield Problem("segments[].until_step", text)
    if policy.chain and template.checkpoints is None:
        yield Problem("checkpoints", f"a chain without checkpoints has no outcome that ends it{alternative}")
    if workflow.segment_count is None:
        text = f"a chain without an end cannot be unrolled{alternative}"
        yield Problem("limits.max_runtime", text)
    elif workflow.segment_count > MAX_SEGMENTS:
        text = (
            f"{workflow.segment_count} segments would be as many tasks, and {MAX_SEGMENTS} "
            f"is the most{alternative}"
        )
        yield Problem("limits.segment", text)


# ---- sections of the file ---------------------------------------------------------------------------------


def _plan_segments(template: RunTemplate) -> list[_Segment]:
    """Segments of the plan, each with its full length."""
    first_segments = [variant.first_segment for variant in template.variants]
    segments: list[_Segment] = []
    remaining_seconds = (
        template.max_training_seconds
        if template.max_training_seconds is not None and template.policy.chain
        else template.variants[0].max_runtime_seconds
    )
    while remaining_seconds > 0:
        number = len(segments) + 1
        variant_index = max(i for i, first in enumerate(first_segments) if first <= number)
        variant = template.variants[variant_index]
        max_runtime_seconds = min(variant.max_runtime_seconds, remaining_seconds)
        if max_runtime_seconds < variant.min_seconds and segments:
            break
        segments.append(
            _Segment(number, variant_index, max_runtime_seconds, variant.stop_after(max_runtime_seconds))
        )
        remaining_seconds -= max_runtime_seconds
    return segments


def _file_sections(template: RunTemplate, name: str) -> Iterator[str]:
    """Yield the sections of the DAG file in order. ``name``: the DAG's id."""
    is_chain = template.policy.chain
    segments = _plan_segments(template)
    kind, function = ("Processing", "process") if template.is_processing else ("Training", "train")
    retrying = [rule for rule in ENDING_RULES.values() if rule.remedy is Remedy.RETRY]
    placeholders = {
        "TITLE": _docstring_text(template.title),
        "DAG": _python_source(name),
        "COUNT": f"a chain of {len(segments)} training jobs" if is_chain else f"a {kind.lower()} job",
        "NOTES": PROCESSING_NOTES if template.is_processing else TRAINING_NOTES,
        "OPERATOR": f"SageMaker{kind}Operator",
        "KIND": kind,
        "WORK": kind.lower(),
        "FUNCTION": function,
        "REGION": _python_source(template.region),
        "RUN": json.dumps(template.run if template.run is not None else _RUN_EXPRESSION),
        "INTERVAL": str(max(1, template.scale_seconds(CHECK_INTERVAL_SECONDS))),
        "SLACK": str(WAIT_SLACK_SECONDS),
        "PRINT_LOG": _print_log(template),
        "RETRIES": str(template.policy.attempts - 1),
        "DELAY": str(template.scale_seconds(max(rule.first_wait_seconds for rule in retrying))),
        "LONGEST": str(template.scale_seconds(max(rule.max_wait_seconds for rule in retrying))),
        "CREATES": str(CREATE_BACKOFF.max_retries),
        "FINAL": _tuple_source(kind for kind, ending in ENDING_BY_FAILURE.items() if _is_final(ending)),
        "LIMITS": _tuple_source(ENDING_BY_STOP),
        "OUTCOMES": "None" if template.checkpoints is None else _outcomes_expression(template.checkpoints),
        "OWNER": "None"
        if template.checkpoints is None
        else _python_source(_checkpoints_owner(template, template.checkpoints)),
        "FINISHED": _python_source(FINISHED),
        "GRACE": str(template.scale_seconds(OUTCOME_GRACE_SECONDS)),
        "IDLE": str(template.policy.attempts),
    }
    yield _fill_placeholders(HEADER_SOURCE, placeholders)
    for number, variant in enumerate(template.variants, 1):
        yield _config_function(variant, number)
    yield _fill_placeholders(ATTEMPTS_SOURCE, placeholders)
    yield _fill_placeholders(CHAIN_SOURCE if is_chain else SINGLE_JOB_SOURCE, placeholders)
    yield f"    segments = [\n{''.join(_segment_row(segment) for segment in segments)}    ]\n"
    yield "    chain_tasks(segments)\n" if is_chain else f"    {function}(*segments[0])\n"


def _checkpoints_owner(template: RunTemplate, checkpoints: TextTemplate) -> str:
    return template.bucket_owner(str(checkpoints.pieces[0]).removeprefix("s3://").partition("/")[0])


def _print_log(template: RunTemplate) -> str:
    if template.is_processing:
        return ""  # accepted, but ignored (provider 9.39.0)
    if all("InstanceType" in variant.request["ResourceConfig"] for variant in template.variants):
        return "        print_log=True,  # into the task's log\n"
    # The operator reads ResourceConfig.InstanceCount, which instance groups and preferences do not have.
    return "        print_log=False,  # it would look for one ResourceConfig.InstanceCount, and fail\n"


def _is_final(ending: Ending) -> bool:
    return ENDING_RULES[ending].remedy is Remedy.GIVE_UP


def _segment_row(segment: _Segment) -> str:
    limits = f"{segment.max_runtime_seconds}, {segment.stop_after}"
    return f"        ({segment.number}, config_{segment.variant_index + 1}({segment.number}, {limits})),\n"


def _outcomes_expression(checkpoints: TextTemplate) -> str:
    return _to_expression(TextTemplate((*checkpoints.pieces, OUTCOME_PATH_PREFIX))).text


def _config_function(variant: VariantTemplate, number: int) -> str:
    """Source of the function that returns the request of a segment of this variant."""
    template = map_open_values(variant.request, _to_expression)
    template["Environment"] = {
        key: value
        for key, value in template["Environment"].items()
        if key not in (FROM_STEP_VARIABLE, FROM_REPORTED_VARIABLE)
    }
    limit = template["StoppingCondition"]
    limit["MaxRuntimeInSeconds"] = _Expression("max_runtime")
    return (
        f"\n\ndef config_{number}(segment: int, max_runtime: int, stop_after: int | None) -> dict:\n"
        f"    return {_python_source(template, 4)}\n"
    )


_VARIABLE_EXPRESSIONS = {
    JobVariable.RUN: "{RUN}",
    JobVariable.SEGMENT: "{segment}",
    JobVariable.ATTEMPT: "{ATTEMPT}",
    JobVariable.COMMITTED_STEP: "0",
    JobVariable.REPORTED_STEP: "0",
    JobVariable.STOP_AFTER: "{stop_after}",
    JobVariable.MAX_RUNTIME: "{max_runtime}",
    JobVariable.DRIVER: "{DRIVER}",
}


def _to_expression(value: TextTemplate | NumberTemplate) -> _Expression:
    if isinstance(value, NumberTemplate):
        return _Expression(_VARIABLE_EXPRESSIONS[value.variable].strip("{}"))
    text = "".join(
        _VARIABLE_EXPRESSIONS[piece]
        if isinstance(piece, JobVariable)
        else json.dumps(_escape_jinja(piece))[1:-1].replace("{", "{{").replace("}", "}}")
        for piece in value.pieces
    )
    return _Expression(f'f"{text}"')


_JINJA = re.compile(r"\{\{|\{%|\{#")


def _escape_jinja(text: str) -> str:
    """Escape a text for Jinja: the operator renders every text of its config."""
    if _JINJA.search(text) is None:
        return text
    return "{{ " + json.dumps(text).replace("{", "\\u007b") + " }}"


def _python_source(value: Any, indent: int = 0) -> str:
    """Format a value as Python source, on one line where it fits."""
    one_line = _one_line_source(value)
    if indent + len(one_line) <= _LINE_LENGTH - 20 or not isinstance(value, (Mapping, list)) or not value:
        return one_line
    indentation = " " * (indent + 4)
    if isinstance(value, Mapping):
        rows = [
            f"{indentation}{json.dumps(key)}: {_python_source(item, indent + 4)},\n"
            for key, item in value.items()
        ]
        return "{\n" + "".join(rows) + " " * indent + "}"
    rows = [f"{indentation}{_python_source(item, indent + 4)},\n" for item in value]
    return "[\n" + "".join(rows) + " " * indent + "]"


def _one_line_source(value: Any) -> str:
    """Return Python source for the value, on one line."""
    if isinstance(value, _Expression):
        return value.text
    if isinstance(value, str):
        return json.dumps(_escape_jinja(value))
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)}: {_one_line_source(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_one_line_source, value)) + "]"
    return repr(value)


def _tuple_source(names: Any) -> str:
    quoted_names = [json.dumps(name) for name in names]
    return "(" + ", ".join(quoted_names) + ("," if len(quoted_names) == 1 else "") + ")"


def _docstring_text(text: str) -> str:
    """Escape a text for the docstring of the file."""
    return text.replace("\\", "\\\\").replace('"""', "'''").replace("\n", " ")


def _fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"<<([A-Z_]+)>>", lambda match: values[match[1]], text)
