"""The plan of ``strategy: processing``: a request that the service accepts, and fields that it does not
have."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from smlaunch.api.job_descriptions import describe_as_training_job
from smlaunch.api.job_kinds import PROCESSING, TRAINING, get_at_path
from smlaunch.api.request_builder import InputChannel, JobParameters, build_job_request
from smlaunch.api.validation.request_check import check_request
from smlaunch.catalog.quotas import HOSTS_PER_JOB_QUOTA
from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES
from smlaunch.errors import JobError, Problem
from smlaunch.facts.discovered_facts import InputFacts
from smlaunch.facts.team_settings import TeamFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import PlanContext, fact_needs
from smlaunch.planner.request_problems import job_field_of_member
from smlaunch.planner.rules import rules_of
from smlaunch.runs.team_defaults import describe_differences
from smlaunch.strategies import load_strategy
from tests.planner.fixtures import PLAIN, plan, region, with_inputs
from tests.planner.test_plan import refusals

RAW = InputFacts("s3://b/raw/", "s3", objects=10, bytes=1000)
PROCESSING_FACTS = with_inputs(dataclasses.replace(region(), script=PLAIN), {"raw": RAW})
TASK = JobParameters(
    name="clean-s1-a1",
    role="arn:aws:iam::123456789012:role/SageMaker",
    image="image:1",
    has_runtime=False,
    hyperparameters={},
    channels=(
        InputChannel("raw", "s3://b/raw/", is_sharded=True),
        InputChannel("l", "s3://b/l", is_manifest=True),
    ),
    output_uri="s3://b/out/",
    instance_type="ml.m5.xlarge",
    host_count=2,
    volume_gb=30,
    max_runtime_seconds=3600,
    environment={"A": "1"},
    network_isolation=True,
    encrypt_traffic=True,
    subnets=("subnet-1",),
    security_groups=("sg-1",),
    tags={"k": "v"},
)


def test_a_description_has_what_the_job_was_created_with() -> None:
    """Whatever reads descriptions reads those of training jobs: a run is found by its inputs, for example."""
    request = build_job_request(PROCESSING, TASK)
    times = {
        "CreationTime": datetime.now(UTC),
        "ProcessingJobStatus": "InProgress",
        "ProcessingJobArn": "arn",
    }
    described = describe_as_training_job(PROCESSING, {**request, **times})
    common_fields = PROCESSING.request_path_by_field.keys() & TRAINING.request_path_by_field.keys()
    for field in common_fields - {"inputs", "tags"}:
        stated = get_at_path(request, PROCESSING.request_path_by_field[field])
        assert get_at_path(described, TRAINING.request_path_by_field[field]) == stated, field
    channels = {
        channel["ChannelName"]: channel["DataSource"]["S3DataSource"]
        for channel in described["InputDataConfig"]
    }
    assert channels["l"]["S3Uri"] == "s3://b/l"
    assert channels["raw"]["S3DataDistributionType"] == "ShardedByS3Key"
    assert describe_differences(request, described, {}, TeamFacts()) == ""


def test_every_field_has_its_member() -> None:
    request = build_job_request(PROCESSING, TASK)
    assert check_request(PROCESSING.create_operation, request) == []
    raw, manifest = (entry["S3Input"] for entry in request["ProcessingInputs"])
    assert raw["LocalPath"] == "/opt/ml/processing/input/raw"
    assert (raw["S3DataDistributionType"], manifest["S3DataType"]) == ("ShardedByS3Key", "ManifestFile")
    (output,) = request["ProcessingOutputConfig"]["Outputs"]
    assert output["S3Output"]["S3Uri"] == "s3://b/out/clean-s1-a1/output/"
    assert request["NetworkConfig"] == {
        "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
        "EnableNetworkIsolation": True,
        "EnableInterContainerTrafficEncryption": True,
    }
    few_fields = TASK._replace(
        environment={},
        tags={},
        network_isolation=False,
        encrypt_traffic=False,
        subnets=(),
        security_groups=(),
    )
    assert not {"Environment", "Tags", "NetworkConfig"} & build_job_request(PROCESSING, few_fields).keys()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (("ProcessingInputs", 0, "S3Input", "S3Uri"), "inputs.raw.uri"),
        (("ProcessingResources", "ClusterConfig", "InstanceType"), "compute.instance_type"),
        (("NetworkConfig", "VpcConfig", "Subnets", 0), "subnets"),
        (("AppSpecification", "ImageUri"), "image"),
        (("StoppingCondition", "MaxRuntimeInSeconds"), "limits.max_runtime"),
        (("Environment", "A"), "environment.A"),
    ],
)
def test_messages_name_what_the_user_wrote(path: tuple[str | int, ...], field: str) -> None:
    assert job_field_of_member(path, build_job_request(PROCESSING, TASK)) == field


def test_every_strategy_asks_for_an_operation_there_is() -> None:
    assert {load_strategy(name).job_kind for name in BUILT_IN_STRATEGIES} == {TRAINING, PROCESSING}


def test_a_plan() -> None:
    job = {"strategy": "processing", "compute": {"hosts": 3}, "limits": {"max_runtime": "9d"}}
    job_plan = plan({**job, "inputs": {"raw": {"uri": "s3://b/raw/"}}}, PROCESSING_FACTS)
    (task,) = job_plan.planned_jobs
    assert (task.operation, task.request["ProcessingJobName"]) == (PROCESSING.create_operation, task.name)
    assert job_plan.processes_per_host == 1
    assert any("the 3 hosts does the whole work" in warning for warning in job_plan.warnings)
    assert f"send {PROCESSING.create_operation} {task.name}" in str(job_plan)
    split = plan({**job, "inputs": {"raw": {"uri": "s3://b/raw/", "split": "key"}}}, PROCESSING_FACTS)
    assert not any("the whole work" in warning for warning in split.warnings)


@pytest.mark.parametrize("strategy", ["processing", "spark"])
def test_quotas_are_those_of_processing_jobs(strategy: str) -> None:
    job = {"strategy": strategy, "compute": {"hosts": 3, "instance_type": "ml.m5.4xlarge"}}
    name = "ml.m5.4xlarge for processing job usage"
    needs = fact_needs(Job.from_mapping({"entry": "train.py", **job, "limits": {"max_runtime": "8d"}}))
    assert needs.instance_quotas == (name,)
    assert needs.runtime_quota == "Longest run time for a processing job"
    few = dataclasses.replace(PROCESSING_FACTS, inputs={}, quotas={name: 2.0}, max_runtime_quota=5 * 86400)
    assert [line.partition(";")[0] for line in refusals({**job, "limits": {"max_runtime": "8d"}}, few)] == [
        f"compute.hosts: the account's quota {name!r} is 2, and the job takes 3",
        "limits.max_runtime: 8d is longer than the 5d that a processing job may, by the account's quota, run",
    ]
    without_account = dataclasses.replace(PROCESSING_FACTS, inputs={}, account_problem="no credentials")
    text = str(plan(job, without_account))
    assert f"the account's quotas ({name})" in " ".join(text.split())
    assert "training job usage" not in text
    # Spark's program runs on the leader, which uses the other hosts.
    hosts_text = {"processing": "3 hosts = 3 ranks", "spark": "3 hosts with the program on the leader alone"}
    assert f"on {hosts_text[strategy]}, by {strategy}" in " ".join(text.split())


def test_what_it_has_no_place_for_is_refused_at_once() -> None:
    job = {
        "strategy": "processing",
        "hyperparameters": {"lr": 1},
        "compute": {"spot": True, "processes_per_host": 2},
        "checkpoints": "s3://b/c/",
        "limits": {"max_runtime": "10d", "segment": "1d"},
        "inputs": {"raw": {"uri": "s3://b/raw/", "mode": "FastFile", "content_type": "text/csv"}},
    }
    with pytest.raises(JobError) as caught:
        plan(job, PROCESSING_FACTS)
    assert {problem.path for problem in caught.value.problems} >= {
        "hyperparameters",
        "compute.spot",
        "compute.processes_per_host",
        "checkpoints",
        "limits.segment",
        "limits.max_runtime",
        "inputs.raw.mode",
        "inputs.raw.content_type",
    }


def test_what_a_third_kind_lacks_follows_from_its_data() -> None:
    """Rules ask what a kind has, never which one it is."""
    lacking = ("hyperparameters", "compute.spot", "checkpoints.uri")
    kind = dataclasses.replace(
        TRAINING,
        name="Tuning",
        request_path_by_field={
            field: path for field, path in TRAINING.request_path_by_field.items() if field not in lacking
        },
        input_modes=("File", "Pipe"),
        has_quotas=False,
        max_runtime_seconds=3600,
        max_inputs=1,
    )

    class Tuning(type(load_strategy("processing"))):  # type: ignore[misc]
        job_kind = kind

    job = Job.from_mapping(
        {
            "entry": "train.py",
            "hyperparameters": {"lr": 1},
            "compute": {"spot": True, "hosts": 30, "instance_type": "ml.p4d.24xlarge"},
            "checkpoints": "s3://b/c/",
            "limits": {"max_runtime": "2h", "segment": "1h", "max_pending": "2h"},
            "inputs": {"raw": {"uri": "s3://b/raw/", "mode": "FastFile", "content_type": "text/csv"}},
        }
    )
    facts = dataclasses.replace(PROCESSING_FACTS, quotas={HOSTS_PER_JOB_QUOTA.format("tuning job"): 20.0})
    context = PlanContext(job, facts, Tuning())
    # Others read the model of the kind's API, which this one does not have.
    names = ("processing", "chain", "inputs", "quotas", "pending", "spot")
    rules = [rule for rule in rules_of("validate") if rule.id.split(".")[0] in names]
    problems = [problem for rule in rules for problem in rule.check(context)]
    unsupported = "a tuning job does not support it; leave it out, or use another strategy"
    assert {problem.path: problem.message for problem in problems if isinstance(problem, Problem)} == {
        "hyperparameters": "a tuning job has none; give the script args instead",
        "compute.spot": unsupported,
        "checkpoints": unsupported,
        "limits.segment": unsupported,
        "limits.max_runtime": "2h is longer than the 1h that a tuning job may run; shorten it, or split it",
        "inputs.raw.mode": "a tuning job takes inputs in mode File, Pipe, not FastFile",
        "inputs": "1 and smlaunch's own 2 are 3, and a tuning job may have 1; put several into one prefix",
    }


def test_other_outputs_are_behind_the_jobs_own() -> None:
    outputs = {
        "clean": {"path": "/opt/ml/processing/clean", "uri": "s3://b/clean/"},
        "rejected": {"path": "/opt/ml/processing/rejected", "upload": "Continuous"},
    }
    job = {
        "strategy": "processing",
        "output": {"uri": "s3://b/out/", "kms_key": "alias/k"},
        "outputs": outputs,
    }
    job_plan = plan(job)
    configuration = job_plan.requests[0]["ProcessingOutputConfig"]
    assert configuration["KmsKeyId"] == "alias/k"
    own, clean, rejected = configuration["Outputs"]
    assert own["OutputName"] == "output"
    assert clean == {
        "OutputName": "clean",
        "S3Output": {
            "S3Uri": "s3://b/clean/",
            "LocalPath": "/opt/ml/processing/clean",
            "S3UploadMode": "EndOfJob",
        },
    }
    assert rejected["S3Output"] == {
        "S3Uri": "s3://b/out/digits-s1-a1/rejected/",
        "LocalPath": "/opt/ml/processing/rejected",
        "S3UploadMode": "Continuous",
    }
    assert "/opt/ml/processing/rejected are uploaded to the folder rejected beside the output" in " ".join(
        str(job_plan).split()
    )
