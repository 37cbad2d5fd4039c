"""``smlaunch doctor --region``: whether caller and execution role may do what smlaunch needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from smlaunch.runs.launch_target import Target

_NOT_SIMULATED = "policies of buckets and keys are not part of a simulation"


class PermissionCheck(NamedTuple):
    """A check, as those of ``doctor``."""

    name: str
    verdict: Literal["ok", "note", "missing"]
    text: str


def check_permissions(
    target: Target, account: str, caller_arn: str, role_arn: str | None
) -> Iterator[PermissionCheck]:
    """Yield a check of the caller's permissions, and one of the execution role's where there is a role."""
    from smlaunch.account.account_setup import AccountSetup
    from smlaunch.account.policies import (
        OPTIONAL_CALLER_ACTIONS,
        OPTIONAL_EXECUTION_ACTIONS,
        caller_policy,
        execution_policy,
    )

    setup = AccountSetup(account, target.region_name)
    if role_arn is not None:
        setup = AccountSetup(account, target.region_name, role_name=role_arn.split(":role/", 1)[-1])
    yield _check(target, "caller", caller_arn, caller_policy(setup), OPTIONAL_CALLER_ACTIONS)
    if role_arn is not None:
        yield _check(target, "role", role_arn, execution_policy(setup), OPTIONAL_EXECUTION_ACTIONS)


def _check(
    target: Target, who: str, arn: str, policy: Mapping[str, Any], optional_actions: Mapping[str, str]
) -> PermissionCheck:
    from smlaunch.aws.interfaces import CallError
    from smlaunch.connection.policy_simulation import find_denied_actions, find_principal

    name = f"permissions of {who}"
    try:
        principal = find_principal(target, arn)
        if principal is None:
            return PermissionCheck(name, "note", f"not simulated: {arn} is neither a user nor a role")
        denied = list(find_denied_actions(target, principal, policy))
    except CallError as error:
        reason = f"{error.operation}: {error.code}: {error.message}"
        return PermissionCheck(
            name, "note", f"not simulated, which needs iam:SimulatePrincipalPolicy ({reason})"
        )
    if not denied:
        actions = {action for statement in policy["Statement"] for action in statement["Action"]}
        return PermissionCheck(name, "ok", f"{len(actions)} actions are allowed; {_NOT_SIMULATED}")
    needed, others = [], []
    for action, resource, unknown_conditions in denied:
        text = f"{action} on {resource}" if resource != "*" else action
        if unknown_conditions:
            others.append(f"{text} (unless {', '.join(unknown_conditions)} allows it)")
        elif action in optional_actions:
            others.append(f"{text} ({optional_actions[action]})")
        else:
            needed.append(text)
    clauses = [f"not allowed: {'; '.join(needed)}"] if needed else []
    clauses += [f"not allowed, not needed by all: {'; '.join(others)}"] if others else []
    clauses.append(f"`smlaunch account` prints the policy; {_NOT_SIMULATED}")
    return PermissionCheck(name, "missing" if needed else "note", ". ".join(clauses))
