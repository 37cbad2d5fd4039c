"""Values of the references of one execution: its parameters, its jobs, and files in S3."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.pipelines.expressions import UnresolvedError, value_at_path
from smlaunch.local.pipelines.job_client import JobClient
from smlaunch.local.pipelines.pipeline_records import Execution, StepRecord
from smlaunch.local.pipelines.pipeline_steps import JOB_KIND_BY_STEP_TYPE, Definition

_MAX_JSON_FILE_BYTES = 16 << 20
"""Of a JSON file in S3."""


class S3ObjectStore(Protocol):
    """The object store."""

    def object_body_path(self, bucket: str, key: str) -> Path:
        """Return the file that holds an object. Raises KeyError if there is no such object."""


class ExecutionScope:
    """The values that expressions of one execution refer to: an expressions.Scope."""

    def __init__(
        self,
        execution: Execution,
        definition: Definition,
        record_by_step_name: Mapping[str, StepRecord],
        job_client: JobClient,
        object_store: S3ObjectStore,
        new_job_name: str = "",
    ) -> None:
        """``new_job_name``: name of the job that the resolved arguments will create; empty for other
        documents."""
        self._execution = execution
        self._definition = definition
        self._record_by_step_name = record_by_step_name
        self._job_client = job_client
        self._object_store = object_store
        self._new_job_name = new_job_name

    def parameter_value(self, name: str) -> Any:
        return self._execution.values[name]

    def execution_variable(self, name: str) -> Any:
        execution = self._execution
        return {
            "PipelineName": execution.pipeline_name,
            "PipelineArn": execution.pipeline,
            "PipelineExecutionId": execution.id,
            "PipelineExecutionArn": execution.arn,
            "StartDateTime": _format_time(execution.created),
            "CurrentDateTime": _format_time(time.time()),
            **{kind.name_field: self._new_job_name for kind in JOB_KIND_BY_STEP_TYPE.values()},
        }[name]

    def describe_step(self, name: str) -> Mapping[str, Any]:
        """Return what references to a step can name: the outcome of a condition step, otherwise the Describe
        response of the step's job. Raises UnresolvedError."""
        record = self._record_by_step_name[name]
        if record.type == "Condition":
            return {"Outcome": str(record.outcome)}
        try:
            return self._job_client.describe_job(record.type, record.job_name or "")
        except ApiError as error:
            raise UnresolvedError(f"the job of step {name}: {error.message}") from None

    def read_property_file(self, step: str, name: str) -> Any:
        output_name, file_path = self._definition.steps[step].property_files[name]
        reference = f"the property file {name} of step {step}"
        uri_path = ("ProcessingOutputConfig", "Outputs", output_name, "S3Output", "S3Uri")
        folder_uri = value_at_path(self.describe_step(step), uri_path, reference)
        return self.read_s3_json(f"{folder_uri.rstrip('/')}/{file_path}")

    def read_s3_json(self, uri: str) -> Any:
        """Return the parsed JSON document of the object at an s3:// address. Raises UnresolvedError."""
        bucket, _, key = str(uri).removeprefix("s3://").partition("/")
        try:
            object_file = self._object_store.object_body_path(bucket, key)
            if object_file.stat().st_size > _MAX_JSON_FILE_BYTES:
                raise UnresolvedError(f"{uri} is larger than {_MAX_JSON_FILE_BYTES} bytes")
            return json.loads(object_file.read_bytes())
        except (KeyError, OSError):
            raise UnresolvedError(f"{uri} does not exist") from None
        except ValueError as error:
            raise UnresolvedError(f"{uri} is not JSON: {error}") from None


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
