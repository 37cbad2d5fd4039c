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
    comparison_rule,
    fail_state,
    pass_state,
    rule_to_state,
    states_merge_defaults,
    task_state,
)
from smlaunch.export.run_template import (
    ORCHESTRATOR_ERRORS,
    NumberTemplate,
    RunTemplate,
    TextTemplate,
    VariantTemplate,
)
from smlaunch.export.sfn_common import (
    EXECUTION_STOPPED,
    rule_access_is_denied,
    rule_execution_was_started,
    s3_retriers,
)
from smlaunch.planner.input_channels import RunS3Layout

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
    """Merge the templates of the shards of a sharded run (one run for each part of the data) into one, in
    which a value that differs between shards is a ``ShardValue``. Also return these values as the items of a
    Map state, one item per shard.

    Raises JobError for a sharded run that one state machine cannot express.
    """
    shard_values = _ShardValues()
    merged_variants: list[VariantTemplate] = []
    for variants_of_shards in zip(*(shard.variants for shard in template.shards), strict=True):
        on_demand_requests = [variant.on_demand_request for variant in variants_of_shards]
        merged_variants.append(
            replace(
                variants_of_shards[0],
                request=shard_values.merge([variant.request for variant in variants_of_shards]),
                # All shards have one, or none has.
                on_demand_request=None
                if on_demand_requests[0] is None
                else shard_values.merge(on_demand_requests),
            )
        )
    _refuse_inexpressible_shards(template)
    map_items = [
        {
            "number": int(shard.workflow.run.rpartition("-p")[2]),  # the run id ends in -p<number>
            **shard_values.item_of_shard(shard_index),
        }
        for shard_index, shard in enumerate(template.shards)
    ]
    merged_template = replace(
        template.shards[0],
        variants=tuple(merged_variants),
        shards=template.shards,
        items_uri=template.items_uri,
    )
    return merged_template, map_items


def _refuse_inexpressible_shards(template: RunTemplate) -> None:
    """Raise JobError for a sharded run (one run for each part of the data) that one state machine cannot
    express. A template is a planned run as exports write it; ``fixed_run_id``: the job's own name."""
    if len(template.shards) > MAX_SHARDS:
        problem_text = f"{len(template.shards)} shards are more than the {MAX_SHARDS} of one state machine"
        raise JobError([Problem("compute.hosts", f"{problem_text}; ask for fewer")])
    if len({shard.checkpoints_prefix for shard in template.shards}) > 1:
        problem_text = (
            "a state machine cannot use a folder of each shard below it; leave it out for the default prefix"
        )
        raise JobError([Problem("checkpoints.uri", problem_text)])
    if template.fixed_run_id is not None:
        problem_text = "the shards of an exported run are named after the execution; leave the name out"
        raise JobError([Problem("name", problem_text)])


class _ShardValues:
    """Collects the values in which shards differ: for each, a list with one value per shard, by key."""

    def __init__(self) -> None:
        self._values_by_key: dict[str, Sequence[Any]] = {}

    def merge(self, values_of_shards: Sequence[Any]) -> Any:
        """Merge the same part of the request of every shard (a part of the data with a run of its own):
        return it where all are equal, with a ``ShardValue``, the key of a stored list, in place of each value
        that differs. ``values_of_shards``: one per shard. TextTemplate and NumberTemplate are values with
        variables of an execution."""
        first_value = values_of_shards[0]
        if all(value == first_value for value in values_of_shards):
            return first_value
        if isinstance(first_value, Mapping):
            return {key: self.merge([value[key] for value in values_of_shards]) for key in first_value}
        if isinstance(first_value, (list, tuple)):
            return [
                self.merge(list(items_of_shards)) for items_of_shards in zip(*values_of_shards, strict=True)
            ]
        if isinstance(first_value, (TextTemplate, NumberTemplate)):
            return first_value  # a checkpoint prefix; ``merge_shards`` refuses different ones
        return ShardValue(self._store_values(values_of_shards))

    def _store_values(self, values_of_shards: Sequence[Any]) -> str:
        """Store a list of values and return its key; the same list, wherever it occurs, has one key."""
        for key, known_values in self._values_by_key.items():
            if list(known_values) == list(values_of_shards):
                return key
        new_key = f"own{len(self._values_by_key) + 1}"
        self._values_by_key[new_key] = values_of_shards
        return new_key

    def item_of_shard(self, shard_index: int) -> dict[str, Any]:
        """Return the values of one shard, by key."""
        return {key: values[shard_index] for key, values in self._values_by_key.items()}


