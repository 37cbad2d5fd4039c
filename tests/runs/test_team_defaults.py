"""Defaults and policy of a team: which file counts, what the plan and the request have, what is an error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from smlaunch.discovery import config_files as config_files_module
from smlaunch.discovery.config_files import (
    OWN_VARIABLE,
    SDK_ADMIN_VARIABLE,
    SDK_USER_VARIABLE,
    config_files,
    find_default_region,
    read_team_settings,
)
from smlaunch.errors import AccountError, JobError
from smlaunch.facts.discovered_facts import EndpointFacts
from smlaunch.job.model import Job
from smlaunch.render.plan import Plan
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import plan, prepare_export
from smlaunch.runs.run_folder import RunFolder
from tests.conftest import ROOT
from tests.docs.commands import fenced_blocks
from tests.runs.fakes import ACCOUNT, BUCKET, REGION, ROLE, FakeControl, FakeStorage, fake_target
from tests.tables import table

KEY = "alias/team"
TEAM_ROLE, USER_ROLE, ADMIN_ROLE = (
    f"arn:aws:iam::{ACCOUNT}:role/{name}" for name in ("team", "user", "admin")
)
ECR = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/mirror"

Write = Callable[..., Path]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    for name in ("SMLAUNCH_ROLE", "SAGEMAKER_ROLE_ARN", "SAGEMAKER_ROLE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "source"
    folder.mkdir()
    script = folder / "train.py"
    script.write_text("print(1)\n")
    return Job(entry=script, name="digits")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a configuration file, and let a variable name it."""

    def write_file(variable: str, document: Any) -> Path:
        path = tmp_path / f"{variable.lower()}.yaml"
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        monkeypatch.setenv(variable, str(path))
        return path

    return write_file


def sdk_file(*, training: Any = None, processing: Any = None, session: Any = None) -> dict[str, Any]:
    parts = {"TrainingJob": training, "ProcessingJob": processing}
    parts = {name: part for name, part in parts.items() if part is not None}
    if session is not None:
        parts["PythonSDK"] = {"Modules": {"Session": session}}
    return {"SchemaVersion": "1.0", "SageMaker": parts}


def reasons_of(planned: Plan, rule: str) -> list[str]:
    return [reason.explanation for reason in planned.reasons if reason.rule == rule]


def test_without_files_nothing_changes(job: Job) -> None:
    planned = plan(job.with_changes(role=ROLE), fake_target())
    assert planned.to_dict()["defaults"] == [] and not reasons_of(planned, "defaults.team")
    assert planned.job_hash == plan(job.with_changes(role=ROLE), fake_target()).job_hash


