"""From a task to the exact request, and hyperparameters to their text and back."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.job_kinds import TRAINING
from smlaunch.api.request_builder import (
    InputChannel,
    JobParameters,
    build_job_request,
    hyperparameter_text,
)
from smlaunch.api.validation.request_check import check_request
from smlaunch.runtime.hyperparameters import decode_hyperparameters
from tests.tables import table

SMALL_JOB = JobParameters(
    name="digits-s1-a1",
    role="arn:aws:iam::123456789012:role/SageMaker",
    image="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
    has_runtime=True,
    hyperparameters={},
    channels=(),
    output_uri="s3://bucket/out/",
    instance_type="ml.m5.xlarge",
    host_count=2,
    volume_gb=30,
    max_runtime_seconds=3600,
)


def test_the_least_request_has_no_empty_member() -> None:
    assert build_job_request(TRAINING, SMALL_JOB) == {
        "TrainingJobName": "digits-s1-a1",
        "AlgorithmSpecification": {
            "TrainingImage": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "/opt/ml/input/data/smlaunch/runtime.pyz"],
        },
        "RoleArn": "arn:aws:iam::123456789012:role/SageMaker",
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out/"},
        "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    }
    assert check_request("CreateTrainingJob", build_job_request(TRAINING, SMALL_JOB)) == []


def test_every_field_has_its_member() -> None:
    task = SMALL_JOB._replace(
        hyperparameters={"lr": 0.1},
        channels=(
            InputChannel("train", "s3://bucket/a/", "FastFile", is_sharded=True, content_type="text/csv"),
            InputChannel("code", "s3://bucket/b/"),
        ),
        is_spot=True,
        max_wait_seconds=7200,
        checkpoints=("s3://bucket/ckpt/", "/opt/ml/checkpoints"),
        environment={"A": "1"},
        network_isolation=True,
        encrypt_traffic=True,
        subnets=("subnet-1",),
        security_groups=("sg-1", "sg-2"),
        tags={"team": "vision"},
    )
    request = build_job_request(TRAINING, task)
    assert check_request("CreateTrainingJob", request) == []
    for member, value in build_job_request(TRAINING, SMALL_JOB).items():
        if member != "StoppingCondition":
            assert request.pop(member) == value
    assert request == {
        "HyperParameters": {"lr": "0.1"},
        "InputDataConfig": [
            {
                "ChannelName": "train",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://bucket/a/",
                        "S3DataDistributionType": "ShardedByS3Key",
                    }
                },
                "InputMode": "FastFile",
                "ContentType": "text/csv",
            },
            {
                "ChannelName": "code",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://bucket/b/",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
                "InputMode": "File",
            },
        ],
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
        "Environment": {"A": "1"},
        "Tags": [{"Key": "team", "Value": "vision"}],
        "CheckpointConfig": {"S3Uri": "s3://bucket/ckpt/", "LocalPath": "/opt/ml/checkpoints"},
        "VpcConfig": {"SecurityGroupIds": ["sg-1", "sg-2"], "Subnets": ["subnet-1"]},
        "EnableNetworkIsolation": True,
        "EnableInterContainerTrafficEncryption": True,
        "EnableManagedSpotTraining": True,
    }


# ---- hyperparameters -------------------------------------------------------------------------------------


@table(
    ("value", "text"),
    [
        ("adam", "adam"),
        ("0.10", "0.10"),
        ("1e-3", "1e-3"),
        ("", ""),
        ("true", '"true"'),
        ("null", '"null"'),
        ("[1, 2]", '"[1, 2]"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ('"quoted"', '"\\"quoted\\""'),
        ("[" * 2000, '"' + "[" * 2000 + '"'),
        ("two\nlines", '"two\\nlines"'),
        ("; rm -rf / #", "; rm -rf / #"),
        (0.1, "0.1"),
        (3, "3"),
        (True, "true"),
        (None, "null"),
        ([1, "a"], '[1, "a"]'),
        ({"a": {"b": None}}, '{"a": {"b": null}}'),
    ],
)
def test_hyperparameter_text(value: Any, text: str) -> None:
    assert hyperparameter_text(value) == text


HOSTILE = [
    *("it's", 'say "x"', "$(id)", "`id`", "a\nb", "a\r\nb", "\u2028", "\x85", "\t", "\\", "--lr", "-"),
    *(
        "NaN",
        "Infinity",
        "-0",
        " 7 ",
        "007",
        "True",
        "None",
        "0x1F",
        "1_000",
        "\U0001f600",
        "%s",
        "{0}",
        "\x01",
    ),
]
texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
)
keys = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20).filter(
    lambda key: not key.startswith("sagemaker_")
)


@settings(deadline=None)
@given(st.dictionaries(keys, texts, max_size=4))
def test_text_reaches_the_script_exactly_and_passes_the_service(hyperparameters: dict[str, str]) -> None:
    request = build_job_request(TRAINING, SMALL_JOB._replace(hyperparameters=hyperparameters))
    assert check_request("CreateTrainingJob", request) == []
    wire = json.loads(json.dumps(request.get("HyperParameters", {})))
    arguments = decode_hyperparameters(wire).to_args()
    assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == {
        ("--" if len(key) > 1 else "-") + key: value for key, value in hyperparameters.items()
    }


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)


@settings(deadline=None)
@given(values)
def test_values_keep_their_meaning(value: Any) -> None:
    decoded = decode_hyperparameters({"x": hyperparameter_text(value)}).values["x"]
    if isinstance(value, str) and not isinstance(decoded, str):
        # A number that was written as text reaches the script as that text (the test above) and may be
        # read as a number in SM_HPS.
        assert json.loads(value) == decoded or decoded != decoded
    else:
        assert decoded == value
        assert type(decoded) is type(value)
