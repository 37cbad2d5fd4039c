"""The official SDK, version 3: ModelTrainer with its own drivers, unmodified, each job on two hosts.

Its jobs run `bash -c sm_train.sh` as the hosts' first process, and bash passes no SIGTERM on: a stopped job
takes the 120 s after which SageMaker, and this endpoint, send SIGKILL. Those jobs therefore begin before all
others and end while the others run.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.real.conftest import Client, JobResult, RunningEndpoint, Start, wait_for_line


def hyperparameters_for(end: str = "well", name: str = "plain name") -> dict[str, object]:
    return {"lr": 0.1, "name": name, "end": end}


@pytest.fixture(scope="session")
def long_jobs(start_client: Start, endpoint: RunningEndpoint) -> Mapping[str, Client]:
    """Jobs that only sleep, on networks of their own: torchrun's port 7777 is the same for every job."""
    stopped_job = start_client(
        3, "sdk3-stop", driver="torchrun", isolated=True, hyperparameters=hyperparameters_for("sleep")
    )
    capped = start_client(
        3, "sdk3-cap", driver="plain", hyperparameters=hyperparameters_for("sleep"), max_runtime=5
    )
    name = wait_for_line(endpoint, "sdk3-stop", "sleeps", 4)
    endpoint.client("sagemaker").stop_training_job(TrainingJobName=name)
    return {"stopped": stopped_job, "capped": capped}


def test_torchrun_driver_to_completed(
    start_client: Start, endpoint: RunningEndpoint, long_jobs: object
) -> None:
    result = start_client(
        3, "sdk3-torchrun", driver="torchrun", hyperparameters=hyperparameters_for(), logs=True
    ).wait_for_end()
    assert result.client_error is None, result.text
    assert result.status == ("Completed", "Completed"), result.text
    for rank in range(4):
        host = f"algo-{rank // 2 + 1}"
        rank_lines = [line for line in result.log[host] if line.startswith(f"rank {rank} of 4 on {host}")]
        assert rank_lines == [f"rank {rank} of 4 on {host}: lr 0.1, name 'plain name'"], result.text
        assert result.count_lines_with(f"rank {rank}: the sum is 10") == 1
    assert "the sum is 10" in result.client_output, "the client follows the log"
    assert result.description["ModelArtifacts"]["S3ModelArtifacts"].startswith(
        f"s3://{endpoint.bucket}/sdk3/"
    )


def test_torchrun_driver_to_failed(start_client: Start, long_jobs: object) -> None:
    result = start_client(
        3, "sdk3-raise", driver="torchrun", hyperparameters=hyperparameters_for("raise")
    ).wait_for_end()
    assert result.status == ("Failed", "Failed"), result.text
    assert result.client_error is not None
    assert "FailedStatusError" in result.client_error, "the client tells what the endpoint does"
    assert result.reason.startswith("AlgorithmError: "), result.reason
    assert "planted on algo-2" in "\n".join(result.log["algo-2"])
    assert result.reason.endswith("exit code: 1"), result.reason


def test_script_without_a_driver_runs_once_on_each_host(start_client: Start, long_jobs: object) -> None:
    result = start_client(
        3, "sdk3-plain", driver="plain", hyperparameters=hyperparameters_for()
    ).wait_for_end()
    assert result.status == ("Completed", "Completed"), result.text
    for host in ("algo-1", "algo-2"):
        assert f"rank 0 of 1 on {host}: lr 0.1, name 'plain name'" in result.log[host]


def test_its_own_bootstrap_breaks_on_an_apostrophe(start_client: Start, long_jobs: object) -> None:
    """The SDK's fault on a region as well; its failure must be told as such, and the client must end."""
    result = start_client(
        3, "sdk3-quote", driver="plain", hyperparameters=hyperparameters_for(name="it's")
    ).wait_for_end()
    assert result.status == ("Failed", "Failed"), result.text
    assert result.reason.startswith("AlgorithmError: "), result.reason


def test_stop_reaches_stopped(long_jobs: Mapping[str, Client]) -> None:
    result: JobResult = long_jobs["stopped"].wait_for_end()
    assert result.status == ("Stopped", "Stopped"), result.text
    assert result.client_error is None, "its wait() takes Stopped for an ordinary end"
    assert result.count_lines_with("got signal") == 0, "no rank under bash is ever told"


def test_max_runtime_reaches_stopped(long_jobs: Mapping[str, Client]) -> None:
    result: JobResult = long_jobs["capped"].wait_for_end()
    assert result.status == ("Stopped", "MaxRuntimeExceeded")
