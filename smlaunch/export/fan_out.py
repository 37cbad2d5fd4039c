"""A run in parts as one machine: it starts itself once for each part, so that each has a history of its own.

Parts differ in a few addresses only. Those become ``Own`` values of the templates, and stand in the list that
the Map goes over: in the definition, or for many parts in an object in S3, which a Distributed Map reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.export.asl import (
    Own,
    State,
    catcher,
    choice,
    fail,
    merged,
    note,
    task,
    to,
    when,
)
from smlaunch.export.flow import ERRORS, Flow, Number, Text
from smlaunch.export.machine_words import STOPPED

MOST_INLINE = 200
"""What they differ in, and what they give, has to fit into a state's 256 KiB."""

MOST_PARTS = 4000
"""Of a Distributed Map, whose result tells only whether each went well: at some 60 bytes, 256 KiB too."""

AT_ONCE = 40
"""Parts of a Distributed Map that run at a time: as many as Step Functions runs of an inline one. Each waits
for the quota a day at most, so all at once would wait in vain."""

LABEL = "parts"
"""In the ARNs of a Distributed Map's own executions, ``execution:<machine>/<label>:<id>``."""

FAN_OUT, EVERY, ONE, RESULTS = "All parts", "Every part", "One part", "How did they end?"
WHOLE = "All parts are done"


def shared(flow: Flow) -> tuple[Flow, list[dict[str, Any]]]:
    """The flow that all parts have in common, and what each has of its own. Raises JobError."""
    own: dict[str, Sequence[Any]] = {}
    stages = []
    for several in zip(*(part.stages for part in flow.parts), strict=True):
        templates = [stage.template for stage in several]
        spare = [stage.on_demand for stage in several]
        on_demand = None if spare[0] is None else _common(spare, own)
        stages.append(replace(several[0], template=_common(templates, own), on_demand=on_demand))
    if len(flow.parts) > MOST_PARTS:
        many = f"{len(flow.parts)} parts are more than the {MOST_PARTS} that one machine can tell of"
        raise JobError([Problem("compute.hosts", f"{many}; ask for fewer")])
    if len({part.checkpoints for part in flow.parts}) > 1:
        told = (
            "a machine cannot be told the parts' own folders below it; leave it out for the run's own place"
        )
        raise JobError([Problem("checkpoints.uri", told)])
    if flow.run is not None:
        told = "a machine for a run in parts names them after its executions; leave the name out"
        raise JobError([Problem("name", told)])
    items = [
        {
            "number": int(part.workflow.run.rpartition("-p")[2]),
            **{key: values[index] for key, values in own.items()},
        }
        for index, part in enumerate(flow.parts)
    ]
    return replace(flow.parts[0], stages=tuple(stages), parts=flow.parts, items=flow.items), items


def _common(values: Sequence[Any], own: dict[str, Sequence[Any]]) -> Any:
    first = values[0]
    if all(value == first for value in values):
        return first
    if isinstance(first, Mapping):
        return {key: _common([value[key] for value in values], own) for key in first}
    if isinstance(first, (list, tuple)):
        return [_common(list(several), own) for several in zip(*values, strict=True)]
    if isinstance(first, (Text, Number)):
        return first  # a place in S3, of which ``shared`` has said that it cannot be told
    known = next((key for key, other in own.items() if list(other) == list(values)), None)
    if known is None:
        known = f"own{len(own) + 1}"
        own[known] = values
    return Own(known)


