"""The official SDK, version 2, builds a pipeline and runs it, unmodified, against the endpoint.

Its steps need no training toolkit: their programs are named by the requests.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.real.conftest import HERE, IMAGE, disable_telemetry, program

ROOT = "import json, os\nROOT = os.environ.get('SMLAUNCH_ML_ROOT', '/opt/ml')\n"
PREPARE = (
    ROOT
    + """
out = ROOT + "/processing/prepared"
os.makedirs(out, exist_ok=True)
with open(out + "/report.json", "w") as file:
    json.dump({"rows": [{"count": 3}]}, file)
"""
)
TRAIN = (
    ROOT
    + """
given = json.load(open(ROOT + "/input/config/hyperparameters.json"))
assert given["mood"] in ("good", "bad") and len(given["run"]) == 12, given
assert os.listdir(ROOT + "/input/data/prepared") == ["report.json"]
print("acc=0.75;", flush=True)
"""
)


def test_its_pipeline_runs_as_it_writes_it(tmp_path: Path) -> None:
    python = program("sdk2", "python")
    for name, text in (("prepare.py", PREPARE), ("train.py", TRAIN)):
        (tmp_path / name).write_text(text)
    settings = Settings(close_grace_seconds=1, checkpoint_sync_seconds=0.2)
    with Endpoint(tmp_path / "home", settings=settings) as info:
        job = {
            "bucket": info.bucket,
            "role": info.role_arn,
            "image": IMAGE,
            "prepare": str(tmp_path / "prepare.py"),
            "train": str(tmp_path / "train.py"),
        }
        (tmp_path / "job.json").write_text(json.dumps(job))
        environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            **info.environment(),
            **disable_telemetry(tmp_path),
            "HOME": str(tmp_path),
        }
        client = [python, str(HERE / "clients" / "sdk2_pipeline.py"), str(tmp_path / "job.json")]
        result_of_client = subprocess.run(
            client, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
    lines = [line for line in result_of_client.stdout.splitlines() if line.startswith("result ")]
    assert lines, result_of_client.stdout + result_of_client.stderr
    result = json.loads(lines[0].removeprefix("result "))
    assert result["definition"]["Version"] == "2020-12-01"
    assert result["description"] == "and again"
    good, bad = result["good"], result["bad"]
    assert (good["status"], good["raised"]) == ("Succeeded", None), result_of_client.stderr
    steps = parameter_values(good)
    assert list(steps) == ["Good", "Train", "Prepare"], "the newest first"
    assert steps["Good"]["Metadata"] == {"Condition": {"Outcome": "True"}}
    assert bad["status"] == "Failed" and "WaiterError" in bad["raised"]
    steps = parameter_values(bad)
    assert steps["Prepare"]["CacheHitResult"] == {"SourcePipelineExecutionArn": good["arn"]}
    assert steps["Bad"]["FailureReason"] == "in a bad mood"
    assert {parameter["Name"]: parameter["Value"] for parameter in bad["parameters"]} == {
        "Least": "0.75",
        "Hosts": "1",
        "Mood": "bad",
    }


def parameter_values(execution: dict[str, Any]) -> dict[str, Any]:
    return {step["StepName"]: step for step in execution["steps"]}
