"""Rules about combinations of image, strategy and instance type, and about retired images."""

from __future__ import annotations

import re
from typing import NamedTuple

from smlaunch.catalog import instances
from smlaunch.errors import Problem
from smlaunch.planner.plan_context import PlanContext, is_neuron
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
    field = "compute.instance_preferences" if compute.instance_preferences else "compute.instance_type"
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
    trainium_types = [name for name in context.instance_types if is_neuron(name)]
    if trainium_types and context.strategy.trainium_support == "no":
        message = (
            f"{context.strategy.name} does not work on {trainium_types[0]}, where ranks are torchrun's on "
            "NeuronCores"
        )
        yield Problem("strategy", f"{message}; take strategy: neuron, or a type with GPUs")


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
