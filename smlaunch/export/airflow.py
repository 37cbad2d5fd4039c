"""A run as an Airflow DAG with operators of the Amazon provider; it does not need smlaunch.

A single training or processing job is one task. A chain is unrolled: one training task for each segment, each
followed by a task that skips the remaining ones when the training is finished. Each try of a task is the next
attempt of its segment. Decisions that ``chain.next_action`` makes after every job cannot be expressed in a
fixed DAG: a job that needs them is refused, and other differences are listed at the top of the file.
``SmlaunchOperator`` (docs/airflow.md) makes all of these decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.api.job_kinds import TRAINING
from smlaunch.api.retry_policy import CREATE_BACKOFF
from smlaunch.chain.next_action import OUTCOME_GRACE_SECONDS
from smlaunch.chain.workflow import (
    ENDING_BY_FAILURE_REASON,
    ENDING_BY_SECONDARY_STATUS,
    RULE_BY_ENDING,
    Remedy,
)
from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.contract.segment import FROM_REPORTED_VARIABLE, FROM_STEP_VARIABLE
from smlaunch.contract.segment_outcome import FINISHED, OUTCOME_PATH_PREFIX
from smlaunch.errors import JobError, Problem
from smlaunch.export.airflow_dag_templates import (
    ATTEMPTS_SOURCE,
    CHAIN_SOURCE,
    HEADER_SOURCE,
    NOTES_WITH_CHECKPOINTS,
    NOTES_WITHOUT_CHECKPOINTS,
    SINGLE_JOB_SOURCE,
)
from smlaunch.export.run_template import (
    JobVariable,
    NumberTemplate,
    RunTemplate,
    TemplateSegment,
    TextTemplate,
    VariantTemplate,
    build_run_template,
    map_template_values,
)
from smlaunch.planner.plan import RunPlan

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
class _PythonExpression:
    """A Python expression."""

    source: str


def export_airflow(
    plan: RunPlan, dag_id: str, *, fixed_run_id: str | None = None, time_scale: float = 1.0
) -> dict[str, str]:
    """Return the file of the DAG, ``<dag_id>.py``.

    ``dag_id``: also the prefix of its run ids. ``fixed_run_id``: None makes every DAG run a new run with the
    id ``<dag_id>-<time>``. Raises JobError with everything in the plan that a DAG cannot do, each problem by
    its field.
    """
    template = build_run_template(plan, fixed_run_id=fixed_run_id, time_scale=time_scale)
    problems = [*_dag_id_problems(dag_id, fixed_run_id), *_unsupported_field_problems(template)]
    if problems:
        raise JobError(problems)
    return {f"{dag_id}.py": "".join(_iter_dag_file_sections(template, dag_id))}


def _dag_id_problems(dag_id: str, fixed_run_id: str | None) -> Iterator[Problem]:
    """Yield a problem if a run of the DAG, named ``<dag_id>-<time>``, would have no valid run id."""
    max_length = MAX_RUN_ID_LENGTH - _TIME_SUFFIX_LENGTH
    if fixed_run_id is None and not (is_run_id(dag_id) and len(dag_id) <= max_length):
        text = (
            f"{dag_id!r}, followed by the time of a DAG run, is no valid run id: lower-case letters, digits "
            f"and single dashes, at most {max_length} characters; choose another --called"
        )
        yield Problem("--called", text)


def _unsupported_field_problems(template: RunTemplate) -> Iterator[Problem]:
    """Yield a problem for each field of the job that Airflow's SageMaker operators (Amazon provider) cannot
    carry out, with SmlaunchOperator as the alternative. ``template``: the planned run as exports write it. A
    chain is a run of several segments, which are jobs in a row; a variant is the request of consecutive
    segments; the policy says when to retry and to give up."""
    use_operator_hint = "; SmlaunchOperator does it (docs/airflow.md)"
    workflow, policy = template.workflow, template.policy
    if template.shards:
        yield Problem(
            "inputs.*.split_via",  # one run for each shard of the input
            f"a sharded run cannot be a single DAG of the provider's operators{use_operator_hint}",
        )
        return  # the other problems are those of each shard
    if policy.max_cost is not None and not workflow.is_single_job:
        problem_text = f"the provider's operator does not count billed time{use_operator_hint}"
        yield Problem("limits.max_cost", problem_text)
    if any(variant.on_demand_request is not None for variant in template.variants):
        problem_text = f"the provider's operator cannot retry with another request{use_operator_hint}"
        yield Problem("compute.on_demand_fallback", problem_text)
    if any(variant.until_step is not None for variant in template.variants):
        problem_text = (
            f"the segment that reaches a step is not known when the DAG is written{use_operator_hint}"
        )
        yield Problem("segments[].until_step", problem_text)
    if workflow.is_multi_segment and template.checkpoints_prefix is None:
        yield Problem(
            "checkpoints", f"a chain without checkpoints has no outcome that ends it{use_operator_hint}"
        )
    if workflow.segment_count is None:
        problem_text = f"a chain without an end cannot be unrolled{use_operator_hint}"
        yield Problem("limits.max_runtime", problem_text)
    elif workflow.segment_count > MAX_SEGMENTS:
        problem_text = (
            f"{workflow.segment_count} segments would be as many tasks, and {MAX_SEGMENTS} "
            f"is the most{use_operator_hint}"
        )
        yield Problem("limits.segment", problem_text)


# ---- sections of the file ---------------------------------------------------------------------------------


def _iter_dag_file_sections(template: RunTemplate, dag_id: str) -> Iterator[str]:
    """Yield the sections of the DAG's Python file in order: header, one function for each variant (request of
    consecutive segments), the functions that count attempts, and the tasks, one for each segment (job).
    Constants in capitals are texts with placeholders ``<<NAME>>``."""
    is_chain = template.workflow.is_multi_segment
    segments = list(template.iter_segments())
    placeholders = _build_source_by_placeholder(template, dag_id, len(segments))
    yield _fill_placeholders(HEADER_SOURCE, placeholders)
    for variant_number, variant in enumerate(template.variants, 1):
        yield _request_function_source(variant, variant_number)
    yield _fill_placeholders(ATTEMPTS_SOURCE, placeholders)
    yield _fill_placeholders(CHAIN_SOURCE if is_chain else SINGLE_JOB_SOURCE, placeholders)
    yield f"    segments = [\n{''.join(_segment_tuple_source(segment) for segment in segments)}    ]\n"
    yield "    chain_tasks(segments)\n" if is_chain else f"    {placeholders['FUNCTION']}(*segments[0])\n"


def _build_source_by_placeholder(template: RunTemplate, dag_id: str, segment_count: int) -> dict[str, str]:
    """Return the Python source for each placeholder ``<<NAME>>`` of the section templates. Times are in
    seconds, scaled where a local endpoint is faster than a region. ``RULE_BY_ENDING`` says what follows each
    way in which a job can end: its remedy (retry, give up, ...) and the waits before."""
    kind = template.kind
    checkpoints_prefix = template.checkpoints_prefix
    retry_rules = [rule for rule in RULE_BY_ENDING.values() if rule.remedy is Remedy.RETRY]
    final_failure_classes = [
        failure_class
        for failure_class, ending in ENDING_BY_FAILURE_REASON.items()
        if RULE_BY_ENDING[ending].remedy is Remedy.GIVE_UP
    ]
    return {
        "TITLE": _docstring_text(template.title),
        "DAG": _python_source(dag_id),
        "COUNT": f"a chain of {segment_count} training jobs"
        if template.workflow.is_multi_segment
        else f"a {kind.noun}",
        "NOTES": NOTES_WITH_CHECKPOINTS if kind.has_checkpoints else NOTES_WITHOUT_CHECKPOINTS,
        "OPERATOR": f"SageMaker{kind.name}Operator",
        "KIND": kind.name,
        "WORK": kind.name.lower(),
        "FUNCTION": kind.verb.lower(),
        "REGION": _python_source(template.region),
        # The run id: a fixed one, or a Jinja expression that makes one of each DAG run.
        "RUN": json.dumps(template.fixed_run_id if template.fixed_run_id is not None else _RUN_EXPRESSION),
        "INTERVAL": str(max(1, template.scale_seconds(CHECK_INTERVAL_SECONDS))),  # between two status calls
        "SLACK": str(WAIT_SLACK_SECONDS),  # how much longer than the job's limit the task waits
        "PRINT_LOG": _print_log_argument(template),
        "RETRIES": str(template.policy.attempts - 1),
        # The first wait before a retry, and the longest one.
        "DELAY": str(template.scale_seconds(max(rule.first_wait_seconds for rule in retry_rules))),
        "LONGEST": str(template.scale_seconds(max(rule.max_wait_seconds for rule in retry_rules))),
        "CREATES": str(CREATE_BACKOFF.max_retries),  # retries of the call that creates a job
        "FINAL": _tuple_source(final_failure_classes),  # a failure of these classes is not retried
        "LIMITS": _tuple_source(ENDING_BY_SECONDARY_STATUS),  # stopped at a time limit, not by a person
        # The outcome file of a job says how far it came; without checkpoints there is none.
        "OUTCOMES": "None" if checkpoints_prefix is None else _outcome_prefix_expression(checkpoints_prefix),
        # The account that must own the bucket of the checkpoints.
        "OWNER": "None"
        if checkpoints_prefix is None
        else _python_source(_checkpoint_bucket_owner(template, checkpoints_prefix)),
        "FINISHED": _python_source(FINISHED),  # the result in an outcome file when training is done
        "GRACE": str(template.scale_seconds(OUTCOME_GRACE_SECONDS)),  # until an outcome file has arrived
        "IDLE": str(template.policy.attempts),  # jobs in a row without progress that end the chain
    }


def _checkpoint_bucket_owner(template: RunTemplate, checkpoints: TextTemplate) -> str:
    return template.bucket_owner(str(checkpoints.pieces[0]).removeprefix("s3://").partition("/")[0])


def _print_log_argument(template: RunTemplate) -> str:
    """Return the line of the DAG file that says whether the operator prints the job's log; empty for an
    operator that cannot."""
    if template.kind is not TRAINING:
        return ""  # the operators of other kinds have no such argument, or ignore it (provider 9.39.0)
    if all("InstanceType" in variant.request["ResourceConfig"] for variant in template.variants):
        return "        print_log=True,  # into the task's log\n"
    # The operator reads ResourceConfig.InstanceCount, which instance groups and preferences do not have.
    return "        print_log=False,  # it would look for one ResourceConfig.InstanceCount, and fail\n"


def _segment_tuple_source(segment: TemplateSegment) -> str:
    limits = f"{segment.max_runtime_seconds}, {segment.planned_end_seconds}"
    return f"        ({segment.number}, config_{segment.variant_index + 1}({segment.number}, {limits})),\n"


def _outcome_prefix_expression(checkpoints: TextTemplate) -> str:
    return _to_python_expression(TextTemplate((*checkpoints.pieces, OUTCOME_PATH_PREFIX))).source


def _request_function_source(variant: VariantTemplate, number: int) -> str:
    """Source of the function that returns the request of a segment of this variant."""
    template = map_template_values(variant.request, _to_python_expression)
    template["Environment"] = {
        key: value
        for key, value in template["Environment"].items()
        if key not in (FROM_STEP_VARIABLE, FROM_REPORTED_VARIABLE)
    }
    limit = template["StoppingCondition"]
    limit["MaxRuntimeInSeconds"] = _PythonExpression("max_runtime")
    return (
        f"\n\ndef config_{number}(segment: int, max_runtime: int, stop_after: int | None) -> dict:\n"
        f"    return {_python_source(template, 4)}\n"
    )


_F_STRING_FIELD_BY_VARIABLE = {
    JobVariable.RUN: "{RUN}",
    JobVariable.SEGMENT: "{segment}",
    JobVariable.ATTEMPT: "{ATTEMPT}",
    JobVariable.COMMITTED_STEP: "0",
    JobVariable.REPORTED_STEP: "0",
    JobVariable.STOP_AFTER: "{stop_after}",
    JobVariable.MAX_RUNTIME: "{max_runtime}",
    JobVariable.DRIVER: "{DRIVER}",
}


def _to_python_expression(template: TextTemplate | NumberTemplate) -> _PythonExpression:
    """Return the Python expression for a value with variables, such as ``f"{RUN}-s{segment}"``."""
    if isinstance(template, NumberTemplate):
        return _PythonExpression(_F_STRING_FIELD_BY_VARIABLE[template.variable].strip("{}"))
    f_string_content = ""
    for piece in template.pieces:
        if isinstance(piece, JobVariable):
            f_string_content += _F_STRING_FIELD_BY_VARIABLE[piece]
        else:
            quoted_piece = json.dumps(_escape_jinja(piece))
            f_string_content += quoted_piece[1:-1].replace("{", "{{").replace("}", "}}")
    return _PythonExpression(f'f"{f_string_content}"')


_JINJA = re.compile(r"\{\{|\{%|\{#")


def _escape_jinja(text: str) -> str:
    """Escape a text for Jinja: the operator renders every text of its config."""
    if _JINJA.search(text) is None:
        return text
    return "{{ " + json.dumps(text).replace("{", "\\u007b") + " }}"


def _python_source(value: Any, indent: int = 0) -> str:
    """Format a value as Python source, on one line where it fits."""
    one_line = _one_line_python_source(value)
    if indent + len(one_line) <= _LINE_LENGTH - 20 or not isinstance(value, (Mapping, list)) or not value:
        return one_line
    if isinstance(value, Mapping):
        opening, closing = "{", "}"
        items = [f"{json.dumps(key)}: {_python_source(item, indent + 4)}" for key, item in value.items()]
    else:
        opening, closing = "[", "]"
        items = [_python_source(item, indent + 4) for item in value]
    lines = [f"{' ' * (indent + 4)}{item},\n" for item in items]
    return f"{opening}\n{''.join(lines)}{' ' * indent}{closing}"


def _one_line_python_source(node: Any) -> str:
    """Return Python source for a JSON value, on one line. Texts are escaped for Jinja, which the operator
    applies to its arguments; a ``_PythonExpression`` is source already (a variable of the DAG file) and
    inserted as it is."""
    if isinstance(node, _PythonExpression):
        return node.source
    if isinstance(node, str):
        return json.dumps(_escape_jinja(node))
    if isinstance(node, Mapping):
        members = [f"{json.dumps(key)}: {_one_line_python_source(child)}" for key, child in node.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(node, list):
        return "[" + ", ".join(map(_one_line_python_source, node)) + "]"
    return repr(node)


def _tuple_source(names: Any) -> str:
    quoted_names = [json.dumps(name) for name in names]
    return "(" + ", ".join(quoted_names) + ("," if len(quoted_names) == 1 else "") + ")"


def _docstring_text(text: str) -> str:
    """Escape a text for the docstring of the file."""
    return text.replace("\\", "\\\\").replace('"""', "'''").replace("\n", " ")


def _fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"<<([A-Z_]+)>>", lambda match: values[match[1]], text)
