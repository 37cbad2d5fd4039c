"""SageMaker's operations on pipelines and their executions; see training_jobs.py for the conventions."""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smlaunch.local import support
from smlaunch.local.api_errors import ApiError, validation_error
from smlaunch.local.pipelines import definition as definitions
from smlaunch.local.pipelines import parameters
from smlaunch.local.pipelines.definition import BadDefinition, Definition
from smlaunch.local.pipelines.executions import PipelineExecutions
from smlaunch.local.pipelines.expressions import resolve, to_text
from smlaunch.local.pipelines.job_client import JobClient
from smlaunch.local.pipelines.records import Execution, Pipeline
from smlaunch.local.pipelines.references import ExecutionScope, Objects
from smlaunch.local.pipelines.store import AlreadyExistsError, PipelineStore
from smlaunch.local.request_context import RequestContext, current_context
from smlaunch.local.services import pipeline_responses as responses
from smlaunch.local.services.pipeline_responses import page_of_entries

_ID_CHARACTERS = string.ascii_lowercase + string.digits
_MAX_DEFINITION_BYTES = 1 << 20
"""Of a definition in S3."""


class PipelineOperations:
    """One method for each operation, for JsonService."""

    def __init__(
        self, store: PipelineStore, executions: PipelineExecutions, objects: Objects, job_client: JobClient
    ) -> None:
        self._store = store
        self._executions = executions
        self._objects = objects
        self._job_client = job_client

    # ---- pipelines

    def create_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        """Store a new pipeline after its definition was checked. A repeated request with the same token and
        definition gets the same response. Raises ApiError."""
        _reject_unsupported("CreatePipeline", params)
        caller, now = current_context(), time.time()
        text = self._definition_text(params)
        if text is None:
            raise validation_error("One of PipelineDefinition and PipelineDefinitionS3Location is required")
        _parse_definition(text)
        name = params["PipelineName"]
        pipeline = Pipeline(
            arn=_pipeline_arn(caller, name),
            region=caller.region,
            name=name,
            definition=text,
            role=params["RoleArn"],
            created=now,
            modified=now,
            created_by=caller.arn,
            token=params["ClientRequestToken"],
            display_name=params.get("PipelineDisplayName"),
            description=params.get("PipelineDescription"),
            parallelism=_parallelism(params),
            tags={tag["Key"]: tag["Value"] for tag in params.get("Tags") or []},
        )
        try:
            self._store.create(pipeline)
        except AlreadyExistsError:
            existing = self._store.pipeline(pipeline.arn)
            if existing is not None and (existing.token, existing.definition) == (pipeline.token, text):
                return {"PipelineArn": existing.arn}  # a retry of the same request
            raise validation_error(
                "Pipeline names must be unique within an AWS account and region. "
                f"Pipeline with name ({name}) already exists."
            ) from None
        return {"PipelineArn": pipeline.arn}

    def update_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        _reject_unsupported("UpdatePipeline", params)
        pipeline = self._pipeline(params["PipelineName"])
        text = self._definition_text(params)
        if text is not None:
            _parse_definition(text)

        def updated(current_pipeline: Pipeline) -> Pipeline:
            return replace(
                current_pipeline,
                definition=text or current_pipeline.definition,
                role=params.get("RoleArn", current_pipeline.role),
                modified=time.time(),
                display_name=params.get("PipelineDisplayName", current_pipeline.display_name),
                description=params.get("PipelineDescription", current_pipeline.description),
                parallelism=_parallelism(params) or current_pipeline.parallelism,
            )

        self._store.update(pipeline.arn, updated)
        return {"PipelineArn": pipeline.arn}

    def describe_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        _reject_unsupported("DescribePipeline", params)
        return responses.describe_pipeline(self._pipeline(params["PipelineName"]))

    def list_pipelines(self, params: dict[str, Any]) -> dict[str, Any]:
        prefix = params.get("PipelineNamePrefix", "")
        pipelines = [
            pipeline
            for pipeline in self._store.pipelines(current_context().region)
            if pipeline.name.startswith(prefix) and _was_created_within(params, pipeline.created)
        ]
        if params.get("ManagedBy") == "AWS":
            pipelines = []  # none is managed by AWS here
        by_name = params.get("SortBy") == "Name"
        pipelines.sort(key=lambda pipeline: (pipeline.name if by_name else pipeline.created, pipeline.name))
        return page_of_entries(
            params, "PipelineSummaries", [responses.pipeline_summary(pipeline) for pipeline in pipelines]
        )

    def delete_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        pipeline = self._pipeline(params["PipelineName"])
        running = [
            execution.arn for execution in self._store.executions(pipeline.arn) if not execution.has_ended
        ]
        if running:
            raise ApiError(
                "ConflictException",
                f"Pipeline {pipeline.name} has executions that have not ended: {', '.join(running)}; stop "
                "them first",
            )
        self._store.delete(pipeline.arn)
        return {"PipelineArn": pipeline.arn}

    # ---- executions

    def start_pipeline_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start an execution of a pipeline with the given values of its parameters. A repeated request with
        the same token gets the same execution. Raises ApiError."""
        _reject_unsupported("StartPipelineExecution", params)
        pipeline = self._pipeline(params["PipelineName"])
        token = params["ClientRequestToken"]
        for existing in self._store.executions(pipeline.arn):
            if existing.token == token:
                return {"PipelineExecutionArn": existing.arn}  # a retry of the same request
        definition = _parse_definition(pipeline.definition)
        values, problems = parameters.parse_values(
            definition.parameters, params.get("PipelineParameters") or []
        )
        if problems:
            raise validation_error(f"The pipeline's parameters: {'; '.join(problems)}")
        now, caller = time.time(), current_context()
        execution = Execution(
            arn=f"{pipeline.arn}/execution/{''.join(secrets.choice(_ID_CHARACTERS) for _ in range(12))}",
            pipeline=pipeline.arn,
            pipeline_name=pipeline.name,
            region=caller.region,
            owner=self._executions.owner,
            definition=pipeline.definition,
            values=values,
            status="Executing",
            created=now,
            modified=now,
            created_by=caller.arn,
            token=token,
            display_name=params.get("PipelineExecutionDisplayName"),
            description=params.get("PipelineExecutionDescription"),
            parallelism=_parallelism(params) or pipeline.parallelism,
            role=pipeline.role,
        )
        scope = ExecutionScope(execution, definition, {}, self._job_client, self._objects)
        execution = replace(execution, experiment=resolve(definition.experiment, scope))
        self._store.start(execution)
        self._store.update(pipeline.arn, lambda stored: replace(stored, last_run=now))
        self._executions.start(execution, definition)
        return {"PipelineExecutionArn": execution.arn}

    def describe_pipeline_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        return responses.describe_execution(self._execution(params))

    def list_pipeline_executions(self, params: dict[str, Any]) -> dict[str, Any]:
        _reject_unsupported("ListPipelineExecutions", params)
        pipeline = self._pipeline(params["PipelineName"])
        executions = [
            execution
            for execution in self._store.executions(pipeline.arn)
            if _was_created_within(params, execution.created)
        ]
        by_arn = params.get("SortBy") == "PipelineExecutionArn"
        executions.sort(key=lambda execution: (execution.arn if by_arn else execution.created, execution.arn))
        return page_of_entries(
            params,
            "PipelineExecutionSummaries",
            [responses.execution_summary(execution) for execution in executions],
        )

    def list_pipeline_execution_steps(self, params: dict[str, Any]) -> dict[str, Any]:
        execution = self._execution(params)
        steps = _parse_definition(execution.definition).steps
        records = self._store.steps(execution.arn).values()
        summaries = [responses.step_summary(record, steps[record.name]) for record in records]
        return page_of_entries(params, "PipelineExecutionSteps", summaries)

    def describe_pipeline_definition_for_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        execution = self._execution(params)
        return {"PipelineDefinition": execution.definition, "CreationTime": execution.created}

    def list_pipeline_parameters_for_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        values = self._execution(params).values
        members = [{"Name": name, "Value": to_text(value)} for name, value in values.items()]
        return page_of_entries({"SortOrder": "Ascending", **params}, "PipelineParameters", members)

    def stop_pipeline_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        execution = self._execution(params)
        if execution.has_ended:
            raise validation_error(
                f"The request was rejected because the pipeline execution is in status {execution.status}."
            )
        self._executions.stop(execution)
        return {"PipelineExecutionArn": execution.arn}

    def retry_pipeline_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        """Run an execution again, without the steps that have succeeded."""
        execution = self._execution(params)
        if execution.status not in ("Failed", "Stopped"):
            raise validation_error(
                "The request was rejected because only an execution that is Failed or Stopped can be "
                f"retried; this one is {execution.status}."
            )
        steps = self._store.steps(execution.arn)
        self._store.delete_steps(
            execution.arn, [name for name, record in steps.items() if record.status != "Succeeded"]
        )
        restarted = replace(
            execution,
            owner=self._executions.owner,
            status="Executing",
            failure=None,
            modified=time.time(),
            parallelism=_parallelism(params) or execution.parallelism,
        )
        self._store.save(restarted)
        self._executions.start(restarted, _parse_definition(restarted.definition))
        return {"PipelineExecutionArn": execution.arn}

    # ---- lookup

    def _pipeline(self, name: str) -> Pipeline:
        arn = name if name.startswith("arn:") else _pipeline_arn(current_context(), name)
        pipeline = self._store.pipeline(arn)
        if pipeline is None:
            raise ApiError("ResourceNotFound", f"Pipeline '{arn}' does not exist.")
        return pipeline

    def _execution(self, params: Mapping[str, Any]) -> Execution:
        arn = params["PipelineExecutionArn"]
        execution = self._store.execution(arn)
        if execution is None:
            raise ApiError("ResourceNotFound", f"Pipeline execution with ARN '{arn}' does not exist.")
        return execution

    def _definition_text(self, params: Mapping[str, Any]) -> str | None:
        """Return the definition that a request has as text or as an object in S3; None without one. Raises
        ApiError."""
        text: str | None = params.get("PipelineDefinition")
        location = params.get("PipelineDefinitionS3Location")
        if location is None:
            return text
        if text is not None:
            raise validation_error("PipelineDefinition and PipelineDefinitionS3Location cannot both be set")
        uri = f"s3://{location['Bucket']}/{location['ObjectKey']}"
        try:
            path = self._objects.body_path(location["Bucket"], location["ObjectKey"])
            if path.stat().st_size > _MAX_DEFINITION_BYTES:
                raise validation_error(f"{uri} is larger than {_MAX_DEFINITION_BYTES} bytes")
            return str(path.read_text("utf-8"))
        except (KeyError, OSError):
            raise validation_error(f"PipelineDefinitionS3Location: {uri} does not exist") from None
        except UnicodeDecodeError as error:
            raise validation_error(f"PipelineDefinitionS3Location: {uri}: {error}") from None


def _pipeline_arn(caller: RequestContext, name: str) -> str:
    return caller.resource_arn("sagemaker", f"pipeline/{name.lower()}")


def _parallelism(params: Mapping[str, Any]) -> int | None:
    return (params.get("ParallelismConfiguration") or {}).get("MaxParallelExecutionSteps")


def _was_created_within(params: Mapping[str, Any], created: float) -> bool:
    after, before = params.get("CreatedAfter"), params.get("CreatedBefore")
    return (after is None or created > after) and (before is None or created < before)


def _reject_unsupported(operation: str, params: Mapping[str, Any]) -> None:
    """Raise ApiError with all parameters of an operation that the support matrix rejects."""
    rejections = [
        f"{member}: {row.note}"
        for member in params
        if (row := support.PIPELINE_SUPPORT.get(f"{operation}.{member}")) is not None
        and row.level == "rejected"
    ]
    location = params.get("PipelineDefinitionS3Location") or {}
    if "VersionId" in location:
        rejections.append("PipelineDefinitionS3Location.VersionId: objects have no versions here")
    if rejections:
        raise validation_error(f"This endpoint does not support the request. {'; '.join(rejections)}")


def _parse_definition(text: str) -> Definition:
    try:
        return definitions.parse_definition(text)
    except BadDefinition as error:
        problems = "; ".join(error.problems)
        count = f"{len(error.problems)} problem{'s' if len(error.problems) > 1 else ''}"
        raise validation_error(f"{count} in the pipeline's definition: {problems}") from None
