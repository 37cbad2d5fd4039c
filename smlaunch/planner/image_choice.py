"""Choose the image: the job's own, an algorithm's, or AWS's for the strategy; with its uncertainties."""

from __future__ import annotations

from smlaunch.api.request import InputChannel
from smlaunch.catalog import algorithms, images
from smlaunch.catalog.images import Image, UnknownImage
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.strategies.base import Strategy

IMAGE_NOT_RUN = "The image is recorded, not run: ranks run on the Python that runs the endpoint."

JUMPSTART_PROGRAM = "transfer_learning.py"
"""TRAINING_ENTRY_POINT_SCRIPT_NAME of the SageMaker SDK."""

_PROCESSOR_BY_FAMILY = {"smp": "gpu", "pytorch-neuronx": "neuron", "huggingface-neuronx": "neuron"}
"""Families whose strategy checks the instance types itself, so that no other check reports them."""

_RESOLVABLE_PARTS = frozenset({"version", "region", "jumpstart"})
"""What the official package may know even if the catalog does not."""


def choose_image(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: Facts,
    diagnostics: Diagnostics,
) -> str:
    """URI of the image; empty after adding a problem."""
    is_run = facts.target == "aws" or facts.endpoint.runs_images
    # The endpoint's support matrix reports that images are not run, if it has an entry for it.
    is_recorded = "AlgorithmSpecification.TrainingImage" in facts.endpoint.recorded_members
    if job.image is None:
        return _default_image(job, strategy, instance_choice, facts, diagnostics, is_run, is_recorded)
    if job.entry is None:
        diagnostics.add_reason(
            "image.own-program", "The image's own program runs; nothing of smlaunch's is put in."
        )
    elif is_run:
        diagnostics.add_reason(
            "image.given",
            "The job names its image; a python3 in it runs the runtime in place of its entry point.",
        )
    elif not is_recorded:
        diagnostics.add_warning(f"image: {IMAGE_NOT_RUN}")
    return job.image


def jumpstart_inputs(image: str, facts: Facts) -> tuple[dict[str, str], list[InputChannel]]:
    """Hyperparameters and channels of a JumpStart image, as the SageMaker SDK sends them."""
    resolved = facts.resolved_image
    if resolved is None or resolved.uri != image or resolved.script is None:
        return {}, []
    values = {"sagemaker_program": JUMPSTART_PROGRAM, "sagemaker_submit_directory": resolved.script}
    if resolved.model is None:
        return values, []
    return values, [InputChannel("model", resolved.model, content_type="application/x-sagemaker-model")]


def image_processor(instance_choice: InstanceChoice) -> str:
    """Processor that the image must support; for a type missing in the catalog, by the name of its family."""
    name, catalog_type = instance_choice
    if catalog_type is not None:
        return "neuron" if catalog_type.is_neuron else "gpu" if catalog_type.accelerators else "cpu"
    family = name.split(".")[1]
    return "neuron" if family.startswith("trn") else "gpu" if family.startswith(("g", "p")) else "cpu"


def _default_image(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: Facts,
    diagnostics: Diagnostics,
    is_run: bool,
    is_recorded: bool,
) -> str:
    """The image for the algorithm or strategy; empty after adding a problem."""
    if job.algorithm is None and strategy.image_family is None:
        if strategy.runs_algorithms:
            return ""  # the algorithm is missing; the strategy reports that
        diagnostics.add_problem("image", f"{strategy.name} has no image of AWS's to fall back on; name one")
        return ""
    try:
        image = _catalog_image(job, strategy, instance_choice, facts, diagnostics)
    except UnknownImage as error:
        return _resolved_image(job, error, facts, diagnostics)
    if image is None:
        return ""
    if is_run:
        _explain_image(job, strategy, image, diagnostics)
    elif not is_recorded:
        diagnostics.add_reason("image.not-run", IMAGE_NOT_RUN)
    return image.uri


