"""SageMaker's operations on pipelines and their executions; see training_jobs.py for the conventions."""

from __future__ import annotations

import secrets
import string
import time
from dataclasses import replace

from smlaunch.local import api_support
from smlaunch.local.front.api_errors import ApiError, validation_error
from smlaunch.local.front.request_context import RequestContext, current_request_context
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.pipelines import pipeline_definition as definitions
from smlaunch.local.pipelines import pipeline_parameters
from smlaunch.local.pipelines.expressions import expression_value_text, resolve_expressions
from smlaunch.local.pipelines.job_client import JobClient
from smlaunch.local.pipelines.pipeline_records import Execution, Pipeline, StepRecord
from smlaunch.local.pipelines.pipeline_steps import Definition, InvalidDefinition
from smlaunch.local.pipelines.pipeline_store import AlreadyExistsError, PipelineStore
from smlaunch.local.pipelines.reference_values import ExecutionScope, S3ObjectStore
from smlaunch.local.pipelines.running_executions import PipelineExecutions
from smlaunch.local.services import pipeline_responses as responses
from smlaunch.local.services.pipeline_responses import page_of_entries

_ID_CHARACTERS = string.ascii_lowercase + string.digits
_MAX_DEFINITION_BYTES = 1 << 20
"""Of a definition in S3."""


