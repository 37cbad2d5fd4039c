"""A run as a Step Functions state machine: the driver's loop (``chain.next_action``) in States Language.

Its context between states:

    run          the run's name               position     segment, attempt, step, and tries since that step
    remaining    seconds, where limited       job          the name of the job, and the error of its create
    time_limits  of the next job              description  DescribeTrainingJob's answer, with nothing missing
    outcome      of the job, likewise         progress     what ``position`` becomes with this job
    events       of this execution's history  defaults     what an answer may lack
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.export.asl import (
    choice_state,
    comparison_rule,
    merge_states,
    pass_state,
    rule_to_state,
    states_math_add,
    task_state,
)
from smlaunch.export.run_template import ITEMS_FILE, RunTemplate, build_run_template
from smlaunch.export.sfn_after_job_end import ending_states
from smlaunch.export.sfn_common import (
    BEGIN_STATE,
    FIRST_JOB,
    INITIAL_POSITION,
    TAKE_OVER,
    initial_limits,
    persistent_context,
    response_defaults,
)
from smlaunch.export.sfn_jobs import job_states
from smlaunch.export.sfn_policies import permissions_policy, trust_policy
from smlaunch.export.sfn_shards import LIST_SHARDS, MAX_INLINE_SHARDS, merge_shards, sharded_run_states
from smlaunch.export.sfn_time_limits import first_state_of_job
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.planner.plan import RunPlan, Upload

DEFINITION_FILE = "state-machine.asl.json"
PERMISSIONS_FILE = "permissions.json"
TRUST_FILE = "trust.json"
TASK_FILE = "task.asl.json"

_MACHINE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
"""Names that may be logged; CreateStateMachine allows more characters."""


def export_step_functions(
    plan: RunPlan,
    machine_name: str,
    *,
    fixed_run_id: str | None = None,
    with_embedding_task: bool = False,
    time_scale: float = 1.0,
    max_inline_shards: int = MAX_INLINE_SHARDS,
) -> dict[str, str]:
    """Return the files of an export by name.

    ``machine_name``: of the state machine. ``fixed_run_id``: None makes every execution a new run.
    ``with_embedding_task``: add TASK_FILE, a Task state that starts the machine from another state machine.
    ``max_inline_shards``: more shards (one run per part of the data) are not in the definition but in
    ITEMS_FILE, which a Distributed Map reads from S3. Raises JobError with everything in the plan that the
    state machine cannot do.
    """
    template = build_run_template(plan, fixed_run_id=fixed_run_id, time_scale=time_scale)
    _check_exportable(template, machine_name)
    map_items: list[dict[str, Any]] = []  # what differs between the shards of a sharded run
    if template.shards:
        template, map_items = merge_shards(template)
    is_inline_map = len(map_items) <= max_inline_shards
    definition = _build_definition(template, map_items, is_inline_map)
    # Besides the definition: what the machine's role may do, and who may take the role.
    files = {
        DEFINITION_FILE: to_json(definition),
        PERMISSIONS_FILE: to_json(permissions_policy(template, definition, machine_name)),
        TRUST_FILE: to_json(trust_policy(template, machine_name)),
    }
    if not is_inline_map:
        files[ITEMS_FILE] = json.dumps(map_items, indent=1, ensure_ascii=True) + "\n"
    if with_embedding_task:
        files[TASK_FILE] = to_json(embedded_task(template, machine_name))
    return files


def with_items_upload(plan: RunPlan, files: Mapping[str, str]) -> RunPlan:
    """Return the plan with the file that the state machine itself reads as a further upload."""
    if ITEMS_FILE not in files:
        return plan
    upload = Upload("shards", build_run_template(plan).items_uri, content=files[ITEMS_FILE])
    return replace(plan, uploads=(*plan.uploads, upload))


def to_json(document: Mapping[str, Any]) -> str:
    """Format a document as JSON, in its own order."""
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _build_definition(
    template: RunTemplate, map_items: list[dict[str, Any]], is_inline_map: bool
) -> dict[str, Any]:
    """Return the state machine's definition in the Amazon States Language. ``map_items``: the values in which
    the shards (parts of the data) of a sharded run differ, one item per shard. ``is_inline_map``: the items
    are part of the definition; otherwise a Distributed Map reads them from S3. An execution whose history is
    full hands over to a new one, which begins at the state TAKE_OVER."""
    sharded_states = sharded_run_states(template, map_items, is_inline_map) if template.shards else {}
    states = merge_states(
        {BEGIN_STATE: _begin_state(template)},
        sharded_states,
        {FIRST_JOB: _first_job_state(template), TAKE_OVER: _take_over_state(template)},
        job_states(template),  # from the creation of a job to its end
        ending_states(template),  # from its end to the next job, or the end of the run
    )
    for state in iter_states(states):
        if "Resource" in state:
            # Regions in China and of the US government have other ARNs.
            state["Resource"] = state["Resource"].replace("arn:aws:", f"arn:{template.partition}:", 1)
    return {
        "Comment": f"{template.title}, exported by smlaunch. The jobs of an execution are "
        f"{template.fixed_run_id or '<execution name>'}-s<segment>-a<attempt>.",
        "StartAt": BEGIN_STATE,
        "States": states,
    }


def embedded_task(template: RunTemplate, name: str) -> dict[str, Any]:
    """A state machine of one Task state that runs the exported machine, and fails when the run fails."""
    # A run with a fixed id needs no name: an execution that is started again finds its jobs.
    execution_name = {"Name.$": "$$.Execution.Name"} if template.fixed_run_id is None else {}
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
        result_selector={"result.$": "$.Output"},
    )
    del state["Next"]
    return {"Train": {**state, "End": True}}


def machine_arn(account: RunTemplate | DiscoveredFacts, name: str) -> str:
    return f"arn:{account.partition}:states:{account.region}:{account.account}:stateMachine:{name}"


def _check_exportable(template: RunTemplate, machine_name: str) -> None:
    """Raise JobError for an invalid state machine name, and for a run of several segments (jobs in a row)
    without checkpoints."""
    problems: list[Problem] = []
    if not _MACHINE_NAME.fullmatch(machine_name):
        rule_text = "at most 80 letters, digits, dashes and underscores"
        problem_text = f"{machine_name!r} is not a valid state machine name: {rule_text}"
        problems.append(Problem("--called", problem_text))
    if template.workflow.is_multi_segment and template.checkpoints_prefix is None:
        problems.append(Problem("checkpoints", "a chain without checkpoints cannot continue"))
    if problems:
        raise JobError(problems)


def iter_states(states: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over all states, also those inside of a Map."""
    for state in states.values():
        yield state
        yield from iter_states(state.get("ItemProcessor", {}).get("States", {}))


