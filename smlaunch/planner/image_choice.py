"""Choose the image: the job's own, an algorithm's, or AWS's for the strategy; with its uncertainties, and a
warning near or past the end of its security patches. Pure: today's date is a fact.
"""

from __future__ import annotations

from datetime import date

from smlaunch.api.request_builder import InputChannel
from smlaunch.catalog import algorithms, images
from smlaunch.catalog.accelerators import find_cuda_mismatch
from smlaunch.catalog.image_address import parse_image_address
from smlaunch.catalog.images import Image, UnknownImage
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.catalog.type_families import why_no_job
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import Diagnostics
from smlaunch.strategies.base import Strategy

IMAGE_NOT_RUN = "The image is recorded, not run: ranks run on the Python that runs the endpoint."

JUMPSTART_PROGRAM = "transfer_learning.py"
"""TRAINING_ENTRY_POINT_SCRIPT_NAME of the SageMaker SDK."""

_PROCESSOR_BY_FAMILY = {"smp": "gpu", "pytorch-neuronx": "neuron", "huggingface-neuronx": "neuron"}
"""Families whose strategy checks the instance types itself, so that no other check reports them."""

_PARTS_THE_PACKAGE_MAY_KNOW = frozenset({"version", "region", "jumpstart"})
"""What the official package may know even if the catalog does not."""


def choose_image(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: DiscoveredFacts,
    diagnostics: Diagnostics,
) -> str:
    """Return the URI of the image that the hosts run: the job's own, that of a built-in algorithm, or AWS's
    for the strategy (how the program is started, such as ``ddp``); empty after adding a problem. A local
    endpoint without containers only records it."""
    # Hosts are containers of the image; otherwise processes of this machine.
    runs_images = facts.target == "aws" or facts.endpoint.runs_images
    # An endpoint imitates the service on this machine. Members of a request that it only records have no
    # effect; it warns of them itself.
    endpoint_warns_of_image = "AlgorithmSpecification.TrainingImage" in facts.endpoint.recorded_members
    if job.image is None:
        image = _default_image(
            job=job,
            strategy=strategy,
            instance_choice=instance_choice,
            facts=facts,
            diagnostics=diagnostics,
            runs_images=runs_images,
            endpoint_warns_of_image=endpoint_warns_of_image,
        )
        return _image_of_registry(image, facts.team.staging_value("image_registry"))
    if job.entry is None:
        diagnostics.add_reason(
            "image.own-program", "The image's own program runs; nothing of smlaunch's is put in."
        )
    elif runs_images:
        diagnostics.add_reason(
            "image.given",
            "The job names its image; a python3 in it runs the runtime in place of its entry point.",
        )
    # Only recorded: one line says so.
    elif not endpoint_warns_of_image:
        diagnostics.add_warning(f"image: {IMAGE_NOT_RUN}")
    return job.image


def _image_of_registry(image: str, registry: str | None) -> str:
    """Return the address of the image's copy in a team's registry; the image itself without one."""
    return image if registry is None or not image else f"{registry.rstrip('/')}/{image.partition('/')[2]}"


def jumpstart_inputs(image: str, facts: DiscoveredFacts) -> tuple[dict[str, str], list[InputChannel]]:
    """Return the hyperparameters and channels that a JumpStart image needs, as the SageMaker SDK sends them;
    none for other images. JumpStart is SageMaker's catalog of models."""
    # What the SageMaker SDK says of the job's model; None if discovery did not ask it.
    resolved = facts.resolved_image
    if resolved is None or resolved.uri != image or resolved.script is None:
        return {}, []
    hyperparameters = {
        "sagemaker_program": JUMPSTART_PROGRAM,
        "sagemaker_submit_directory": resolved.script,
    }
    if resolved.model is None:
        return hyperparameters, []
    model_channel = InputChannel(
        name="model", uri=resolved.model, content_type="application/x-sagemaker-model"
    )
    return hyperparameters, [model_channel]


def _default_image(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: DiscoveredFacts,
    diagnostics: Diagnostics,
    runs_images: bool,
    endpoint_warns_of_image: bool,
) -> str:
    """Return the URI of the image for a job that names none: that of its algorithm, or AWS's for its
    strategy; empty after adding a problem. ``runs_images``: hosts are containers of the image; otherwise it
    is only recorded. ``endpoint_warns_of_image``: the endpoint itself says so in another message."""
    # AWS's images come in families, such as "pytorch"; some strategies run on none of them.
    if job.algorithm is None and strategy.image_family is None:
        # A strategy for built-in algorithms, and the job names none.
        if strategy.runs_algorithms:
            return ""  # the strategy reports that
        diagnostics.add_problem("image", f"{strategy.name} has no image of AWS's to fall back on; name one")
        return ""
    try:
        image = _catalog_image(job, strategy, instance_choice, facts, diagnostics)
    except UnknownImage as error:
        return _image_from_sagemaker_package(job, error, facts, diagnostics)
    if image is None:
        return ""
    if runs_images:
        _explain_image(job, strategy, image, diagnostics)
    elif not endpoint_warns_of_image:
        diagnostics.add_reason("image.not-run", IMAGE_NOT_RUN)
    return image.uri


