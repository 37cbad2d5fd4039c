"""Deploys an export to Step Functions. Deploying the same export again changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from smlaunch.aws.api_call import call_api
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import BACKOFF_FOR_NEW_ROLE, call_with_retries
from smlaunch.errors import JobError, Problem
from smlaunch.runs.launch_target import Target

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::(?P<account>[0-9]{12}):role/.+")

_EXPORT_COMMENT = ", exported by smlaunch."
"""In the Comment of every exported definition."""


class DeployResult(NamedTuple):
    """A deployed resource and what was done to it."""

    arn: str
    change: Literal["created", "updated", "unchanged"]


def state_machine_role_problems(role: str, account: str) -> list[Problem]:
    """Return why ``role`` cannot be a state machine's role in ``account``. The service itself would check it
    last."""
    match = _ROLE_ARN.fullmatch(role)
    if match is None:
        message = f"{role!r} is not a role's ARN; it looks like arn:aws:iam::{account}:role/NAME"
    elif match["account"] != account:
        message = (
            f"the role is of the account {match['account']}; it has to be of the machine's own, {account}"
        )
    else:
        return []
    return [Problem("--machine-role", message)]


def deploy_state_machine(
    target: Target,
    state_machine_arn: str,
    definition: str,
    role_arn: str,
    on_retry: Callable[[CallError, float], None] | None = None,
) -> DeployResult:
    """Create or update the Step Functions state machine with this ARN.

    ``target`` is a region or a local endpoint. ``definition`` is an Amazon States Language document.
    ``role_arn`` is the ARN of the role for its
    executions. A new role may not be usable for some seconds: the call is retried, and ``on_retry`` receives
    each error with the seconds until the next try. Running executions go on as they began.

    Raises CallError, and JobError for a state machine of this name that smlaunch did not make.
    """
    client = target.client("stepfunctions")
    try:
        existing_machine = call_api(
            "DescribeStateMachine", client.describe_state_machine, stateMachineArn=state_machine_arn
        )
    except CallError as error:
        if error.code != "StateMachineDoesNotExist":
            raise
        existing_machine = None
    definition_and_role: dict[str, Any] = {"definition": definition, "roleArn": role_arn}
    if existing_machine is None:
        create_request = {
            "name": state_machine_arn.rpartition(":")[2],
            "type": "STANDARD",  # the type for executions of up to a year
            **definition_and_role,
        }
        call_with_retries(
            lambda: call_api("CreateStateMachine", client.create_state_machine, **create_request),
            BACKOFF_FOR_NEW_ROLE,
            on_retry=on_retry,
        )
        return DeployResult(arn=state_machine_arn, change="created")
    if not _was_exported_by_smlaunch(existing_machine["definition"]):
        problem = "exists already and was not exported by smlaunch; it was not changed: choose another name"
        # --called is the option that names the state machine.
        raise JobError([Problem("--called", f"{state_machine_arn} {problem}")])
    if existing_machine["roleArn"] == role_arn and _is_same_json(existing_machine["definition"], definition):
        return DeployResult(arn=state_machine_arn, change="unchanged")
    update_request = {"stateMachineArn": state_machine_arn, **definition_and_role}
    call_with_retries(
        lambda: call_api("UpdateStateMachine", client.update_state_machine, **update_request),
        BACKOFF_FOR_NEW_ROLE,
        on_retry=on_retry,
    )
    return DeployResult(arn=state_machine_arn, change="updated")


def _was_exported_by_smlaunch(definition: str) -> bool:
    try:
        return _EXPORT_COMMENT in json.loads(definition).get("Comment", "")
    except (ValueError, AttributeError):
        return False


def _is_same_json(definition: str, other_definition: str) -> bool:
    """Compare two definitions as JSON, because the service may store other spaces."""
    try:
        return bool(json.loads(definition) == json.loads(other_definition))
    except ValueError:
        return False
