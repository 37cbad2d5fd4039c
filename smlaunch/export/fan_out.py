"""A run in parts as one machine: it starts itself once for each part, so that each has a history of its own.

Parts differ in a few addresses only. Those become ``Own`` values of the templates, and stand in the list that
the Map goes over.
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

MOST_PARTS = 200
"""What they differ in has to fit into a state's 256 KiB."""

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
        many = f"{len(flow.parts)} parts are more than the {MOST_PARTS} that one machine can be given"
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
    return replace(flow.parts[0], stages=tuple(stages), parts=flow.parts), items


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


def states(items: Sequence[Mapping[str, Any]]) -> dict[str, State]:
    """From ``FAN_OUT`` on: every part is an execution, and one that fails is that one's affair."""
    comment = "Each part is a run of its own: an execution of this machine, named after this one."
    made = {FAN_OUT: note(comment, {"run.$": "$$.Execution.Name", "parts": list(items)}, None, EVERY)}
    start = task(
        "Waits for the part's end.",
        "states:startExecution.sync:2",
        {
            "StateMachineArn.$": "$$.StateMachine.Id",
            "Name.$": "States.Format('{}-p{}', $.run, $.part.number)",
            "Input": {"AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id", "part.$": "$.part"},
        },
        "$.ended",
        "It is done",
        selector={"result.$": "$.Output"},
        catch=[catcher(["States.ALL"], "$.ended", "It has failed")],
    )
    done = {"part.$": "$.part.number", "error": "", "result.$": "$.ended.result"}
    told = {
        "part.$": "$.part.number",
        "told.$": merged("$.blank", "States.StringToJson($.ended.Cause)"),
    }
    failed = {"part.$": "$.part", "error.$": "$.told.Error", "cause.$": "$.told.Cause"}
    inner = {
        ONE: start,
        "It is done": {**note("What it gives.", done, None, ""), "End": True},
        "It has failed": note("The others go on.", told, None, "How it failed"),
        "How it failed": {**note("As its execution.", failed, None, ""), "End": True},
    }
    for state in inner.values():
        if "End" in state:
            del state["Next"]
    made[EVERY] = {
        "Type": "Map",
        "Comment": "All at once; a quota that does not hold them all is waited for.",
        "ItemsPath": "$.parts",
        "ItemSelector": {"run.$": "$.run", "part.$": "$$.Map.Item.Value", "blank": STOPPED},
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": ONE, "States": inner},
        "ResultPath": "$.parts",
        "Next": "Which errors?",
    }
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
    for name in ERRORS.values():
        made[f"Parts: {name}"] = fail("Each part's end.", name, "States.JsonToString($.parts)")
    made[WHOLE] = {"Type": "Succeed", "Comment": "With each part's result.", "OutputPath": "$.parts"}
    return made
