"""An endpoint in an environment that has moto, and Step Functions' clients."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from smlaunch.local.endpoint_info import EndpointInfo
from tests.conftest import ROOT
from tests.local.client import EndpointClient
from tests.real.conftest import program

QUICK = {"close_grace_seconds": 0.3, "stop_grace_seconds": 0.5, "step_functions_wait_factor": 0.001}


def moto_python() -> str:
    """Returns this Python if it has moto, else that of the environment; skips the test without either."""
    return sys.executable if importlib.util.find_spec("moto") else program("moto", "python")


def wait_until(check: Callable[[], bool], patience: float = 30.0) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.05)
    return check()


class StepFunctions(EndpointClient):
    """A client of the endpoint, and of the state machines behind it."""

    def __init__(self, info: EndpointInfo) -> None:
        super().__init__(info)
        self.states = self.client("stepfunctions")

    def client(self, service: str, attempts: int = 1) -> Any:
        return boto3.Session(self.info.access_key, self.info.secret_key, region_name=self.info.region).client(
            service, endpoint_url=self.info.url, config=Config(retries={"total_max_attempts": attempts})
        )

    def machine(self, name: str, first: Mapping[str, Any], **others: Mapping[str, Any]) -> str:
        """Creates a machine that begins with ``first``, which is called First; returns its ARN."""
        definition = {"StartAt": "First", "States": {"First": first, **others}}
        response = self.states.create_state_machine(
            name=name,
            definition=json.dumps(definition),
            roleArn=f"arn:aws:iam::{self.info.account}:role/machine",
        )
        return str(response["stateMachineArn"])

    def execute(self, machine: str, data: Mapping[str, Any] | None = None, **parameters: str) -> str:
        response = self.states.start_execution(
            stateMachineArn=machine, input=json.dumps(data or {}), **parameters
        )
        return str(response["executionArn"])

    def wait_for_end(self, execution: str, patience: float = 60.0) -> dict[str, Any]:
        description: dict[str, Any] = {}

        def has_ended() -> bool:
            description.update(self.states.describe_execution(executionArn=execution))
            return bool(description["status"] != "RUNNING")

        assert wait_until(has_ended, patience), description
        return description

    def run_machine(
        self, name: str, first: Mapping[str, Any], data: Mapping[str, Any] | None = None, **others: Any
    ) -> dict[str, Any]:
        return self.wait_for_end(self.execute(self.machine(name, first, **others), data))


def task(resource: str, parameters: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Returns a Task state; it is the last one unless ``Next`` is given."""
    last = {} if "Next" in fields else {"End": True}
    resource = f"arn:aws:states:::{resource}"
    return {"Type": "Task", "Resource": resource, "Parameters": parameters, **last, **fields}


@contextmanager
def endpoint(home: Path, settings: Mapping[str, Any], faults: Path | None = None) -> Iterator[EndpointInfo]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    if faults is not None:
        variables["SMLAUNCH_FAULTS"] = str(faults)
    arguments = ["-m", "tests.local.endpoint_process", str(home), "plain", "embedded"]
    process = subprocess.Popen(
        [moto_python(), *arguments, json.dumps({**QUICK, **settings})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**variables, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        yield EndpointInfo.from_json(process.stdout.readline().encode())
    finally:
        process.communicate(timeout=60)


def processes_of_moto(endpoint: int) -> list[int]:
    """Returns the pids of moto's processes of this endpoint."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command_line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == endpoint and b"smlaunch.local.moto.server_process" in command_line:
            pids.append(int(entry.name))
    return pids
