"""Deploys an exported pipeline to SageMaker. Deploying the same export again changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from smlaunch.aws.client import call_api
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.retry import ROLE_BACKOFF, call_with_retries
from smlaunch.errors import JobError, Problem
from smlaunch.runs.deploy import DeployResult
from smlaunch.runs.target import Target

_EXPORT_COMMENT = ", exported by smlaunch"
"""In the Comment of every exported definition."""


def deploy_pipeline(
    target: Target,
    name: str,
    definition: str,
    role: str,
    on_retry: Callable[[CallError, float], None] | None = None,
) -> DeployResult:
    """Create or update the pipeline of this name.

    ``role`` is the ARN of the role for its executions. A new role may not be usable at once: the call is
    retried, and ``on_retry`` receives each wait. Running executions go on as they began.

    Raises CallError, and JobError for a pipeline of this name that smlaunch did not export.
    """
    client = target.client("sagemaker")
    desired: dict[str, Any] = {"PipelineName": name, "PipelineDefinition": definition, "RoleArn": role}
    try:
        existing = call_api("DescribePipeline", client.describe_pipeline, PipelineName=name)
    except CallError as error:
        if error.code != "ResourceNotFound":
            raise
        created = call_with_retries(
            lambda: call_api("CreatePipeline", client.create_pipeline, **desired),
            ROLE_BACKOFF,
            on_retry=on_retry,
        )
        return DeployResult(created["PipelineArn"], "created")
    arn, existing_definition = existing["PipelineArn"], _parse_definition(existing["PipelineDefinition"])
    metadata = existing_definition.get("Metadata")
    if not isinstance(metadata, dict) or _EXPORT_COMMENT not in str(metadata.get("Comment", "")):
        problem = "exists already and was not exported by smlaunch; it was not changed: choose another name"
        raise JobError([Problem("--called", f"{arn} {problem}")])
    if existing["RoleArn"] == role and existing_definition == _parse_definition(definition):
        return DeployResult(arn, "unchanged")
    call_with_retries(
        lambda: call_api("UpdatePipeline", client.update_pipeline, **desired), ROLE_BACKOFF, on_retry=on_retry
    )
    return DeployResult(arn, "updated")


def _parse_definition(definition: str) -> dict[str, Any]:
    """Parse a definition for comparison as JSON, because the service may store other spaces. Returns an empty
    dict for a definition that is not a JSON object."""
    try:
        document = json.loads(definition)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
