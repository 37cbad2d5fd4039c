"""`smlaunch account`: what it prints, in three languages, and what it makes. The account's answers are built
from botocore's model and AWS's pages (iam_service); no account has given them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore import xform_name

from smlaunch.account.account_setup import AccountSetup
from smlaunch.account.policies import OPTIONAL_CALLER_ACTIONS, caller_policy, execution_policy, trust_policy
from smlaunch.aws.service_models import SERVICE_IDS, operations_of
from smlaunch.cli.main import run_command
from tests.cli.iam_service import ACCOUNT, OTHER_ACCOUNT, Account, serve_account

REGION = "eu-west-1"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"
POLICY = f"arn:aws:iam::{ACCOUNT}:policy/smlaunch-user"
QUOTA = "ml.g5.xlarge for training job usage"
PRINT = ["account", "--region", REGION, "--account", ACCOUNT]
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"
SECRETS = (
    f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/a",
    f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:b",
)
OPTIONS = [
    *("--user", "ada", "--data-bucket", "my-data", "--vpc", "--kms-key", KEY),
    *("--secret", SECRETS[0], "--secret", SECRETS[1]),
    *("--instance-type", "ml.g5.xlarge", "--hosts", "2"),
]
SETUP = AccountSetup(
    ACCOUNT,
    REGION,
    user="ada",
    data_buckets=("my-data",),
    kms_keys=(KEY,),
    secrets=SECRETS,
    in_vpc=True,
    instance_type="ml.g5.xlarge",
    hosts=2,
)


@pytest.fixture
def account(without_account: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An account whose administrator runs the command; it has a quota of one host."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with serve_account() as (url, account):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        account.quotas = {"Other": 5.0, QUOTA: 1.0}
        yield account


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run_command(list(arguments))
    output = capsys.readouterr()
    return code, output.out, output.err


def test_commands_of_the_aws_cli_are_calls_of_the_services_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = command(capsys, *PRINT, *OPTIONS)
    assert code == 0
    session = botocore.session.get_session()
    lines = shlex.split(text.replace('CODE="$(', "").replace(')"\n', "\n"), comments=True)
    starts = [index for index, word in enumerate(lines) if word == "aws"]
    calls = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        service, name, *words = lines[start + 1 : end]
        model = session.get_service_model({"s3api": "s3"}.get(service, service))
        operation = next(o for o in model.operation_names if xform_name(o, "-") == name)
        shape = model.operation_model(operation).input_shape
        options = dict(zip(words[::2], words[1::2], strict=True))
        members = {f"--{xform_name(member, '-')}": member for member in shape.members}
        assert set(options) - set(members) <= {"--region", "--query", "--output"}
        assert set(shape.required_members) <= {members[option] for option in options if option in members}
        calls[operation] = options
    assert json.loads(calls["CreateRole"]["--assume-role-policy-document"]) == trust_policy()
    assert json.loads(calls["PutRolePolicy"]["--policy-document"]) == execution_policy(SETUP)
    assert json.loads(calls["CreatePolicy"]["--policy-document"]) == caller_policy(SETUP)
    assert calls["AttachUserPolicy"] == {"--user-name": "ada", "--policy-arn": POLICY}
    assert calls["CreateBucket"]["--create-bucket-configuration"] == f"LocationConstraint={REGION}"
    assert calls["HeadBucket"] == {"--bucket": BUCKET, "--expected-bucket-owner": ACCOUNT}
    assert calls["ListServiceQuotas"]["--query"] == f"Quotas[?QuotaName=='{QUOTA}'].QuotaCode"
    assert calls["RequestServiceQuotaIncrease"]["--desired-value"] == "2"
    # The one region that may not be named in CreateBucket.
    _, text, _ = command(capsys, "account", "--region", "us-east-1", "--account", ACCOUNT)
    assert "s3api create-bucket" in text and "LocationConstraint" not in text


def test_cloudformation_and_terraform_have_the_same_policies(capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = command(capsys, *PRINT, *OPTIONS, "--as", "cloudformation")
    template = yaml.safe_load(text)["Resources"]
    role, policy = template["ExecutionRole"]["Properties"], template["CallerPolicy"]["Properties"]
    assert role["AssumeRolePolicyDocument"] == trust_policy()
    assert role["Policies"][0]["PolicyDocument"] == execution_policy(SETUP)
    assert (policy["PolicyDocument"], policy["Users"]) == (caller_policy(SETUP), ["ada"])
    assert template["DefaultBucket"]["Properties"] == {"BucketName": BUCKET}
    _, text, _ = command(capsys, *PRINT, *OPTIONS, "--as", "terraform")
    documents = [json.loads(body) for body in re.findall(r"jsonencode\((.*?\n  \})\)\n", text, re.DOTALL)]
    assert documents == [trust_policy(), execution_policy(SETUP), caller_policy(SETUP)]
    assert f'quota_name = "{QUOTA}"' in text and "value = 2" in text
    assert f'allowed_account_ids = ["{ACCOUNT}"]' in text


def test_json_has_policies_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(command(capsys, *PRINT, *OPTIONS, "--as", "terraform", "--json")[1])
    assert document["policies"]["caller"] == caller_policy(SETUP)
    assert document["quota"] == {"name": QUOTA, "hosts": 2} and document["text"].startswith("provider")


def test_partitions_have_their_own_arns() -> None:
    setup = AccountSetup(ACCOUNT, "cn-north-1", data_buckets=("my-data",))
    text = json.dumps([execution_policy(setup), caller_policy(setup)])
    assert "arn:aws:" not in text and "arn:aws-cn:s3:::my-data/*" in text


def test_policies_fit_into_iams_limits() -> None:
    """Without spaces, a managed policy has 6,144 characters, a role's inline ones 10,240 (IAM quotas)."""
    for policy, limit in ((caller_policy(SETUP), 6144), (execution_policy(SETUP), 10_240)):
        assert len(json.dumps(policy, separators=(",", ":"))) < limit


