"""State machines that really run jobs: moto's interpreter, with SageMaker's integration added."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.local.front.call_log import IamPermission, read_call_log
from tests.conftest import ROOT
from tests.local.client import PRELUDE
from tests.real.moto_endpoint import StepFunctions, endpoint, moto_python, task, wait_until

SYNC = "sagemaker:createTrainingJob.sync"
DISTRIBUTED = {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}
SLOW = "print('ready', flush=True)\ntime.sleep(600)\n"
FAULTS = {"seed": 1, "faults": [{"fault": "throttle", "operations": "CreateProcessingJob", "first": 2}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def user(folder: Path) -> Iterator[StepFunctions]:
    (folder / "faults.json").write_text(json.dumps(FAULTS))
    settings = {
        "call_log": str(folder / "calls.jsonl"),
        "step_functions_error_names": [["ThrottlingException", "SageMaker.ThrottlingException"]],
    }
    with endpoint(folder / "home", settings, folder / "faults.json") as info:
        yield StepFunctions(info)


def test_a_completed_job_gives_its_description(user: StepFunctions, folder: Path) -> None:
    metric = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    request = user.request("completed", "print('loss=0.25')\n")
    request["AlgorithmSpecification"]["MetricDefinitions"] = metric
    low = {"Variable": "$.FinalMetricDataList[0].Value", "NumericLessThan": 0.5, "Next": "Low"}
    result = user.run_machine(
        "completes",
        task(SYNC, request, Next="Decide"),
        Decide={"Type": "Choice", "Choices": [low], "Default": "High"},
        Low={"Type": "Pass", "End": True},
        High={"Type": "Fail", "Error": "High"},
    )
    assert result["status"] == "SUCCEEDED", result
    output = json.loads(result["output"])
    description = user.describe("completed")
    assert output["TrainingJobArn"] == description["TrainingJobArn"]
    assert output["ModelArtifacts"] == description["ModelArtifacts"]
    assert output["CreationTime"] == int(description["CreationTime"].timestamp() * 1000)
    created = [
        call for call in read_call_log(folder / "calls.jsonl") if call.operation == "CreateTrainingJob"
    ]
    assert [call.via for call in created] == ["states"]
    assert created[0].caller == f"arn:aws:sts::{user.info.account}:assumed-role/machine/StepFunctions"
    assert created[0].needs == (
        IamPermission("sagemaker:CreateTrainingJob", description["TrainingJobArn"]),
        IamPermission("iam:PassRole", user.info.role_arn),
    )


def test_without_sync_the_state_ends_when_the_job_is_made(user: StepFunctions) -> None:
    result = user.run_machine("made", task("sagemaker:createTrainingJob", user.request("made", SLOW)))
    assert list(json.loads(result["output"])) == ["TrainingJobArn"]
    assert user.describe("made")["TrainingJobStatus"] == "InProgress"
    user.sagemaker.stop_training_job(TrainingJobName="made")


def test_a_failed_job_is_caught_with_its_description_in_cause(user: StepFunctions) -> None:
    caught = [{"ErrorEquals": ["States.TaskFailed"], "ResultPath": "$.error", "Next": "Read"}]
    result = user.run_machine(
        "fails",
        task(SYNC, user.request("fails", "sys.exit(3)\n"), Catch=caught),
        Read={
            "Type": "Pass",
            "Parameters": {"error.$": "$.error.Error", "job.$": "States.StringToJson($.error.Cause)"},
            "End": True,
        },
    )
    output = json.loads(result["output"])
    assert output["error"] == "States.TaskFailed"
    assert output["job"]["TrainingJobStatus"] == "Failed"
    assert output["job"]["FailureReason"] == user.describe("fails")["FailureReason"]


def test_a_stopped_job_fails_its_state_too(user: StepFunctions) -> None:
    execution = user.execute(user.machine("stopped", task(SYNC, user.request("stopped", SLOW))))
    user.wait_for_line("stopped", "ready")
    user.sagemaker.stop_training_job(TrainingJobName="stopped")
    result = user.wait_for_end(execution)
    assert (result["status"], result["error"]) == ("FAILED", "States.TaskFailed")
    assert json.loads(result["cause"])["TrainingJobStatus"] == "Stopped"


def test_stopping_an_execution_stops_its_job(user: StepFunctions) -> None:
    execution = user.execute(user.machine("aborted", task(SYNC, user.request("aborted", SLOW))))
    user.wait_for_line("aborted", "ready")
    answer = user.states.stop_execution(executionArn=execution, error="Enough", cause="seen it")
    result = user.states.describe_execution(executionArn=execution)
    assert (result["status"], result["error"], result["cause"]) == ("ABORTED", "Enough", "seen it")
    assert result["stopDate"] >= answer["stopDate"]
    assert user.wait("aborted")["TrainingJobStatus"] == "Stopped"


def test_a_state_that_times_out_stops_its_job(user: StepFunctions) -> None:
    first = task(SYNC, user.request("timed-out", SLOW), TimeoutSeconds=2)
    result = user.run_machine("timed-out", first)
    assert (result["status"], result["error"]) == ("FAILED", "States.Timeout")
    assert user.wait("timed-out")["TrainingJobStatus"] == "Stopped"


def test_a_failing_branch_stops_the_jobs_of_the_others(user: StepFunctions) -> None:
    fails = task(SYNC, user.request("branch-fails", "sys.exit(1)\n"))
    waits = task(SYNC, user.request("branch-waits", SLOW))
    branches = [{"StartAt": "Job", "States": {"Job": state}} for state in (fails, waits)]
    result = user.run_machine("branches", {"Type": "Parallel", "Branches": branches, "End": True})
    assert result["status"] == "FAILED"
    assert user.wait("branch-waits")["TrainingJobStatus"] == "Stopped"


def test_a_name_that_is_taken_is_an_error_by_its_name(user: StepFunctions) -> None:
    request = user.request("taken", "print('once')\n")
    caught = [{"ErrorEquals": ["SageMaker.ResourceInUseException"], "Next": "Taken"}]
    machine = user.machine(
        "takes", task(SYNC, request, Catch=caught), Taken={"Type": "Pass", "Result": "taken", "End": True}
    )
    assert json.loads(user.wait_for_end(user.execute(machine))["output"])["TrainingJobName"] == "taken"
    assert json.loads(user.wait_for_end(user.execute(machine))["output"]) == "taken"


def test_throttling_is_retried_by_the_name_that_was_chosen(user: StepFunctions, folder: Path) -> None:
    """Two calls are refused; the third makes the job, whose state waits for its end."""
    user.put("code/processing/script.py", b"open('/opt/ml/processing/done', 'w').write('yes')\n")
    source = {"S3Uri": "s3://tests/code/processing/", "LocalPath": "/opt/ml/processing/input/code"}
    entry = (
        "import os; print(os.listdir(os.environ.get('SMLAUNCH_ML_ROOT', '/opt/ml') + '/processing/input'))"
    )
    request = {
        "ProcessingJobName": "throttled",
        "RoleArn": user.info.role_arn,
        "AppSpecification": {"ImageUri": "image:1", "ContainerEntrypoint": ["python3", "-c", entry]},
        "ProcessingInputs": [
            {"InputName": "code", "S3Input": {**source, "S3DataType": "S3Prefix", "S3InputMode": "File"}}
        ],
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1}
        },
    }
    retry_rules = [
        {"ErrorEquals": ["SageMaker.ThrottlingException"], "IntervalSeconds": 60, "MaxAttempts": 2}
    ]
    result = user.run_machine(
        "throttled", task("sagemaker:createProcessingJob.sync", request, Retry=retry_rules)
    )
    assert json.loads(result["output"])["ProcessingJobStatus"] == "Completed", result
    calls = [
        call for call in read_call_log(folder / "calls.jsonl") if call.operation == "CreateProcessingJob"
    ]
    assert [call.error for call in calls] == ["ThrottlingException", "ThrottlingException", ""]


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ("sagemaker:createEndpoint", "sagemaker:createTrainingJob"),
        ("sagemaker:createTrainingJob.waitForTaskToken", "sagemaker:createTrainingJob"),
    ],
)
def test_an_integration_that_is_not_here_is_refused_at_once(
    user: StepFunctions, resource: str, message: str
) -> None:
    with pytest.raises(user.states.exceptions.InvalidDefinition, match=message):
        user.machine("refused", task(resource, {}))


def test_what_the_interpreter_does_not_have_is_refused_with_its_place(user: StepFunctions) -> None:
    with pytest.raises(user.states.exceptions.InvalidDefinition) as error:
        user.machine("variables", {"Type": "Pass", "Assign": {"x": 1}, "Result": {"Assign": 1}, "End": True})
    assert str(error.value).endswith("so not $.States.First.Assign'")
    with pytest.raises(user.states.exceptions.InvalidDefinition, match="QueryLanguage"):
        user.machine("jsonata", {"Type": "Pass", "QueryLanguage": "JSONata", "End": True})
    inner = {"StartAt": "ResultWriter", "States": {"ResultWriter": {"Type": "Pass", "End": True}}}
    writer = {"Resource": "arn:aws:states:::s3:putObject", "Parameters": {"Bucket": "tests", "Prefix": "x"}}
    each = {"Type": "Map", "ItemProcessor": {**inner, "ProcessorConfig": DISTRIBUTED}, "End": True}
    with pytest.raises(user.states.exceptions.InvalidDefinition) as error:
        user.machine("writer", {**each, "ResultWriter": writer})
    assert str(error.value).endswith("so not $.States.First.ResultWriter'")


def test_members_that_the_api_does_not_have_are_refused_and_not_dropped(user: StepFunctions) -> None:
    request = {**user.request("members", ""), "TrainingJobname": "x", "HyperParameters": {"lr": 1}}
    result = user.run_machine("members", task(SYNC, request))
    assert result["status"] == "FAILED"
    assert "TrainingJobname" in result["cause"]
    assert "HyperParameters.lr" in result["cause"]
    with pytest.raises(ClientError):
        user.describe("members")


def test_objects_are_read_and_written_in_the_endpoint_s_own_store(user: StepFunctions) -> None:
    location = {"Bucket": "tests", "Key": "outcome.json"}
    missing = [{"ErrorEquals": ["S3.NoSuchKeyException"], "ResultPath": "$.error", "Next": "Write"}]
    text = {"body.$": "States.StringToJson($.Body)"}
    result = user.run_machine(
        "objects",
        task("aws-sdk:s3:getObject", location, Catch=missing, ResultSelector=text, Next="List"),
        Write=task("aws-sdk:s3:putObject", {**location, "Body": {"step": 7}}, Next="First"),
        List=task(
            "aws-sdk:s3:listObjectsV2", {"Bucket": "tests", "Prefix": "outcome"}, ResultPath="$.l", Next="Out"
        ),
        Out=task("aws-sdk:s3:deleteObject", location, ResultPath=None),
    )
    output = json.loads(result["output"])
    assert output["body"] == {"step": 7}
    assert [entry["Key"] for entry in output["l"]["Contents"]] == ["outcome.json"]
    assert user.keys("outcome") == []


def test_jobs_are_described_by_the_plain_api(user: StepFunctions) -> None:
    user.run("plain", "print('x')\n")
    result = user.run_machine(
        "plain",
        task("aws-sdk:sagemaker:describeTrainingJob", {"TrainingJobName.$": "$.job"}),
        {"job": "plain"},
    )
    assert json.loads(result["output"])["SecondaryStatus"] == "Completed"


def test_a_map_of_nested_machines_runs_a_job_for_each(user: StepFunctions) -> None:
    """Names are computed, waits shortened, and the nested executions' output comes as JSON."""
    request = {**user.request("mapped", "print(os.environ['WORD'])\n"), "Environment": {"WORD.$": "$.word"}}
    del request["TrainingJobName"]
    request["TrainingJobName.$"] = "States.Format('mapped-{}', $.word)"
    inner = user.machine(
        "inner",
        {"Type": "Wait", "Seconds": 600, "Next": "Train"},
        Train=task(SYNC, request, ResultSelector={"name.$": "$.TrainingJobName"}),
    )
    nested = task(
        "states:startExecution.sync:2",
        {"StateMachineArn": inner, "Input": {"word.$": "$"}},
        OutputPath="$.Output.name",
    )
    items = {"StartAt": "Run", "States": {"Run": nested}}
    first = {"Type": "Map", "ItemsPath": "$.words", "MaxConcurrency": 2, "ItemProcessor": items, "End": True}
    result = user.run_machine("maps", first, {"words": ["a", "b", "c"]})
    assert json.loads(result["output"]) == ["mapped-a", "mapped-b", "mapped-c"], result
    assert user.printed_lines("mapped-b") == {"algo-1": ["b"]}


