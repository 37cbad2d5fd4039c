"""What a job in a region becomes: the exact request, refusals, and torchrun's command line on a host."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from smlaunch.api.validation.request_check import check_request
from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import NO_SOURCE, DiscoveredFacts, ScriptFacts
from smlaunch.job.model import Job
from smlaunch.render.plan import Plan
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.hyperparameters import read_hyperparameters
from smlaunch.runtime.process_commands import HostContext
from smlaunch.runtime.torchrun import _torchrun_command
from tests.planner.fixtures import make_plan, region

BUCKET = "s3://sagemaker-us-east-1-123456789012/smlaunch"


def plan_job(job: Mapping[str, Any], facts: DiscoveredFacts | None = None, **world: Any) -> Plan:
    """``job`` gets the entry ``train.py`` unless it names an algorithm; ``world``: fields of Facts."""
    job_facts = dataclasses.replace(facts or region(), **world)
    if "algorithm" in job:
        job_facts = dataclasses.replace(job_facts, source=NO_SOURCE, script=ScriptFacts())
    else:
        job = {"entry": "src/train.py", **job}
    return make_plan(Job.from_mapping(job), job_facts, "digits")


def request_of(plan: Plan) -> dict[str, Any]:
    """Returns the plan's one request, without the tag of the job's hash and the hash in the address of its
    launch files; the service would accept it."""
    (task,) = plan.planned_jobs
    assert check_request(task.operation, task.request) == []
    request: dict[str, Any] = json.loads(without_launch_hash(json.dumps(task.request)))
    hashed = [tag for tag in request["Tags"] if tag["Key"] == "smlaunch:job"]
    assert len(hashed) == 1
    return {**request, "Tags": [tag for tag in request["Tags"] if tag not in hashed]}


def without_launch_hash(text: str) -> str:
    """Drops the hash of job.json and the runtime from their address."""
    return re.sub(r"(/launch/)[0-9a-f]{32}/", r"\1", text)


def refusals(job: Mapping[str, Any], facts: DiscoveredFacts | None = None, **world: Any) -> list[str]:
    with pytest.raises(JobError) as caught:
        plan_job(job, facts, **world)
    return [str(problem) for problem in caught.value.problems]


def documented_request(
    image: str,
    instance_type: str,
    hosts: int,
    *,
    hyperparameters: Mapping[str, str] | None = None,
    channels: list[dict[str, Any]] | None = None,
    script: bool = True,
    seconds: int = 86_400,
) -> dict[str, Any]:
    """CreateTrainingJob as the reference has it, of a job that says nothing else; ``script``: one of the
    user's, with the two channels and the entry point that bring our runtime."""
    own_channels = [
        channel("smlaunch", f"{BUCKET}/digits/launch/"),
        channel("code", f"{BUCKET}/source/{'ab' * 32}/"),
    ]
    algorithm: dict[str, Any] = {"TrainingImage": image, "TrainingInputMode": "File"}
    if script:
        algorithm["ContainerEntrypoint"] = ["python3", "/opt/ml/input/data/smlaunch/runtime.pyz"]
    request: dict[str, Any] = {
        "TrainingJobName": "digits-s1-a1",
        "AlgorithmSpecification": algorithm,
        "RoleArn": "arn:aws:iam::123456789012:role/SageMaker",
        "InputDataConfig": [*(channels or []), *(own_channels if script else [])],
        "OutputDataConfig": {"S3OutputPath": f"{BUCKET}/digits/output/"},
        "ResourceConfig": {"InstanceType": instance_type, "InstanceCount": hosts, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": seconds},
        "Tags": [
            {"Key": "smlaunch:format", "Value": "1.1"},
            {"Key": "smlaunch:run", "Value": "digits"},
            {"Key": "smlaunch:segment", "Value": "1"},
            {"Key": "smlaunch:attempt", "Value": "1"},
        ],
    }
    if hyperparameters:
        request["HyperParameters"] = dict(hyperparameters)
    return request


def channel(name: str, uri: str, content_type: str | None = None, **changes: str) -> dict[str, Any]:
    """One of InputDataConfig; ``changes``: InputMode, S3DataDistributionType."""
    mode = changes.pop("InputMode", "File")
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated", **changes}
    channel_fields: dict[str, Any] = {
        "ChannelName": name,
        "DataSource": {"S3DataSource": source},
        "InputMode": mode,
    }
    return channel_fields if content_type is None else {**channel_fields, "ContentType": content_type}


def torchrun_line(plan: Plan, folder: Path, host: str = "algo-2") -> list[str]:
    """What the runtime starts on ``host`` of the plan's hosts, up to the rank's own program, whose first
    words are this machine's."""
    (task,) = plan.planned_jobs
    assert isinstance(task.launch_spec, LaunchSpec)
    assert isinstance(plan.processes_per_host, int)
    names = tuple(f"algo-{number + 1}" for number in range(plan.hosts))
    file = folder / "hyperparameters.json"
    file.write_text(json.dumps(task.request.get("HyperParameters", {})))
    line = _torchrun_command(
        task.launch_spec,
        HostContext(
            Cluster(names, host, "eth0", "homogeneousCluster", "", names, ()),
            Paths("/opt/ml"),
            read_hyperparameters(str(file)),
            "python3",
            plan.processes_per_host,
            task.launch_spec.port,
        ),
        {},
        str(folder),
    )
    return [word.decode() for word in line.argv]
