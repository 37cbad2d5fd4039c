"""Pipelines on a real endpoint, with boto3 as the client and jobs of a few lines of Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.fault_injection import FaultPlan, HostLost, NoCapacity, Throttle
from smlaunch.local.pipelines.pipeline_definition import VERSION
from tests.local import changes
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import endpoint_harness
from tests.local.test_processing_jobs import Jobs

FAULTS = FaultPlan(
    faults=(
        HostLost(after=0.1, jobs="pipelines-*-Lost-*"),
        NoCapacity(jobs="pipelines-*-Choosy-*", instance_types="ml.p*"),
        # The first CreateProcessingJob of the endpoint: only one test here creates one.
        Throttle(operations="CreateProcessingJob", first=1),
    )
)
SETTINGS = Settings(
    stop_grace_seconds=3,
    failed_peer_grace_seconds=0.3,
    close_grace_seconds=0.5,
    checkpoint_sync_seconds=0.1,
    faults=FAULTS,
)
SLEEP_SCRIPT = "print('sleeps', flush=True)\ntime.sleep(1000)"
ALWAYS = {"Type": "Equals", "LeftValue": 1, "RightValue": 1}


class PipelineClient(EndpointClient):
    """A client that writes and starts pipelines."""

    def step(self, name: str, script: str, **more: Any) -> dict[str, Any]:
        changes = more.pop("changes", {})
        arguments = self.request(f"code-{name}", script, **changes)
        del arguments["TrainingJobName"]
        return {"Name": name, "Type": "Training", "Arguments": arguments, **more}

    def processing(self, name: str, script: str, **more: Any) -> dict[str, Any]:
        changes = more.pop("changes", {})
        arguments = Jobs.request(self, f"code-{name}", script, **changes)  # type: ignore[arg-type]
        del arguments["ProcessingJobName"]
        return {"Name": name, "Type": "Processing", "Arguments": arguments, **more}

    def create(self, name: str, *steps: Any, **more: Any) -> str:  # type: ignore[override]
        definition = {"Version": VERSION, "Steps": list(steps), **more}
        answer = self.sagemaker.create_pipeline(
            PipelineName=name, PipelineDefinition=json.dumps(definition), RoleArn=self.info.role_arn
        )
        return str(answer["PipelineArn"])

    def start(self, name: str, **more: Any) -> str:
        answer = self.sagemaker.start_pipeline_execution(PipelineName=name, **more)
        return str(answer["PipelineExecutionArn"])

    def describe(self, name: str) -> dict[str, Any]:
        description: dict[str, Any] = self.sagemaker.describe_pipeline_execution(PipelineExecutionArn=name)
        return description

    def wait_for_end(self, execution: str, patience: float = 60.0) -> dict[str, Any]:

        def find_end() -> dict[str, Any] | None:
            description = self.describe(execution)
            return (
                None if description["PipelineExecutionStatus"] in ("Executing", "Stopping") else description
            )

        execution_description = changes.until(self.info.home, find_end, patience)
        assert execution_description is not None, self.steps(execution)
        return execution_description

    def create_and_run(self, name: str, *steps: Any, **more: Any) -> tuple[str, dict[str, Any]]:
        self.create(name, *steps, **more)
        execution = self.start(name)
        self.wait_for_end(execution)
        return execution, self.steps(execution)

    def steps(self, execution: str) -> dict[str, Any]:
        pages = self.sagemaker.get_paginator("list_pipeline_execution_steps").paginate(
            PipelineExecutionArn=execution, SortOrder="Ascending"
        )
        return {step["StepName"]: step for page in pages for step in page["PipelineExecutionSteps"]}

    def until(self, execution: str, step: str, status: str = "Executing") -> dict[str, Any]:

        def find_step() -> dict[str, Any] | None:
            description = self.steps(execution).get(step, {})
            return dict(description) if description.get("StepStatus") == status else None

        step_description = changes.until(self.info.home, find_step, 30)
        assert step_description is not None, self.steps(execution)
        return step_description

    def job(self, step: dict[str, Any]) -> dict[str, Any]:
        """Return the description of a step's training job."""
        arn = step["Metadata"]["TrainingJob"]["Arn"]
        for summary in self.sagemaker.list_training_jobs(MaxResults=100)["TrainingJobSummaries"]:
            if summary["TrainingJobArn"] == arn:
                description: dict[str, Any] = self.sagemaker.describe_training_job(
                    TrainingJobName=summary["TrainingJobName"]
                )
                return description
        raise AssertionError(arn)