def test_a_distributed_map_runs_a_job_for_each_entry_of_a_list_in_s3(user: StepFunctions) -> None:
    request = {**user.request("listed", "print('x')\n"), "TrainingJobName.$": "$.name"}
    del request["TrainingJobName"]
    user.put("list.json", json.dumps([{"name": "listed-1"}, {"name": "listed-2"}]).encode())
    first = {
        "Type": "Map",
        "ItemReader": {
            "Resource": "arn:aws:states:::s3:getObject",
            "ReaderConfig": {"InputType": "JSON"},
            "Parameters": {"Bucket": "tests", "Key": "list.json"},
        },
        "ItemProcessor": {
            "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
            "StartAt": "Train",
            "States": {"Train": task(SYNC, request, ResultSelector={"status.$": "$.TrainingJobStatus"})},
        },
        "MaxConcurrency": 2,
        "End": True,
    }
    result = user.run_machine("listed", first)
    assert json.loads(result["output"]) == [{"status": "Completed"}] * 2, result
    assert user.describe("listed-2")["TrainingJobStatus"] == "Completed"


@pytest.mark.parametrize(
    ("tolerated", "status"),
    [
        ({}, "FAILED"),
        ({"ToleratedFailureCount": 1}, "SUCCEEDED"),
        ({"ToleratedFailurePercentage": 20.0}, "FAILED"),
        ({"ToleratedFailurePercentage": 50.0}, "SUCCEEDED"),
    ],
)
def test_a_distributed_map_fails_where_more_items_fail_than_it_tolerates(
    user: StepFunctions, tolerated: dict[str, Any], status: str
) -> None:
    """One of three fails."""
    two = {"Variable": "$", "NumericEquals": 2, "Next": "Fail"}
    processor = {
        "ProcessorConfig": DISTRIBUTED,
        "StartAt": "Which",
        "States": {
            "Which": {"Type": "Choice", "Choices": [two], "Default": "Pass"},
            "Fail": {"Type": "Fail", "Error": "Two"},
            "Pass": {"Type": "Pass", "End": True},
        },
    }
    first = {"Type": "Map", "ItemsPath": "$.l", "ItemProcessor": processor, "End": True, **tolerated}
    name = "tolerates" + "".join(f"-{limit}" for limit in tolerated.values()).replace(".", "-")
    result = user.run_machine(name, first, {"l": [1, 2, 3]})
    assert result["status"] == status, result
    if status == "FAILED":
        assert result["error"] == "States.ExceedToleratedFailureThreshold"


