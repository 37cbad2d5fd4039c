"""What a user without working credentials, role or region reads: real botocore, its files, and a server on
loopback."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import warm
from tests.cli import loopback_aws
from tests.cli.conftest import Outcome
from tests.cli.loopback_aws import ACCOUNT

CONFIG = """\
[profile dev]
sso_session = corp
sso_account_id = 123456789012
sso_role_name = dev
region = eu-west-1
[sso-session corp]
sso_start_url = https://corp.example/start
sso_region = eu-west-1
[profile old-style]
sso_start_url = https://corp.example/start
sso_region = eu-west-1
sso_account_id = 123456789012
sso_role_name = dev
[profile over-dev]
role_arn = arn:aws:iam::123456789012:role/train
source_profile = dev
[profile broken-session]
sso_session = gone
sso_account_id = 123456789012
sso_role_name = dev
[profile keys]
aws_access_key_id = AKIAWRONG
aws_secret_access_key = s
[profile half]
aws_access_key_id = AKIAGOOD
[profile good]
aws_access_key_id = AKIAGOOD
aws_secret_access_key = s
[profile trainer]
role_arn = arn:aws:iam::123456789012:role/train
source_profile = good
[profile refused-role]
role_arn = arn:aws:iam::123456789012:role/other
source_profile = good
[profile tool]
credential_process = /bin/false
[profile empty]
region = eu-west-1
[profile typo-region]
region = eu-wset-1
"""


class Machine(NamedTuple):
    """A machine with an AWS configuration, on which all of AWS is a server on loopback."""

    folder: Path
    environment: dict[str, str]
    operations: list[str]

    def __call__(self, *arguments: str, **variables: str) -> Outcome:
        result = warm.run(arguments, env={**self.environment, **variables}, cwd=self.folder, timeout=110)
        return Outcome(result.returncode, result.stdout, result.stderr)

    def run_anew(self, *arguments: str) -> Outcome:
        """Run a command in a new interpreter: botocore finds its cache of SSO logins when it is imported."""
        command = [sys.executable, "-m", "smlaunch", *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, env=self.environment, timeout=110
        )
        return Outcome(result.returncode, result.stdout, result.stderr)

    def store_sso_token(self, key: str, token: str, expires: str) -> None:
        """Store a login of `aws sso login`. ``key``: the session's name, or the start URL."""
        folder = self.folder.parent / ".aws" / "sso" / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        login = {"startUrl": "https://corp.example/start", "accessToken": token, "expiresAt": expires}
        name = hashlib.sha1(key.encode()).hexdigest()  # as the AWS CLI names it
        (folder / f"{name}.json").write_text(json.dumps({**login, "region": "eu-west-1"}))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print('hello')\n")
    others = ("AWS_", "SMLAUNCH_", "HTTP", "NO_PROXY", "http", "no_proxy")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    with loopback_aws.serve() as (url, operations):
        environment = {
            **inherited,
            "HOME": str(tmp_path),
            "SMLAUNCH_HOME": str(tmp_path / "state"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": url,
            "AWS_MAX_ATTEMPTS": "1",
            "HTTPS_PROXY": "http://127.0.0.1:9",  # whatever does not go to the server is refused
        }
        yield Machine(work, environment, operations)


LATER, EARLIER = "2099-01-01T00:00:00Z", "2020-01-01T00:00:00Z"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/train"


@pytest.mark.parametrize(
    ("profile", "token", "expires", "expected"),
    [
        ("dev", None, "", "from the profile 'dev': there is no SSO login for it on this machine"),
        ("dev", "good", EARLIER, "from the profile 'dev': its SSO login has expired or is no longer valid"),
        ("dev", "revoked", LATER, "from the profile 'dev': its SSO login has expired or is no longer valid"),
        ("old-style", None, "", "from the profile 'old-style': there is no SSO login for it"),
        ("old-style", "good", EARLIER, "from the profile 'old-style': its SSO login has expired"),
        ("over-dev", None, "", "from the profile 'dev': there is no SSO login for it on this machine"),
    ],
)
def test_without_a_valid_sso_login_the_command_that_renews_it_is_named(
    machine: Machine, profile: str, token: str | None, expires: str, expected: str
) -> None:
    if token is not None:
        key = "https://corp.example/start" if profile == "old-style" else "corp"
        machine.store_sso_token(key, token, expires)
    result = machine.run_anew(
        "run", "train.py", "--region", "eu-west-1", "--profile", profile, "--role", ROLE
    )
    assert result.code == 3, result
    assert f"error: no usable AWS credentials {expected}" in result.err
    login_profile = "dev" if profile == "over-dev" else profile
    assert f"; run `aws sso login --profile {login_profile}`" in result.err
    assert ("its sso-session is 'corp'" in result.err) == (profile != "old-style")
    assert result.err.count("\n") == 1
    assert set(machine.operations) <= {"/federation/credentials"}, "the account was asked nothing"


def test_an_sso_user_is_told_to_name_a_role(machine: Machine) -> None:
    machine.store_sso_token("corp", "good", LATER)
    result = machine.run_anew("plan", "train.py", "--profile", "dev")
    assert result.code == 2
    assert "single sign-on user, whose role SageMaker cannot assume; give --role ARN" in result.err
    assert machine.run_anew("plan", "train.py", "--profile", "dev", "--role", ROLE).code == 0


def test_an_sso_user_without_the_role_of_the_profile(machine: Machine) -> None:
    machine.store_sso_token("corp", "unassigned", LATER)
    result = machine.run_anew("plan", "train.py", "--profile", "dev", "--role", ROLE)
    assert result.code == 3
    assert (
        "GetRoleCredentials: refused: No access; have the account and the role of the profile" in result.err
    )


BAD_CREDENTIALS = [
    (
        {"AWS_PROFILE": "keys"},
        "AWS does not accept the credentials of the profile 'keys'",
        "`aws configure --profile keys`",
    ),
    (
        {"AWS_PROFILE": "half"},
        "the AWS configuration cannot be used: Partial credentials found",
        "correct it in",
    ),
    (
        {"AWS_PROFILE": "tool"},
        "no usable AWS credentials from the profile 'tool'",
        "its credential_process by hand",
    ),
    ({"AWS_PROFILE": "broken-session"}, 'sso-session does not exist: "gone"', "correct it in ~/.aws/config"),
    (
        {"AWS_PROFILE": "refused-role"},
        "AssumeRole: refused: User: ada is not authorized",
        "allow the caller sts:AssumeRole",
    ),
    (
        {
            "AWS_ACCESS_KEY_ID": loopback_aws.EXPIRED_KEY,
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_SESSION_TOKEN": "t",
        },
        "the AWS credentials of the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have expired",
        "AWS_SESSION_TOKEN to valid ones",
    ),
    (
        {"AWS_ACCESS_KEY_ID": "AKIAWRONG", "AWS_SECRET_ACCESS_KEY": "s"},
        "AWS does not accept the credentials of the variables AWS_ACCESS_KEY_ID",
        "eu-west-1 may have to be enabled",
    ),
    ({"AWS_PROFILE": "emtpy"}, "there is no AWS profile 'emtpy' in", "did you mean 'empty'?"),
    ({"AWS_PROFILE": "zzz"}, "there is no AWS profile 'zzz' in", "known: dev, old-style,"),
    ({}, "no AWS credentials were found", "aws configure sso"),
    ({"AWS_PROFILE": "empty"}, "the profile 'empty' states no AWS credentials", "add --local"),
]


@pytest.mark.parametrize(("variables", "cause", "next_step"), BAD_CREDENTIALS)
def test_credentials_that_do_not_work(
    machine: Machine, variables: dict[str, str], cause: str, next_step: str
) -> None:
    result = machine("run", "train.py", "--region", "eu-west-1", "--role", ROLE, **variables)
    assert result.code == 3, result
    assert cause in result.err and next_step in result.err
    assert result.err.startswith("error: ") and result.err.count("\n") == 1


def test_a_configuration_that_is_no_configuration(machine: Machine) -> None:
    (machine.folder.parent / ".aws" / "config").write_text("this is [not a configuration")
    result = machine("run", "train.py", "--region", "eu-west-1", "--role", ROLE)
    assert result.code == 3
    assert "the AWS configuration cannot be used: Unable to parse config file" in result.err


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "expected"),
    [
        (
            ("--region", "eu-west1"),
            {},
            2,
            "region: there is no AWS region 'eu-west1', did you mean 'eu-west-1'?",
        ),
        (("--region", "eu-west-1a"), {}, 2, "did you mean 'eu-west-1'?"),
        (("--region", "EU-WEST-1"), {}, 2, "did you mean 'eu-west-1'?"),
        (
            (),
            {"AWS_DEFAULT_REGION": "us-esat-1"},
            2,
            "of the AWS configuration: there is no AWS region 'us-esat-1'",
        ),
        (
            (),
            {"AWS_PROFILE": "typo-region"},
            2,
            "there is no AWS region 'eu-wset-1', did you mean 'eu-west-1'?",
        ),
        (
            ("--region", "us-iso-west-1"),
            {},
            2,
            "us-iso-west-1 has no SageMaker (2026-11); take us-iso-east-1",
        ),
        (
            ("--region", "eu-west-9"),
            {},
            2,
            "image: there is no AWS region 'eu-west-9' in the table of 2026-11, did you mean 'eu-west-3'?",
        ),
        ((), {}, 3, "no AWS region is set: give --region, or set AWS_REGION, or run `aws configure`"),
    ],
)
def test_regions(
    machine: Machine, arguments: tuple[str, ...], variables: dict[str, str], code: int, expected: str
) -> None:
    result = machine("plan", "train.py", "--role", ROLE, *arguments, **variables)
    assert result.code == code, result
    assert expected in result.err
    assert machine.operations == []


