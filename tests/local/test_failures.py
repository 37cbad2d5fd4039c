"""Failures of every kind: the right cause, host, rank and exit code, in FailureReason and `show --json`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local import background_endpoint
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.state_dir import StateDir
from tests.e2e.command import smlaunch
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import JobProcess, endpoint_harness, processes_of

MAX_REPORT_SECONDS = 10.0
"""The most seconds until a failure is reported."""


class FailureHarness:
    """A background endpoint, and jobs of two hosts with two ranks each, launched by the command line."""

    def __init__(self, home: Path, source: Path) -> None:
        self.home = home
        self.info: EndpointInfo
        self.client: EndpointClient
        self._source = source

    def start(self) -> None:
        self.info = background_endpoint.start_endpoint(self.home, settings=Settings(close_grace_seconds=1))
        self.client = EndpointClient(self.info)

    def submit(self, name: str, script: str, *options: str) -> None:
        """Launch a run; return when the job was accepted."""
        folder = self._source / name
        folder.mkdir()
        (folder / "train.py").write_text(
            "import os, signal, sys, time\nRANK = int(os.environ['RANK'])\n" + script
        )
        shape = ("--strategy", "ddp", "--hosts", "2", "--processes-per-host", "2")
        result = smlaunch("run", folder / "train.py", *shape, "--local", "--detach", "--name", name, *options)
        assert result.code == 0, result.text

    def job_of(self, run: str) -> str:
        jobs = self.client.sagemaker.list_training_jobs(NameContains=f"{run}-s")["TrainingJobSummaries"]
        (name,) = (str(job["TrainingJobName"]) for job in jobs)
        return name

    def processes(self) -> list[JobProcess]:
        return processes_of({lock.stem for lock in StateDir(self.home).owners_dir.glob("*.lock")})

    def failure(self, run: str, since: float | None = None) -> dict[str, Any]:
        """Wait for the job's failure, soon after ``since``; return the failure of `show --json`."""
        job = self.job_of(run)
        description = self.client.wait(job, patience=30)
        now = time.monotonic()
        assert description["TrainingJobStatus"] == "Failed", (description, self.client.lines(job))
        if since is not None:
            assert now - since < MAX_REPORT_SECONDS
        report = smlaunch("show", run, "--local", "--json").json()
        failure: dict[str, Any] = report["jobs"][0]["failure"]
        assert failure["cause"] in description["FailureReason"], description
        failure["reason"] = description["FailureReason"]
        failure["run_exit_code"] = report["exit_code"]
        return failure


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailureHarness]:
    folder = tmp_path_factory.mktemp("failures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMLAUNCH_HOME", str(folder / "home"))
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        bench = FailureHarness(folder / "home", folder)
        bench.start()
        yield bench
        background_endpoint.stop_endpoint(folder / "home")


def failed_process(failure: dict[str, Any]) -> tuple[str, int, int]:
    return failure["host"], failure["rank"], failure["exit_code"]


WAIT_FOREVER = "print('ready', RANK, flush=True)\ntime.sleep(1000)\n"


def start_job(harness: FailureHarness, run: str, *options: str, script: str = WAIT_FOREVER) -> str:
    harness.submit(run, script, *options)
    job = harness.job_of(run)
    harness.client.wait_for_line(job, "ready", count=4)
    return job


def test_a_rank_that_raises(harness: FailureHarness) -> None:
    harness.submit("raises", "if RANK == 3: raise ValueError('planted')\n" + WAIT_FOREVER)
    failure = harness.failure("raises")
    assert failed_process(failure) == ("algo-2", 3, 1)
    assert failure["cause"] == "ValueError: planted"
    assert "Traceback" in failure["traceback"]
    assert failure["run_exit_code"] == 1


def test_a_rank_that_is_killed(harness: FailureHarness) -> None:
    start_job(harness, "killed", script="print('pid', os.getpid())\n" + WAIT_FOREVER)
    victims = [process for process in harness.processes() if process.variables.get("RANK") == "2"]
    began = time.monotonic()
    os.kill(victims[0].pid, signal.SIGKILL)
    failure = harness.failure("killed", began)
    assert failed_process(failure) == ("algo-2", 2, 137)
    assert "killed by SIGKILL" in failure["reason"]


def test_a_rank_that_leaves_early_while_its_peers_wait(harness: FailureHarness) -> None:
    """An exit with 0 is no failure; its peers fail, and one of them is the cause."""
    script = """
import socket
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if RANK == 0:
    server = socket.create_server(address)
    waiting = [server.accept()[0] for _ in range(3)]
    time.sleep(0.2)
    sys.exit(0)
while True:
    try: leader = socket.create_connection(address); break
    except OSError: time.sleep(0.02)
if not leader.recv(1): raise RuntimeError("connection closed by peer")
"""
    harness.submit("early", script)
    failure = harness.failure("early")
    assert failure["exit_code"] == 1
    assert failure["rank"] in (1, 2, 3)
    assert failure["host"] == ("algo-1" if failure["rank"] == 1 else "algo-2")
    assert "connection closed by peer" in failure["cause"]


