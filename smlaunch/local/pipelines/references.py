"""Where an execution's references get their values from: parameters, jobs, and files in S3."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from smlaunch.local.api_errors import ApiError
from smlaunch.local.pipelines.definition import Definition
from smlaunch.local.pipelines.expressions import Unresolved, walk
from smlaunch.local.pipelines.job_client import JobClient
from smlaunch.local.pipelines.records import Execution, StepRecord

_LARGEST_FILE = 16 << 20


class Objects(Protocol):
    def body_path(self, bucket: str, key: str) -> Any: ...


class ExecutionScope:
    """An expressions.Scope. ``new_job``: the name of the job that is being made, if one is."""

    def __init__(
        self,
        execution: Execution,
        definition: Definition,
        records: Mapping[str, StepRecord],
        door: JobClient,
        objects: Objects,
        new_job: str = "",
    ) -> None:
        self._execution = execution
        self._definition = definition
        self._records = records
        self._door = door
        self._objects = objects
        self._new_job = new_job

    def parameter(self, name: str) -> Any:
        return self._execution.values[name]

    def execution(self, name: str) -> Any:
        execution = self._execution
        return {
            "PipelineName": execution.pipeline_name,
            "PipelineArn": execution.pipeline,
            "PipelineExecutionId": execution.id,
            "PipelineExecutionArn": execution.arn,
            "StartDateTime": _moment(execution.created),
            "CurrentDateTime": _moment(time.time()),
            "TrainingJobName": self._new_job,
            "ProcessingJobName": self._new_job,
        }[name]

    def step(self, name: str) -> Mapping[str, Any]:
        record = self._records[name]
        if record.type == "Condition":
            return {"Outcome": str(record.outcome)}
        try:
            return self._door.describe(record.type, record.job_name or "")
        except ApiError as error:
            raise Unresolved(f"the job of step {name}: {error.message}") from None

    def property_file(self, step: str, name: str) -> Any:
        output, file = self._definition.steps[step].files[name]
        description = f"the property file {name} of step {step}"
        place = ("ProcessingOutputConfig", "Outputs", output, "S3Output", "S3Uri")
        uri = walk(self.step(step), place, description)
        return self.s3_json(f"{uri.rstrip('/')}/{file}")

    def s3_json(self, uri: str) -> Any:
        bucket, _, key = str(uri).removeprefix("s3://").partition("/")
        try:
            path = self._objects.body_path(bucket, key)
            if path.stat().st_size > _LARGEST_FILE:
                raise Unresolved(f"{uri} is larger than {_LARGEST_FILE} bytes")
            return json.loads(path.read_bytes())
        except (KeyError, OSError):
            raise Unresolved(f"{uri} does not exist") from None
        except ValueError as error:
            raise Unresolved(f"{uri} is not JSON: {error}") from None


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
