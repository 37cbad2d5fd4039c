"""Hosts that are only directories, an object store, and requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.job_spec import TrainingSpec, read_training_request
from smlaunch.local.stores.object_store import ObjectStore


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    store = ObjectStore(tmp_path / "s3")
    store.create_bucket("data")
    return store


@pytest.fixture
def hosts(tmp_path: Path) -> list[JobHost]:
    return [
        JobHost(f"algo-{n}", f"algo-{n}", f"127.64.0.{n}", tmp_path / f"algo-{n}" / "ml", "/opt/ml")
        for n in (1, 2)
    ]


def channel(name: str, uri: str, **changes: Any) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    outer: dict[str, Any] = {
        key: changes.pop(key) for key in ("InputMode", "ContentType", "ShuffleConfig") if key in changes
    }
    return {"ChannelName": name, "DataSource": {"S3DataSource": {**source, **changes}}, **outer}


def spec(channels: Sequence[dict[str, Any]] = (), hosts: int = 2, **changes: Any) -> TrainingSpec:
    request: dict[str, Any] = {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://data/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": hosts, "VolumeSizeInGB": 1},
        **changes,
    }
    if channels:
        request["InputDataConfig"] = list(channels)
    return read_training_request(
        request, "arn:aws:sagemaker:us-east-1:000000000000:training-job/job", "us-east-1"
    )


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
