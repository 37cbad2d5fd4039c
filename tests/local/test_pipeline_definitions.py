"""What a definition may say, what is told of one that cannot run, and values and waits: all of it pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.pipelines import pipeline_conditions, ready_steps, step_retries
from smlaunch.local.pipelines.expressions import (
    UnresolvedError,
    parse_document_path,
    resolve_expressions,
    value_at_path,
)
from smlaunch.local.pipelines.pipeline_definition import VERSION, parse_definition, parse_duration
from smlaunch.local.pipelines.pipeline_records import StepRecord
from smlaunch.local.pipelines.pipeline_steps import Definition, InvalidDefinition

TRAINING = {
    "AlgorithmSpecification": {"TrainingImage": "image:1", "TrainingInputMode": "File"},
    "RoleArn": "arn:aws:iam::000000000000:role/local",
    "OutputDataConfig": {"S3OutputPath": "s3://tests/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
}


def training_step(name: str, **more: Any) -> dict[str, Any]:
    arguments = {**TRAINING, **more.pop("arguments", {})}
    return {"Name": name, "Type": "Training", "Arguments": arguments, **more}


def parse_steps(*steps: Any, **more: Any) -> Definition:
    return parse_definition(json.dumps({"Version": VERSION, "Steps": list(steps), **more}))


def problems(*steps: Any, **more: Any) -> list[str]:
    with pytest.raises(InvalidDefinition) as raised:
        parse_steps(*steps, **more)
    return list(raised.value.problems)


def test_all_problems_of_a_definition_are_reported_with_their_paths() -> None:
    messages = problems(
        training_step("A", DependsOn=["Nobody"]),
        training_step("A"),
        training_step("B", arguments={"HyperParameters": {"x": {"Get": "Parameters.none"}}}),
        training_step("C", arguments={"HyperParameters": {"x": {"Get": "Steps.Gone.TrainingJobArn"}}}),
        training_step("D", arguments={"TrainingJobName": "mine"}),
        training_step("E", arguments={"Unknown": 1, "ResourceConfig": {"InstanceCount": "two"}}),
        training_step("F", Surprise=1, RetryPolicies=[{"ExceptionType": ["Step.WHAT"], "MaxAttempts": 21}]),
        training_step("G", CacheConfig={"Enabled": True, "ExpireAfter": "soon"}),
        training_step(
            "H", arguments={"HyperParameters": {"x": {"Std:Odd": []}, "y": {"Get": "Execution.Mood"}}}
        ),
        {"Name": "I", "Type": "Condition", "Arguments": {"Conditions": [{"Type": "And"}]}},
        {"Name": "J", "Type": "Fail", "Arguments": {}},
        Version="2019-01-01",
        Parameters=[{"Name": "p", "Type": "Blob"}, {"Name": "q", "Type": "Integer", "DefaultValue": "1"}],
    )
    text = "\n".join(messages)
    for line in (
        "Version: '2019-01-01' is not supported here",
        "Parameters[0].Type: 'Blob' is not one of",
        "Parameters[1].DefaultValue: '1' is not of type Integer",
        "Steps[0].DependsOn: there is no step 'Nobody'",
        "Steps[1].Name: 'A' is also the name of Steps[0]",
        "Steps[2].Arguments.HyperParameters.x: there is no parameter 'none'",
        "Steps[3].Arguments.HyperParameters.x: 'Steps.Gone.TrainingJobArn': there is no step 'Gone'",
        "Steps[4].Arguments.TrainingJobName: the service makes the job's name",
        "Steps[5].Arguments.Unknown: is not a field of this API",
        "Steps[5].Arguments.ResourceConfig.InstanceCount: must be of type integer",
        "Steps[6].Surprise: is not supported here for a step of type Training",
        "Steps[6].RetryPolicies[0].ExceptionType: 'Step.WHAT' is not one of",
        "Steps[6].RetryPolicies[0].MaxAttempts: 21 is not an integer from 1 to 20",
        "Steps[7].CacheConfig.ExpireAfter: 'soon' is not an ISO 8601 duration",
        "Steps[8].Arguments.HyperParameters.x: the function Std:Odd is not supported here",
        "Steps[8].Arguments.HyperParameters.y: 'Execution.Mood' is not supported here",
        "Steps[9].Arguments.Conditions[0].Type: 'And' is not a supported condition",
        "Steps[10].Arguments: a Fail step has ErrorMessage",
    ):
        assert line in text, (line, text)


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", "{}", '{"Version": "2020-12-01", "Steps": [7]}', "[" * 9**5]
)
def test_invalid_documents_are_rejected(text: str) -> None:
    with pytest.raises(InvalidDefinition):
        parse_definition(text)


FIXTURES = Path(__file__).with_name("pipelines")


@pytest.mark.parametrize("name", ["jobs", "functions"])
def test_definitions_of_the_sdk_are_accepted(name: str) -> None:
    """Definitions of the SDK, version 3.27.0, as its Pipeline.definition() gave them; tests/real looks
    whether it still writes them so."""
    text = (FIXTURES / f"sdk3_{name}.json").read_text("utf-8")
    assert json.loads(text)["MlflowConfig"] is None
    definition = parse_definition(text)
    if name == "jobs":
        assert definition.topological_order == ("Prepare", "Train", "Good", "Bad")
        assert definition.steps["Prepare"].property_files == {"Report": ("prepared", "report.json")}
        assert definition.steps["Prepare"].max_cache_age_seconds == 86_400
        assert [policy.max_retries for policy in definition.steps["Prepare"].retry_policies] == [3]
        assert [policy.expire_after_seconds for policy in definition.steps["Train"].retry_policies] == [300]
        assert definition.parameters["Strict"].default is True
    else:
        assert definition.topological_order == ("Count", "Double", "Enough", "TooFew")


def test_null_is_absent_wherever_a_member_is_optional() -> None:
    policy = {"ExceptionType": ["Step.THROTTLING"], "MaxAttempts": 2, "ExpireAfterMin": None, "New": None}
    nothing = dict.fromkeys(
        ("DependsOn", "DisplayName", "Description", "RetryPolicies", "CacheConfig", "New"), None
    )
    always = {"Type": "Equals", "LeftValue": 1, "RightValue": 1, "New": None}
    branches = {"Conditions": [always], "IfSteps": None, "ElseSteps": None}
    definition = parse_steps(
        training_step("A", **nothing),
        training_step("B", RetryPolicies=[policy], CacheConfig={"Enabled": True, "ExpireAfter": None}),
        training_step("C", arguments={"Environment": None, "InputDataConfig": None}),
        {"Name": "If", "Type": "Condition", "Arguments": branches},
        Metadata=None,
        MlflowConfig=None,
        PipelineExperimentConfig=None,
        Parameters=[
            {"Name": "p", "Type": None, "Description": "text", "DefaultValue": None, "EnumValues": None}
        ],
        New=None,
    )
    assert definition.steps["A"].retry_policies == () and definition.steps["A"].max_cache_age_seconds is None
    assert definition.steps["B"].retry_policies[0].max_retries == 2 and definition.steps[
        "B"
    ].max_cache_age_seconds == float("inf")
    assert definition.parameters["p"].type == "String"
    assert parse_steps(training_step("A"), Parameters=None).parameters == {}
    assert problems(training_step("A", arguments={"HyperParameters": {"x": None}})) == [
        "Steps[0].Arguments.HyperParameters.x: must be of type string, not null"
    ]
    assert problems(training_step("A", Arguments=None)), "a job's request is needed"


def test_unsupported_fields_of_a_definition_are_rejected_by_name() -> None:
    config = {"MlflowResourceArn": "arn", "MlflowExperimentName": {"Get": "Execution.PipelineName"}}
    assert parse_steps(training_step("A"), MlflowConfig=config).topological_order == ("A",)
    messages = problems(
        training_step("A"),
        training_step("B", DependsOn=[{"Step": "A", "Trigger": "Failed"}]),
        training_step("C", DependsOn=[{"Step": "A", "Trigger": "Completed"}, 3]),
        {"Name": "Each", "Type": "ForEach", "Arguments": {}},
        MlflowConfig={**config, "MlflowRunName": "x", "MlflowExperimentName": {"Get": "Parameters.none"}},
        More={},
    )
    assert messages == [
        "More: is not a known member",
        "Steps[1].DependsOn[0].Trigger: 'Failed' is not supported here: a step runs when those that it "
        "depends on have succeeded",
        "Steps[2].DependsOn[1]: must be the name of a step",
        "Steps[3].Type: steps of type 'ForEach' cannot run on this endpoint; Training, Processing, "
        "Condition, Fail can",
        "MlflowConfig.MlflowRunName: is not a known member",
        "MlflowConfig.MlflowExperimentName: there is no parameter 'none'",
    ]


@pytest.mark.parametrize("value", [7, "x", [1], {"a": 1}, True, [[]], [{}], 1.5])
def test_members_of_a_wrong_type_are_reported(value: Any) -> None:
    always = {"Type": "Equals", "LeftValue": 1, "RightValue": 1}
    condition = {"Name": "If", "Type": "Condition", "Arguments": {"Conditions": [always]}}
    for member in ("Version", "Parameters", "PipelineExperimentConfig", "MlflowConfig", "Steps"):
        document = {"Version": VERSION, "Steps": [training_step("A")], member: value}
        with pytest.raises(InvalidDefinition):
            parse_definition(json.dumps(document))
    step = {**training_step("A"), "PropertyFiles": None}
    for member in (*step, "DependsOn", "DisplayName", "Description", "RetryPolicies", "CacheConfig"):
        if (member, value) not in [("Name", "x"), ("DisplayName", "x"), ("Description", "x")]:
            assert problems({**step, "Type": "Processing", member: value}), member
    for member in ("Name", "Type", "EnumValues"):
        if (member, value) != ("Name", "x"):
            wrong = [{"Name": "p", "DefaultValue": "d", member: value}]
            assert problems(training_step("A"), Parameters=wrong), member
    for member in ("Conditions", "IfSteps", "ElseSteps"):
        assert problems({**condition, "Arguments": {"Conditions": [always], member: value}}), member


def test_circles_are_found_also_through_references_and_branches() -> None:
    arn = {"Get": "Steps.B.TrainingJobArn"}
    messages = problems(
        training_step("A", arguments={"Environment": {"x": arn}}), training_step("B", DependsOn=["A"])
    )
    assert messages == ["Steps: A needs B needs A: no step can need itself"]
    inside = {
        "Name": "If",
        "Type": "Condition",
        "DependsOn": ["In"],
        "Arguments": {
            "Conditions": [{"Type": "Equals", "LeftValue": 1, "RightValue": 1}],
            "IfSteps": [training_step("In")],
            "ElseSteps": [],
        },
    }
    assert problems(inside) == ["Steps: If needs In needs If: no step can need itself"]


def test_a_condition_in_a_branch_of_another_is_refused() -> None:
    always = [{"Type": "Equals", "LeftValue": 1, "RightValue": 1}]

    def condition(name: str, *steps: Any) -> dict[str, Any]:
        arguments = {"Conditions": always, "IfSteps": [], "ElseSteps": list(steps)}
        return {"Name": name, "Type": "Condition", "Arguments": arguments}

    (message,) = problems(condition("Outer", condition("Inner", training_step("A"))))
    assert message.startswith("Steps[0].Arguments.ElseSteps[0]: a condition in a branch of 'Outer'")
    assert "does not support nested condition steps" in message


def test_references_may_stand_where_another_type_is_wanted() -> None:
    count = {"InstanceType": "ml.m5.large", "InstanceCount": {"Get": "Parameters.n"}, "VolumeSizeInGB": 1}
    parameters = [{"Name": "n", "Type": "Integer"}]
    assert (
        parse_steps(training_step("A", arguments={"ResourceConfig": count}), Parameters=parameters)
        .steps["A"]
        .dependencies
        == set()
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("P30D", 2_592_000), ("PT12H", 43_200), ("p1dT1m", 86_460), ("P2W", 1_209_600), ("30d", 2_592_000)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "P1H"])
def test_invalid_durations(text: str) -> None:
    assert parse_duration(text) is None


class Values:
    """A scope of a few values."""

    def parameter_value(self, name: str) -> Any:
        return {"n": 2, "yes": True, "f": 0.5}[name]

    def execution_variable(self, name: str) -> Any:
        return f"<{name}>"

    def describe_step(self, name: str) -> Any:
        return {"Metrics": [{"MetricName": "a.b", "Value": 3}], "Text": "word", "Outcome": "True"}

    def read_property_file(self, step: str, name: str) -> Any:
        return {"a": [{"b": 1}]}

    def read_s3_json(self, uri: str) -> Any:
        return [uri]


@pytest.mark.parametrize(
    ("expressions", "value"),
    [
        ({"Get": "Parameters.n"}, 2),
        ({"x": [{"Get": "Steps.S.Metrics['a.b'].Value"}]}, {"x": [3]}),
        ({"Get": "Steps.S.Metrics[0].Value"}, 3),
        ({"Std:Join": {"On": "/", "Values": ["s3:/", {"Get": "Execution.PipelineName"}, 1, True]}},
         "s3://<PipelineName>/1/true"),
        ({"Std:JsonGet": {"PropertyFile": {"Get": "Steps.S.PropertyFiles.F"}, "Path": "a[0]['b']"}}, 1),
        ({"Std:JsonGet": {"S3Uri": {"Std:Join": {"On": "", "Values": ["s3://b/", "k"]}}, "Path": "[0]"}},
         "s3://b/k"),
        ({"Get": "x", "more": 1}, {"Get": "x", "more": 1}),
    ],
)  # fmt: skip
def test_functions_of_definitions(expressions: Any, value: Any) -> None:
    assert resolve_expressions(expressions, Values()) == value


@pytest.mark.parametrize("reference", ["Steps.S.Metrics['x']", "Steps.S.Metrics[3]", "Steps.S.Text[0]"])
def test_missing_values_are_reported(reference: str) -> None:
    with pytest.raises(UnresolvedError, match="there is no"):
        resolve_expressions({"Get": reference}, Values())


def test_paths() -> None:
    assert parse_document_path("""A.B['c.d'][0]["e"]""") == ("A", "B", "c.d", 0, "e")
    assert parse_document_path("A[b]") is None
    assert value_at_path({"a": [1]}, ("a", 0), "") == 1


METRIC = {"Get": "Steps.S.Metrics[0].Value"}


@pytest.mark.parametrize(
    ("kind", "outcomes"),
    [
        ("Equals", [False, True, False]),
        ("GreaterThan", [True, False, False]),
        ("GreaterThanOrEqualTo", [True, True, False]),
        ("LessThan", [False, False, True]),
        ("LessThanOrEqualTo", [False, True, True]),
    ],
)
def test_comparisons(kind: str, outcomes: list[bool]) -> None:
    expressions = [{"Type": kind, "LeftValue": METRIC, "RightValue": right} for right in (2, 3, 4)]
    assert [pipeline_conditions.evaluate_condition(one, Values()) for one in expressions] == outcomes


def test_in_not_and_or() -> None:
    in_condition = {"Type": "In", "QueryValue": METRIC, "Values": [1, METRIC]}
    not_in_condition = {"Type": "Not", "Condition": in_condition}
    assert pipeline_conditions.evaluate_condition(in_condition, Values())
    assert not pipeline_conditions.evaluate_condition(not_in_condition, Values())
    assert pipeline_conditions.evaluate_condition(
        {"Type": "Or", "Conditions": [not_in_condition, in_condition]}, Values()
    )
    assert not pipeline_conditions.evaluate_condition(
        {"Type": "Or", "Conditions": [not_in_condition, not_in_condition]}, Values()
    )


def test_a_policy_waits_longer_each_time_and_ends() -> None:
    by_count = step_retries.parse_retry_policy(
        {"ExceptionType": ["Step.THROTTLING"], "IntervalSeconds": 3, "MaxAttempts": 2}
    )
    assert [by_count.seconds_before_retry(retry, 0) for retry in (1, 2, 3)] == [3, 6, None]
    by_time = step_retries.parse_retry_policy(
        {"ExceptionType": ["Step.THROTTLING"], "BackoffRate": 1, "ExpireAfterMin": 1}
    )
    assert [by_time.seconds_before_retry(50, since) for since in (0, 58, 60)] == [1, 1, None]
    assert step_retries.classify_error(ApiError("ThrottlingException", "")) == "Step.THROTTLING"
    assert step_retries.classify_error(ApiError("InternalFailure", "", 500)) == "Step.SERVICE_FAULT"
    assert step_retries.classify_error(ApiError("ValidationException", "")) is None
    assert step_retries.classify_failure_reason("CapacityError: none") == "SageMaker.CAPACITY_ERROR"
    assert step_retries.classify_failure_reason("AlgorithmError: x") is None


def step_record(name: str, status: str, **more: Any) -> StepRecord:
    return StepRecord("e", "p", name, "Training", status, 0.0, **more)


def test_only_ready_steps_start() -> None:
    condition = {
        "Name": "If",
        "Type": "Condition",
        "DependsOn": ["A"],
        "Arguments": {
            "Conditions": [{"Type": "Equals", "LeftValue": 1, "RightValue": 1}],
            "IfSteps": [training_step("Yes")],
            "ElseSteps": [training_step("No")],
        },
    }
    definition = parse_steps(
        training_step("Last", DependsOn=["No"]), condition, training_step("A"), training_step("B")
    )
    assert ready_steps.find_ready_steps(definition, {}) == ["A", "B"]
    records = {"A": step_record("A", "Succeeded"), "B": step_record("B", "Failed")}
    assert ready_steps.find_ready_steps(definition, records) == ["If"]
    records_with_condition = {**records, "If": step_record("If", "Succeeded", outcome=True)}
    assert ready_steps.find_ready_steps(definition, records_with_condition) == ["Yes"]
    assert (
        ready_steps.find_ready_steps(
            definition, {**records_with_condition, "Yes": step_record("Yes", "Succeeded")}
        )
        == []
    )
