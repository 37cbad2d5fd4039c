"""Third-party clients with processing jobs: the official SDKs' ScriptProcessor, and the AWS CLI."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import HERE, IMAGE, RunningEndpoint, program


def run_processor(
    endpoint: RunningEndpoint, folder: Path, version: int, *arguments: str
) -> tuple[dict[str, Any], str, str]:
    """Returns the job's description, the client's error, and its output."""
    name = f"sdk{version}-processing-{arguments[0]}"
    s3 = endpoint.client("s3")
    for number in range(5):
        s3.put_object(Bucket=endpoint.bucket, Key=f"{name}/data/{number}", Body=b"x")
    job = {
        "version": version,
        "name": name,
        "bucket": endpoint.bucket,
        "role": endpoint.role,
        "image": IMAGE,
        "code": str(HERE / "jobs" / "processing" / "clean.py"),
        "data": f"s3://{endpoint.bucket}/{name}/data/",
        "out": f"s3://{endpoint.bucket}/{name}/out",
        "arguments": list(arguments),
    }
    (folder / "job.json").write_text(json.dumps(job))
    command = [program(f"sdk{version}", "python"), str(HERE / "clients" / "processing.py"), "job.json"]
    result_of_client = subprocess.run(
        command, env=dict(endpoint.variables), cwd=folder, capture_output=True, text=True, timeout=200
    )
    text = result_of_client.stdout + result_of_client.stderr
    assert result_of_client.returncode == 0, text
    result = json.loads(result_of_client.stdout.split("result ")[-1].splitlines()[0])
    sagemaker = endpoint.client("sagemaker")
    (row,) = sagemaker.list_processing_jobs(NameContains=name)["ProcessingJobSummaries"]
    description = sagemaker.describe_processing_job(ProcessingJobName=row["ProcessingJobName"])
    return description, str(result["raised"] or ""), text


@pytest.mark.parametrize("version", [2, 3])
def test_a_script_processor_to_completed(endpoint: RunningEndpoint, tmp_path: Path, version: int) -> None:
    job, client_error, text = run_processor(endpoint, tmp_path, version, "well", "a b")
    assert not client_error, text
    assert job["ProcessingJobStatus"] == "Completed"
    assert sorted(job["ExitMessage"].split(";")) == ["", "2 files", "3 files"]
    assert "algo-1 cleans" in text, "the client follows the log"
    listing = endpoint.client("s3").list_objects_v2(
        Bucket=endpoint.bucket, Prefix=f"sdk{version}-processing-well/out/"
    )
    assert [entry["Key"].rpartition("/")[2] for entry in listing["Contents"]] == list("01234")


def test_a_script_processor_to_failed(endpoint: RunningEndpoint, tmp_path: Path) -> None:
    job, client_error, text = run_processor(endpoint, tmp_path, 2, "fail")
    assert job["ProcessingJobStatus"] == "Failed"
    assert job["FailureReason"].endswith("exit code: 3")
    assert client_error, text


def test_the_aws_cli_creates_waits_and_lists(endpoint: RunningEndpoint, tmp_path: Path) -> None:
    endpoint.client("s3").put_object(
        Bucket=endpoint.bucket,
        Key="cli-processing/main.py",
        Body=(HERE / "jobs" / "processing" / "clean.py").read_bytes(),
    )
    source = {
        "S3Uri": f"s3://{endpoint.bucket}/cli-processing/main.py",
        "LocalPath": "/opt/ml/processing/input/data",
        "S3DataType": "S3Prefix",
        "S3InputMode": "File",
    }
    output = {"S3Uri": f"s3://{endpoint.bucket}/cli-processing/out", "S3UploadMode": "Continuous"}
    request = {
        "ProcessingJobName": "cli-processing",
        "RoleArn": endpoint.role,
        "AppSpecification": {
            "ImageUri": IMAGE,
            "ContainerEntrypoint": ["python3", "/opt/ml/processing/input/data/main.py"],
        },
        "ProcessingResources": {
            "ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
        },
        "ProcessingInputs": [{"InputName": "code", "S3Input": source}],
        "ProcessingOutputConfig": {
            "Outputs": [
                {"OutputName": "out", "S3Output": {**output, "LocalPath": "/opt/ml/processing/out"}},
            ]
        },
    }
    (tmp_path / "request.json").write_text(json.dumps(request))

    def aws(*arguments: str) -> str:
        command = [program("awscli", "aws"), "sagemaker", *arguments, "--output", "json"]
        result = subprocess.run(
            command, env=dict(endpoint.variables), cwd=tmp_path, capture_output=True, text=True, timeout=200
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    aws("create-processing-job", "--cli-input-json", "file://request.json")
    waiter = endpoint.client("sagemaker").get_waiter("processing_job_completed_or_stopped")
    waiter.wait(ProcessingJobName="cli-processing", WaiterConfig={"Delay": 0.5, "MaxAttempts": 100})
    # The command line's own waiter looks once a minute.
    aws("wait", "processing-job-completed-or-stopped", "--processing-job-name", "cli-processing")
    job = json.loads(aws("describe-processing-job", "--processing-job-name", "cli-processing"))
    assert (job["ProcessingJobStatus"], job["ExitMessage"]) == ("Completed", "1 files;")
    listing = json.loads(aws("list-processing-jobs", "--name-contains", "cli-"))["ProcessingJobSummaries"]
    assert [row["ProcessingJobName"] for row in listing] == ["cli-processing"]
