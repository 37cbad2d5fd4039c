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


def test_a_pipelines_run_is_looked_at_and_stopped_like_any_other(endpoint_shell: Shell) -> None:
    script = write_script(endpoint_shell.folder / "chain")
    limits = ("--max-runtime", "10m", "--segment", "60s", "--env", "TEST_PAUSE=0.01")
    export = endpoint_shell("export", "pipeline", script, "--local", "--strategy", "custom", *limits)
    assert export.code == 0, export.err
    variables = json.loads(endpoint_shell("local", "env", "--json").out)
    sagemaker = boto3.Session(
        variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1"
    ).client("sagemaker", endpoint_url=variables["AWS_ENDPOINT_URL"])
    assert '"TEST_PAUSE": "0.01"' in export.out
    slow = export.out.replace('"TEST_PAUSE": "0.01"', '"TEST_PAUSE": "1"')
    completed_execution, stopped_execution = (
        execution_of(sagemaker, name, definition)
        for name, definition in (("quick", export.out), ("slow", slow))
    )
    for execution in (completed_execution, stopped_execution):
        while "has made no job yet" in endpoint_shell("show", execution, "--local").err:
            pass
    waiting = endpoint_shell.start("logs", "-f", completed_execution, "--local")
    result = endpoint_shell("stop", stopped_execution, "--local")
    assert result.code == 0 and result.err.rstrip().endswith(f"--pipeline-execution-arn {stopped_execution}")
    log, messages = waiting.communicate(timeout=60)
    assert (waiting.returncode, log.count("begins at step")) == (0, SEGMENTS), messages

    run = completed_execution.rpartition("/")[2]
    details = json.loads(endpoint_shell("show", run, "--local", "--json").out)
    assert (details["status"], details["exit_code"], details["step"], len(details["jobs"])) == (
        "Completed",
        0,
        50,
        5,
    )
    assert details["driver"] == completed_execution and details["metrics"] == {}
    assert f"/{run}/" in details["checkpoints"] and f"/{run}/" in details["model_artifacts"]
    status_by_run = {
        row["run"]: row["status"] for row in json.loads(endpoint_shell("ls", "--local", "--json").out)["runs"]
    }
    assert status_by_run[run] == "Completed"
    checkpoints = json.loads(endpoint_shell("checkpoints", "ls", run, "--local", "--json").out)
    assert checkpoints["checkpoints"][0]["step"] == 50
    assert endpoint_shell("wait", stopped_execution, "--local").code == 5
    resume_result = endpoint_shell("resume", run, "--local")
    assert (
        resume_result.code == 2
        and f"was driven by the pipeline's execution {completed_execution}" in resume_result.err
    )
    missing_run = endpoint_shell("show", run[::-1] + "x", "--local")
    assert missing_run.code == 2 and "`smlaunch ls --local` shows the runs there" in missing_run.err
