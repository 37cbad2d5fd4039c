"""Deploys an exported pipeline to SageMaker. Deploying the same export again changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from smlaunch.aws.api_call import call_api
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import BACKOFF_FOR_NEW_ROLE, call_with_retries
from smlaunch.errors import JobError, Problem
from smlaunch.runs.deploy_state_machine import DeployResult
from smlaunch.runs.launch_target import Target

_EXPORT_COMMENT = ", exported by smlaunch"
"""In the Comment of every exported definition."""


def deploy_pipeline(
    target: Target,
    pipeline_name: str,
    definition: str,
    role_arn: str,
    on_retry: Callable[[CallError, float], None] | None = None,
) -> DeployResult:
    """Create or update the SageMaker pipeline of this name in ``target``, a region or a local endpoint.

    ``definition`` is the pipeline's JSON document. ``role_arn`` is the role for its executions. A new role
    may not be usable for some seconds: the call is retried, and ``on_retry`` receives each error with the
    seconds until the next try. Running executions go on as they began.

    Raises CallError, and JobError for a pipeline of this name that smlaunch did not make.
    """
    client = target.client("sagemaker")
    request: dict[str, Any] = {
        "PipelineName": pipeline_name,
        "PipelineDefinition": definition,
        "RoleArn": role_arn,
    }
    try:
        existing_pipeline = call_api("DescribePipeline", client.describe_pipeline, PipelineName=pipeline_name)
    except CallError as error:
        if error.code != "ResourceNotFound":
            raise
        response = call_with_retries(
            lambda: call_api("CreatePipeline", client.create_pipeline, **request),
            BACKOFF_FOR_NEW_ROLE,
            on_retry=on_retry,
        )
        return DeployResult(arn=response["PipelineArn"], change="created")
    pipeline_arn = existing_pipeline["PipelineArn"]
    # A dict, so that the order of keys and the spaces do not matter in the comparison below.
    existing_definition = _parse_definition(existing_pipeline["PipelineDefinition"])
    if not _was_exported_by_smlaunch(existing_definition):
        problem = "exists already and was not exported by smlaunch; it was not changed: choose another name"
        # --called is the option that names the pipeline.
        raise JobError([Problem("--called", f"{pipeline_arn} {problem}")])
    if existing_pipeline["RoleArn"] == role_arn and existing_definition == _parse_definition(definition):
        return DeployResult(arn=pipeline_arn, change="unchanged")
    call_with_retries(
        lambda: call_api("UpdatePipeline", client.update_pipeline, **request),
        BACKOFF_FOR_NEW_ROLE,
        on_retry=on_retry,
    )
    return DeployResult(arn=pipeline_arn, change="updated")


def _was_exported_by_smlaunch(definition: dict[str, Any]) -> bool:
    """Return whether a pipeline's definition has the comment that every export has."""
    metadata = definition.get("Metadata")
    return isinstance(metadata, dict) and _EXPORT_COMMENT in str(metadata.get("Comment", ""))


def _parse_definition(definition: str) -> dict[str, Any]:
    """Parse a definition for comparison as JSON, because the service may store other spaces. Returns an empty
    dict for a definition that is not a JSON object."""
    try:
        document = json.loads(definition)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
