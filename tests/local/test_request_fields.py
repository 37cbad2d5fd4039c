"""Members of requests that jobs have by their fields and by ``request``: Describe returns them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.local.client import EndpointClient
from tests.planner.fixtures import local, plan
from tests.planner.test_request_members import EVERY_FIELD, KEY, LOGIN, TRAINING_PLAN

JOB: dict[str, Any] = {
    "output": {"uri": "s3://tests/out/", "kms_key": KEY, "compression": "none"},
    "compute": {
        "volume_kms_key": "alias/disks",
        "training_plan": TRAINING_PLAN,
        "instance_type": "ml.m5.xlarge",
    },
    "metrics": [{"name": "train:loss", "regex": "loss=([0-9.]+)"}],
    "image": "registry.example/trainer:1",
    "image_registry_credentials": LOGIN,
    "remote_debug": True,
    "retries": 3,
    "subnets": ["subnet-1"],
    "security_groups": ["sg-1"],
    "request": {"DebugHookConfig": EVERY_FIELD["DebugHookConfig"]},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointClient]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain", settings=Settings()) as info:
        yield EndpointClient(info)


def test_describe_returns_what_the_job_states(client: EndpointClient) -> None:
    request = dict(plan(JOB, local()).requests[0])
    del request["InputDataConfig"]  # nothing was uploaded; the job need not run
    client.sagemaker.create_training_job(**request)
    described = client.describe(request["TrainingJobName"])
    for member in ("OutputDataConfig", "ResourceConfig", "AlgorithmSpecification", "VpcConfig"):
        assert described[member] == request[member]
    for member in ("RemoteDebugConfig", "RetryStrategy", "DebugHookConfig"):
        assert described[member] == request[member]
    assert described["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    client.wait(request["TrainingJobName"])


def test_describe_returns_what_a_processing_job_states(client: EndpointClient) -> None:
    output = {
        "OutputName": "clean",
        "S3Output": {
            "S3Uri": "s3://tests/clean/",
            "LocalPath": "/opt/ml/processing/clean",
            "S3UploadMode": "Continuous",
        },
    }
    job = {
        "strategy": "processing",
        "output": {"uri": "s3://tests/out/", "kms_key": KEY},
        "compute": {"volume_kms_key": "alias/disks"},
        "request": {"ProcessingOutputConfig": {"Outputs": [output]}},
    }
    request = dict(plan(job, local()).requests[0])
    request["ProcessingInputs"] = []
    client.sagemaker.create_processing_job(**request)
    described = client.sagemaker.describe_processing_job(ProcessingJobName=request["ProcessingJobName"])
    for member in ("ProcessingOutputConfig", "ProcessingResources", "AppSpecification"):
        assert described[member] == request[member]
