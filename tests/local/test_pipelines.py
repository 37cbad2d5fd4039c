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
from smlaunch.local.faults import FaultPlan, HostLost, NoCapacity, Throttle
from smlaunch.local.pipelines.definition import VERSION
from smlaunch.local.settings import Settings
from tests.local import changes
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import endpoint_harness
from tests.local.test_processing_jobs import Jobs

FAULTS = FaultPlan(
    faults=(
        HostLost(after=0.1, jobs="pipelines-*-Lost-*"),
        NoCapacity(jobs="pipelines-*-Choosy-*", instance_types="ml.p*"),
        # The first CreateProcessingJob of the endpoint's life; nothing but one test here creates any early.
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
SLEEP = "print('sleeps', flush=True)\ntime.sleep(1000)"
ALWAYS = {"Type": "Equals", "LeftValue": 1, "RightValue": 1}


class Runs(EndpointClient):
    """A pipeline is started as it is written."""

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
        found: dict[str, Any] = self.sagemaker.describe_pipeline_execution(PipelineExecutionArn=name)
        return found

    def ended(self, execution: str, patience: float = 60.0) -> dict[str, Any]:

        def look() -> dict[str, Any] | None:
            found = self.describe(execution)
            return None if found["PipelineExecutionStatus"] in ("Executing", "Stopping") else found

        found = changes.until(self.info.home, look, patience)
        assert found is not None, self.steps(execution)
        return found

    def whole(self, name: str, *steps: Any, **more: Any) -> tuple[str, dict[str, Any]]:
        self.create(name, *steps, **more)
        execution = self.start(name)
        self.ended(execution)
        return execution, self.steps(execution)

    def steps(self, execution: str) -> dict[str, Any]:
        pages = self.sagemaker.get_paginator("list_pipeline_execution_steps").paginate(
            PipelineExecutionArn=execution, SortOrder="Ascending"
        )
        return {step["StepName"]: step for page in pages for step in page["PipelineExecutionSteps"]}

    def until(self, execution: str, step: str, status: str = "Executing") -> dict[str, Any]:

        def look() -> dict[str, Any] | None:
            found = self.steps(execution).get(step, {})
            return dict(found) if found.get("StepStatus") == status else None

        found = changes.until(self.info.home, look, 30)
        assert found is not None, self.steps(execution)
        return found

    def job(self, step: dict[str, Any]) -> dict[str, Any]:
        """The training job of a step, as it is described."""
        arn = step["Metadata"]["TrainingJob"]["Arn"]
        for summary in self.sagemaker.list_training_jobs(MaxResults=100)["TrainingJobSummaries"]:
            if summary["TrainingJobArn"] == arn:
                found: dict[str, Any] = self.sagemaker.describe_training_job(
                    TrainingJobName=summary["TrainingJobName"]
                )
                return found
        raise AssertionError(arn)


def get(reference: str) -> dict[str, str]:
    return {"Get": reference}


def choice(name: str, *conditions: Any, yes: Any = (), no: Any = (), **more: Any) -> dict[str, Any]:
    arguments = {"Conditions": list(conditions), "IfSteps": list(yes), "ElseSteps": list(no)}
    return {"Name": name, "Type": "Condition", "Arguments": arguments, **more}


def fail(name: str, message: Any) -> dict[str, Any]:
    return {"Name": name, "Type": "Fail", "Arguments": {"ErrorMessage": message}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain", settings=SETTINGS) as info:
        yield Runs(info)


def test_steps_use_outputs_of_others_and_conditions_choose_branches(runs: Runs) -> None:
    prep = runs.processing(
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
    rows = {"Std:JsonGet": {"PropertyFile": get("Steps.Prep.PropertyFiles.Report"), "Path": "$.rows[1]"}}
    train = runs.step(
        "Train_it",
        "given = json.load(open(ROOT + '/input/config/hyperparameters.json'))\nprint('acc=0.75;')\n"
        "print('given', given, os.listdir(ROOT + '/input/data/prepared'))",
        changes={
            "HyperParameters": {
                "lr": {"Std:Join": {"On": "", "Values": [get("Parameters.lr")]}},
                "rows": {"Std:Join": {"On": "-", "Values": ["n", rows]}},
                "run": get("Execution.PipelineName"),
            },
            "InputDataConfig": [
                {
                    "ChannelName": "prepared",
                    "DataSource": {
                        "S3DataSource": {
                            "S3DataType": "S3Prefix",
                            "S3Uri": get("Steps.Prep.ProcessingOutputConfig.Outputs['out'].S3Output.S3Uri"),
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
    train["Arguments"]["ResourceConfig"]["InstanceCount"] = get("Parameters.hosts")
    metric = get("Steps.Train_it.FinalMetricDataList['acc'].Value")
    good = {"Type": "GreaterThanOrEqualTo", "LeftValue": metric, "RightValue": get("Parameters.least")}
    decide = choice(
        "Good",
        good,
        {"Type": "Or", "Conditions": [{"Type": "Not", "Condition": ALWAYS}, ALWAYS]},
        yes=[fail("End", get("Parameters.word"))],
        no=[fail("Bad", "never")],
    )
    runs.create(
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
            "ExperimentName": get("Execution.PipelineName"),
            "TrialName": get("Execution.PipelineExecutionId"),
        },
    )
    given = [{"Name": "least", "Value": "0.75"}]
    execution = runs.start("whole", PipelineParameters=given, PipelineExecutionDisplayName="first")
    described = runs.ended(execution)
    steps = runs.steps(execution)
    assert list(steps) == ["Prep", "Train_it", "Good", "End"]
    assert described["PipelineExecutionStatus"] == "Failed"
    assert described["PipelineExperimentConfig"]["TrialName"] == execution.rpartition("/")[2]
    assert described["PipelineExecutionDisplayName"] == "first"
    assert steps["End"]["FailureReason"] == "as it should"
    assert steps["End"]["Metadata"] == {"Fail": {"ErrorMessage": "as it should"}}
    assert steps["Good"]["Metadata"] == {"Condition": {"Outcome": "True"}}
    assert steps["Prep"]["AttemptCount"] == 2, "the first create is throttled by the fault plan"
    job = runs.job(steps["Train_it"])
    name = job["TrainingJobName"]
    assert name.startswith(f"pipelines-{execution.rpartition('/')[2]}-Train-it-")
    (line,) = [line for line in runs.printed_lines(name)["algo-1"] if line.startswith("given")]
    assert line == "given {'lr': '0.1', 'rows': 'n-4', 'run': 'whole'} ['report.json']"
    tags = runs.sagemaker.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    assert tags == [{"Key": "mine", "Value": "x"}]
    parameters = runs.sagemaker.list_pipeline_parameters_for_execution(PipelineExecutionArn=execution)
    assert parameters["PipelineParameters"] == [
        {"Name": "lr", "Value": "0.1"},
        {"Name": "least", "Value": "0.75"},
        {"Name": "hosts", "Value": "1"},
        {"Name": "word", "Value": "as it should"},
    ]
    written = runs.sagemaker.describe_pipeline_definition_for_execution(PipelineExecutionArn=execution)
    assert json.loads(written["PipelineDefinition"])["Steps"][0]["Name"] == "Good"


def test_only_steps_that_do_not_depend_on_a_failed_step_run(runs: Runs) -> None:
    execution, steps = runs.whole(
        "partly",
        runs.step("Breaks", "sys.exit(3)"),
        runs.step("After", "", DependsOn=["Breaks"]),
        runs.step("Aside", "time.sleep(0.5)"),
        runs.step("Later", "", DependsOn=["Aside"]),
    )
    assert {name: step["StepStatus"] for name, step in steps.items()} == {
        "Breaks": "Failed",
        "Aside": "Succeeded",
        "Later": "Succeeded",
    }
    assert steps["Breaks"]["FailureReason"].endswith("exit code: 3")
    described = runs.describe(execution)
    assert described["PipelineExecutionStatus"] == "Failed"
    assert described["FailureReason"] == "Step failure: One or multiple steps failed."
    listed = runs.sagemaker.list_pipeline_executions(PipelineName="partly")["PipelineExecutionSummaries"]
    assert [one["PipelineExecutionStatus"] for one in listed] == ["Failed"]


def test_retries_are_for_their_own_errors_and_end(runs: Runs) -> None:
    again = {"IntervalSeconds": 0, "MaxAttempts": 1}
    internal = {**again, "ExceptionType": ["SageMaker.JOB_INTERNAL_ERROR"]}
    capacity = {**again, "ExceptionType": ["SageMaker.CAPACITY_ERROR"]}
    p3 = {"ResourceConfig": {"InstanceType": "ml.p3.2xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}}
    execution, steps = runs.whole(
        "tries",
        runs.step("Lost", SLEEP, RetryPolicies=[internal]),
        runs.step("Choosy", "", RetryPolicies=[internal, capacity], changes=p3),
        runs.step("Own", "sys.exit(1)", RetryPolicies=[internal, capacity]),
    )
    assert {name: step["AttemptCount"] for name, step in steps.items()} == {"Lost": 2, "Choosy": 2, "Own": 1}
    assert steps["Lost"]["FailureReason"].startswith("InternalServerError: ")
    assert steps["Choosy"]["FailureReason"].startswith("CapacityError: ")
    jobs = runs.sagemaker.list_training_jobs(
        NameContains=f"{execution.rpartition('/')[2]}-Lost", MaxResults=9
    )
    assert len(jobs["TrainingJobSummaries"]) == 2, "each try is a job of its own"


def test_cached_results_are_reused_for_equal_arguments(runs: Runs) -> None:
    train = runs.step("Train", "print('acc=1;')", CacheConfig={"Enabled": True, "ExpireAfter": "P1D"})
    train["Arguments"]["Environment"] = {"SEED": get("Parameters.seed")}
    train["Arguments"]["StoppingCondition"] = {"MaxRuntimeInSeconds": get("Parameters.limit")}
    train["Arguments"]["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "acc", "Regex": "acc=(.*?);"}
    ]
    acc = {
        "Type": "Equals",
        "LeftValue": get("Steps.Train.FinalMetricDataList['acc'].Value"),
        "RightValue": 1,
    }
    runs.create(
        "cached",
        train,
        choice("Same", acc, no=[fail("No", "the metric is another")]),
        Parameters=[
            {"Name": "seed", "Type": "String", "DefaultValue": "1"},
            {"Name": "limit", "Type": "Integer", "DefaultValue": 60},
        ],
    )
    first, second = runs.start("cached"), ""
    assert runs.ended(first)["PipelineExecutionStatus"] == "Succeeded"
    for limit in ("60", "90"):  # which is not compared
        second = runs.start("cached", PipelineParameters=[{"Name": "limit", "Value": limit}])
        assert runs.ended(second)["PipelineExecutionStatus"] == "Succeeded"
    hit = runs.steps(second)["Train"]
    assert hit["CacheHitResult"] == {"SourcePipelineExecutionArn": first}
    assert hit["Metadata"] == runs.steps(first)["Train"]["Metadata"]
    other = runs.start("cached", PipelineParameters=[{"Name": "seed", "Value": "2"}])
    assert runs.ended(other)["PipelineExecutionStatus"] == "Succeeded"
    assert "CacheHitResult" not in runs.steps(other)["Train"]
    runs.sagemaker.delete_training_job(TrainingJobName=runs.job(hit)["TrainingJobName"])
    gone = runs.start("cached")
    assert runs.ended(gone)["PipelineExecutionStatus"] == "Succeeded"
    assert "CacheHitResult" not in runs.steps(gone)["Train"], "its job is no longer known"


def test_a_stop_stops_jobs_and_a_retry_reuses_finished_steps(runs: Runs) -> None:
    stops = runs.step("Waits", SLEEP, DependsOn=["Done"])
    runs.create("stopped", runs.step("Done", ""), stops, runs.step("Never", "", DependsOn=["Waits"]))
    execution = runs.start("stopped")
    job = runs.job(runs.until(execution, "Waits"))["TrainingJobName"]
    runs.wait_for_line(job, "sleeps")
    with pytest.raises(runs.sagemaker.exceptions.ConflictException, match="have not ended"):
        runs.sagemaker.delete_pipeline(PipelineName="stopped")
    runs.sagemaker.stop_pipeline_execution(PipelineExecutionArn=execution)
    assert runs.ended(execution)["PipelineExecutionStatus"] == "Stopped"
    steps = runs.steps(execution)
    assert {name: step["StepStatus"] for name, step in steps.items()} == {
        "Done": "Succeeded",
        "Waits": "Stopped",
    }
    assert runs.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobStatus"] == "Stopped"
    with pytest.raises(ClientError, match="is in status Stopped"):
        runs.sagemaker.stop_pipeline_execution(PipelineExecutionArn=execution)

    runs.put("code/code-Waits/script.py", b"print('quick')")
    runs.sagemaker.retry_pipeline_execution(PipelineExecutionArn=execution)
    assert runs.ended(execution)["PipelineExecutionStatus"] == "Succeeded"
    again = runs.steps(execution)
    assert again["Done"] == steps["Done"]
    assert list(again) == ["Done", "Waits", "Never"]
    with pytest.raises(ClientError, match="only an execution that is Failed or Stopped"):
        runs.sagemaker.retry_pipeline_execution(PipelineExecutionArn=execution)
    runs.sagemaker.delete_pipeline(PipelineName="stopped")
    with pytest.raises(runs.sagemaker.exceptions.ResourceNotFound):
        runs.describe(execution)


def test_a_job_stopped_from_outside_fails_its_step(runs: Runs) -> None:
    runs.create("outside", runs.step("Waits", SLEEP))
    execution = runs.start("outside")
    job = runs.job(runs.until(execution, "Waits"))["TrainingJobName"]
    runs.sagemaker.stop_training_job(TrainingJobName=job)
    assert runs.ended(execution)["PipelineExecutionStatus"] == "Failed"
    assert "was stopped (Stopped)" in runs.steps(execution)["Waits"]["FailureReason"]


def test_no_more_steps_run_at_once_than_asked_for(runs: Runs) -> None:
    stamp = "open(ROOT + '/model/t', 'w').write(f'{time.time()}'); time.sleep(0.2)"
    runs.create("one-by-one", *(runs.step(f"S{number}", stamp) for number in range(3)))
    execution = runs.start("one-by-one", ParallelismConfiguration={"MaxParallelExecutionSteps": 1})
    assert runs.ended(execution)["PipelineExecutionStatus"] == "Succeeded"
    times = sorted((one["StartTime"], one["EndTime"]) for one in runs.steps(execution).values())
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times)), times


def test_a_missing_value_fails_its_step(runs: Runs) -> None:
    missing = {
        "Type": "Equals",
        "LeftValue": get("Steps.Train.FinalMetricDataList['x'].Value"),
        "RightValue": 1,
    }
    unlike = {"Type": "LessThan", "LeftValue": "a", "RightValue": 1}
    cannot = runs.step("Cannot", "")
    algorithm = {"AlgorithmName": "theirs", "TrainingInputMode": "File"}
    cannot["Arguments"]["AlgorithmSpecification"] = algorithm
    execution, steps = runs.whole(
        "missing", runs.step("Train", ""), choice("Asks", missing), choice("Unlike", unlike), cannot
    )
    assert "there is no 'FinalMetricDataList'" in steps["Asks"]["FailureReason"]
    assert "cannot be compared" in steps["Unlike"]["FailureReason"]
    assert "marketplace algorithms cannot run here" in steps["Cannot"]["FailureReason"]
    assert runs.describe(execution)["PipelineExecutionStatus"] == "Failed"


def test_pipelines_are_described_listed_updated_and_found_once(runs: Runs) -> None:
    arn = runs.create("listed-A", runs.step("S", ""))
    with pytest.raises(ClientError, match="already exists") as raised:
        runs.create("listed-A", runs.step("S", ""))
    assert raised.value.response["Error"]["Code"] == "ValidationException", "as the SDK's upsert expects"
    token = "t" * 32
    definition = json.dumps({"Version": VERSION, "Steps": [fail("F", "x")]})
    runs.put("definition.json", definition.encode())
    for _ in range(2):
        runs.sagemaker.create_pipeline(
            PipelineName="listed-B",
            PipelineDefinitionS3Location={"Bucket": "tests", "ObjectKey": "definition.json"},
            RoleArn=runs.info.role_arn,
            ClientRequestToken=token,
        )
    executions = {runs.start("listed-B", ClientRequestToken=token) for _ in range(2)}
    assert len(executions) == 1
    runs.ended(executions.pop())
    runs.sagemaker.update_pipeline(PipelineName="listed-A", PipelineDescription="new")
    runs.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": key, "Value": "1"} for key in ("a", "b")])
    runs.sagemaker.delete_tags(ResourceArn=arn, TagKeys=["a"])
    assert runs.sagemaker.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "b", "Value": "1"}]
    described = runs.sagemaker.describe_pipeline(PipelineName=arn)
    assert (described["PipelineDescription"], described["PipelineStatus"]) == ("new", "Active")
    assert json.loads(described["PipelineDefinition"])["Steps"][0]["Name"] == "S"
    pages = runs.sagemaker.get_paginator("list_pipelines").paginate(
        PipelineNamePrefix="listed", SortBy="Name", SortOrder="Ascending", PaginationConfig={"PageSize": 1}
    )
    assert [one["PipelineName"] for page in pages for one in page["PipelineSummaries"]] == [
        "listed-A",
        "listed-B",
    ]
    with pytest.raises(runs.sagemaker.exceptions.ResourceNotFound):
        runs.start("nowhere")


def test_unsupported_parameters_are_rejected_by_name(runs: Runs) -> None:
    with pytest.raises(
        ClientError, match=r"SelectiveExecutionConfig: all steps .* PipelineVersionId: a pipeline"
    ):
        runs.start(
            "x",
            SelectiveExecutionConfig={"SelectedSteps": [{"StepName": "a"}]},
            PipelineVersionId=1,
        )
    with pytest.raises(ClientError) as raised:
        runs.create("bad", {"Name": "T", "Type": "Tuning", "Arguments": {}}, {"Name": "T?", "Type": "EMR"})
    message = raised.value.response["Error"]["Message"]
    assert "Steps[0].Type: steps of type 'Tuning' cannot run on this endpoint" in message
    assert "Steps[1].Name" in message and "'EMR'" in message
    parameters = [
        {"Name": "n", "Type": "Integer"},
        {"Name": "e", "Type": "String", "EnumValues": ["a", "b"], "DefaultValue": "a"},
    ]
    runs.create("asks", fail("F", get("Parameters.e")), Parameters=parameters)
    with pytest.raises(ClientError) as raised:
        runs.start(
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
        runs.start("asks")


def test_an_endpoint_that_is_closed_stops_its_executions(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "home", isolation="plain", settings=SETTINGS) as info:
        runs = Runs(info)
        runs.create("closing", runs.step("Waits", SLEEP), runs.step("Next", "", DependsOn=["Waits"]))
        execution = runs.start("closing")
        runs.wait_for_line(runs.job(runs.until(execution, "Waits"))["TrainingJobName"], "sleeps")
    with Endpoint(tmp_path / "home", isolation="plain", settings=SETTINGS) as info:
        runs = Runs(info)
        described = runs.describe(execution)
        assert described["PipelineExecutionStatus"] == "Stopped"
        assert described["FailureReason"] == "The endpoint that ran this execution was closed"
        assert {name: step["StepStatus"] for name, step in runs.steps(execution).items()} == {
            "Waits": "Stopped"
        }


def test_another_endpoint_of_the_state_directory_stops_an_execution(tmp_path: Path) -> None:
    place = {"isolation": "plain", "settings": SETTINGS}
    with Endpoint(tmp_path / "home", **place) as one, Endpoint(tmp_path / "home", **place) as other:
        runs = Runs(one)
        runs.create("shared", runs.step("Waits", SLEEP))
        execution = runs.start("shared")
        runs.wait_for_line(runs.job(runs.until(execution, "Waits"))["TrainingJobName"], "sleeps")
        Runs(other).sagemaker.stop_pipeline_execution(PipelineExecutionArn=execution)
        assert runs.ended(execution)["PipelineExecutionStatus"] == "Stopped"


def test_an_execution_whose_endpoint_was_killed_is_failed_and_goes_on_when_retried() -> None:
    with endpoint_harness("plain") as place:
        runs = Runs(place.start())
        runs.create(
            "killed",
            runs.step("Done", ""),
            runs.step("Waits", SLEEP, DependsOn=["Done"]),
        )
        execution = runs.start("killed")
        done = runs.until(execution, "Done", "Succeeded")
        runs.wait_for_line(runs.job(runs.until(execution, "Waits"))["TrainingJobName"], "sleeps")
        place.kill()

        runs = Runs(place.start())
        described = runs.describe(execution)
        assert described["PipelineExecutionStatus"] == "Failed"
        assert "RetryPipelineExecution goes on" in described["FailureReason"]
        steps = runs.steps(execution)
        assert steps["Done"] == done
        assert steps["Waits"]["StepStatus"] == "Failed"
        assert runs.job(steps["Waits"])["TrainingJobStatus"] == "Failed"
        runs.put("code/code-Waits/script.py", b"print('quick')")
        runs.sagemaker.retry_pipeline_execution(PipelineExecutionArn=execution)
        assert runs.ended(execution)["PipelineExecutionStatus"] == "Succeeded"
        assert runs.steps(execution)["Done"] == done
