"""A run as a plain Airflow DAG of the Amazon provider's own operators: nothing of smlaunch has to be there.

A single job, training or processing, is one task. A chain is unrolled: as many training tasks as its training
time has segments, and behind each a task that leaves the rest out when the training has finished. Each try of
a task is the segment's next attempt. What is decided anew after every job by ``planning.reconcile`` has no
words in a DAG that was written beforehand; what of that cannot be done without is refused, and the rest is
told at the top of the file. ``SmlaunchOperator`` (docs/airflow.md) does all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.export.airflow_text import CHAIN_PARTS, HEAD, NOTES, ONE_PART, PROCESSING_NOTES, TRIES
from smlaunch.export.flow import Flow, Number, Place, Stage, Text, flow_of, mapped
from smlaunch.planning.patience import CREATE_PATIENCE
from smlaunch.planning.plan import Plan
from smlaunch.planning.reconcile import OUTCOME_GRACE
from smlaunch.planning.workflow import FAILURE_CLASSES, RULES, STOP_CLASSES, Ending, Remedy
from smlaunch.protocol.checkpoint import FINISHED, OUTCOME
from smlaunch.protocol.names import RUN_LIMIT, is_run_id
from smlaunch.protocol.segment import FROM_REPORTED, FROM_STEP

MOST_SEGMENTS = 200
"""Tasks that a person can still look at."""

CHECK_INTERVAL = 30
"""Seconds between two looks of the provider's waiter."""

SLACK = 86400
"""Seconds beyond its limit that a job is waited for: capacity, start and upload do not count as training."""

_RUN = "{{ run_of(dag_run) }}"
_STAMP = len("-20260102t030405")
_WIDTH = 110


@dataclass(frozen=True)
class _Source:
    """An expression of Python."""

    text: str


@dataclass(frozen=True)
class _Segment:
    """``stage``: the index of its variant. Seconds, as in the request."""

    number: int
    stage: int
    max_runtime: int
    stop_after: int | None


def export_airflow(plan: Plan, name: str, *, run: str | None = None, pace: float = 1.0) -> dict[str, str]:
    """One file, ``<name>.py``. ``name``: the DAG's, and what its runs are called after. ``run``: a fixed name
    of the run; None: every DAG run is a run of its own, called ``<name>-<its time>``.

    Raises JobError for what a DAG cannot do as the plan has it, every problem by its field.
    """
    flow = flow_of(plan, run=run, pace=pace)
    problems = [*_unnamed(name, run), *_inexpressible(flow)]
    if problems:
        raise JobError(problems)
    return {f"{name}.py": "".join(_file(flow, name))}


def _unnamed(name: str, run: str | None) -> Iterator[Problem]:
    if run is None and not (is_run_id(name) and len(name) + _STAMP <= RUN_LIMIT):
        text = (
            f"{name!r} with a DAG run's time behind it is no run id: lower-case letters, digits and single "
            f"dashes, at most {RUN_LIMIT - _STAMP} characters; give another with --called"
        )
        yield Problem("--called", text)


def _inexpressible(flow: Flow) -> Iterator[Problem]:
    instead = "; SmlaunchOperator does it (docs/airflow.md)"
    workflow, policy = flow.workflow, flow.policy
    if flow.parts:
        yield Problem("inputs.*.carry", f"a run in parts is no single DAG of plain operators{instead}")
        return
    if policy.max_cost is not None and not workflow.single:
        text = f"the provider's operator does not add up what jobs were billed for{instead}"
        yield Problem("limits.max_cost", text)
    if any(stage.on_demand is not None for stage in flow.stages):
        text = f"another request after spot capacity did not come is not in the operator's words{instead}"
        yield Problem("compute.on_demand_fallback", text)
    if any(stage.until_step is not None for stage in flow.stages):
        text = f"which segment reaches a step is not known when the DAG is written{instead}"
        yield Problem("segments[].until_step", text)
    if policy.chain and flow.checkpoints is None:
        yield Problem("checkpoints", f"without any there is no outcome to end the chain by{instead}")
    if workflow.segments is None:
        text = f"a chain without an end cannot be unrolled{instead}"
        yield Problem("limits.max_runtime", text)
    elif workflow.segments > MOST_SEGMENTS:
        text = (
            f"{workflow.segments} segments would be as many tasks, and {MOST_SEGMENTS} is the most{instead}"
        )
        yield Problem("limits.segment", text)


# ---- what stands in the file ------------------------------------------------------------------------------


def _segments(flow: Flow) -> list[_Segment]:
    """Those of the plan, each as long as it may be."""
    starts = [stage.first_segment for stage in flow.stages]
    found: list[_Segment] = []
    left = flow.training if flow.training is not None and flow.policy.chain else flow.stages[0].max_runtime
    while left > 0:
        number = len(found) + 1
        index = max(i for i, first in enumerate(starts) if first <= number)
        stage = flow.stages[index]
        limit = min(stage.max_runtime, left)
        if limit < stage.least and found:
            break
        found.append(_Segment(number, index, limit, stage.stop_after(limit)))
        left -= limit
    return found


