"""``strategy: ray``: the request, the cluster of the hosts, and refusals."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from smlaunch.contract.launch_spec import LEADER, OTHERS, Concat, Ref, ServiceSpec
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.render.plan import Plan
from smlaunch.runtime import ray_driver
from tests.planner.fixtures import local, region
from tests.strategies.launch_specs import SHELL, spec_of
from tests.strategies.requests import documented_request, plan_job, refusals, request_of

RAY = ScriptFacts(imports=frozenset({"ray", "torch"}))
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2.13.0-cpu-amzn2023-sagemaker"
CLUSTER = Concat((Ref("leader_address", suffix=":"), Ref("port", offset=4)))
NODE = Concat((Ref("address", suffix=":"), Ref("own_port", offset=8)))
COMPUTE = {"hosts": 2, "instance_type": "ml.m5.xlarge"}


def plan_ray(is_local: bool = False, **job: Any) -> Plan:
    return plan_job({"compute": COMPUTE, **job}, (local if is_local else region)(script=RAY))


def test_the_request() -> None:
    plan = plan_ray()
    assert plan.strategy == "ray"
    assert "strategy.ray" in [reason.rule for reason in plan.reasons]
    assert request_of(plan) == documented_request(IMAGE, "ml.m5.xlarge", 2)
    assert [upload.kind for upload in plan.uploads].count("secret") == 1


def test_the_cluster_and_its_driver() -> None:
    spec = spec_of(plan_ray(args=["--fast"]))
    start = (
        *(Ref("python"), "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        Ref("address", prefix="--node-ip-address="),
        Ref("own_port", prefix="--node-manager-port=", offset=8),
        Ref("own_port", prefix="--dashboard-agent-listen-port=", offset=36),
        *("--min-worker-port=0", "--max-worker-port=0"),
    )
    env = (("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0"), ("RAY_USAGE_STATS_ENABLED", "0"))
    head = (*start, "--head", Ref("port", prefix="--port=", offset=4), "--include-dashboard=false")
    worker = (*start, Concat(("--address=", Ref("leader_address", suffix=":"), Ref("port", offset=4))))
    assert spec.services == (
        ServiceSpec("ray-head", head, env, LEADER, CLUSTER),
        ServiceSpec("ray-worker", worker, env, OTHERS, NODE),
    )
    assert (spec.ranks.runs_on, spec.ranks.per_host, spec.ranks.rendezvous, spec.needs_secret) == (
        LEADER,
        1,
        False,
        True,
    )
    assert spec.ranks.argv == (
        *(Ref("python"), "-c", "from smlaunch.runtime.ray_driver import main; main()", Ref("hosts")),
        *(Ref("python"), Ref("source", suffix="/train.py"), "--fast", Ref("hyperparameters")),
    )
    assert dict(spec.ranks.env)["RAY_ADDRESS"] == CLUSTER
    assert spec.hang_seconds is None, "the driver may rightly wait for long"


def test_its_options() -> None:
    head, worker = spec_of(plan_ray(options={"cpus": 3, "dashboard": True})).services
    assert "--num-cpus=3" in head.argv
    assert "--num-cpus=3" in worker.argv
    assert "--include-dashboard=true" in head.argv
    assert not any("include-dashboard" in str(word) for word in worker.argv)


def test_what_is_refused() -> None:
    messages = refusals(
        {
            "entry": "src/train.sh",
            "strategy": "ray",
            "options": {"cpus": 0, "dashboard": "yes", "gpus": 1},
            "compute": {**COMPUTE, "processes_per_host": 4},
        },
        region(script=RAY, source=SHELL),
    )
    for part in (
        "compute.processes_per_host: ray starts one process per host, not 4; Ray starts its own",
        "strategy: ray starts Python scripts; train.sh needs strategy: custom, or a .py around it",
        "options.cpus: a whole number from 1 is needed, not 0",
        "options.dashboard: true or false is needed, not 'yes'",
        "options.gpus: ray has no such option",
    ):
        assert any(line.startswith(part) for line in messages), (part, messages)


@pytest.mark.parametrize(
    ("job", "is_warned"),
    [
        ({}, True),
        ({"requirements": "requirements.txt"}, False),
        ({"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/ray:2"}, False),
    ],
)
def test_an_image_without_ray_is_told(job: dict[str, Any], is_warned: bool) -> None:
    source = dataclasses.replace(region().source, has_requirements=True)
    warnings = plan_job({"compute": COMPUTE, **job}, region(script=RAY, source=source)).warnings
    assert any("AWS's PyTorch images do not contain Ray" in line for line in warnings) is is_warned
    assert not any("do not contain Ray" in line for line in plan_ray(is_local=True).warnings)


class FakeRay(SimpleNamespace):
    """A cluster that gains one node with every look at its nodes."""

    def __init__(self, last: int) -> None:
        super().__init__(alive_nodes=0, last=last)

    def init(self, **arguments: Any) -> None:
        self.initialized = arguments

    def nodes(self) -> list[dict[str, Any]]:
        self.alive_nodes = min(self.alive_nodes + 1, self.last)
        dead_node = {"NodeManagerAddress": "10.0.0.9", "Alive": False}
        return [
            dead_node,
            *({"NodeManagerAddress": f"10.0.0.{n}", "Alive": True} for n in range(self.alive_nodes)),
        ]

    def shutdown(self) -> None:
        self.is_shut_down = True


def test_the_driver_waits_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """This tests the decision alone; real nodes join in tests/real/test_ray.py."""
    fake = FakeRay(3)
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    ray_driver.wait_for_nodes(3)
    assert (fake.alive_nodes, fake.is_shut_down) == (3, True)


def test_the_driver_tells_which_nodes_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(2))  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match=r"2 of 3 hosts have joined .* within 0.2 s: 10.0.0.0, 10.0.0.1"):
        ray_driver.wait_for_nodes(3, timeout_seconds=0.2)
