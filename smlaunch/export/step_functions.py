"""A run as a Step Functions state machine: the loop of the driver (``planner.reconcile``) in States Language.

Its context between states:

    run      the run's name               at       segment, attempt, step, and what was tried since that step
    left     seconds, where capped        job      the name of the job, what its request was answered with
    size     of the next job              seen     DescribeTrainingJob's answer, with nothing missing
    outcome  of the job, likewise         count    what ``at`` becomes with this job
    events   of this execution's history  blank    what an answer may lack
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.export.asl import add_numbers, choice_state, compare, go_to, pass_state, task_state
from smlaunch.export.run_template import ITEMS_FILE, RunTemplate, build_run_template
from smlaunch.export.sfn_common import (
    BEGIN_STATE,
    FIRST_JOB,
    INITIAL_POSITION,
    TAKE_OVER,
    StateMachineBuilder,
    initial_limits,
    persistent_context,
    response_defaults,
)
from smlaunch.export.sfn_endings import EndingStates
from smlaunch.export.sfn_jobs import JobStates
from smlaunch.export.sfn_policies import permissions_policy, trust_policy
from smlaunch.export.sfn_shards import LIST_SHARDS, MAX_INLINE_SHARDS, merge_shards, shard_states
from smlaunch.planner.facts import Facts
from smlaunch.planner.plan import Plan, Upload

DEFINITION_FILE = "state-machine.asl.json"
PERMISSIONS_FILE = "permissions.json"
TRUST_FILE = "trust.json"
TASK_FILE = "task.asl.json"

TASK = "task"
MACHINE = "machine"

_MACHINE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
"""Names that may be logged; CreateStateMachine allows more characters."""


def export_step_functions(
    plan: Plan,
    name: str,
    *,
    run: str | None = None,
    embed: str = MACHINE,
    time_scale: float = 1.0,
    max_inline_shards: int = MAX_INLINE_SHARDS,
) -> dict[str, str]:
    """Return the files of an export by name.

    ``name``: of the state machine. ``run``: fixed run id; None: every execution is a new run. ``embed``: TASK
    adds one Task state that starts the machine from another state machine. ``max_inline_shards``: more shards
    use a Distributed Map, which reads ITEMS_FILE (uploaded by ``with_items_upload``).

    Raises JobError with everything in the plan that the state machine cannot do, each problem by its field.
    """
    template = build_run_template(plan, run=run, time_scale=time_scale)
    _check(template, name)
    template, items = merge_shards(template) if template.shards else (template, [])
    inline = len(items) <= max_inline_shards
    definition = _build_definition(template, name, items, inline)
    files = {
        DEFINITION_FILE: to_json(definition),
        PERMISSIONS_FILE: to_json(permissions_policy(template, definition, name)),
        TRUST_FILE: to_json(trust_policy(template, name)),
    }
    if not inline:
        files[ITEMS_FILE] = json.dumps(items, indent=1, ensure_ascii=True) + "\n"
    if embed == TASK:
        files[TASK_FILE] = to_json(embedded_task(template, name))
    return files


def with_items_upload(plan: Plan, files: Mapping[str, str]) -> Plan:
    """Return the plan with the file that the state machine itself reads as a further upload."""
    if ITEMS_FILE not in files:
        return plan
    upload = Upload("shards", build_run_template(plan).items_uri, content=files[ITEMS_FILE])
    return replace(plan, uploads=(*plan.uploads, upload))


def to_json(document: Mapping[str, Any]) -> str:
    """Format a document as JSON, in its own order."""
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _build_definition(
    template: RunTemplate, name: str, items: list[dict[str, Any]], is_inline: bool
) -> dict[str, Any]:
    """Return the state machine's definition. ``items``: what differs between the shards of a sharded run.
    ``is_inline``: the shards run in one execution instead of child executions."""
    builder = StateMachineBuilder(template, name)
    builder.add(BEGIN_STATE, _begin_state(template))
    for state_name, state in (shard_states(template, items, is_inline) if template.shards else {}).items():
        builder.add(state_name, state)
    builder.add(*_first_job_state(template), _take_over_state(template))
    JobStates(builder).add()
    EndingStates(builder).add()
    for state in iter_states(builder.states):
        if "Resource" in state:
            state["Resource"] = state["Resource"].replace("arn:aws:", f"arn:{template.partition}:", 1)
    return {
        "Comment": f"{template.title}, exported by smlaunch. The jobs of an execution are "
        f"{template.run or '<execution name>'}-s<segment>-a<attempt>.",
        "StartAt": BEGIN_STATE,
        "States": builder.states,
    }


def embedded_task(template: RunTemplate, name: str) -> dict[str, Any]:
    """A state machine of one Task state that runs the exported machine, and fails when the run fails."""
    # A run with a fixed id needs no name: an execution that is started again finds its jobs.
    execution_name = {"Name.$": "$$.Execution.Name"} if template.run is None else {}
    state = task_state(
        "Trains, and waits for the end. The run has the name of this execution: in a Map, or twice in one "
        "flow, give each its own (States.Format), of lower-case letters, digits and dashes, 40 at most.",
        "states:startExecution.sync:2",
        {
            "StateMachineArn": machine_arn(template, name),
            **execution_name,
            "Input": {"AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id"},
        },
        "$.training",
        "",
        selector={"result.$": "$.Output"},
    )
    del state["Next"]
    return {"Train": {**state, "End": True}}


def machine_arn(account: RunTemplate | Facts, name: str) -> str:
    return f"arn:{account.partition}:states:{account.region}:{account.account}:stateMachine:{name}"


def _check(template: RunTemplate, name: str) -> None:
    """Raise JobError for a name or a run that a state machine cannot have."""
    problems = []
    if not _MACHINE_NAME.fullmatch(name):
        text = (
            f"{name!r} is not a valid state machine name: at most 80 letters, digits, dashes and underscores"
        )
        problems.append(Problem("--called", text))
    if template.policy.chain and template.checkpoints is None:
        problems.append(Problem("checkpoints", "a chain without checkpoints cannot continue"))
    if problems:
        raise JobError(problems)


def iter_states(states: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over all states, also those inside of a Map."""
    for state in states.values():
        yield state
        yield from iter_states(state.get("ItemProcessor", {}).get("States", {}))


