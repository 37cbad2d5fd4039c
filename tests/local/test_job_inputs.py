"""Inputs of job files, as the endpoint describes and delivers them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.local.client import EndpointClient
from tests.planner.fixtures import local, plan

LINES = [{"image-ref": f"s3://tests/img/{number}", "cat": number} for number in (1, 2)]
INPUTS: dict[str, Any] = {
    "lines": {
        "uri": "s3://tests/the.manifest",
        "mode": "Pipe",
        "attributes": ["image-ref", "cat"],
        "record_wrapper": "RecordIO",
        "shuffle_seed": 7,
    },
    "listed": {"uri": "s3://tests/listed.manifest", "manifest": True},
    "whole": {"uri": "s3://whole", "mode": "FastFile"},
    "packed": {"uri": "s3://tests/packed/", "mode": "Pipe", "compression": "gzip"},
}
LIST_INPUTS = """
for name in ('listed', 'whole'):
    print(name, sorted(os.listdir(f'{ROOT}/input/data/{name}')))
with open(f'{ROOT}/input/data/lines_0', 'rb') as stream:
    data = stream.read()
print('lines', b'<one>' in data, b'<two>' in data)
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointClient]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain", settings=Settings()) as info:
        yield EndpointClient(info)


def test_every_kind_of_input_is_described_and_delivered(client: EndpointClient) -> None:
    client.put("img/1", b"<one>")
    client.put("img/2", b"<two>")
    client.put("the.manifest", "\n".join(map(json.dumps, LINES)).encode())
    client.put("listed.manifest", json.dumps([{"prefix": "s3://tests/img/"}, "2"]).encode())
    client.put("packed/1", b"")
    client.s3.create_bucket(Bucket="whole")
    client.s3.put_object(Bucket="whole", Key="a.txt", Body=b"a")
    request = plan({"inputs": INPUTS}, local()).requests[0]
    channels = [entry for entry in request["InputDataConfig"] if entry["ChannelName"] in INPUTS]
    job = client.run("inputs", "import os\n" + LIST_INPUTS, InputDataConfig=channels)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert job["InputDataConfig"][1:] == channels  # the first is the program's
    assert client.printed_lines("inputs")["algo-1"] == [
        "listed ['2']",
        "whole ['a.txt']",
        "lines True True",
    ]


def test_groups_of_hosts_are_described(client: EndpointClient) -> None:
    groups = [
        {"name": "loaders", "type": "ml.c5.xlarge", "hosts": 2},
        {"name": "trainers", "type": "ml.g5.xlarge"},
    ]
    request = dict(plan({"compute": {"instance_groups": groups}}, local()).requests[0])
    del request["InputDataConfig"]  # nothing was uploaded; the job need not run
    client.sagemaker.create_training_job(**request)
    described = client.describe(request["TrainingJobName"])
    assert described["ResourceConfig"] == request["ResourceConfig"]
    assert [group["InstanceCount"] for group in described["ResourceConfig"]["InstanceGroups"]] == [2, 1]
    client.wait(request["TrainingJobName"])


def test_outputs_of_a_processing_job_are_described(client: EndpointClient) -> None:
    outputs = {"clean": {"path": "/opt/ml/processing/clean", "upload": "Continuous"}}
    request = dict(plan({"strategy": "processing", "outputs": outputs}, local()).requests[0])
    request["ProcessingInputs"] = []
    client.sagemaker.create_processing_job(**request)
    described = client.sagemaker.describe_processing_job(ProcessingJobName=request["ProcessingJobName"])
    assert described["ProcessingOutputConfig"] == request["ProcessingOutputConfig"]
    assert len(described["ProcessingOutputConfig"]["Outputs"]) == 2
