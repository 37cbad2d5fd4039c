"""A sharded run as one state machine, which starts itself once for each shard: each shard has its own
history.

Shards differ in a few addresses only. These become ``ShardValue``s of the template and items of a Map: in the
definition, or, for many shards, in an object in S3 that a Distributed Map reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from smlaunch.errors import EXIT_REFUSED, EXIT_SERVICE, JobError, Problem
from smlaunch.export.asl import (
    ChoiceRule,
    ShardValue,
    State,
    catcher,
    choice_state,
    compare,
    fail_state,
    go_to,
    merge_defaults,
    pass_state,
    retrier,
    task_state,
)
from smlaunch.export.run_template import (
    ORCHESTRATOR_ERRORS,
    NumberTemplate,
    RunTemplate,
    TextTemplate,
    VariantTemplate,
)
from smlaunch.export.sfn_common import EXECUTION_STOPPED, execution_started, is_access_denied
from smlaunch.planner.input_channels import RunLayout
from smlaunch.planner.retry_policy import CREATE_BACKOFF

MAX_INLINE_SHARDS = 200
"""The items and the results have to fit into the 256 KiB of a state."""

MAX_SHARDS = 4000
"""Limit of a Distributed Map: its result has some 60 bytes for each shard, 256 KiB in all."""

MAX_CONCURRENT_SHARDS = 40
"""Concurrent shards of a Distributed Map: as many as Step Functions runs of an inline Map. Each waits at most
a day for the quota, so more at once could time out."""

MAP_LABEL = "shards"
"""Part of the ARNs of a Distributed Map's executions: ``execution:<machine>/<label>:<id>``."""

LIST_SHARDS, MAP_SHARDS, START_SHARD, CHECK_RESULTS = (
    "All shards",
    "Every shard",
    "One shard",
    "How did they end?",
)
COLLECT_RESULTS, ALL_SHARDS_DONE = "What they gave", "All shards are done"
SHARD_DONE, CHECK_SHARD_STARTED, SHARD_FAILED, WRITE_RESULT = (
    "It is done",
    "Has it begun?",
    "How it failed",
    "Write its end",
)


def merge_shards(template: RunTemplate) -> tuple[RunTemplate, list[dict[str, Any]]]:
    """Merge the templates of all shards into one; also return the differing values of each shard.

    Raises JobError for a sharded run that one state machine cannot express.
    """
    shard_values: dict[str, Sequence[Any]] = {}
    merged_variants: list[VariantTemplate] = []
    for variants in zip(*(shard.variants for shard in template.shards), strict=True):
        request = _merge_values([variant.request for variant in variants], shard_values)
        on_demand_requests = [variant.on_demand_request for variant in variants]
        on_demand_request = (
            None if on_demand_requests[0] is None else _merge_values(on_demand_requests, shard_values)
        )
        merged_variants.append(replace(variants[0], request=request, on_demand_request=on_demand_request))
    if len(template.shards) > MAX_SHARDS:
        reason = f"{len(template.shards)} shards are more than the {MAX_SHARDS} of one state machine"
        raise JobError([Problem("compute.hosts", f"{reason}; ask for fewer")])
    if len({shard.checkpoints for shard in template.shards}) > 1:
        message = (
            "a state machine cannot use a folder of each shard below it; leave it out for the default prefix"
        )
        raise JobError([Problem("checkpoints.uri", message)])
    if template.run is not None:
        message = "the shards of an exported run are named after the execution; leave the name out"
        raise JobError([Problem("name", message)])
    items = [
        {
            "number": int(shard.workflow.run.rpartition("-p")[2]),
            **{key: values[index] for key, values in shard_values.items()},
        }
        for index, shard in enumerate(template.shards)
    ]
    return replace(
        template.shards[0],
        variants=tuple(merged_variants),
        shards=template.shards,
        items_uri=template.items_uri,
    ), items


def _merge_values(values: Sequence[Any], shard_values: dict[str, Sequence[Any]]) -> Any:
    """Return the value that all shards have, or a placeholder for values that differ; those are added to
    ``shard_values``, one per shard. ``values``: of the same member, one per shard."""
    first_value = values[0]
    if all(value == first_value for value in values):
        return first_value
    if isinstance(first_value, Mapping):
        return {key: _merge_values([value[key] for value in values], shard_values) for key in first_value}
    if isinstance(first_value, (list, tuple)):
        return [_merge_values(list(items), shard_values) for items in zip(*values, strict=True)]
    if isinstance(first_value, (TextTemplate, NumberTemplate)):
        return first_value  # a checkpoint prefix; ``merge_shards`` refuses different ones
    known_key = next((key for key, other in shard_values.items() if list(other) == list(values)), None)
    if known_key is None:
        known_key = f"own{len(shard_values) + 1}"
        shard_values[known_key] = values
    return ShardValue(known_key)


