"""smddp by table: every version, image and instance type that the reference names for it, in section 4.2.

Written by hand from there: "docs: supports P4 and P4de", the SageMaker SDK 2's list of PyTorch versions
(1.6 to 2.2.0), "status for 2.4-2.10 DLCs unconfirmed", "Not in PyTorch DLC >= 2.11", and the one SMP image
that the last row of the documentation names.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from smlaunch.facts.discovered_facts import ScriptFacts
from tests.strategies.requests import documented_request, plan_job, refusals, request_of, torchrun_line
from tests.tables import table

REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
SMP_IMAGE = "658645717510.dkr.ecr.us-east-1.amazonaws.com/smdistributed-modelparallel:2.4.1-gpu-py311-cu121"
TYPES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
USES_SMDDP = ScriptFacts(imports=frozenset({"torch", "smdistributed.dataparallel.torch.torch_smddp"}))

IMAGES = {
    None: "pytorch-training:2.2.0-gpu-py310",
    "1.9.0": "pytorch-training:1.9.0-gpu-py38",
    "1.9.1": "pytorch-training:1.9.1-gpu-py38",
    "1.9": "pytorch-training:1.9.1-gpu-py38",
    "1.10.0": "pytorch-training:1.10.0-gpu-py38",
    "1.10.2": "pytorch-training:1.10.2-gpu-py38",
    "1.10": "pytorch-training:1.10.2-gpu-py38",
    "1.11.0": "pytorch-training:1.11.0-gpu-py38",
    "1.11": "pytorch-training:1.11.0-gpu-py38",
    "1.12.0": "pytorch-training:1.12.0-gpu-py38",
    "1.12.1": "pytorch-training:1.12.1-gpu-py38",
    "1.12": "pytorch-training:1.12.1-gpu-py38",
    "1.13.1": "pytorch-training:1.13.1-gpu-py39",
    "2.0.0": "pytorch-training:2.0.0-gpu-py310",
    "2.0.1": "pytorch-training:2.0.1-gpu-py310",
    "2.1.0": "pytorch-training:2.1.0-gpu-py310",
    "2.2.0": "pytorch-training:2.2.0-gpu-py310",
}
"""framework_version -> the image's repository and tag, for every version of the SDK's list whose image has a
Python of at least 3.8."""

NO_IMAGE = {
    # Images of Python 3.6, which the runtime does not run on.
    **{
        version: f"no PyTorch {version} image is known"
        for version in ("1.6", "1.6.0", "1.7", "1.7.1", "1.8", "1.8.0", "1.8.1")
    },
    "2.1.2": "the PyTorch 2.1 image holds 2.1.0, not 2.1.2",
}

VERSIONS_WITHOUT = {
    **dict.fromkeys(("2.3.0", "2.4.0", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.0", "2.10.0"), "unconfirmed"),
    **dict.fromkeys(("2.11.0", "2.12.1", "2.13.0", "2.14"), "contain no smddp"),
}


@table(("version", "instance_type"), itertools.product(IMAGES, TYPES))
def test_the_request(version: str | None, instance_type: str) -> None:
    job = {"strategy": "smddp", "compute": {"hosts": 2, "instance_type": instance_type}}
    if version is not None:
        job["framework_version"] = version
    plan = plan_job(job, script=USES_SMDDP)
    assert request_of(plan) == documented_request(f"{REGISTRY}/{IMAGES[version]}", instance_type, 2)


def test_the_last_image_that_the_documentation_names() -> None:
    compute = {"hosts": 2, "instance_type": "ml.p4d.24xlarge"}
    plan = plan_job({"strategy": "smddp", "image": SMP_IMAGE, "compute": compute}, script=USES_SMDDP)
    assert request_of(plan) == documented_request(SMP_IMAGE, "ml.p4d.24xlarge", 2)


def test_the_launch_line(tmp_path: Path) -> None:
    plan = plan_job(
        {"strategy": "smddp", "compute": {"hosts": 2, "instance_type": "ml.p4d.24xlarge"}}, script=USES_SMDDP
    )
    assert torchrun_line(plan, tmp_path)[:10] == [
        *("python3", "-m", "torch.distributed.run", "--no_python", "--max_restarts=0"),
        *("--nnodes=2", "--node_rank=1", "--nproc_per_node=8", "--master_addr=algo-1", "--master_port=29500"),
    ]


@table("version", [*NO_IMAGE, *VERSIONS_WITHOUT])
def test_versions_that_have_it_not(version: str) -> None:
    compute = {"hosts": 2, "instance_type": "ml.p4d.24xlarge"}
    (message,) = refusals({"strategy": "smddp", "framework_version": version, "compute": compute})
    assert message.startswith("framework_version: ")
    assert {**NO_IMAGE, **VERSIONS_WITHOUT}[version] in message


@table(
    "instance_type",
    [
        *("ml.p3.16xlarge", "ml.p3dn.24xlarge"),  # of the SDK 2's constant, for versions older than any image
        *("ml.p3.2xlarge", "ml.p5.48xlarge", "ml.p5e.48xlarge", "ml.p6-b200.48xlarge"),
        *("ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.m5.xlarge", "ml.c5.18xlarge"),
    ],
)
def test_other_instance_types(instance_type: str) -> None:
    (message,) = refusals({"strategy": "smddp", "compute": {"hosts": 2, "instance_type": instance_type}})
    rule = "smddp runs only on ml.p4d.24xlarge and ml.p4de.24xlarge"
    assert message.startswith(f"compute.instance_type: {rule}, not on {instance_type}")


def test_an_image_of_aws_that_has_it_not() -> None:
    image = f"{REGISTRY}/pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker"
    compute = {"hosts": 2, "instance_type": "ml.p4d.24xlarge"}
    (message,) = refusals({"strategy": "smddp", "image": image, "compute": compute})
    assert message.startswith("image: AWS's images of PyTorch 2.10 are not known to contain smddp")


def test_what_is_warned_of() -> None:
    two = {"strategy": "smddp", "compute": {"hosts": 2, "instance_type": "ml.p4d.24xlarge"}}
    warnings_text = "\n".join(plan_job(two).warnings)
    assert "smddp is frozen" in warnings_text
    assert "strategy: ddp is the default, because NCCL over EFA" in warnings_text
    assert "past its end of patch" in warnings_text
    assert "train.py does not import smdistributed.dataparallel.torch.torch_smddp" in warnings_text
    assert "gains nothing" not in warnings_text
    warnings_text = "\n".join(plan_job(two, script=USES_SMDDP).warnings)
    assert "does not import" not in warnings_text
    one_host = {"strategy": "smddp", "compute": {"hosts": 1, "instance_type": "ml.p4d.24xlarge"}}
    assert any("one host gains nothing" in warning for warning in plan_job(one_host).warnings)
    own_image_warnings = plan_job(
        {**two, "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"}
    ).warnings
    assert any(
        "Whether the image contains smddp cannot be checked" in warning for warning in own_image_warnings
    )
