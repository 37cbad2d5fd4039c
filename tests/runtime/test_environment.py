"""The SM_* variables against the training toolkit's, for a heterogeneous job, value by value."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from tests.runtime.host import Host

MakeHost = Callable[..., Host]

PRINT_ENVIRONMENT = "import json, os\nprint(json.dumps(dict(os.environ)))"
GROUPS = [
    {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
    {"instance_group_name": "train", "instance_type": "ml.g5.xlarge", "hosts": ["algo-3", "algo-2"]},
]


def test_every_variable_of_the_toolkit(make_host: MakeHost) -> None:
    """Includes the names that only SDK v3's drivers have; tests/real runs both and compares.

    Intended differences: numbers among the arguments keep their text, and the leader is the first host in
    natural order.
    """
    resource_config = {
        "current_group_name": "train",
        "current_instance_type": "ml.g5.xlarge",
        "instance_groups": GROUPS,
        "network_interface_name": "eth0",
    }
    hyperparameters = {
        "lr": "1e-3",
        "name": '"a b"',
        "flag": "true",
        "none": "null",
        "list": "[1, 2]",
        "my-key": "x",
        "sagemaker_mpi_enabled": "true",
        "sagemaker_program": "ignored.py",
    }
    host = make_host(
        PRINT_ENVIRONMENT,
        hosts=["algo-1", "algo-2", "algo-3"],
        current="algo-2",
        resource_config=resource_config,
        hyperparameters=hyperparameters,
        channels=["train", "my-val"],
        environ={"TRAINING_JOB_NAME": "job-7", "AWS_REGION": "eu-west-1", "CUDA_VISIBLE_DEVICES": ""},
    )
    environment = json.loads(host.run(rendezvous=False).stdout)
    root = str(host.root)
    channel = '{"S3DistributionType":"FullyReplicated","TrainingInputMode":"File"}'
    gpus, neurons = environment["SM_NUM_GPUS"], environment["SM_NUM_NEURONS"]
    expected = {
        "SM_CHANNELS": '["my-val","train"]',
        "SM_CHANNEL_MY-VAL": f"{root}/input/data/my-val",
        "SM_CHANNEL_TRAIN": f"{root}/input/data/train",
        "SM_CURRENT_HOST": "algo-2",
        "SM_CURRENT_HOST_RANK": "1",
        "SM_ENTRY_SCRIPT": "train.py",
        "SM_HOST_COUNT": "3",
        "SM_HP_MY_KEY": "x",
        "SM_INPUT_DATA_DIR": f"{root}/input/data",
        "SM_MASTER_ADDR": "algo-2",
        "SM_MASTER_PORT": "29500",
        "SM_OUTPUT_FAILURE": f"{root}/output/failure",
        "SM_SOURCE_DIR": f"{root}/code",
        "SM_CURRENT_INSTANCE_GROUP": "train",
        "SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-3","algo-2"]',
        "SM_CURRENT_INSTANCE_TYPE": "ml.g5.xlarge",
        "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]",
        "SM_FRAMEWORK_MODULE": "",
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled":true}',
        "SM_HOSTS": '["algo-1","algo-2","algo-3"]',
        "SM_HPS": '{"flag":true,"list":[1,2],"lr":0.001,"my-key":"x","name":"a b","none":null}',
        "SM_HP_FLAG": "true",
        "SM_HP_LIST": "[1,2]",
        "SM_HP_LR": "0.001",
        "SM_HP_MY-KEY": "x",
        "SM_HP_NAME": "a b",
        "SM_HP_NONE": "",
        "SM_INPUT_CONFIG_DIR": f"{root}/input/config",
        "SM_INPUT_DATA_CONFIG": f'{{"my-val":{channel},"train":{channel}}}',
        "SM_INPUT_DIR": f"{root}/input",
        "SM_INSTANCE_GROUPS": '["data","train"]',
        "SM_INSTANCE_GROUPS_DICT": json.dumps(
            {group["instance_group_name"]: group for group in GROUPS}, sort_keys=True, separators=(",", ":")
        ),
        "SM_IS_HETERO": "true",
        "SM_LOG_LEVEL": "20",
        "SM_MODEL_DIR": f"{root}/model",
        "SM_MODULE_DIR": f"{root}/code",
        "SM_MODULE_NAME": "train",
        "SM_NETWORK_INTERFACE_NAME": "eth0",
        "SM_NUM_CPUS": str(os.cpu_count()),
        "SM_NUM_GPUS": gpus,
        "SM_NUM_NEURONS": neurons,
        "SM_OUTPUT_DATA_DIR": f"{root}/output/data",
        "SM_OUTPUT_DIR": f"{root}/output",
        "SM_OUTPUT_INTERMEDIATE_DIR": f"{root}/output/intermediate",
        "SM_RESOURCE_CONFIG": json.dumps(
            {**resource_config, "current_host": "algo-2", "hosts": ["algo-1", "algo-2", "algo-3"]},
            sort_keys=True,
            separators=(",", ":"),
        ),
        "SM_USER_ARGS": json.dumps(
            "--flag True --list X --lr 1e-3 --my-key x --name Y --none Z".replace("X", "[1,_2]").split()
        )
        .replace('"[1,_2]"', '"[1, 2]"')
        .replace('"Y"', '"a b"')
        .replace('"Z"', '""')
        .replace(", --", ",--")
        .replace('", "', '","'),
        "SM_USER_ENTRY_POINT": "train.py",
    }
    training_env = json.loads(environment.pop("SM_TRAINING_ENV"))
    assert {name: value for name, value in environment.items() if name.startswith("SM_")} == expected
    assert {
        name: environment[name] for name in ("CURRENT_HOST", "SAGEMAKER_JOB_NAME", "SAGEMAKER_REGION")
    } == {
        "CURRENT_HOST": "algo-2",
        "SAGEMAKER_JOB_NAME": "job-7",
        "SAGEMAKER_REGION": "eu-west-1",
    }
    assert set(training_env) == TRAINING_ENV_KEYS
    assert training_env["hyperparameters"] == json.loads(expected["SM_HPS"])
    assert training_env["channel_input_dirs"]["my-val"] == f"{root}/input/data/my-val"
    assert (training_env["master_hostname"], training_env["is_master"]) == ("algo-2", True)


TRAINING_ENV_KEYS = {
    "additional_framework_parameters",
    "channel_input_dirs",
    "current_host",
    "current_instance_group",
    "current_instance_group_hosts",
    "current_instance_type",
    "distribution_hosts",
    "distribution_instance_groups",
    "framework_module",
    "hosts",
    "hyperparameters",
    "input_config_dir",
    "input_data_config",
    "input_dir",
    "instance_groups",
    "instance_groups_dict",
    "is_hetero",
    "is_master",
    "is_modelparallel_enabled",
    "is_smddpmprun_installed",
    "is_smddprun_installed",
    "job_name",
    "log_level",
    "master_hostname",
    "model_dir",
    "module_dir",
    "module_name",
    "network_interface_name",
    "num_cpus",
    "num_gpus",
    "num_neurons",
    "output_data_dir",
    "output_dir",
    "output_intermediate_dir",
    "resource_config",
    "topology",
    "user_entry_point",
}
"""The public properties of the toolkit's Environment."""


def test_without_groups_the_hosts_train_together(make_host: MakeHost) -> None:
    environment = json.loads(make_host(PRINT_ENVIRONMENT).run(rendezvous=True).stdout.split("] ", 1)[1])
    assert environment["SM_CURRENT_INSTANCE_GROUP"] == "homogeneousCluster"
    assert environment["SM_DISTRIBUTION_INSTANCE_GROUPS"] == '["homogeneousCluster"]'
    assert environment["SM_INSTANCE_GROUPS"] == "[]"
    assert environment["SM_CHANNELS"] == "[]"
    assert "SM_TOPOLOGY" not in environment
