"""Hosts of several types in one job: the request, the ranks, the price and the channels of each group."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.job.model import Job
from tests.planner.fixtures import plan

GROUPS = [
    {"name": "loaders", "type": "ml.c5.xlarge", "hosts": 2},
    {"name": "trainers", "type": "ml.g5.12xlarge"},
]
COMPUTE: dict[str, Any] = {"instance_groups": GROUPS}


def cost_of(compute: dict[str, Any]) -> float:
    per_hour = plan({"compute": compute}).cost.per_hour
    assert per_hour is not None
    return per_hour


def test_the_request_has_the_groups_and_no_other_hosts() -> None:
    resources = plan({"compute": COMPUTE}).requests[0]["ResourceConfig"]
    assert resources == {
        "InstanceGroups": [
            {"InstanceGroupName": "loaders", "InstanceType": "ml.c5.xlarge", "InstanceCount": 2},
            {"InstanceGroupName": "trainers", "InstanceType": "ml.g5.12xlarge", "InstanceCount": 1},
        ],
        "VolumeSizeInGB": 30,
    }


def test_every_channel_names_its_groups_as_soon_as_one_does() -> None:
    inputs = {"train": {"uri": "s3://b/x/", "instance_groups": ["trainers"]}}
    request = plan({"compute": COMPUTE, "inputs": inputs}).requests[0]
    groups_by_channel = {
        entry["ChannelName"]: entry["DataSource"]["S3DataSource"].get("InstanceGroupNames")
        for entry in request["InputDataConfig"]
    }
    both = ["loaders", "trainers"]
    assert groups_by_channel == {"train": ["trainers"], "smlaunch": both, "code": both}
    assert "all of it on every host of trainers" in str(plan({"compute": COMPUTE, "inputs": inputs}))
    request = plan({"compute": COMPUTE, "inputs": {"train": "s3://b/x/"}}).requests[0]
    assert "InstanceGroupNames" not in str(request)


def test_the_price_is_that_of_all_groups() -> None:
    expected = 2 * cost_of({"instance_type": "ml.c5.xlarge"}) + cost_of({"instance_type": "ml.g5.12xlarge"})
    assert cost_of(COMPUTE) == pytest.approx(expected)
    assert cost_of({**COMPUTE, "price_per_hour": 10}) == pytest.approx(
        20 + cost_of({"instance_type": "ml.g5.12xlarge"})
    )
    same_type = {"name": "writers", "type": "ml.c5.xlarge", "hosts": 3}
    assert cost_of({"instance_groups": [GROUPS[0], same_type], "price_per_hour": 10}) == 50


def test_hosts_count_their_own_accelerators_and_the_image_is_for_those() -> None:
    job_plan = plan({"compute": COMPUTE})
    assert (job_plan.processes_per_host, job_plan.hosts) == ("auto", 3)
    assert "-cu" in job_plan.image or "gpu" in job_plan.image
    assert "loaders: 2 x ml.c5.xlarge, trainers: 1 x ml.g5.12xlarge" in str(job_plan)
    assert "The groups differ in their accelerators" in " ".join(str(job_plan).split())


def test_groups_of_a_request_are_the_field() -> None:
    stated = {
        "ResourceConfig": {
            "InstanceGroups": [
                {"InstanceGroupName": "a", "InstanceType": "ml.c5.xlarge", "InstanceCount": 2},
            ]
        }
    }
    job = Job(entry="train.py", request=stated)
    assert job.request == {}
    assert [(group.name, group.type, group.hosts) for group in job.compute.instance_groups] == [
        ("a", "ml.c5.xlarge", 2)
    ]
