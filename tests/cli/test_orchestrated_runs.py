"""The commands on runs that a pipeline drives, on a real endpoint."""

from __future__ import annotations

import json
from typing import Any

import boto3

from tests.cli.conftest import Shell
from tests.e2e.chains import SEGMENTS, write_script


def execution_of(sagemaker: Any, name: str, definition: str) -> str:
    role = "arn:aws:iam::000000000000:role/pipelines"
    sagemaker.create_pipeline(PipelineName=name, PipelineDefinition=definition, RoleArn=role)
    return str(sagemaker.start_pipeline_execution(PipelineName=name)["PipelineExecutionArn"])


def test_a_pipelines_run_is_looked_at_and_stopped_like_any_other(standing: Shell) -> None:
    script = write_script(standing.folder / "chain")
    limits = ("--max-runtime", "10m", "--segment", "60s", "--env", "TEST_PAUSE=0.01")
    written = standing("export", "pipeline", script, "--local", "--strategy", "custom", *limits)
    assert written.code == 0, written.err
    variables = json.loads(standing("local", "env", "--json").out)
    sagemaker = boto3.Session(
        variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1"
    ).client("sagemaker", endpoint_url=variables["AWS_ENDPOINT_URL"])
    assert '"TEST_PAUSE": "0.01"' in written.out
    slow = written.out.replace('"TEST_PAUSE": "0.01"', '"TEST_PAUSE": "1"')
    left, stopped = (
        execution_of(sagemaker, name, definition)
        for name, definition in (("quick", written.out), ("slow", slow))
    )
    for execution in (left, stopped):
        while "has made no job yet" in standing("show", execution, "--local").err:
            pass
    waiting = standing.start("logs", "-f", left, "--local")
    done = standing("stop", stopped, "--local")
    assert done.code == 0 and done.err.rstrip().endswith(f"--pipeline-execution-arn {stopped}")
    log, told = waiting.communicate(timeout=60)
    assert (waiting.returncode, log.count("begins at step")) == (0, SEGMENTS), told

    run = left.rpartition("/")[2]
    shown = json.loads(standing("show", run, "--local", "--json").out)
    assert (shown["status"], shown["exit_code"], shown["step"], len(shown["jobs"])) == ("Completed", 0, 50, 5)
    assert shown["driver"] == left and shown["metrics"] == {}
    assert f"/{run}/" in shown["checkpoints"] and f"/{run}/" in shown["model_artifacts"]
    listed = {
        row["run"]: row["status"] for row in json.loads(standing("ls", "--local", "--json").out)["runs"]
    }
    assert listed[run] == "Completed"
    kept = json.loads(standing("checkpoints", "ls", run, "--local", "--json").out)
    assert kept["checkpoints"][0]["step"] == 50
    assert standing("wait", stopped, "--local").code == 5
    resumed = standing("resume", run, "--local")
    assert resumed.code == 2 and f"was driven by the pipeline's execution {left}" in resumed.err
    nobody = standing("show", run[::-1] + "x", "--local")
    assert nobody.code == 2 and "`smlaunch ls` shows the runs there" in nobody.err
