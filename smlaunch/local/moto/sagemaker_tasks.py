"""The integration ``arn:aws:states:::sagemaker:createTrainingJob`` (and processing), plain and ``.sync``.

As documented in the developer guide of Step Functions ("Run a job", "Manage SageMaker AI jobs"), ``.sync``
waits until the job has ended; the result of a Completed job is its description; an aborted execution stops
the job. Not documented, and chosen here: Failed and Stopped raise States.TaskFailed with the description as
JSON in Cause; times are in milliseconds since the epoch; the names of the API's errors (``error_name``).
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError
from moto.stepfunctions.parser.api import HistoryEventType, TaskFailedEventDetails
from moto.stepfunctions.parser.asl.component.common.error_name.error_name import ErrorName
from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import (
    FailureEvent,
    FailureEventException,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import state_task_service_callback
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.resource import ResourceCondition
from moto.stepfunctions.parser.asl.eval.event.event_detail import EventDetails
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind, method_name
from smlaunch.local.json_types import JsonObject
from smlaunch.local.moto.role_clients import RoleClients

log = logging.getLogger(__name__)

_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS, _POLL_BACKOFF = 0.1, 2.0, 1.3
"""Seconds between two Describe calls, and the factor by which they grow."""

MODELED_ERRORS = frozenset(
    ("ResourceInUse", "ResourceLimitExceeded", "ResourceNotFound", "ConflictException")
)
"""Errors in SageMaker's service model for operations on jobs."""


JOB_KIND_BY_ACTION: Mapping[str, JobKind] = {f"create{kind.name}Job": kind for kind in (TRAINING, PROCESSING)}


def _call_job_method(client: Any, operation: str, job_name: Mapping[str, str]) -> JsonObject:
    response: JsonObject = getattr(client, method_name(operation))(**job_name)
    response.pop("ResponseMetadata", None)
    return response


def state_error_name(code: str, custom_names: Mapping[str, str]) -> str:
    """Return the name of an API error for Retry and Catch. ``custom_names`` (Settings) take precedence.

    Not confirmed against a region. The optimized integrations use the names of the AWS SDK for Java 1: an
    error in the service model has its own exception, ``SageMaker.ResourceLimitExceededException``; all
    others, such as throttling and validation, are ``SageMaker.AmazonSageMakerException``. Cause has the code.
    """
    if code in custom_names:
        return custom_names[code]
    if code in MODELED_ERRORS:
        return f"SageMaker.{code.removesuffix('Exception')}Exception"
    return "SageMaker.AmazonSageMakerException"


class SageMakerTask(state_task_service_callback.StateTaskServiceCallback):
    """A Task state of this integration."""

    def __init__(self, clients: RoleClients, error_names: Mapping[str, str]) -> None:
        super().__init__(supported_integration_patterns={ResourceCondition.Sync})
        self._clients = clients
        self._error_names = error_names

    def _validate_service_integration_is_supported(self) -> None:
        """Raise ValueError, when the state machine is created, for an operation of SageMaker that the local
        endpoint does not have. Replaces moto's method."""
        resource = self.resource
        is_known_pattern = resource.condition in (None, ResourceCondition.Sync)
        if resource.api_action not in JOB_KIND_BY_ACTION or not is_known_pattern:
            supported = ", ".join(f"sagemaker:{name}[.sync]" for name in JOB_KIND_BY_ACTION)
            raise ValueError(f"{resource.resource_arn}: the local endpoint has {supported}")

    def _eval_service_task(
        self,
        env: Any,
        resource_runtime_part: Any,
        normalised_parameters: JsonObject,
        state_credentials: Any,
    ) -> None:
        client = self._clients.client_for_role(
            state_credentials.role_arn, "sagemaker", resource_runtime_part.region
        )
        # botocore rejects unknown fields and values of the wrong type.
        response = getattr(client, self._get_boto_service_action())(**normalised_parameters)
        response.pop("ResponseMetadata", None)
        env.stack.append(response)

    def _eval_integration_pattern(
        self,
        env: Any,
        resource_runtime_part: Any,
        normalised_parameters: JsonObject,
        state_credentials: Any,
    ) -> None:
        """Wait for the job that a ``.sync`` task of a state machine has created, and put its description on
        the interpreter's stack (``env.stack``); stop the job if the execution ends first. Raises
        FailureEventException if the job fails. Replaces moto's method (5.2.5), whose parameters these are: it
        needs a callback endpoint, which does not exist without a task token, and fails on None."""
        env.stack.pop()  # the response of Create, such as {"TrainingJobArn": ...}
        kind = JOB_KIND_BY_ACTION[self.resource.api_action]
        job_name = {kind.name_field: normalised_parameters[kind.name_field]}
        region = resource_runtime_part.region
        # A client of the local endpoint that acts as the state machine's role.
        client = self._clients.client_for_role(
            state_credentials.role_arn, "sagemaker", region, with_retries=True
        )
        poll_seconds = _FIRST_POLL_SECONDS
        while env.is_running():
            job_description = _to_json_value(_call_job_method(client, kind.describe_operation, job_name))
            if job_description[kind.status_field] == "Completed":
                env.stack.append(job_description)
                return
            if job_description[kind.status_field] in ("Failed", "Stopped"):
                raise FailureEventException(
                    self._task_failed_event(env, "States.TaskFailed", to_json_str(job_description))
                )
            env.program_state_event.wait(poll_seconds)
            poll_seconds = min(poll_seconds * _POLL_BACKOFF, _MAX_POLL_SECONDS)
        # The execution was stopped or timed out, or another branch has failed.
        with contextlib.suppress(ClientError):  # the job has ended meanwhile
            _call_job_method(client, kind.stop_operation, job_name)
        env.stack.append({})

    def _from_error(self, env: Any, ex: Exception) -> Any:
        if not isinstance(ex, ClientError):
            return super()._from_error(env=env, ex=ex)
        error, metadata = ex.response["Error"], ex.response["ResponseMetadata"]
        cause = (
            f"{error['Message']} (Service: AmazonSageMaker; Status Code: {metadata['HTTPStatusCode']}; "
            f"Error Code: {error['Code']}; Request ID: {metadata.get('RequestId', '')}; Proxy: null)"
        )
        return self._task_failed_event(env, state_error_name(error["Code"], self._error_names), cause)

    def _task_failed_event(self, env: Any, error: str, cause: str) -> Any:
        return FailureEvent(
            env=env,
            error_name=ErrorName(error),  # this class matches the wildcard States.TaskFailed
            event_type=HistoryEventType.TaskFailed,
            event_details=EventDetails(
                taskFailedEventDetails=TaskFailedEventDetails(
                    resource=self._get_sfn_resource(),
                    resourceType=self._get_sfn_resource_type(),
                    error=error,
                    cause=cause,
                )
            ),
        )


def _to_json_value(value: Any) -> Any:
    """Convert a Describe response to JSON values, without fields that are None; times become milliseconds
    since the epoch."""
    if isinstance(value, dict):
        return {name: _to_json_value(field) for name, field in value.items() if field is not None}
    if isinstance(value, list):
        return [_to_json_value(item) for item in value]
    if isinstance(value, datetime.datetime):
        return int(value.timestamp() * 1000)
    return value