def results_prefix(template: RunTemplate, run: str = "*") -> str:
    """S3 prefix of the results of shards, which are too large for a state."""
    return RunLayout(template.items_uri.split("/")[2], run).file_lists_prefix + "results/"


def shard_states(
    template: RunTemplate, items: Sequence[Mapping[str, Any]], is_inline: bool
) -> dict[str, State]:
    """States from ``LIST_SHARDS`` on. Every shard is an execution; a failed one does not end the others.

    ``inline``: the items are part of the definition, and the output has the result of each shard; otherwise
    the output has the address of the results.
    """
    comment = "Each shard is a run of its own: an execution of this machine, named after this one."
    shard_list = {"shards": list(items)} if is_inline else {}
    states = {
        LIST_SHARDS: pass_state(comment, {"run.$": "$$.Execution.Name", **shard_list}, None, MAP_SHARDS)
    }
    map_state = _inline_map() if is_inline else _distributed_map(template)
    states[MAP_SHARDS] = {"Type": "Map", **map_state, "ResultPath": "$.shards", "Next": "Which errors?"}
    errors = {
        name.partition(".")[2] + ".$": f"States.ArrayContains($.shards[*].error, '{name}')"
        for name in ORCHESTRATOR_ERRORS.values()
    }
    states["Which errors?"] = pass_state("Of the shards that failed.", errors, "$.errors", CHECK_RESULTS)
    return {**states, **(_inline_result_states() if is_inline else _distributed_result_states(template))}


def _rules_by_error() -> dict[str, ChoiceRule]:
    """Rules that hold when a shard has failed with an error, by the name of the error."""
    return {
        name: compare(f"$.errors.{name.partition('.')[2]}", "BooleanEquals", True)
        for name in ORCHESTRATOR_ERRORS.values()
    }


def _inline_result_states() -> dict[str, State]:
    rules = [go_to(f"Shards: {name}", rule) for name, rule in _rules_by_error().items()]
    return {
        CHECK_RESULTS: choice_state("The run has failed when a shard has.", rules, ALL_SHARDS_DONE),
        **_fail_states("States.JsonToString($.shards)"),
        ALL_SHARDS_DONE: {
            "Type": "Succeed",
            "Comment": "With each shard's result.",
            "OutputPath": "$.shards",
        },
    }


def _distributed_result_states(template: RunTemplate) -> dict[str, State]:
    """A Cause is limited to 32 KiB: it has the numbers of the failed shards and the address of the
    results."""
    results_uri = f"States.Format('{results_prefix(template, '{}')}', $.run)"
    rules = [go_to(f"Which: {name}", rule) for name, rule in _rules_by_error().items()]
    cause = f"States.Format('{_FAILED_SHARDS_TEXT}', States.JsonToString($.failed.shards), $.failed.results)"
    output = {"run.$": "$.run", "results.$": results_uri, "shards.$": "$.shards"}
    states = {CHECK_RESULTS: choice_state("The run has failed when a shard has.", rules, COLLECT_RESULTS)}
    for name in ORCHESTRATOR_ERRORS.values():
        failed_shards = {"shards.$": f"$.shards[?(@.error == '{name}')].shard", "results.$": results_uri}
        states[f"Which: {name}"] = pass_state("Their numbers.", failed_shards, "$.failed", f"Shards: {name}")
    return {
        **states,
        **_fail_states(cause),
        COLLECT_RESULTS: pass_state("Each shard's result is an object there.", output, None, ALL_SHARDS_DONE),
        ALL_SHARDS_DONE: {"Type": "Succeed"},
    }


_FAILED_SHARDS_TEXT = "the shards {} failed so; why each did stands in {}<number>.json"


def _fail_states(cause: str) -> dict[str, State]:
    return {
        f"Shards: {name}": fail_state("Each shard's end.", name, cause)
        for name in ORCHESTRATOR_ERRORS.values()
    }


def _inline_map() -> State:
    start = _start_execution("$.run", "$$.StateMachine.Id", "$$.Execution.Id")
    return {
        "Comment": "All at once; a quota that does not hold them all is waited for.",
        "ItemsPath": "$.shards",
        "ItemSelector": {"run.$": "$.run", "shard.$": "$$.Map.Item.Value", "blank": EXECUTION_STOPPED},
        "ItemProcessor": _processor({"Mode": "INLINE"}, start, _inline_end_states()),
    }


def _distributed_map(template: RunTemplate) -> State:
    """In executions of the Map ``$$`` is the Map's own context, so they get the values of the parent."""
    bucket, _, key = template.items_uri.removeprefix("s3://").partition("/")
    start = _start_execution("$.run", "$.machine", "$.execution")
    config = {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}
    return {
        "Comment": "Waits while the quota is less than all shards. A shard's failure is a result, no error.",
        "Label": MAP_LABEL,
        "ItemReader": {
            "Resource": f"arn:{template.partition}:states:::s3:getObject",
            "ReaderConfig": {"InputType": "JSON"},
            "Parameters": {"Bucket": bucket, "Key": key},
        },
        "ItemSelector": {
            "run.$": "$$.Execution.Name",
            "machine.$": "$$.StateMachine.Id",
            "execution.$": "$$.Execution.Id",
            "shard.$": "$$.Map.Item.Value",
            "blank": EXECUTION_STOPPED,
        },
        "ItemProcessor": _processor(config, start, _distributed_end_states(template)),
        "MaxConcurrency": MAX_CONCURRENT_SHARDS,
        "ToleratedFailureCount": 0,
    }


