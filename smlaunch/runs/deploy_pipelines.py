"""Puts an exported pipeline where it runs. The same export twice changes nothing the second time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.ports import CallError
from smlaunch.runs.aws import call
from smlaunch.runs.deploy import Deployed
from smlaunch.runs.retry import ROLE_PATIENCE, retrying
from smlaunch.runs.target import Target

_OURS = ", exported by smlaunch"
"""In the Comment of every definition that was."""


def deploy_pipeline(
    target: Target,
    name: str,
    definition: str,
    role: str,
    told: Callable[[CallError, float], None] | None = None,
) -> Deployed:
    """Makes the pipeline of this name, or makes it what ``definition`` says. ``role``: the ARN of the one its
    executions run under; a role that was made a moment ago is waited for, which ``told`` hears. Executions
    that run go on as they began.

    Raises CallError, and JobError for a pipeline of this name that is no export of smlaunch.
    """
    client = target.client("sagemaker")
    wanted: dict[str, Any] = {"PipelineName": name, "PipelineDefinition": definition, "RoleArn": role}
    try:
        there = call("DescribePipeline", client.describe_pipeline, PipelineName=name)
    except CallError as error:
        if error.code != "ResourceNotFound":
            raise
        made = retrying(
            lambda: call("CreatePipeline", client.create_pipeline, **wanted), ROLE_PATIENCE, told=told
        )
        return Deployed(made["PipelineArn"], "created")
    arn, before = there["PipelineArn"], _read(there["PipelineDefinition"])
    metadata = before.get("Metadata")
    if not isinstance(metadata, dict) or _OURS not in str(metadata.get("Comment", "")):
        said = "is there already, and was not exported by smlaunch; it stays as it is: choose another name"
        raise JobError([Problem("--called", f"{arn} {said}")])
    if there["RoleArn"] == role and before == _read(definition):
        return Deployed(arn, "unchanged")
    retrying(lambda: call("UpdatePipeline", client.update_pipeline, **wanted), ROLE_PATIENCE, told=told)
    return Deployed(arn, "updated")


def _read(definition: str) -> dict[str, Any]:
    """Compared as JSON: the service may keep it with other spaces. What is none of ours may be anything."""
    try:
        read = json.loads(definition)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
