"""A run in parts as one machine: it starts itself once for each part, so that each has a history of its own.

Parts differ in a few addresses only. Those become ``Own`` values of the templates, and stand in the list that
the Map goes over: in the definition, or for many parts in an object in S3, which a Distributed Map reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from smlaunch.errors import EXIT_REFUSED, EXIT_SERVICE, JobError, Problem
from smlaunch.export.asl import (
    Own,
    Rule,
    State,
    catcher,
    choice,
    fail,
    merged,
    note,
    retrier,
    task,
    to,
    when,
)
from smlaunch.export.flow import ERRORS, Flow, Number, Text
from smlaunch.export.machine_words import STOPPED, began, may_not
from smlaunch.planning.patience import CREATE_PATIENCE
from smlaunch.planning.storage import Layout

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
GAVE, WHOLE = "What they gave", "All parts are done"
DONE, BEGUN, FAILED, WRITE = "It is done", "Has it begun?", "How it failed", "Write its end"


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


def results_at(flow: Flow, run: str = "*") -> str:
    """The prefix below which the parts' results lie that no state has room for."""
    return Layout(flow.items.split("/")[2], run).parts + "results/"


def states(flow: Flow, items: Sequence[Mapping[str, Any]], inline: bool) -> dict[str, State]:
    """From ``FAN_OUT`` on: every part is an execution, and one that fails is that one's affair. ``inline``:
    the items stand in the definition, and the run's output has each part's result; else it says where they
    are."""
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
    return {**made, **(_told_in_full() if inline else _told_in_short(flow))}


def _ended_so() -> dict[str, Rule]:
    """Whether a part has, by the error's name."""
    return {
        name: when(f"$.errors.{name.partition('.')[2]}", "BooleanEquals", True) for name in ERRORS.values()
    }


def _told_in_full() -> dict[str, State]:
    rules = [to(f"Parts: {name}", rule) for name, rule in _ended_so().items()]
    return {
        RESULTS: choice("The run has failed when a part has.", rules, WHOLE),
        **_fails("States.JsonToString($.parts)"),
        WHOLE: {"Type": "Succeed", "Comment": "With each part's result.", "OutputPath": "$.parts"},
    }


def _told_in_short(flow: Flow) -> dict[str, State]:
    """A Cause has room for 32 KiB: for the numbers of all that failed so, and where to read why."""
    place = f"States.Format('{results_at(flow, '{}')}', $.run)"
    rules = [to(f"Which: {name}", rule) for name, rule in _ended_so().items()]
    cause = f"States.Format('{_FAILED_SO}', States.JsonToString($.failed.parts), $.failed.results)"
    whole = {"run.$": "$.run", "results.$": place, "parts.$": "$.parts"}
    made = {RESULTS: choice("The run has failed when a part has.", rules, GAVE)}
    for name in ERRORS.values():
        which = {"parts.$": f"$.parts[?(@.error == '{name}')].part", "results.$": place}
        made[f"Which: {name}"] = note("Their numbers.", which, "$.failed", f"Parts: {name}")
    return {
        **made,
        **_fails(cause),
        GAVE: note("Each part's result is an object there.", whole, None, WHOLE),
        WHOLE: {"Type": "Succeed"},
    }


_FAILED_SO = "the parts {} failed so; why each did stands in {}<number>.json"


def _fails(cause: str) -> dict[str, State]:
    return {f"Parts: {name}": fail("Each part's end.", name, cause) for name in ERRORS.values()}


def _inline() -> State:
    start = _start("$.run", "$$.StateMachine.Id", "$$.Execution.Id")
    return {
        "Comment": "All at once; a quota that does not hold them all is waited for.",
        "ItemsPath": "$.parts",
        "ItemSelector": {"run.$": "$.run", "part.$": "$$.Map.Item.Value", "blank": STOPPED},
        "ItemProcessor": _processor({"Mode": "INLINE"}, start, _told()),
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
        "ItemProcessor": _processor(config, start, _written(flow)),
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
        DONE,
        selector={"result.$": "$.Output"},
        catch=[catcher(["States.ALL"], "$.ended", BEGUN)],
    )


def _processor(config: Mapping[str, str], start: State, ends: Mapping[str, State]) -> State:
    return {"ProcessorConfig": dict(config), "StartAt": ONE, "States": {ONE: start, **ends}}


_GAVE = {"error": "", "result.$": "$.ended.result"}
_FAILED = {"error.$": "$.told.Error", "cause.$": "$.told.Cause"}


def _failures() -> dict[str, State]:
    """``$.told``: the part's Error and Cause, its execution's or those of a start that was refused."""

    def told(comment: str, what: Mapping[str, Any]) -> State:
        return note(comment, {**what, "run.$": "$.run", "part.$": "$.part"}, None, FAILED)

    def refused(exit_code: int) -> dict[str, Any]:
        return {"told": {"Error": ERRORS[exit_code], "Cause.$": "$.ended.Cause"}}

    as_json = {"told.$": merged("$.blank", "States.StringToJson($.ended.Cause)")}
    rules = [to("It has failed", began("$.ended")), to("It may not begin", may_not("$.ended"))]
    comment = "A failed execution is told as JSON, a start that was refused in words."
    return {
        BEGUN: choice(comment, rules, "It cannot begin"),
        "It has failed": told("The others go on.", as_json),
        "It may not begin": told("See permissions.json: GoOn.", refused(EXIT_REFUSED)),
        "It cannot begin": told("In the service's words.", refused(EXIT_SERVICE)),
    }


def _told() -> dict[str, State]:
    """Each part's end, as the Map's result."""
    part = {"part.$": "$.part.number"}
    return {
        DONE: _last(note("What it gives.", {**part, **_GAVE}, None, "")),
        **_failures(),
        FAILED: _last(note("As its execution.", {**part, **_FAILED}, None, "")),
    }


def _written(flow: Flow) -> dict[str, State]:
    """As an object of its own, below the run's prefix; the Map's result has its number and error."""
    bucket, _, key = results_at(flow, "{}").removeprefix("s3://").partition("/")
    part = {"part.$": "$.part.number", "execution.$": "States.Format('{}-p{}', $.run, $.part.number)"}
    write = task(
        "One that cannot be written is told by its execution, and the run goes by how the part ended.",
        "aws-sdk:s3:putObject",
        {
            "Bucket": bucket,
            "ExpectedBucketOwner": flow.owner_of(bucket),
            "Key.$": f"States.Format('{key}{{}}.json', $.run, $.end.part)",
            "Body.$": "$.end",
            "ContentType": "application/json",
        },
        None,
        "In short",
        retry=[retrier(["S3.S3Exception", "S3.SdkClientException"], CREATE_PATIENCE, flow.pace, 5)],
        catch=[catcher(["States.ALL"], None, "In short")],
    )
    short = {"part.$": "$.end.part", "error.$": "$.end.error"}
    return {
        DONE: note("What it gives.", {**part, **_GAVE}, "$.end", WRITE),
        **_failures(),
        FAILED: note("As its execution.", {**part, **_FAILED}, "$.end", WRITE),
        WRITE: write,
        "In short": _last(note("A Map's result has room for that.", short, None, "")),
    }


def _last(state: State) -> State:
    return {**{key: value for key, value in state.items() if key != "Next"}, "End": True}