def _catalog_image(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: DiscoveredFacts,
    diagnostics: Diagnostics,
) -> Image | None:
    """Return the catalog's image for the job's algorithm or strategy, for its region and instance type; None
    if the job has another problem, which is reported. Raises UnknownImage."""
    region, partition = facts.region, facts.partition
    # A local run only records an image, of any region: the name of its own may be invented. A partition is a
    # separate part of AWS, such as aws-cn.
    if facts.target == "local" and not images.is_region_known(region):
        region, partition = "us-east-1", "aws"
    processor = instance_choice.processor
    if job.algorithm is not None:
        algorithm = algorithms.find_algorithm(job.algorithm)
        if algorithm is None:
            return None  # the strategy reports that
        # The strategy reports unsupported processors; the algorithm has one image for all.
        algorithm_processor = processor if processor in ("cpu", "gpu") else "cpu"
        return algorithms.find_algorithm_image(
            algorithm, region, partition, algorithm_processor, job.framework_version
        )
    # Such as "pytorch". The caller has checked that the strategy has one.
    family = strategy.image_family_for(has_accelerators=processor == "gpu") or ""
    family_processor = _processor_of_family(family, processor, strategy, instance_choice, diagnostics)
    if family_processor is None:
        return None
    version = job.framework_version or strategy.image_version
    image = images.find_training_image(
        family, region, partition, family_processor, version, instance_choice.name
    )
    if facts.target == "aws":
        _check_cuda_of_image(job, strategy, image, instance_choice, diagnostics)
    return image


def _check_cuda_of_image(
    job: Job, strategy: Strategy, image: Image, instance_choice: InstanceChoice, diagnostics: Diagnostics
) -> None:
    """Add a problem if the CUDA of the chosen image has no code for the GPUs of the instance type, unless a
    problem says that no job can run on the type."""
    cuda = parse_image_address(image.uri).cuda
    accelerator = instance_choice.catalog_entry and instance_choice.catalog_entry.accelerator
    mismatch = find_cuda_mismatch(accelerator, cuda) if accelerator and cuda else None
    if mismatch is None:
        return
    rejection = why_no_job(instance_choice.name, strategy.job_kind.trains_model)
    if rejection is not None and any(
        problem.message.startswith(rejection) for problem in diagnostics.problems
    ):
        return
    title = f"{images.family_title(image.family)} {image.version}"
    field = job.compute.field_of_types if job.framework_version is None else "framework_version"
    diagnostics.add_problem(
        field, f"AWS's image of {title}: {mismatch}; name a framework_version with that, or another type"
    )


def _processor_of_family(
    family: str,
    processor: str,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    diagnostics: Diagnostics,
) -> str | None:
    """Return the processor of the image to take from a family of AWS's images, such as ``pytorch``: ``cpu``,
    ``gpu`` or ``neuron``; None after adding a problem if no image of the family suits the instance type.
    ``processor``: that of the instance type."""
    # Families with images for one processor only; their strategy checks the instance type itself.
    if family in _PROCESSOR_BY_FAMILY:
        return _PROCESSOR_BY_FAMILY[family]
    if processor == "neuron":
        is_rejected = any(instance_choice.name in problem.message for problem in diagnostics.problems)
        if not is_rejected:
            diagnostics.add_problem(
                "image",
                f"{instance_choice.name} needs a Neuron image, and {strategy.name} has none; use strategy: "
                "neuron, or name an image",
            )
        return None
    if processor == "gpu" and images.family_processors(family) == ("cpu",):
        diagnostics.add_warning(
            f"{images.family_title(family)} has no image for GPUs: those of {instance_choice.name} are not "
            "used."
        )
        return "cpu"
    return processor


