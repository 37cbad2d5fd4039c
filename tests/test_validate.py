"""The request validator: against the API model it was generated from, and rule by rule."""

from __future__ import annotations

import copy
import gzip
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore
import pytest
from botocore.loaders import Loader
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.api.validation.java_patterns import compile_matcher, python_metric_pattern
from smlaunch.api.validation.request_check import check_request, checkable_operations
from smlaunch.api.validation.violation import Violation, aws_message
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from tests.tables import table

REQUEST: dict[str, Any] = {
    "TrainingJobName": "a-job",
    "RoleArn": "arn:aws:iam::000000000000:role/smlaunch-local",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    "HyperParameters": {"lr": "0.1"},
    "InputDataConfig": [
        {
            "ChannelName": "train",
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data/"}},
        }
    ],
}
CHANNEL = REQUEST["InputDataConfig"][0]
RESOURCES = REQUEST["ResourceConfig"]
RULE = {"RuleConfigurationName": "a", "RuleEvaluatorImage": "image"}


def request_with(path: str, value: Any) -> dict[str, Any]:
    """The good request with one member set, or taken out by ``...``."""
    request = copy.deepcopy(REQUEST)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    node: Any = request
    for step in parents:
        node = node.setdefault(step, {}) if isinstance(node, dict) else node[step]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return request


def violations(request: dict[str, Any], operation: str = "CreateTrainingJob") -> list[tuple[str, str]]:
    return [(violation.dotted_path(), violation.rule) for violation in check_request(operation, request)]


def test_a_good_request_passes() -> None:
    assert check_request("CreateTrainingJob", REQUEST) == []
    assert check_request("CreateTrainingJob", {**REQUEST, "Tags": None}) == []