def states(flow: Flow, items: Sequence[Mapping[str, Any]], inline: bool) -> dict[str, State]:
    """From ``FAN_OUT`` on: every part is an execution, and one that fails is that one's affair. ``inline``:
    the items stand in the definition, and the run's output has each part's result."""
    comment = "Each part is a run of its own: an execution of this machine, named after this one."
    listed = {"parts": list(items)} if inline else {}
    made = {FAN_OUT: note(comment, {"run.$": "$$.Execution.Name", **listed}, None, EVERY)}
    every = _inline() if inline else _distributed(flow)
    made[EVERY] = {"Type": "Map", **every, "ResultPath": "$.parts", "Next": "Which errors?"}
    errors = {
        name.partition(".")[2] + ".$": f"States.ArrayContains($.parts[*].error, '{name}')"
        for name in ERRORS.values()
    }
    made["Which errors?"] = note("Of the parts that failed.", errors, "$.errors", RESULTS)
    rules = [
        to(f"Parts: {name}", when(f"$.errors.{name.partition('.')[2]}", "BooleanEquals", True))
        for name in ERRORS.values()
    ]
    made[RESULTS] = choice("The run has failed when a part has.", rules, WHOLE)
    # A Cause has room for 32 KiB, which the list of many parts is longer than.
    told = "States.JsonToString($.parts)" if inline else f"States.Format('{_SOME_FAILED}', $.run)"
    for name in ERRORS.values():
        made[f"Parts: {name}"] = fail("Each part's end.", name, told)
    made[WHOLE] = {"Type": "Succeed", "Comment": "With each part's result.", "OutputPath": "$.parts"}
    return made


_SOME_FAILED = "at least one part failed so; each part is the execution {}-p<number>, which tells why"


def _inline() -> State:
    start = _start("$.run", "$$.StateMachine.Id", "$$.Execution.Id")
    result, cause = {"result.$": "$.ended.result"}, {"cause.$": "$.told.Cause"}
    return {
        "Comment": "All at once; a quota that does not hold them all is waited for.",
        "ItemsPath": "$.parts",
        "ItemSelector": {"run.$": "$.run", "part.$": "$$.Map.Item.Value", "blank": STOPPED},
        "ItemProcessor": _processor({"Mode": "INLINE"}, start, result, cause),
    }


def _distributed(flow: Flow) -> State:
    """In its own executions ``$$`` tells of those and of ``<machine>/<label>``, so they are given ours."""
    bucket, _, key = flow.items.removeprefix("s3://").partition("/")
    start = _start("$.run", "$.machine", "$.execution")
    config = {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}
    return {
        "Comment": "A quota that does not hold them all is waited for. A part's failure is told, not thrown.",
        "Label": LABEL,
        "ItemReader": {
            "Resource": f"arn:{flow.partition}:states:::s3:getObject",
            "ReaderConfig": {"InputType": "JSON"},
            "Parameters": {"Bucket": bucket, "Key": key},
        },
        "ItemSelector": {
            "run.$": "$$.Execution.Name",
            "machine.$": "$$.StateMachine.Id",
            "execution.$": "$$.Execution.Id",
            "part.$": "$$.Map.Item.Value",
            "blank": STOPPED,
        },
        "ItemProcessor": _processor(config, start, {}, {}),
        "MaxConcurrency": AT_ONCE,
        "ToleratedFailureCount": 0,
    }


def _start(run: str, machine: str, execution: str) -> State:
    return task(
        "Waits for the part's end.",
        "states:startExecution.sync:2",
        {
            "StateMachineArn.$": machine,
            "Name.$": f"States.Format('{{}}-p{{}}', {run}, $.part.number)",
            "Input": {"AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": execution, "part.$": "$.part"},
        },
        "$.ended",
        "It is done",
        selector={"result.$": "$.Output"},
        catch=[catcher(["States.ALL"], "$.ended", "It has failed")],
    )


def _processor(
    config: Mapping[str, str], start: State, result: Mapping[str, str], cause: Mapping[str, str]
) -> State:
    """``result`` and ``cause``: what is told of a part beside its error."""
    told = {
        "part.$": "$.part.number",
        "told.$": merged("$.blank", "States.StringToJson($.ended.Cause)"),
    }
    done = {"part.$": "$.part.number", "error": "", **result}
    failed = {"part.$": "$.part", "error.$": "$.told.Error", **cause}
    inner = {
        ONE: start,
        "It is done": _last(note("What it gives.", done, None, "")),
        "It has failed": note("The others go on.", told, None, "How it failed"),
        "How it failed": _last(note("As its execution.", failed, None, "")),
    }
    return {"ProcessorConfig": dict(config), "StartAt": ONE, "States": inner}


def _last(state: State) -> State:
    return {**{key: value for key, value in state.items() if key != "Next"}, "End": True}