@pytest.mark.parametrize("role", ["first", "supervisor"])
def test_a_host_whose_runtime_or_supervisor_dies(harness: FailureHarness, role: str) -> None:
    run = f"dead-{role}"
    start_job(harness, run)
    victim = next(
        process for process in harness.processes() if process.role == role and process.host_name == "algo-2"
    )
    began = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    failure = harness.failure(run, began)
    assert (failure["host"], failure["rank"]) == ("algo-2", None)
    if role == "first":
        assert failure["exit_code"] == 137
        assert "AlgorithmError: algo-2 was killed by SIGKILL" in failure["reason"]
        assert failure["run_exit_code"] == 1
    else:
        assert failure["reason"].startswith(
            "InternalServerError: algo-2 failed: the process that watches over"
        )
        assert failure["run_exit_code"] == 4
    assert harness.processes() == []


def test_the_earliest_of_two_failing_hosts_is_the_reason(harness: FailureHarness) -> None:
    """algo-2 fails first but exits late; algo-1 fails later and exits earlier."""
    script = """
def slowly(*_): time.sleep(2); os._exit(9)
if RANK == 3: raise ValueError("first")
if RANK == 2: signal.signal(signal.SIGTERM, slowly); time.sleep(1000)
time.sleep(0.7)
raise KeyError("second")
"""
    harness.submit("two", script)
    failure = harness.failure("two")
    assert failed_process(failure) == ("algo-2", 3, 1)
    assert failure["cause"] == "ValueError: first"


def test_memory_that_ran_out_for_the_program(harness: FailureHarness) -> None:
    script = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\n"
    harness.submit("memory", script + "if RANK == 1: bytearray(1 << 30)\n" + WAIT_FOREVER)
    failure = harness.failure("memory")
    assert failed_process(failure) == ("algo-1", 1, 1)
    assert failure["cause"] == "MemoryError"


def test_an_entry_that_is_not_in_the_source(harness: FailureHarness) -> None:
    algorithm = {"TrainingImage": "image:1", "TrainingInputMode": "File"}
    entry = ["python3", "/opt/ml/input/data/program/not-there.py"]
    harness.client.create(
        "no-script", "", hosts=2, AlgorithmSpecification={**algorithm, "ContainerEntrypoint": entry}
    )
    assert harness.client.wait("no-script")["FailureReason"] == "AlgorithmError: , exit code: 2"
    assert any("not-there.py" in line for line in harness.client.printed_lines("no-script")["algo-1"])
    harness.client.create("no-image-entry", "", hosts=2, AlgorithmSpecification=algorithm)
    reason = harness.client.wait("no-image-entry")["FailureReason"]
    assert reason.startswith("AlgorithmError: algo-")
    assert (
        "exited with code 127: train: No such file or directory (this endpoint does not run images" in reason
    )
    assert reason.endswith(", exit code: 127")


def channel(name: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://tests/{name}/"}
    return {"InputDataConfig": [{"ChannelName": name, "DataSource": {"S3DataSource": source}}]}


def test_a_channel_whose_object_is_gone(harness: FailureHarness) -> None:
    harness.client.put("gone/one", b"x")
    harness.client.put("gone/two", b"x")
    (harness.home / "s3" / "tests" / "gone" / "one").unlink()
    job = harness.client.run("gone", "print('never')", **channel("gone"))
    assert job["TrainingJobStatus"] == "Failed", job
    assert job["FailureReason"].startswith("ClientError: Data download failed:")
    assert "gone/one" in job["FailureReason"]


def test_a_channel_whose_object_may_not_be_read() -> None:
    with endpoint_harness("plain") as harness:  # by an ordinary user: root may read everything
        client = EndpointClient(harness.start())
        client.put("closed/one", b"x")
        (harness.home / "s3" / "tests" / "closed" / "one").chmod(0)
        job = client.run("closed", "print('never')", **channel("closed"))
        assert job["FailureReason"].startswith("ClientError: Data download failed:"), job
        assert "closed/one" in job["FailureReason"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MB for the state directory and all hosts of an endpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


FILL_DISK = """
with open(ROOT + "/model/big", "wb", buffering=0) as file:
    while True: file.write(bytes(1 << 16))
"""


@pytest.mark.root
def test_a_disk_that_is_full_for_the_endpoint_too(small_disk: Path) -> None:
    """The job fails with a reason although the endpoint cannot write either; its disk space is freed."""
    with Endpoint(small_disk / "home", settings=Settings(close_grace_seconds=1)) as info:
        client = EndpointClient(info)
        for name in ("first", "second"):
            job = client.run(name, FILL_DISK, hosts=2)
            assert job["TrainingJobStatus"] == "Failed", job
            assert "exit code: 1" in job["FailureReason"]
            lines = [line for lines in client.printed_lines(name).values() for line in lines]
            assert any("No space left on device" in line or "were lost" in line for line in lines), lines
        assert client.run("after", "print('room again')")["TrainingJobStatus"] == "Completed"
