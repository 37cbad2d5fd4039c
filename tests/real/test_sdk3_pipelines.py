"""The official SDK, version 3, builds pipelines of jobs and of functions and runs them, unmodified.

The endpoint runs in the SDK's own environment: a function's image has to bring the SDK.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.real.conftest import HERE, IMAGE, RunningEndpoint, program, start_endpoint, stop_endpoint
from tests.real.test_pipelines import PREPARE, TRAIN, parameter_values

FIXTURES = ROOT / "tests" / "local" / "pipelines"


@pytest.fixture(scope="module")
def sdk3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEndpoint]:
    endpoint = start_endpoint(tmp_path_factory.mktemp("sdk3"), {}, environment="sdk3")
    yield endpoint
    stop_endpoint(endpoint, "sdk3")


def test_its_pipelines_run_as_it_writes_them(sdk3_endpoint: RunningEndpoint, tmp_path: Path) -> None:
    if sdk3_endpoint.isolation == "plain":
        pytest.skip("needs /opt/ml: isolation level full or user")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(TRAIN)
    (tmp_path / "prepare.py").write_text(PREPARE)
    job = {
        "bucket": sdk3_endpoint.bucket,
        "role": sdk3_endpoint.role,
        "image": IMAGE,
        "prepare": str(tmp_path / "prepare.py"),
        "source": str(tmp_path / "source"),
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    client = [
        program("sdk3", "python"),
        str(HERE / "clients" / "sdk3_pipeline.py"),
        str(tmp_path / "job.json"),
    ]
    result_of_client = subprocess.run(
        client, env=dict(sdk3_endpoint.variables), cwd=tmp_path, capture_output=True, text=True
    )
    lines = [line for line in result_of_client.stdout.splitlines() if line.startswith("result ")]
    assert lines, result_of_client.stdout + result_of_client.stderr
    result = json.loads(lines[0].removeprefix("result "))
    for name, definition in result["definitions"].items():
        fixture = json.loads((FIXTURES / f"sdk3_{name}.json").read_text())
        assert shape(definition) == shape(fixture), f"the SDK writes {name} differently: {definition}"
    good, bad, functions = result["good"], result["bad"], result["functions"]
    assert (good["status"], good["raised"]) == ("Succeeded", None), result_of_client.stderr
    assert parameter_values(good)["Good"]["Metadata"] == {"Condition": {"Outcome": "True"}}
    assert bad["status"] == "Failed" and "WaiterError" in bad["raised"]
    steps = parameter_values(bad)
    assert steps["Prepare"]["CacheHitResult"] == {"SourcePipelineExecutionArn": good["arn"]}
    assert steps["Bad"]["FailureReason"] == "in a bad mood"
    parameters = {parameter["Name"]: parameter["Value"] for parameter in bad["parameters"]}
    assert parameters == {"Least": "0.75", "Hosts": "1", "Mood": "bad", "Strict": "true"}
    assert (functions["status"], functions["raised"]) == ("Succeeded", None), (
        functions,
        result_of_client.stderr,
    )
    assert parameter_values(functions)["Enough"]["Metadata"] == {"Condition": {"Outcome": "True"}}


def shape(document: Any) -> Any:
    """Member names and what is null; a text or number may be another in every run."""
    if isinstance(document, dict):
        return {name: shape(value) for name, value in document.items()}
    if isinstance(document, list):
        return [shape(value) for value in document]
    return document if document is None else "..."
