"""The official SDK, version 3: ModelTrainer with its own drivers, unmodified, each job on two hosts.

Its jobs run `bash -c sm_train.sh` as the hosts' first process, and bash passes no SIGTERM on: a stopped job
takes the 120 s after which SageMaker, and this endpoint, send SIGKILL. Those jobs therefore begin before all
others and end while the others run.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.real.conftest import Client, Ended, Place, Start, wait_for_line


def given(end: str = "well", name: str = "plain name") -> dict[str, object]:
    return {"lr": 0.1, "name": name, "end": end}


@pytest.fixture(scope="session")
def long_ones(start_client: Start, place: Place) -> Mapping[str, Client]:
    """Jobs that only sleep, on networks of their own: torchrun's port 7777 is the same for every job."""
    stopped = start_client(3, "sdk3-stop", driver="torchrun", isolated=True, hyperparameters=given("sleep"))
    capped = start_client(3, "sdk3-cap", driver="plain", hyperparameters=given("sleep"), max_runtime=5)
    name = wait_for_line(place, "sdk3-stop", "sleeps", 4)
    place.client("sagemaker").stop_training_job(TrainingJobName=name)
    return {"stopped": stopped, "capped": capped}


def test_torchrun_driver_to_completed(start_client: Start, place: Place, long_ones: object) -> None:
    ended = start_client(3, "sdk3-torchrun", driver="torchrun", hyperparameters=given(), logs=True).ended()
    assert ended.raised is None, ended.text
    assert ended.status == ("Completed", "Completed"), ended.text
    for rank in range(4):
        host = f"algo-{rank // 2 + 1}"
        said = [line for line in ended.log[host] if line.startswith(f"rank {rank} of 4 on {host}")]
        assert said == [f"rank {rank} of 4 on {host}: lr 0.1, name 'plain name'"], ended.text
        assert ended.saw(f"rank {rank}: the sum is 10") == 1
    assert "the sum is 10" in ended.client_output, "the client follows the log"
    assert ended.described["ModelArtifacts"]["S3ModelArtifacts"].startswith(f"s3://{place.bucket}/sdk3/")


def test_torchrun_driver_to_failed(start_client: Start, long_ones: object) -> None:
    ended = start_client(3, "sdk3-raise", driver="torchrun", hyperparameters=given("raise")).ended()
    assert ended.status == ("Failed", "Failed"), ended.text
    assert ended.raised is not None
    assert "FailedStatusError" in ended.raised, "the client tells what the endpoint does"
    assert ended.reason.startswith("AlgorithmError: "), ended.reason
    assert "planted on algo-2" in "\n".join(ended.log["algo-2"])
    assert ended.reason.endswith("exit code: 1"), ended.reason


def test_script_without_a_driver_runs_once_on_each_host(start_client: Start, long_ones: object) -> None:
    ended = start_client(3, "sdk3-plain", driver="plain", hyperparameters=given()).ended()
    assert ended.status == ("Completed", "Completed"), ended.text
    for host in ("algo-1", "algo-2"):
        assert f"rank 0 of 1 on {host}: lr 0.1, name 'plain name'" in ended.log[host]


def test_its_own_bootstrap_breaks_on_an_apostrophe(start_client: Start, long_ones: object) -> None:
    """The SDK's fault on a region as well; its failure must be told as such, and the client must end."""
    ended = start_client(3, "sdk3-quote", driver="plain", hyperparameters=given(name="it's")).ended()
    assert ended.status == ("Failed", "Failed"), ended.text
    assert ended.reason.startswith("AlgorithmError: "), ended.reason


def test_stop_reaches_stopped(long_ones: Mapping[str, Client]) -> None:
    ended: Ended = long_ones["stopped"].ended()
    assert ended.status == ("Stopped", "Stopped"), ended.text
    assert ended.raised is None, "its wait() takes Stopped for an ordinary end"
    assert ended.saw("got signal") == 0, "no rank under bash is ever told"


def test_max_runtime_reaches_stopped(long_ones: Mapping[str, Client]) -> None:
    ended: Ended = long_ones["capped"].ended()
    assert ended.status == ("Stopped", "MaxRuntimeExceeded")