def test_an_execution_that_is_stopped_in_a_map_is_aborted(user: StepFunctions) -> None:
    """It stays aborted when its items have ended too."""
    wait = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 600_000, "End": True}}}
    first = {"Type": "Map", "ItemsPath": "$.l", "ItemProcessor": wait, "End": True}
    execution = user.execute(user.machine("stopped-map", first), {"l": [1, 2]})

    def events() -> list[str]:
        page = user.states.get_execution_history(executionArn=execution, maxResults=1000)
        return [event["type"] for event in page["events"]]

    assert wait_until(lambda: events().count("WaitStateEntered") == 2)
    user.states.stop_execution(executionArn=execution)
    ends = {"ExecutionAborted", "ExecutionFailed"}
    assert wait_until(lambda: events().count("MapIterationAborted") == 2 and not ends.isdisjoint(events()))
    assert ends.intersection(events()) == {"ExecutionAborted"}
    assert user.states.describe_execution(executionArn=execution)["status"] == "ABORTED"


def test_a_nested_execution_is_stopped_with_its_parent(user: StepFunctions) -> None:
    inner = user.machine("nested", task(SYNC, user.request("nested", SLOW)))
    outer = user.machine(
        "nests", task("states:startExecution.sync:2", {"StateMachineArn": inner, "Input": {}})
    )
    execution = user.execute(outer)
    user.wait_for_line("nested", "ready")
    user.states.stop_execution(executionArn=execution)
    assert user.wait("nested")["TrainingJobStatus"] == "Stopped"
    (nested,) = user.states.list_executions(stateMachineArn=inner)["executions"]
    assert nested["status"] == "ABORTED"