def test_a_region_and_types_that_the_catalog_does_not_know(machine: Machine) -> None:
    common = ("plan", "train.py", "--role", ROLE)
    unknown = machine(
        *common, "--region", "eu-west-7", "--image", "123456789012.dkr.ecr.eu-west-7.amazonaws.com/x:1"
    )
    assert unknown.code == 0, unknown
    text = " ".join(unknown.out.split())
    assert "region: there is no AWS region 'eu-west-7' in the table of 2026-11, did you mean" in text
    assert "? AWS may have opened it since then." in text
    absent = machine(*common, "--region", "eu-west-1", "--instance-type", "ml.p5.48xlarge")
    assert absent.code == 0
    text = " ".join(absent.out.split())
    assert (
        "has no p5.48xlarge of EC2 in eu-west-1, so that SageMaker probably does not offer it there" in text
    )
    assert "eu-west-1 has ml.p4d.24xlarge" in text
    same_gpus = machine(*common, "--region", "us-east-1", "--instance-type", "H200:8")
    assert "us-east-1 has ml.p5en.48xlarge" in " ".join(same_gpus.out.split())
    offered = machine(*common, "--region", "us-east-1", "--instance-type", "ml.p5.48xlarge")
    assert "of EC2" not in offered.out


def test_roles(machine: Machine) -> None:
    by_name = machine(
        "plan", "train.py", "--region", "eu-west-1", "--profile", "good", "--role", "train", "--json"
    )
    assert json.loads(by_name.out)["requests"][0]["RoleArn"] == loopback_aws.ROLES["train"]
    for role, expected in (
        ("trian", f"role: the account {ACCOUNT} has no role 'trian'; give the ARN of one that it has"),
        (
            "arn:aws:iam::210987654321:role/train",
            "is a role of the account 210987654321, and the credentials are",
        ),
        (None, "role: no execution role is known, and the caller"),
    ):
        role_option = () if role is None else ("--role", role)
        result = machine("plan", "train.py", "--region", "eu-west-1", "--profile", "good", *role_option)
        assert (result.code, expected in result.err) == (2, True), result
    assumed = machine("plan", "train.py", "--region", "eu-west-1", "--profile", "trainer", "--json")
    assert json.loads(assumed.out)["requests"][0]["RoleArn"] == loopback_aws.ROLES["train"]


