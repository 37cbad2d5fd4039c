"""Who calls AWS: the caller's account and identity, and the IAM role that its training jobs get."""

from __future__ import annotations

import json
from pathlib import Path

from smlaunch.discovery.discovery_target import DiscoveryTarget

STUDIO_METADATA = Path("/opt/ml/metadata/resource-metadata.json")
"""SageMaker Studio and notebook instances write this file; it names their execution role (SageMaker SDK,
``get_execution_role``)."""

ROLE_VARIABLES = ("SMLAUNCH_ROLE", "SAGEMAKER_ROLE_ARN", "SAGEMAKER_ROLE")


class Caller:
    """The caller's identity. Asks STS when it is first needed, and only once."""

    def __init__(self, target: DiscoveryTarget) -> None:
        self._target = target
        self._identity: tuple[str, str] | None = None

    @property
    def account(self) -> str:
        return self._target.account or self._get_identity()[0]

    @property
    def arn(self) -> str:
        return self._get_identity()[1]

    @property
    def partition(self) -> str:
        if self._target.role and self._target.account:
            return self._target.role.split(":")[1]
        return self.arn.split(":")[1]

    def _get_identity(self) -> tuple[str, str]:
        if self._identity is None:
            self._identity = self._target.identity.get_caller_identity()
        return self._identity


def find_execution_role(role_name: str | None, target: DiscoveryTarget) -> tuple[str | None, str | None]:
    """Return the role that a job of this caller gets, and otherwise why there is none. Raises CallError."""
    return find_execution_role_of_caller(role_name, target, Caller(target))


def find_execution_role_of_caller(
    role_name: str | None, target: DiscoveryTarget, caller: Caller
) -> tuple[str | None, str | None]:
    """Return the ARN of the IAM role that training jobs get, and None; or None and the reason why there is
    none.

    ``role_name`` is the job's own role, a name or an ARN. The order is: the job, the environment, the target,
    the notebook's own role, the role that the caller has assumed. The last two follow the SageMaker SDK.
    """
    requested_role = role_name
    for variable in ROLE_VARIABLES:  # SMLAUNCH_ROLE, for example
        requested_role = requested_role or target.environment.get(variable)
    if requested_role and requested_role.startswith("arn:"):
        return requested_role, None
    if requested_role:
        # IAM knows the path of a role, if the caller may ask it. Most roles have none.
        role_arn = target.identity.find_role_arn(requested_role)
        return role_arn or _build_role_arn(caller, requested_role), None
    # The target's own role is that of a local endpoint, for example.
    known_role = target.role or _read_studio_role() or _find_assumed_role(target, caller)
    if known_role:
        return known_role, None
    return None, (
        f"no execution role is known, and the caller ({caller.arn}) is not one; "
        "give --role ARN, or `role:` in the job file, or set SMLAUNCH_ROLE"
    )


def _find_assumed_role(target: DiscoveryTarget, caller: Caller) -> str | None:
    """Return the ARN of the IAM role that the caller has assumed; None for a caller that is a user."""
    # An assumed role's session: arn:aws:sts::<account>:assumed-role/<role>/<session>
    principal_kind, _, role_and_session = caller.arn.rpartition(":")[2].partition("/")
    if principal_kind != "assumed-role":
        return None
    role_name = role_and_session.split("/")[0]
    role_arn = target.identity.find_role_arn(role_name)  # asks IAM; None where that is not allowed
    if role_arn is not None:
        return role_arn
    # The session's ARN lacks the role's path, and IAM may not be asked. SageMaker's own roles have a fixed
    # one.
    path = "service-role/" if role_name.startswith("AmazonSageMaker-ExecutionRole") else ""
    return _build_role_arn(caller, path + role_name)  # in the caller's account


def _build_role_arn(caller: Caller, path_and_name: str) -> str:
    return f"arn:{caller.partition}:iam::{caller.account}:role/{path_and_name}"


def _read_studio_role() -> str | None:
    """Return the execution role of the SageMaker Studio app or notebook that this process runs in, from a
    file that both have; None elsewhere."""
    try:
        metadata = json.loads(STUDIO_METADATA.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not in Studio: the usual case
    role = metadata.get("ExecutionRoleArn") if isinstance(metadata, dict) else None
    return role if isinstance(role, str) else None
