"""A job does not start with a torn object: its FailureReason names the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local.endpoint import Endpoint
from tests.local.client import EndpointClient


def channel(mode: str, **changes: Any) -> dict[str, Any]:
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": "s3://tests/data/",
        "S3DataDistributionType": "FullyReplicated",
        **changes,
    }
    return {"ChannelName": "train", "InputMode": mode, "DataSource": {"S3DataSource": source}}


CASES = {
    "File": {"InputDataConfig": [channel("File")]},
    "FastFile": {"InputDataConfig": [channel("FastFile")]},
    "Pipe": {"InputDataConfig": [channel("Pipe")]},
    "manifest": {
        "InputDataConfig": [channel("File", S3DataType="ManifestFile", S3Uri="s3://tests/manifest")]
    },
    "checkpoint": {"CheckpointConfig": {"S3Uri": "s3://tests/data/"}},
}


def test_a_job_does_not_start_on_a_torn_object(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "home", isolation="plain") as info:
        client = EndpointClient(info)
        client.put("data/whole", b"12345678" * 1000)
        client.put("data/torn", b"12345678" * 1000)
        client.put("manifest", b'[{"prefix": "s3://tests/data/"}, "whole", "torn"]')
        torn = tmp_path / "home/s3/tests/data/torn"
        os.truncate(torn, 4000)
        for name, changes in CASES.items():
            job = client.run(f"job-{name}", "print('began', flush=True)", **changes)
            assert job["TrainingJobStatus"] == "Failed", (name, job)
            reason = job["FailureReason"]
            assert reason.startswith("ClientError: Data download failed:"), (name, reason)
            assert f"{torn} has 4000 bytes of 8000" in reason, (name, reason)
            assert not any(client.printed_lines(f"job-{name}").values()), name


@pytest.mark.parametrize("mode", ["File", "Pipe"])
def test_a_file_that_was_edited_by_hand_is_read_as_it_is(mode: str, tmp_path: Path) -> None:
    with Endpoint(tmp_path / "home", isolation="plain") as info:
        client = EndpointClient(info)
        client.put("data/a", b"short")
        (tmp_path / "home/s3/tests/data/a").write_bytes(b"longer than before")
        script = (
            "path = f'{ROOT}/input/data/train/a' if MODE == 'File' else f'{ROOT}/input/data/train_0'\n"
            "print(open(path).read())\n"
        )
        job = client.run("job", f"MODE = {mode!r}\n{script}", InputDataConfig=[channel(mode)])
        assert job["TrainingJobStatus"] == "Completed", job
        assert client.printed_lines("job") == {"algo-1": ["longer than before"]}