@pytest.mark.parametrize("profile", [(), ("--profile", "dev"), ("--profile", "keys")])
def test_all_mistakes_of_a_job_are_reported_before_credentials_are_needed(
    machine: Machine, profile: tuple[str, ...]
) -> None:
    (machine.folder / "job.yaml").write_text(
        "entry: train.py\nrequirements: requirements.txt\nlimits: {max_runtim: 2d}\n"
        "compute: {keep_alive: 7h, spot: true}\ninputs: {train: ./nothing}\n"
    )
    result = machine("run", "job.yaml", "--region", "eu-west-1", *profile)
    assert result.code == 2
    for field in ("limits.max_runtim", "requirements", "compute.keep_alive", "checkpoints", "inputs.train"):
        assert f"  {field}: " in result.err, result.err
    (machine.folder / "job.yaml").write_text("entry: train.py\ncompute: {keep_alive: 7h}\n")
    result = machine("run", "job.yaml", "--region", "eu-west-1", *profile)
    assert (result.code, "error: compute.keep_alive: 7h is longer" in result.err) == (2, True), result


def test_a_plan_without_an_account_says_what_it_does_not_know(machine: Machine) -> None:
    options = ("--region", "eu-west-1", "--instance-type", "ml.g5.12xlarge", "--input", "train=s3://data/a/")
    result = machine("plan", "train.py", *options, "--json")
    assert result.code == 0, result
    document = json.loads(result.out)
    request = document["requests"][0]
    assert request["RoleArn"] == "arn:aws:iam::000000000000:role/EXECUTION-ROLE"
    assert request["OutputDataConfig"]["S3OutputPath"].startswith("s3://sagemaker-eu-west-1-000000000000/")
    warning = next(text for text in document["warnings"] if text.startswith("No account was asked"))
    for unknown in (
        "the account (000000000000 stands for it",
        "whether the bucket sagemaker-eu-west-1-000000000000 exists",
        "the execution role (arn:aws:iam::000000000000:role/EXECUTION-ROLE stands for it)",
        "the account's quotas (ml.g5.12xlarge for training job usage): they are assumed to suffice",
        "whether there is data for train, and how much",
    ):
        assert unknown in warning
    assert machine.operations == []
    with_role = json.loads(machine("plan", "train.py", *options, "--role", ROLE, "--json").out)
    assert with_role["requests"][0]["RoleArn"] == ROLE
    assert f"sagemaker-eu-west-1-{ACCOUNT}" in with_role["requests"][0]["OutputDataConfig"]["S3OutputPath"]
    split = machine(
        "plan", "train.py", *options[:4], "--hosts", "2", "--input", "train=s3://data/a/,split=bytes"
    )
    assert (split.code, "inputs.train.split: bytes takes the names and sizes" in split.err) == (3, True), (
        split
    )


