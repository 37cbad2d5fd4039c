"""What the endpoint records of the calls that it answered, and what it says of services that are moto's."""

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
from smlaunch.local import standing
from smlaunch.local.call_log import Call, Need, read
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.moto import fallback
from smlaunch.local.settings import CALL_LOG_VARIABLE, Settings

ACCOUNT = "000000000000"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/trainer"


class Recorded:
    def __init__(self, info: EndpointInfo, path: Path) -> None:
        self.info = info
        self._path = path

    def client(self, service: str, **keys: str) -> Any:
        session = boto3.Session(self.info.access_key, self.info.secret_key, region_name="us-east-1")
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
        return session.client(service, endpoint_url=self.info.url, config=config, **keys)

    def calls(self) -> list[Call]:
        return read(self._path)

    def last(self) -> Call:
        return self.calls()[-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    home = tmp_path_factory.mktemp("calls")
    path = home / "calls.jsonl"
    with Endpoint(home / "home", isolation="plain", settings=Settings(call_log=str(path))) as info:
        yield Recorded(info, path)


def test_who_called_what_and_what_iam_would_have_to_allow(place: Recorded) -> None:
    keys = place.client("sts").assume_role(RoleArn=ROLE, RoleSessionName="tests")["Credentials"]
    assert place.last().needs == (Need("sts:AssumeRole", ROLE),)
    sagemaker = place.client(
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
    call = place.last()
    job = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/job-1"
    assert call.needs == (
        Need("sagemaker:CreateTrainingJob", job),
        Need("iam:PassRole", ROLE),
        Need("sagemaker:AddTags", job),
    )
    assert call.caller == f"arn:aws:sts::{ACCOUNT}:assumed-role/trainer/tests"
    assert (call.service, call.operation, call.region) == ("sagemaker", "CreateTrainingJob", "us-east-1")
    assert (call.status, call.error, call.via) == (400, "ValidationException", "")


def test_operations_on_objects_have_the_names_of_iam_s_actions(place: Recorded) -> None:
    s3 = place.client("s3")
    s3.create_bucket(Bucket="things")
    seen = []

    def called(_: Any) -> None:
        call = place.last()
        needs = [(need.action, need.resource.removeprefix("arn:aws:s3:::")) for need in call.needs]
        seen.append((call.operation, *needs[0], *needs[1:]))

    called(s3.put_object(Bucket="things", Key="a b/ü", Body=b"x"))
    called(s3.head_object(Bucket="things", Key="a b/ü"))
    called(s3.list_objects_v2(Bucket="things", Prefix="a"))
    called(s3.copy_object(Bucket="things", Key="c", CopySource={"Bucket": "things", "Key": "a b/ü"}))
    called(s3.create_multipart_upload(Bucket="things", Key="m"))
    called(s3.delete_objects(Bucket="things", Delete={"Objects": [{"Key": "c"}]}))
    called(s3.list_buckets())
    assert seen == [
        ("PutObject", "s3:PutObject", "things/a b/ü"),
        ("HeadObject", "s3:GetObject", "things/a b/ü"),
        ("ListObjectsV2", "s3:ListBucket", "things"),
        ("CopyObject", "s3:PutObject", "things/c", ("s3:GetObject", "things/a b/ü")),
        ("CreateMultipartUpload", "s3:PutObject", "things/m"),
        ("DeleteObjects", "s3:DeleteObject", "things/*"),
        ("ListBuckets", "s3:ListAllMyBuckets", "*"),
    ]


def test_what_a_pipeline_does_with_its_jobs_is_its_role_s(place: Recorded) -> None:
    sagemaker = place.client("sagemaker")
    arguments = {
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": "image:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["true"],
        },
        "OutputDataConfig": {"S3OutputPath": f"s3://{place.info.bucket}/out"},
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
    made, *looks = [call for call in place.calls() if call.via == "pipelines"]
    job = made.needs[0].resource
    assert job.startswith(f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/pipelines-{arn[-12:]}-train-")
    assert made.needs == (
        Need("sagemaker:CreateTrainingJob", job),
        Need("iam:PassRole", ROLE),
        Need("sagemaker:AddTags", job),
    )
    assert (made.caller, made.status) == (f"arn:aws:sts::{ACCOUNT}:assumed-role/pipelines/SageMaker", 200)
    assert {need for call in looks for need in call.needs} == {Need("sagemaker:DescribeTrainingJob", job)}


def test_a_call_with_a_wrong_key_is_nobody_s_and_not_recorded(place: Recorded) -> None:
    place.client("sts").get_caller_identity()
    with pytest.raises(ClientError):
        place.client("logs", aws_access_key_id="AKIAX", aws_secret_access_key="x").describe_log_groups()
    assert place.last().operation == "GetCallerIdentity"


def test_it_is_off_unless_the_variable_names_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a standing endpoint too, for which a relative name is the starter's."""
    monkeypatch.chdir(home.parent)
    info = standing.start(home, isolation="plain")
    standing.stop(home)
    assert [path.name for path in home.parent.iterdir()] == ["home"]
    monkeypatch.setenv(CALL_LOG_VARIABLE, "calls.jsonl")
    info = standing.start(home, isolation="plain")
    place = Recorded(info, home.parent / "calls.jsonl")
    place.client("sts").get_caller_identity()
    standing.stop(home)
    assert place.last().caller == f"arn:aws:iam::{ACCOUNT}:root"


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match=r"call log .* cannot be written: No such file or directory"):
        Endpoint(
            tmp_path / "home", isolation="plain", settings=Settings(call_log=str(tmp_path / "no" / "calls"))
        ).start()


@pytest.mark.parametrize("service", ["secretsmanager", "stepfunctions", "sns"])
def test_without_the_extra_its_services_say_how_to_have_it(
    place: Recorded, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each protocol's own form: JSON 1.1 and 1.0, and the query protocol's XML."""
    monkeypatch.setattr(fallback, "PACKAGES", ("a_package_of_the_extra",))
    asked = {"secretsmanager": "list_secrets", "stepfunctions": "list_state_machines", "sns": "list_topics"}
    with pytest.raises(
        ClientError, match=r"a_package_of_the_extra is not .* pip install 'smlaunch\[moto\]'"
    ) as raised:
        getattr(place.client(service), asked[service])()
    assert raised.value.response["Error"]["Code"] == "UnknownOperationException"
    assert place.last().error == "UnknownOperationException"
