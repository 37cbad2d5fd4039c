"""Puts an export where it runs. The same export twice changes nothing the second time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.ports import CallError
from smlaunch.runs.aws import call
from smlaunch.runs.retry import ROLE_PATIENCE, retrying
from smlaunch.runs.target import Target

_ROLE = re.compile(r"arn:aws[a-z-]*:iam::(?P<account>[0-9]{12}):role/.+")

_OURS = ", exported by smlaunch."
"""In the Comment of every definition that was."""


class Deployed(NamedTuple):
    """``change``: what had to be done."""

    arn: str
    change: Literal["created", "updated", "unchanged"]


def machine_role_problems(role: str, account: str) -> list[Problem]:
    """Why ``role`` cannot be that of a state machine in ``account``: what the service would say last."""
    known = _ROLE.fullmatch(role)
    if known is None:
        said = f"{role!r} is not a role's ARN; it looks like arn:aws:iam::{account}:role/NAME"
    elif known["account"] != account:
        said = f"the role is of the account {known['account']}; it has to be of the machine's own, {account}"
    else:
        return []
    return [Problem("--machine-role", said)]


def deploy_state_machine(
    target: Target,
    arn: str,
    definition: str,
    role: str,
    told: Callable[[CallError, float], None] | None = None,
) -> Deployed:
    """Makes the state machine with this ARN, or makes it what ``definition`` says. ``role``: the ARN of the
    one its executions run under; a role that was made a moment ago is waited for, which ``told`` hears.
    Executions that run go on as they began.

    Raises CallError, and JobError for a state machine of this name that is no export of smlaunch.
    """
    client = target.client("stepfunctions")
    try:
        there = call("DescribeStateMachine", client.describe_state_machine, stateMachineArn=arn)
    except CallError as error:
        if error.code != "StateMachineDoesNotExist":
            raise
        there = None
    wanted: dict[str, Any] = {"definition": definition, "roleArn": role}
    if there is None:
        made = {"name": arn.rpartition(":")[2], "type": "STANDARD", **wanted}
        retrying(
            lambda: call("CreateStateMachine", client.create_state_machine, **made), ROLE_PATIENCE, told=told
        )
        return Deployed(arn, "created")
    if not _is_export(there["definition"]):
        said = "is there already, and was not exported by smlaunch; it stays as it is: choose another name"
        raise JobError([Problem("--called", f"{arn} {said}")])
    if there["roleArn"] == role and _same(there["definition"], definition):
        return Deployed(arn, "unchanged")
    changed = {"stateMachineArn": arn, **wanted}
    retrying(
        lambda: call("UpdateStateMachine", client.update_state_machine, **changed), ROLE_PATIENCE, told=told
    )
    return Deployed(arn, "updated")


def _is_export(definition: str) -> bool:
    try:
        return _OURS in json.loads(definition).get("Comment", "")
    except (ValueError, AttributeError):
        return False


def _same(one: str, other: str) -> bool:
    """The service may keep a definition with other spaces."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False