def make_reference(reference: str) -> dict[str, str]:
    return {"Get": reference}


def condition_step(name: str, *conditions: Any, yes: Any = (), no: Any = (), **more: Any) -> dict[str, Any]:
    arguments = {"Conditions": list(conditions), "IfSteps": list(yes), "ElseSteps": list(no)}
    return {"Name": name, "Type": "Condition", "Arguments": arguments, **more}


def fail_step(name: str, message: Any) -> dict[str, Any]:
    return {"Name": name, "Type": "Fail", "Arguments": {"ErrorMessage": message}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineClient]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain", settings=SETTINGS) as info:
        yield PipelineClient(info)


def test_steps_use_outputs_of_others_and_conditions_choose_branches(client: PipelineClient) -> None:
    prep = client.processing(
        "Prep",
        "out = ROOT + '/processing/out'\njson.dump({'rows': [3, 4]}, open(out + '/report.json', 'w'))",
        changes={
            "ProcessingOutputConfig": {
                "Outputs": [
                    {
                        "OutputName": "out",
                        "S3Output": {
                            "S3Uri": "s3://tests/prep",
                            "LocalPath": "/opt/ml/processing/out",
                            "S3UploadMode": "EndOfJob",
                        },
                    }
                ]
            }
        },
        PropertyFiles=[{"PropertyFileName": "Report", "OutputName": "out", "FilePath": "report.json"}],
        RetryPolicies=[{"ExceptionType": ["Step.THROTTLING"], "IntervalSeconds": 0, "MaxAttempts": 2}],
    )
    rows = {
        "Std:JsonGet": {
            "PropertyFile": make_reference("Steps.Prep.PropertyFiles.Report"),
            "Path": "$.rows[1]",
        }
    }
    train = client.step(
        "Train_it",
        "given = json.load(open(ROOT + '/input/config/hyperparameters.json'))\nprint('acc=0.75;')\n"
        "print('given', given, os.listdir(ROOT + '/input/data/prepared'))",
        changes={
            "HyperParameters": {
                "lr": {"Std:Join": {"On": "", "Values": [make_reference("Parameters.lr")]}},
                "rows": {"Std:Join": {"On": "-", "Values": ["n", rows]}},
                "run": make_reference("Execution.PipelineName"),
            },
            "InputDataConfig": [
                {
                    "ChannelName": "prepared",
                    "DataSource": {
                        "S3DataSource": {
                            "S3DataType": "S3Prefix",
                            "S3Uri": make_reference(
                                "Steps.Prep.ProcessingOutputConfig.Outputs['out'].S3Output.S3Uri"
                            ),
                        }
                    },
                }
            ],
            "Tags": [{"Key": "mine", "Value": "x"}],
        },
    )
    train["Arguments"]["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "acc", "Regex": "acc=(.*?);"}
    ]
    train["Arguments"]["ResourceConfig"]["InstanceCount"] = make_reference("Parameters.hosts")
    metric = make_reference("Steps.Train_it.FinalMetricDataList['acc'].Value")
    good = {
        "Type": "GreaterThanOrEqualTo",
        "LeftValue": metric,
        "RightValue": make_reference("Parameters.least"),
    }
    decide = condition_step(
        "Good",
        good,
        {"Type": "Or", "Conditions": [{"Type": "Not", "Condition": ALWAYS}, ALWAYS]},
        yes=[fail_step("End", make_reference("Parameters.word"))],
        no=[fail_step("Bad", "never")],
    )
    client.create(
        "whole",
        decide,
        train,
        prep,
        Parameters=[
            {"Name": "lr", "Type": "Float", "DefaultValue": 0.1},
            {"Name": "least", "Type": "Float", "DefaultValue": 0.9},
            {"Name": "hosts", "Type": "Integer", "DefaultValue": 1},
            {"Name": "word", "Type": "String", "DefaultValue": "as it should"},
        ],
        PipelineExperimentConfig={
            "ExperimentName": make_reference("Execution.PipelineName"),
            "TrialName": make_reference("Execution.PipelineExecutionId"),
        },
    )
    pipeline_parameters = [{"Name": "least", "Value": "0.75"}]
    execution = client.start(
        "whole", PipelineParameters=pipeline_parameters, PipelineExecutionDisplayName="first"
    )
    described = client.wait_for_end(execution)
    steps = client.steps(execution)
    assert list(steps) == ["Prep", "Train_it", "Good", "End"]
    assert described["PipelineExecutionStatus"] == "Failed"
    assert described["PipelineExperimentConfig"]["TrialName"] == execution.rpartition("/")[2]
    assert described["PipelineExecutionDisplayName"] == "first"
    assert steps["End"]["FailureReason"] == "as it should"
    assert steps["End"]["Metadata"] == {"Fail": {"ErrorMessage": "as it should"}}
    assert steps["Good"]["Metadata"] == {"Condition": {"Outcome": "True"}}
    assert steps["Prep"]["AttemptCount"] == 2, "the first create is throttled by the fault plan"
    job = client.job(steps["Train_it"])
    name = job["TrainingJobName"]
    assert name.startswith(f"pipelines-{execution.rpartition('/')[2]}-Train-it-")
    (line,) = [line for line in client.printed_lines(name)["algo-1"] if line.startswith("given")]
    assert line == "given {'lr': '0.1', 'rows': 'n-4', 'run': 'whole'} ['report.json']"
    tags = client.sagemaker.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    assert tags == [{"Key": "mine", "Value": "x"}]
    parameters = client.sagemaker.list_pipeline_parameters_for_execution(PipelineExecutionArn=execution)
    assert parameters["PipelineParameters"] == [
        {"Name": "lr", "Value": "0.1"},
        {"Name": "least", "Value": "0.75"},
        {"Name": "hosts", "Value": "1"},
        {"Name": "word", "Value": "as it should"},
    ]
    definition_answer = client.sagemaker.describe_pipeline_definition_for_execution(
        PipelineExecutionArn=execution
    )
    assert json.loads(definition_answer["PipelineDefinition"])["Steps"][0]["Name"] == "Good"


