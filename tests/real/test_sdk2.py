"""The official SDK, version 2: the PyTorch estimator, whose jobs run the training toolkit's `train`, found on
the hosts' PATH as it would be in a training image. Each job runs on two hosts.

The toolkit, like the image around it, passes no SIGTERM on: see test_sdk3.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.real.conftest import Client, Place, Start, wait_for_line


def given(end: str = "well") -> dict[str, object]:
    return {"lr": 0.1, "name": "plain", "end": end}


@pytest.fixture(scope="session")
def long_ones(start_client: Start, place: Place) -> Mapping[str, Client]:
    stopped = start_client(2, "sdk2-stop", driver="torchrun", isolated=True, hyperparameters=given("sleep"))
    capped = start_client(2, "sdk2-cap", driver="plain", hyperparameters=given("sleep"), max_runtime=5)
    name = wait_for_line(place, "sdk2-stop", "sleeps", 2)
    place.client("sagemaker").stop_training_job(TrainingJobName=name)
    return {"stopped": stopped, "capped": capped}


def test_torch_distributed_to_completed(start_client: Start, place: Place, long_ones: object) -> None:
    ended = start_client(2, "sdk2-torchrun", driver="torchrun", hyperparameters=given(), logs=True).ended()
    assert ended.raised is None, ended.text
    assert ended.status == ("Completed", "Completed"), ended.text
    for rank, host in enumerate(("algo-1", "algo-2")):
        assert f"rank {rank} of 2 on {host}: lr 0.1, name 'plain'" in ended.log[host], ended.text
        assert ended.saw(f"rank {rank}: the sum is 3") == 1
    assert "the sum is 3" in ended.client_output, "the client follows the log"
    assert ended.described["ModelArtifacts"]["S3ModelArtifacts"].startswith(f"s3://{place.bucket}/sdk2/")


def test_torch_distributed_to_failed(start_client: Start, long_ones: object) -> None:
    ended = start_client(2, "sdk2-raise", driver="torchrun", hyperparameters=given("raise")).ended()
    assert ended.status == ("Failed", "Failed"), ended.text
    assert ended.raised is not None
    assert "planted on algo-2" in "\n".join(ended.log["algo-2"])
    assert ended.reason.startswith("AlgorithmError: "), ended.reason
    assert ended.reason.endswith("exit code: 1"), ended.reason


def test_stop_reaches_stopped(long_ones: Mapping[str, Client]) -> None:
    ended = long_ones["stopped"].ended()
    assert ended.status == ("Stopped", "Stopped"), ended.text
    assert "Stopping" in str(ended.raised), "it takes Stopping for the end, and no good one"


def test_max_runtime_reaches_stopped(long_ones: Mapping[str, Client]) -> None:
    assert long_ones["capped"].ended().status == ("Stopped", "MaxRuntimeExceeded")
