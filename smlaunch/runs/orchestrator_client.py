"""Describes and stops executions of Step Functions and SageMaker Pipelines, which drive exported runs.

Other orchestrators are only named (planner.orchestrator_execution).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smlaunch.aws.api_call import call_api
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.service_errors import call_with_retries, is_transient_error
from smlaunch.chain.orchestrator_execution import (
    PIPELINE,
    STATE_MACHINE,
    OrchestratorExecution,
    exit_code_of_error,
    orchestrator_kind,
)
from smlaunch.errors import EXIT_COMPLETED, EXIT_LIMIT, EXIT_STOPPED

_ClientFactory = Callable[[str], Any]
"""Returns a botocore client for the service of this name."""


def _describe_state_machine_execution(create_client: _ClientFactory, arn: str) -> OrchestratorExecution:
    step_functions = create_client("stepfunctions")
    response = call_api("DescribeExecution", step_functions.describe_execution, executionArn=arn)
    status, error, cause = response["status"], response.get("error", ""), response.get("cause", "")
    if status == "FAILED":
        return _failed_execution(error, cause)
    return _ENDED_EXECUTION_BY_STATUS.get(status, OrchestratorExecution(has_ended=False))


def _stop_state_machine_execution(create_client: _ClientFactory, arn: str) -> None:
    call_api("StopExecution", create_client("stepfunctions").stop_execution, executionArn=arn)


def _describe_pipeline_execution(create_client: _ClientFactory, execution_arn: str) -> OrchestratorExecution:
    """Return the state of an execution of a SageMaker pipeline, with the failed step's reason if it has
    failed."""
    sagemaker = create_client("sagemaker")
    response = call_api(
        "DescribePipelineExecution", sagemaker.describe_pipeline_execution, PipelineExecutionArn=execution_arn
    )
    status = response["PipelineExecutionStatus"]
    if status != "Failed":
        # Succeeded and Stopped have an entry; any other status is one of a running execution.
        return _ENDED_EXECUTION_BY_STATUS.get(status, OrchestratorExecution(has_ended=False))
    # Newest first: the step that failed is among the last ones.
    steps = call_api(
        "ListPipelineExecutionSteps",
        sagemaker.list_pipeline_execution_steps,
        PipelineExecutionArn=execution_arn,
        SortOrder="Descending",
        MaxResults=100,
    )
    for step in steps["PipelineExecutionSteps"]:
        if step["StepStatus"] != "Failed":
            continue
        # A step of the type Fail ends a pipeline on purpose. In exported ones, its message is "error: cause".
        fail_step_message = step.get("Metadata", {}).get("Fail", {}).get("ErrorMessage", "")
        if not fail_step_message:
            return _failed_execution(error_name="", cause=step.get("FailureReason", ""))
        error_name, _, cause = fail_step_message.partition(": ")
        return _failed_execution(error_name, cause)
    return _failed_execution(error_name="", cause="")


def _stop_pipeline_execution(create_client: _ClientFactory, arn: str) -> None:
    call_api(
        "StopPipelineExecution", create_client("sagemaker").stop_pipeline_execution, PipelineExecutionArn=arn
    )


def _failed_execution(error_name: str, cause: str) -> OrchestratorExecution:
    """Return the state of a failed execution. An error that smlaunch's exports raise stands for an exit
    code."""
    exit_code = exit_code_of_error(error_name)
    if exit_code is None and error_name:
        cause = f"{error_name}: {cause}" if cause else error_name
    return OrchestratorExecution(True, exit_code, cause)


_STOPPED_EXECUTION = OrchestratorExecution(True, EXIT_STOPPED, "its execution was stopped")
_ENDED_EXECUTION_BY_STATUS = {
    "SUCCEEDED": OrchestratorExecution(True, EXIT_COMPLETED),
    "TIMED_OUT": OrchestratorExecution(True, EXIT_LIMIT, "its execution has reached its time limit"),
    "ABORTED": _STOPPED_EXECUTION,
    "Succeeded": OrchestratorExecution(True, EXIT_COMPLETED),
    "Stopped": _STOPPED_EXECUTION,
}
"""By the statuses of DescribeExecution and DescribePipelineExecution (API references)."""

_DESCRIBE_BY_ORCHESTRATOR: Mapping[str, Callable[[_ClientFactory, str], OrchestratorExecution]] = {
    STATE_MACHINE: _describe_state_machine_execution,
    PIPELINE: _describe_pipeline_execution,
}
_STOP_BY_ORCHESTRATOR: Mapping[str, Callable[[_ClientFactory, str], None]] = {
    STATE_MACHINE: _stop_state_machine_execution,
    PIPELINE: _stop_pipeline_execution,
}


class OrchestratorClient:
    """Implements Orchestrators. ``client`` returns a botocore client for a service."""

    def __init__(self, client: _ClientFactory) -> None:
        self._create_client = client

    def describe_execution(self, execution_arn: str) -> OrchestratorExecution | None:
        """Return the state of an execution of Step Functions or SageMaker Pipelines; None if it is another
        orchestrator's or cannot be read. Raises CallError for a failure that may pass."""
        orchestrator = orchestrator_kind(execution_arn)
        if orchestrator is None:  # of another kind, or no ARN at all
            return None
        describe = _DESCRIBE_BY_ORCHESTRATOR[orchestrator]  # a function for each of the two
        try:
            return call_with_retries(lambda: describe(self._create_client, execution_arn))
        except CallError as error:
            if is_transient_error(error):
                raise
            return None

    def stop_execution(self, execution_arn: str) -> bool:
        """Stop an execution of Step Functions or SageMaker Pipelines. Returns False if it is another
        orchestrator's or cannot be stopped. Raises CallError for a failure that may pass."""
        orchestrator = orchestrator_kind(execution_arn)
        if orchestrator is None:  # of another kind, or no ARN at all
            return False
        stop = _STOP_BY_ORCHESTRATOR[orchestrator]  # a function for each of the two
        try:
            call_with_retries(lambda: stop(self._create_client, execution_arn))
        except CallError as error:
            if is_transient_error(error):
                raise
            return False
        return True
