"""A client that knows nothing of smlaunch: boto3, its own waiter, logs and model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.command import smlaunch

CLIENT = '''
import boto3, io, sys, tarfile
assert not any(name.split(".")[0] == "smlaunch" for name in sys.modules)
s3, sagemaker, logs = boto3.client("s3"), boto3.client("sagemaker"), boto3.client("logs")
s3.create_bucket(Bucket="mine")
s3.put_object(Bucket="mine", Key="code/train.sh", Body=b"""#!/bin/sh
echo hello from $(hostname)
echo $(hostname) > /opt/ml/model/$(hostname).txt
""")
sagemaker.create_training_job(
    TrainingJobName="plain-boto3",
    RoleArn="arn:aws:iam::000000000000:role/smlaunch-local",
    AlgorithmSpecification={
        "TrainingImage": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["sh", "/opt/ml/input/data/code/train.sh"],
    },
    InputDataConfig=[{"ChannelName": "code", "DataSource": {"S3DataSource": {
        "S3DataType": "S3Prefix", "S3Uri": "s3://mine/code/", "S3DataDistributionType": "FullyReplicated"}}}],
    OutputDataConfig={"S3OutputPath": "s3://mine/output/"},
    ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 10},
    StoppingCondition={"MaxRuntimeInSeconds": 60},
)
waiter = sagemaker.get_waiter("training_job_completed_or_stopped")
waiter.wait(TrainingJobName="plain-boto3", WaiterConfig={"Delay": 1, "MaxAttempts": 40})
job = sagemaker.describe_training_job(TrainingJobName="plain-boto3")
print(job["TrainingJobStatus"], [step["Status"] for step in job["SecondaryStatusTransitions"]])
group = "/aws/sagemaker/TrainingJobs"
streams = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix="plain-boto3/")["logStreams"]
for stream in streams:
    name = stream["logStreamName"]
    events = logs.get_log_events(logGroupName=group, logStreamName=name, startFromHead=True)
    print(name.split("-17")[0], [event["message"] for event in events["events"]])
bucket, key = job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").split("/", 1)
model = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
print(sorted(name for name in tarfile.open(fileobj=io.BytesIO(model)).getnames() if name.endswith(".txt")))
'''


def endpoint_variables() -> dict[str, str]:
    result = smlaunch("local", "env", "--json")
    assert result.code == 0, result.text
    return {str(name): str(value) for name, value in result.json().items()}


@pytest.mark.root
def test_boto3_alone_creates_waits_and_reads(home: Path, tmp_path: Path) -> None:
    assert smlaunch("local", "start").code == 0
    try:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **endpoint_variables()}
        result = subprocess.run(
            [sys.executable, "-c", CLIENT], env=environment, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 0, result.stderr
        assert "Completed ['Starting', 'Downloading', 'Training', 'Uploading', 'Completed']" in result.stdout
        assert "hello from algo-1" in result.stdout
        assert "hello from algo-2" in result.stdout
        assert "['algo-1.txt', 'algo-2.txt']" in result.stdout
    finally:
        assert smlaunch("local", "stop").code == 0


def test_an_unsigned_call_is_refused(home: Path) -> None:
    import urllib.error
    import urllib.request

    assert smlaunch("local", "start").code == 0
    try:
        url = endpoint_variables()["AWS_ENDPOINT_URL"]
        request = urllib.request.Request(
            url, data=b"{}", headers={"X-Amz-Target": "SageMaker.ListTrainingJobs"}, method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=10)
        assert error.value.code in (400, 403)
        assert b"MissingAuthenticationToken" in error.value.read()
    finally:
        assert smlaunch("local", "stop").code == 0
