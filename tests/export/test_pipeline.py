"""A chain as a SageMaker pipeline: its definition, rejected jobs, and an execution."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from smlaunch.contract.run_names import TAG_ATTEMPT, TAG_RUN, TAG_SEGMENT
from smlaunch.errors import JobError
from smlaunch.export.pipeline import DEFINITION_FILE, export_pipeline
from smlaunch.export.pipeline_steps import FINISHED_METRIC
from smlaunch.job.model import Checkpoints, Compute, Job, Limits
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.fault_injection import FaultPlan, HostLost
from smlaunch.local.pipelines import pipeline_definition as endpoint_reader
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import prepare_export
from smlaunch.runs.plan_upload import upload_plan_files
from tests.export.jobs import (
    CAPPED,
    CHAIN,
    DIFFERENT,
    DIRECT,
    LIMITS,
    PROCESSING,
    RETRIED,
    SINGLE,
    SPOT,
    plan_of,
)

GOLDEN = Path(__file__).parent / "pipeline.json"


def definition_text(job: Mapping[str, Any]) -> str:
    return export_pipeline(plan_of(job))[DEFINITION_FILE]


def steps_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all steps, each before the steps of its branches."""
    for step in document.get("Steps", document.get("ElseSteps", ())):
        yield step
        yield from steps_of(step["Arguments"])


def test_the_same_job_gives_the_same_bytes() -> None:
    assert definition_text(CHAIN) == definition_text(CHAIN) == GOLDEN.read_text()


@pytest.mark.parametrize("job", [CHAIN, DIRECT, SINGLE])
def test_the_endpoint_finds_nothing_wrong_with_it(job: Mapping[str, Any]) -> None:
    assert endpoint_reader.parse_definition(definition_text(job)).steps["Segment-1"].retry_policies


def test_a_chain_is_unrolled_to_its_last_second() -> None:
    steps = list(steps_of(json.loads(definition_text(CHAIN))))
    assert [step["Name"] for step in steps] == [
        *("Segment-1", "Finished-1", "Segment-2", "Finished-2", "Segment-3", "Finished-3"),
        "Limit",
    ]
    jobs = [step["Arguments"] for step in steps if step["Type"] == "Training"]
    limits = [job["StoppingCondition"]["MaxRuntimeInSeconds"] for job in jobs]
    assert limits == [24 * 3600, 24 * 3600, 12 * 3600]
    margins = [
        limit - int(job["Environment"]["SMLAUNCH_STOP_AFTER"])
        for limit, job in zip(limits, jobs, strict=True)
    ]
    assert len(set(margins)) == 1 and margins[0] > 0
    assert all("TrainingJobName" not in job for job in jobs)
    assert [job["Environment"]["SMLAUNCH_SEGMENT"] for job in jobs] == ["1", "2", "3"]
    assert steps[-1]["Arguments"]["ErrorMessage"].startswith("smlaunch.LimitReached: ")


def test_a_run_of_one_job_is_one_step_without_a_question() -> None:
    (step,) = json.loads(definition_text(SINGLE))["Steps"]
    assert "MetricDefinitions" not in step["Arguments"]["AlgorithmSpecification"]
    assert [policy["ExceptionType"][0] for policy in step["RetryPolicies"]] == [
        "Step.SERVICE_FAULT",
        "SageMaker.RESOURCE_LIMIT",
    ]


def test_a_processing_job_is_a_processing_step() -> None:
    (step,) = json.loads(definition_text(PROCESSING))["Steps"]
    assert step["Type"] == "Processing" and "ProcessingJobName" not in step["Arguments"]
    (output,) = step["Arguments"]["ProcessingOutputConfig"]["Outputs"]
    assert {"Get": "Execution.PipelineExecutionId"} in output["S3Output"]["S3Uri"]["Std:Join"]["Values"]
    assert (
        endpoint_reader.parse_definition(definition_text(PROCESSING)).steps["Segment-1"].type == "Processing"
    )


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (SPOT, "compute.on_demand_fallback"),
        (DIFFERENT, "segments"),
        (CAPPED, "limits.max_cost"),
        (RETRIED, "limits.attempts"),
        ({**CHAIN, "limits": {**LIMITS, "max_runtime": "150h", "segment": "1h"}}, "limits.segment"),
    ],
)
def test_what_a_pipeline_has_no_word_for_is_refused_by_name(job: Mapping[str, Any], field: str) -> None:
    with pytest.raises(JobError) as raised:
        definition_text(job)
    assert [problem.path for problem in raised.value.problems] == [field]


def test_what_no_flow_can_do_hides_nothing_else() -> None:
    odd = {"name.$": 1}
    with pytest.raises(JobError) as raised:
        definition_text({**RETRIED, "hyperparameters": odd})
    paths = [problem.path for problem in raised.value.problems]
    assert paths == ["hyperparameters.name.$", "limits.attempts"]


