"""Other people's clients with processing jobs: the official SDKs' ScriptProcessor, and the AWS CLI."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import HERE, IMAGE, Place, program


def processed(place: Place, folder: Path, version: int, *arguments: str) -> tuple[dict[str, Any], str, str]:
    """What the job is described as, what the client raised, and all it printed."""
    name = f"sdk{version}-processing-{arguments[0]}"
    s3 = place.client("s3")
    for number in range(5):
        s3.put_object(Bucket=place.bucket, Key=f"{name}/data/{number}", Body=b"x")
    job = {
        "version": version,
        "name": name,
        "bucket": place.bucket,
        "role": place.role,
        "image": IMAGE,
        "code": str(HERE / "jobs" / "processing" / "clean.py"),
        "data": f"s3://{place.bucket}/{name}/data/",
        "out": f"s3://{place.bucket}/{name}/out",
        "arguments": list(arguments),
    }
    (folder / "job.json").write_text(json.dumps(job))
    command = [program(f"sdk{version}", "python"), str(HERE / "clients" / "processing.py"), "job.json"]
    done = subprocess.run(
        command, env=dict(place.variables), cwd=folder, capture_output=True, text=True, timeout=200
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    result = json.loads(done.stdout.split("result ")[-1].splitlines()[0])
    sagemaker = place.client("sagemaker")
    (row,) = sagemaker.list_processing_jobs(NameContains=name)["ProcessingJobSummaries"]
    described = sagemaker.describe_processing_job(ProcessingJobName=row["ProcessingJobName"])
    return described, str(result["raised"] or ""), text


@pytest.mark.parametrize("version", [2, 3])
def test_a_script_processor_to_completed(place: Place, tmp_path: Path, version: int) -> None:
    job, raised, text = processed(place, tmp_path, version, "well", "a b")
    assert not raised, text
    assert job["ProcessingJobStatus"] == "Completed"
    assert sorted(job["ExitMessage"].split(";")) == ["", "2 files", "3 files"]
    assert "algo-1 cleans" in text, "the client follows the log"
    listing = place.client("s3").list_objects_v2(
        Bucket=place.bucket, Prefix=f"sdk{version}-processing-well/out/"
    )
    assert [entry["Key"].rpartition("/")[2] for entry in listing["Contents"]] == list("01234")


def test_a_script_processor_to_failed(place: Place, tmp_path: Path) -> None:
    job, raised, text = processed(place, tmp_path, 2, "fail")
    assert job["ProcessingJobStatus"] == "Failed"
    assert job["FailureReason"].endswith("exit code: 3")
    assert raised, text


def test_the_aws_cli_creates_waits_and_lists(place: Place, tmp_path: Path) -> None:
    place.client("s3").put_object(
        Bucket=place.bucket,
        Key="cli-processing/main.py",
        Body=(HERE / "jobs" / "processing" / "clean.py").read_bytes(),
    )
    source = {
        "S3Uri": f"s3://{place.bucket}/cli-processing/main.py",
        "LocalPath": "/opt/ml/processing/input/data",
        "S3DataType": "S3Prefix",
        "S3InputMode": "File",
    }
    kept = {"S3Uri": f"s3://{place.bucket}/cli-processing/out", "S3UploadMode": "Continuous"}
    request = {
        "ProcessingJobName": "cli-processing",
        "RoleArn": place.role,
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
                {"OutputName": "out", "S3Output": {**kept, "LocalPath": "/opt/ml/processing/out"}},
            ]
        },
    }
    (tmp_path / "request.json").write_text(json.dumps(request))

    def aws(*words: str) -> str:
        command = [program("awscli", "aws"), "sagemaker", *words, "--output", "json"]
        done = subprocess.run(
            command, env=dict(place.variables), cwd=tmp_path, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    aws("create-processing-job", "--cli-input-json", "file://request.json")
    waiter = place.client("sagemaker").get_waiter("processing_job_completed_or_stopped")
    waiter.wait(ProcessingJobName="cli-processing", WaiterConfig={"Delay": 0.5, "MaxAttempts": 100})
    # The command line's own waiter looks once a minute.
    aws("wait", "processing-job-completed-or-stopped", "--processing-job-name", "cli-processing")
    job = json.loads(aws("describe-processing-job", "--processing-job-name", "cli-processing"))
    assert (job["ProcessingJobStatus"], job["ExitMessage"]) == ("Completed", "1 files;")
    listed = json.loads(aws("list-processing-jobs", "--name-contains", "cli-"))["ProcessingJobSummaries"]
    assert [row["ProcessingJobName"] for row in listed] == ["cli-processing"]
