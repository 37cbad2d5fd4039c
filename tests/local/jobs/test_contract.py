from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import contract_files
from tests.local.jobs.conftest import channel, spec


def make_places(count: int) -> list[JobHost]:
    labels = [f"algo-{number}" for number in range(1, count + 1)]
    return [JobHost(label, label, "127.64.0.1", Path("/nowhere"), "/opt/ml") for label in labels]


def test_hosts_stand_in_lexicographic_order() -> None:
    hosts = make_places(11)
    config = contract_files.resource_config(spec(hosts=11), hosts, hosts[1])
    assert config["hosts"][:4] == ["algo-1", "algo-10", "algo-11", "algo-2"]
    assert (config["current_host"], config["current_group_name"]) == ("algo-2", "homogeneousCluster")
    assert [group["instance_group_name"] for group in config["instance_groups"]] == ["homogeneousCluster"]


def test_instance_groups() -> None:
    groups = [
        {"InstanceGroupName": "cpu", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
        {"InstanceGroupName": "gpu", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
    ]
    hosts = make_places(3)
    config = contract_files.resource_config(spec(ResourceConfig={"InstanceGroups": groups}), hosts, hosts[2])
    assert (config["current_group_name"], config["current_instance_type"]) == ("gpu", "ml.g5.xlarge")
    assert config["instance_groups"] == [
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpu", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2", "algo-3"]},
    ]


def test_the_files_of_a_host(hosts: list[JobHost]) -> None:
    job = spec(
        [channel("train", "s3://data/x", ContentType="text/csv", S3DataDistributionType="ShardedByS3Key")],
        HyperParameters={"lr": "0.1", "quoted": "'\"\n"},
    )
    contract_files.write_host_files(job, hosts, hosts[0])
    config = hosts[0].opt_ml_folder / "input" / "config"
    assert json.loads((config / "hyperparameters.json").read_text()) == {"lr": "0.1", "quoted": "'\"\n"}
    assert json.loads((config / "inputdataconfig.json").read_text()) == {
        "train": {
            "TrainingInputMode": "File",
            "S3DistributionType": "ShardedByS3Key",
            "RecordWrapperType": "None",
            "ContentType": "text/csv",
        }
    }
    for folder in ("model", "output/data", "code", "input/data"):
        assert (hosts[0].opt_ml_folder / folder).is_dir()


def test_the_environment_of_a_container_is_the_images_but_for_what_the_platform_says() -> None:
    own = {"PATH": "/here", "HOME": "/me", "LD_LIBRARY_PATH": "/mine", "VIRTUAL_ENV": "/venv"}
    job = spec(Environment={"MINE": "1"}, hosts=2)
    inherited = tuple(own) + ("https_proxy", "NO_PROXY")
    bare = contract_files.host_environment(
        job, {}, inherited, {"AWS_ACCESS_KEY_ID": "k"}, own, uses_endpoint_python=False
    )
    assert bare == {
        "TRAINING_JOB_NAME": job.name,
        "TRAINING_JOB_ARN": job.arn,
        "AWS_REGION": job.region,
        "AWS_DEFAULT_REGION": job.region,
        "AWS_ACCESS_KEY_ID": "k",
        "MINE": "1",
    }
    variables = {**own, "https_proxy": "http://proxy:3128", "NO_PROXY": ".corp"}
    proxied = contract_files.host_environment(job, {}, inherited, {}, variables, uses_endpoint_python=False)
    assert proxied["https_proxy"] == "http://proxy:3128"
    assert proxied["NO_PROXY"] == ".corp,algo-1,algo-2,127.0.0.1,localhost"


def test_the_environment_of_a_host() -> None:
    own = {"PATH": "/usr/bin:/bin", "HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "mine", "RANK": "7"}
    variables = contract_files.host_environment(
        spec(Environment={"MINE": "a b'\n", "HOME": "/elsewhere"}),
        {"SMLAUNCH_PORT": "1"},
        ["HOME"],
        {"AWS_ACCESS_KEY_ID": "endpoint's"},
        own,
    )
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert variables["MINE"] == "a b'\n"
    assert variables["HOME"] == "/elsewhere"
    assert variables["TRAINING_JOB_NAME"] == "job"
    assert variables["AWS_ACCESS_KEY_ID"] == "endpoint's"
    assert not {"AWS_SECRET_ACCESS_KEY", "RANK"} & variables.keys()


def test_under_network_isolation_there_are_no_credentials() -> None:
    variables = contract_files.host_environment(
        spec(EnableNetworkIsolation=True), {}, [], {"AWS_ACCESS_KEY_ID": "key"}, {"PATH": "/bin"}
    )
    assert "AWS_ACCESS_KEY_ID" not in variables


def test_what_is_run() -> None:
    algorithm = {"TrainingImage": "i", "TrainingInputMode": "File"}
    entrypoint = {"ContainerEntrypoint": ["a b", "c"], "ContainerArguments": ["--x", "y z"]}
    assert spec(AlgorithmSpecification={**algorithm, **entrypoint}).command == ("a b", "c", "--x", "y z")
    only = {"ContainerArguments": ["serve"]}
    assert spec(AlgorithmSpecification={**algorithm, **only}).command == ("serve",)
    assert spec(AlgorithmSpecification=algorithm).command == ("train",)