def test_only_steps_that_do_not_depend_on_a_failed_step_run(client: PipelineClient) -> None:
    execution, steps = client.create_and_run(
        "partly",
        client.step("Breaks", "sys.exit(3)"),
        client.step("After", "", DependsOn=["Breaks"]),
        client.step("Aside", "time.sleep(0.5)"),
        client.step("Later", "", DependsOn=["Aside"]),
    )
    assert {name: step["StepStatus"] for name, step in steps.items()} == {
        "Breaks": "Failed",
        "Aside": "Succeeded",
        "Later": "Succeeded",
    }
    assert steps["Breaks"]["FailureReason"].endswith("exit code: 3")
    described = client.describe(execution)
    assert described["PipelineExecutionStatus"] == "Failed"
    assert described["FailureReason"] == "Step failure: One or multiple steps failed."
    summaries = client.sagemaker.list_pipeline_executions(PipelineName="partly")["PipelineExecutionSummaries"]
    assert [one["PipelineExecutionStatus"] for one in summaries] == ["Failed"]


def test_retries_are_for_their_own_errors_and_end(client: PipelineClient) -> None:
    retry_policy = {"IntervalSeconds": 0, "MaxAttempts": 1}
    internal = {**retry_policy, "ExceptionType": ["SageMaker.JOB_INTERNAL_ERROR"]}
    capacity = {**retry_policy, "ExceptionType": ["SageMaker.CAPACITY_ERROR"]}
    p3 = {"ResourceConfig": {"InstanceType": "ml.p3.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}}
    execution, steps = client.create_and_run(
        "tries",
        client.step("Lost", SLEEP_SCRIPT, RetryPolicies=[internal]),
        client.step("Choosy", "", RetryPolicies=[internal, capacity], changes=p3),
        client.step("Own", "sys.exit(1)", RetryPolicies=[internal, capacity]),
    )
    assert {name: step["AttemptCount"] for name, step in steps.items()} == {"Lost": 2, "Choosy": 2, "Own": 1}
    assert steps["Lost"]["FailureReason"].startswith("InternalServerError: ")
    assert steps["Choosy"]["FailureReason"].startswith("CapacityError: ")
    jobs = client.sagemaker.list_training_jobs(
        NameContains=f"{execution.rpartition('/')[2]}-Lost", MaxResults=9
    )
    assert len(jobs["TrainingJobSummaries"]) == 2, "each try is a job of its own"


def test_cached_results_are_reused_for_equal_arguments(client: PipelineClient) -> None:
    train = client.step("Train", "print('acc=1;')", CacheConfig={"Enabled": True, "ExpireAfter": "P1D"})
    train["Arguments"]["Environment"] = {"SEED": make_reference("Parameters.seed")}
    train["Arguments"]["StoppingCondition"] = {"MaxRuntimeInSeconds": make_reference("Parameters.limit")}
    train["Arguments"]["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "acc", "Regex": "acc=(.*?);"}
    ]
    acc = {
        "Type": "Equals",
        "LeftValue": make_reference("Steps.Train.FinalMetricDataList['acc'].Value"),
        "RightValue": 1,
    }
    client.create(
        "cached",
        train,
        condition_step("Same", acc, no=[fail_step("No", "the metric is another")]),
        Parameters=[
            {"Name": "seed", "Type": "String", "DefaultValue": "1"},
            {"Name": "limit", "Type": "Integer", "DefaultValue": 60},
        ],
    )
    first, second = client.start("cached"), ""
    assert client.wait_for_end(first)["PipelineExecutionStatus"] == "Succeeded"
    for limit in ("60", "90"):  # a member that is not compared
        second = client.start("cached", PipelineParameters=[{"Name": "limit", "Value": limit}])
        assert client.wait_for_end(second)["PipelineExecutionStatus"] == "Succeeded"
    cached_step = client.steps(second)["Train"]
    assert cached_step["CacheHitResult"] == {"SourcePipelineExecutionArn": first}
    assert cached_step["Metadata"] == client.steps(first)["Train"]["Metadata"]
    other_seed = client.start("cached", PipelineParameters=[{"Name": "seed", "Value": "2"}])
    assert client.wait_for_end(other_seed)["PipelineExecutionStatus"] == "Succeeded"
    assert "CacheHitResult" not in client.steps(other_seed)["Train"]
    client.sagemaker.delete_training_job(TrainingJobName=client.job(cached_step)["TrainingJobName"])
    after_deletion = client.start("cached")
    assert client.wait_for_end(after_deletion)["PipelineExecutionStatus"] == "Succeeded"
    assert "CacheHitResult" not in client.steps(after_deletion)["Train"], "its job is no longer known"


def test_a_stop_stops_jobs_and_a_retry_reuses_finished_steps(client: PipelineClient) -> None:
    stops = client.step("Waits", SLEEP_SCRIPT, DependsOn=["Done"])
    client.create("stopped", client.step("Done", ""), stops, client.step("Never", "", DependsOn=["Waits"]))
    execution = client.start("stopped")
    job = client.job(client.until(execution, "Waits"))["TrainingJobName"]
    client.wait_for_line(job, "sleeps")
    with pytest.raises(client.sagemaker.exceptions.ConflictException, match="have not ended"):
        client.sagemaker.delete_pipeline(PipelineName="stopped")
    client.sagemaker.stop_pipeline_execution(PipelineExecutionArn=execution)
    assert client.wait_for_end(execution)["PipelineExecutionStatus"] == "Stopped"
    steps = client.steps(execution)
    assert {name: step["StepStatus"] for name, step in steps.items()} == {
        "Done": "Succeeded",
        "Waits": "Stopped",
    }
    assert client.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobStatus"] == "Stopped"
    with pytest.raises(ClientError, match="is in status Stopped"):
        client.sagemaker.stop_pipeline_execution(PipelineExecutionArn=execution)

    client.put("code/code-Waits/script.py", b"print('quick')")
    client.sagemaker.retry_pipeline_execution(PipelineExecutionArn=execution)
    assert client.wait_for_end(execution)["PipelineExecutionStatus"] == "Succeeded"
    steps_after_retry = client.steps(execution)
    assert steps_after_retry["Done"] == steps["Done"]
    assert list(steps_after_retry) == ["Done", "Waits", "Never"]
    with pytest.raises(ClientError, match="only an execution that is Failed or Stopped"):
        client.sagemaker.retry_pipeline_execution(PipelineExecutionArn=execution)
    client.sagemaker.delete_pipeline(PipelineName="stopped")
    with pytest.raises(client.sagemaker.exceptions.ResourceNotFound):
        client.describe(execution)


def test_a_job_stopped_from_outside_fails_its_step(client: PipelineClient) -> None:
    client.create("outside", client.step("Waits", SLEEP_SCRIPT))
    execution = client.start("outside")
    job = client.job(client.until(execution, "Waits"))["TrainingJobName"]
    client.sagemaker.stop_training_job(TrainingJobName=job)
    assert client.wait_for_end(execution)["PipelineExecutionStatus"] == "Failed"
    assert "was stopped (Stopped)" in client.steps(execution)["Waits"]["FailureReason"]


def test_no_more_steps_run_at_once_than_asked_for(client: PipelineClient) -> None:
    stamp = "open(ROOT + '/model/t', 'w').write(f'{time.time()}'); time.sleep(0.2)"
    client.create("one-by-one", *(client.step(f"S{number}", stamp) for number in range(3)))
    execution = client.start("one-by-one", ParallelismConfiguration={"MaxParallelExecutionSteps": 1})
    assert client.wait_for_end(execution)["PipelineExecutionStatus"] == "Succeeded"
    times = sorted((one["StartTime"], one["EndTime"]) for one in client.steps(execution).values())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times)), times


