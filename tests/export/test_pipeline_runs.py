"""A pipeline of several jobs runs on the local endpoint; each job reads the outputs of the one before."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from smlaunch.cli.export_pipeline import prepare_steps
from smlaunch.connection.open_connection import target_of_endpoint
from smlaunch.errors import JobError
from smlaunch.export.pipeline import DEFINITION_FILE
from smlaunch.export.pipeline_file import read_pipeline_file
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.endpoint_settings import Settings
from smlaunch.runs.deploy_pipeline import deploy_pipeline
from smlaunch.runs.plan_upload import upload_plan_files
from tests.export.pipeline_jobs import RAW, index_steps, report, steps, weights_of, write

SETTINGS = Settings(checkpoint_sync_seconds=0.2, close_grace_seconds=1)
CHAIN = ("train-Segment-1", "train-Segment-2", "train-Segment-3")


class PipelineHarness:
    def __init__(self, info: EndpointInfo, folder: Path) -> None:
        self.info = info
        self.folder = folder
        self.target = target_of_endpoint(info)
        session = boto3.Session(info.access_key, info.secret_key, region_name=info.region)
        self.sagemaker = session.client("sagemaker", endpoint_url=info.url)
        self.s3 = session.client("s3", endpoint_url=info.url)
        self.s3.create_bucket(Bucket="mine")
        self.s3.put_object(Bucket="mine", Key="raw/part", Body=RAW.encode())

    def definition(self, **changes: Any) -> str:
        """Return the definition of the pipeline of ``steps``, after staging its jobs' files."""
        wanted = read_pipeline_file(write(self.folder, steps("s3://mine/raw/", **changes)))
        jobs, files = prepare_steps(wanted, self.target)
        for job in jobs:
            upload_plan_files(job.plan, job.source, self.target, lambda _: None)
        return files[DEFINITION_FILE]

    def deploy(self, **changes: Any) -> str:
        deployment = deploy_pipeline(self.target, "churn", self.definition(**changes), self.info.role_arn)
        return deployment.change

    def execute(self) -> tuple[str, dict[str, dict[str, Any]]]:
        """Run an execution; return its status and its steps by name."""
        execution = self.sagemaker.start_pipeline_execution(PipelineName="churn")["PipelineExecutionArn"]
        deadline = time.monotonic() + 120
        status = "Executing"
        while status == "Executing" and time.monotonic() < deadline:
            time.sleep(0.1)
            description = self.sagemaker.describe_pipeline_execution(PipelineExecutionArn=execution)
            status = description["PipelineExecutionStatus"]
        answer = self.sagemaker.list_pipeline_execution_steps(PipelineExecutionArn=execution, MaxResults=100)
        return status, index_steps(answer)

    def output(self, step: dict[str, Any]) -> str:
        """Return the URI of a processing job's output."""
        arn = step["Metadata"]["ProcessingJob"]["Arn"]
        rows = self.sagemaker.list_processing_jobs(MaxResults=100)["ProcessingJobSummaries"]
        (name,) = [row["ProcessingJobName"] for row in rows if row["ProcessingJobArn"] == arn]
        job = self.sagemaker.describe_processing_job(ProcessingJobName=name)
        uri: str = job["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
        return uri

    def read(self, uri: str) -> bytes:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        content: bytes = self.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def training(self, step: dict[str, Any]) -> dict[str, Any]:
        arn = step["Metadata"]["TrainingJob"]["Arn"]
        rows = self.sagemaker.list_training_jobs(MaxResults=100)["TrainingJobSummaries"]
        (name,) = [row["TrainingJobName"] for row in rows if row["TrainingJobArn"] == arn]
        described: dict[str, Any] = self.sagemaker.describe_training_job(TrainingJobName=name)
        return described


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineHarness]:
    folder = tmp_path_factory.mktemp("pipeline")
    with Endpoint(folder / "home", isolation="plain", settings=SETTINGS) as info:
        yield PipelineHarness(info, folder)


def test_what_one_job_leaves_comes_to_the_next(harness: PipelineHarness) -> None:
    """In a second execution the first job's result is cached, and the second job trains again."""
    assert harness.deploy() == "created"
    status, first = harness.execute()
    assert status == "Succeeded", first
    assert {name for name in first if "Segment" in name} == set(CHAIN)
    assert first["train-Finished-3"]["Metadata"]["Condition"]["Outcome"] == "True"
    assert "train-Segment-4" not in first and "train-Limit" not in first
    evaluation = report(harness.read(harness.output(first["evaluate-At-3"]) + "report.json"))
    assert evaluation["weights"] == weights_of(2) and evaluation["metrics"] == {"same": 1.0}
    assert evaluation["run"].endswith("-evaluate")
    first_chain = [harness.training(first[name]) for name in CHAIN]
    # Only the last segment printed the metric; the others have a default that fails the requirement.
    metrics = [{row["MetricName"]: row["Value"] for row in job["FinalMetricDataList"]} for job in first_chain]
    assert [row["smlaunch:share_seen"] for row in metrics] == pytest.approx([-0.01, -0.01, 1])
    assert [row["smlaunch:finished"] for row in metrics] == [0, 0, 1]
    checkpoint_uris = {job["CheckpointConfig"]["S3Uri"] for job in first_chain}
    assert len(checkpoint_uris) == 1 and "-train/checkpoints" in checkpoint_uris.pop()

    assert harness.deploy() == "unchanged"
    status, second = harness.execute()
    assert status == "Succeeded", second
    assert second["prepare"]["CacheHitResult"]["SourcePipelineExecutionArn"]
    assert harness.output(second["prepare"]) == harness.output(first["prepare"])
    assert {name for name in second if "Segment" in name} == set(CHAIN)
    second_chain = [harness.training(second[name]) for name in CHAIN]
    assert second_chain[0]["CheckpointConfig"] != first_chain[0]["CheckpointConfig"]
    assert second_chain[0]["TrainingJobArn"] != first_chain[0]["TrainingJobArn"]


def test_another_job_is_not_the_cached_one_and_a_requirement_that_does_not_hold_ends_it(
    harness: PipelineHarness,
) -> None:
    harness.deploy()
    assert harness.deploy(factor=3, least=2) == "updated"
    status, steps_by_name = harness.execute()
    assert status == "Failed"
    assert "CacheHitResult" not in steps_by_name["prepare"]
    rows = json.loads(harness.read(harness.output(steps_by_name["prepare"]) + "rows/rows.json"))
    assert rows == [3 * int(number) for number in RAW.split()]
    assert steps_by_name["train-Unmet-1-At-3"]["Metadata"]["Condition"]["Outcome"] == "True"
    unmet = steps_by_name["train-Fail-1-At-3"]["Metadata"]["Fail"]["ErrorMessage"]
    assert unmet == "step train: share_seen >= 2 is required, and does not hold"
    assert not [name for name in steps_by_name if name.startswith("evaluate")]


def test_a_pipeline_of_others_is_left_alone(harness: PipelineHarness) -> None:
    foreign = json.dumps(
        {
            "Version": "2020-12-01",
            "Steps": [{"Name": "No", "Type": "Fail", "Arguments": {"ErrorMessage": ""}}],
        }
    )
    role = harness.info.role_arn
    harness.sagemaker.create_pipeline(PipelineName="theirs", PipelineDefinition=foreign, RoleArn=role)
    with pytest.raises(JobError, match="was not exported by smlaunch"):
        deploy_pipeline(harness.target, "theirs", harness.definition(), role)
    assert harness.sagemaker.describe_pipeline(PipelineName="theirs")["PipelineDefinition"] == foreign
