"""smp by table: every image, region, instance type and parameter that the reference names, in section 4.3."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from smlaunch.facts.discovered_facts import ScriptFacts
from tests.strategies.requests import documented_request, plan_job, refusals, request_of, torchrun_line
from tests.tables import table

REPOSITORY = "658645717510.dkr.ecr.us-east-1.amazonaws.com/smdistributed-modelparallel"
USES_SMP = ScriptFacts(imports=frozenset({"torch", "torch.sagemaker"}))
TYPES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge")
LATER_TYPES = ("ml.p5e.48xlarge", "ml.p5en.48xlarge")

TAGS = {
    None: "2.5.1-gpu-py311-cu124",
    "2.0": "2.0.1-gpu-py310-cu118",
    "2.0.1": "2.0.1-gpu-py310-cu118",
    "2.1.2": "2.1.2-gpu-py310-cu121",
    "2.2": "2.2.0-gpu-py310-cu121",
    "2.2.0": "2.2.0-gpu-py310-cu121",
    "2.3.1": "2.3.1-gpu-py311-cu121",
    "2.4.1": "2.4.1-gpu-py311-cu121",
    "2.5.1": "2.5.1-gpu-py311-cu124",
}
"""PyTorch's version -> the tag; of 2.0.1 another one on P5."""