def test_a_missing_value_fails_its_step(client: PipelineClient) -> None:
    missing = {
        "Type": "Equals",
        "LeftValue": make_reference("Steps.Train.FinalMetricDataList['x'].Value"),
        "RightValue": 1,
    }
    unlike = {"Type": "LessThan", "LeftValue": "a", "RightValue": 1}
    cannot = client.step("Cannot", "")
    algorithm = {"AlgorithmName": "theirs", "TrainingInputMode": "File"}
    cannot["Arguments"]["AlgorithmSpecification"] = algorithm
    execution, steps = client.create_and_run(
        "missing",
        client.step("Train", ""),
        condition_step("Asks", missing),
        condition_step("Unlike", unlike),
        cannot,
    )
    assert "there is no 'FinalMetricDataList'" in steps["Asks"]["FailureReason"]
    assert "cannot be compared" in steps["Unlike"]["FailureReason"]
    assert "marketplace algorithms cannot run here" in steps["Cannot"]["FailureReason"]
    assert client.describe(execution)["PipelineExecutionStatus"] == "Failed"


def test_pipelines_are_described_listed_updated_and_found_once(client: PipelineClient) -> None:
    arn = client.create("listed-A", client.step("S", ""))
    with pytest.raises(ClientError, match="already exists") as raised:
        client.create("listed-A", client.step("S", ""))
    assert raised.value.response["Error"]["Code"] == "ValidationException", "as the SDK's upsert expects"
    token = "t" * 32
    definition = json.dumps({"Version": VERSION, "Steps": [fail_step("F", "x")]})
    client.put("definition.json", definition.encode())
    for _ in range(2):
        client.sagemaker.create_pipeline(
            PipelineName="listed-B",
            PipelineDefinitionS3Location={"Bucket": "tests", "ObjectKey": "definition.json"},
            RoleArn=client.info.role_arn,
            ClientRequestToken=token,
        )
    executions = {client.start("listed-B", ClientRequestToken=token) for _ in range(2)}
    assert len(executions) == 1
    client.wait_for_end(executions.pop())
    client.sagemaker.update_pipeline(PipelineName="listed-A", PipelineDescription="new")
    client.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": key, "Value": "1"} for key in ("a", "b")])
    client.sagemaker.delete_tags(ResourceArn=arn, TagKeys=["a"])
    assert client.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "b", "Value": "1"}]
    described = client.sagemaker.describe_pipeline(PipelineName=arn)
    assert (described["PipelineDescription"], described["PipelineStatus"]) == ("new", "Active")
    assert json.loads(described["PipelineDefinition"])["Steps"][0]["Name"] == "S"
    pages = client.sagemaker.get_paginator("list_pipelines").paginate(
        PipelineNamePrefix="listed", SortBy="Name", SortOrder="Ascending", PaginationConfig={"PageSize": 1}
    )
    assert [one["PipelineName"] for page in pages for one in page["PipelineSummaries"]] == [
        "listed-A",
        "listed-B",
    ]
    with pytest.raises(client.sagemaker.exceptions.ResourceNotFound):
        client.start("nowhere")


