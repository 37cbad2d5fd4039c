"""Run as a program, where moto is: one of moto's faults, with or without its repair. Prints JSON.

python -m tests.real.moto_repairs CASE yes|no
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import boto3
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.stepfunctions.parser.asl.component.state.exec.state_task import state_task_factory
from moto.stepfunctions.parser.asl.component.state.exec.state_task.credentials import StateCredentials
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import (
    state_task_service_aws_sdk,
    state_task_service_callback,
)
from moto.stepfunctions.parser.models import stepfunctions_parser_backends

from smlaunch.local.moto import moto_patches
from smlaunch.local.moto.role_clients import RoleClients
from smlaunch.local.moto.sagemaker_tasks import SageMakerTask

ROLE = "arn:aws:iam::123456789012:role/machine"
NOBODY = "http://127.0.0.1:9"


def machine(name: str, first: dict[str, Any], **others: Any) -> Any:
    return client().create_state_machine(
        name=name,
        roleArn=ROLE,
        definition=json.dumps({"StartAt": "First", "States": {"First": first, **others}}),
    )["stateMachineArn"]


def client() -> Any:
    return boto3.client("stepfunctions", "us-east-1")


def run(first: dict[str, Any], data: Any = None, name: str = "one", **others: Any) -> dict[str, Any]:
    execution = client().start_execution(
        stateMachineArn=machine(name, first, **others), name=name, input=json.dumps(data or {})
    )["executionArn"]
    for _ in range(1000):
        description: dict[str, Any] = client().describe_execution(executionArn=execution)
        if description["status"] != "RUNNING":
            return description
        time.sleep(0.02)
    return description


def task(resource: str, **parameters: Any) -> dict[str, Any]:
    return {"Type": "Task", "Resource": f"arn:aws:states:::{resource}", "Parameters": parameters, "End": True}


def index() -> Any:
    choice = {"Variable": "$.l[0].v", "NumericEquals": 1, "Next": "Both"}
    both_state = {"Type": "Pass", "Parameters": {"one.$": "$.l[0].v", "all.$": "$.l[*].v"}, "End": True}
    description = run(
        {"Type": "Choice", "Choices": [choice], "Default": "No"},
        {"l": [{"v": 1}]},
        Both=both_state,
        No={"Type": "Pass", "Result": {}, "End": True},
    )
    return json.loads(description["output"])


def escapes() -> Any:
    text = r"States.Format('it\'s \{{}\} \\ {}', $.x, States.ArrayGetItem(States.Array('a\'b\{'), 0))"
    description = run({"Type": "Pass", "Parameters": {"v.$": text}, "End": True}, {"x": 'say "{}"'})
    return (
        json.loads(description["output"])["v"]
        if description["status"] == "SUCCEEDED"
        else description["status"]
    )


def unnamed() -> Any:
    arn = machine("one", {"Type": "Pass", "End": True})
    client().start_execution(stateMachineArn=arn, input="1")
    try:  # with another input: with the same one, an execution of that name which still runs is the answer
        client().start_execution(stateMachineArn=arn, input="2")
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "started"


def stopping() -> Any:
    arn = machine("one", {"Type": "Wait", "Seconds": 600, "End": True})
    execution = client().start_execution(stateMachineArn=arn, name="x")["executionArn"]
    answer = client().stop_execution(executionArn=execution, error="E", cause="C")
    description = client().describe_execution(executionArn=execution)
    return ["stopDate" in answer, description.get("error"), description.get("cause")]


def stopped_map() -> Any:
    """Returns how an execution ends that is stopped during a Map."""
    wait = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 600, "End": True}}}
    first = {"Type": "Map", "ItemsPath": "$.l", "ItemProcessor": wait, "End": True}
    arn = machine("one", first)
    execution = client().start_execution(stateMachineArn=arn, name="x", input='{"l": [1, 2]}')["executionArn"]
    inner = stepfunctions_parser_backends["123456789012"]["us-east-1"].describe_execution(execution)

    def wait_for_events(kinds: str, count: int) -> None:
        for _ in range(500):
            events = inner.to_history_output()["events"]
            if sum(event["type"] in kinds for event in events) == count:
                return
            time.sleep(0.02)

    wait_for_events("WaitStateEntered", 2)
    inner.exec_worker.env.set_stop(stop_date=None, error="E", cause="C")
    wait_for_events("ExecutionFailed ExecutionAborted", 1)
    for _ in range(100):
        if inner.exec_status != "RUNNING":
            break
        time.sleep(0.02)
    return str(inner.exec_status.value)


def waiting() -> Any:
    """Returns whether a program that waits for its Retry ends on request."""
    first = task("aws-sdk:s3:getObject", Bucket="none", Key="none")
    first["Retry"] = [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 600}]
    execution = client().start_execution(stateMachineArn=machine("one", first), name="x")["executionArn"]
    inner = stepfunctions_parser_backends["123456789012"]["us-east-1"].describe_execution(execution)
    while not any("Failed" in event["type"] for event in inner.to_history_output()["events"]):
        time.sleep(0.02)
    client().stop_execution(executionArn=execution)
    for _ in range(150):
        if inner.exec_status == "ABORTED":
            break
        time.sleep(0.02)
    return str(inner.exec_status.value)


def tolerated() -> Any:
    """Returns how three items of which one fails end: with none tolerated, with one, and caught."""
    fails = {"Variable": "$", "NumericEquals": 2, "Next": "Fail"}
    processor = {
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
        "StartAt": "First",
        "States": {
            "First": {"Type": "Choice", "Choices": [fails], "Default": "Pass"},
            "Fail": {"Type": "Fail", "Error": "Two"},
            "Pass": {"Type": "Pass", "End": True},
        },
    }
    first = {"Type": "Map", "ItemsPath": "$.l", "ItemProcessor": processor, "MaxConcurrency": 1, "End": True}
    data = {"l": [1, 2, 3]}
    tolerating_one = run({**first, "ToleratedFailureCount": 1}, data, "tolerated")
    caught = {
        **first,
        "Catch": [{"ErrorEquals": ["States.ExceedToleratedFailureThreshold"], "Next": "Caught"}],
    }
    other = run(caught, data, "caught", Caught={"Type": "Pass", "Result": {}, "End": True})
    return [run(first, data)["status"], json.loads(tolerating_one["output"]), json.loads(other["output"])]


def members() -> Any:
    inner = machine("inner", {"Type": "Pass", "Result": 1, "End": True})
    description = run(task("states:startExecution.sync:2", StateMachineArn=inner, Name="x", Input={}))
    return [description["status"], json.loads(description.get("output", "{}")).get("Output")]


def error_names() -> Any:
    boto3.client("s3", "us-east-1").create_bucket(Bucket="there")
    return run(task("aws-sdk:s3:getObject", Bucket="there", Key="none"))["error"]


def output() -> Any:
    return run({"Type": "Pass", "Result": "yes", "End": True})["output"]


def error_codes() -> Any:
    try:
        machine("one", {"Type": "Nothing"})
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


def calls() -> Any:
    """Returns the address that a task's client uses in a server, where no mock is between it and the
    network."""
    s3_client = state_task_service_aws_sdk.boto_client_for("us-east-1", "s3", StateCredentials(ROLE))
    return s3_client.meta.endpoint_url


def unreachable_client(role: str, service: str, region: str) -> Any:
    assert role == ROLE
    return boto3.client(service, region, endpoint_url=NOBODY)


class Jobs(RoleClients):
    """A client whose job completes at once."""

    def __init__(self) -> None:
        super().__init__(NOBODY, "", "")

    def client_for_role(self, role_arn: str, service: str, region: str, with_retries: bool = False) -> Any:
        return self

    def create_training_job(self, **request: Any) -> dict[str, Any]:
        return {"TrainingJobArn": "arn"}

    def describe_training_job(self, **request: Any) -> dict[str, Any]:
        return {"TrainingJobStatus": "Completed"}


class WaitingAsMotoDoes(SageMakerTask):
    _eval_integration_pattern = state_task_service_callback.StateTaskServiceCallback._eval_integration_pattern

    def _build_sync_resolver(self, env: Any, **_: Any) -> Callable[[], Any]:
        env.stack.pop()
        return lambda: {"TrainingJobStatus": "Completed"}


def callback(kind: type[SageMakerTask]) -> None:
    state_task_factory.state_task_service_for = lambda service_name: kind(Jobs(), {})


def waited() -> Any:
    return run(task("sagemaker:createTrainingJob.sync", TrainingJobName="x"))["status"]


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "index": (index, lambda: None, moto_patches.patch_definite_paths),
    "escapes": (escapes, lambda: None, moto_patches.patch_intrinsic_escapes),
    "unnamed": (unnamed, lambda: None, moto_patches.patch_unnamed_executions),
    "stopping": (stopping, lambda: None, moto_patches.patch_stop_execution),
    "stopped-map": (stopped_map, lambda: None, moto_patches.patch_stopped_state),
    "waiting": (waiting, lambda: None, moto_patches.patch_waits),
    "tolerated": (tolerated, lambda: None, moto_patches.patch_map_failures),
    "members": (members, lambda: None, moto_patches.patch_parameter_names),
    "error-names": (error_names, lambda: None, lambda: moto_patches.patch_error_names({})),
    "output": (output, lambda: None, moto_patches.patch_execution_output),
    "error-codes": (error_codes, lambda: None, moto_patches.patch_error_codes),
    "callback": (waited, lambda: callback(WaitingAsMotoDoes), lambda: callback(SageMakerTask)),
    "calls": (calls, lambda: None, lambda: moto_patches.patch_boto_clients(unreachable_client)),
}
"""What is looked at, how it is left, how it is repaired."""


def main(case: str, is_patched: str) -> None:
    observe, install_fault, repair = CASES[case]
    (repair if is_patched == "yes" else install_fault)()
    if case == "calls":
        print(json.dumps(observe()), flush=True)
        return
    with mock_aws(config={"stepfunctions": {"execute_state_machine": True}}):
        print(json.dumps(observe()), flush=True)
    os._exit(0)  # what still waits in a thread is not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