class PipelineOperations:
    """One method for each operation, for JsonService."""

    def __init__(
        self,
        store: PipelineStore,
        executions: PipelineExecutions,
        objects: S3ObjectStore,
        job_client: JobClient,
    ) -> None:
        self._pipeline_store = store
        self._executions = executions
        self._object_store = objects
        self._job_client = job_client

    # ---- pipelines

    def create_pipeline(self, params: JsonObject) -> JsonObject:
        """Respond to CreatePipeline: store a new pipeline after its definition was checked. A repeated
        request with the same token and definition gets the same response. Raises ApiError."""
        _reject_unsupported_parameters("CreatePipeline", params)
        caller, now = current_request_context(), time.time()
        definition_text = self._read_definition_text(params)
        if definition_text is None:
            raise validation_error("One of PipelineDefinition and PipelineDefinitionS3Location is required")
        _parse_definition(definition_text)  # raises ApiError with all its problems
        pipeline_name = params["PipelineName"]
        pipeline = Pipeline(
            arn=_format_pipeline_arn(caller, pipeline_name),
            region=caller.region,
            name=pipeline_name,
            definition=definition_text,
            role=params["RoleArn"],
            created=now,
            modified=now,
            created_by=caller.arn,
            token=params["ClientRequestToken"],
            display_name=params.get("PipelineDisplayName"),
            description=params.get("PipelineDescription"),
            parallelism=_read_max_parallel_steps(params),
            tags={tag["Key"]: tag["Value"] for tag in params.get("Tags") or []},
        )
        try:
            self._pipeline_store.add_pipeline(pipeline)
        except AlreadyExistsError:
            existing_pipeline = self._pipeline_store.get_pipeline(pipeline.arn)
            is_repeated_request = (
                existing_pipeline is not None
                and existing_pipeline.token == pipeline.token
                and existing_pipeline.definition == definition_text
            )
            if is_repeated_request:  # its response may have been lost
                return {"PipelineArn": pipeline.arn}
            raise validation_error(
                "Pipeline names must be unique within an AWS account and region. "
                f"Pipeline with name ({pipeline_name}) already exists."
            ) from None
        return {"PipelineArn": pipeline.arn}

    def update_pipeline(self, params: JsonObject) -> JsonObject:
        """Respond to UpdatePipeline: change what the request gives of a pipeline. Raises ApiError."""
        _reject_unsupported_parameters("UpdatePipeline", params)
        pipeline = self._get_pipeline(params["PipelineName"])
        definition_text = self._read_definition_text(params)
        if definition_text is not None:
            _parse_definition(definition_text)  # raises ApiError with all its problems

        def apply_changes(stored_pipeline: Pipeline) -> Pipeline:
            return replace(
                stored_pipeline,
                definition=definition_text or stored_pipeline.definition,
                role=params.get("RoleArn", stored_pipeline.role),
                modified=time.time(),
                display_name=params.get("PipelineDisplayName", stored_pipeline.display_name),
                description=params.get("PipelineDescription", stored_pipeline.description),
                parallelism=_read_max_parallel_steps(params) or stored_pipeline.parallelism,
            )

        self._pipeline_store.update_pipeline(pipeline.arn, apply_changes)
        return {"PipelineArn": pipeline.arn}

    def describe_pipeline(self, params: JsonObject) -> JsonObject:
        _reject_unsupported_parameters("DescribePipeline", params)
        return responses.describe_pipeline(self._get_pipeline(params["PipelineName"]))

    def list_pipelines(self, params: JsonObject) -> JsonObject:
        """Respond to ListPipelines: a page of the pipelines of the region that match the filters, sorted by
        name or by the time of their creation."""
        name_prefix = params.get("PipelineNamePrefix", "")
        pipelines = [
            pipeline
            for pipeline in self._pipeline_store.list_pipelines(current_request_context().region)
            if pipeline.name.startswith(name_prefix) and _was_created_within(params, pipeline.created)
        ]
        if params.get("ManagedBy") == "AWS":
            pipelines = []  # none is managed by AWS here
        pipelines.sort(key=lambda pipeline: pipeline.name)
        if params.get("SortBy") != "Name":
            pipelines.sort(key=lambda pipeline: pipeline.created)
        return page_of_entries(
            params, "PipelineSummaries", [responses.pipeline_summary(pipeline) for pipeline in pipelines]
        )

    def delete_pipeline(self, params: JsonObject) -> JsonObject:
        pipeline = self._get_pipeline(params["PipelineName"])
        running = [
            execution.arn
            for execution in self._pipeline_store.list_executions(pipeline.arn)
            if not execution.has_ended
        ]
        if running:
            raise ApiError(
                "ConflictException",
                f"Pipeline {pipeline.name} has executions that have not ended: {', '.join(running)}; stop "
                "them first",
            )
        self._pipeline_store.delete_pipeline(pipeline.arn)
        return {"PipelineArn": pipeline.arn}

    # ---- executions

    def start_pipeline_execution(self, params: JsonObject) -> JsonObject:
        """Respond to StartPipelineExecution: start an execution of a pipeline with the given values of its
        parameters. A repeated request with the same token gets the same execution. Raises ApiError."""
        _reject_unsupported_parameters("StartPipelineExecution", params)
        pipeline = self._get_pipeline(params["PipelineName"])
        request_token = params["ClientRequestToken"]
        for existing_execution in self._pipeline_store.list_executions(pipeline.arn):
            if existing_execution.token == request_token:
                return {"PipelineExecutionArn": existing_execution.arn}  # a retry of the same request
        definition = _parse_definition(pipeline.definition)
        parameter_values, problems = pipeline_parameters.parse_values(
            definition.parameters, params.get("PipelineParameters") or []
        )
        if problems:
            raise validation_error(f"The pipeline's parameters: {'; '.join(problems)}")
        now, caller = time.time(), current_request_context()
        execution_id = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(12))
        execution = Execution(
            arn=f"{pipeline.arn}/execution/{execution_id}",
            pipeline=pipeline.arn,
            pipeline_name=pipeline.name,
            region=caller.region,
            owner=self._executions.endpoint_id,  # the endpoint that runs it
            definition=pipeline.definition,
            values=parameter_values,
            status="Executing",
            created=now,
            modified=now,
            created_by=caller.arn,
            token=request_token,
            display_name=params.get("PipelineExecutionDisplayName"),
            description=params.get("PipelineExecutionDescription"),
            parallelism=_read_max_parallel_steps(params) or pipeline.parallelism,
            role=pipeline.role,
        )
        # What the expressions in the definition, such as {"Get": "Parameters.x"}, can refer to.
        no_step_records: dict[str, StepRecord] = {}
        expression_scope = ExecutionScope(
            execution, definition, no_step_records, self._job_client, self._object_store
        )
        experiment_config = resolve_expressions(definition.experiment_config, expression_scope)
        execution = replace(execution, experiment=experiment_config)
        self._pipeline_store.add_execution(execution)
        # Changes the pipeline as it is stored now, not as it was read above.
        self._pipeline_store.update_pipeline(pipeline.arn, lambda stored: replace(stored, last_run=now))
        self._executions.start(execution, definition)
        return {"PipelineExecutionArn": execution.arn}

    def describe_pipeline_execution(self, params: JsonObject) -> JsonObject:
        return responses.describe_execution(self._get_execution(params))

    def list_pipeline_executions(self, params: JsonObject) -> JsonObject:
        """Respond to ListPipelineExecutions: a page of a pipeline's executions that match the filters, sorted
        by ARN or by the time of their start."""
        _reject_unsupported_parameters("ListPipelineExecutions", params)
        pipeline = self._get_pipeline(params["PipelineName"])
        executions = [
            execution
            for execution in self._pipeline_store.list_executions(pipeline.arn)
            if _was_created_within(params, execution.created)
        ]
        executions.sort(key=lambda execution: execution.arn)
        if params.get("SortBy") != "PipelineExecutionArn":
            executions.sort(key=lambda execution: execution.created)
        return page_of_entries(
            params,
            "PipelineExecutionSummaries",
            [responses.execution_summary(execution) for execution in executions],
        )

    def list_pipeline_execution_steps(self, params: JsonObject) -> JsonObject:
        execution = self._get_execution(params)
        steps = _parse_definition(execution.definition).steps
        records = self._pipeline_store.get_steps(execution.arn).values()
        summaries = [responses.step_summary(record, steps[record.name]) for record in records]
        return page_of_entries(params, "PipelineExecutionSteps", summaries)

    def describe_pipeline_definition_for_execution(self, params: JsonObject) -> JsonObject:
        execution = self._get_execution(params)
        return {"PipelineDefinition": execution.definition, "CreationTime": execution.created}

    def list_pipeline_parameters_for_execution(self, params: JsonObject) -> JsonObject:
        values = self._get_execution(params).values
        entries = [{"Name": name, "Value": expression_value_text(value)} for name, value in values.items()]
        return page_of_entries({"SortOrder": "Ascending", **params}, "PipelineParameters", entries)

    def stop_pipeline_execution(self, params: JsonObject) -> JsonObject:
        execution = self._get_execution(params)
        if execution.has_ended:
            raise validation_error(
                f"The request was rejected because the pipeline execution is in status {execution.status}."
            )
        self._executions.stop(execution)
        return {"PipelineExecutionArn": execution.arn}

    def retry_pipeline_execution(self, params: JsonObject) -> JsonObject:
        """Respond to RetryPipelineExecution: run an execution again, without the steps that have succeeded.
        Raises ApiError."""
        execution = self._get_execution(params)
        if execution.status not in ("Failed", "Stopped"):
            raise validation_error(
                "The request was rejected because only an execution that is Failed or Stopped can be "
                f"retried; this one is {execution.status}."
            )
        record_by_step = self._pipeline_store.get_steps(execution.arn)
        steps_to_repeat = [name for name, record in record_by_step.items() if record.status != "Succeeded"]
        self._pipeline_store.delete_steps(execution.arn, steps_to_repeat)
        restarted_execution = replace(
            execution,
            owner=self._executions.endpoint_id,
            status="Executing",
            failure=None,
            modified=time.time(),
            parallelism=_read_max_parallel_steps(params) or execution.parallelism,
        )
        self._pipeline_store.save_execution(restarted_execution)
        self._executions.start(restarted_execution, _parse_definition(restarted_execution.definition))
        return {"PipelineExecutionArn": execution.arn}

    # ---- lookup

    def _get_pipeline(self, name: str) -> Pipeline:
        arn = name if name.startswith("arn:") else _format_pipeline_arn(current_request_context(), name)
        pipeline = self._pipeline_store.get_pipeline(arn)
        if pipeline is None:
            raise ApiError("ResourceNotFound", f"Pipeline '{arn}' does not exist.")
        return pipeline

    def _get_execution(self, params: JsonMapping) -> Execution:
        """Return the execution that a request names. One of an endpoint that has died fails first. Raises
        ApiError if it does not exist."""
        arn = params["PipelineExecutionArn"]
        execution = self._pipeline_store.get_execution(arn)
        if execution is None:
            raise ApiError("ResourceNotFound", f"Pipeline execution with ARN '{arn}' does not exist.")
        if self._executions.is_lost(execution):
            return self._pipeline_store.get_execution(arn) or execution
        return execution

    def _read_definition_text(self, params: JsonMapping) -> str | None:
        """Return the pipeline's definition that a request has as text or as an object in S3, which the
        endpoint stores in a file; None without one. Raises ApiError."""
        inline_text: str | None = params.get("PipelineDefinition")
        s3_location = params.get("PipelineDefinitionS3Location")
        if s3_location is None:
            return inline_text
        if inline_text is not None:
            raise validation_error("PipelineDefinition and PipelineDefinitionS3Location cannot both be set")
        definition_uri = f"s3://{s3_location['Bucket']}/{s3_location['ObjectKey']}"
        try:
            # Raises KeyError without such an object.
            definition_file = self._object_store.object_body_path(
                s3_location["Bucket"], s3_location["ObjectKey"]
            )
            if definition_file.stat().st_size > _MAX_DEFINITION_BYTES:
                raise validation_error(f"{definition_uri} is larger than {_MAX_DEFINITION_BYTES} bytes")
            return str(definition_file.read_text("utf-8"))
        except (KeyError, OSError):
            raise validation_error(f"PipelineDefinitionS3Location: {definition_uri} does not exist") from None
        except UnicodeDecodeError as error:
            raise validation_error(f"PipelineDefinitionS3Location: {definition_uri}: {error}") from None


