"""strategy: xgboost: the request, the tracker beside the workers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.contract.launch_spec import ALL, LEADER, Concat, Ref, ServiceSpec
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.render.plan import Plan
from tests.planner.fixtures import local, region
from tests.strategies.launch_specs import SHELL, spec_of
from tests.strategies.requests import documented_request, plan_job, refusals, request_of

XGBOOST = ScriptFacts(imports=frozenset({"xgboost", "numpy"}))
IMAGE = "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:3.2-0"
COMPUTE = {"hosts": 2, "instance_type": "ml.m5.xlarge"}
TRACKER = ServiceSpec(
    "xgboost-tracker",
    (
        *(Ref("python"), "-c", "from smlaunch.runtime.xgboost_tracker import main; main()"),
        *(Ref("world_size"), Ref("leader_address"), Ref("port", offset=4), Ref("port", offset=5)),
    ),
    runs_on=LEADER,
    ready_address=Concat((Ref("leader_address", suffix=":"), Ref("port", offset=5))),
)


def plan_xgboost(is_local: bool = False, **job: Any) -> Plan:
    return plan_job({"compute": COMPUTE, **job}, (local if is_local else region)(script=XGBOOST))


def test_the_request() -> None:
    plan = plan_xgboost()
    assert plan.strategy == "xgboost"
    assert request_of(plan) == documented_request(IMAGE, "ml.m5.xlarge", 2)
    assert not [upload for upload in plan.uploads if upload.kind == "secret"]


def test_workers_meet_at_the_tracker() -> None:
    spec = spec_of(plan_xgboost())
    assert spec.services == (TRACKER,)
    assert (spec.ranks.runs_on, spec.ranks.per_host, spec.ranks.rendezvous) == (ALL, 1, False)
    assert spec.ranks.argv == (Ref("python"), Ref("source", suffix="/train.py"), Ref("hyperparameters"))
    assert {name: word for name, word in spec.ranks.env if name.startswith("DMLC_")} == {
        "DMLC_NUM_WORKER": Ref("world_size"),
        "DMLC_ROLE": "worker",
        "DMLC_TASK_ID": Ref("rank"),
        "DMLC_TRACKER_PORT": Ref("port", offset=4),
        "DMLC_TRACKER_URI": Ref("leader_address"),
    }
    assert spec.hang_seconds == 3600
    assert "OMP_NUM_THREADS" not in dict(spec.ranks.env)


def test_on_one_machine_hosts_do_not_take_each_others_cores() -> None:
    assert dict(spec_of(plan_xgboost(is_local=True)).ranks.env)["OMP_NUM_THREADS"] == "1"


def test_several_workers_on_a_host_and_one_alone() -> None:
    several = spec_of(plan_xgboost(compute={**COMPUTE, "hosts": 1, "processes_per_host": 4}))
    assert (several.ranks.per_host, several.services) == (4, (TRACKER,))
    one_worker = spec_of(plan_xgboost(compute={**COMPUTE, "hosts": 1}))
    assert one_worker.services == ()
    assert not any(name.startswith("DMLC_") for name, _ in one_worker.ranks.env)


def test_every_host_with_all_the_data_is_told() -> None:
    message, data = "every one of 2 hosts gets all the data", {"train": "s3://b/train/"}
    assert any(message in line for line in plan_xgboost(inputs=data).warnings)
    several_on_one = {**COMPUTE, "hosts": 1, "processes_per_host": 4}
    for job in ({}, {"inputs": {"train": {"uri": "s3://b/train/", "split": "key"}}}):
        assert not any("all the data" in line for line in plan_xgboost(**job).warnings)
    assert not any(
        "all the data" in line for line in plan_xgboost(inputs=data, compute=several_on_one).warnings
    )


@pytest.mark.parametrize(("version", "hosts", "is_refused"), [("1.7-1", 2, True), ("1.7-1", 1, False)])
def test_a_version_without_the_tracker(version: str, hosts: int, is_refused: bool) -> None:
    job = {"framework_version": version, "compute": {**COMPUTE, "hosts": hosts}}
    if not is_refused:
        assert spec_of(plan_xgboost(**job)).services == ()
        return
    messages = refusals(job, region(script=XGBOOST))
    assert any("XGBoost 1.7-1 has no tracker for several workers; 2.1 has" in line for line in messages), (
        messages
    )


def test_a_script_that_is_none() -> None:
    messages = refusals(
        {"entry": "src/train.sh", "strategy": "xgboost", "compute": COMPUTE},
        region(script=XGBOOST, source=SHELL),
    )
    assert messages == [
        "strategy: xgboost starts Python scripts; train.sh needs strategy: custom, or a .py around it"
    ]
