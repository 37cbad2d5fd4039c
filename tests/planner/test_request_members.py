"""Members of the API in a job: as fields, and by ``request``. Each goes from the job to the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from smlaunch.api.job_kinds import PROCESSING, TRAINING, JobKind, get_at_path, set_at_path
from smlaunch.api.validation.pattern_words import words_of_pattern
from smlaunch.api.validation.request_check import member_paths
from smlaunch.chain.workflow import build_job_request
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import NO_SOURCE, DiscoveredFacts
from smlaunch.job.model import Job
from smlaunch.job.yaml_file import parse_job_yaml
from smlaunch.planner.plan import job_hashes
from tests.planner.fixtures import plan, region
from tests.tables import table
from tests.test_validate import paths_of_model, shapes_of_operation

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
TRAINING_PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/winter"
LOGIN = "arn:aws:lambda:us-east-1:123456789012:function:login"
DATASET = "arn:aws:sagemaker:us-east-1:123456789012:hub-content/hub/DataSet/reviews/1.0.0"
NETWORK = "subnets: [subnet-1]\nsecurity_groups: [sg-1]\n"
IMAGE = "image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/trainer:1\n"

TRAINING_FIELDS: list[tuple[str, str, str, Any]] = [
    # what the job file has beside the field, the field, the member of the request, its value there
    ("", f"output: {{kms_key: '{KEY}'}}", "OutputDataConfig.KmsKeyId", KEY),
    ("", "output: {compression: none}", "OutputDataConfig.CompressionType", "NONE"),
    ("", "output: {compression: gzip}", "OutputDataConfig.CompressionType", "GZIP"),
    ("", "compute: {volume_kms_key: alias/disks}", "ResourceConfig.VolumeKmsKeyId", "alias/disks"),
    (
        "",
        f"compute: {{instance_type: ml.p5.48xlarge, training_plan: '{TRAINING_PLAN}'}}",
        "ResourceConfig.TrainingPlanArn",
        TRAINING_PLAN,
    ),
    (
        "",
        "metrics: [{name: 'train:loss', regex: 'loss=([0-9.]+)'}]",
        "AlgorithmSpecification.MetricDefinitions",
        [{"Name": "train:loss", "Regex": "loss=([0-9.]+)"}],
    ),
    (
        IMAGE + NETWORK,
        f"image_registry_credentials: '{LOGIN}'",
        "AlgorithmSpecification.TrainingImageConfig",
        {
            "TrainingRepositoryAccessMode": "Vpc",
            "TrainingRepositoryAuthConfig": {"TrainingRepositoryCredentialsProviderArn": LOGIN},
        },
    ),
    ("", "remote_debug: true", "RemoteDebugConfig", {"EnableRemoteDebug": True}),
    ("", "retries: 3", "RetryStrategy", {"MaximumRetryAttempts": 3}),
]
PROCESSING_FIELDS: list[tuple[str, str, str, Any]] = [
    ("", f"output: {{kms_key: '{KEY}'}}", "ProcessingOutputConfig.KmsKeyId", KEY),
    (
        "",
        "compute: {volume_kms_key: alias/disks}",
        "ProcessingResources.ClusterConfig.VolumeKmsKeyId",
        "alias/disks",
    ),
]
CONTAINER_FIELDS: list[tuple[str, str, str, Any]] = [
    ("", "container: {entrypoint: [/bin/trainer, -x]}", "ContainerEntrypoint", ["/bin/trainer", "-x"]),
    ("", "container: {arguments: [--epochs, 3]}", "ContainerArguments", ["--epochs", "3"]),
    ("", "args: [--epochs, 3]", "ContainerArguments", ["--epochs", "3"]),
]


def dotted(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


def nested(path: str, value: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    set_at_path(document, dotted(path), value)
    return document


def request_of(text: str, facts: DiscoveredFacts | None = None, **changes: Any) -> dict[str, Any]:
    return dict(plan({**parse_job_yaml(text + "\n"), **changes}, facts).requests[0])


@table(("beside", "field", "member", "value"), TRAINING_FIELDS)
def test_a_field_is_a_member_of_the_request(beside: str, field: str, member: str, value: Any) -> None:
    assert get_at_path(request_of(beside + field), dotted(member)) == value
    assert get_at_path(request_of(beside + "output: s3://b/o/"), dotted(member)) is None


@table(("beside", "field", "member", "value"), PROCESSING_FIELDS)
def test_a_processing_job_has_its_own_members(beside: str, field: str, member: str, value: Any) -> None:
    assert get_at_path(request_of(f"strategy: processing\n{field}"), dotted(member)) == value


@table(("beside", "field", "member", "value"), CONTAINER_FIELDS)
def test_an_image_gets_its_command(beside: str, field: str, member: str, value: Any) -> None:
    for strategy, specification in ((None, "AlgorithmSpecification"), ("processing", "AppSpecification")):
        request = request_of(IMAGE + field, region(source=NO_SOURCE), entry=None, strategy=strategy)
        assert get_at_path(request, (specification, member)) == value


@table(("beside", "field", "member", "value"), TRAINING_FIELDS)
def test_a_member_is_the_same_job_as_its_field(beside: str, field: str, member: str, value: Any) -> None:
    by_field = Job.from_mapping(parse_job_yaml(f"entry: train.py\n{beside}{field}"))
    request = nested(member, value)
    if by_field.compute.instance_type is not None:
        request["ResourceConfig"]["InstanceType"] = by_field.compute.instance_type
    by_member = Job.from_mapping({**parse_job_yaml(f"entry: train.py\n{beside}"), "request": request})
    if "TrainingImageConfig" in member:  # what smlaunch adds to the field stays where the user wrote it
        assert by_member.image_registry_credentials == LOGIN
    else:
        assert by_member == by_field
    assert Job.from_mapping(by_member.to_mapping()) == by_member


EVERY_FIELD: dict[str, Any] = {
    "RoleArn": "arn:aws:iam::123456789012:role/Trainer",
    "HyperParameters": {"lr": "0.1", "nested": '{"a": 1}', "flag": "true"},
    "AlgorithmSpecification": {"TrainingInputMode": "FastFile", "EnableSageMakerMetricsTimeSeries": True},
    "InputDataConfig": [
        {
            "ChannelName": "train",
            "ContentType": "text/csv",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": "s3://b/train/",
                    "S3DataDistributionType": "ShardedByS3Key",
                }
            },
            "ShuffleConfig": {"Seed": 7},
        }
    ],
    "OutputDataConfig": {"S3OutputPath": "s3://b/out/", "KmsKeyId": KEY},
    "ResourceConfig": {
        "InstanceType": "ml.g5.12xlarge",
        "InstanceCount": 2,
        "VolumeSizeInGB": 70,
        "KeepAlivePeriodInSeconds": 600,
    },
    "StoppingCondition": {"MaxRuntimeInSeconds": 7200, "MaxPendingTimeInSeconds": 7200},
    "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    "Tags": [{"Key": "team", "Value": "a"}],
    "Environment": {"A": "1"},
    "CheckpointConfig": {"S3Uri": "s3://b/ckpt/", "LocalPath": "/opt/ml/state"},
    "EnableNetworkIsolation": True,
    "EnableInterContainerTrafficEncryption": True,
    "RetryStrategy": {"MaximumRetryAttempts": 2},
    "DebugHookConfig": {"S3OutputPath": "s3://b/debug/", "HookParameters": {"save_interval": "50"}},
}


def test_all_that_a_request_states_is_in_the_request_and_in_the_plan() -> None:
    job_plan = plan({"request": EVERY_FIELD})
    assert (job_plan.instance_type, job_plan.hosts, job_plan.processes_per_host) == ("ml.g5.12xlarge", 2, 4)
    request = job_plan.requests[0]
    for member in ("RoleArn", "OutputDataConfig", "CheckpointConfig", "RetryStrategy", "DebugHookConfig"):
        if member != "RoleArn":  # the role is a fact, which discovery reads from the job
            assert request[member] == EVERY_FIELD[member]
    assert job_plan.job.role == EVERY_FIELD["RoleArn"]
    assert request["ResourceConfig"] == EVERY_FIELD["ResourceConfig"]
    assert request["StoppingCondition"] == EVERY_FIELD["StoppingCondition"]
    assert request["HyperParameters"] == EVERY_FIELD["HyperParameters"]
    assert request["EnableNetworkIsolation"] is request["EnableInterContainerTrafficEncryption"] is True
    assert EVERY_FIELD["Tags"][0] in request["Tags"]
    assert request["Environment"]["A"] == "1"
    channel = next(entry for entry in request["InputDataConfig"] if entry["ChannelName"] == "train")
    assert channel == {**EVERY_FIELD["InputDataConfig"][0], "InputMode": "FastFile"}
    assert request["AlgorithmSpecification"]["EnableSageMakerMetricsTimeSeries"] is True
    assert [entry["ChannelName"] for entry in request["InputDataConfig"]] == ["train", "smlaunch", "code"]


def test_a_job_with_a_request_survives_its_file() -> None:
    job = Job(entry="train.py", request=EVERY_FIELD)
    assert Job.from_mapping(parse_job_yaml(job.to_yaml())) == job
    changed = job.with_changes(environment={"B": "2"})
    assert changed.compute == job.compute
    assert changed.request == job.request
    assert changed.written_path("compute.hosts") == "request.ResourceConfig.InstanceCount"
    assert job.with_changes(compute={"hosts": 3}).written_path("compute.hosts") == "compute.hosts"


def test_an_option_replaces_what_the_request_of_the_file_states(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(Job(entry="train.py").to_yaml() + "request: " + json.dumps(EVERY_FIELD))
    changes = {
        "compute": {"hosts": 5},
        "hyperparameters": {"lr": "2"},
        "role": "Other",
        "inputs": {"train": {"uri": "s3://b/other/"}},
    }
    job = Job.from_file(file, changes)
    assert (job.compute.hosts, job.compute.instance_type, job.role) == (5, "ml.g5.12xlarge", "Other")
    assert (job.hyperparameters["lr"], job.inputs["train"].uri) == ("2", "s3://b/other/")
    assert (job.inputs["train"].split, job.limits.max_runtime) == ("key", "2h")
    assert job.request == Job.from_file(file).request


def test_every_segment_of_a_chain_has_the_members() -> None:
    job = {
        "request": {"DebugHookConfig": {"S3OutputPath": "s3://b/debug/"}},
        "limits": {"max_runtime": "3d", "segment": "24h"},
        "checkpoints": "s3://b/ckpt/",
    }
    job_plan = plan(job)
    requests = [
        *job_plan.requests,
        build_job_request(job_plan.workflow, 2, attempt=2, newest_checkpoint_step=5),
    ]
    assert len(requests) > 4
    assert all(request["DebugHookConfig"] == {"S3OutputPath": "s3://b/debug/"} for request in requests)


def test_named_entries_are_merged_and_other_lists_replaced() -> None:
    dataset = {"DatasetSource": {"DatasetArn": DATASET}}
    accepted = {"S3DataSource": {"ModelAccessConfig": {"AcceptEula": True}}}
    request = plan(
        {
            "inputs": {"train": "s3://b/train/"},
            "metrics": [{"name": "loss", "regex": "loss=(.+)"}],
            "request": {
                "InputDataConfig": [
                    {"ChannelName": "train", "DataSource": accepted},
                    {"ChannelName": "shared", "DataSource": dataset},
                ],
                "AlgorithmSpecification": {"MetricDefinitions": [{"Name": "acc", "Regex": "acc=(.+)"}]},
            },
        }
    ).requests[0]
    channels = {entry["ChannelName"]: entry for entry in request["InputDataConfig"]}
    assert list(channels) == ["train", "smlaunch", "code", "shared"]
    source = channels["train"]["DataSource"]["S3DataSource"]
    assert (source["S3Uri"], source["ModelAccessConfig"]) == ("s3://b/train/", {"AcceptEula": True})
    assert channels["shared"] == {"ChannelName": "shared", "DataSource": dataset}
    names = [metric["Name"] for metric in request["AlgorithmSpecification"]["MetricDefinitions"]]
    assert sorted(names) == ["acc", "loss"]
    rules = [{"RuleConfigurationName": "a", "RuleEvaluatorImage": "image"}]
    assert (
        plan({"request": {"DebugRuleConfigurations": rules}}).requests[0]["DebugRuleConfigurations"] == rules
    )


def test_an_algorithm_knows_of_the_inputs_of_the_request() -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:hub-content/HUB/DataSet/NAME"
    source = {"DatasetSource": {"DatasetArn": arn}}
    job = {
        "entry": None,
        "algorithm": "xgboost",
        "hyperparameters": {"num_round": 10},
        "request": {
            "InputDataConfig": [{"ChannelName": "train", "DataSource": source, "ContentType": "text/csv"}]
        },
    }
    job_plan = plan(job, region(source=NO_SOURCE))
    (channel,) = job_plan.requests[0]["InputDataConfig"]
    assert channel["DataSource"] == source
    (warning,) = [sentence for sentence in job_plan.warnings if sentence.startswith("request: ")]
    assert "train is not measured" in warning and "compute.volume_gb" in warning


def test_members_without_a_field_are_named_in_the_plan() -> None:
    debug_hook = {"DebugHookConfig": {"S3OutputPath": "s3://b/debug/"}}
    reasons = plan({"request": {**debug_hook, "RetryStrategy": {"MaximumRetryAttempts": 2}}}).reasons
    (reason,) = [reason.explanation for reason in reasons if reason.rule == "request.members"]
    assert "DebugHookConfig" in reason and "RetryStrategy" not in reason


def test_outputs_of_a_processing_job_are_merged_by_name() -> None:
    output = {
        "OutputName": "clean",
        "S3Output": {
            "S3Uri": "s3://b/clean/",
            "LocalPath": "/opt/ml/processing/clean",
            "S3UploadMode": "Continuous",
        },
    }
    request = plan(
        {"strategy": "processing", "request": {"ProcessingOutputConfig": {"Outputs": [output]}}}
    ).requests[0]
    own, added = request["ProcessingOutputConfig"]["Outputs"]
    assert (own["OutputName"], added) == ("output", output)


def problems_of(job: Mapping[str, Any]) -> dict[str, str]:
    with pytest.raises(JobError) as caught:
        Job.from_mapping({"entry": "train.py", **job})
    return {problem.path: problem.message for problem in caught.value.problems}


def with_request(**members: Any) -> dict[str, Any]:
    return {"request": members}


REFUSED: list[tuple[dict[str, Any], dict[str, list[str]]]] = [
    (with_request(TrainingJobName="x"), {"request.TrainingJobName": ["smlaunch names each job"]}),
    (
        {"strategy": "processing", **with_request(ProcessingJobName="x")},
        {"request.ProcessingJobName": ["smlaunch names each job"]},
    ),
    (
        with_request(Tags=[{"Key": "smlaunch:run", "Value": "x"}]),
        {"request.Tags[0].Key": ["smlaunch:", "another key"]},
    ),
    (
        with_request(InputDataConfig=[{"ChannelName": "smlaunch"}]),
        {"request.InputDataConfig[0].ChannelName": ["smlaunch's own", "runtime"]},
    ),
    (
        with_request(InputDataConfig=[{"ChannelName": "code"}]),
        {"request.InputDataConfig[0].ChannelName": ["smlaunch's own", "source"]},
    ),
    (
        with_request(AlgorithmSpecification={"ContainerEntrypoint": ["sh"]}),
        {"request.AlgorithmSpecification.ContainerEntrypoint": ["runtime starts the entry", "args"]},
    ),
    (
        with_request(AlgorithmSpecification={"AlgorithmName": "a"}),
        {"request.AlgorithmSpecification.AlgorithmName": ["give image"]},
    ),
    (
        {"role": "R", **with_request(RoleArn="arn:aws:iam::123456789012:role/R")},
        {"request.RoleArn": ["role states it too", "keep one"]},
    ),
    (
        {"compute": {"hosts": 1}, **with_request(ResourceConfig={"InstanceCount": 2})},
        {"request.ResourceConfig.InstanceCount": ["compute.hosts states it too"]},
    ),
    (
        {"output": "s3://b/o/", **with_request(OutputDataConfig={"S3OutputPath": "s3://b/p/"})},
        {"request.OutputDataConfig.S3OutputPath": ["output.uri states it too"]},
    ),
    (
        {"environment": {"A": "1"}, **with_request(Environment={"A": "2", "B": "3"})},
        {"request.Environment.A": ["environment.A states it too"]},
    ),
    (
        {
            "inputs": {"train": {"uri": "s3://b/", "mode": "Pipe"}},
            **with_request(InputDataConfig=[{"ChannelName": "train", "InputMode": "File"}]),
        },
        {"request.InputDataConfig[0].InputMode": ["inputs.train.mode states it too"]},
    ),
    (
        {
            "metrics": [{"name": "a", "regex": "(a)"}],
            **with_request(AlgorithmSpecification={"MetricDefinitions": [{"Name": "a", "Regex": "(b)"}]}),
        },
        {"request.AlgorithmSpecification.MetricDefinitions[0]": ["metrics[0] states it too"]},
    ),
    (
        {
            "limits": {"segment": "1h"},
            **with_request(StoppingCondition={"MaxRuntimeInSeconds": 7200}),
        },
        {"request.StoppingCondition.MaxRuntimeInSeconds": ["limits.segment", "limits.max_runtime"]},
    ),
    (
        with_request(ResourceConfig={"InstanceTyp": "ml.m5.large"}),
        {"request.ResourceConfig.InstanceTyp": ["did you mean 'InstanceType'?"]},
    ),
    (with_request(KmsKeyId="k"), {"request.KmsKeyId": ["did you mean OutputDataConfig.KmsKeyId?"]}),
    (
        with_request(NetworkConfig={}),
        {"request.NetworkConfig": ["CreateProcessingJob has", "strategy names the kind"]},
    ),
    (with_request(Zork=1), {"request.Zork": ["CreateTrainingJob has no such member"]}),
    (with_request(ResourceConfig=None), {"request.ResourceConfig": ["no value", "leave it out"]}),
    (with_request(RoleArn="admin"), {"request.RoleArn": ["the ARN of an IAM role, such as"]}),
    (
        with_request(HyperParameters={"epochs": 3}),
        {"request.HyperParameters.epochs": ["text is needed, not 3", "quotes"]},
    ),
    (
        with_request(EnableNetworkIsolation="yes"),
        {"request.EnableNetworkIsolation": ["true or false is needed, not 'yes'"]},
    ),
    (
        with_request(RetryStrategy={"MaximumRetryAttempts": 31}),
        {"request.RetryStrategy.MaximumRetryAttempts": ["at most 30"]},
    ),
    (
        with_request(ResourceConfig={"InstanceType": "g5.xlarge"}),
        {"request.ResourceConfig.InstanceType": ["did you mean 'ml.g5.xlarge'?"]},
    ),
    (with_request(DebugHookConfig={}), {"request.DebugHookConfig.S3OutputPath": ["missing"]}),
    (
        with_request(InputDataConfig=[{"ChannelName": "a"}]),
        {"request.InputDataConfig[0].DataSource": ["missing"]},
    ),
    (
        with_request(
            ResourceConfig={
                "InstancePreferences": [
                    {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
                    {"InstanceType": "ml.g6.xlarge", "InstanceCount": 2},
                ]
            }
        ),
        {"request.ResourceConfig.InstancePreferences": ["one number of hosts"]},
    ),
]


@table(("job", "says"), REFUSED)
def test_what_a_request_cannot_state_is_refused_by_its_path(
    job: dict[str, Any], says: dict[str, list[str]]
) -> None:
    problems = problems_of(job)
    assert problems.keys() == says.keys()
    for path, words in says.items():
        assert all(word in problems[path] for word in words), problems[path]


def test_a_problem_of_the_plan_is_at_the_member() -> None:
    job = Job(
        entry="train.py",
        request={"ResourceConfig": {"KeepAlivePeriodInSeconds": 600}, "EnableManagedSpotTraining": True},
    )
    with pytest.raises(JobError) as caught:
        plan(job.to_mapping(), region())
    written = job.as_written(caught.value)
    assert "request.ResourceConfig.KeepAlivePeriodInSeconds" in {problem.path for problem in written.problems}


PREFERENCES = [
    {"InstanceType": "ml.g5.xlarge", "TrainingPlanArns": [TRAINING_PLAN]},
    {"InstanceType": "ml.g6.xlarge"},
]


def test_preferences_with_members_of_their_own_are_sent_as_they_are() -> None:
    job_plan = plan({"request": {"ResourceConfig": {"InstancePreferences": PREFERENCES}}})
    assert job_plan.job.compute.instance_preferences == ("ml.g5.xlarge", "ml.g6.xlarge")
    assert job_plan.requests[0]["ResourceConfig"]["InstancePreferences"] == PREFERENCES
    assert Job.from_mapping(job_plan.job.to_mapping()) == job_plan.job
    counted = [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 2}]
    job = Job(entry="t.py", request={"ResourceConfig": {"InstancePreferences": counted}})
    assert (job.compute.hosts, job.compute.instance_preferences, dict(job.request)) == (
        2,
        ("ml.g5.xlarge",),
        {},
    )


def test_jobs_that_use_no_new_field_keep_their_hash() -> None:
    job = Job(entry="src/train.py", output="s3://b/o/", checkpoints="s3://b/c/", compute={"hosts": 2})
    assert job.to_mapping()["output"] == "s3://b/o/"
    assert Job.from_mapping(Job(entry="t.py", output={}).to_mapping()) == Job(entry="t.py", output={})
    assert job_hashes(job, region()).complete == (
        "c5e4efad969722a78f90029fb59e7d862df2b2b4a91cc56ed131cc441b17aa90"  # as before these fields
    )


@pytest.mark.parametrize("kind", [TRAINING, PROCESSING], ids=lambda kind: str(kind.name))
def test_every_pattern_of_a_request_has_words(kind: JobKind) -> None:
    """Users are never shown a regular expression of the model."""
    patterns = {
        shape["pattern"] for shape in shapes_of_operation(kind.create_operation) if "pattern" in shape
    }
    assert len(patterns) > 10
    without_words = {pattern for pattern in patterns if words_of_pattern(pattern) is None}
    assert without_words <= {  # of AlgorithmName, which no job may state
        r"(arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:[a-z\-]*\/)?([a-zA-Z0-9]([a-zA-Z0-9-]){0,62})(?<!-)"
    }


def test_fields_are_at_members_of_the_model() -> None:
    for kind in (TRAINING, PROCESSING):
        known_paths = set(member_paths(kind.create_operation))
        for path in kind.request_path_by_field.values():
            assert tuple(step for step in path if isinstance(step, str)) in known_paths


def test_the_request_is_json() -> None:
    request = plan(
        {"request": {"DebugHookConfig": {"S3OutputPath": "s3://b/", "HookParameters": {"a": "b"}}}}
    ).requests
    assert json.loads(json.dumps(request)) == request


def test_members_are_those_of_the_installed_model() -> None:
    for kind in (TRAINING, PROCESSING):
        assert set(member_paths(kind.create_operation)) == set(paths_of_model(kind.create_operation))