def test_another_account_s_role_is_not_assumed(user: StepFunctions) -> None:
    definition: dict[str, Any] = {
        "StartAt": "First",
        "States": {"First": task("aws-sdk:s3:listObjectsV2", {"Bucket": "tests"})},
    }
    response = user.states.create_state_machine(
        name="foreign", definition=json.dumps(definition), roleArn="arn:aws:iam::123456789012:role/other"
    )
    result = user.wait_for_end(user.execute(response["stateMachineArn"]))
    assert result["status"] == "FAILED"
    assert "not authorized to perform: sts:AssumeRole" in result["cause"]


BOTO3_ONLY = """
import json, sys, time
import boto3

role, states, s3 = sys.argv[1], boto3.client("stepfunctions"), boto3.client("s3")
s3.create_bucket(Bucket="mine")
s3.put_object(Bucket="mine", Key="code/script.py", Body=sys.argv[2].encode())
source = {"S3DataType": "S3Prefix", "S3Uri": "s3://mine/code/", "S3DataDistributionType": "FullyReplicated"}
train = {
    "Type": "Task",
    "Resource": "arn:aws:states:::sagemaker:createTrainingJob.sync",
    "Parameters": {
        "TrainingJobName.$": "$$.Execution.Name",
        "RoleArn": role,
        "AlgorithmSpecification": {
            "TrainingImage": "image:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "/opt/ml/input/data/code/script.py"],
        },
        "InputDataConfig": [{"ChannelName": "code", "DataSource": {"S3DataSource": source}}],
        "OutputDataConfig": {"S3OutputPath": "s3://mine/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    },
    "End": True,
}
definition = json.dumps({"StartAt": "Train", "States": {"Train": train}})
machine = states.create_state_machine(name="mine", definition=definition, roleArn=role)["stateMachineArn"]
execution = states.start_execution(stateMachineArn=machine, name="trained-by-a-machine")["executionArn"]
while True:
    found = states.describe_execution(executionArn=execution)
    if found["status"] != "RUNNING":
        break
    time.sleep(0.2)
events = states.get_execution_history(executionArn=execution)["events"]
types = [event["type"] for event in events]
print(json.dumps({"status": found["status"], "output": found.get("output"), "types": types}))
"""
"""A program that knows AWS and nothing of smlaunch."""