def _begin_state(template: RunTemplate) -> dict[str, Any]:
    rules = [go_to(TAKE_OVER, compare("$.smlaunch", "IsPresent", True))]
    if template.shards:
        rules.append(go_to(FIRST_JOB, compare("$.shard", "IsPresent", True)))
    return choice_state(
        "An execution that goes on for one whose history was full is given where it was.",
        rules,
        LIST_SHARDS if template.shards else FIRST_JOB,
    )


def _first_job_state(template: RunTemplate) -> tuple[str, dict[str, Any]]:
    run = {"run": template.run} if template.run is not None else {"run.$": "$$.Execution.Name"}
    event_count = {"n": 0, "hop": 1}
    shard = {"shard.$": "$.shard"} if template.shards else {}
    values = {
        **run,
        **shard,
        "at": dict(INITIAL_POSITION),
        **initial_limits(template),
        "events": event_count,
        "blank": response_defaults(template),
    }
    return FIRST_JOB, pass_state(
        "The first attempt of the first segment.", values, None, JobStates.entry_state(template)
    )


def _take_over_state(template: RunTemplate) -> tuple[str, dict[str, Any]]:
    values = {
        "run.$": "$.smlaunch.run",
        "at.$": "$.smlaunch.at",
        **persistent_context(template, "$.smlaunch"),
        "events": {"n": 0, "hop.$": add_numbers("$.smlaunch.hop", 1)},
        "blank": response_defaults(template),
    }
    comment = "Where the execution before this one was; its job may run, and is then found by its name."
    return TAKE_OVER, pass_state(comment, values, None, JobStates.entry_state(template))
