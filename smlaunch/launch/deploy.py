"""Puts an export where it runs. The same export twice changes nothing the second time."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from smlaunch.launch.aws import call
from smlaunch.launch.target import Target
from smlaunch.ports import CallError


class Deployed(NamedTuple):
    """``change``: what had to be done."""

    arn: str
    change: Literal["created", "updated", "unchanged"]


def deploy_state_machine(target: Target, arn: str, definition: str, role: str) -> Deployed:
    """Makes the state machine with this ARN, or makes it what ``definition`` says. ``role``: the ARN of the
    one its executions run under. Raises CallError; executions that run go on as they began."""
    client = target.client("stepfunctions")
    try:
        there = call("DescribeStateMachine", client.describe_state_machine, stateMachineArn=arn)
    except CallError as error:
        if error.code != "StateMachineDoesNotExist":
            raise
        made = {"name": arn.rpartition(":")[2], "definition": definition, "roleArn": role, "type": "STANDARD"}
        answer = call("CreateStateMachine", client.create_state_machine, **made)
        return Deployed(str(answer["stateMachineArn"]), "created")
    if there["roleArn"] == role and _same(there["definition"], definition):
        return Deployed(arn, "unchanged")
    wanted: dict[str, Any] = {"stateMachineArn": arn, "definition": definition, "roleArn": role}
    call("UpdateStateMachine", client.update_state_machine, **wanted)
    return Deployed(arn, "updated")


def _same(one: str, other: str) -> bool:
    """The service may keep a definition with other spaces."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False