def test_a_program_with_boto3_alone_uses_a_standing_endpoint_unmodified(tmp_path: Path) -> None:
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    bare.update(SMLAUNCH_HOME=str(tmp_path / "home"), PYTHONPATH=str(ROOT))

    def smlaunch(*arguments: str) -> str:
        command = [moto_python(), "-c", "from smlaunch.cli.main import main; main()", *arguments]
        return subprocess.run(command, env=bare, check=True, stdout=subprocess.PIPE, text=True).stdout

    smlaunch("local", "start")
    try:
        shell = f'{smlaunch("local", "env")}\n"$0" -c "$1" "$2" "$3"'
        script = PRELUDE + textwrap.dedent("""
            os.makedirs(ROOT + "/model", exist_ok=True)
            with open(ROOT + "/model/" + socket.gethostname(), "w") as file:
                file.write("weights")
        """)
        role = "arn:aws:iam::000000000000:role/anything"
        words = ["bash", "-c", shell, moto_python(), BOTO3_ONLY, role, script]
        result = subprocess.run(words, env=bare, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
        execution = json.loads(result.stdout)
        assert execution["status"] == "SUCCEEDED", execution
        output = json.loads(execution["output"])
        assert (output["TrainingJobName"], output["TrainingJobStatus"]) == (
            "trained-by-a-machine",
            "Completed",
        )
        assert execution["types"][2:5] == ["TaskScheduled", "TaskStarted", "TaskSubmitted"]
        model = output["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://")
        assert (tmp_path / "home" / "s3" / model).stat().st_size > 0
    finally:
        smlaunch("local", "stop")