def test_unsupported_parameters_are_rejected_by_name(client: PipelineClient) -> None:
    with pytest.raises(
        ClientError, match=r"SelectiveExecutionConfig: all steps .* PipelineVersionId: a pipeline"
    ):
        client.start(
            "x",
            SelectiveExecutionConfig={"SelectedSteps": [{"StepName": "a"}]},
            PipelineVersionId=1,
        )
    with pytest.raises(ClientError) as raised:
        client.create("bad", {"Name": "T", "Type": "Tuning", "Arguments": {}}, {"Name": "T?", "Type": "EMR"})
    message = raised.value.response["Error"]["Message"]
    assert "Steps[0].Type: steps of type 'Tuning' cannot run on this endpoint" in message
    assert "Steps[1].Name" in message and "'EMR'" in message
    parameters = [
        {"Name": "n", "Type": "Integer"},
        {"Name": "e", "Type": "String", "EnumValues": ["a", "b"], "DefaultValue": "a"},
    ]
    client.create("asks", fail_step("F", make_reference("Parameters.e")), Parameters=parameters)
    with pytest.raises(ClientError) as raised:
        client.start(
            "asks",
            PipelineParameters=[
                {"Name": "e", "Value": "c"},
                {"Name": "n", "Value": "x"},
                {"Name": "o", "Value": ""},
            ],
        )
    message = raised.value.response["Error"]["Message"]
    assert (
        "e: 'c' is not one of" in message and "n: 'x' is not of type Integer" in message and "o: " in message
    )
    with pytest.raises(ClientError, match="n: has no default"):
        client.start("asks")