SCRIPT = """
import os, pathlib, time
count_file = pathlib.Path(os.environ["SMLAUNCH_CHECKPOINTS"], "count")
count = int(count_file.read_text()) + 1 if count_file.exists() else 1
print("segment", os.environ["SMLAUNCH_SEGMENT"], "of", os.environ["SMLAUNCH_RUN"], "begins with", count)
if count < 3:
    while not os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]):
        time.sleep(0.05)
count_file.write_text(str(count))
"""
FAULTS = FaultPlan(faults=(HostLost(after=0, jobs="pipelines-*-Segment-2-a*"),))
"""The first attempt of the second segment loses its host, before it has printed anything."""

SETTINGS = Settings(checkpoint_sync_seconds=0.2, close_grace_seconds=1, faults=FAULTS)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[EndpointInfo]:
    with Endpoint(tmp_path / "home", isolation="plain", settings=SETTINGS) as info:
        yield info


def test_three_segments_run_and_the_rest_does_not(endpoint: EndpointInfo, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SCRIPT)
    target = Target.endpoint(
        endpoint.url,
        endpoint.region,
        endpoint.access_key,
        endpoint.secret_key,
        account=endpoint.account,
        role=endpoint.role_arn,
        bucket=endpoint.bucket,
    )
    job = Job(
        entry=str(tmp_path / "src" / "train.py"),
        compute=Compute(instance_type="ml.m5.large"),
        limits=Limits(max_runtime="40s", segment="10s"),  # at load 15 a host takes seconds to start
        checkpoints=Checkpoints(),
    )
    prepared = prepare_export(job, target)
    definition = export_pipeline(prepared.plan, time_scale=target.polling.time_scale)[DEFINITION_FILE]
    upload_plan_files(prepared.plan, prepared.source, target, print)
    sagemaker = boto3.Session(endpoint.access_key, endpoint.secret_key, region_name=endpoint.region).client(
        "sagemaker", endpoint_url=endpoint.url
    )
    sagemaker.create_pipeline(PipelineName="chain", PipelineDefinition=definition, RoleArn=endpoint.role_arn)
    execution = sagemaker.start_pipeline_execution(PipelineName="chain")["PipelineExecutionArn"]
    deadline = time.monotonic() + 120
    status = "Executing"
    while status == "Executing" and time.monotonic() < deadline:
        time.sleep(0.1)
        status = sagemaker.describe_pipeline_execution(PipelineExecutionArn=execution)[
            "PipelineExecutionStatus"
        ]
    steps = sagemaker.list_pipeline_execution_steps(
        PipelineExecutionArn=execution, SortOrder="Ascending", MaxResults=100
    )["PipelineExecutionSteps"]
    assert status == "Succeeded", steps
    outcomes = {step["StepName"]: step["Metadata"].get("Condition", {}).get("Outcome") for step in steps}
    assert outcomes == {
        "Segment-1": None,
        "Finished-1": "False",
        "Segment-2": None,
        "Finished-2": "False",
        "Segment-3": None,
        "Finished-3": "True",
    }
    run = execution.rpartition("/")[2]
    jobs = sagemaker.list_training_jobs(SortBy="CreationTime", SortOrder="Ascending")["TrainingJobSummaries"]
    job_tags = []
    for one in jobs:
        tags = sagemaker.list_tags(ResourceArn=one["TrainingJobArn"])["Tags"]
        named = {tag["Key"]: tag["Value"] for tag in tags}
        job_tags.append((named[TAG_RUN], named[TAG_SEGMENT], named[TAG_ATTEMPT]))
        described = sagemaker.describe_training_job(TrainingJobName=one["TrainingJobName"])
        metrics = {metric["MetricName"] for metric in described.get("FinalMetricDataList", ())}
        assert (FINISHED_METRIC in metrics) == (described["TrainingJobStatus"] == "Completed")
    assert job_tags == [(run, str(segment), "1") for segment in (1, 2, 2, 3)]
    assert [one["TrainingJobStatus"] for one in jobs] == ["Completed", "Failed", "Completed", "Completed"]
    s3 = boto3.Session(endpoint.access_key, endpoint.secret_key, region_name=endpoint.region).client(
        "s3", endpoint_url=endpoint.url
    )
    prefix = described["CheckpointConfig"]["S3Uri"].removeprefix(f"s3://{endpoint.bucket}/")
    assert f"/{run}/" in prefix
    count = s3.get_object(Bucket=endpoint.bucket, Key=f"{prefix.rstrip('/')}/count")["Body"].read()
    assert count == b"3", "each segment went on from the one before, also the one that was tried again"


def test_the_command_writes_it_and_refuses_a_name(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trains')\n")
    words = ["export", "pipeline", "train.py", "--local", "--no-stage", "--instance-type", "ml.m5.large"]
    command = [sys.executable, "-m", "smlaunch.cli.main", *words]
    result = subprocess.run([*command, "--out", "flow"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"flow/{DEFINITION_FILE}\n"
    assert json.loads((tmp_path / "flow" / DEFINITION_FILE).read_text())["Steps"][0]["Name"] == "Segment-1"
    named = subprocess.run([*command, "--name", "mine"], cwd=tmp_path, capture_output=True, text=True)
    assert (named.returncode, named.stdout) == (2, "")
    assert "name: every execution of a pipeline is a new run" in named.stderr
