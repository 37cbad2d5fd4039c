"""``strategy: huggingface``: DDP's ranks, in the image that has the libraries if there is one."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.facts.discovered_facts import ScriptFacts
from tests.planner.fixtures import TORCH, local, plan, region
from tests.tables import table

TRAINER = ScriptFacts(imports=frozenset({"torch", "transformers", "transformers.Trainer"}))
ACCELERATE = ScriptFacts(imports=frozenset({"torch.distributed", "accelerate.Accelerator"}))


@pytest.mark.parametrize(("script", "library"), [(TRAINER, "transformers"), (ACCELERATE, "accelerate")])
def test_on_gpus_it_takes_the_image_that_brings_both(script: ScriptFacts, library: str) -> None:
    job_plan = plan({"compute": {"instance_type": "ml.g5.12xlarge", "hosts": 2}}, region(script=script))
    assert (job_plan.strategy, job_plan.processes_per_host) == ("huggingface", 4)
    assert f"strategy.{library}" in [reason.rule for reason in job_plan.reasons]
    assert job_plan.image == (
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-training:"
        "2.9.0-transformers5.3.0-gpu-py312-cu130-ubuntu22.04"
    )
    spec = job_plan.planned_jobs[0].launch_spec
    assert spec is not None
    assert (spec.ranks.rendezvous, spec.ranks.per_host, spec.hang_seconds) == (True, 4, 3600)
    assert job_plan.requests[0]["AlgorithmSpecification"]["ContainerEntrypoint"][0] == "python3"


def test_without_gpus_it_takes_pytorchs_image_and_says_what_that_lacks() -> None:
    cpu_plan = plan({"compute": {"instance_type": "ml.c5.xlarge"}}, region(script=TRAINER))
    assert "/pytorch:" in cpu_plan.image
    assert any("neither transformers nor accelerate" in warning for warning in cpu_plan.warnings)
    own_image_plan = plan(
        {
            "compute": {"instance_type": "ml.c5.xlarge"},
            "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
            "strategy": "huggingface",
        },
        region(script=TRAINER),
    )
    assert not any("neither transformers" in warning for warning in own_image_plan.warnings)
    assert not any("neither transformers" in warning for warning in plan({}, local(script=TRAINER)).warnings)


@table(
    ("job", "script", "is_set"),
    [
        ({"compute": {"hosts": 2}}, TRAINER, True),
        ({"compute": {"hosts": 1, "processes_per_host": 2}}, ACCELERATE, True),
        ({"compute": {"hosts": 2}, "strategy": "ddp"}, ACCELERATE, True),
        ({"compute": {"hosts": 2}, "strategy": "ddp"}, TORCH, False),
        ({"compute": {"hosts": 2}, "environment": {"ACCELERATE_USE_CPU": "false"}}, TRAINER, False),
        ({"compute": {"hosts": 1}}, TRAINER, False),
        ({"compute": {"hosts": 2}, "strategy": "deepspeed"}, TRAINER, False),
        ({"compute": {"hosts": 2, "instance_type": "ml.g5.xlarge"}}, TRAINER, False),
    ],
)
def test_ranks_without_accelerators_are_told_to_join_on_the_cpu(
    job: dict[str, Any], script: ScriptFacts, is_set: bool
) -> None:
    job_plan = plan(job, region(script=script))
    spec = job_plan.planned_jobs[0].launch_spec
    assert spec is not None
    assert (("ACCELERATE_USE_CPU", "true") in spec.ranks.env) == is_set
    assert ("huggingface.cpu" in [reason.rule for reason in job_plan.reasons]) == is_set
