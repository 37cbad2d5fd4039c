"""Rules about combinations of image, strategy and instance type, and about retired images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from smlaunch.catalog import instances
from smlaunch.catalog.accelerators import find_cuda_mismatch
from smlaunch.catalog.image_address import (
    DOCKER_HUB,
    PUBLIC_GALLERY,
    ImageAddress,
    dns_suffix_of,
    parse_image_address,
    registry_host_elsewhere,
)
from smlaunch.catalog.images import registry_accounts
from smlaunch.catalog.type_families import family_of
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import UNKNOWN_ACCOUNT
from smlaunch.planner.plan_context import PlanContext, is_neuron, stated_instance_types
from smlaunch.planner.rules.rule import Problems, rule


class Framework(NamedTuple):
    """The framework in an AWS image."""

    name: str
    retired: bool = False
    """AWS neither patches nor releases its images any more."""


_FRAMEWORKS = {
    "pytorch": Framework("PyTorch"),
    "pytorch-training": Framework("PyTorch"),
    "pytorch-training-neuronx": Framework("PyTorch"),
    "sagemaker-pytorch": Framework("PyTorch"),
    "huggingface-pytorch-training": Framework("PyTorch"),
    "huggingface-pytorch-training-neuronx": Framework("PyTorch"),
    "smdistributed-modelparallel": Framework("PyTorch"),
    "tensorflow-training": Framework("TensorFlow"),
    "sagemaker-tensorflow": Framework("TensorFlow"),
    "sagemaker-tensorflow-scriptmode": Framework("TensorFlow"),
    "huggingface-tensorflow-training": Framework("TensorFlow"),
    "sagemaker-scikit-learn": Framework("scikit-learn"),
    "sagemaker-xgboost": Framework("XGBoost"),
    "sagemaker-spark-processing": Framework("Spark"),
    "mxnet-training": Framework("MXNet", True),
    "sagemaker-mxnet": Framework("MXNet", True),
    "sagemaker-chainer": Framework("Chainer", True),
    "sagemaker-rl-tensorflow": Framework("RL", True),
    "sagemaker-rl-mxnet": Framework("RL", True),
    "sagemaker-rl-coach-container": Framework("RL", True),
    "sagemaker-rl-ray-container": Framework("RL", True),
    "sagemaker-rl-vw-container": Framework("RL", True),
}
"""By the name of AWS's repository; the content of other images is unknown."""

_TRAINING_COMPILER = "trcomp"
_NEURON_NAME_PART = "neuron"


def repository_name_of(image: str) -> str:
    """``pytorch-training`` of ``<account>.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10.0-...``."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _stated_image(context: PlanContext) -> ImageAddress | None:
    """Return the image that the job names for hosts of AWS's; None without one, and for hosts of this
    machine, which pull from any registry, or run no image."""
    is_for_aws = context.facts.target == "aws"
    return parse_image_address(context.job.image) if context.job.image and is_for_aws else None


def _own_registry(context: PlanContext) -> str:
    """Return the registry of the job's account and region, for an example."""
    facts = context.facts
    account = "ACCOUNT" if facts.account == UNKNOWN_ACCOUNT else facts.account
    return f"{account}.dkr.ecr.{facts.region}.{dns_suffix_of(facts.partition) or 'amazonaws.com'}"


@rule(
    "image.pull",
    summary="an image of a registry that training cannot pull from: Docker Hub, the public gallery of ECR",
    source="https://github.com/aws/aws-sdk/issues/117",
    quote="TrainingImageConfig ... must be provided when using a training image from a private Docker",
    fields=("image", "image_registry_credentials", "request"),
)
def reject_unreachable_registry(context: PlanContext) -> Problems:
    """A private registry of another kind is reached through the job's network."""
    address, job = _stated_image(context), context.job
    requested_algorithm = job.request.get("AlgorithmSpecification")
    names_registry = job.image_registry_credentials is not None or (
        isinstance(requested_algorithm, Mapping) and "TrainingImageConfig" in requested_algorithm
    )
    if address is None or address.ecr_host is not None or names_registry:
        return
    if address.registry == PUBLIC_GALLERY:
        reason = f"{PUBLIC_GALLERY} is ECR's public gallery, and jobs pull from private registries only"
    elif address.registry == DOCKER_HUB:
        reason = f"its registry is {DOCKER_HUB} (Docker Hub, the default), and jobs pull from Amazon ECR"
    else:
        reason = (
            f"{address.registry} is no registry of Amazon ECR, which is what jobs pull from without "
            "image_registry_credentials"
        )
    yield Problem("image", f"{reason}; {_copy_advice(address, context)}")


