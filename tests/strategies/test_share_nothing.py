"""``strategy: share-nothing``: split inputs, the variables of each process, and the effect of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.catalog import instances
from smlaunch.contract.launch_spec import Ref
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import InputFacts, ScriptFacts, StoredFile
from smlaunch.render.plan import Plan
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import LaunchContext
from tests.planner.fixtures import PLAIN, plan, region, with_inputs

FILES = tuple(StoredFile(f"part-{number}", 10) for number in range(6))
DATA = InputFacts("s3://b/d/", "s3", objects=6, bytes=60, files=FILES)
READS_SHARDS = ScriptFacts(imports=frozenset({"smlaunch.train.shard_files"}))
KEY, BYTES = ({"uri": "s3://b/d/", "split": split_by} for split_by in ("key", "bytes"))


def plan_channel(channel: dict[str, Any], script: ScriptFacts = PLAIN, **fields: Any) -> Plan:
    job = {"strategy": "share-nothing", "compute": {"hosts": 3}, "inputs": {"train": channel}, **fields}
    return plan(job, with_inputs(region(script=script), {"train": DATA}))


def refusals_by_path(channel: dict[str, Any], script: ScriptFacts = PLAIN, **fields: Any) -> dict[str, str]:
    with pytest.raises(JobError) as caught:
        plan_channel(channel, script, **fields)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_a_split_by_key_is_the_services() -> None:
    job_plan = plan_channel(KEY)
    (request,) = job_plan.requests
    train = next(
        channel_fields
        for channel_fields in request["InputDataConfig"]
        if channel_fields["ChannelName"] == "train"
    )
    assert train["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "ShardedByS3Key"
    assert request["ResourceConfig"]["InstanceCount"] == 3
    spec = job_plan.planned_jobs[0].launch_spec
    assert spec is not None
    assert (spec.ranks.rendezvous, spec.ranks.per_host, spec.needs_secret) == (False, 1, False)
    assert dict(spec.ranks.env) == {
        "SMLAUNCH_HOST_RANK": Ref("host_rank"),
        "SMLAUNCH_HOSTS": Ref("hosts"),
        "PYTHONUNBUFFERED": "1",
    }


def test_several_processes_have_an_index_and_a_gpu_each() -> None:
    strategy = load_strategy("share-nothing")
    four = LaunchContext(
        "infer.py", processes_per_host=4, instance_spec=instances.find_instance_type("ml.g5.12xlarge")
    )
    process_variables = {"SMLAUNCH_PROCESS": Ref("local_rank"), "SMLAUNCH_PROCESSES": Ref("per_host")}
    assert (
        dict(strategy.variables(four)).items()
        >= {**process_variables, "CUDA_VISIBLE_DEVICES": Ref("local_rank")}.items()
    )
    two = LaunchContext(
        "infer.py", processes_per_host=2, instance_spec=instances.find_instance_type("ml.g5.12xlarge")
    )
    assert "CUDA_VISIBLE_DEVICES" not in dict(strategy.variables(two))
    local_context = LaunchContext(
        "infer.py", processes_per_host=4, instance_spec=four.instance_spec, target="local"
    )
    assert "CUDA_VISIBLE_DEVICES" not in dict(strategy.variables(local_context))


def test_accelerators_alone_do_not_start_more_processes() -> None:
    job_plan = plan_channel(KEY, compute={"hosts": 3, "instance_type": "ml.g5.12xlarge"})
    assert job_plan.processes_per_host == 1


def test_hosts_without_parts_would_do_the_same_work() -> None:
    assert "do the same work 3 times" in refusals_by_path({"uri": "s3://b/d/"})["inputs"]


def test_more_hosts_than_files_are_refused() -> None:
    assert any(path.startswith("inputs.train") for path in refusals_by_path(KEY, compute={"hosts": 7}))
    assert any(
        path.startswith("inputs.train")
        for path in refusals_by_path(BYTES, READS_SHARDS, compute={"hosts": 7})
    )


def test_finish_makes_a_job_of_every_part() -> None:
    job_plan = plan_channel(BYTES, READS_SHARDS, options={"on_host_failure": "finish"})
    assert [request["ResourceConfig"]["InstanceCount"] for request in job_plan.requests] == [1, 1, 1]
    assert job_plan.strategy == "share-nothing"
    assert plan_channel(BYTES, READS_SHARDS).requests[0]["ResourceConfig"]["InstanceCount"] == 3


@pytest.mark.parametrize(
    ("channel", "script", "policy", "path"),
    [
        (KEY, PLAIN, "finish", "inputs.train.split"),
        ({**BYTES, "split_via": "lists"}, READS_SHARDS, "finish", "inputs.train.split_via"),
        (BYTES, PLAIN, "fail", "options.on_host_failure"),
        (BYTES, READS_SHARDS, "retry", "options.on_host_failure"),
    ],
)
def test_policies_that_cannot_be(
    channel: dict[str, Any], script: ScriptFacts, policy: str, path: str
) -> None:
    assert path in refusals_by_path(channel, script, options={"on_host_failure": policy})