def results_prefix(template: RunTemplate, run: str = "*") -> str:
    """S3 prefix of the results of shards, which are too large for a state."""
    # s3://BUCKET/PREFIX/smlaunch/RUN/shards/FILE
    bucket, _, prefix = template.items_uri.removeprefix("s3://").rsplit("/", 4)[0].partition("/")
    return RunS3Layout(bucket, run, prefix).export_prefix + "results/"


def sharded_run_states(
    template: RunTemplate, map_items: Sequence[Mapping[str, Any]], is_inline_map: bool
) -> dict[str, State]:
    """Return the states of a sharded run by name (in capitals): a Map state starts an execution for each
    shard (part of the data), and the states after it report which errors (those of a run's exit codes)
    occurred. A failed shard does not end the others. ``map_items``: the values in which the shards differ,
    one per shard. ``is_inline_map``: they are in the definition, and the output has the result of each shard;
    otherwise a Distributed Map reads them from S3, and the output has the address of the results."""
    comment = "Each shard is a run of its own: an execution of this machine, named after this one."
    inline_items = {"shards": list(map_items)} if is_inline_map else {}
    map_state = _inline_map() if is_inline_map else _distributed_map(template)
    # Whether any shard ended with an error: "smlaunch.LimitReached" has the member "LimitReached".
    error_flags = {
        error_name.partition(".")[2] + ".$": f"States.ArrayContains($.shards[*].error, '{error_name}')"
        for error_name in ORCHESTRATOR_ERRORS.values()
    }
    return {
        LIST_SHARDS: pass_state(comment, {"run.$": "$$.Execution.Name", **inline_items}, None, MAP_SHARDS),
        MAP_SHARDS: {"Type": "Map", **map_state, "ResultPath": "$.shards", "Next": "Which errors?"},
        "Which errors?": pass_state("Of the shards that failed.", error_flags, "$.errors", CHECK_RESULTS),
        **(_inline_result_states() if is_inline_map else _distributed_result_states(template)),
    }


def _rules_by_error() -> dict[str, ChoiceRule]:
    """Rules that hold when a shard has failed with an error, by the name of the error."""
    return {
        name: comparison_rule(f"$.errors.{name.partition('.')[2]}", "BooleanEquals", True)
        for name in ORCHESTRATOR_ERRORS.values()
    }


def _inline_result_states() -> dict[str, State]:
    rules = [rule_to_state(f"Shards: {name}", rule) for name, rule in _rules_by_error().items()]
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
    rules = [rule_to_state(f"Which: {name}", rule) for name, rule in _rules_by_error().items()]
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
        "ItemSelector": {"run.$": "$.run", "shard.$": "$$.Map.Item.Value", "defaults": EXECUTION_STOPPED},
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
            "defaults": EXECUTION_STOPPED,
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
        "$.shard_execution",
        SHARD_DONE,
        result_selector={"result.$": "$.Output"},
        catchers=[catcher(["States.ALL"], "$.shard_execution", CHECK_SHARD_STARTED)],
    )


def _processor(config: Mapping[str, str], start: State, ends: Mapping[str, State]) -> State:
    return {"ProcessorConfig": dict(config), "StartAt": START_SHARD, "States": {START_SHARD: start, **ends}}


_SUCCESS_RESULT = {"error": "", "result.$": "$.shard_execution.result"}
_FAILURE_RESULT = {"error.$": "$.failure.Error", "cause.$": "$.failure.Cause"}


def _failure_states() -> dict[str, State]:
    """States that set ``$.failure``: Error and Cause of the shard's execution, or of a refused start."""

    def error_state(comment: str, error: Mapping[str, Any]) -> State:
        return pass_state(comment, {**error, "run.$": "$.run", "shard.$": "$.shard"}, None, SHARD_FAILED)

    def start_error(exit_code: int) -> dict[str, Any]:
        return {"failure": {"Error": ORCHESTRATOR_ERRORS[exit_code], "Cause.$": "$.shard_execution.Cause"}}

    execution_error = {
        "failure.$": states_merge_defaults("$.defaults", "States.StringToJson($.shard_execution.Cause)")
    }
    rules = [
        rule_to_state("It has failed", rule_execution_was_started("$.shard_execution")),
        rule_to_state("It may not begin", rule_access_is_denied("$.shard_execution")),
    ]
    comment = "The Cause of a failed execution is JSON, that of a refused start is text."
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
        "One that cannot be written is reported by its execution, and the run goes by how the shard ended.",
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
        retriers=s3_retriers(template),
        catchers=[catcher(["States.ALL"], None, "In short")],
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
