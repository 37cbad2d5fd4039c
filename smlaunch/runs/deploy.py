"""Deploys an export to Step Functions. Deploying the same export again changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from smlaunch.aws.client import call_api
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.retry import ROLE_BACKOFF, call_with_retries
from smlaunch.errors import JobError, Problem
from smlaunch.runs.target import Target

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
    arn: str,
    definition: str,
    role: str,
    on_retry: Callable[[CallError, float], None] | None = None,
) -> DeployResult:
    """Create or update the state machine with this ARN.

    ``role`` is the ARN of the role for its executions. A new role may not be usable at once: the call is
    retried, and ``on_retry`` receives each wait. Running executions go on as they began.

    Raises CallError, and JobError for a state machine of this name that smlaunch did not export.
    """
    client = target.client("stepfunctions")
    try:
        existing = call_api("DescribeStateMachine", client.describe_state_machine, stateMachineArn=arn)
    except CallError as error:
        if error.code != "StateMachineDoesNotExist":
            raise
        existing = None
    desired: dict[str, Any] = {"definition": definition, "roleArn": role}
    if existing is None:
        create_request = {"name": arn.rpartition(":")[2], "type": "STANDARD", **desired}
        call_with_retries(
            lambda: call_api("CreateStateMachine", client.create_state_machine, **create_request),
            ROLE_BACKOFF,
            on_retry=on_retry,
        )
        return DeployResult(arn, "created")
    if not _is_export(existing["definition"]):
        problem = "exists already and was not exported by smlaunch; it was not changed: choose another name"
        raise JobError([Problem("--called", f"{arn} {problem}")])
    if existing["roleArn"] == role and _is_same_json(existing["definition"], definition):
        return DeployResult(arn, "unchanged")
    update_request = {"stateMachineArn": arn, **desired}
    call_with_retries(
        lambda: call_api("UpdateStateMachine", client.update_state_machine, **update_request),
        ROLE_BACKOFF,
        on_retry=on_retry,
    )
    return DeployResult(arn, "updated")


def _is_export(definition: str) -> bool:
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