def _format_pipeline_arn(caller: RequestContext, name: str) -> str:
    return caller.resource_arn("sagemaker", f"pipeline/{name.lower()}")


def _read_max_parallel_steps(params: JsonMapping) -> int | None:
    return (params.get("ParallelismConfiguration") or {}).get("MaxParallelExecutionSteps")


def _was_created_within(params: JsonMapping, creation_time: float) -> bool:
    """Return whether a time is after CreatedAfter and before CreatedBefore, where these are given."""
    created_after, created_before = params.get("CreatedAfter"), params.get("CreatedBefore")
    if created_after is not None and creation_time <= created_after:
        return False
    return created_before is None or creation_time < created_before


def _reject_unsupported_parameters(operation: str, params: JsonMapping) -> None:
    """Raise ApiError with all parameters of an operation that the support matrix rejects."""
    rejections = []
    for name in params:
        support = api_support.PIPELINE_SUPPORT.get(f"{operation}.{name}")
        if support is not None and support.level == "rejected":
            rejections.append(f"{name}: {support.note}")
    location = params.get("PipelineDefinitionS3Location") or {}
    if "VersionId" in location:
        rejections.append("PipelineDefinitionS3Location.VersionId: objects have no versions here")
    if rejections:
        raise validation_error(f"This endpoint does not support the request. {'; '.join(rejections)}")


def _parse_definition(text: str) -> Definition:
    try:
        return definitions.parse_definition(text)
    except InvalidDefinition as error:
        problems = "; ".join(error.problems)
        count = f"{len(error.problems)} problem{'s' if len(error.problems) > 1 else ''}"
        raise validation_error(f"{count} in the pipeline's definition: {problems}") from None