_NOT_OF_A_JOB = {
    "sagemaker": "CreatePipeline DescribePipeline UpdatePipeline DescribePipelineExecution "
    "ListPipelineExecutionSteps StopPipelineExecution",
    "stepfunctions": "CreateStateMachine DescribeStateMachine UpdateStateMachine "
    "DescribeExecution StopExecution",
    "s3": "CreateSession",
    "sts": "GetCallerIdentity AssumeRole AssumeRoleWithWebIdentity",
}
"""Of exports, which write their own policies; of directory buckets; what needs no permission."""

_S3_ACTIONS = {
    **dict.fromkeys(("HeadBucket", "ListObjectsV2"), "ListBucket"),
    "HeadObject": "GetObject",
    "DeleteObjects": "DeleteObject",
    **dict.fromkeys(("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), "PutObject"),
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListParts": "ListMultipartUploadParts",
}
"""Where S3's operations are checked under another name (S3 user guide, required permissions)."""


def test_the_callers_policy_has_every_operation_that_smlaunch_calls() -> None:
    prefixes = {"service-quotas": "servicequotas"}
    called = {
        f"{prefixes.get(service, service)}:{_S3_ACTIONS.get(operation, operation)}"
        for service in SERVICE_IDS
        for operation in operations_of(service)
        if operation not in _NOT_OF_A_JOB.get(service, "").split()
    }
    statements = caller_policy(AccountSetup(ACCOUNT, REGION))["Statement"]
    allowed = {action for statement in statements for action in statement["Action"]}
    without_a_call = {"sagemaker:AddTags", "iam:PassRole"}  # checked at a Create
    assert allowed == called | without_a_call
    assert set(OPTIONAL_CALLER_ACTIONS) <= allowed
    assert all(statement["Resource"] for statement in statements)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--account", "123"], "--account: '123' is none: an account id has 12 digits"),
        (["--data-bucket", "s3://x/y"], "--data-bucket: 's3://x/y' is none"),
        (["--hosts", "2"], "--hosts: a quota is one of an instance type"),
        (["--spot"], "--spot: a quota is one of an instance type"),
        (
            ["--instance-type", "ml.g5.13xlarge"],
            "--instance-type: ml.g5.13xlarge does not exist; this family has",
        ),
        (["--yes"], "--yes: nothing is asked without --apply"),
        (["--apply"], "--apply: there is no terminal to ask on; give --yes too"),
        (["--apply", "--yes", "--as", "cli"], "--as: --apply calls AWS itself"),
        (["--secret", KEY], "--secret: "),
    ],
)
def test_a_wrong_option_is_named(
    capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    code, _, text = command(capsys, *PRINT, *options)
    assert code == 2 and expected in " ".join(text.split())


def apply(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, Any, str]:
    code, out, err = command(capsys, "account", "--region", REGION, "--apply", "--yes", "--json", *options)
    return code, json.loads(out), err


def test_apply_makes_what_is_missing_once(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, _ = apply(capsys, *OPTIONS)
    assert code == 0 and document["existed"] == []
    assert account.changes == [
        *("CreateRole", "PutRolePolicy", "CreatePolicy", "AttachUserPolicy", "CreateBucket"),
        "RequestServiceQuotaIncrease",
    ]
    assert account.roles == {"smlaunch-training": trust_policy()}
    assert account.role_policies["smlaunch-training", "smlaunch-execution"] == execution_policy(SETUP)
    assert account.policies == {POLICY: [caller_policy(SETUP)]} and account.attached == {"ada": [POLICY]}
    assert account.buckets == {BUCKET: ACCOUNT} and account.requested == {QUOTA: 2.0}
    # Again: the quota's request is open, the rest is there.
    account.changes.clear()
    assert apply(capsys, *OPTIONS)[1]["made"] == [f"quota '{QUOTA}' of 2, now 1 (a request to AWS)"]
    account.quotas[QUOTA] = 2.0
    account.changes.clear()
    assert apply(capsys, *OPTIONS)[1]["made"] == [] and account.changes == []
    # With other options only what they change is changed.
    assert apply(capsys, "--data-bucket", "more")[0] == 0
    assert account.changes == ["PutRolePolicy", "CreatePolicyVersion"] and len(account.policies[POLICY]) == 2


def test_without_apply_nothing_is_changed(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = command(capsys, "account", "--region", REGION)
    assert code == 0 and BUCKET in text and account.changes == []


@pytest.mark.usefixtures("account")
def test_without_credentials_the_account_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    code, _, text = command(capsys, "account", "--region", REGION)
    assert code == 3 and "none are needed with --account ID" in " ".join(text.split())
    assert "--local" not in text
    assert command(capsys, *PRINT)[0] == 0


def test_a_no_changes_nothing(
    account: Account, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda *_: "n")
    code, out, _ = command(capsys, "account", "--region", REGION, "--apply")
    assert code == 130 and "missing role smlaunch-training" in out and account.changes == []


def test_what_belongs_to_others_is_left_alone(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    statement = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    account.roles["smlaunch-training"] = {"Version": "2012-10-17", "Statement": [statement]}
    code, document, _ = apply(capsys)
    assert code == 3 and "has another purpose" in document["error"]["problems"][0]["message"]
    account.roles.clear()
    account.buckets[BUCKET] = OTHER_ACCOUNT
    code, document, _ = apply(capsys)
    message = document["error"]["problems"][0]["message"]
    assert code == 3 and f"the bucket {BUCKET} does not belong to the account {ACCOUNT}" in message
    account.buckets.clear()
    account.denied = {"CreateRole"}
    code, document, _ = apply(capsys)
    assert code == 3 and "CreateRole: refused" in document["error"]["problems"][0]["message"]
    code, document, _ = apply(capsys, "--account", OTHER_ACCOUNT)
    assert code == 3 and f"not of {OTHER_ACCOUNT}" in document["error"]["problems"][0]["message"]
    assert account.changes == []


ROLE = f"arn:aws:iam::{ACCOUNT}:role/smlaunch-training"


def permissions(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code of `smlaunch doctor`, and its checks of permissions."""
    code, out, _ = command(capsys, "doctor", "--region", REGION, "--json", *options)
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    return code, {name: check for name, check in checks.items() if name.startswith("permissions")}


def _without_action(policy: dict[str, Any], action: str) -> dict[str, Any]:
    statements = [
        {**statement, "Action": [name for name in statement["Action"] if name != action]}
        for statement in policy["Statement"]
    ]
    return {**policy, "Statement": statements}


def test_doctor_finds_the_permissions_that_account_makes(
    account: Account, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLAUNCH_ROLE", ROLE)
    assert apply(capsys, "--user", "ada")[0] == 0
    account.changes.clear()
    code, checks = permissions(capsys)
    assert code == 0 and account.changes == []
    assert {name: check["verdict"] for name, check in checks.items()} == {
        "permissions of caller": "ok",
        "permissions of role": "ok",
    }
    # The session of a role has the role's policies.
    account.caller = f"arn:aws:sts::{ACCOUNT}:assumed-role/smlaunch-training/ada"
    code, checks = permissions(capsys)
    assert code == 3 and "sagemaker:CreateTrainingJob" in checks["permissions of caller"]["text"]


@pytest.mark.parametrize(
    ("action", "verdict", "exit_code", "expected"),
    [
        (
            "sagemaker:StopTrainingJob",
            "missing",
            3,
            "not allowed: sagemaker:StopTrainingJob on arn:aws:sagemaker",
        ),
        ("iam:PassRole", "missing", 3, f"not allowed: iam:PassRole on {ROLE}"),
        ("s3:PutObject", "missing", 3, f"not allowed: s3:PutObject on arn:aws:s3:::{BUCKET}/smlaunch/doctor"),
        ("logs:GetLogEvents", "missing", 3, "not allowed: logs:GetLogEvents on arn:aws:logs"),
        ("sagemaker:ListTrainingJobs", "missing", 3, "not allowed: sagemaker:ListTrainingJobs. "),
        ("sagemaker:Search", "note", 0, "sagemaker:Search (for runs that an orchestrator drives)"),
    ],
)
def test_doctor_names_the_missing_action(
    account: Account,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    verdict: str,
    exit_code: int,
    expected: str,
) -> None:
    monkeypatch.setenv("SMLAUNCH_ROLE", ROLE)
    assert apply(capsys, "--user", "ada")[0] == 0
    account.policies[POLICY].append(_without_action(caller_policy(SETUP), action))
    code, checks = permissions(capsys)
    check = checks["permissions of caller"]
    assert (code, check["verdict"]) == (exit_code, verdict) and expected in check["text"]
    assert checks["permissions of role"]["verdict"] == "ok"


def test_doctor_simulates_the_role_and_says_what_a_simulation_does_not_know(
    account: Account, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLAUNCH_ROLE", ROLE)
    assert apply(capsys, "--user", "ada")[0] == 0
    key = ("smlaunch-training", "smlaunch-execution")
    account.role_policies[key] = _without_action(execution_policy(SETUP), "ecr:BatchGetImage")
    code, checks = permissions(capsys)
    assert code == 3 and "not allowed: ecr:BatchGetImage. " in checks["permissions of role"]["text"]
    # A condition of the account's own, about which nothing is known here, is no missing permission.
    account.role_policies[key] = execution_policy(SETUP)
    policy = caller_policy(SETUP)
    statement = {**policy["Statement"][0], "Condition": {"StringEquals": {"aws:SourceVpc": "vpc-1"}}}
    account.policies[POLICY].append({**policy, "Statement": [statement, *policy["Statement"][1:]]})
    code, checks = permissions(capsys)
    text = checks["permissions of caller"]["text"]
    assert code == 0 and "(unless aws:SourceVpc allows it)" in text
    # Who may not simulate, or has no policies, is told so.
    account.denied = {"SimulatePrincipalPolicy"}
    code, checks = permissions(capsys)
    assert code == 0 and "iam:SimulatePrincipalPolicy" in checks["permissions of caller"]["text"]
    account.denied, account.caller = set(), f"arn:aws:iam::{ACCOUNT}:root"
    code, checks = permissions(capsys)
    assert code == 0 and "is neither a user nor a role" in checks["permissions of caller"]["text"]