def _copy_advice(address: ImageAddress, context: PlanContext) -> str:
    """Return where the job can get the image from, as a clause."""
    name = repository_name_of(address.reference)
    if address.registry == PUBLIC_GALLERY and name in _FRAMEWORKS and address.tag:
        facts = context.facts
        account = registry_accounts("dlc").get(facts.region)
        suffix = dns_suffix_of(facts.partition)
        if account is not None and suffix is not None:
            return f"AWS has it for jobs too: {account}.dkr.ecr.{facts.region}.{suffix}/{name}:{address.tag}"
    return f"push a copy to a repository of your own, such as {_own_registry(context)}/{address.reference}"


@rule(
    "image.region",
    summary="an image in a registry of another region or partition",
    source="https://github.com/aws-samples/mlops-amazon-sagemaker/issues/9",
    quote="Invalid DNS suffix ... in training image. Please provide the valid <region>.<dns-suffix>",
    fields=("image",),
    facts=("account",),
)
def reject_image_of_other_region(context: PlanContext) -> Problems:
    address = _stated_image(context)
    host = None if address is None else address.ecr_host
    if address is None or host is None:
        return
    region, suffix = context.facts.region, dns_suffix_of(context.facts.partition)
    is_other_suffix = suffix is not None and host.suffix not in (suffix, "on.aws")
    if host.region == region and not is_other_suffix:
        return
    known_host = registry_host_elsewhere(host, region, context.facts.partition)
    if host.region == region:
        reason = f"registries of {region} end in {suffix}, and not in {host.suffix}"
        advice = f"name {known_host or f'{host.account}.dkr.ecr.{region}.{suffix}'}/{address.reference}"
    else:
        reason = f"its registry is in {host.region}, and a job in {region} pulls from that region only"
        advice = (
            f"AWS has it there too: {known_host}/{address.reference}"
            if known_host
            else f"push a copy to {region}, such as {_own_registry(context)}/{address.reference}"
        )
    yield Problem("image", f"{reason}; {advice}")


_INFERENCE_NAMES = ("inference", "serving", "tritonserver", "tgi", "lmi")
"""Parts of the names of AWS's repositories with images that serve a model."""


@rule(
    "image.inference",
    summary="an image of AWS's that serves models, for a job that trains one",
    source="https://github.com/aws/sagemaker-python-sdk/issues/1111",
    quote="the training image is used for training a model ... the inference one ... for making predictions",
    fields=("image", "workload", "strategy", "entry"),
    may_be_allowed=True,
    allowed_when="if the script needs nothing else",
)
def reject_image_for_inference(context: PlanContext) -> Problems:
    address = _stated_image(context)
    is_for_inference = (
        address is not None
        and address.is_of_aws
        and not set(_INFERENCE_NAMES).isdisjoint(re.split(r"[-_/]", address.repository))
    )
    if is_for_inference and context.job_kind.trains_model and context.job.workload.kind != "inference":
        yield Problem(
            "image",
            f"{repository_name_of(context.job.image or '')} is AWS's image for inference: it serves models; "
            "take the training image of the same framework, or leave it out",
        )


@rule(
    "image.architecture",
    summary="an image for arm64 on hosts with x86-64 processors, or one of AWS's for those on arm64",
    source="https://github.com/aws/deep-learning-containers/blob/master/release_images_training.yml",
    quote='arch_type: "x86" (of all training images; that types with Grace need others is not confirmed)',
    fields=("image", "compute.instance_type", "compute.instance_preferences", "segments"),
    may_be_allowed=True,
    allowed_when="if the image is for both",
)
def reject_image_for_other_architecture(context: PlanContext) -> Problems:
    address = _stated_image(context)
    if address is None:
        return
    for type_name in context.instance_types:
        is_arm_host = family_of(type_name) in _ARM_FAMILIES
        # A Graviton type, such as m7g, is unknown: SageMaker has no training on it, as another rule says.
        is_known = instances.find_instance_type(type_name) is not None
        if address.is_for_arm and not is_arm_host and is_known:
            message = f"it is for arm64 by its name, and {type_name} has x86-64 processors"
            yield Problem("image", f"{message} (exec format error); take the image without arm64 in its name")
        elif is_arm_host and address.is_of_aws and not address.is_for_arm:
            yield Problem(
                "image", f"{type_name} has arm64 processors, and AWS's image is for x86-64 by its name"
            )


