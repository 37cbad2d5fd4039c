"""The SageMaker operations of training jobs: names, lists, tags, rejections, and shapes of the API model."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import botocore
import pytest
from botocore.exceptions import ClientError

from smlaunch.api.job_kinds import PROCESSING, TRAINING
from smlaunch.local import api_support, request_rejections
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.local.client import EndpointClient


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointClient]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain", settings=Settings()) as info:
        yield EndpointClient(info)


@pytest.fixture(scope="module")
def listed_names(client: EndpointClient) -> list[str]:
    """Five ended jobs: four completed, the last one failed."""
    names = [f"listed-{number}" for number in range(5)]
    for name in names:
        client.run(name, "sys.exit(1)" if name.endswith("4") else "")
    return names


def job_names(summaries: list[dict[str, Any]]) -> list[str]:
    return [summary["TrainingJobName"] for summary in summaries]


@pytest.mark.parametrize("sort_by", ["Name", "CreationTime", "Status"])
@pytest.mark.parametrize("order", ["Ascending", "Descending"])
def test_pages_join_to_the_complete_list(
    client: EndpointClient, listed_names: list[str], sort_by: str, order: str
) -> None:
    pages = client.sagemaker.get_paginator("list_training_jobs").paginate(
        NameContains="listed-", SortBy=sort_by, SortOrder=order, PaginationConfig={"PageSize": 2}
    )
    sizes, summaries = [], []
    for page in pages:
        sizes.append(len(page["TrainingJobSummaries"]))
        summaries += page["TrainingJobSummaries"]
    assert sizes == [2, 2, 1]
    assert sorted(job_names(summaries)) == listed_names
    key = {"Name": "TrainingJobName", "CreationTime": "CreationTime", "Status": "TrainingJobStatus"}[sort_by]
    values = [summary[key] for summary in summaries]
    assert values == sorted(values, reverse=order == "Descending")


def test_filters(client: EndpointClient, listed_names: list[str]) -> None:
    def list_names(**filters: Any) -> list[str]:
        answer = client.sagemaker.list_training_jobs(NameContains="listed-", **filters)
        return job_names(answer["TrainingJobSummaries"])

    assert list_names(StatusEquals="Failed") == ["listed-4"]
    long_ago, far_ahead = datetime(2020, 1, 1), datetime(2120, 1, 1)
    for field in ("CreationTime", "LastModifiedTime"):
        assert sorted(list_names(**{f"{field}After": long_ago, f"{field}Before": far_ahead})) == listed_names
        assert list_names(**{f"{field}Before": long_ago}) == list_names(**{f"{field}After": far_ahead}) == []
    assert list_names(WarmPoolStatusEquals="Available") == []
    with pytest.raises(ClientError, match="pagination token"):
        list_names(NextToken="nonsense")


def test_responses_have_the_members_of_the_model(client: EndpointClient) -> None:
    request = client.request("shape", "", HyperParameters={"a": "b"}, Tags=[{"Key": "k", "Value": "v"}])
    client.sagemaker.create_training_job(**request)
    client.wait("shape")
    raw: dict[str, Any] = {}
    client.sagemaker.meta.events.register(
        "after-call.sagemaker.DescribeTrainingJob",
        lambda http_response, **_: raw.update(json.loads(http_response.content)),
        unique_id="raw",
    )
    job = client.describe("shape")
    client.sagemaker.meta.events.unregister("after-call.sagemaker.DescribeTrainingJob", unique_id="raw")
    unknown = raw.keys() - model()["shapes"]["DescribeTrainingJobResponse"]["members"].keys()
    assert unknown == set()
    for member in (
        "HyperParameters",
        "AlgorithmSpecification",
        "InputDataConfig",
        "ResourceConfig",
        "RoleArn",
    ):
        assert job[member] == request[member]
    assert job["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400}
    assert job["OutputDataConfig"] == {
        **request["OutputDataConfig"],
        "CompressionType": "GZIP",
        "KmsKeyId": "",
    }
    assert (
        job["CreationTime"] <= job["TrainingStartTime"] <= job["TrainingEndTime"] <= job["LastModifiedTime"]
    )
    assert job["BillableTimeInSeconds"] == job["TrainingTimeInSeconds"] >= 1


def test_tags(client: EndpointClient) -> None:
    arn = client.create("tagged", "", Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    client.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "b", "Value": "3"}, {"Key": "c", "Value": ""}])
    pages = client.sagemaker.get_paginator("list_tags").paginate(ResourceArn=arn)
    tags = {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
    assert tags == {"a": "1", "b": "3", "c": ""}
    many = [{"Key": f"k{number}", "Value": ""} for number in range(49)]
    with pytest.raises(ClientError, match="50 tags"):
        client.sagemaker.add_tags(ResourceArn=arn, Tags=many)


def test_names(client: EndpointClient) -> None:
    arn = client.create("taken", "")
    assert arn == "arn:aws:sagemaker:us-east-1:000000000000:training-job/taken"
    with pytest.raises(client.sagemaker.exceptions.ResourceInUse, match="must be unique"):
        client.create("taken", "")
    for call in (client.sagemaker.describe_training_job, client.sagemaker.stop_training_job):
        with pytest.raises(ClientError, match=r"Requested resource not found\.") as raised:
            call(TrainingJobName="never-made")
        assert raised.value.response["Error"]["Code"] == "ValidationException"


def test_job_names_are_unique_per_region(client: EndpointClient) -> None:
    client.create("everywhere", "")
    other = EndpointClient(replace(client.info, region="eu-west-1"))
    arn = other.create("everywhere", "print(os.environ['AWS_REGION'])")
    assert arn.startswith("arn:aws:sagemaker:eu-west-1:")
    other.wait("everywhere")
    assert other.printed_lines("everywhere")["algo-1"] == ["eu-west-1"]


def test_all_rejected_fields_are_reported_together(client: EndpointClient) -> None:
    request = client.request("refused", "")
    request["CheckpointConfig"] = {"S3Uri": "s3://tests/x", "LocalPath": "/home/me/ckpt"}
    request["VpcConfig"] = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    request["InputDataConfig"].append(
        {
            "ChannelName": "efs",
            "DataSource": {
                "FileSystemDataSource": {
                    "FileSystemId": "fs-01234567890123456",
                    "FileSystemAccessMode": "ro",
                    "FileSystemType": "EFS",
                    "DirectoryPath": "/x",
                }
            },
        }
    )
    with pytest.raises(ClientError) as raised:
        client.sagemaker.create_training_job(**request)
    error = raised.value.response["Error"]
    assert error["Code"] == "ValidationException"
    for field in (
        "CheckpointConfig.LocalPath: /home/me/ckpt",
        "InputDataConfig[1].DataSource.FileSystemDataSource: EFS and FSx",
    ):
        assert field in error["Message"]
    with pytest.raises(ClientError, match="not found"):
        client.describe("refused")


def test_recorded_fields_are_in_the_log(client: EndpointClient) -> None:
    vpc = {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    client.run("told", "", VpcConfig=vpc, EnableManagedSpotTraining=False)
    log_text = "\n".join(client.lines("told")["algo-1"])
    assert "VpcConfig: hosts use this machine's network" in log_text
    assert "EnableManagedSpotTraining" not in log_text


def test_the_support_matrix_has_every_field_of_the_request() -> None:
    known = set(fields("CreateTrainingJobRequest", ""))
    assert len(known) > 100
    for path in known:
        assert has_row_or_parent_row(path, api_support.TRAINING_JOB_SUPPORT), path
    for path in api_support.TRAINING_JOB_SUPPORT:
        assert path in known, f"{path} is no field of CreateTrainingJob"
    for path, row in api_support.TRAINING_JOB_SUPPORT.items():
        assert row.note or row.level == "supported", path


def test_rows_for_containers_differ_from_those_for_processes() -> None:
    for process_rows, container_rows in (
        (api_support.TRAINING_JOB_SUPPORT, api_support.support_rows(TRAINING, runs_images=True)),
        (api_support.PROCESSING_JOB_SUPPORT, api_support.support_rows(PROCESSING, runs_images=True)),
    ):
        assert container_rows.keys() == process_rows.keys()
        assert any(container_rows[path] != process_rows[path] for path in process_rows)
    request = {"AppSpecification": {"ImageUri": "image"}}
    assert [field for field, _ in request_rejections.processing_rejections(request)] == [
        "AppSpecification.ContainerEntrypoint"
    ]
    assert request_rejections.processing_rejections(request, runs_images=True) == []


def test_describe_returns_every_supported_or_recorded_field() -> None:
    from smlaunch.local.services.training_responses import DESCRIBED_MEMBERS

    described = model()["shapes"]["DescribeTrainingJobResponse"]["members"].keys()
    accepted = {
        path
        for path, row in api_support.TRAINING_JOB_SUPPORT.items()
        if "." not in path and row.level != "rejected"
    }
    assert (accepted & described) - {"TrainingJobName"} == set(DESCRIBED_MEMBERS)


def has_row_or_parent_row(path: str, rows: api_support.SupportTable) -> bool:
    """Return whether a dotted path, or a field above it, has a row."""
    return any(path == row_path or path.startswith(f"{row_path}.") for row_path in rows)


@cache
def model() -> dict[str, Any]:
    folder = Path(botocore.__file__).parent / "data" / "sagemaker" / "2017-07-24"
    with gzip.open(folder / "service-2.json.gz") as stream:
        document: dict[str, Any] = json.load(stream)
    return document


def fields(shape: str, above: str, visited: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the dotted paths of all members, through lists and structures."""
    summaries = model()["shapes"][shape]
    if summaries["type"] == "list":
        yield from fields(summaries["member"]["shape"], above, visited)
    for name, member in summaries.get("members", {}).items():
        path = f"{above}.{name}" if above else name
        yield path
        if member["shape"] not in visited:
            yield from fields(member["shape"], path, visited | {member["shape"]})
