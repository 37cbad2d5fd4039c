"""What an input of a job file becomes in the request, and what the plan says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smlaunch.errors import JobError
from smlaunch.job.channel import Channel
from smlaunch.job.model import Job
from tests.planner.fixtures import plan
from tests.tables import table

VPC: dict[str, Any] = {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}
S3_SOURCE = {"S3DataType": "S3Prefix", "S3Uri": "s3://b/x/", "S3DataDistributionType": "FullyReplicated"}
FSX = {
    "FileSystemId": "fs-0123456789abcdef0",
    "FileSystemType": "FSxLustre",
    "DirectoryPath": "/vol/imagenet",
    "FileSystemAccessMode": "ro",
}
EFS = {**FSX, "FileSystemId": "fs-1a2b3c4d", "FileSystemType": "EFS", "DirectoryPath": "/"}
AUGMENTED = {**S3_SOURCE, "S3DataType": "AugmentedManifestFile", "AttributeNames": ["image-ref", "label"]}


def entry_of(channel: Any, **fields: Any) -> dict[str, Any]:
    request = plan({"inputs": {"x": channel}, **fields}).requests[0]
    (entry,) = (entry for entry in request["InputDataConfig"] if entry["ChannelName"] == "x")
    return dict(entry)


@table(
    ("channel", "source", "others"),
    [
        ("s3://b/x/", {"S3DataSource": S3_SOURCE}, {}),
        ("fsx://fs-0123456789abcdef0/vol/imagenet", {"FileSystemDataSource": FSX}, {}),
        ({"uri": "efs://fs-1a2b3c4d"}, {"FileSystemDataSource": EFS}, {}),
        (
            {"uri": "efs://fs-1a2b3c4d/", "access": "rw"},
            {"FileSystemDataSource": {**EFS, "FileSystemAccessMode": "rw"}},
            {},
        ),
        (
            {"uri": "s3://b/x/", "manifest": True},
            {"S3DataSource": {**S3_SOURCE, "S3DataType": "ManifestFile"}},
            {},
        ),
        (
            {"uri": "s3://b/x/", "mode": "Pipe", "attributes": ["image-ref", "label"]},
            {"S3DataSource": AUGMENTED},
            {"InputMode": "Pipe"},
        ),
        (
            {"uri": "s3://b/x/", "mode": "Pipe", "record_wrapper": "RecordIO", "compression": "gzip"},
            {"S3DataSource": S3_SOURCE},
            {"InputMode": "Pipe", "RecordWrapperType": "RecordIO", "CompressionType": "Gzip"},
        ),
        (
            {"uri": "s3://b/x/", "shuffle_seed": 0},
            {"S3DataSource": S3_SOURCE},
            {"ShuffleConfig": {"Seed": 0}},
        ),
    ],
)
def test_an_input_is_these_bytes_of_the_request(
    channel: Any, source: dict[str, Any], others: dict[str, Any]
) -> None:
    expected = {"ChannelName": "x", "DataSource": source, "InputMode": "File", **others}
    assert json.dumps(entry_of(channel, **VPC), sort_keys=True) == json.dumps(expected, sort_keys=True)


@table(
    "uri",
    [
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/team/x/",
        "s3://team-x1y2z3x1y2z3x1y2z3x1y2z3x1y2ze1a-s3alias/x/",
        "s3://fast--use1-az4--x-s3/x/",
        "s3://imagenet",
        "s3://imagenet/",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/team",
    ],
)
def test_fastfile_of_other_buckets_is_accepted(uri: str) -> None:
    entry = entry_of({"uri": uri, "mode": "FastFile"})
    assert entry["DataSource"]["S3DataSource"]["S3Uri"] == uri


def test_a_mounted_folder_is_no_download() -> None:
    job_plan = plan({"inputs": {"x": "efs://fs-1a2b3c4d/corpus"}, **VPC})
    assert "efs://fs-1a2b3c4d/corpus, mounted on every host (ro)" in str(job_plan)
    assert "its size is not known" in str(job_plan)


def test_the_size_of_what_a_manifest_lists_is_said_to_be_unknown() -> None:
    job_plan = plan({"inputs": {"x": {"uri": "s3://b/x.manifest", "manifest": True}}})
    assert any("what the manifest lists is not counted" in warning for warning in job_plan.warnings)


def test_a_file_system_is_refused_at_its_input() -> None:
    with pytest.raises(JobError) as caught:
        plan({"inputs": {"x": "fsx://fs-0123456789abcdef0/vol"}})
    (problem,) = caught.value.problems
    assert problem.path == "inputs.x" and "give subnets and security_groups" in problem.message


@table(
    ("uri", "words"),
    [
        ("fsx://fs-0123456789abcdef0", "mount name"),
        ("fsx://fs-0123456789abcdef0/", "mount name"),
        ("fsx://imagenet/vol", "write fsx://fs-"),
        ("EFS://fs-1a2b3c4d/x", "write efs://fs-"),
        ("efs://fs-1a2b3c4", "write efs://fs-"),
    ],
)
def test_a_wrong_address_of_a_file_system_is_told(uri: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        Channel(uri)


@table(
    "channel",
    [
        "fsx://fs-0123456789abcdef0/vol/imagenet",
        {"uri": "efs://fs-1a2b3c4d/", "access": "rw"},
        {"uri": "s3://b/x/", "manifest": True, "split": "key"},
        {"uri": "s3://b/x/", "mode": "Pipe", "attributes": ["image-ref"], "shuffle_seed": 3},
        {"uri": "s3://b/x/", "mode": "Pipe", "record_wrapper": "RecordIO", "compression": "gzip"},
    ],
)
def test_what_a_request_states_of_an_input_is_the_channel(channel: Any) -> None:
    entry = entry_of(channel, **VPC)
    job = Job(entry="train.py", request={"InputDataConfig": [entry]})
    assert job.request == {}
    assert job.inputs["x"] == Job(entry="train.py", inputs={"x": channel}).inputs["x"]
