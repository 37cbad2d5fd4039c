"""Compares an account with its setup, and makes what is missing; each change is made by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from smlaunch.account.account_setup import EXECUTION_POLICY_NAME, AccountSetup, QuotaRequest
from smlaunch.account.policies import caller_policy, execution_policy, trust_policy
from smlaunch.aws.api_call import call_api
from smlaunch.aws.interfaces import CallError
from smlaunch.errors import AccountError, JobError, Problem
from smlaunch.runs.launch_target import Target

_NO_SUCH_ENTITY = "NoSuchEntity"


class Part(NamedTuple):
    """A part of the setup."""

    text: str
    """What it is: ``role smlaunch-training``."""
    make: Callable[[], object] | None
    """Makes or changes it, and raises CallError if that is refused. None if it is as it should be."""


def compare_account(target: Target, setup: AccountSetup) -> Iterator[Part]:
    """Yield the parts of the setup in the order in which they have to be made; changes nothing.

    Raises CallError, and AccountError for a role that exists for another purpose.
    """
    iam = target.client("iam")
    yield from _compare_role(iam, setup)
    yield from _compare_user_policy(iam, setup)
    yield _compare_bucket(target, setup)
    if setup.quota is not None:
        yield _compare_quota(target.client("service-quotas"), setup.quota)


def _compare_role(iam: Any, setup: AccountSetup) -> Iterator[Part]:
    text, names = f"role {setup.role_name}", {"RoleName": setup.role_name}
    role = _find("GetRole", iam.get_role, **names)
    if role is None:
        document = json.dumps(trust_policy())
        make = partial(call_api, "CreateRole", iam.create_role, AssumeRolePolicyDocument=document, **names)
        yield Part(text, make)
    elif not _can_sagemaker_assume(role["Role"].get("AssumeRolePolicyDocument", {})):
        raise AccountError(
            f"the role {setup.role_name} exists, and SageMaker may not assume it: it has another purpose "
            "and stays as it is; give --role-name with another name"
        )
    else:
        yield Part(text, None)
    names["PolicyName"] = EXECUTION_POLICY_NAME
    wanted = execution_policy(setup)
    found = None if role is None else _find("GetRolePolicy", iam.get_role_policy, **names)
    is_same = found is not None and found["PolicyDocument"] == wanted
    put = partial(call_api, "PutRolePolicy", iam.put_role_policy, PolicyDocument=json.dumps(wanted), **names)
    yield Part(f"policy {EXECUTION_POLICY_NAME} of the role", None if is_same else put)


def _can_sagemaker_assume(trust: Mapping[str, Any]) -> bool:
    statements = trust.get("Statement", [])
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal")
        services = principal.get("Service", []) if isinstance(principal, dict) else []
        if statement.get("Effect") == "Allow" and "sagemaker.amazonaws.com" in services:
            return True
    return False


def _compare_user_policy(iam: Any, setup: AccountSetup) -> Iterator[Part]:
    text, wanted = f"policy {setup.policy_name}", caller_policy(setup)
    names, document = {"PolicyArn": setup.policy_arn}, json.dumps(wanted)
    policy = _find("GetPolicy", iam.get_policy, **names)
    if policy is None:
        create = partial(
            call_api,
            "CreatePolicy",
            iam.create_policy,
            PolicyName=setup.policy_name,
            PolicyDocument=document,
        )
        yield Part(text, create)
    else:
        version = call_api(
            "GetPolicyVersion",
            iam.get_policy_version,
            VersionId=policy["Policy"]["DefaultVersionId"],
            **names,
        )
        update = partial(
            call_api,
            "CreatePolicyVersion",
            iam.create_policy_version,
            PolicyDocument=document,
            SetAsDefault=True,
            **names,
        )
        yield Part(text, None if version["PolicyVersion"]["Document"] == wanted else update)
    if setup.user is None:
        return
    attach = partial(call_api, "AttachUserPolicy", iam.attach_user_policy, UserName=setup.user, **names)
    is_attached = policy is not None and setup.policy_arn in _attached_policies(iam, setup.user)
    yield Part(f"policy {setup.policy_name} attached to user {setup.user}", None if is_attached else attach)


def _attached_policies(iam: Any, user: str) -> Iterator[str]:
    params = {"UserName": user}
    while True:
        page = call_api("ListAttachedUserPolicies", iam.list_attached_user_policies, **params)
        yield from (policy["PolicyArn"] for policy in page.get("AttachedPolicies", []))
        if not page.get("IsTruncated"):
            return
        params["Marker"] = page["Marker"]


def _compare_bucket(target: Target, setup: AccountSetup) -> Part:
    """Return the default bucket, which must belong to the account. Raises CallError if it does not."""
    text = f"bucket {setup.bucket}"
    try:
        target.storage.check_bucket_owner(setup.bucket)
    except CallError as error:
        if error.code != "NoSuchBucket":
            raise
        return Part(text, partial(target.storage.create_bucket, setup.bucket, setup.region))
    return Part(text, None)


def _compare_quota(service_quotas: Any, wanted: QuotaRequest) -> Part:
    text = f"quota {wanted.name!r} of {wanted.hosts}"
    params: dict[str, Any] = {"ServiceCode": "sagemaker", "MaxResults": 100}
    while True:
        page = call_api("ListServiceQuotas", service_quotas.list_service_quotas, **params)
        for quota in page.get("Quotas", []):
            if quota.get("QuotaName") == wanted.name:
                if quota["Value"] >= wanted.hosts:
                    return Part(text, None)
                return Part(
                    f"{text}, now {quota['Value']:g} (a request to AWS)",
                    partial(_request_quota, service_quotas, quota["QuotaCode"], wanted.hosts),
                )
        if not page.get("NextToken"):
            message = f"the account has no quota {wanted.name!r} in this region: the type may not exist here"
            raise JobError([Problem("--instance-type", message)])
        params["NextToken"] = page["NextToken"]


def _request_quota(service_quotas: Any, code: str, hosts: int) -> None:
    """Ask for a quota; a request that is still open stays."""
    try:
        call_api(
            "RequestServiceQuotaIncrease",
            service_quotas.request_service_quota_increase,
            ServiceCode="sagemaker",
            QuotaCode=code,
            DesiredValue=float(hosts),
        )
    except CallError as error:
        if error.code != "ResourceAlreadyExistsException":
            raise


def _find(operation: str, method: Callable[..., Any], **params: Any) -> Any:
    """Return the response; None if there is no such thing."""
    try:
        return call_api(operation, method, **params)
    except CallError as error:
        if error.code == _NO_SUCH_ENTITY:
            return None
        raise
