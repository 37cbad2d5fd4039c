"""The least that callers of smlaunch and its jobs have to be allowed, as IAM policies.

``smlaunch account`` writes them, ``smlaunch doctor --region`` simulates them, docs/first-aws-job.md shows
them, and a test compares them with every call of the commands.
Sources: AWS's page on SageMaker roles (CreateTrainingJob API: execution role permissions) and the service
authorization reference. No region has confirmed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.account.account_setup import AccountSetup
from smlaunch.api.job_kinds import JOB_KINDS

Statement = dict[str, Any]

OPTIONAL_CALLER_ACTIONS: Mapping[str, str] = {
    "sagemaker:CreateProcessingJob": "for processing jobs",
    "sagemaker:StopProcessingJob": "for processing jobs",
    "sagemaker:DescribeProcessingJob": "for processing jobs",
    "sagemaker:ListProcessingJobs": "for processing jobs",
    "sagemaker:Search": "for runs that an orchestrator drives",
    "servicequotas:ListServiceQuotas": "for a plan that knows the account's quotas",
    "pricing:GetProducts": "for `smlaunch catalog update`",
    "iam:GetRole": "for --role with a name instead of an ARN",
    "s3:CreateBucket": "if the default bucket does not exist yet",
    "s3:AbortMultipartUpload": "for uploads of large files that fail",
    "s3:ListBucketMultipartUploads": "for uploads of large files that continue",
    "s3:ListMultipartUploadParts": "for uploads of large files that continue",
}
"""Actions of the caller without which other commands work, and what each is for."""

OPTIONAL_EXECUTION_ACTIONS: Mapping[str, str] = {
    "s3:DeleteObject": "for checkpoints that are deleted",
}
"""The same of the execution role."""


def trust_policy() -> dict[str, Any]:
    """Return who may assume the execution role: SageMaker."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sagemaker.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def execution_policy(setup: AccountSetup) -> dict[str, Any]:
    """Return what a job may do: read its code and data, write results, logs and metrics, pull its image."""
    return {"Version": "2012-10-17", "Statement": list(_execution_statements(setup))}


def caller_policy(setup: AccountSetup) -> dict[str, Any]:
    """Return what somebody who calls smlaunch may do: run, list, show, follow, stop and resume."""
    return {"Version": "2012-10-17", "Statement": list(_caller_statements(setup))}


def _execution_statements(setup: AccountSetup) -> Iterator[Statement]:
    yield _own_bucket_statement(setup, "ListOwnBucket", ["s3:ListBucket"], "")
    object_actions = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    yield _own_bucket_statement(setup, "ReadCodeAndWriteResults", object_actions, "/*")
    yield from _data_statements(setup)
    log_actions = ["CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents"]
    yield _allow("WriteLogs", [f"logs:{action}" for action in log_actions], [_log_groups(setup)])
    yield _allow("WriteMetrics", ["cloudwatch:PutMetricData"], "*")
    image_actions = ["GetAuthorizationToken", "BatchCheckLayerAvailability", "GetDownloadUrlForLayer"]
    yield _allow("PullImages", [f"ecr:{action}" for action in (*image_actions, "BatchGetImage")], "*")
    if setup.in_vpc:
        interface_actions = [
            f"ec2:{verb}NetworkInterface{what}"
            for verb in ("Create", "Delete")
            for what in ("", "Permission")
        ]
        read_names = ("NetworkInterfaces", "Vpcs", "DhcpOptions", "Subnets", "SecurityGroups")
        read_actions = [f"ec2:Describe{name}" for name in read_names]
        yield _allow("JoinTheVpc", [*interface_actions, *read_actions], "*")
    if setup.kms_keys:
        key_actions = ["kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKey", "kms:CreateGrant"]
        yield _allow("UseKeys", key_actions, list(setup.kms_keys))
    for sid, service, action in (
        ("ReadSecrets", "secretsmanager", "secretsmanager:GetSecretValue"),
        ("ReadParameters", "ssm", "ssm:GetParameter"),
    ):
        arns = [arn for arn in setup.secrets if arn.split(":")[2] == service]
        if arns:
            yield _allow(sid, [action], arns)


def _caller_statements(setup: AccountSetup) -> Iterator[Statement]:
    kinds = tuple(JOB_KINDS.values())
    job_operations = [
        operation
        for kind in kinds
        for operation in (kind.create_operation, kind.describe_operation, kind.stop_operation)
    ]
    sagemaker = f"arn:{setup.partition}:sagemaker:{setup.region}:{setup.account}"
    yield _allow(
        "MakeAndFollowJobs",
        [f"sagemaker:{operation}" for operation in (*job_operations, "AddTags", "ListTags")],
        [f"{sagemaker}:{kind.arn_resource}/*" for kind in kinds],
    )
    list_operations = [*(kind.list_operation for kind in kinds), "Search"]
    yield _allow("ListJobs", [f"sagemaker:{operation}" for operation in list_operations], "*")
    yield {
        **_allow("PassTheRole", ["iam:PassRole"], [setup.role_arn]),
        "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
    }
    yield _allow("ReadLogs", ["logs:DescribeLogStreams", "logs:GetLogEvents"], [_log_groups(setup)])
    yield _allow("ReadRole", ["iam:GetRole"], [setup.role_arn])
    yield _allow("ReadQuotasAndPrices", ["servicequotas:ListServiceQuotas", "pricing:GetProducts"], "*")
    yield _allow("CreateOwnBucket", ["s3:CreateBucket"], [_bucket_arn(setup, setup.bucket)])
    yield _own_bucket_statement(
        setup, "ListOwnBucket", ["s3:ListBucket", "s3:ListBucketMultipartUploads"], ""
    )
    object_actions = [
        "GetObject",
        "PutObject",
        "DeleteObject",
        "AbortMultipartUpload",
        "ListMultipartUploadParts",
    ]
    yield _own_bucket_statement(
        setup, "UploadCodeAndReadResults", [f"s3:{action}" for action in object_actions], "/*"
    )
    if setup.data_buckets:
        yield _allow("ListData", ["s3:ListBucket"], [_bucket_arn(setup, name) for name in setup.data_buckets])
    if setup.kms_keys:
        yield _allow(
            "UseKeys", ["kms:Decrypt", "kms:GenerateDataKey", "kms:CreateGrant"], list(setup.kms_keys)
        )


def _data_statements(setup: AccountSetup) -> Iterator[Statement]:
    """Yield what a job needs of the data's buckets, which may be another account's."""
    arns = [_bucket_arn(setup, name) for name in setup.data_buckets]
    if arns:
        yield _allow("ListData", ["s3:ListBucket"], arns)
        yield _allow("ReadData", ["s3:GetObject"], [f"{arn}/*" for arn in arns])


def _own_bucket_statement(setup: AccountSetup, sid: str, actions: list[str], path: str) -> Statement:
    """Return a statement on the default bucket, as long as it belongs to the account: its name can be guessed
    (docs/buckets.md)."""
    statement = _allow(sid, actions, [f"{_bucket_arn(setup, setup.bucket)}{path}"])
    return {**statement, "Condition": {"StringEquals": {"s3:ResourceAccount": setup.account}}}


def _bucket_arn(setup: AccountSetup, bucket: str) -> str:
    return f"arn:{setup.partition}:s3:::{bucket}"


def _log_groups(setup: AccountSetup) -> str:
    return f"arn:{setup.partition}:logs:{setup.region}:{setup.account}:log-group:/aws/sagemaker/*"


def _allow(sid: str, actions: list[str], resources: list[str] | str) -> Statement:
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