@table(
    ("path", "value", "expected"),
    [
        ("RoleArn", ..., [("RoleArn", "required")]),
        ("RoleArn", None, [("RoleArn", "required")]),
        ("TrainingJobName", "", [("TrainingJobName", "min_length"), ("TrainingJobName", "pattern")]),
        ("TrainingJobName", "x" * 64, [("TrainingJobName", "max_length"), ("TrainingJobName", "pattern")]),
        ("TrainingJobName", "a_b", [("TrainingJobName", "pattern")]),
        ("TrainingJobName", "name\n", [("TrainingJobName", "pattern")]),
        ("TrainingJobName", 7, [("TrainingJobName", "type")]),
        ("HyperParameters", {"a": 1}, [("HyperParameters.a", "type")]),
        ("HyperParameters", {"a": "x" * 2501}, [("HyperParameters.a", "max_length")]),
        ("HyperParameters", {"k" * 257: ""}, [(f"HyperParameters.{'k' * 257}", "max_length")]),
        ("HyperParameters", {f"k{n}": "" for n in range(101)}, [("HyperParameters", "max_items")]),
        ("Environment", {"a-b": "x"}, [("Environment.a-b", "pattern")]),
        ("Environment", {"a": "x" * 513}, [("Environment.a", "max_length")]),
        ("InputDataConfig", [], [("InputDataConfig", "min_items")]),
        ("InputDataConfig.0.ChannelName", ".", [("InputDataConfig[0].ChannelName", "service")]),
        ("InputDataConfig.0.ChannelName", "..", [("InputDataConfig[0].ChannelName", "service")]),
        ("InputDataConfig.0.ChannelName", "a b", [("InputDataConfig[0].ChannelName", "pattern")]),
        ("InputDataConfig.0.InputMode", "Fast", [("InputDataConfig[0].InputMode", "enum")]),
        ("ResourceConfig.InstanceType", "ml.big", [("ResourceConfig.InstanceType", "enum")]),
        ("ResourceConfig.InstanceCount", 0, [("ResourceConfig.InstanceCount", "min")]),
        ("ResourceConfig.InstanceCount", "2", [("ResourceConfig.InstanceCount", "type")]),
        ("ResourceConfig.InstanceCount", True, [("ResourceConfig.InstanceCount", "type")]),
        ("ResourceConfig.InstanceCount", 1.5, [("ResourceConfig.InstanceCount", "type")]),
        ("ResourceConfig.InstanceCount", ..., [("ResourceConfig.InstanceCount", "required")]),
        ("ResourceConfig.VolumeSizeInGB", 0, [("ResourceConfig.VolumeSizeInGB", "min")]),
        ("ResourceConfig.Surprise", 1, [("ResourceConfig.Surprise", "unknown")]),
        ("ResourceConfig", ..., [("ResourceConfig", "required")]),
        ("AlgorithmSpecification", ..., [("AlgorithmSpecification", "required")]),
        ("AlgorithmSpecification.TrainingImage", ..., [("AlgorithmSpecification", "service")]),
        ("AlgorithmSpecification.AlgorithmName", "x", [("AlgorithmSpecification", "service")]),
        (
            "AlgorithmSpecification.ContainerEntrypoint",
            ["x" * 257],
            [("AlgorithmSpecification.ContainerEntrypoint[0]", "max_length")],
        ),
        ("StoppingCondition.MaxRuntimeInSeconds", 0, [("StoppingCondition.MaxRuntimeInSeconds", "min")]),
        (
            "StoppingCondition.MaxRuntimeInSeconds",
            28 * 86400 + 1,
            [("StoppingCondition.MaxRuntimeInSeconds", "max")],
        ),
        (
            "StoppingCondition.MaxWaitTimeInSeconds",
            7200,
            [("StoppingCondition.MaxWaitTimeInSeconds", "service")],
        ),
        ("EnableManagedSpotTraining", True, [("StoppingCondition.MaxWaitTimeInSeconds", "service")]),
        ("InputDataConfig", [CHANNEL, CHANNEL], [("InputDataConfig", "service")]),
        ("InputDataConfig.0.DataSource", {}, [("InputDataConfig[0].DataSource", "service")]),
        ("Tags", [{"Key": "aws:x", "Value": ""}], [("Tags[0].Key", "service")]),
        ("Tags", [{"Key": "a", "Value": ""}, {"Key": "a", "Value": "b"}], [("Tags", "service")]),
        ("Tags", [{"Key": "größe", "Value": "Ⅷ 例"}], []),
        ("Tags", [{"Key": "a!", "Value": ""}], [("Tags[0].Key", "pattern")]),
        ("InputDataConfig.0.CompressionType", "Gzip", [("InputDataConfig[0].CompressionType", "service")]),
        ("ResourceConfig.VolumeKmsKeyId", "key", []),
        (
            "ResourceConfig",
            {**RESOURCES, "InstanceType": "ml.g5.xlarge", "VolumeKmsKeyId": "key"},
            [("ResourceConfig.VolumeKmsKeyId", "service")],
        ),
        (
            "ResourceConfig.KeepAlivePeriodInSeconds",
            21601,
            [("ResourceConfig.KeepAlivePeriodInSeconds", "max")],
        ),
        (
            "StoppingCondition.MaxPendingTimeInSeconds",
            1799,
            [("StoppingCondition.MaxPendingTimeInSeconds", "min")],
        ),
        ("RetryStrategy", {"MaximumRetryAttempts": 31}, [("RetryStrategy.MaximumRetryAttempts", "max")]),
        ("DebugRuleConfigurations", [RULE, RULE], [("DebugRuleConfigurations", "service")]),
        ("ProfilerRuleConfigurations", [RULE, RULE], [("ProfilerRuleConfigurations", "service")]),
        (
            "DebugHookConfig",
            {"S3OutputPath": "s3://b/x", "CollectionConfigurations": [{"CollectionName": "a"}] * 2},
            [("DebugHookConfig.CollectionConfigurations", "service")],
        ),
        (
            "InputDataConfig.0.DataSource.S3DataSource.ModelAccessConfig",
            {"AcceptEula": False},
            [("InputDataConfig[0].DataSource.S3DataSource.ModelAccessConfig.AcceptEula", "service")],
        ),
    ],
)
def test_one_broken_rule(path: str, value: Any, expected: list[tuple[str, str]]) -> None:
    assert violations(request_with(path, value)) == expected


def test_spot() -> None:
    request = request_with("EnableManagedSpotTraining", True)
    request["StoppingCondition"] = {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60}
    assert violations(request) == []
    request["StoppingCondition"]["MaxWaitTimeInSeconds"] = 59
    assert violations(request) == [("StoppingCondition.MaxWaitTimeInSeconds", "service")]
    request["StoppingCondition"] = {"MaxWaitTimeInSeconds": 60}  # the runtime's default is a day
    assert violations(request) == [("StoppingCondition.MaxWaitTimeInSeconds", "service")]


