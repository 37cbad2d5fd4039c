"""neuron by table: every published image and every Trainium type of the reference, sections 4.1 and 4.5."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from smlaunch.facts.discovered_facts import ScriptFacts
from tests.strategies.requests import documented_request, plan_job, refusals, request_of, torchrun_line
from tests.tables import table

REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
USES_XLA = ScriptFacts(imports=frozenset({"torch", "torch_xla.core.xla_model"}))

CORES = {"ml.trn1.2xlarge": 2, "ml.trn1.32xlarge": 32, "ml.trn1n.32xlarge": 32, "ml.trn2.48xlarge": 64}
"""Ranks per host: NeuronCores, two to a Trainium device; on Trainium2 eight physical ones to a device, of
which Neuron's default makes four."""

TAGS = {
    None: "2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04",
    "2.6": "2.6.0-neuronx-py310-sdk2.23.0-ubuntu22.04",
    "2.7": "2.7.0-neuronx-py310-sdk2.25.0-ubuntu22.04",
    "2.7.0-sdk2.24.1": "2.7.0-neuronx-py310-sdk2.24.1-ubuntu22.04",
    "2.7.0-sdk2.25.0": "2.7.0-neuronx-py310-sdk2.25.0-ubuntu22.04",
    "2.8": "2.8.0-neuronx-py311-sdk2.26.1-ubuntu22.04",
    "2.9.0-sdk2.27.1": "2.9.0-neuronx-py312-sdk2.27.1-ubuntu24.04",
    "2.9.0-sdk2.28.0": "2.9.0-neuronx-py312-sdk2.28.0-ubuntu24.04",
    "2.9.0-sdk2.29.0": "2.9.0-neuronx-py312-sdk2.29.0-ubuntu24.04",
    "2.9.0-sdk2.29.1": "2.9.0-neuronx-py312-sdk2.29.1-ubuntu24.04",
    "2.9.0-sdk2.30.0": "2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04",
    "2.9": "2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04",
}

HUGGING_FACE = (
    "huggingface-pytorch-training-neuronx:2.1.2-transformers4.48.1-neuronx-py310-sdk2.20.0-ubuntu20.04",
    "huggingface-pytorch-training-neuronx:2.7.0-transformers4.51.0-neuronx-py310-sdk2.24.1-ubuntu22.04",
    "huggingface-pytorch-training-neuronx:2.8.0-transformers4.55.4-neuronx-py310-sdk2.26.0-ubuntu22.04",
)


def job(instance_type: str = "ml.trn1.32xlarge", hosts: int = 2, **fields: Any) -> dict[str, Any]:
    return {"strategy": "neuron", "compute": {"hosts": hosts, "instance_type": instance_type}, **fields}


@table(("version", "instance_type"), itertools.product(TAGS, CORES))
def test_the_request(version: str | None, instance_type: str) -> None:
    version_field = {} if version is None else {"framework_version": version}
    plan = plan_job(job(instance_type, **version_field), script=USES_XLA)
    image = f"{REGISTRY}/pytorch-training-neuronx:{TAGS[version]}"
    assert request_of(plan) == documented_request(image, instance_type, 2)
    assert plan.processes_per_host == CORES[instance_type]
    assert any("the SageMaker SDK cannot resolve it" in warning for warning in plan.warnings)


@table(("image", "instance_type"), itertools.product(HUGGING_FACE, CORES))
def test_images_of_hugging_face(image: str, instance_type: str) -> None:
    plan = plan_job(job(instance_type, image=f"{REGISTRY}/{image}"), script=USES_XLA)
    assert request_of(plan) == documented_request(f"{REGISTRY}/{image}", instance_type, 2)


@pytest.mark.parametrize("instance_type", CORES)
def test_the_launch_line(instance_type: str, tmp_path: Path) -> None:
    assert torchrun_line(plan_job(job(instance_type), script=USES_XLA), tmp_path)[:10] == [
        *("python3", "-m", "torch.distributed.run", "--no_python", "--max_restarts=0", "--nnodes=2"),
        *("--node_rank=1", f"--nproc_per_node={CORES[instance_type]}", "--master_addr=algo-1"),
        "--master_port=29500",
    ]


def test_a_run_that_only_compiles(tmp_path: Path) -> None:
    plan = plan_job(job(options={"parallel_compile": True}), script=USES_XLA)
    line = torchrun_line(plan, tmp_path)
    assert line[:4] == ["neuron_parallel_compile", "python3", "-m", "torch.distributed.run"]
    assert "HyperParameters" not in request_of(plan)


@table("instance_type", ["ml.g5.xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge", "ml.m5.xlarge", "ml.c5.xlarge"])
def test_other_instance_types(instance_type: str) -> None:
    (message,) = refusals(job(instance_type))
    assert message.startswith(f"compute.instance_type: {instance_type} has no NeuronCores; take a trn type")


@pytest.mark.parametrize("strategy", ["ddp", "smddp", "smp"])
def test_other_strategies_on_trainium(strategy: str) -> None:
    messages = refusals({"strategy": strategy, "compute": {"instance_type": "ml.trn1.32xlarge"}})
    assert messages == [line for line in messages if line.startswith("strategy: ")]
    assert "take strategy: neuron" in messages[0]


@pytest.mark.parametrize("version", ["2.5", "2.10", "2.9.0-sdk2.99"])
def test_other_versions(version: str) -> None:
    (message,) = refusals(job(framework_version=version))
    assert message.startswith("framework_version: ")


def test_what_is_warned_of() -> None:
    assert any("train.py does not import torch_xla" in w for w in plan_job(job()).warnings)
    second = plan_job(job("ml.trn2.48xlarge"), script=USES_XLA).warnings
    assert any("128 physical NeuronCores" in w and "64 logical ones (unconfirmed)" in w for w in second)
    (message,) = refusals(job(options={"parallel_compile": "yes"}))
    assert message == "options.parallel_compile: true or false is needed, not 'yes'"
