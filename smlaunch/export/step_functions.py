"""A run as a Step Functions state machine: the driver's loop (``planning.reconcile``) in the States Language.

What it keeps between states:

    run      the run's name               at       segment, attempt, step, and what was tried since that step
    left     seconds, where capped        job      the name of the job, what its request was answered with
    size     of the next job              seen     DescribeTrainingJob's answer, with nothing missing
    outcome  outcome.json, likewise       count    what ``at`` becomes with this job
    events   of this execution's history  blank    what an answer may lack
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.export.asl import choice, note, sum_of, task, to, when
from smlaunch.export.fan_out import FAN_OUT, MOST_INLINE, shared, states
from smlaunch.export.flow import ITEMS_FILE, Flow, flow_of
from smlaunch.export.machine_ends import Ends
from smlaunch.export.machine_jobs import Jobs
from smlaunch.export.machine_words import (
    BEGIN,
    FIRST,
    FIRST_AT,
    TAKE_OVER,
    Machine,
    blanks,
    carried,
    uncapped,
)
from smlaunch.export.policies import permissions, trust
from smlaunch.planning.plan import Plan, Upload
from smlaunch.planning.surroundings import Surroundings

FILE = "state-machine.asl.json"
PERMISSIONS_FILE = "permissions.json"
TRUST_FILE = "trust.json"
TASK_FILE = "task.asl.json"

TASK = "task"
MACHINE = "machine"

_MACHINE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
"""More is allowed, and not where executions are logged (CreateStateMachine)."""


def export_step_functions(
    plan: Plan,
    name: str,
    *,
    run: str | None = None,
    embed: str = MACHINE,
    pace: float = 1.0,
    most_inline: int = MOST_INLINE,
) -> dict[str, str]:
    """The files of an export, by their names. ``name``: the state machine's. ``run``: a fixed name of the
    run; None: every execution is a run of its own name. ``embed``: TASK adds one Task state that starts the
    machine from a flow of the team's own. ``most_inline``: more parts than that are for a Distributed Map,
    which reads ITEMS_FILE from where ``staged`` has it put.

    Raises JobError for what the machine cannot do as the plan has it, every problem by its field.
    """
    flow = flow_of(plan, run=run, pace=pace)
    _refuse(flow, name)
    flow, items = shared(flow) if flow.parts else (flow, [])
    inline = len(items) <= most_inline
    definition = _machine_of(flow, name, items, inline)
    files = {
        FILE: text_of(definition),
        PERMISSIONS_FILE: text_of(permissions(flow, definition, name)),
        TRUST_FILE: text_of(trust(flow, name)),
    }
    if not inline:
        files[ITEMS_FILE] = json.dumps(items, indent=1, ensure_ascii=True) + "\n"
    if embed == TASK:
        files[TASK_FILE] = text_of(embedded(flow, name))
    return files


def staged(plan: Plan, files: Mapping[str, str]) -> Plan:
    """The plan with what the machine itself reads among its uploads."""
    if ITEMS_FILE not in files:
        return plan
    upload = Upload("parts", flow_of(plan).items, content=files[ITEMS_FILE])
    return replace(plan, uploads=(*plan.uploads, upload))


def text_of(document: Mapping[str, Any]) -> str:
    """In the order of the document: a definition is read from its beginning."""
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _machine_of(flow: Flow, name: str, items: list[dict[str, Any]], inline: bool) -> dict[str, Any]:
    machine = Machine(flow, name)
    machine.add(BEGIN, _begin(flow))
    for state_name, state in (states(flow, items, inline) if flow.parts else {}).items():
        machine.add(state_name, state)
    machine.add(*_first(flow), _take_over(flow))
    Jobs(machine).add()
    Ends(machine).add()
    for state in every_state(machine.states):
        if "Resource" in state:
            state["Resource"] = state["Resource"].replace("arn:aws:", f"arn:{flow.partition}:", 1)
    return {
        "Comment": f"{flow.title}, exported by smlaunch. The jobs of an execution are "
        f"{flow.run or '<execution name>'}-s<segment>-a<attempt>.",
        "StartAt": BEGIN,
        "States": machine.states,
    }


def embedded(flow: Flow, name: str) -> dict[str, Any]:
    """One Task state for another machine: it ends when the run has ended, and fails as the run does."""
    # A run with a fixed name is given one: its machine may be started again, and finds its own jobs.
    own_name = {"Name.$": "$$.Execution.Name"} if flow.run is None else {}
    state = task(
        "Trains, and waits for the end. The run has the name of this execution: in a Map, or twice in one "
        "flow, give each its own (States.Format), of lower-case letters, digits and dashes, 40 at most.",
        "states:startExecution.sync:2",
        {
            "StateMachineArn": machine_arn(flow, name),
            **own_name,
            "Input": {"AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id"},
        },
        "$.training",
        "",
        selector={"result.$": "$.Output"},
    )
    del state["Next"]
    return {"Train": {**state, "End": True}}


def machine_arn(where: Flow | Surroundings, name: str) -> str:
    return f"arn:{where.partition}:states:{where.region}:{where.account}:stateMachine:{name}"


def _refuse(flow: Flow, name: str) -> None:
    problems = []
    if not _MACHINE_NAME.fullmatch(name):
        text = f"{name!r} is no state machine's name: 80 letters, digits, dashes and underscores at most"
        problems.append(Problem("--called", text))
    if flow.policy.chain and flow.checkpoints is None:
        problems.append(Problem("checkpoints", "a chain without checkpoints has nothing to go on from"))
    if problems:
        raise JobError(problems)


def every_state(found: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those inside of a Map too."""
    for state in found.values():
        yield state
        yield from every_state(state.get("ItemProcessor", {}).get("States", {}))


def _begin(flow: Flow) -> dict[str, Any]:
    rules = [to(TAKE_OVER, when("$.smlaunch", "IsPresent", True))]
    if flow.parts:
        rules.append(to(FIRST, when("$.part", "IsPresent", True)))
    return choice(
        "An execution that goes on for one whose history was full is given where it was.",
        rules,
        FAN_OUT if flow.parts else FIRST,
    )


def _first(flow: Flow) -> tuple[str, dict[str, Any]]:
    run = {"run": flow.run} if flow.run is not None else {"run.$": "$$.Execution.Name"}
    events = {"n": 0, "hop": 1}
    part = {"part.$": "$.part"} if flow.parts else {}
    values = {**run, **part, "at": dict(FIRST_AT), **uncapped(flow), "events": events, "blank": blanks(flow)}
    return FIRST, note("The first attempt of the first segment.", values, None, Jobs.entry(flow))


def _take_over(flow: Flow) -> tuple[str, dict[str, Any]]:
    values = {
        "run.$": "$.smlaunch.run",
        "at.$": "$.smlaunch.at",
        **carried(flow, "$.smlaunch"),
        "events": {"n": 0, "hop.$": sum_of("$.smlaunch.hop", 1)},
        "blank": blanks(flow),
    }
    comment = "Where the execution before this one was; its job may run, and is then found by its name."
    return TAKE_OVER, note(comment, values, None, Jobs.entry(flow))