REGIONS = (
    *("ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
    *("ca-central-1", "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "eu-west-3", "sa-east-1"),
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2"),
)

PARAMETERS: dict[str, Any] = {
    "hybrid_shard_degree": 8,
    "sm_activation_offloading": True,
    "activation_loading_horizon": 2,
    "fsdp_cache_flush_warnings": False,
    "allow_empty_shards": True,
    "tensor_parallel_degree": 2,
    "context_parallel_degree": 4,
    "expert_parallel_degree": 1,
    "random_seed": 12345,
}


def job(instance_type: str = "ml.p4d.24xlarge", hosts: int = 2, **fields: Any) -> dict[str, Any]:
    return {"strategy": "smp", "compute": {"hosts": hosts, "instance_type": instance_type}, **fields}


@table(("version", "instance_type"), itertools.product(TAGS, [*TYPES, *LATER_TYPES]))
def test_the_request(version: str | None, instance_type: str) -> None:
    version_field = {} if version is None else {"framework_version": version}
    plan = plan_job(job(instance_type, options={"hybrid_shard_degree": 16}, **version_field), script=USES_SMP)
    tag = TAGS[version]
    if tag.startswith("2.0.1") and instance_type == "ml.p5.48xlarge":
        tag = "2.0.1-gpu-py310-cu121"
    parameters = {"mp_parameters": '{"hybrid_shard_degree": 16}'}
    assert request_of(plan) == documented_request(
        f"{REPOSITORY}:{tag}", instance_type, 2, hyperparameters=parameters
    )


def test_every_parameter_goes_in_as_json() -> None:
    request = request_of(plan_job(job(options=PARAMETERS), script=USES_SMP))
    assert set(request["HyperParameters"]) == {"mp_parameters"}
    assert json.loads(request["HyperParameters"]["mp_parameters"]) == PARAMETERS


def test_no_parameter_is_an_empty_object() -> None:
    request = request_of(plan_job(job(hyperparameters={"lr": 0.1}), script=USES_SMP))
    assert request["HyperParameters"] == {"lr": "0.1", "mp_parameters": "{}"}


def test_the_launch_line(tmp_path: Path) -> None:
    line = torchrun_line(plan_job(job(options={"hybrid_shard_degree": 8}), script=USES_SMP), tmp_path)
    assert line[:10] == [
        *("python3", "-m", "torch.distributed.run", "--no_python", "--max_restarts=0"),
        *("--nnodes=2", "--node_rank=1", "--nproc_per_node=8", "--master_addr=algo-1", "--master_port=29500"),
    ]
    # A mapping goes to a script as AWS's toolkit writes one; SMP itself reads SM_HP_MP_PARAMETERS, the JSON.
    assert line[-4:] == ["python3", "/opt/ml/code/train.py", "--mp_parameters", "hybrid_shard_degree=8"]


@table("region", REGIONS)
def test_regions(region: str) -> None:
    image = plan_job(job(), script=USES_SMP, region=region).image
    assert (
        image
        == f"658645717510.dkr.ecr.{region}.amazonaws.com/smdistributed-modelparallel:2.5.1-gpu-py311-cu124"
    )


@pytest.mark.parametrize("region", ["eu-south-1", "af-south-1", "me-south-1", "cn-north-1"])
def test_other_regions(region: str) -> None:
    (message,) = refusals(job(), region=region)
    assert message.startswith(f"image: no registry of AWS's images is known in region {region}")


@pytest.mark.parametrize("version", ["1.13.1", "2.5.0", "2.6.0", "2.13"])
def test_other_versions(version: str) -> None:
    (message,) = refusals(job(framework_version=version))
    assert message.startswith("framework_version: ")
    assert version in message


@table(
    "instance_type",
    [
        "ml.p3.16xlarge",
        "ml.p3dn.24xlarge",
        "ml.g5.48xlarge",
        "ml.g6e.48xlarge",
        "ml.p5.4xlarge",
        "ml.m5.xlarge",
    ],
)
def test_other_instance_types(instance_type: str) -> None:
    (message,) = refusals(job(instance_type))
    assert message.startswith(
        "compute.instance_type: smp runs only on ml.p4d.24xlarge, ml.p4de.24xlarge, ml.p5.48xlarge"
    )
    assert f"not on {instance_type}" in message


REFUSED_OPTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"hybrid_shard_degree": "8"},
        "options.hybrid_shard_degree: a whole number of at least 0 is needed, not '8'",
    ),
    ({"hybrid_shard_degree": -1}, "options.hybrid_shard_degree: a whole number of at least 0"),
    ({"tensor_parallel_degree": 0}, "options.tensor_parallel_degree: a whole number of at least 1"),
    ({"tensor_parallel_degree": 2.5}, "options.tensor_parallel_degree: a whole number of at least 1"),
    ({"tensor_parallel_degree": True}, "options.tensor_parallel_degree: a whole number of at least 1"),
    (
        {"expert_parallel_degree": 17},
        "options.expert_parallel_degree: 17 is more than the 16 ranks there are",
    ),
    (
        {"context_parallel_degree": 8, "hybrid_shard_degree": 4},
        "options.context_parallel_degree: 8 is more than hybrid_shard_degree, 4",
    ),
    ({"random_seed": -1}, "options.random_seed: a whole number of at least 0"),
    ({"activation_loading_horizon": "2"}, "options.activation_loading_horizon: a whole number"),
    ({"sm_activation_offloading": "true"}, "options.sm_activation_offloading: true or false is needed"),
    ({"allow_empty_shards": 1}, "options.allow_empty_shards: true or false is needed"),
    (
        {"shard_degree": 8},
        "options.shard_degree: smp has no such option, did you mean 'hybrid_shard_degree'?",
    ),
]


@table(("options", "message"), REFUSED_OPTIONS)
def test_parameters_that_will_not_do(options: dict[str, Any], message: str) -> None:
    (refusal,) = refusals(job(options=options))
    assert refusal.startswith(message)


def test_parameters_written_twice_and_an_image_without_it() -> None:
    (message,) = refusals(job(hyperparameters={"mp_parameters": "{}"}))
    assert message.startswith("hyperparameters.mp_parameters: it is derived from the job's options")
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.2.0-gpu-py310"
    (message,) = refusals(job(image=image))
    assert message.startswith("image: pytorch-training has no SMP")


def test_what_is_warned_of() -> None:
    warnings_text = "\n".join(plan_job(job()).warnings)
    assert "smp is frozen: its last image is of PyTorch 2.5.1" in warnings_text
    assert "strategy: ddp is the default" in warnings_text
    assert "train.py does not import torch.sagemaker" in warnings_text
    for instance_type in LATER_TYPES:
        assert any(
            f"on {instance_type} is unconfirmed" in w
            for w in plan_job(job(instance_type), script=USES_SMP).warnings
        )
    for instance_type in TYPES:
        assert not any("unconfirmed" in w for w in plan_job(job(instance_type), script=USES_SMP).warnings)
