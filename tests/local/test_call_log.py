"""The endpoint's log of answered calls, and its errors for services of the extra moto."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from smlaunch.errors import EndpointError
from smlaunch.local import background_endpoint
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.endpoint_settings import CALL_LOG_VARIABLE, Settings
from smlaunch.local.front.call_log import IamPermission, LoggedCall, read_call_log
from smlaunch.local.moto import forwarder

ACCOUNT = "000000000000"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/trainer"


class LoggedEndpoint:
    def __init__(self, info: EndpointInfo, path: Path) -> None:
        self.info = info
        self._path = path

    def client(self, service: str, **keys: str) -> Any:
        session = boto3.Session(self.info.access_key, self.info.secret_key, region_name="us-east-1")
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
        return session.client(service, endpoint_url=self.info.url, config=config, **keys)

    def calls(self) -> list[LoggedCall]:
        return read_call_log(self._path)

    def last(self) -> LoggedCall:
        return self.calls()[-1]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedEndpoint]:
    home = tmp_path_factory.mktemp("calls")
    path = home / "calls.jsonl"
    with Endpoint(home / "home", isolation="plain", settings=Settings(call_log=str(path))) as info:
        yield LoggedEndpoint(info, path)


def test_calls_are_logged_with_caller_and_permissions(endpoint: LoggedEndpoint) -> None:
    keys = endpoint.client("sts").assume_role(RoleArn=ROLE, RoleSessionName="tests")["Credentials"]
    assert endpoint.last().needs == (IamPermission("sts:AssumeRole", ROLE),)
    sagemaker = endpoint.client(
        "sagemaker",
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
    )
    with pytest.raises(ClientError):
        sagemaker.create_training_job(
            TrainingJobName="Job-1",
            RoleArn=ROLE,
            AlgorithmSpecification={"TrainingImage": "image:1", "TrainingInputMode": "Nothing"},
            OutputDataConfig={"S3OutputPath": "s3://none/out"},
            ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
            Tags=[{"Key": "team", "Value": "a"}],
        )
    call = endpoint.last()
    job = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/job-1"
    assert call.needs == (
        IamPermission("sagemaker:CreateTrainingJob", job),
        IamPermission("iam:PassRole", ROLE),
        IamPermission("sagemaker:AddTags", job),
    )
    assert call.caller == f"arn:aws:sts::{ACCOUNT}:assumed-role/trainer/tests"
    assert (call.service, call.operation, call.region) == ("sagemaker", "CreateTrainingJob", "us-east-1")
    assert (call.status, call.error, call.via) == (400, "ValidationException", "")


def test_object_operations_have_iam_actions(endpoint: LoggedEndpoint) -> None:
    s3 = endpoint.client("s3")
    s3.create_bucket(Bucket="things")
    operations = []

    def record_call(_: Any) -> None:
        call = endpoint.last()
        needs = [(need.action, need.resource.removeprefix("arn:aws:s3:::")) for need in call.needs]
        operations.append((call.operation, *needs[0], *needs[1:]))

    record_call(s3.put_object(Bucket="things", Key="a b/ü", Body=b"x"))
    record_call(s3.head_object(Bucket="things", Key="a b/ü"))
    record_call(s3.list_objects_v2(Bucket="things", Prefix="a"))
    record_call(s3.copy_object(Bucket="things", Key="c", CopySource={"Bucket": "things", "Key": "a b/ü"}))
    record_call(s3.create_multipart_upload(Bucket="things", Key="m"))
    record_call(s3.delete_objects(Bucket="things", Delete={"Objects": [{"Key": "c"}]}))
    record_call(s3.list_buckets())
    assert operations == [
        ("PutObject", "s3:PutObject", "things/a b/ü"),
        ("HeadObject", "s3:GetObject", "things/a b/ü"),
        ("ListObjectsV2", "s3:ListBucket", "things"),
        ("CopyObject", "s3:PutObject", "things/c", ("s3:GetObject", "things/a b/ü")),
        ("CreateMultipartUpload", "s3:PutObject", "things/m"),
        ("DeleteObjects", "s3:DeleteObject", "things/*"),
        ("ListBuckets", "s3:ListAllMyBuckets", "*"),
    ]


def test_calls_of_a_pipeline_have_its_role(endpoint: LoggedEndpoint) -> None:
    sagemaker = endpoint.client("sagemaker")
    arguments = {
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": "image:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["true"],
        },
        "OutputDataConfig": {"S3OutputPath": f"s3://{endpoint.info.bucket}/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "Tags": [{"Key": "team", "Value": "a"}],
    }
    steps = [{"Name": "Train", "Type": "Training", "Arguments": arguments}]
    role = f"arn:aws:iam::{ACCOUNT}:role/for/pipelines"
    definition = json.dumps({"Version": "2020-12-01", "Steps": steps})
    sagemaker.create_pipeline(PipelineName="one", PipelineDefinition=definition, RoleArn=role)
    arn = sagemaker.start_pipeline_execution(PipelineName="one")["PipelineExecutionArn"]
    deadline = time.monotonic() + 30
    while sagemaker.describe_pipeline_execution(PipelineExecutionArn=arn)["PipelineExecutionStatus"] in (
        "Executing",
        "Starting",
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    create_call, *describe_calls = [call for call in endpoint.calls() if call.via == "pipelines"]
    job = create_call.needs[0].resource
    assert job.startswith(f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/pipelines-{arn[-12:]}-train-")
    assert create_call.needs == (
        IamPermission("sagemaker:CreateTrainingJob", job),
        IamPermission("iam:PassRole", ROLE),
        IamPermission("sagemaker:AddTags", job),
    )
    assert (create_call.caller, create_call.status) == (
        f"arn:aws:sts::{ACCOUNT}:assumed-role/pipelines/SageMaker",
        200,
    )
    assert {need for call in describe_calls for need in call.needs} == {
        IamPermission("sagemaker:DescribeTrainingJob", job)
    }


def test_calls_with_a_rejected_signature_are_not_logged(endpoint: LoggedEndpoint) -> None:
    endpoint.client("sts").get_caller_identity()
    with pytest.raises(ClientError):
        endpoint.client("logs", aws_access_key_id="AKIAX", aws_secret_access_key="x").describe_log_groups()
    assert endpoint.last().operation == "GetCallerIdentity"


def test_the_call_log_is_off_by_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a background endpoint, where a relative path is relative to the starter's directory."""
    monkeypatch.chdir(home.parent)
    info = background_endpoint.start_endpoint(home, isolation="plain")
    background_endpoint.stop_endpoint(home)
    assert [path.name for path in home.parent.iterdir()] == ["home"]
    monkeypatch.setenv(CALL_LOG_VARIABLE, "calls.jsonl")
    info = background_endpoint.start_endpoint(home, isolation="plain")
    endpoint = LoggedEndpoint(info, home.parent / "calls.jsonl")
    endpoint.client("sts").get_caller_identity()
    background_endpoint.stop_endpoint(home)
    assert endpoint.last().caller == f"arn:aws:iam::{ACCOUNT}:root"


def test_an_unwritable_call_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match=r"call log .* cannot be written: No such file or directory"):
        Endpoint(
            tmp_path / "home", isolation="plain", settings=Settings(call_log=str(tmp_path / "no" / "calls"))
        ).start()


@pytest.mark.parametrize("service", ["secretsmanager", "stepfunctions", "sns"])
def test_without_moto_its_services_name_the_extra(
    endpoint: LoggedEndpoint, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has each protocol's form: JSON 1.1 and 1.0, and the query protocol's XML."""
    monkeypatch.setattr(forwarder, "PACKAGES", ("a_package_of_the_extra",))
    list_operations = {
        "secretsmanager": "list_secrets",
        "stepfunctions": "list_state_machines",
        "sns": "list_topics",
    }
    with pytest.raises(
        ClientError, match=r"a_package_of_the_extra is not .* pip install '.\[moto\]'"
    ) as raised:
        getattr(endpoint.client(service), list_operations[service])()
    assert raised.value.response["Error"]["Code"] == "UnknownOperationException"
    assert endpoint.last().error == "UnknownOperationException"