def _image_from_sagemaker_package(
    job: Job, error: UnknownImage, facts: DiscoveredFacts, diagnostics: Diagnostics
) -> str:
    """Return the URI that the official ``sagemaker`` package has for an image that the catalog does not know;
    otherwise add a problem and return an empty string. ``error.unknown_part``: what the catalog does not
    know, such as ``version`` or ``region``."""
    # What discovery asked the package; None if it is not installed.
    resolved = facts.resolved_image
    # The package lists versions, regions and JumpStart models that the catalog may lack.
    may_package_know = error.unknown_part in _PARTS_THE_PACKAGE_MAY_KNOW
    if may_package_know and resolved is not None and resolved.uri is not None:
        diagnostics.add_reason(
            "image.resolved",
            f"The catalog does not know it ({error}); {resolved.source} does: {resolved.uri}.",
        )
        diagnostics.add_warning(
            f"{resolved.source} derived the image from its name; that the registry has it is unconfirmed."
        )
        return resolved.uri
    if not may_package_know:
        remedy = "name an image, such as one of your own registry"
    elif resolved is None:
        remedy = "pip install '.[sagemaker]' in a checkout of smlaunch, which may know it, or name an image"
    else:
        remedy = f"{resolved.problem}; or name an image"
    is_about_version = error.unknown_part in ("version", "processor") and job.framework_version
    job_field = "framework_version" if is_about_version else "image"
    diagnostics.add_problem(job_field, f"{error}; {remedy}")
    return ""


def _explain_image(job: Job, strategy: Strategy, image: Image, diagnostics: Diagnostics) -> None:
    """Add the reason why AWS's image was chosen, with its Python and the end of its security patches, and its
    note as a warning: what is unconfirmed about it. ``_join_sentence`` appends ``python_text``, if any."""
    description = _describe_image(job, image)
    python_text = f"it contains {_python_version(image.python)}" if image.python else ""
    patch_end = image.end_of_patch
    description_with_patches = f"{description}, patched until {patch_end}" if patch_end else description
    if job.algorithm is not None:
        diagnostics.add_reason("image.algorithm", f"{description_with_patches}.")
    elif job.framework_version is not None:
        diagnostics.add_reason(
            "image.framework-version", _join_sentence(description_with_patches, python_text)
        )
    elif strategy.image_version is not None:
        image_text = f"{description}, the last that is known to have what {strategy.name} needs"
        diagnostics.add_reason("image.strategy", _join_sentence(image_text, python_text))
    else:
        merit = (
            f"the version patched longest (until {patch_end})" if patch_end else "the newest confirmed one"
        )
        diagnostics.add_reason("image.default", _join_sentence(f"{description}, {merit}", python_text))
    if image.note:
        diagnostics.add_warning(f"{image.uri.partition('/')[2]}: {image.note}.")


def _describe_image(job: Job, image: Image) -> str:
    """Return what the image is, as the beginning of a sentence: ``AWS's GPU image of PyTorch 2.8``. AWS's
    images come in families, such as ``pytorch``, whose title is PyTorch."""
    if job.algorithm is not None:
        # The catalog's entry of the built-in algorithm, for its readable name.
        algorithm = algorithms.find_algorithm(job.algorithm)
        algorithm_name = algorithm.name if algorithm else ""
        return f"The built-in algorithm's own image, {algorithm_name} {image.version}"
    processor_name = "Neuron" if image.processor == "neuron" else image.processor.upper()
    return f"AWS's {processor_name} image of {images.family_title(image.family)} {image.version}"


def _join_sentence(description: str, python_text: str) -> str:
    return f"{description}; {python_text}." if python_text else f"{description}."


def _python_version(python_tag: str) -> str:
    """``py312`` -> ``Python 3.12``."""
    return f"Python {python_tag[2]}.{python_tag[3:]}"


DAYS_OF_WARNING = 30
"""Days before the end of patches from which the plan warns."""


def warn_of_patch_end(image: str, facts: DiscoveredFacts, diagnostics: Diagnostics) -> None:
    """Warn if AWS no longer patches the image, or soon stops. No warning for images that the endpoint only
    records, or that the catalog does not know."""
    # Framework, version and last day of patches; None if the catalog does not know the image.
    patch_support, today = images.find_patch_support(image), facts.today
    runs_images = facts.target == "aws" or facts.endpoint.runs_images
    if patch_support is None or today is None or not runs_images:
        return
    days_left = (date.fromisoformat(patch_support.until) - today).days
    image_text = f"AWS's image of {patch_support.title} {patch_support.version}"
    if days_left < 0:
        diagnostics.add_warning(
            f"{image_text} has had no security patches since {patch_support.until}; take a newer version."
        )
    # Within 30 days.
    elif days_left <= DAYS_OF_WARNING:
        diagnostics.add_warning(
            f"{image_text} gets its last security patches on {patch_support.until}; plan for a newer version."
        )
