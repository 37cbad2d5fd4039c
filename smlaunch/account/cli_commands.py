"""An account's setup as commands of the AWS CLI."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.account.account_setup import EXECUTION_POLICY_NAME, AccountSetup, QuotaRequest
from smlaunch.account.policies import caller_policy, execution_policy, trust_policy


def cli_commands(setup: AccountSetup) -> str:
    """Return a shell script; each command may be run by itself."""
    return "\n".join(_lines(setup)) + "\n"


def _lines(setup: AccountSetup) -> Iterator[str]:
    yield f"# For smlaunch in account {setup.account}, region {setup.region}, by an administrator."
    yield "# The execution role: what jobs may do."
    yield _command(
        "iam create-role", {"role-name": setup.role_name, "assume-role-policy-document": trust_policy()}
    )
    yield _command(
        "iam put-role-policy",
        {
            "role-name": setup.role_name,
            "policy-name": EXECUTION_POLICY_NAME,
            "policy-document": execution_policy(setup),
        },
    )
    yield "# What those who call smlaunch may do."
    yield _command(
        "iam create-policy", {"policy-name": setup.policy_name, "policy-document": caller_policy(setup)}
    )
    if setup.user is not None:
        yield _command("iam attach-user-policy", {"user-name": setup.user, "policy-arn": setup.policy_arn})
    else:
        yield f"# Attach {setup.policy_arn} to a user, a group, a role or a permission set."
    yield "# The default bucket. The second command fails if another account has the name."
    location = (
        {}
        if setup.region == "us-east-1"
        else {"create-bucket-configuration": f"LocationConstraint={setup.region}"}
    )
    yield _command("s3api create-bucket", {"bucket": setup.bucket, "region": setup.region, **location})
    yield _command("s3api head-bucket", {"bucket": setup.bucket, "expected-bucket-owner": setup.account})
    if setup.quota is not None:
        yield f"# The quota: {setup.quota.hosts} hosts. AWS answers in minutes to days."
        yield from quota_commands(setup.quota, setup.region)


def quota_commands(quota: QuotaRequest, region: str) -> Iterator[str]:
    """Yield the commands that ask for a quota. Service Quotas finds its code by its name, as AWS documents
    no codes."""
    query = f"Quotas[?QuotaName=='{quota.name}'].QuotaCode"
    options = {"service-code": "sagemaker", "region": region, "query": query, "output": "text"}
    yield f'CODE="$({_command("service-quotas list-service-quotas", options)})"'
    request = _command(
        "service-quotas request-service-quota-increase",
        {"service-code": "sagemaker", "region": region, "desired-value": str(quota.hosts)},
    )
    yield f'{request} --quota-code "$CODE"'


def _command(name: str, options: Mapping[str, Any]) -> str:
    texts = (value if isinstance(value, str) else json.dumps(value, indent=2) for value in options.values())
    words = (f"--{option} {shlex.quote(text)}" for option, text in zip(options, texts, strict=True))
    return " ".join((f"aws {name}", *words))