def _start_execution(run: str, machine: str, execution: str) -> State:
    return task_state(
        "Waits for the shard's end.",
        "states:startExecution.sync:2",
        {
            "StateMachineArn.$": machine,
            "Name.$": f"States.Format('{{}}-p{{}}', {run}, $.shard.number)",
            "Input": {"AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": execution, "shard.$": "$.shard"},
        },
        "$.ended",
        SHARD_DONE,
        selector={"result.$": "$.Output"},
        catch=[catcher(["States.ALL"], "$.ended", CHECK_SHARD_STARTED)],
    )


def _processor(config: Mapping[str, str], start: State, ends: Mapping[str, State]) -> State:
    return {"ProcessorConfig": dict(config), "StartAt": START_SHARD, "States": {START_SHARD: start, **ends}}


_SUCCESS_RESULT = {"error": "", "result.$": "$.ended.result"}
_FAILURE_RESULT = {"error.$": "$.told.Error", "cause.$": "$.told.Cause"}


def _failure_states() -> dict[str, State]:
    """States that set ``$.told``: Error and Cause of the shard's execution, or of a refused start."""

    def error_state(comment: str, error: Mapping[str, Any]) -> State:
        return pass_state(comment, {**error, "run.$": "$.run", "shard.$": "$.shard"}, None, SHARD_FAILED)

    def start_error(exit_code: int) -> dict[str, Any]:
        return {"told": {"Error": ORCHESTRATOR_ERRORS[exit_code], "Cause.$": "$.ended.Cause"}}

    execution_error = {"told.$": merge_defaults("$.blank", "States.StringToJson($.ended.Cause)")}
    rules = [
        go_to("It has failed", execution_started("$.ended")),
        go_to("It may not begin", is_access_denied("$.ended")),
    ]
    comment = "A failed execution is told as JSON, a start that was refused in words."
    return {
        CHECK_SHARD_STARTED: choice_state(comment, rules, "It cannot begin"),
        "It has failed": error_state("The others go on.", execution_error),
        "It may not begin": error_state("See permissions.json: GoOn.", start_error(EXIT_REFUSED)),
        "It cannot begin": error_state("In the service's words.", start_error(EXIT_SERVICE)),
    }


def _inline_end_states() -> dict[str, State]:
    """Return the end of each shard as the result of the Map."""
    shard_number = {"shard.$": "$.shard.number"}
    return {
        SHARD_DONE: _as_end_state(
            pass_state("What it gives.", {**shard_number, **_SUCCESS_RESULT}, None, "")
        ),
        **_failure_states(),
        SHARD_FAILED: _as_end_state(
            pass_state("As its execution.", {**shard_number, **_FAILURE_RESULT}, None, "")
        ),
    }


def _distributed_end_states(template: RunTemplate) -> dict[str, State]:
    """Write the end of each shard as an object below the run's prefix; the Map's result has number and
    error."""
    bucket, _, key = results_prefix(template, "{}").removeprefix("s3://").partition("/")
    shard_fields = {
        "shard.$": "$.shard.number",
        "execution.$": "States.Format('{}-p{}', $.run, $.shard.number)",
    }
    write_state = task_state(
        "One that cannot be written is told by its execution, and the run goes by how the shard ended.",
        "aws-sdk:s3:putObject",
        {
            "Bucket": bucket,
            "ExpectedBucketOwner": template.bucket_owner(bucket),
            "Key.$": f"States.Format('{key}{{}}.json', $.run, $.end.shard)",
            "Body.$": "$.end",
            "ContentType": "application/json",
        },
        None,
        "In short",
        retry=[retrier(["S3.S3Exception", "S3.SdkClientException"], CREATE_BACKOFF, template.time_scale, 5)],
        catch=[catcher(["States.ALL"], None, "In short")],
    )
    summary = {"shard.$": "$.end.shard", "error.$": "$.end.error"}
    return {
        SHARD_DONE: pass_state("What it gives.", {**shard_fields, **_SUCCESS_RESULT}, "$.end", WRITE_RESULT),
        **_failure_states(),
        SHARD_FAILED: pass_state(
            "As its execution.", {**shard_fields, **_FAILURE_RESULT}, "$.end", WRITE_RESULT
        ),
        WRITE_RESULT: write_state,
        "In short": _as_end_state(pass_state("A Map's result has room for that.", summary, None, "")),
    }


def _as_end_state(state: State) -> State:
    return {**{key: value for key, value in state.items() if key != "Next"}, "End": True}