def test_an_endpoint_that_is_closed_stops_its_executions(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "home", isolation="plain", settings=SETTINGS) as info:
        client = PipelineClient(info)
        client.create(
            "closing", client.step("Waits", SLEEP_SCRIPT), client.step("Next", "", DependsOn=["Waits"])
        )
        execution = client.start("closing")
        client.wait_for_line(client.job(client.until(execution, "Waits"))["TrainingJobName"], "sleeps")
    with Endpoint(tmp_path / "home", isolation="plain", settings=SETTINGS) as info:
        client = PipelineClient(info)
        described = client.describe(execution)
        assert described["PipelineExecutionStatus"] == "Stopped"
        assert described["FailureReason"] == "The endpoint that ran this execution was closed"
        assert {name: step["StepStatus"] for name, step in client.steps(execution).items()} == {
            "Waits": "Stopped"
        }


def test_another_endpoint_of_the_state_directory_stops_an_execution(tmp_path: Path) -> None:
    options = {"isolation": "plain", "settings": SETTINGS}
    with Endpoint(tmp_path / "home", **options) as one, Endpoint(tmp_path / "home", **options) as other:
        client = PipelineClient(one)
        client.create("shared", client.step("Waits", SLEEP_SCRIPT))
        execution = client.start("shared")
        client.wait_for_line(client.job(client.until(execution, "Waits"))["TrainingJobName"], "sleeps")
        PipelineClient(other).sagemaker.stop_pipeline_execution(PipelineExecutionArn=execution)
        assert client.wait_for_end(execution)["PipelineExecutionStatus"] == "Stopped"


def test_an_execution_whose_endpoint_was_killed_is_failed_and_goes_on_when_retried() -> None:
    with endpoint_harness("plain") as harness:
        client = PipelineClient(harness.start())
        client.create(
            "killed",
            client.step("Done", ""),
            client.step("Waits", SLEEP_SCRIPT, DependsOn=["Done"]),
        )
        execution = client.start("killed")
        done_step = client.until(execution, "Done", "Succeeded")
        client.wait_for_line(client.job(client.until(execution, "Waits"))["TrainingJobName"], "sleeps")
        harness.kill()

        client = PipelineClient(harness.start())
        described = client.describe(execution)
        assert described["PipelineExecutionStatus"] == "Failed"
        assert "RetryPipelineExecution goes on" in described["FailureReason"]
        steps = client.steps(execution)
        assert steps["Done"] == done_step
        assert steps["Waits"]["StepStatus"] == "Failed"
        assert client.job(steps["Waits"])["TrainingJobStatus"] == "Failed"
        client.put("code/code-Waits/script.py", b"print('quick')")
        client.sagemaker.retry_pipeline_execution(PipelineExecutionArn=execution)
        assert client.wait_for_end(execution)["PipelineExecutionStatus"] == "Succeeded"
        assert client.steps(execution)["Done"] == done_step