def test_instance_groups_and_preferences() -> None:
    group = {"InstanceGroupName": "a", "InstanceType": "ml.m5.large", "InstanceCount": 1}
    assert violations(request_with("ResourceConfig", {"InstanceGroups": [group]})) == []
    assert violations(request_with("ResourceConfig", {"InstanceGroups": [group, group]})) == [
        ("ResourceConfig.InstanceGroups", "service")
    ]
    both_fields = {"InstanceGroups": [group], "InstanceType": "ml.m5.large"}
    assert violations(request_with("ResourceConfig", both_fields)) == [
        ("ResourceConfig.InstanceType", "service")
    ]
    preference = {"InstanceType": "ml.m5.large"}
    with_count = {**preference, "InstanceCount": 1}
    for resources, is_broken in (
        ({"InstancePreferences": [with_count, with_count]}, False),
        ({"InstancePreferences": [preference], "InstanceCount": 1}, False),
        ({"InstancePreferences": [preference]}, True),
        ({"InstancePreferences": [with_count, preference]}, True),
        ({"InstancePreferences": [with_count], "InstanceCount": 1}, True),
    ):
        expected = [("ResourceConfig.InstancePreferences", "service")] if is_broken else []
        assert violations(request_with("ResourceConfig", resources)) == expected
    request = request_with(
        "ResourceConfig", {"InstancePreferences": [with_count], "InstanceType": "ml.m5.large"}
    )
    assert violations(request) == [("ResourceConfig.InstanceType", "service")]


def test_a_training_plan_stands_in_one_place() -> None:
    plan = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p"
    preference = {"InstanceType": "ml.p5.48xlarge", "TrainingPlanArns": [plan]}
    resources = {"InstancePreferences": [preference], "InstanceCount": 1}
    assert violations(request_with("ResourceConfig", resources)) == []
    expected = [("ResourceConfig.InstancePreferences[0].TrainingPlanArns", "service")]
    assert violations(request_with("ResourceConfig", {**resources, "TrainingPlanArn": plan})) == expected


def test_all_problems_come_at_once_and_read_well() -> None:
    request = request_with("TrainingJobName", "a_b")
    request["ResourceConfig"]["InstanceType"] = "ml.m5.larg"
    request["ResourceConfig"]["InstanceCoun"] = 3
    del request["RoleArn"]
    request["HyperParameters"] = {"note": "x" * 3000}
    texts = [str(violation.to_problem()) for violation in check_request("CreateTrainingJob", request)]
    assert texts == [
        "RoleArn: is required and missing",
        'TrainingJobName: "a_b" is not a name of letters, digits and single dashes between them',
        "ResourceConfig.InstanceType: \"ml.m5.larg\" is not an allowed value; did you mean 'ml.m5.large'?",
        "ResourceConfig.InstanceCoun: is not a field of this API; did you mean 'InstanceCount'?",
        "HyperParameters.note: is 3000 characters long; at most 2500 allowed",
    ]


def test_what_aws_says() -> None:
    request = request_with("TrainingJobName", "a_b")
    request["Tags"] = [{"Key": "k", "Value": "v" * 257}]
    request["HyperParameters"] = {"note": "x\ny"}
    request["EnableManagedSpotTraining"] = True
    assert aws_message(check_request("CreateTrainingJob", request)) == (
        "3 validation errors detected:"
        " Value 'a_b' at 'trainingJobName' failed to satisfy constraint: Member must satisfy regular"
        " expression pattern: [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62};"
        " Value '{note=x\ny}' at 'hyperParameters' failed to satisfy constraint: Map value must satisfy"
        " constraint: [Member must satisfy regular expression pattern: .*];"
        f" Value '{'v' * 257}' at 'tags.1.member.value' failed to satisfy constraint: Member must have length"
        " less than or equal to 256;"
        " MaxWaitTimeInSeconds must be given when EnableManagedSpotTraining is true"
    )
    missing = Violation(("RoleArn",), None, "required", None)
    assert aws_message([missing]) == (
        "1 validation error detected: Value null at 'roleArn' failed to satisfy constraint:"
        " Member must not be null"
    )


def test_other_operations() -> None:
    assert violations({"MaxResults": 101}, "ListTrainingJobs") == [("MaxResults", "max")]
    assert violations({"TrainingJobName": "x"}, "DescribeTrainingJob") == []
    assert check_request("CreateLogGroup", {"logGroupName": "a b"}, "logs")[0].rule == "pattern"
    assert {
        "CreateProcessingJob",
        "CreateHyperParameterTuningJob",
        "Search",
        "AddTags",
    } <= checkable_operations()
    with pytest.raises(KeyError):
        check_request("CreateUnicorn", {})


