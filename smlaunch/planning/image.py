"""Chooses the image: the job's own, an algorithm's, or AWS's of the strategy's family, and says what is not
sure about it."""

from __future__ import annotations

from smlaunch.catalog import algorithms, images
from smlaunch.catalog.images import Image, UnknownImage
from smlaunch.catalog.instances import InstanceType
from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import Surroundings
from smlaunch.request import InputChannel
from smlaunch.strategies.base import Strategy

NOT_RUN = "The image is recorded, not run: ranks run on the Python that runs the endpoint."

JUMPSTART_PROGRAM = "transfer_learning.py"
"""The SageMaker SDK's TRAINING_ENTRY_POINT_SCRIPT_NAME."""

_THEIR_OWN = {"smp": "gpu", "pytorch-neuronx": "neuron", "huggingface-neuronx": "neuron"}
"""Families whose strategy says itself which instance types it runs on: it is not said twice."""

_ASKED = frozenset({"version", "region", "jumpstart"})
"""What the official package may know though the catalog does not."""


def choose_image(
    job: Job,
    strategy: Strategy,
    instance: tuple[str, InstanceType | None],
    surroundings: Surroundings,
    notes: Notes,
) -> str:
    """The image's URI; empty after a refusal."""
    is_run = surroundings.target == "aws" or surroundings.endpoint.runs_images
    # The endpoint's own table says that its images are not run better, where it does.
    is_told = "AlgorithmSpecification.TrainingImage" in surroundings.endpoint.honesty
    if job.image is None:
        return _found(job, strategy, instance, surroundings, notes, is_run, is_told)
    if job.entry is None:
        notes.because("image.own-program", "The image's own program runs; nothing of smlaunch's is put in.")
    elif is_run:
        notes.because(
            "image.given",
            "The job names its image; a python3 in it runs the runtime in place of its entry point.",
        )
    elif not is_told:
        notes.warn(f"image: {NOT_RUN}")
    return job.image


def what_jumpstart_adds(image: str, surroundings: Surroundings) -> tuple[dict[str, str], list[InputChannel]]:
    """Hyperparameters and channels that JumpStart's image trains with, where the official package told them:
    as the SageMaker SDK sends them."""
    resolved = surroundings.resolved_image
    if resolved is None or resolved.uri != image or resolved.script is None:
        return {}, []
    values = {"sagemaker_program": JUMPSTART_PROGRAM, "sagemaker_submit_directory": resolved.script}
    if resolved.model is None:
        return values, []
    return values, [InputChannel("model", resolved.model, content_type="application/x-sagemaker-model")]


def processor_of(instance: tuple[str, InstanceType | None]) -> str:
    """What the type's images are for; of a type that the catalog does not know, what its name says."""
    name, known = instance
    if known is not None:
        return "neuron" if known.is_neuron else "gpu" if known.accelerators else "cpu"
    family = name.split(".")[1]
    return "neuron" if family.startswith("trn") else "gpu" if family.startswith(("g", "p")) else "cpu"


def _found(
    job: Job,
    strategy: Strategy,
    instance: tuple[str, InstanceType | None],
    surroundings: Surroundings,
    notes: Notes,
    is_run: bool,
    is_told: bool,
) -> str:
    if job.algorithm is None and strategy.family is None:
        if strategy.for_algorithms:
            return ""  # it is the algorithm that is missing, and the strategy says so
        notes.refuse("image", f"{strategy.name} has no image of AWS's to fall back on; name one")
        return ""
    try:
        image = _looked_up(job, strategy, instance, surroundings, notes)
    except UnknownImage as error:
        return _asked(job, error, surroundings, notes)
    if image is None:
        return ""
    if is_run:
        _explain(job, strategy, image, notes)
    elif not is_told:
        notes.because("image.not-run", NOT_RUN)
    return image.uri


