"""An account's setup as a configuration of Terraform."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from smlaunch.account.account_setup import EXECUTION_POLICY_NAME, AccountSetup
from smlaunch.account.policies import caller_policy, execution_policy, trust_policy


def terraform_configuration(setup: AccountSetup) -> str:
    """Return the configuration in HCL. Its provider accepts no other account."""
    return "\n\n".join(_blocks(setup)) + "\n"


def _blocks(setup: AccountSetup) -> Iterator[str]:
    yield _block(
        'provider "aws"',
        [f"region = {_text(setup.region)}", f"allowed_account_ids = [{_text(setup.account)}]"],
    )
    yield _block(
        'resource "aws_iam_role" "smlaunch_execution"',
        [f"name = {_text(setup.role_name)}", f"assume_role_policy = {_json(trust_policy())}"],
    )
    yield _block(
        'resource "aws_iam_role_policy" "smlaunch_execution"',
        [
            f"name = {_text(EXECUTION_POLICY_NAME)}",
            "role = aws_iam_role.smlaunch_execution.id",
            f"policy = {_json(execution_policy(setup))}",
        ],
    )
    yield _block(
        'resource "aws_iam_policy" "smlaunch_user"',
        [f"name = {_text(setup.policy_name)}", f"policy = {_json(caller_policy(setup))}"],
    )
    if setup.user is not None:
        yield _block(
            'resource "aws_iam_user_policy_attachment" "smlaunch_user"',
            [f"user = {_text(setup.user)}", "policy_arn = aws_iam_policy.smlaunch_user.arn"],
        )
    yield (
        f"# If it exists already: terraform import aws_s3_bucket.smlaunch_default {setup.bucket}\n"
        + _block(
            'resource "aws_s3_bucket" "smlaunch_default"',
            [
                f"bucket = {_text(setup.bucket)}",
                *_block("lifecycle", ["prevent_destroy = true"]).splitlines(),
            ],
        )
    )
    if setup.quota is not None:
        yield _block(
            'data "aws_servicequotas_service_quota" "smlaunch_hosts"',
            ['service_code = "sagemaker"', f"quota_name = {_text(setup.quota.name)}"],
        )
        yield _block(
            'resource "aws_servicequotas_service_quota" "smlaunch_hosts"',
            [
                'service_code = "sagemaker"',
                "quota_code = data.aws_servicequotas_service_quota.smlaunch_hosts.quota_code",
                f"value = {setup.quota.hosts}",
            ],
        )
    yield _block('output "role_arn"', ["value = aws_iam_role.smlaunch_execution.arn"])


def _block(head: str, lines: list[str]) -> str:
    body = "\n".join(f"  {line}" for text in lines for line in text.splitlines())
    return f"{head} {{\n{body}\n}}"


def _text(value: str) -> str:
    """Return the text as a literal, in which nothing is replaced."""
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


def _json(document: dict[str, Any]) -> str:
    """Return an expression; JSON is one of HCL, which may replace something in its texts."""
    text = json.dumps(document, indent=2).replace("${", "$${").replace("%{", "%%{")
    return f"jsonencode({text})"