@pytest.mark.parametrize("kind", ["step-functions", "airflow", "pipeline"])
def test_an_export_without_an_account_says_what_is_missing(machine: Machine, kind: str) -> None:
    result = machine("export", kind, "train.py", "--region", "eu-west-1", "--out", str(machine.folder / kind))
    assert result.code == 0, result
    assert "warning: nothing was uploaded, because no account could be asked" in result.err
    assert "warning: No account was asked (no AWS credentials were found" in result.err
    assert any("000000000000" in path.read_text() for path in (machine.folder / kind).iterdir())
    assert machine.operations == []


def test_what_needs_an_account_is_refused_without_one(machine: Machine) -> None:
    region = ("--region", "eu-west-1")
    deploy = machine("export", "pipeline", "train.py", *region, "--deploy")
    assert (deploy.code, "no AWS credentials were found" in deploy.err) == (3, True), deploy
    expired = machine("plan", "train.py", "--profile", "dev")
    assert (expired.code, "aws sso login --profile dev" in expired.err) == (3, True), expired
    for command in (("ls",), ("show", "some-run"), ("stop", "some-run")):
        result = machine(*command, *region)
        assert (result.code, "no AWS credentials were found" in result.err) == (3, True), result


@pytest.mark.parametrize("region", [(), ("--region", "eu-west-1")])
@pytest.mark.parametrize(
    "command",
    [("doctor", "--aws"), ("catalog", "update"), ("account", "--account", "1" * 12, "--apply", "--yes")],
)
def test_a_command_without_the_option_is_not_told_to_add_local(
    machine: Machine, command: tuple[str, ...], region: tuple[str, ...]
) -> None:
    result = machine(*command, *region)
    text = " ".join((result.out + result.err).split())
    assert ("no AWS credentials were found" if region else "no AWS region is set") in text, result
    assert "add --local" not in text and "local_target" not in text, result