def _looked_up(
    job: Job,
    strategy: Strategy,
    instance: tuple[str, InstanceType | None],
    surroundings: Surroundings,
    notes: Notes,
) -> Image | None:
    """None where the job is refused for what is no question of the image. Raises UnknownImage."""
    region, partition = surroundings.region, surroundings.partition
    processor, version = processor_of(instance), job.framework_version
    if surroundings.target == "local" and not images.has_region(region):
        region, partition = "us-east-1", "aws"
    if job.algorithm is not None:
        algorithm = algorithms.find(job.algorithm)
        if algorithm is None:
            return None  # the strategy says so
        # What it does not run on is the strategy's to say; it has one image for all.
        fitting = processor if processor in images.PROCESSORS[:2] else "cpu"
        return algorithms.algorithm_image(algorithm, region, partition, fitting, version)
    family = strategy.family_on(processor == "gpu") or ""
    processor = _THEIR_OWN.get(family, processor)
    if processor == "neuron" and family not in _THEIR_OWN:
        if not any(problem.path == "strategy" for problem in notes.problems):
            told = f"{instance[0]} needs a Neuron image, and {strategy.name} has none; use strategy: neuron"
            notes.refuse("image", f"{told}, or name an image")
        return None
    if processor == "gpu" and images.processors(family) == ("cpu",):
        processor = "cpu"
        notes.warn(f"{images.title(family)} has no image for GPUs: those of {instance[0]} are not used.")
    version = version or strategy.image_version
    return images.training_image(family, region, partition, processor, version, instance[0])


def _asked(job: Job, error: UnknownImage, surroundings: Surroundings, notes: Notes) -> str:
    """What the official package knows, where it was asked; else the refusal."""
    resolved = surroundings.resolved_image
    if error.part in _ASKED and resolved is not None and resolved.uri is not None:
        notes.because(
            "image.resolved",
            f"The catalog does not know it ({error}); {resolved.source} does: {resolved.uri}.",
        )
        notes.warn(
            f"The image is what {resolved.source} makes of the name; that the registry has it is unconfirmed."
        )
        return resolved.uri
    by_version = error.part in ("version", "processor") and job.framework_version
    at_fault = "framework_version" if by_version else "image"
    told = str(error)
    if error.part not in _ASKED:
        told += "; name an image, such as one of your own registry"
    elif resolved is None:
        told += "; pip install 'smlaunch[sagemaker]', which may know it, or name an image"
    else:
        told += f"; {resolved.problem}; or name an image"
    notes.refuse(at_fault, told)
    return ""


def _explain(job: Job, strategy: Strategy, image: Image, notes: Notes) -> None:
    what = _what(job, image)
    brings = f"it brings {_python(image.python)}" if image.python else ""
    patched = f"patched until {image.end_of_patch}" if image.end_of_patch else ""
    if job.algorithm is not None:
        notes.because("image.algorithm", f"{what}, {patched}." if patched else f"{what}.")
    elif job.framework_version is not None:
        notes.because("image.framework-version", _sentence(f"{what}, {patched}" if patched else what, brings))
    elif strategy.image_version is not None:
        last = f"{what}, the last that is known to have what {strategy.name} needs"
        notes.because("image.strategy", _sentence(last, brings))
    elif patched:
        chosen = f"{what}, the version patched longest (until {image.end_of_patch})"
        notes.because("image.default", _sentence(chosen, brings))
    else:
        notes.because("image.default", _sentence(f"{what}, the newest that is known to be there", brings))
    if image.note:
        notes.warn(f"{image.uri.partition('/')[2]}: {image.note}.")


def _what(job: Job, image: Image) -> str:
    if job.algorithm is not None:
        algorithm = algorithms.find(job.algorithm)
        return f"The built-in algorithm's own image, {algorithm.name if algorithm else ''} {image.version}"
    processor = "Neuron" if image.processor == "neuron" else image.processor.upper()
    return f"AWS's {processor} image of {images.title(image.family)} {image.version}"


def _sentence(said: str, brings: str) -> str:
    return f"{said}; {brings}." if brings else f"{said}."


def _python(tag: str) -> str:
    """``py312`` -> ``Python 3.12``."""
    return f"Python {tag[2]}.{tag[3:]}"
