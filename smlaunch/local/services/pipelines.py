"""The SageMaker operations on pipelines and their executions; parameters and answers as in sagemaker.py."""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smlaunch.local import honesty
from smlaunch.local.caller import Caller, current
from smlaunch.local.errors import ApiError, validation_error
from smlaunch.local.pipelines import definition as definitions
from smlaunch.local.pipelines import parameters
from smlaunch.local.pipelines.definition import BadDefinition, Definition
from smlaunch.local.pipelines.door import JobDoor
from smlaunch.local.pipelines.expressions import as_text, resolve
from smlaunch.local.pipelines.records import EXECUTION_ENDED, Execution, Pipeline
from smlaunch.local.pipelines.runs import PipelineRuns
from smlaunch.local.pipelines.store import PipelineStore, Taken
from smlaunch.local.pipelines.values import ExecutionScope, Objects
from smlaunch.local.services import pipeline_answers as answers
from smlaunch.local.services.pipeline_answers import page

_LETTERS = string.ascii_lowercase + string.digits
_LARGEST = 1 << 20


class Pipelines:
    """One method per operation, named in snake case, as the dispatcher calls them."""

    def __init__(self, store: PipelineStore, runs: PipelineRuns, objects: Objects, door: JobDoor) -> None:
        self._store = store
        self._runs = runs
        self._objects = objects
        self._door = door

    # ---- pipelines

    def create_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse("CreatePipeline", params)
        caller, now = current(), time.time()
        text = self._definition_text(params)
        if text is None:
            raise validation_error("One of PipelineDefinition and PipelineDefinitionS3Location is needed")
        _read(text)
        name = params["PipelineName"]
        pipeline = Pipeline(
            arn=_arn(caller, name),
            region=caller.region,
            name=name,
            definition=text,
            role=params["RoleArn"],
            created=now,
            modified=now,
            by=caller.arn,
            token=params["ClientRequestToken"],
            display_name=params.get("PipelineDisplayName"),
            description=params.get("PipelineDescription"),
            parallelism=_parallelism(params),
            tags={tag["Key"]: tag["Value"] for tag in params.get("Tags") or []},
        )
        try:
            self._store.create(pipeline)
        except Taken:
            there = self._store.pipeline(pipeline.arn)
            if there is not None and (there.token, there.definition) == (pipeline.token, text):
                return {"PipelineArn": there.arn}  # the same request again
            raise validation_error(
                "Pipeline names must be unique within an AWS account and region. "
                f"Pipeline with name ({name}) already exists."
            ) from None
        return {"PipelineArn": pipeline.arn}

    def update_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse("UpdatePipeline", params)
        pipeline = self._pipeline(params["PipelineName"])
        text = self._definition_text(params)
        if text is not None:
            _read(text)

        def changed(now: Pipeline) -> Pipeline:
            return replace(
                now,
                definition=text or now.definition,
                role=params.get("RoleArn", now.role),
                modified=time.time(),
                display_name=params.get("PipelineDisplayName", now.display_name),
                description=params.get("PipelineDescription", now.description),
                parallelism=_parallelism(params) or now.parallelism,
            )

        self._store.change(pipeline.arn, changed)
        return {"PipelineArn": pipeline.arn}

    def describe_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse("DescribePipeline", params)
        return answers.pipeline(self._pipeline(params["PipelineName"]))

    def list_pipelines(self, params: dict[str, Any]) -> dict[str, Any]:
        prefix = params.get("PipelineNamePrefix", "")
        found = [
            one
            for one in self._store.pipelines(current().region)
            if one.name.startswith(prefix) and _within(params, one.created)
        ]
        if params.get("ManagedBy") == "AWS":
            found = []  # all here are the customer's
        by_name = params.get("SortBy") == "Name"
        found.sort(key=lambda one: (one.name if by_name else one.created, one.name))
        return page(params, "PipelineSummaries", [answers.summary(one) for one in found])

    def delete_pipeline(self, params: dict[str, Any]) -> dict[str, Any]:
        pipeline = self._pipeline(params["PipelineName"])
        running = [one.arn for one in self._store.executions(pipeline.arn) if not one.ended]
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
        _refuse("StartPipelineExecution", params)
        pipeline = self._pipeline(params["PipelineName"])
        token = params["ClientRequestToken"]
        for there in self._store.executions(pipeline.arn):
            if there.token == token:
                return {"PipelineExecutionArn": there.arn}  # the same request again
        definition = _read(pipeline.definition)
        values, wrong = parameters.values(definition.parameters, params.get("PipelineParameters") or [])
        if wrong:
            raise validation_error(f"The pipeline's parameters: {'; '.join(wrong)}")
        now, caller = time.time(), current()
        execution = Execution(
            arn=f"{pipeline.arn}/execution/{''.join(secrets.choice(_LETTERS) for _ in range(12))}",
            pipeline=pipeline.arn,
            pipeline_name=pipeline.name,
            region=caller.region,
            owner=self._runs.owner,
            definition=pipeline.definition,
            values=values,
            status="Executing",
            created=now,
            modified=now,
            by=caller.arn,
            token=token,
            display_name=params.get("PipelineExecutionDisplayName"),
            description=params.get("PipelineExecutionDescription"),
            parallelism=_parallelism(params) or pipeline.parallelism,
            role=pipeline.role,
        )
        scope = ExecutionScope(execution, definition, {}, self._door, self._objects)
        execution = replace(execution, experiment=resolve(definition.experiment, scope))
        self._store.start(execution)
        self._store.change(pipeline.arn, lambda one: replace(one, last_run=now))
        self._runs.start(execution, definition)
        return {"PipelineExecutionArn": execution.arn}

    def describe_pipeline_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        return answers.execution(self._execution(params))

    def list_pipeline_executions(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse("ListPipelineExecutions", params)
        pipeline = self._pipeline(params["PipelineName"])
        found = [one for one in self._store.executions(pipeline.arn) if _within(params, one.created)]
        by_arn = params.get("SortBy") == "PipelineExecutionArn"
        found.sort(key=lambda one: (one.arn if by_arn else one.created, one.arn))
        return page(params, "PipelineExecutionSummaries", [answers.run(one) for one in found])

    def list_pipeline_execution_steps(self, params: dict[str, Any]) -> dict[str, Any]:
        execution = self._execution(params)
        steps = _read(execution.definition).steps
        records = self._store.steps(execution.arn).values()
        found = [answers.step(one, steps[one.name]) for one in records]
        return page(params, "PipelineExecutionSteps", found)

    def describe_pipeline_definition_for_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        execution = self._execution(params)
        return {"PipelineDefinition": execution.definition, "CreationTime": execution.created}

    def list_pipeline_parameters_for_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        values = self._execution(params).values
        found = [{"Name": name, "Value": as_text(value)} for name, value in values.items()]
        return page({"SortOrder": "Ascending", **params}, "PipelineParameters", found)

    def stop_pipeline_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        execution = self._execution(params)
        if execution.ended:
            raise validation_error(
                f"The request was rejected because the pipeline execution is in status {execution.status}."
            )
        self._runs.stop(execution)
        return {"PipelineExecutionArn": execution.arn}

    def retry_pipeline_execution(self, params: dict[str, Any]) -> dict[str, Any]:
        """Steps that have succeeded stay so; the others begin again."""
        execution = self._execution(params)
        if execution.status not in ("Failed", "Stopped"):
            raise validation_error(
                "The request was rejected because only an execution that is Failed or Stopped can be "
                f"retried; this one is {execution.status}."
            )
        steps = self._store.steps(execution.arn)
        self._store.forget_steps(
            execution.arn, [name for name, one in steps.items() if one.status != "Succeeded"]
        )
        again = replace(
            execution,
            owner=self._runs.owner,
            status="Executing",
            failure=None,
            modified=time.time(),
            parallelism=_parallelism(params) or execution.parallelism,
        )
        self._store.save(again)
        self._runs.start(again, _read(again.definition))
        return {"PipelineExecutionArn": execution.arn}

    # ---- what is there

    def _pipeline(self, name: str) -> Pipeline:
        arn = name if name.startswith("arn:") else _arn(current(), name)
        found = self._store.pipeline(arn)
        if found is None:
            raise ApiError("ResourceNotFound", f"Pipeline '{arn}' does not exist.")
        return found

    def _execution(self, params: Mapping[str, Any]) -> Execution:
        arn = params["PipelineExecutionArn"]
        found = self._store.execution(arn)
        if found is None:
            raise ApiError("ResourceNotFound", f"Pipeline execution with ARN '{arn}' does not exist.")
        assert found.ended == (found.status in EXECUTION_ENDED)
        return found

    def _definition_text(self, params: Mapping[str, Any]) -> str | None:
        text: str | None = params.get("PipelineDefinition")
        place = params.get("PipelineDefinitionS3Location")
        if place is None:
            return text
        if text is not None:
            raise validation_error("PipelineDefinition and PipelineDefinitionS3Location cannot both be given")
        told = f"s3://{place['Bucket']}/{place['ObjectKey']}"
        try:
            path = self._objects.path(place["Bucket"], place["ObjectKey"])
            if path.stat().st_size > _LARGEST:
                raise validation_error(f"{told} is larger than {_LARGEST} bytes")
            return str(path.read_text("utf-8"))
        except (KeyError, OSError):
            raise validation_error(f"PipelineDefinitionS3Location: {told} does not exist") from None
        except UnicodeDecodeError as error:
            raise validation_error(f"PipelineDefinitionS3Location: {told}: {error}") from None


def _arn(caller: Caller, name: str) -> str:
    return caller.resource_arn("sagemaker", f"pipeline/{name.lower()}")


def _parallelism(params: Mapping[str, Any]) -> int | None:
    return (params.get("ParallelismConfiguration") or {}).get("MaxParallelExecutionSteps")


def _within(params: Mapping[str, Any], created: float) -> bool:
    after, before = params.get("CreatedAfter"), params.get("CreatedBefore")
    return (after is None or created > after) and (before is None or created < before)


def _refuse(operation: str, params: Mapping[str, Any]) -> None:
    """What the honesty table refuses of an operation. Raises ApiError that names all of it."""
    refused = [
        f"{member}: {row.sentence}"
        for member in params
        if (row := honesty.PIPELINES.get(f"{operation}.{member}")) is not None and row.effect == "refused"
    ]
    location = params.get("PipelineDefinitionS3Location") or {}
    if "VersionId" in location:
        refused.append("PipelineDefinitionS3Location.VersionId: objects have no versions here")
    if refused:
        raise validation_error(f"This endpoint cannot do this as it is asked for. {'; '.join(refused)}")


def _read(text: str) -> Definition:
    try:
        return definitions.read(text)
    except BadDefinition as bad:
        told = "; ".join(bad.problems)
        count = f"{len(bad.problems)} problem{'s' if len(bad.problems) > 1 else ''}"
        raise validation_error(f"{count} in the pipeline's definition: {told}") from None