def test_the_tables_are_what_the_installed_model_gives() -> None:
    """Fails when botocore's model moved on: then run tools/generate_api_limits.py and read the diff."""
    tables = json.loads((Path(__file__).parent.parent / "smlaunch/catalog/api_limits.json").read_text())
    if f"botocore {botocore.__version__}," not in tables["_meta"]["source"]:
        pytest.skip(f"tables are from {tables['_meta']['source']}, installed is {botocore.__version__}")
    model = Loader().load_service_model("sagemaker", "service-2")
    for name, shape in tables["services"]["sagemaker"]["shapes"].items():
        for key, value in shape.items():
            original = model["shapes"][name][key]
            if key == "members":
                original = {member: entry["shape"] for member, entry in original.items()}
            elif key in ("member", "key", "value"):
                original = original["shape"]
            assert value == original, (name, key)
    assert len(gzip.compress(json.dumps(tables).encode())) < 40_000


def shapes_of_operation(operation: str) -> list[dict[str, Any]]:
    """Return the shapes of botocore's model that a request of an operation may have."""
    model = Loader().load_service_model("sagemaker", "service-2")
    pending, shape_by_name = [model["operations"][operation]["input"]["shape"]], {}
    while pending:
        name = pending.pop()
        if name not in shape_by_name:
            shape = shape_by_name[name] = model["shapes"][name]
            pending += [member["shape"] for member in shape.get("members", {}).values()]
            pending += [shape[part]["shape"] for part in ("member", "key", "value") if part in shape]
    return list(shape_by_name.values())


def paths_of_model(operation: str) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all members of an operation's request in botocore's model."""
    model = Loader().load_service_model("sagemaker", "service-2")

    def walk(name: str, path: tuple[str, ...], around: frozenset[str]) -> Iterator[tuple[str, ...]]:
        shape = model["shapes"][name]
        if shape["type"] == "list":
            yield from walk(shape["member"]["shape"], path, around)
        for member, entry in shape.get("members", {}).items() if name not in around else ():
            yield (*path, member)
            yield from walk(entry["shape"], (*path, member), around | {name})

    return walk(model["operations"][operation]["input"]["shape"], (), frozenset())


def test_every_pattern_of_the_model_can_be_used() -> None:
    for service in ("sagemaker", "logs"):
        for shape in Loader().load_service_model(service, "service-2")["shapes"].values():
            if "pattern" in shape:
                compile_matcher(shape["pattern"])("x")


@given(st.characters(exclude_categories=["Cs"]))
def test_unicode_categories_match_as_in_java(character: str) -> None:
    tag = compile_matcher(r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)")
    category = unicodedata.category(character)[0]
    assert tag(character) == (category in "LZN" or character in "_.:/=+-@")
    assert compile_matcher(r"[\p{L}\p{M}\p{S}\p{N}\p{P}]+")(character) == (category in "LMSNP")


@given(st.text())
def test_plain_patterns_match_as_python_does(text: str) -> None:
    pattern = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
    assert compile_matcher(pattern)(text) == bool(re.fullmatch(pattern, text, re.ASCII))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(REQUEST)), json_values)
def test_no_request_makes_it_fail(name: str, value: Any) -> None:
    for violation in check_request("CreateTrainingJob", {**REQUEST, name: value}):
        assert str(violation.to_problem())
        assert violation.aws_text()


@pytest.mark.parametrize(
    ("java_pattern", "text", "number"),
    [
        (r"loss=(?<v>[0-9.]+)", "loss=1.5", "1.5"),
        (r"loss=(\p{Digit}+)", "loss=12", "12"),
        (r"loss=([\p{Digit}.]+)", "loss=1.2", "1.2"),
        (r"\Qloss=(\E(\d+)", "loss=(7", "7"),
        (r"loss=(\d++)\z", "loss=12", "12"),
        (r"loss=([0-9*++-]+)", "loss=-1+", "-1+"),
        (r"loss\++:\h*(\S+)", "loss++: 3", "3"),
        (r"(?<=a)(?<v>x)\k<v>", "axx", "x"),
    ],
)
def test_patterns_of_metrics_match_as_in_java(java_pattern: str, text: str, number: str) -> None:
    match = re.search(python_metric_pattern(java_pattern), text)
    assert match is not None and match[1] == number
    assert Job(entry="train.py", metrics=[{"name": "loss", "regex": java_pattern}]).metrics[0].regex


@pytest.mark.parametrize("pattern", ["loss=(", "loss=(.+)\\", "[(a)"])
def test_what_is_no_pattern_anywhere_is_refused(pattern: str) -> None:
    with pytest.raises(JobError, match="is not a regular expression"):
        Job(entry="train.py", metrics=[{"name": "loss", "regex": pattern}])