def _begin_state(template: RunTemplate) -> dict[str, Any]:
    rules = [rule_to_state(TAKE_OVER, comparison_rule("$.smlaunch", "IsPresent", True))]
    if template.shards:
        rules.append(rule_to_state(FIRST_JOB, comparison_rule("$.shard", "IsPresent", True)))
    return choice_state(
        "An execution that goes on for one whose history was full is given where it was.",
        rules,
        LIST_SHARDS if template.shards else FIRST_JOB,
    )


def _first_job_state(template: RunTemplate) -> dict[str, Any]:
    run = (
        {"run": template.fixed_run_id}
        if template.fixed_run_id is not None
        else {"run.$": "$$.Execution.Name"}
    )
    event_count = {"n": 0, "hop": 1}
    shard = {"shard.$": "$.shard"} if template.shards else {}
    values = {
        **run,
        **shard,
        "position": dict(INITIAL_POSITION),
        **initial_limits(template),
        "events": event_count,
        "defaults": response_defaults(template),
    }
    return pass_state("The first attempt of the first segment.", values, None, first_state_of_job(template))


def _take_over_state(template: RunTemplate) -> dict[str, Any]:
    values = {
        "run.$": "$.smlaunch.run",
        "position.$": "$.smlaunch.position",
        **persistent_context(template, "$.smlaunch"),
        "events": {"n": 0, "hop.$": states_math_add("$.smlaunch.hop", 1)},
        "defaults": response_defaults(template),
    }
    comment = "Where the execution before this one was; its job may run, and is then found by its name."
    return pass_state(comment, values, None, first_state_of_job(template))
