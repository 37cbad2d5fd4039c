"""One background endpoint, started as users start it, and third-party clients in environments of their
own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.conftest import ROOT

REAL = ROOT / ".venv-real"
HERE = Path(__file__).resolve().parent
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10.0-cpu-py313"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(400))  # a stopped SDK job takes 120 s alone


def program(environment: str, name: str) -> str:
    """Returns the path of a program of an environment; skips the test if the environment is not installed."""
    if not (REAL / environment / "installed").exists():
        pytest.skip(f"{environment} is not installed: make test-real")
    return str(REAL / environment / "bin" / name)


@dataclass(frozen=True)
class RunningEndpoint:
    """The endpoint as a client sees it. ``variables``: the whole environment of a client."""

    bucket: str
    role: str
    home: Path
    variables: Mapping[str, str]
    isolation: str

    def client(self, service: str) -> Any:
        return boto3.session.Session().client(
            service,
            endpoint_url=self.variables["AWS_ENDPOINT_URL"],
            region_name=self.variables["AWS_REGION"],
            aws_access_key_id=self.variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.variables["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}),
        )


def disable_telemetry(home: Path) -> dict[str, str]:
    """Keeps the SDKs from reporting their use to AWS, by their own configuration."""
    path = home / "sagemaker.yaml"
    path.write_text(
        "SchemaVersion: '1.0'\nSageMaker: {PythonSDK: {Modules: {TelemetryOptOut: true}}}\n", "utf-8"
    )
    return {"SAGEMAKER_USER_CONFIG_OVERRIDE": str(path), "NO_PROXY": "127.0.0.1"}


def start_endpoint(
    home: Path, extra: Mapping[str, str], prefix_command: tuple[str, ...] = (), environment: str = "toolkit"
) -> RunningEndpoint:
    """Runs `smlaunch local start` in the environment that has what a training image would bring;
    ``prefix_command`` is a command that runs it.

    The environment is not activated: its own directory must come first on the hosts' PATH by itself.
    """
    smlaunch = program(environment, "smlaunch")
    variables = {
        **{name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ},
        "HOME": str(home),
        "SMLAUNCH_HOME": str(home / "smlaunch"),
        **extra,
    }

    def run_json(*command: str) -> Any:
        result = subprocess.run([*command, "--json"], env=variables, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    info = run_json(*prefix_command, smlaunch, "local", "start")
    return RunningEndpoint(
        info["bucket"],
        info["role"],
        home,
        {**variables, **run_json(smlaunch, "local", "env"), **disable_telemetry(home)},
        info["isolation"],
    )


def stop_endpoint(endpoint: RunningEndpoint, environment: str = "toolkit") -> None:
    command = [program(environment, "smlaunch"), "local", "stop"]
    subprocess.run(command, env=dict(endpoint.variables), check=True, timeout=60)


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEndpoint]:
    endpoint = start_endpoint(tmp_path_factory.mktemp("real"), {})
    yield endpoint
    stop_endpoint(endpoint)


@dataclass(frozen=True)
class JobResult:
    """A job that a third-party client created: the endpoint's description of it, and the client's outcome."""

    description: Mapping[str, Any]
    client_error: str | None
    client_output: str
    log: Mapping[str, list[str]]

    @property
    def status(self) -> tuple[str, str]:
        return self.description["TrainingJobStatus"], self.description["SecondaryStatus"]

    @property
    def reason(self) -> str:
        return str(self.description.get("FailureReason", ""))

    @property
    def lines(self) -> list[str]:
        return [line for lines in self.log.values() for line in lines]

    @property
    def text(self) -> str:
        """All that is known of the job, for a test that fails."""
        log = "\n".join(f"{label}| {line}" for label, lines in self.log.items() for line in lines)
        return f"{self.status} {self.reason}\n{log}\nthe client said:\n{self.client_output}"

    def count_lines_with(self, text: str) -> int:
        """Returns how many lines of the job's log contain the text."""
        return sum(text in line for line in self.lines)


def read_log(endpoint: RunningEndpoint, job: str) -> dict[str, list[str]]:
    """Returns the lines by host label."""
    logs = endpoint.client("logs")
    lines_by_host: dict[str, list[str]] = {}
    for page in logs.get_paginator("filter_log_events").paginate(
        logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job}/"
    ):
        for event in page["events"]:
            label = event["logStreamName"].split("/")[1].rpartition("-")[0]
            lines_by_host.setdefault(label, []).append(event["message"])
    return lines_by_host


class Client:
    """A client script that waits for its job in the background."""

    def __init__(
        self, endpoint: RunningEndpoint, environment: str, script: str, job: Mapping[str, Any], folder: Path
    ) -> None:
        self._endpoint = endpoint
        self._output = folder / "client.txt"
        document = folder / "job.json"
        defaults = {
            "image": IMAGE,
            "role": endpoint.role,
            "bucket": endpoint.bucket,
            "source": str(HERE / "jobs" / "ranks"),
            "entry": "ranks.py",
            "hosts": 2,
            "per_host": 2,
            "max_runtime": 600,
        }
        document.write_text(json.dumps({**defaults, **job}))
        command = [program(environment, "python"), str(HERE / "clients" / script), str(document)]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=dict(endpoint.variables), cwd=folder, stdout=output, stderr=output
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait_for_end(self, timeout: float = 300) -> JobResult:
        try:
            self._process.wait(timeout)
        finally:
            self.kill()
        text = self._output.read_text()
        results = [line for line in text.splitlines() if line.startswith("result ")]
        assert results, text
        result = json.loads(results[-1].removeprefix("result "))
        assert result["job"], text
        # SDK v2 takes Stopping for the end.
        sagemaker = self._endpoint.client("sagemaker")
        while (
            sagemaker.describe_training_job(TrainingJobName=result["job"])["TrainingJobStatus"] == "Stopping"
        ):
            time.sleep(1)
        description = sagemaker.describe_training_job(TrainingJobName=result["job"])
        return JobResult(description, result["raised"], text, read_log(self._endpoint, result["job"]))


Start = Callable[..., Client]


@pytest.fixture(scope="session")
def start_client(endpoint: RunningEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    clients: list[Client] = []

    def start(version: int, name: str, **job: Any) -> Client:
        folder = tmp_path_factory.mktemp(name)
        client = Client(endpoint, f"sdk{version}", f"sdk{version}.py", {"name": name, **job}, folder)
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.kill()  # only one whose test did not run is still there


def wait_for_line(
    endpoint: RunningEndpoint, job_prefix: str, text: str, count: int, patience: float = 100
) -> str:
    """Returns the name of the newest job that begins so, once its log has ``text`` in ``count`` lines."""
    sagemaker = endpoint.client("sagemaker")
    deadline = time.monotonic() + patience
    lines_by_host: dict[str, list[str]] = {}
    while time.monotonic() < deadline:
        jobs = sagemaker.list_training_jobs(
            NameContains=job_prefix, SortBy="CreationTime", SortOrder="Descending"
        )["TrainingJobSummaries"]
        if jobs:
            name = jobs[0]["TrainingJobName"]
            lines_by_host = read_log(endpoint, name)
            if sum(text in line for lines in lines_by_host.values() for line in lines) >= count:
                return str(name)
        time.sleep(0.5)
    log = "\n".join(f"{label}| {line}" for label, lines in lines_by_host.items() for line in lines)
    raise AssertionError(f"{text!r} was not seen {count} times in\n{log}")
