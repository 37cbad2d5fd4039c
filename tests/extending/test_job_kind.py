"""A kind of job from one file: the example of docs/extending.md, a search over hyperparameters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.api.job_kinds import JOB_KINDS, TRAINING, JobKind, job_kind_of, register_job_kind, set_at_path
from smlaunch.api.request_builder import InputChannel, JobParameters, build_job_request
from smlaunch.api.validation.request_check import check_request
from smlaunch.aws.botocore_client import SageMakerControlPlane
from smlaunch.aws.interfaces import CallError
from smlaunch.planner.request_problems import job_field_of_member

PARAMETERS = JobParameters(
    name="digits",
    role="arn:aws:iam::123456789012:role/SageMaker",
    image="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
    has_runtime=False,
    hyperparameters={"epochs": 3},
    channels=(InputChannel("train", "s3://bucket/digits/"),),
    output_uri="s3://bucket/out/",
    instance_type="ml.m5.xlarge",
    host_count=1,
    volume_gb=30,
    max_runtime_seconds=3600,
    tags={"team": "vision"},
)


@pytest.fixture
def search(import_example: Callable[[str], Any]) -> JobKind:
    kind = import_example("search_kind.py").SEARCH
    assert isinstance(kind, JobKind)
    return kind


def test_its_request_is_built_and_valid(search: JobKind) -> None:
    request = build_job_request(search, PARAMETERS)
    assert check_request("CreateHyperParameterTuningJob", request) == []
    assert job_kind_of(request) is search
    definition = request["TrainingJobDefinition"]
    assert definition["StaticHyperParameters"] == {"epochs": "3"}
    training_request = build_job_request(TRAINING, PARAMETERS)
    for member in ("InputDataConfig", "OutputDataConfig", "ResourceConfig", "StoppingCondition", "RoleArn"):
        assert definition[member] == training_request[member]


def test_its_own_rule_is_checked(search: JobKind) -> None:
    request = build_job_request(search, PARAMETERS)
    set_at_path(request, search.request_path_by_field["max_jobs"], 1)
    (violation,) = check_request("CreateHyperParameterTuningJob", request)
    assert "must not be more" in violation.to_problem().message


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (("TrainingJobDefinition", "InputDataConfig", 0, "InputMode"), "inputs.train.mode"),
        (("TrainingJobDefinition", "StaticHyperParameters", "epochs"), "hyperparameters.epochs"),
        (("Tags", 0, "Value"), "tags.team"),
        (("TrainingJobDefinition", "ResourceConfig", "InstanceCount"), "compute.hosts"),
    ],
)
def test_messages_name_what_the_user_wrote(search: JobKind, path: tuple[str | int, ...], field: str) -> None:
    assert job_field_of_member(path, build_job_request(search, PARAMETERS)) == field


def test_its_names(search: JobKind) -> None:
    assert (search.noun, search.arn_resource) == ("hyper parameter tuning job", "hyper-parameter-tuning-job")
    assert search.list_operation == "ListHyperParameterTuningJobs"
    with pytest.raises(ValueError, match="already"):
        register_job_kind(search)


class Client:
    """A client of a service with one job, of this kind."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request

    def describe_training_job(self, **name: str) -> Any:
        error = {"Code": "ValidationException", "Message": "Requested resource not found."}
        raise ClientError({"Error": error}, "DescribeTrainingJob")  # type: ignore[arg-type]

    describe_processing_job = describe_training_job

    def describe_hyper_parameter_tuning_job(self, HyperParameterTuningJobName: str) -> Any:  # noqa: N803
        return {
            "HyperParameterTuningJobName": HyperParameterTuningJobName,
            "HyperParameterTuningJobArn": "arn:aws:sagemaker:::hyper-parameter-tuning-job/digits",
            "HyperParameterTuningJobStatus": "Completed",
            "CreationTime": 1,
            **self.request,
        }


def test_a_run_finds_its_jobs(search: JobKind) -> None:
    client = Client(build_job_request(search, PARAMETERS))
    description = SageMakerControlPlane(client).describe_job("digits")
    assert description["TrainingJobStatus"] == description["SecondaryStatus"] == "Completed"
    assert description["ResourceConfig"]["InstanceType"] == "ml.m5.xlarge"
    assert description["OutputDataConfig"] == {"S3OutputPath": "s3://bucket/out/"}


def test_a_run_finds_its_jobs_where_its_package_is_installed(
    search: JobKind, install_example: Callable[[str, str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(build_job_request(search, PARAMETERS))
    monkeypatch.setattr(JOB_KINDS, "_registered", {})
    monkeypatch.delitem(sys.modules, "search_kind")
    with pytest.raises(CallError):
        SageMakerControlPlane(client).describe_job("digits")
    install_example("search_kind.py", "smlaunch.job_kinds", f"{search.create_operation} = search_kind:SEARCH")
    assert SageMakerControlPlane(client).describe_job("digits")["TrainingJobStatus"] == "Completed"
