"""Who calls AWS: the caller's account and identity, and the IAM role that its training jobs get."""

from __future__ import annotations

import json
import re
from pathlib import Path

from smlaunch.aws.interfaces import NO_SUCH_ROLE, CallError
from smlaunch.catalog.regions import partition_of
from smlaunch.discovery.discovery_target import DiscoveryTarget
from smlaunch.facts.discovered_facts import UNKNOWN_ACCOUNT, UNKNOWN_ROLE

STUDIO_METADATA = Path("/opt/ml/metadata/resource-metadata.json")
"""SageMaker Studio and notebook instances write this file; it names their execution role (SageMaker SDK,
``get_execution_role``)."""

_SSO_ROLE_PREFIX = "AWSReservedSSO_"
"""Of roles that IAM Identity Center makes for its users: no service can assume one."""

ROLE_VARIABLES = ("SMLAUNCH_ROLE", "SAGEMAKER_ROLE_ARN", "SAGEMAKER_ROLE")


_ROLE_ARN = re.compile(r"arn:[a-z-]+:iam::([0-9]{12}):role/.+")


class UnknownCaller:
    """Stands for a caller whom AWS cannot identify, in a plan that is made without an account."""

    arn = ""

    def __init__(self, role_name: str | None, target: DiscoveryTarget) -> None:
        """``role_name``: the job's role, an ARN or a name."""
        self.partition = partition_of(target.region_name)
        self._role = requested_role(role_name, target) or UNKNOWN_ROLE
        own_account = _ROLE_ARN.fullmatch(self._role)
        # SageMaker takes roles of the caller's own account only.
        self.account = own_account[1] if own_account else UNKNOWN_ACCOUNT

    @property
    def role(self) -> str:
        """ARN of the role that the job states; UNKNOWN_ROLE in UNKNOWN_ACCOUNT without one."""
        return self._role if self._role.startswith("arn:") else _build_role_arn(self, self._role)


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
    """Return the ARN of the IAM role that training jobs get, and None; or the reason why there is none, or
    why they cannot have it.

    ``role_name`` is the job's own role, a name or an ARN. The order is: the job, the environment, the target,
    the notebook's own role, the role that the caller has assumed. The last two follow the SageMaker SDK.
    """
    stated_role = requested_role(role_name, target)
    if stated_role and stated_role.startswith("arn:"):
        return stated_role, _find_foreign_account(stated_role, target, caller)
    if stated_role:
        # IAM knows the path of a role, if the caller may ask it. Most roles have none.
        try:
            role_arn = target.identity.find_role_arn(stated_role)
        except CallError as error:
            if error.code != NO_SUCH_ROLE:
                raise
            return None, (
                f"the account {caller.account} has no role {stated_role!r}; give the ARN of one that it has, "
                "with --role ARN or `role:` in the job file"
            )
        return role_arn or _build_role_arn(caller, stated_role), None
    # The target's own role is that of a local endpoint, for example.
    known_role = target.role or _read_studio_role() or _find_assumed_role(target, caller)
    if known_role:
        return known_role, _find_foreign_account(known_role, target, caller)
    is_sso_user = f"/{_SSO_ROLE_PREFIX}" in caller.arn
    return None, (
        f"no execution role is known, and the caller ({caller.arn}) is "
        f"{'a single sign-on user, whose role SageMaker cannot assume' if is_sso_user else 'not one'}; "
        "give --role ARN, or `role:` in the job file, or set SMLAUNCH_ROLE"
    )


def requested_role(role_name: str | None, target: DiscoveryTarget) -> str | None:
    """Return the role that the user states, a name or an ARN: the job's own, or else that of the first
    environment variable that is set, such as SMLAUNCH_ROLE."""
    roles_of_variables = (target.environment.get(variable) for variable in ROLE_VARIABLES)
    return next((role for role in (role_name, *roles_of_variables) if role), None)


def _find_foreign_account(role_arn: str, target: DiscoveryTarget, caller: Caller) -> str | None:
    """Return the problem of a role that belongs to another account than the caller's."""
    match = _ROLE_ARN.fullmatch(role_arn)
    if target.kind != "aws" or match is None or match[1] == caller.account:
        return None
    return (
        f"{role_arn} is a role of the account {match[1]}, and the credentials are of {caller.account}: a job "
        "gets a role of its own account; take one of it, or the other account's credentials (--profile)"
    )


def _find_assumed_role(target: DiscoveryTarget, caller: Caller) -> str | None:
    """Return the ARN of the IAM role that the caller has assumed; None for a caller that is a user."""
    # An assumed role's session: arn:aws:sts::<account>:assumed-role/<role>/<session>
    principal_kind, _, role_and_session = caller.arn.rpartition(":")[2].partition("/")
    if principal_kind != "assumed-role":
        return None
    role_name = role_and_session.split("/")[0]
    if role_name.startswith(_SSO_ROLE_PREFIX):
        return None
    try:
        role_arn = target.identity.find_role_arn(role_name)  # asks IAM; None where that is not allowed
    except CallError as error:
        if error.code != NO_SUCH_ROLE:
            raise
        role_arn = None
    if role_arn is not None:
        return role_arn
    # The session's ARN lacks the role's path, and IAM may not be asked. SageMaker's own roles have a fixed
    # one.
    path = "service-role/" if role_name.startswith("AmazonSageMaker-ExecutionRole") else ""
    return _build_role_arn(caller, path + role_name)  # in the caller's account


def _build_role_arn(caller: Caller | UnknownCaller, path_and_name: str) -> str:
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
