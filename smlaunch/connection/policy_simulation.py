"""Asks IAM whether a principal's policies allow what another policy allows: SimulatePrincipalPolicy.

A simulation knows the principal's own policies, its permissions boundary and the organization's; it does not
know the policies of buckets and keys (IAM API reference). No account has confirmed this use of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from smlaunch.aws.api_call import call_api
from smlaunch.runs.launch_target import Target


class DeniedAction(NamedTuple):
    """An action that is not allowed on a resource."""

    action: str
    resource: str
    """An ARN, or ``*``."""
    unknown_conditions: tuple[str, ...]
    """Keys of conditions in the principal's policies for which a simulation has no value: with them the
    action may be allowed."""


def find_principal(target: Target, caller_arn: str) -> str | None:
    """Return the ARN of the user or role whose policies count for a caller; None for one that has none of
    its own, such as the root user. Raises CallError."""
    kind, _, name = caller_arn.split(":", 5)[5].partition("/")
    if kind in ("user", "role"):
        return caller_arn
    if kind != "assumed-role":
        return None
    role_name = name.split("/")[0]
    partition, account = caller_arn.split(":")[1], caller_arn.split(":")[4]
    # IAM knows the path of a role.
    return target.identity.find_role_arn(role_name) or f"arn:{partition}:iam::{account}:role/{role_name}"


def find_denied_actions(
    target: Target, principal_arn: str, policy: Mapping[str, Any]
) -> Iterator[DeniedAction]:
    """Yield the actions of a policy's statements that the principal may not do. Raises CallError."""
    iam = target.client("iam")
    for statement in policy["Statement"]:
        params = _simulation_of(statement, target.region_name)
        while True:
            page = call_api(
                "SimulatePrincipalPolicy",
                iam.simulate_principal_policy,
                PolicySourceArn=principal_arn,
                **params,
            )
            for result in page["EvaluationResults"]:
                yield from _denied_actions(result)
            if not page.get("IsTruncated"):
                break
            params["Marker"] = page["Marker"]


def _simulation_of(statement: Mapping[str, Any], region: str) -> dict[str, Any]:
    context = {"aws:RequestedRegion": region, **statement.get("Condition", {}).get("StringEquals", {})}
    params: dict[str, Any] = {
        "ActionNames": statement["Action"],
        "ContextEntries": [
            {"ContextKeyName": key, "ContextKeyType": "string", "ContextKeyValues": [value]}
            for key, value in context.items()
        ],
    }
    if statement["Resource"] != "*":
        params["ResourceArns"] = [_example_of(pattern) for pattern in statement["Resource"]]
    return params


def _example_of(pattern: str) -> str:
    """Return the ARN of something that smlaunch would use, for a pattern that ends in an asterisk."""
    if pattern.endswith("log-group:/aws/sagemaker/*"):
        return f"{pattern[:-1]}TrainingJobs:log-stream:smlaunch-doctor"
    is_object = pattern.split(":")[2] == "s3"
    return pattern.replace("*", "smlaunch/doctor" if is_object else "smlaunch-doctor")


def _denied_actions(result: Mapping[str, Any]) -> Iterator[DeniedAction]:
    """Yield what a result denies: of each of its resources, where it has several."""
    rows = result.get("ResourceSpecificResults") or [
        {**result, "EvalResourceDecision": result["EvalDecision"], "EvalResourceName": "*"}
    ]
    for row in rows:
        if row["EvalResourceDecision"] != "allowed":
            missing_keys = tuple(row.get("MissingContextValues", []))
            # An explicit denial stands, whatever other conditions say.
            is_explicit = row["EvalResourceDecision"] == "explicitDeny"
            keys = () if is_explicit else missing_keys
            yield DeniedAction(result["EvalActionName"], row["EvalResourceName"], keys)
