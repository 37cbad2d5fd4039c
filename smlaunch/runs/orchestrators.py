"""Describes and stops executions of Step Functions and SageMaker Pipelines, which drive exported runs.

Other orchestrators are only named (planner.external_execution).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smlaunch.aws.client import call_api
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.retry import call_with_retries, is_transient
from smlaunch.errors import EXIT_COMPLETED, EXIT_LIMIT, EXIT_STOPPED
from smlaunch.planner.external_execution import (
    PIPELINE,
    STATE_MACHINE,
    OrchestratorExecution,
    exit_code_of_error,
    orchestrator_kind,
)

_ClientFactory = Callable[[str], Any]


def _describe_state_machine_execution(client: _ClientFactory, arn: str) -> OrchestratorExecution:
    step_functions = client("stepfunctions")
    response = call_api("DescribeExecution", step_functions.describe_execution, executionArn=arn)
    status, error, cause = response["status"], response.get("error", ""), response.get("cause", "")
    if status == "FAILED":
        return _failed_execution(error, cause)
    return _EXECUTION_BY_STATUS.get(status, OrchestratorExecution(has_ended=False))


def _stop_state_machine_execution(client: _ClientFactory, arn: str) -> None:
    call_api("StopExecution", client("stepfunctions").stop_execution, executionArn=arn)


def _describe_pipeline_execution(client: _ClientFactory, arn: str) -> OrchestratorExecution:
    """Return the state of a pipeline's execution, with the cause if it has failed."""
    sagemaker = client("sagemaker")
    describe = sagemaker.describe_pipeline_execution
    status = call_api("DescribePipelineExecution", describe, PipelineExecutionArn=arn)[
        "PipelineExecutionStatus"
    ]
    if status != "Failed":
        return _EXECUTION_BY_STATUS.get(status, OrchestratorExecution(has_ended=False))
    request = {"PipelineExecutionArn": arn, "SortOrder": "Descending", "MaxResults": 100}
    steps = call_api("ListPipelineExecutionSteps", sagemaker.list_pipeline_execution_steps, **request)
    for step in steps["PipelineExecutionSteps"]:
        if step["StepStatus"] == "Failed":
            message = step.get("Metadata", {}).get("Fail", {}).get("ErrorMessage", "")
            error, _, cause = message.partition(": ")
            return (
                _failed_execution(error, cause)
                if message
                else _failed_execution("", step.get("FailureReason", ""))
            )
    return _failed_execution("", "")


def _stop_pipeline_execution(client: _ClientFactory, arn: str) -> None:
    call_api("StopPipelineExecution", client("sagemaker").stop_pipeline_execution, PipelineExecutionArn=arn)


def _failed_execution(error: str, cause: str) -> OrchestratorExecution:
    code = exit_code_of_error(error)
    if code is None and error:
        cause = f"{error}: {cause}" if cause else error
    return OrchestratorExecution(True, code, cause)


_STOPPED_EXECUTION = OrchestratorExecution(True, EXIT_STOPPED, "its execution was stopped")
_EXECUTION_BY_STATUS = {
    "SUCCEEDED": OrchestratorExecution(True, EXIT_COMPLETED),
    "TIMED_OUT": OrchestratorExecution(True, EXIT_LIMIT, "its execution has reached its time limit"),
    "ABORTED": _STOPPED_EXECUTION,
    "Succeeded": OrchestratorExecution(True, EXIT_COMPLETED),
    "Stopped": _STOPPED_EXECUTION,
}
"""By the statuses of DescribeExecution and DescribePipelineExecution (API references)."""

_CALLS_BY_KIND: Mapping[
    str, tuple[Callable[[_ClientFactory, str], OrchestratorExecution], Callable[[_ClientFactory, str], None]]
] = {
    STATE_MACHINE: (_describe_state_machine_execution, _stop_state_machine_execution),
    PIPELINE: (_describe_pipeline_execution, _stop_pipeline_execution),
}


class OrchestratorClient:
    """Implements Orchestrators. ``client`` returns a botocore client for a service."""

    def __init__(self, client: _ClientFactory) -> None:
        self._client = client

    def describe(self, execution: str) -> OrchestratorExecution | None:
        """Return the state of an execution, by its ARN; None if it is not an orchestrator's or cannot be
        read."""
        kind = orchestrator_kind(execution)
        if kind is None:
            return None
        try:
            return call_with_retries(lambda: _CALLS_BY_KIND[kind][0](self._client, execution))
        except CallError as error:
            if is_transient(error):
                raise
            return None

    def stop(self, execution: str) -> bool:
        """Stop an execution, by its ARN; return False if it is not an orchestrator's or cannot be stopped."""
        kind = orchestrator_kind(execution)
        if kind is None:
            return False
        try:
            call_with_retries(lambda: _CALLS_BY_KIND[kind][1](self._client, execution))
        except CallError as error:
            if is_transient(error):
                raise
            return False
        return True
