"""What a plan makes of the official package's answer about an image that the catalog does not know."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from smlaunch.discovery.sdk_images import resolve_image
from smlaunch.facts.discovered_facts import ResolvedImage
from smlaunch.job.model import Job
from tests.strategies.requests import channel, documented_request, plan_job, refusals, request_of

URI = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:9.9-cpu-amzn2023-sagemaker"
HOSTED = "763104351884.dkr.ecr.us-east-1.amazonaws.com/jumpstart-tabular-training:1.0"
JUMPSTART = {
    "algorithm": "catboost",
    "inputs": {"training": {"uri": "s3://b/t/", "content_type": "text/csv"}},
}


def test_its_image_is_taken_and_the_doubt_is_told() -> None:
    answer = ResolvedImage(URI, source="sagemaker 4.1.0")
    plan = plan_job({"framework_version": "9.9"}, resolved_image=answer)
    assert plan.image == URI
    explanation = {reason.rule: reason.explanation for reason in plan.reasons}["image.resolved"]
    assert explanation.startswith("The catalog does not know it (no PyTorch 9.9 image is known")
    assert f"sagemaker 4.1.0 does: {URI}" in explanation
    assert any("that the registry has it is unconfirmed" in warning for warning in plan.warnings)
    assert plan_job(JUMPSTART, resolved_image=answer).image == URI


def test_jumpstarts_image_comes_with_its_script_and_its_model() -> None:
    answer = ResolvedImage(
        HOSTED, None, "sagemaker 3.27.0", "s3://jumpstart/script.tar.gz", "s3://jumpstart/model/"
    )
    job = {**JUMPSTART, "hyperparameters": {"iterations": 100}, "compute": {"instance_type": "ml.m5.xlarge"}}
    plan = plan_job(job, resolved_image=answer)
    assert request_of(plan) == documented_request(
        HOSTED,
        "ml.m5.xlarge",
        1,
        hyperparameters={
            "sagemaker_program": "transfer_learning.py",
            "sagemaker_submit_directory": "s3://jumpstart/script.tar.gz",
            "iterations": "100",
        },
        channels=[
            channel("training", "s3://b/t/", "text/csv"),
            channel("model", "s3://jumpstart/model/", "application/x-sagemaker-model"),
        ],
        script=False,
    )
    assert not any("smlaunch does not add them" in warning for warning in plan.warnings)
    plan_of_named_image = plan_job({**job, "image": HOSTED}, resolved_image=None)
    assert any("smlaunch does not add them" in warning for warning in plan_of_named_image.warnings)


def test_its_problem_is_told() -> None:
    answer = ResolvedImage(problem="sagemaker 4.1.0 says: ValueError: Unsupported pytorch version: 9.9")
    (message,) = refusals({"framework_version": "9.9"}, resolved_image=answer)
    assert message.startswith("framework_version: no PyTorch 9.9 image is known")
    assert message.endswith(
        "; sagemaker 4.1.0 says: ValueError: Unsupported pytorch version: 9.9; or name an image"
    )
    (message,) = refusals(JUMPSTART, resolved_image=answer)
    assert message.startswith(
        "image: JumpStart hosts CatBoost, and its image is in no table; sagemaker 4.1.0 says: "
    )


def test_it_is_not_taken_for_what_the_catalog_knows() -> None:
    assert plan_job({}, resolved_image=ResolvedImage(URI)).image != URI
    # An image for GPUs of something that has none is no gap of the catalog's.
    job = {"strategy": "neuron", "compute": {"instance_type": "ml.g5.xlarge"}}
    assert all(
        message.startswith("compute.instance_type: ")
        for message in refusals(job, resolved_image=ResolvedImage(URI))
    )


@pytest.mark.skipif(find_spec("sagemaker") is not None, reason="the extra sagemaker is installed")
def test_without_the_extra_the_next_step_is_told() -> None:
    unknown = Job(entry="train.py", framework_version="9.9")
    answer = resolve_image(unknown, "us-east-1", is_region=True)
    assert answer == ResolvedImage(
        problem="the sagemaker package may know it: pip install '.[sagemaker]' in a checkout of smlaunch"
    )


def test_what_is_found_out_without_the_extra() -> None:
    def resolve(is_region: bool = True, region: str = "us-east-1", **fields: object) -> ResolvedImage | None:
        return resolve_image(Job.from_mapping(fields), region, is_region)

    assert resolve(entry="train.py") is None
    assert resolve(entry="train.py", framework_version="2.13") is None
    assert resolve(entry="train.py", framework_version="9.9", image="mine:1") is None
    assert resolve(algorithm="kmeans") is None
    assert resolve(algorithm="no such") is None
    neuron = resolve(entry="train.py", strategy="neuron", framework_version="9.9")
    assert neuron == ResolvedImage(problem="the sagemaker package resolves no Neuron image")
    resolved = resolve(algorithm="lightgbm")
    assert resolved is not None
    assert resolved.problem is not None
    assert resolved.problem.startswith("say which of JumpStart's models it is (options.model")
    local = resolve(is_region=False, algorithm="lightgbm", options={"model": "lightgbm-classification-model"})
    assert local == ResolvedImage(problem="JumpStart works in a region, not on a local endpoint")


def test_the_scripts_libraries_tell_what_is_asked_for() -> None:
    job = Job(entry="train.py", framework_version="2.21")
    assert resolve_image(job, "us-east-1", True, frozenset({"tensorflow.keras"})) is None
    assert resolve_image(job, "us-east-1", True, frozenset({"torch.distributed"})) is not None
