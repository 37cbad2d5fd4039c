"""strategy: tensorflow: the request, TF_CONFIG as each process gets it, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smlaunch.contract.launch_spec import ALL, LEADER
from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.render.plan import Plan
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.hyperparameters import read_hyperparameters
from smlaunch.runtime.process_commands import HostContext, ProcessCommand, build_rank_commands
from smlaunch.runtime.service_processes import plan_services
from tests.planner.fixtures import region
from tests.strategies.launch_specs import SHELL, spec_of
from tests.strategies.requests import documented_request, plan_job, refusals, request_of

TF = ScriptFacts(imports=frozenset({"tensorflow", "numpy"}))
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.21.0-cpu-py312-amzn2023-sagemaker"
HOSTS = ("algo-1", "algo-2", "algo-3")


def plan_tensorflow(**job: Any) -> Plan:
    return plan_job({"compute": {"hosts": 3, "instance_type": "ml.m5.xlarge"}, **job}, region(script=TF))


def host_context(name: str) -> HostContext:
    cluster = Cluster(HOSTS, name, "eth0", "homogeneousCluster", "", HOSTS, ())
    return HostContext(cluster, Paths("/opt/ml"), read_hyperparameters("/nowhere"), "python3", 1, 29500)


def config(command: ProcessCommand) -> Any:
    return json.loads(command.env[b"TF_CONFIG"])


def test_the_request() -> None:
    plan = plan_tensorflow()
    assert plan.strategy == "tensorflow"
    assert request_of(plan) == documented_request(IMAGE, "ml.m5.xlarge", 3)
    assert not [upload for upload in plan.uploads if upload.kind == "secret"]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_every_worker_knows_all_and_itself(index: int) -> None:
    spec = spec_of(plan_tensorflow())
    assert (spec.services, spec.ranks.runs_on, spec.ranks.rendezvous, spec.needs_secret) == (
        (),
        ALL,
        False,
        False,
    )
    assert spec.hang_seconds == 3600
    assert any(
        reason.rule == "limit.hang" and "for 1h" in reason.explanation for reason in plan_tensorflow().reasons
    )
    (command,) = build_rank_commands(spec, host_context(HOSTS[index]), {})
    assert config(command) == {
        # A port of its own for each: hosts of the endpoint share a network.
        "cluster": {"worker": ["algo-1:29508", "algo-2:29509", "algo-3:29510"]},
        "task": {"type": "worker", "index": index},
    }


def test_hang_is_the_jobs_where_it_says() -> None:
    assert spec_of(plan_tensorflow(limits={"hang": "5m"})).hang_seconds == 300


def test_parameter_servers() -> None:
    spec = spec_of(plan_tensorflow(options={"topology": "parameter-server"}, args=["--fast"]))
    assert (spec.ranks.runs_on, spec.needs_secret, spec.hang_seconds) == (LEADER, True, None)
    cluster = {
        "chief": ["algo-1:29504"],
        "worker": ["algo-1:29508", "algo-2:29509", "algo-3:29510"],
        "ps": ["algo-1:29536", "algo-2:29537", "algo-3:29538"],
    }
    (chief,) = build_rank_commands(spec, host_context("algo-1"), {})
    assert config(chief) == {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    assert chief.env[b"CUDA_VISIBLE_DEVICES"] == b""
    for index, name in enumerate(HOSTS):
        ps, worker = plan_services(spec, host_context(name), {})
        for step, role, port in ((ps, "ps", 29536 + index), (worker, "worker", 29508 + index)):
            assert step.command is not None
            assert (step.name, step.ready_address) == (f"tf-{role}", (name, port))
            assert step.command.argv == (b"python3", b"/opt/ml/code/train.py", b"--fast")
            assert config(step.command) == {"cluster": cluster, "task": {"type": role, "index": index}}
        assert ps.command is not None
        assert worker.command is not None
        assert ps.command.env[b"CUDA_VISIBLE_DEVICES"] == b""
        assert b"CUDA_VISIBLE_DEVICES" not in worker.command.env


def test_the_jobs_own_config_wins() -> None:
    spec = spec_of(plan_tensorflow(environment={"TF_CONFIG": "{}"}))
    assert "TF_CONFIG" not in dict(spec.ranks.env)


def test_what_is_refused() -> None:
    messages = refusals(
        {
            "entry": "src/train.sh",
            "strategy": "tensorflow",
            "options": {"topology": "ring"},
            "compute": {"hosts": 2, "instance_type": "ml.m5.xlarge", "processes_per_host": 2},
        },
        region(script=TF, source=SHELL),
    )
    for part in (
        "compute.processes_per_host: tensorflow starts one process per host, not 2; tf.distribute uses all",
        "strategy: tensorflow starts Python scripts; train.sh needs strategy: custom, or a .py around it",
        "options.topology: one of multi-worker, parameter-server is needed, not 'ring'",
    ):
        assert any(line.startswith(part) for line in messages), (part, messages)