def _file(flow: Flow, name: str) -> Iterator[str]:
    chain = flow.policy.chain
    segments = _segments(flow)
    kind, function = ("Processing", "process") if flow.processing else ("Training", "train")
    retrying = [rule for rule in RULES.values() if rule.remedy is Remedy.RETRY]
    words = {
        "TITLE": _commented(flow.title),
        "DAG": _literal(name),
        "COUNT": f"a chain of {len(segments)} training jobs" if chain else f"a {kind.lower()} job",
        "NOTES": PROCESSING_NOTES if flow.processing else NOTES,
        "OPERATOR": f"SageMaker{kind}Operator",
        "KIND": kind,
        "WORK": kind.lower(),
        "FUNCTION": function,
        "REGION": _literal(flow.region),
        "RUN": json.dumps(flow.run if flow.run is not None else _RUN),
        "INTERVAL": str(max(1, flow.seconds(CHECK_INTERVAL))),
        "SLACK": str(SLACK),
        "PRINT_LOG": _print_log(flow),
        "RETRIES": str(flow.policy.attempts - 1),
        "DELAY": str(flow.seconds(max(rule.first_wait for rule in retrying))),
        "LONGEST": str(flow.seconds(max(rule.longest_wait for rule in retrying))),
        "CREATES": str(CREATE_PATIENCE.tries),
        "FINAL": _names(kind for kind, ending in FAILURE_CLASSES.items() if _is_final(ending)),
        "LIMITS": _names(STOP_CLASSES),
        "OUTCOME": "None" if flow.checkpoints is None else _outcome(flow.checkpoints),
        "OWNER": "None" if flow.checkpoints is None else _literal(_owner(flow, flow.checkpoints)),
        "FINISHED": _literal(FINISHED),
        "GRACE": str(flow.seconds(OUTCOME_GRACE)),
        "IDLE": str(flow.policy.attempts),
    }
    yield _filled(HEAD, words)
    for number, stage in enumerate(flow.stages, 1):
        yield _request(stage, number)
    yield _filled(TRIES, words)
    yield _filled(CHAIN_PARTS if chain else ONE_PART, words)
    yield f"    segments = [\n{''.join(_row(segment) for segment in segments)}    ]\n"
    yield "    in_order(segments)\n" if chain else f"    {function}(*segments[0])\n"


def _owner(flow: Flow, checkpoints: Text) -> str:
    return flow.owner_of(str(checkpoints.words[0]).removeprefix("s3://").partition("/")[0])


def _print_log(flow: Flow) -> str:
    if flow.processing:
        return ""  # accepted, and never looked at (provider 9.39.0)
    if all("InstanceType" in stage.template["ResourceConfig"] for stage in flow.stages):
        return "        print_log=True,  # into the task's log\n"
    # The operator looks for it in the job's description, where groups and preferences have their own.
    return "        print_log=False,  # it would look for one ResourceConfig.InstanceCount, and fail\n"


def _is_final(ending: Ending) -> bool:
    return RULES[ending].remedy is Remedy.GIVE_UP


def _row(segment: _Segment) -> str:
    limits = f"{segment.max_runtime}, {segment.stop_after}"
    return f"        ({segment.number}, config_{segment.stage + 1}({segment.number}, {limits})),\n"


def _outcome(checkpoints: Text) -> str:
    return _source(Text((*checkpoints.words, OUTCOME))).text


def _request(stage: Stage, number: int) -> str:
    """A function that makes the request of any segment of this variant."""
    template = mapped(stage.template, _source)
    template["Environment"] = {
        key: value for key, value in template["Environment"].items() if key not in (FROM_STEP, FROM_REPORTED)
    }
    limit = template["StoppingCondition"]
    limit["MaxRuntimeInSeconds"] = _Source("max_runtime")
    return (
        f"\n\ndef config_{number}(segment: int, max_runtime: int, stop_after: int | None) -> dict:\n"
        f"    return {_literal(template, 4)}\n"
    )


_PLACES = {
    Place.RUN: "{RUN}",
    Place.SEGMENT: "{segment}",
    Place.ATTEMPT: "{ATTEMPT}",
    Place.STEP: "0",
    Place.REPORTED: "0",
    Place.STOP_AFTER: "{stop_after}",
    Place.LIMIT: "{max_runtime}",
    Place.DRIVER: "{DRIVER}",
}


def _source(value: Text | Number) -> _Source:
    if isinstance(value, Number):
        return _Source(_PLACES[value.place].strip("{}"))
    inner = "".join(
        _PLACES[word]
        if isinstance(word, Place)
        else json.dumps(_quoted(word))[1:-1].replace("{", "{{").replace("}", "}}")
        for word in value.words
    )
    return _Source(f'f"{inner}"')


_JINJA = re.compile(r"\{\{|\{%|\{#")


def _quoted(text: str) -> str:
    """As it comes out of Jinja again: the operator renders every text of its config."""
    if _JINJA.search(text) is None:
        return text
    return "{{ " + json.dumps(text).replace("{", "\\u007b") + " }}"


def _literal(value: Any, indent: int = 0) -> str:
    """Python source, on one line where it fits."""
    short = _short(value)
    if indent + len(short) <= _WIDTH - 20 or not isinstance(value, (Mapping, list)) or not value:
        return short
    inner = " " * (indent + 4)
    if isinstance(value, Mapping):
        rows = [f"{inner}{json.dumps(key)}: {_literal(item, indent + 4)},\n" for key, item in value.items()]
        return "{\n" + "".join(rows) + " " * indent + "}"
    rows = [f"{inner}{_literal(item, indent + 4)},\n" for item in value]
    return "[\n" + "".join(rows) + " " * indent + "]"


def _short(value: Any) -> str:
    if isinstance(value, _Source):
        return value.text
    if isinstance(value, str):
        return json.dumps(_quoted(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)}: {_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return repr(value)


def _names(names: Any) -> str:
    found = [json.dumps(name) for name in names]
    return "(" + ", ".join(found) + ("," if len(found) == 1 else "") + ")"


def _commented(text: str) -> str:
    """For the docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''").replace("\n", " ")


def _filled(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"<<([A-Z_]+)>>", lambda match: words[match[1]], text)
