"""Asking what drives an exported run: executions of Step Functions and of SageMaker Pipelines.

Any other orchestrator is only named (planning.orchestrated).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smlaunch.errors import EXIT_COMPLETED, EXIT_LIMIT, EXIT_STOPPED
from smlaunch.planning.orchestrated import MACHINE, PIPELINE, Execution, exit_code_of, kind_of
from smlaunch.ports import CallError
from smlaunch.runs.aws import call
from smlaunch.runs.retry import is_transient, retrying

_Client = Callable[[str], Any]


def _ask_machine(client: _Client, arn: str) -> Execution:
    states = client("stepfunctions")
    answer = call("DescribeExecution", states.describe_execution, executionArn=arn)
    status, error, cause = answer["status"], answer.get("error", ""), answer.get("cause", "")
    if status == "FAILED":
        return _failed(error, cause)
    return _ENDS.get(status, Execution(ended=False))


def _stop_machine(client: _Client, arn: str) -> None:
    call("StopExecution", client("stepfunctions").stop_execution, executionArn=arn)


def _ask_pipeline(client: _Client, arn: str) -> Execution:
    sagemaker = client("sagemaker")
    describe = sagemaker.describe_pipeline_execution
    status = call("DescribePipelineExecution", describe, PipelineExecutionArn=arn)["PipelineExecutionStatus"]
    if status != "Failed":
        return _ENDS.get(status, Execution(ended=False))
    wanted = {"PipelineExecutionArn": arn, "SortOrder": "Descending", "MaxResults": 100}
    steps = call("ListPipelineExecutionSteps", sagemaker.list_pipeline_execution_steps, **wanted)
    for step in steps["PipelineExecutionSteps"]:
        if step["StepStatus"] == "Failed":
            message = step.get("Metadata", {}).get("Fail", {}).get("ErrorMessage", "")
            error, _, cause = message.partition(": ")
            return _failed(error, cause) if message else _failed("", step.get("FailureReason", ""))
    return _failed("", "")


def _stop_pipeline(client: _Client, arn: str) -> None:
    call("StopPipelineExecution", client("sagemaker").stop_pipeline_execution, PipelineExecutionArn=arn)


def _failed(error: str, cause: str) -> Execution:
    code = exit_code_of(error)
    if code is None and error:
        cause = f"{error}: {cause}" if cause else error
    return Execution(True, code, cause)


_WAS_STOPPED = Execution(True, EXIT_STOPPED, "its execution was stopped")
_ENDS = {
    "SUCCEEDED": Execution(True, EXIT_COMPLETED),
    "TIMED_OUT": Execution(True, EXIT_LIMIT, "its execution has reached its time limit"),
    "ABORTED": _WAS_STOPPED,
    "Succeeded": Execution(True, EXIT_COMPLETED),
    "Stopped": _WAS_STOPPED,
}
"""By the status of an execution: DescribeExecution's and DescribePipelineExecution's (API references)."""

_WAYS: Mapping[str, tuple[Callable[[_Client, str], Execution], Callable[[_Client, str], None]]] = {
    MACHINE: (_ask_machine, _stop_machine),
    PIPELINE: (_ask_pipeline, _stop_pipeline),
}


class Executions:
    """Orchestrators. ``client``: makes a botocore client for a service."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    def ask(self, execution: str) -> Execution | None:
        kind = kind_of(execution)
        if kind is None:
            return None
        try:
            return retrying(lambda: _WAYS[kind][0](self._client, execution))
        except CallError as error:
            if is_transient(error):
                raise
            return None

    def stop(self, execution: str) -> bool:
        kind = kind_of(execution)
        if kind is None:
            return False
        try:
            retrying(lambda: _WAYS[kind][1](self._client, execution))
        except CallError as error:
            if is_transient(error):
                raise
            return False
        return True
