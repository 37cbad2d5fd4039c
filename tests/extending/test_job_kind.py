"""A kind of job from one file: the example of docs/extending.md, a search over one hyperparameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.api.job_kinds import JOB_KINDS, TRAINING, JobKind, job_kind_of, put_member, register_job_kind
from smlaunch.api.request_builder import InputChannel, JobParameters, build_job_request
from smlaunch.api.validation.request_check import check_request
from smlaunch.api.validation.violation import Violation
from smlaunch.aws.botocore_client import SageMakerControlPlane
from smlaunch.planner.job_field_names import job_field_of_member

MAX_JOBS = ("HyperParameterTuningJobConfig", "ResourceLimits", "MaxNumberOfTrainingJobs")


def check_search(request: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a violation of a rule that the API's model does not have."""
    limits = request["HyperParameterTuningJobConfig"]["ResourceLimits"]
    if limits["MaxParallelTrainingJobs"] > limits["MaxNumberOfTrainingJobs"]:
        text = "MaxParallelTrainingJobs must not be more than MaxNumberOfTrainingJobs"
        yield Violation(MAX_JOBS, limits["MaxNumberOfTrainingJobs"], "service", text)


SEARCH = JobKind(
    "HyperParameterTuning",
    members={
        "name": ("HyperParameterTuningJobName",),
        "method": ("HyperParameterTuningJobConfig", "Strategy"),
        "max_jobs": MAX_JOBS,
        "max_parallel": ("HyperParameterTuningJobConfig", "ResourceLimits", "MaxParallelTrainingJobs"),
        "tags": ("Tags",),
        # A job of the search is a training job, less what this object does not have.
        **{
            field: ("TrainingJobDefinition", *path)
            for field, path in TRAINING.members.items()
            if field not in ("name", "tags", "entrypoint", "args", "hyperparameters")
        },
        "hyperparameters": ("TrainingJobDefinition", "StaticHyperParameters"),
    },
    input_members=TRAINING.input_members,
    input_modes=TRAINING.input_modes,
    resources=("TrainingJobDefinition", "ResourceConfig"),
    constants={"input_mode": "File", "method": "Random", "max_jobs": 4, "max_parallel": 2},
    check_rules=check_search,
)

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


@pytest.fixture(autouse=True)
def kind_in_table() -> Iterator[None]:
    register_job_kind(SEARCH)
    yield
    del JOB_KINDS[SEARCH.create_operation]


def test_its_request_is_built_and_valid() -> None:
    request = build_job_request(SEARCH, PARAMETERS)
    assert check_request("CreateHyperParameterTuningJob", request) == []
    assert job_kind_of(request) is SEARCH
    definition = request["TrainingJobDefinition"]
    assert definition["StaticHyperParameters"] == {"epochs": "3"}
    training_request = build_job_request(TRAINING, PARAMETERS)
    for member in ("InputDataConfig", "OutputDataConfig", "ResourceConfig", "StoppingCondition", "RoleArn"):
        assert definition[member] == training_request[member]


def test_its_own_rule_is_checked() -> None:
    request = build_job_request(SEARCH, PARAMETERS)
    put_member(request, MAX_JOBS, 1)
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
def test_messages_name_what_the_user_wrote(path: tuple[str | int, ...], field: str) -> None:
    assert job_field_of_member(path, build_job_request(SEARCH, PARAMETERS)) == field


def test_its_names() -> None:
    assert (SEARCH.noun, SEARCH.arn_resource) == ("hyper parameter tuning job", "hyper-parameter-tuning-job")
    assert SEARCH.list_operation == "ListHyperParameterTuningJobs"
    with pytest.raises(ValueError, match="already"):
        register_job_kind(SEARCH)


class Client:
    """A client of a service with one job, of this kind."""

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
            **build_job_request(SEARCH, PARAMETERS),
        }


def test_a_run_finds_its_jobs() -> None:
    description = SageMakerControlPlane(Client()).describe_job("digits")
    assert description["TrainingJobStatus"] == description["SecondaryStatus"] == "Completed"
    assert description["ResourceConfig"]["InstanceType"] == "ml.m5.xlarge"
    assert description["OutputDataConfig"] == {"S3OutputPath": "s3://bucket/out/"}