def test_every_default_reaches_the_request_with_its_origin(job: Job, write: Write) -> None:
    defaults = {
        "role": TEAM_ROLE,
        "subnets": ["subnet-1", "subnet-2"],
        "security_groups": ["sg-1"],
        "network_isolation": True,
        "encrypt_traffic": True,
        "environment": {"MODE": "quiet", "API_TOKEN": "hush"},
        "tags": {"team": "vision"},
        "output": {"kms_key": KEY},
        "compute": {"volume_kms_key": "alias/volumes"},
        "bucket": "team-bucket",
        "bucket_prefix": "/jobs/",
        "image_registry": ECR,
    }
    file = write(OWN_VARIABLE, {"defaults": defaults})
    planned = plan(job, fake_target())
    request = planned.requests[0]
    assert request["RoleArn"] == TEAM_ROLE
    assert request["VpcConfig"] == {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
    assert request["EnableNetworkIsolation"] and request["EnableInterContainerTrafficEncryption"]
    assert request["Environment"]["MODE"] == "quiet"
    assert {"Key": "team", "Value": "vision"} in request["Tags"]
    assert request["OutputDataConfig"]["KmsKeyId"] == KEY
    assert request["ResourceConfig"]["VolumeKmsKeyId"] == "alias/volumes"
    assert request["OutputDataConfig"]["S3OutputPath"].startswith("s3://team-bucket/jobs/smlaunch/digits/")
    assert request["AlgorithmSpecification"]["TrainingImage"].startswith(f"{ECR}/pytorch")
    assert all(upload.uri.startswith("s3://team-bucket/jobs/smlaunch/") for upload in planned.uploads)
    lines = reasons_of(planned, "defaults.team")
    assert f"subnets: subnet-1, subnet-2, by defaults.subnets of {file}." in lines
    assert f"environment.API_TOKEN: set, by defaults.environment.API_TOKEN of {file}." in lines
    assert len(lines) == 13
    document = json.dumps(planned.to_dict())
    assert "hush" not in document
    assert {"field": "role", "value": TEAM_ROLE, "from": f"defaults.role of {file}"} in json.loads(document)[
        "defaults"
    ]


def test_the_first_file_that_states_a_value_counts(job: Job, write: Write) -> None:
    vpc = {"Subnets": ["subnet-9"], "SecurityGroupIds": ["sg-9"]}
    admin = {
        "RoleArn": ADMIN_ROLE,
        "VpcConfig": vpc,
        "EnableNetworkIsolation": True,
        "EnableInterContainerTrafficEncryption": True,
        "ProfilerConfig": {"DisableProfiler": True},
        "Environment": {"A": "admin", "B": "admin", "C": "admin", "D": "admin"},
        "Tags": [{"Key": "only-admin", "Value": "1"}],
        "OutputDataConfig": {"KmsKeyId": "alias/admin"},
    }
    user = {"RoleArn": USER_ROLE, "Environment": {"B": "user", "C": "user", "D": "user"}}
    user["Tags"] = [{"Key": "team", "Value": "user"}, {"Key": "cost", "Value": "user"}]
    own = {"environment": {"C": "own", "D": "own"}, "tags": {"team": "own"}, "subnets": ["subnet-1"]}
    write(SDK_ADMIN_VARIABLE, sdk_file(training=admin, session={"DefaultS3Bucket": "admin-bucket"}))
    write(SDK_USER_VARIABLE, sdk_file(training=user, session={"DefaultS3ObjectKeyPrefix": "of-user"}))
    write(OWN_VARIABLE, {"defaults": {**own, "security_groups": ["sg-1"]}})
    changed = job.with_changes(environment={"D": "job"}, network_isolation=False)
    planned = plan(changed, fake_target())
    assert planned.job.environment == {"A": "admin", "B": "user", "C": "own", "D": "job"}
    assert planned.job.tags == {"team": "own", "cost": "user"}
    assert (planned.job.subnets, planned.job.security_groups) == (("subnet-1",), ("sg-1",))
    assert (planned.job.role, planned.job.network_isolation, planned.job.encrypt_traffic) == (
        USER_ROLE,
        False,
        True,
    )
    assert planned.job.output is not None and planned.job.output.kms_key == "alias/admin"
    assert planned.requests[0]["ProfilerConfig"] == {"DisableProfiler": True}
    output = planned.requests[0]["OutputDataConfig"]["S3OutputPath"]
    assert output.startswith("s3://admin-bucket/of-user/smlaunch/")


def test_a_job_that_states_one_half_of_its_network_gets_no_other_half(job: Job, write: Write) -> None:
    write(OWN_VARIABLE, {"defaults": {"role": ROLE, "subnets": ["subnet-1"], "security_groups": ["sg-1"]}})
    with pytest.raises(JobError, match=r"^security_groups: it goes together with subnets"):
        plan(job.with_changes(subnets=["subnet-5"]), fake_target())
    assert plan(job.with_changes(subnets=[]), fake_target()).job.security_groups == ()


def test_a_variable_precedes_the_default_role_and_the_job_precedes_both(job: Job, write: Write) -> None:
    write(OWN_VARIABLE, {"defaults": {"role": TEAM_ROLE}})
    target = fake_target(environment={"SMLAUNCH_ROLE": USER_ROLE})
    assert plan(job, target).requests[0]["RoleArn"] == USER_ROLE
    assert plan(job.with_changes(role=ADMIN_ROLE), target).requests[0]["RoleArn"] == ADMIN_ROLE
    assert plan(job, fake_target()).requests[0]["RoleArn"] == TEAM_ROLE


def test_a_processing_job_has_the_defaults_of_processing_jobs(job: Job, write: Write) -> None:
    processing = {
        "RoleArn": USER_ROLE,
        "NetworkConfig": {
            "EnableInterContainerTrafficEncryption": True,
            "VpcConfig": {"Subnets": ["subnet-2"], "SecurityGroupIds": ["sg-2"]},
        },
        "ProcessingOutputConfig": {"KmsKeyId": KEY},
        "ProcessingResources": {"ClusterConfig": {"VolumeKmsKeyId": KEY}},
        "Tags": [{"Key": "team", "Value": "data"}],
    }
    write(SDK_USER_VARIABLE, sdk_file(training={"RoleArn": ADMIN_ROLE}, processing=processing))
    Path(job.program).write_text("import pyspark\n")  # which shows that it is one
    planned = plan(job, fake_target())
    request = planned.requests[0]
    assert planned.strategy == "spark"
    assert request["RoleArn"] == USER_ROLE
    assert request["NetworkConfig"]["VpcConfig"]["Subnets"] == ["subnet-2"]
    assert request["ProcessingOutputConfig"]["KmsKeyId"] == KEY
    assert request["ProcessingResources"]["ClusterConfig"]["VolumeKmsKeyId"] == KEY
    assert plan(job.with_changes(strategy="custom"), fake_target()).requests[0]["RoleArn"] == ADMIN_ROLE


def test_the_local_endpoint_has_only_what_means_something_there(job: Job, write: Write) -> None:
    defaults = {
        "role": TEAM_ROLE,
        "tags": {"team": "vision"},
        "bucket": "team-bucket",
        "output": {"kms_key": KEY},
    }
    file = write(OWN_VARIABLE, {"defaults": defaults, "policy": {"regions": ["eu-*"], "spot_only": True}})
    target = Target.endpoint(
        "http://127.0.0.1:1",
        "us-east-1",
        "a",
        "b",
        account=ACCOUNT,
        role=ROLE,
        bucket=BUCKET,
        facts=EndpointFacts(),
    )
    target.__dict__.update(storage=FakeStorage(), input_storage=FakeStorage())
    planned = plan(job, target)
    assert planned.requests[0]["RoleArn"] == ROLE
    assert planned.job.tags == {"team": "vision"} and planned.facts.bucket == BUCKET
    assert reasons_of(planned, "defaults.local") == [
        f"Not taken from {file}, because the local endpoint has no account: bucket, output.kms_key, role."
    ]
    assert reasons_of(planned, "policy.local")


def test_a_key_for_volumes_is_not_for_a_type_with_its_own_disk(job: Job, write: Write) -> None:
    write(OWN_VARIABLE, {"defaults": {"role": ROLE, "compute": {"volume_kms_key": KEY}}})
    planned = plan(job.with_changes(compute={"instance_type": "ml.g5.xlarge"}), fake_target())
    assert "VolumeKmsKeyId" not in planned.requests[0]["ResourceConfig"]
    assert reasons_of(planned, "defaults.volume-key")


def test_a_problem_of_a_default_names_its_file(job: Job, write: Write) -> None:
    file = write(OWN_VARIABLE, {"defaults": {"role": f"arn:aws:iam::{'9' * 12}:role/other"}})
    with pytest.raises(JobError, match=rf"^role: .*{re.escape(f'(a default: defaults.role of {file})')}"):
        plan(job, fake_target())


def test_an_export_with_a_secret_of_a_default_is_refused(job: Job, write: Write) -> None:
    write(OWN_VARIABLE, {"defaults": {"role": ROLE, "environment": {"HF_TOKEN": "hunter2"}}})
    with pytest.raises(
        JobError, match=r"^environment\.HF_TOKEN: .*defaults\.environment\.HF_TOKEN of"
    ) as caught:
        prepare_export(job, fake_target())
    assert "hunter2" not in str(caught.value)


# ---- files ----------------------------------------------------------------------------------------


@table(
    ("document", "words"),
    [
        ("a: [", "team.yaml:1:5"),
        ("- a", "'defaults:' is needed, not a list"),
        ("defaults: {role: 3}", "defaults.role"),
        ("role: x", "role: unknown key, did you mean 'defaults.role'?"),
        ("defaults: {policy: {}}", "did you mean 'policy' at the top of the file?"),
        ("defaults: {bucket: S3}", "'S3' is not the name of a bucket"),
        ("defaults: {image_registry: docker.io}", "is not a registry of Amazon ECR"),
        ("policy: {instance_types: []}", "an empty list allows nothing"),
        ("policy: {instance_types: [g5.xlarge]}", "ml.g5.*"),
        ("policy: {max_cost_per_run: -1}", "policy.max_cost_per_run"),
        ("a: &a [*a]", "contains itself"),
        ("a: 1\na: 2", "given twice"),
        ("x" * (1 << 20) + "x", "larger than 1 MB"),
    ],
)
def test_a_wrong_file_is_named_with_its_mistake(document: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(document)
    with pytest.raises(JobError) as caught:
        read_team_settings({OWN_VARIABLE: str(file)})
    assert all(str(file) in problem.path for problem in caught.value.problems)
    assert words in str(caught.value)


def test_the_mistakes_of_all_files_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("defaults: {rol: x, tags: 1}")
    (tmp_path / "user.yaml").write_text("SageMaker: {TrainingJob: {RoleArn: me, VpcConfig: {Subnet: [a]}}}")
    environment = {
        OWN_VARIABLE: str(tmp_path / "own.yaml"),
        SDK_USER_VARIABLE: str(tmp_path / "user.yaml"),
        SDK_ADMIN_VARIABLE: str(tmp_path / "missing.yaml"),
    }
    with pytest.raises(JobError) as caught:
        read_team_settings(environment)
    assert [problem.path.removeprefix(f"{tmp_path}/") for problem in caught.value.problems] == [
        "own.yaml: defaults.tags",
        "own.yaml: defaults.rol",
        "user.yaml: SchemaVersion",
        "user.yaml: SageMaker.TrainingJob.RoleArn",
        "user.yaml: SageMaker.TrainingJob.VpcConfig.Subnet",
        "missing.yaml",
    ]


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(JobError, match=re.escape(str(path))):
            read_team_settings({OWN_VARIABLE: str(path)})


def test_the_usual_places_are_those_of_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"HOME": "/home/ada"}
    assert [place.address for place in config_files(home)] == [
        "/home/ada/.config/smlaunch/config.yaml",
        "/home/ada/.config/sagemaker/config.yaml",
        "/etc/xdg/sagemaker/config.yaml",
    ]
    other = {**home, "XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": "/site:/etc/xdg"}
    assert [place.address for place in config_files(other)] == [
        f"{tmp_path}/smlaunch/config.yaml",
        f"{tmp_path}/sagemaker/config.yaml",
        "/site/sagemaker/config.yaml",
    ]
    monkeypatch.setattr(config_files_module.sys, "platform", "darwin")
    assert [place.address for place in config_files(home)][1:] == [
        "/home/ada/Library/Application Support/sagemaker/config.yaml",
        "/Library/Application Support/sagemaker/config.yaml",
    ]
    assert not read_team_settings({"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}).files


def test_a_file_of_the_sdk_may_be_named_by_its_folder_and_be_in_s3(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_dump(sdk_file(training={"RoleArn": ADMIN_ROLE}))
    (tmp_path / "config.yaml").write_text(content)
    monkeypatch.setenv(SDK_ADMIN_VARIABLE, str(tmp_path))
    assert plan(job, fake_target()).requests[0]["RoleArn"] == ADMIN_ROLE

    target = fake_target()
    target.input_storage.put_bytes(BUCKET, "team/config.yaml", content.replace("admin", "s3").encode())
    for address in (f"s3://{BUCKET}/team/config.yaml", f"s3://{BUCKET}/team", f"s3://{BUCKET}/team/"):
        monkeypatch.setenv(SDK_USER_VARIABLE, address)
        planned = plan(job, target)
        assert planned.requests[0]["RoleArn"] == ADMIN_ROLE.replace("admin", "s3")
        assert f"of s3://{BUCKET}/team/config.yaml." in "".join(reasons_of(planned, "defaults.team"))
    monkeypatch.setenv(SDK_USER_VARIABLE, f"s3://{BUCKET}/nothing")
    with pytest.raises(
        JobError, match=f"^s3://{BUCKET}/nothing: {SDK_USER_VARIABLE} names it, and there is no"
    ):
        plan(job, target)


def test_the_default_region_is_the_last_one(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(OWN_VARIABLE, {"defaults": {"region": "eu-central-1"}})
    default = find_default_region(os.environ)
    assert default is not None and default.origin == f"defaults.region of {file}"

    class Session:
        region: str | None = None

        def create_client(self) -> None: ...

        def get_config_variable(self, name: str) -> str | None:
            return self.region

    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    session = Session()
    target = Target.region(session=session)
    assert (target.region_name, target.region_default) == ("eu-central-1", default)
    session.region = "eu-west-2"
    assert Target.region(session=session).region_name == "eu-west-2"
    assert Target.region("eu-west-3", session=session).region_default is None
    write(OWN_VARIABLE, {"defaults": {"region": "eu-cental-1"}})
    session.region = None
    with pytest.raises(JobError, match=r"defaults\.region of"):
        Target.region(session=session)


# ---- the same run from another machine -------------------------------------------------------------


def with_described_requests(target: Target) -> FakeControl:
    """Let Describe return what was requested, as the service does."""
    control: FakeControl = target.__dict__["control_plane"]
    for request in control.created:
        control.descriptions_by_job[request["TrainingJobName"]][-1].update(request)
    return control


def test_equal_values_are_one_run_wherever_they_come_from(job: Job, write: Write) -> None:
    target = fake_target()
    values = {"subnets": ["subnet-1"], "security_groups": ["sg-1"], "tags": {"team": "vision"}}
    launch(job.with_changes(role=ROLE, **values), target)
    write(OWN_VARIABLE, {"defaults": {**values, "role": TEAM_ROLE, "bucket": BUCKET}})
    assert launch(job, target).attached
    assert len(with_described_requests(target).created) == 1


@table(
    ("field", "defaults"),
    [
        ("subnets", {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}),
        ("tags.team", {"tags": {"team": "vision"}}),
        ("environment.MODE", {"environment": {"MODE": "quiet"}}),
        ("output", {"bucket": "team-bucket"}),
        ("output.kms_key", {"output": {"kms_key": KEY}}),
        ("image", {"image_registry": ECR}),
    ],
)
def test_other_defaults_are_another_job_and_named(
    field: str, defaults: dict[str, Any], job: Job, write: Write
) -> None:
    target = fake_target()
    write(OWN_VARIABLE, "")
    launch(job.with_changes(role=ROLE), target)
    with_described_requests(target)
    file = write(OWN_VARIABLE, {"defaults": {"role": ROLE, **defaults}})
    (key,) = list(defaults)[:1]
    with pytest.raises(
        JobError, match=rf"was made of another job.*what differs: {field} \(here defaults\.{key}"
    ) as caught:
        launch(job, target)
    assert str(file) in str(caught.value)


def test_a_run_in_the_teams_bucket_is_found_there(job: Job, write: Write) -> None:
    Path(job.program).write_text("import smlaunch.train")
    chain = job.with_changes(role=ROLE, limits={"max_runtime": "2d", "segment": "1d"})
    target = fake_target()
    target.__dict__["storage"].objects["team-bucket"] = {}
    write(OWN_VARIABLE, {"defaults": {"bucket": "team-bucket", "bucket_prefix": "jobs"}})
    launch(chain, target)
    folder = RunFolder.for_run("team-bucket", "digits", "jobs")
    assert folder.load_workflow(target.storage) is not None
    description = with_described_requests(target).describe_job("digits-s1-a1")
    assert RunFolder.from_description("digits", description) == folder
    assert launch(chain, target).attached


def test_the_teams_bucket_is_not_made(job: Job, write: Write) -> None:
    write(OWN_VARIABLE, {"defaults": {"role": ROLE, "bucket": "missing-bucket"}})
    target = fake_target()
    with pytest.raises(AccountError, match=r"^the bucket missing-bucket does not exist; defaults\.bucket of"):
        launch(job, target)
    assert "missing-bucket" not in target.__dict__["storage"].objects


def test_a_plan_that_compares_types_takes_one_of_the_policy(job: Job, write: Write) -> None:
    workload = {"kind": "training", "time_on_one": "2h", "measured_on": "ml.g5.xlarge"}
    compared = job.with_changes(role=ROLE, workload=workload)
    free_choice = plan(compared, fake_target()).instance_type
    file = write(OWN_VARIABLE, {"policy": {"instance_types": ["ml.p3.*", "ml.g6.*", "ml.c5.*"]}})
    planned = plan(compared, fake_target())
    assert planned.instance_type != free_choice
    assert planned.instance_type.startswith(("ml.p3.", "ml.g6.", "ml.c5."))
    objections = {candidate.rule: candidate.objection for candidate in planned.candidates}
    assert objections["policy.machines"] == f"policy.instance_types of {file} does not have it"


def test_a_job_cannot_allow_what_the_policy_refuses(job: Job, write: Write) -> None:
    write(OWN_VARIABLE, {"policy": {"instance_types": ["ml.g6.*"], "regions": ["ap-*"]}})
    allowed = job.with_changes(role=ROLE, allow=["policy.instance-types", "policy.regions"])
    with pytest.raises(JobError) as caught:
        plan(allowed, fake_target())
    paths = [problem.path for problem in caught.value.problems]
    assert {"compute.instance_type", "region"} < set(paths)
    assert all("--allow" not in str(problem) for problem in caught.value.problems if problem.path == "region")


# ---- the page --------------------------------------------------------------------------------------


def test_the_pages_example_does_what_the_page_says(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "defaults.md"
    blocks = [(language, "\n".join(lines)) for language, _, lines in fenced_blocks(page)]
    (config,) = [text for language, text in blocks if language == "yaml"]
    monkeypatch.chdir(tmp_path)
    Path("team.yaml").write_text(config)
    monkeypatch.setenv(OWN_VARIABLE, "team.yaml")
    page_text = "\n".join(text for language, text in blocks if language == "")
    lines_of_plan = re.findall(r"^  - (.*) \[defaults.team\]$", page_text, re.MULTILINE)
    planned = plan(job.with_changes(tags={"project": "digits"}), fake_target())
    assert lines_of_plan and set(lines_of_plan) <= set(reasons_of(planned, "defaults.team"))
    problems = re.findall(
        r"^  (\S+): (.*?)(?: \(from .*)?$", page_text.partition("problems\n")[2], re.MULTILINE
    )
    with pytest.raises(JobError) as caught:
        plan(
            job.with_changes(compute={"instance_type": "ml.p4d.24xlarge"}, limits={"max_runtime": "1h"}),
            fake_target(),
        )
    assert problems == [(problem.path, problem.message) for problem in caught.value.problems]