def test_doctor_says_what_is_configured_and_asks_aws_only_on_request(machine: Machine) -> None:
    plain = machine("doctor", AWS_PROFILE="dev")
    assert "note    AWS" in plain.out and machine.operations == []
    assert "Configuration: credentials from the profile 'dev', region eu-west-1" in plain.out
    refused = machine(
        "doctor", "--aws", AWS_PROFILE="keys", AWS_DEFAULT_REGION="eu-west-1", SMLAUNCH_ROLE=ROLE
    )
    assert refused.code == 3, refused
    assert "AWS does not accept the credentials of the profile 'keys'" in refused.out
    good = machine("doctor", "--profile", "good", "--region", "eu-west-1", SMLAUNCH_ROLE=ROLE)
    assert good.code == 0, good
    assert f"user/ada (account {ACCOUNT}) in eu-west-1" in good.out and ROLE in good.out


def test_doctor_lists_the_configuration_files_that_count(machine: Machine) -> None:
    file = machine.folder / "team.yaml"
    file.write_text("defaults: {region: eu-west-1}\n")
    admin = {"SAGEMAKER_ADMIN_CONFIG_OVERRIDE": "s3://team/config.yaml"}
    good = machine("doctor", "--json", SMLAUNCH_CONFIG=str(file), SAGEMAKER_USER_CONFIG_OVERRIDE="", **admin)
    checks = {check["name"]: check for check in json.loads(good.out)["checks"]}
    assert checks["config (smlaunch)"]["text"] == f"{file} is read, by SMLAUNCH_CONFIG"
    assert checks["config (SageMaker SDK, user)"]["text"].endswith("/sagemaker/config.yaml is not there")
    assert checks["config (SageMaker SDK, administrator)"]["verdict"] == "note"
    assert "region eu-west-1" in checks["AWS"]["text"]
    file.write_text(f"defaults: {{role: '{ROLE}'}}\n")
    with_role = machine("doctor", "--profile", "good", "--region", "eu-west-1", SMLAUNCH_CONFIG=str(file))
    assert f"{ROLE}, by defaults.role of {file}" in with_role.out
    machine.operations.clear()
    file.write_text("defaults: {rol: x, bucket: B}\n")
    bad = machine("doctor", SMLAUNCH_CONFIG=str(file))
    assert bad.code == 2, bad
    assert f"{file}: defaults.bucket: 'B' is not the name of a bucket" in bad.out
    assert f"{file}: defaults.rol: unknown key, did you mean 'role'?" in bad.out
    assert machine.operations == []


def test_a_proxy_that_refuses(machine: Machine) -> None:
    variables = {"AWS_ENDPOINT_URL": "", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    result = machine(
        "plan", "train.py", "--region", "eu-west-1", "--profile", "good", "--role", ROLE, **variables
    )
    assert result.code == 4
    assert (
        'Failed to connect to proxy URL: "http://127.0.0.1:9"; check the network and the region' in result.err
    )