_ARM_FAMILIES = ("p6e-gb200",)
"""Families of training types with processors of arm64: NVIDIA's Grace."""


@rule(
    "image.cuda",
    summary="an image whose CUDA has no code for the GPU: too old for it, or too new",
    source="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html",
    quote="offline compilation and library support will be removed in the next major CUDA Toolkit version",
    fields=("image", "compute.instance_type", "compute.instance_preferences", "segments"),
    may_be_allowed=True,
    allowed_when="if the image has code for it",
)
def reject_image_of_other_cuda(context: PlanContext) -> Problems:
    """Yield a problem for each instance type with GPUs that the CUDA of the image's tag does not compile for
    ("no kernel image is available for execution on the device")."""
    address = _stated_image(context)
    if address is None or address.cuda is None:
        return
    for type_name in context.instance_types:
        instance = instances.find_instance_type(type_name)
        accelerator = None if instance is None else instance.accelerator
        mismatch = None if accelerator is None else find_cuda_mismatch(accelerator, address.cuda)
        if mismatch is not None:
            yield Problem("image", f"{mismatch} ({type_name}); take another version of it, or another type")


def framework_of(image: str) -> Framework | None:
    """Framework of an AWS image, by its name; None for others."""
    name = repository_name_of(image)
    if _TRAINING_COMPILER in name.split("-"):
        return Framework("Training Compiler", True)
    return _FRAMEWORKS.get(name)


@rule(
    "image.retired",
    summary="an image of a framework that AWS has retired: MXNet, Chainer, RL, Training Compiler",
    source="https://aws.github.io/deep-learning-containers/reference/support_policy",
    quote="Supported Frameworks: Base, PyTorch, PyTorch Inference, XGBoost",
    fields=("image",),
)
def reject_retired_image(context: PlanContext) -> Problems:
    framework = None if context.job.image is None else framework_of(context.job.image)
    if framework is not None and framework.retired:
        message = f"{framework.name} is retired: AWS patches none of its images and makes no newer ones"
        yield Problem(
            "image", f"{message}; move the script to PyTorch, or bring an image of your own registry"
        )


@rule(
    "image.mxnet-script",
    summary="a script that imports MXNet, and no image that has it",
    source="https://aws.github.io/deep-learning-containers/reference/support_policy",
    quote="Supported Frameworks: Base, PyTorch, PyTorch Inference, XGBoost",
    fields=("image", "entry", "requirements", "strategy"),
    facts=("script",),
)
def reject_mxnet_script_without_image(context: PlanContext) -> Problems:
    job = context.job
    imports = {name.partition(".")[0] for name in context.facts.script.imports}
    if "mxnet" in imports and job.image is None and context.requirements.installed_file is None:
        yield Problem(
            "image",
            f"{context.facts.source.entry} imports mxnet, which is retired: no image of AWS's that is "
            "patched has it; move the script to PyTorch, or name an image of your own",
        )


@rule(
    "image.framework",
    summary="an image of a framework that the strategy does not distribute",
    source="https://github.com/aws/deep-learning-containers/blob/master/available_images.md",
    quote="pytorch-training … tensorflow-training",
    fields=("image", "strategy", "entry", "algorithm", "requirements"),
)
def reject_framework_unknown_to_strategy(context: PlanContext) -> Problems:
    """Yield a problem if the job's image, one of AWS's, lacks the framework that the strategy distributes.
    Not checked: a job with a requirements file, which may install the framework, and an image that AWS has
    retired, which another rule rejects."""
    job = context.job
    # Framework of one of AWS's images, by its name; None for other images.
    framework = None if job.image is None else framework_of(job.image)
    if framework is None or framework.retired:
        return
    if context.requirements.installed_file is not None:
        return
    needed_frameworks = context.strategy.frameworks
    if needed_frameworks is not None and framework.name not in needed_frameworks:
        message = (
            f"it is {framework.name}'s, and {context.strategy.name} distributes "
            f"{' or '.join(needed_frameworks)}"
        )
        yield Problem("image", f"{message}; name an image of that, or add requirements that install it")


_PROCESSOR_IN_TAG = re.compile(r"(?:^|-)(cpu|gpu)(?:-|$)")


