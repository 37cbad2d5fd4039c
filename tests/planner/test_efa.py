"""EFA's variables are set only for images too old to find it, and every case is reported."""

from __future__ import annotations

import pytest

from smlaunch.catalog.efa import efa_interfaces, efa_settings, has_device_rdma
from smlaunch.catalog.instances import known_types
from tests.planner.fixtures import local, plan, region

REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
OLD_IMAGE = f"{REGISTRY}/pytorch-training:1.13.1-gpu-py39-cu117-ubuntu20.04-sagemaker"
NEW_IMAGE = f"{REGISTRY}/pytorch:2.13.0-cu133-amzn2023-sagemaker"


@pytest.mark.parametrize(
    ("instance_type", "image", "hosts", "rule", "variables"),
    [
        ("ml.p4d.24xlarge", NEW_IMAGE, 2, "efa.left-to-the-image", ()),
        ("ml.p4d.24xlarge", OLD_IMAGE, 2, "efa.old-image",
         ("FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "RDMAV_FORK_SAFE")),
        ("ml.g5.48xlarge", OLD_IMAGE, 2, "efa.old-image", ("FI_PROVIDER", "RDMAV_FORK_SAFE")),
        ("ml.p4d.24xlarge", OLD_IMAGE, 1, None, ()),
        ("ml.g5.xlarge", OLD_IMAGE, 4, None, ()),
        ("ml.unknown.xlarge", OLD_IMAGE, 4, None, ()),
        ("ml.p5.48xlarge", "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1", 2, "efa.own-image", ()),
        ("ml.p5.48xlarge", "123456789012.dkr.ecr.us-east-1.amazonaws.com/my-own:1.2", 2, "efa.own-image", ()),
    ],
)  # fmt: skip
def test_by_type_image_and_hosts(
    instance_type: str, image: str, hosts: int, rule: str | None, variables: tuple[str, ...]
) -> None:
    settings = efa_settings(instance_type, image, hosts, has_own_image=True)
    assert (settings.rule if settings else None) == rule
    assert tuple(name for name, _ in settings.variables) == variables if settings else variables == ()


def test_nccl_proto_is_never_forced() -> None:
    for name in known_types():
        for image in (OLD_IMAGE, NEW_IMAGE):
            settings = efa_settings(name, image, 2, has_own_image=False)
            assert settings is None or "NCCL_PROTO" not in dict(settings.variables)


def test_the_table_of_adapters() -> None:
    assert {
        name: efa_interfaces(name) for name in ("ml.p4d.24xlarge", "ml.p5.48xlarge", "ml.p5en.48xlarge")
    } == {
        "ml.p4d.24xlarge": 4,
        "ml.p5.48xlarge": 32,
        "ml.p5en.48xlarge": 16,
    }
    assert efa_interfaces("ml.g5.xlarge") == efa_interfaces("ml.g5.nonsense") == 0
    assert has_device_rdma("ml.p4de.24xlarge")
    assert not has_device_rdma("ml.g5.48xlarge")
    assert not has_device_rdma("ml.p3dn.24xlarge")


def test_ranks_get_them_and_the_job_wins() -> None:
    job = {"image": OLD_IMAGE, "compute": {"hosts": 2, "instance_type": "ml.p4d.24xlarge"}}
    job_plan = plan({**job, "environment": {"FI_PROVIDER": "tcp"}}, region())
    assert job_plan.planned_jobs[0].launch_spec is not None
    variables = dict(job_plan.planned_jobs[0].launch_spec.ranks.env)
    assert variables["FI_EFA_USE_DEVICE_RDMA"] == "1"
    assert "FI_PROVIDER" not in variables
    assert job_plan.requests[0]["Environment"] == {"FI_PROVIDER": "tcp"}
    assert "efa.old-image" in [reason.rule for reason in job_plan.reasons]
    local_plan = plan(job, local())
    assert not [reason for reason in local_plan.reasons if reason.rule.startswith("efa.")]
