"""An account's setup as a template of CloudFormation."""

from __future__ import annotations

from typing import Any

import yaml

from smlaunch.account.account_setup import EXECUTION_POLICY_NAME, AccountSetup
from smlaunch.account.cli_commands import quota_commands
from smlaunch.account.policies import caller_policy, execution_policy, trust_policy

_STACK = "smlaunch"


def cloudformation_template(setup: AccountSetup) -> str:
    """Return the template in YAML, with the command that deploys it as a comment. A quota, for which
    CloudFormation has no resource, is a comment with commands."""
    comments = [
        f"For smlaunch in account {setup.account}, region {setup.region}:",
        f"aws cloudformation deploy --stack-name {_STACK} --template-file FILE --region {setup.region} "
        "--capabilities CAPABILITY_NAMED_IAM",
        f"If {setup.bucket} exists already, add --parameter-overrides CreateBucket=false.",
    ]
    if setup.quota is not None:
        comments.append("CloudFormation has no resource for a quota's increase; the AWS CLI asks for it:")
        comments.extend(quota_commands(setup.quota, setup.region))
    head = "".join(f"# {comment}\n" for comment in comments)
    return head + yaml.safe_dump(_template(setup), sort_keys=False, width=110)


def _template(setup: AccountSetup) -> dict[str, Any]:
    inline_policy = {"PolicyName": EXECUTION_POLICY_NAME, "PolicyDocument": execution_policy(setup)}
    role = {
        "RoleName": setup.role_name,
        "AssumeRolePolicyDocument": trust_policy(),
        "Policies": [inline_policy],
    }
    policy = {
        "ManagedPolicyName": setup.policy_name,
        "PolicyDocument": caller_policy(setup),
        **({"Users": [setup.user]} if setup.user is not None else {}),
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Role, permissions and bucket for smlaunch",
        "Parameters": {
            "CreateBucket": {"Type": "String", "AllowedValues": ["true", "false"], "Default": "true"}
        },
        "Conditions": {"MakesBucket": {"Fn::Equals": [{"Ref": "CreateBucket"}, "true"]}},
        "Resources": {
            "ExecutionRole": {"Type": "AWS::IAM::Role", "Properties": role},
            "CallerPolicy": {"Type": "AWS::IAM::ManagedPolicy", "Properties": policy},
            "DefaultBucket": {
                "Type": "AWS::S3::Bucket",
                "Condition": "MakesBucket",
                # It has models and checkpoints: it outlives the stack.
                "DeletionPolicy": "Retain",
                "UpdateReplacePolicy": "Retain",
                "Properties": {"BucketName": setup.bucket},
            },
        },
        "Outputs": {"RoleArn": {"Value": {"Fn::GetAtt": ["ExecutionRole", "Arn"]}}},
    }
