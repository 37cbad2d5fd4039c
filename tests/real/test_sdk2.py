"""The official SDK, version 2: the PyTorch estimator, whose jobs run the training toolkit's `train`, found on
the hosts' PATH as it would be in a training image. Each job runs on two hosts.

The toolkit, like the image around it, passes no SIGTERM on: see test_sdk3.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.real.conftest import Client, RunningEndpoint, Start, wait_for_line


def hyperparameters_for(end: str = "well") -> dict[str, object]:
    return {"lr": 0.1, "name": "plain", "end": end}


@pytest.fixture(scope="session")
def long_jobs(start_client: Start, endpoint: RunningEndpoint) -> Mapping[str, Client]:
    stopped_job = start_client(
        2, "sdk2-stop", driver="torchrun", isolated=True, hyperparameters=hyperparameters_for("sleep")
    )
    capped = start_client(
        2, "sdk2-cap", driver="plain", hyperparameters=hyperparameters_for("sleep"), max_runtime=5
    )
    name = wait_for_line(endpoint, "sdk2-stop", "sleeps", 2)
    endpoint.client("sagemaker").stop_training_job(TrainingJobName=name)
    return {"stopped": stopped_job, "capped": capped}


def test_torch_distributed_to_completed(
    start_client: Start, endpoint: RunningEndpoint, long_jobs: object
) -> None:
    result = start_client(
        2, "sdk2-torchrun", driver="torchrun", hyperparameters=hyperparameters_for(), logs=True
    ).wait_for_end()
    assert result.client_error is None, result.text
    assert result.status == ("Completed", "Completed"), result.text
    for rank, host in enumerate(("algo-1", "algo-2")):
        assert f"rank {rank} of 2 on {host}: lr 0.1, name 'plain'" in result.log[host], result.text
        assert result.count_lines_with(f"rank {rank}: the sum is 3") == 1
    assert "the sum is 3" in result.client_output, "the client follows the log"
    assert result.description["ModelArtifacts"]["S3ModelArtifacts"].startswith(
        f"s3://{endpoint.bucket}/sdk2/"
    )


def test_torch_distributed_to_failed(start_client: Start, long_jobs: object) -> None:
    result = start_client(
        2, "sdk2-raise", driver="torchrun", hyperparameters=hyperparameters_for("raise")
    ).wait_for_end()
    assert result.status == ("Failed", "Failed"), result.text
    assert result.client_error is not None
    assert "planted on algo-2" in "\n".join(result.log["algo-2"])
    assert result.reason.startswith("AlgorithmError: "), result.reason
    assert result.reason.endswith("exit code: 1"), result.reason


def test_stop_reaches_stopped(long_jobs: Mapping[str, Client]) -> None:
    result = long_jobs["stopped"].wait_for_end()
    assert result.status == ("Stopped", "Stopped"), result.text
    assert "Stopping" in str(result.client_error), "it takes Stopping for the end, and no good one"


def test_max_runtime_reaches_stopped(long_jobs: Mapping[str, Client]) -> None:
    assert long_jobs["capped"].wait_for_end().status == ("Stopped", "MaxRuntimeExceeded")
