"""The integration ``arn:aws:states:::sagemaker:createTrainingJob`` (and processing), plain and ``.sync``.

As the developer guide of Step Functions has it ("Run a job", "Manage SageMaker AI jobs"): ``.sync`` waits
until the job has ended; Completed gives what Describe gives; an aborted execution stops the job. Not
documented there, and so chosen here: that Failed and Stopped raise States.TaskFailed with the description
as JSON in Cause; times as milliseconds since the epoch; the names of the API's errors (``error_name``).
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

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

from smlaunch.local.moto.clients import Clients

log = logging.getLogger(__name__)

_FIRST_LOOK, _LAST_LOOK, _SLOWER = 0.1, 2.0, 1.3
"""Seconds between two looks at a job, and by how much they grow."""

MODELLED = frozenset(("ResourceInUse", "ResourceLimitExceeded", "ResourceNotFound", "ConflictException"))
"""The errors that SageMaker's model names for its operations on jobs."""


class Job(NamedTuple):
    """The operations on one kind of job, as boto3 calls them, and its members."""

    kind: str
    name: str
    status: str

    def call(self, client: Any, verb: str, name: str) -> dict[str, Any]:
        operation = getattr(client, f"{verb}_{self.kind}")
        answer: dict[str, Any] = operation(**{self.name: name})
        answer.pop("ResponseMetadata", None)
        return answer


JOBS: Mapping[str, Job] = {
    "createTrainingJob": Job("training_job", "TrainingJobName", "TrainingJobStatus"),
    "createProcessingJob": Job("processing_job", "ProcessingJobName", "ProcessingJobStatus"),
}


def error_name(code: str, chosen: Mapping[str, str]) -> str:
    """What a state's Retry and Catch call an error of the API. ``chosen`` (Settings) comes first.

    Not confirmed against a region. The optimized integrations bear the names of the AWS SDK for Java 1: one
    of the model is its own exception, ``SageMaker.ResourceLimitExceededException``; all others, throttling
    and validation among them, are ``SageMaker.AmazonSageMakerException``. The code stands in Cause.
    """
    if code in chosen:
        return chosen[code]
    if code in MODELLED:
        return f"SageMaker.{code.removesuffix('Exception')}Exception"
    return "SageMaker.AmazonSageMakerException"


class SageMakerTask(state_task_service_callback.StateTaskServiceCallback):
    """One state of this integration."""

    def __init__(self, clients: Clients, error_names: Mapping[str, str]) -> None:
        super().__init__(supported_integration_patterns={ResourceCondition.Sync})
        self._clients = clients
        self._error_names = error_names

    def _validate_service_integration_is_supported(self) -> None:
        """When the state machine is made; AWS says so then too."""
        resource = self.resource
        if resource.api_action not in JOBS or resource.condition not in (None, ResourceCondition.Sync):
            known = ", ".join(f"sagemaker:{name}[.sync]" for name in JOBS)
            raise ValueError(f"{resource.resource_arn}: the local endpoint has {known}")

    def _eval_service_task(
        self,
        env: Any,
        resource_runtime_part: Any,
        normalised_parameters: dict[str, Any],
        state_credentials: Any,
    ) -> None:
        client = self._clients.of_role(state_credentials.role_arn, "sagemaker", resource_runtime_part.region)
        # botocore refuses members that the API does not have, and values of another type.
        answer = getattr(client, self._get_boto_service_action())(**normalised_parameters)
        answer.pop("ResponseMetadata", None)
        env.stack.append(answer)

    def _eval_integration_pattern(
        self,
        env: Any,
        resource_runtime_part: Any,
        normalised_parameters: dict[str, Any],
        state_credentials: Any,
    ) -> None:
        """Waits for the job. moto's own way (5.2.5) needs a callback endpoint, and without a task token there
        is none: `callback_endpoint.interrupt_all()` meets None, and the state fails with States.Runtime."""
        env.stack.pop()
        job = JOBS[self.resource.api_action]
        name = normalised_parameters[job.name]
        region = resource_runtime_part.region
        client = self._clients.of_role(state_credentials.role_arn, "sagemaker", region, patient=True)
        seconds = _FIRST_LOOK
        while env.is_running():
            described = _plain(job.call(client, "describe", name))
            if described[job.status] == "Completed":
                env.stack.append(described)
                return
            if described[job.status] in ("Failed", "Stopped"):
                raise FailureEventException(self._failed(env, "States.TaskFailed", to_json_str(described)))
            env.program_state_event.wait(seconds)
            seconds = min(seconds * _SLOWER, _LAST_LOOK)
        # Stopped, timed out, or another branch has failed.
        with contextlib.suppress(ClientError):  # it has ended meanwhile
            job.call(client, "stop", name)
        env.stack.append({})

    def _from_error(self, env: Any, ex: Exception) -> Any:
        if not isinstance(ex, ClientError):
            return super()._from_error(env=env, ex=ex)
        error, metadata = ex.response["Error"], ex.response["ResponseMetadata"]
        cause = (
            f"{error['Message']} (Service: AmazonSageMaker; Status Code: {metadata['HTTPStatusCode']}; "
            f"Error Code: {error['Code']}; Request ID: {metadata.get('RequestId', '')}; Proxy: null)"
        )
        return self._failed(env, error_name(error["Code"], self._error_names), cause)

    def _failed(self, env: Any, error: str, cause: str) -> Any:
        return FailureEvent(
            env=env,
            error_name=ErrorName(error),  # which the wildcard States.TaskFailed matches, unlike moto's others
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


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, dict):
        return {name: _plain(held) for name, held in value.items() if held is not None}
    if isinstance(value, list):
        return [_plain(held) for held in value]
    if isinstance(value, datetime.datetime):
        return int(value.timestamp() * 1000)
    return value
