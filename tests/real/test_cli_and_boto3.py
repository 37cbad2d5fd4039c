"""The AWS CLI and plain boto3, with its waiters and paginators: jobs of two hosts to every kind
of end, their lists and their logs."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import WaiterError

from tests.real.conftest import HERE, IMAGE, LOG_GROUP, RunningEndpoint, program, read_log

SCRIPT = HERE / "jobs" / "plain" / "main.py"


def request(endpoint: RunningEndpoint, name: str, end: str, max_runtime: int = 300) -> dict[str, Any]:
    def channel(channel: str, distribution: str) -> dict[str, Any]:
        source = {
            "S3DataType": "S3Prefix",
            "S3Uri": f"s3://{endpoint.bucket}/{name}/{channel}/",
            "S3DataDistributionType": distribution,
        }
        return {"ChannelName": channel, "DataSource": {"S3DataSource": source}}

    return {
        "TrainingJobName": name,
        "RoleArn": endpoint.role,
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "/opt/ml/input/data/code/main.py"],
        },
        "HyperParameters": {"end": end},
        "InputDataConfig": [channel("train", "ShardedByS3Key"), channel("code", "FullyReplicated")],
        "OutputDataConfig": {"S3OutputPath": f"s3://{endpoint.bucket}/plain"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 10},
        "StoppingCondition": {"MaxRuntimeInSeconds": max_runtime},
    }


class Cli:
    def __init__(self, endpoint: RunningEndpoint, folder: Path) -> None:
        self._endpoint = endpoint
        self._folder = folder

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        command = [program("awscli", "aws"), *arguments, "--output", "json"]
        result = subprocess.run(
            command, env=dict(self._endpoint.variables), cwd=self._folder, capture_output=True, text=True
        )
        assert result.returncode == code, result.stdout + result.stderr
        return (
            json.loads(result.stdout)
            if result.stdout.startswith(("{", "["))
            else result.stdout + result.stderr
        )

    def create(self, name: str, end: str, max_runtime: int = 300) -> None:
        data = self._folder / "in" / "train"
        data.mkdir(parents=True)
        for letter in "abc":
            (data / letter).write_text(letter)
        self("s3", "sync", "in", f"s3://{self._endpoint.bucket}/{name}/")
        self("s3", "cp", str(SCRIPT), f"s3://{self._endpoint.bucket}/{name}/code/")
        (self._folder / "job.json").write_text(json.dumps(request(self._endpoint, name, end, max_runtime)))
        response = self("sagemaker", "create-training-job", "--cli-input-json", "file://job.json")
        assert response["TrainingJobArn"].endswith(f":training-job/{name}")

    def wait(self, name: str, code: int = 0) -> Any:
        arguments = ("wait", "training-job-completed-or-stopped", "--training-job-name", name)
        self("sagemaker", *arguments, code=code)
        return self("sagemaker", "describe-training-job", "--training-job-name", name)


@pytest.fixture
def cli(endpoint: RunningEndpoint, tmp_path: Path) -> Cli:
    return Cli(endpoint, tmp_path)


def test_cli_to_completed(cli: Cli, endpoint: RunningEndpoint, tmp_path: Path) -> None:
    cli.create("cli-well", "well")
    wait_until_ended(endpoint, "cli-well")
    described = cli.wait("cli-well")
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Completed", "Completed")
    lines_by_host = read_log(endpoint, "cli-well")
    keys_by_rank = [
        json.loads(line.partition(" has ")[2])
        for host in lines_by_host
        for line in lines_by_host[host]
        if " has [" in line
    ]
    assert sorted(key for keys in keys_by_rank for key in keys) == ["a", "b", "c"], "each key is on one host"
    streams = cli(
        *("logs", "describe-log-streams", "--log-group-name", LOG_GROUP),
        *("--log-stream-name-prefix", "cli-well/"),
    )["logStreams"]
    assert len(streams) == 2
    arguments = ("--log-group-name", LOG_GROUP, "--log-stream-name", streams[1]["logStreamName"])
    events = cli("logs", "get-log-events", *arguments, "--start-from-head")["events"]
    assert any("algo-2 has [" in event["message"] for event in events)
    cli("s3", "cp", described["ModelArtifacts"]["S3ModelArtifacts"], "model.tar.gz")
    names = subprocess.run(
        ["tar", "tzf", "model.tar.gz"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert {"algo-1", "algo-2"} <= {Path(name).name for name in names.splitlines()}
    assert "ResourceInUse" in cli(
        "sagemaker", "create-training-job", "--cli-input-json", "file://job.json", code=255
    )


def test_cli_to_stopped(cli: Cli, endpoint: RunningEndpoint) -> None:
    cli.create("cli-stop", "sleep")
    wait_for(endpoint, "cli-stop", " has [", 2)
    cli("sagemaker", "stop-training-job", "--training-job-name", "cli-stop")
    wait_until_ended(endpoint, "cli-stop")
    description = cli.wait("cli-stop")
    assert (description["TrainingJobStatus"], description["SecondaryStatus"]) == ("Stopped", "Stopped")
    log = [line for lines in read_log(endpoint, "cli-stop").values() for line in lines]
    assert sorted(line for line in log if "leaves" in line) == ["algo-1 leaves", "algo-2 leaves"]
    listing = cli(
        "sagemaker", "list-training-jobs", "--status-equals", "Stopped", "--name-contains", "cli-stop"
    )
    assert [job["TrainingJobName"] for job in listing["TrainingJobSummaries"]] == ["cli-stop"]


def test_cli_to_failed(cli: Cli, endpoint: RunningEndpoint) -> None:
    cli.create("cli-fail", "fail")
    wait_until_ended(endpoint, "cli-fail")
    description = cli.wait("cli-fail", code=255)
    assert (description["TrainingJobStatus"], description["SecondaryStatus"]) == ("Failed", "Failed")
    assert description["FailureReason"] == "AlgorithmError: planted on algo-2, exit code: 3"


def test_boto3_waiter_and_every_end(endpoint: RunningEndpoint) -> None:
    sagemaker = endpoint.client("sagemaker")
    waiter = sagemaker.get_waiter("training_job_completed_or_stopped")
    waiter_config = {"Delay": 1, "MaxAttempts": 60}
    ends = {"boto-well": "well", "boto-stop": "sleep", "boto-cap": "sleep", "boto-fail": "fail"}
    for name, end in ends.items():
        stage(endpoint, name)
        job_request = request(endpoint, name, end, max_runtime=4 if name == "boto-cap" else 300)
        sagemaker.create_training_job(**job_request)
    wait_for(endpoint, "boto-stop", " has [", 2)
    sagemaker.stop_training_job(TrainingJobName="boto-stop")
    for name in ("boto-well", "boto-stop", "boto-cap"):
        waiter.wait(TrainingJobName=name, WaiterConfig=waiter_config)
    with pytest.raises(WaiterError, match="terminal failure state"):
        waiter.wait(TrainingJobName="boto-fail", WaiterConfig=waiter_config)
    descriptions = {name: sagemaker.describe_training_job(TrainingJobName=name) for name in ends}
    assert {
        name: (job["TrainingJobStatus"], job["SecondaryStatus"]) for name, job in descriptions.items()
    } == {
        "boto-well": ("Completed", "Completed"),
        "boto-stop": ("Stopped", "Stopped"),
        "boto-cap": ("Stopped", "MaxRuntimeExceeded"),
        "boto-fail": ("Failed", "Failed"),
    }
    assert descriptions["boto-fail"]["FailureReason"] == "AlgorithmError: planted on algo-2, exit code: 3"
    steps = [step["Status"] for step in descriptions["boto-well"]["SecondaryStatusTransitions"]]
    assert steps == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    pages = list(
        sagemaker.get_paginator("list_training_jobs").paginate(
            NameContains="boto-", SortBy="Name", SortOrder="Ascending", PaginationConfig={"PageSize": 3}
        )
    )
    assert [len(page["TrainingJobSummaries"]) for page in pages] == [3, 1]
    names = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
    assert names == sorted(ends)


def test_boto3_pages_through_a_long_log(endpoint: RunningEndpoint) -> None:
    sagemaker, logs = endpoint.client("sagemaker"), endpoint.client("logs")
    stage(endpoint, "boto-log")
    sagemaker.create_training_job(**request(endpoint, "boto-log", "many lines"))
    sagemaker.get_waiter("training_job_completed_or_stopped").wait(
        TrainingJobName="boto-log", WaiterConfig={"Delay": 1, "MaxAttempts": 60}
    )
    streams = logs.get_paginator("describe_log_streams").paginate(
        logGroupName=LOG_GROUP, logStreamNamePrefix="boto-log/", PaginationConfig={"PageSize": 1}
    )
    names = [stream["logStreamName"] for page in streams for stream in page["logStreams"]]
    assert len(names) == 2
    token: dict[str, str] = {}
    lines: list[str] = []
    calls = 0
    while True:
        arguments = {"logGroupName": LOG_GROUP, "logStreamName": names[1], "startFromHead": True}
        page = logs.get_log_events(**arguments, **token)
        lines += [event["message"] for event in page["events"] if event["message"].startswith("line ")]
        if token.get("nextToken") == page["nextForwardToken"]:
            break
        token = {"nextToken": page["nextForwardToken"]}
        calls += 1
    assert lines == [f"line {number}" for number in range(12_000)]
    assert calls >= 2, "a page holds 10,000 events at most"
    event_pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName=LOG_GROUP, logStreamNamePrefix="boto-log/", filterPattern="line"
    )
    assert sum(len(page["events"]) for page in event_pages) == 24_000


def stage(endpoint: RunningEndpoint, name: str) -> None:
    s3 = endpoint.client("s3")
    for letter in "ab":
        s3.put_object(Bucket=endpoint.bucket, Key=f"{name}/train/{letter}", Body=b"")
    s3.upload_file(str(SCRIPT), endpoint.bucket, f"{name}/code/main.py")


def wait_for(endpoint: RunningEndpoint, job: str, text: str, count: int) -> None:
    deadline = time.monotonic() + 60
    lines: list[str] = []
    while time.monotonic() < deadline:
        lines = [line for host_lines in read_log(endpoint, job).values() for line in host_lines]
        if sum(text in line for line in lines) >= count:
            return
        time.sleep(0.2)
    raise AssertionError(f"{text!r} was not seen {count} times in {lines}")


def wait_until_ended(endpoint: RunningEndpoint, job: str) -> None:
    """Waits until the job has ended, so that the CLI's waiter, which polls once a minute, finds it ended."""
    sagemaker = endpoint.client("sagemaker")
    while sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobStatus"] in (
        "InProgress",
        "Stopping",
    ):
        time.sleep(0.2)