def _catalog_image(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: Facts,
    diagnostics: Diagnostics,
) -> Image | None:
    """The catalog's image; None if the job has another problem. Raises UnknownImage."""
    region, partition = facts.region, facts.partition
    processor, version = image_processor(instance_choice), job.framework_version
    if facts.target == "local" and not images.has_region(region):
        region, partition = "us-east-1", "aws"
    if job.algorithm is not None:
        algorithm = algorithms.find_algorithm(job.algorithm)
        if algorithm is None:
            return None  # the strategy reports that
        # The strategy reports unsupported processors; the algorithm has one image for all.
        image_kind = processor if processor in images.PROCESSORS[:2] else "cpu"
        return algorithms.algorithm_image(algorithm, region, partition, image_kind, version)
    family = strategy.image_family_for(processor == "gpu") or ""
    processor = _PROCESSOR_BY_FAMILY.get(family, processor)
    if processor == "neuron" and family not in _PROCESSOR_BY_FAMILY:
        if not any(problem.path == "strategy" for problem in diagnostics.problems):
            message = (
                f"{instance_choice.name} needs a Neuron image, and {strategy.name} has none; use strategy: "
                "neuron"
            )
            diagnostics.add_problem("image", f"{message}, or name an image")
        return None
    if processor == "gpu" and images.family_processors(family) == ("cpu",):
        processor = "cpu"
        diagnostics.add_warning(
            f"{images.family_title(family)} has no image for GPUs: those of {instance_choice.name} are not "
            "used."
        )
    version = version or strategy.image_version
    return images.training_image(family, region, partition, processor, version, instance_choice.name)


def _resolved_image(job: Job, error: UnknownImage, facts: Facts, diagnostics: Diagnostics) -> str:
    """Image that the official package resolved; otherwise adds a problem and returns an empty string."""
    resolved = facts.resolved_image
    if error.unknown_part in _RESOLVABLE_PARTS and resolved is not None and resolved.uri is not None:
        diagnostics.add_reason(
            "image.resolved",
            f"The catalog does not know it ({error}); {resolved.source} does: {resolved.uri}.",
        )
        diagnostics.add_warning(
            f"{resolved.source} derived the image from its name; that the registry has it is unconfirmed."
        )
        return resolved.uri
    version_is_wrong = error.unknown_part in ("version", "processor") and job.framework_version
    field = "framework_version" if version_is_wrong else "image"
    message = str(error)
    if error.unknown_part not in _RESOLVABLE_PARTS:
        message += "; name an image, such as one of your own registry"
    elif resolved is None:
        message += "; pip install 'smlaunch[sagemaker]', which may know it, or name an image"
    else:
        message += f"; {resolved.problem}; or name an image"
    diagnostics.add_problem(field, message)
    return ""


def _explain_image(job: Job, strategy: Strategy, image: Image, diagnostics: Diagnostics) -> None:
    """Add the reason for the image."""
    description = _describe_image(job, image)
    python_text = f"it contains {_python_version(image.python)}" if image.python else ""
    patch_text = f"patched until {image.end_of_patch}" if image.end_of_patch else ""
    if job.algorithm is not None:
        diagnostics.add_reason(
            "image.algorithm", f"{description}, {patch_text}." if patch_text else f"{description}."
        )
    elif job.framework_version is not None:
        diagnostics.add_reason(
            "image.framework-version",
            _join_sentence(f"{description}, {patch_text}" if patch_text else description, python_text),
        )
    elif strategy.image_version is not None:
        last_image = f"{description}, the last that is known to have what {strategy.name} needs"
        diagnostics.add_reason("image.strategy", _join_sentence(last_image, python_text))
    elif patch_text:
        chosen_image = f"{description}, the version patched longest (until {image.end_of_patch})"
        diagnostics.add_reason("image.default", _join_sentence(chosen_image, python_text))
    else:
        diagnostics.add_reason(
            "image.default", _join_sentence(f"{description}, the newest confirmed one", python_text)
        )
    if image.note:
        diagnostics.add_warning(f"{image.uri.partition('/')[2]}: {image.note}.")


def _describe_image(job: Job, image: Image) -> str:
    """The image as the beginning of a sentence."""
    if job.algorithm is not None:
        algorithm = algorithms.find_algorithm(job.algorithm)
        return f"The built-in algorithm's own image, {algorithm.name if algorithm else ''} {image.version}"
    processor = "Neuron" if image.processor == "neuron" else image.processor.upper()
    return f"AWS's {processor} image of {images.family_title(image.family)} {image.version}"


def _join_sentence(description: str, python_text: str) -> str:
    return f"{description}; {python_text}." if python_text else f"{description}."


def _python_version(python_tag: str) -> str:
    """``py312`` -> ``Python 3.12``."""
    return f"Python {python_tag[2]}.{python_tag[3:]}"
