"""A boto3 client of an endpoint, and jobs that are a few lines of Python."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config

from smlaunch.local.endpoint_info import EndpointInfo
from tests.local import changes

GROUP = "/aws/sagemaker/TrainingJobs"
PRELUDE = "import json, os, signal, socket, sys, time\nROOT = os.environ.get('SMLAUNCH_ML_ROOT', '/opt/ml')\n"


class EndpointClient:
    def __init__(self, info: EndpointInfo) -> None:
        self.info = info
        session = boto3.Session(info.access_key, info.secret_key, region_name=info.region)
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
        self.sagemaker, self.s3, self.logs = (
            session.client(name, endpoint_url=info.url, config=config) for name in ("sagemaker", "s3", "logs")
        )
        if info.region == "us-east-1":  # clients of other regions use the same bucket
            self.s3.create_bucket(Bucket="tests")

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket="tests", Key=key, Body=body)

    def keys(self, prefix: str) -> list[str]:
        listing = self.s3.list_objects_v2(Bucket="tests", Prefix=prefix)
        return [entry["Key"] for entry in listing.get("Contents", [])]

    def request(self, name: str, script: str, hosts: int = 1, **changes: Any) -> dict[str, Any]:
        self.put(f"code/{name}/script.py", (PRELUDE + script).encode())
        source = {
            "S3DataType": "S3Prefix",
            "S3Uri": f"s3://tests/code/{name}/",
            "S3DataDistributionType": "FullyReplicated",
        }
        channels = [{"ChannelName": "program", "DataSource": {"S3DataSource": source}}]
        return {
            "TrainingJobName": name,
            "RoleArn": self.info.role_arn,
            "AlgorithmSpecification": {
                "TrainingImage": "image:1",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python3", "-u", "/opt/ml/input/data/program/script.py"],
            },
            "OutputDataConfig": {"S3OutputPath": "s3://tests/out"},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": hosts, "VolumeSizeInGB": 1},
            **changes,
            "InputDataConfig": channels + changes.get("InputDataConfig", []),
        }

    def create(self, name: str, script: str, hosts: int = 1, **changes: Any) -> str:
        answer = self.sagemaker.create_training_job(**self.request(name, script, hosts, **changes))
        return str(answer["TrainingJobArn"])

    def describe(self, name: str) -> dict[str, Any]:
        job: dict[str, Any] = self.sagemaker.describe_training_job(TrainingJobName=name)
        return job

    def wait(self, name: str, *until: str, patience: float = 60.0) -> dict[str, Any]:
        """Wait until a status (primary or secondary) is one of ``until``, or the job has ended."""

        def find_job() -> dict[str, Any] | None:
            job = self.describe(name)
            statuses = {job["TrainingJobStatus"], job["SecondaryStatus"]}
            return job if statuses & {*until, "Completed", "Failed", "Stopped"} else None

        job = changes.until(self.info.home, find_job, patience)
        assert job is not None, f"{name} did not end: {self.describe(name)}"
        return job

    def wait_for_line(self, name: str, text: str, count: int = 1, patience: float = 30.0) -> None:

        def has_lines() -> bool | None:
            matches = sum(text in line for lines in self.lines(name).values() for line in lines)
            return matches >= count or None

        assert changes.until(self.info.home, has_lines, patience), (
            f"{text!r} is not in the log: {self.lines(name)}"
        )

    def run(self, name: str, script: str, hosts: int = 1, **changes: Any) -> dict[str, Any]:
        self.create(name, script, hosts, **changes)
        return self.wait(name)

    def lines(self, name: str) -> Mapping[str, list[str]]:
        """Return the lines of each host's log by the host's label."""
        try:
            streams = self.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")
        except self.logs.exceptions.ResourceNotFoundException:
            return {}
        lines_by_label = {}
        for stream in streams["logStreams"]:
            stream_name = stream["logStreamName"]
            events = self.logs.get_log_events(
                logGroupName=GROUP, logStreamName=stream_name, startFromHead=True
            )
            label = stream_name.partition("/")[2].rpartition("-")[0]
            lines_by_label[label] = [event["message"] for event in events["events"]]
        return lines_by_label

    def printed_lines(self, name: str) -> dict[str, list[str]]:
        return {
            label: [line for line in lines if not line.startswith("[smlaunch] ")]
            for label, lines in self.lines(name).items()
        }

    def read_archive(self, key: str) -> dict[str, str]:
        body = self.s3.get_object(Bucket="tests", Key=key)["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            files = (member for member in tar if member.isfile())
            return {member.name: tar.extractfile(member).read().decode() for member in files}  # type: ignore[union-attr]