@rule(
    "image.processor",
    summary="an image for CPUs on a type with GPUs, or the reverse",
    source="https://github.com/aws/deep-learning-containers/blob/master/available_images.md",
    quote="2.10.0-gpu-py313-cu130 … 2.10.0-cpu-py313",
    fields=("image", "compute.instance_type", "compute.instance_preferences", "segments"),
    may_be_allowed=True,
)
def reject_image_for_other_processor(context: PlanContext) -> Problems:
    """Yield a problem for each instance type that has GPUs if AWS's image is for CPUs by its tag, or the
    reverse. Types that the catalog does not know, and Trainium, are not compared."""
    image = context.job.image
    if image is None or framework_of(image) is None:
        return
    tag = image.rpartition("/")[2].partition(":")[2]
    processor_match = _PROCESSOR_IN_TAG.search(tag)
    if processor_match is None:
        return
    image_processor = processor_match[1]
    for type_name in context.instance_types:
        instance = instances.find_instance_type(type_name)
        if instance is None or instance.is_neuron:
            continue
        type_processor = "gpu" if instance.accelerators else "cpu"
        if type_processor == image_processor:
            continue
        # The one image of instance groups is for the accelerators that some of them have.
        if context.job.compute.instance_groups and type_processor == "cpu" and context.has_accelerators:
            continue
        gpus_text = instance.accelerators_text() if instance.accelerators else "no GPU"
        yield Problem(
            "image",
            f"it is for {image_processor.upper()}s by its tag, and {type_name} has {gpus_text}; take the "
            f"{type_processor} image of the same version, or leave it out",
        )


@rule(
    "image.neuron",
    summary="an image for Trainium elsewhere, or another one of AWS's on Trainium",
    source="https://github.com/aws/deep-learning-containers/blob/master/available_images.md",
    quote="torchrun starts a process for each NeuronCore (not confirmed by this page)",
    fields=("image", "compute.instance_type", "compute.instance_preferences"),
)
def reject_image_for_other_accelerator(context: PlanContext) -> Problems:
    """Yield a problem if the image is for Neuron devices and an instance type has GPUs or CPUs, or the
    reverse."""
    image, compute = context.job.image, context.job.compute
    if image is None or framework_of(image) is None:
        return
    # Neuron devices are the accelerators of Trainium (trn types).
    field = compute.field_of_types
    # By its repository, such as pytorch-training-neuronx.
    is_neuron_image = any(
        _NEURON_NAME_PART in name_part for name_part in repository_name_of(image).split("-")
    )
    unsuited_types = [name for name in context.instance_types if is_neuron(name) != is_neuron_image]
    if is_neuron_image and unsuited_types:
        message = (
            f"the image is for Trainium, which {unsuited_types[0]} does not have; take a trn type, or "
            "another image"
        )
        yield Problem(field, message)
    elif unsuited_types:
        yield Problem(
            "image", f"{unsuited_types[0]} needs a Neuron image, and this one is for GPUs or CPUs; name one"
        )


@rule(
    "strategy.trainium",
    summary="a strategy on Trainium that does not work there",
    source="https://github.com/aws/sagemaker-python-sdk",
    quote="trn*: only `torch_distributed`, only one key (not confirmed by its source)",
    fields=("strategy", "entry", "algorithm", "compute.instance_type", "compute.instance_preferences"),
)
def reject_strategy_on_trainium(context: PlanContext) -> Problems:
    if context.strategy.trainium_support != "no":
        return
    for field, type_name in stated_instance_types(context.job):
        if not is_neuron(type_name):
            continue
        reason = f"{context.strategy.name} does not work on {type_name}, where ranks are torchrun's on"
        if field.startswith("segments"):
            yield Problem(field, f"{reason} NeuronCores; take a type with GPUs")
        else:
            yield Problem("strategy", f"{reason} NeuronCores; take strategy: neuron, or a type with GPUs")
            return  # the first one is enough


@rule(
    "image.version",
    summary="an image and a framework's version",
    source="https://github.com/aws/sagemaker-python-sdk",
    quote="`retrieve()` returns the *short* tag (`pytorch-training:2.8.0-gpu-py312`)",
    fields=("image", "framework_version", "algorithm"),
)
def reject_image_beside_framework_version(context: PlanContext) -> Problems:
    job = context.job
    if job.image is not None and job.framework_version is not None and job.algorithm is None:
        message = "it chooses AWS's image, and 'image' names another; keep one of them"
        yield Problem("framework_version", message)
