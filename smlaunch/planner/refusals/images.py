"""Rules about combinations of image, strategy and instance type, and about retired images."""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.errors import Problem
from smlaunch.planner.plan_context import PlanContext, is_neuron
from smlaunch.planner.refusals.rule import Problems, rule


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
_NEURON = "neuron"


def repository_of(image: str) -> str:
    """``pytorch-training`` of ``<account>.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10.0-...``."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def framework_of(image: str) -> Framework | None:
    """Framework of an AWS image, by its name; None for others."""
    name = repository_of(image)
    if _TRAINING_COMPILER in name.split("-"):
        return Framework("Training Compiler", True)
    return _FRAMEWORKS.get(name)


@rule(
    "image.retired",
    "an image of a framework that AWS has retired: MXNet, Chainer, RL, Training Compiler",
    "4.6",
    "MXNet, Chainer, RL containers, Training Compiler, EIA/Elastic Inference",
    "image",
)
def retired_image(context: PlanContext) -> Problems:
    framework = None if context.job.image is None else framework_of(context.job.image)
    if framework is not None and framework.retired:
        message = f"{framework.name} is retired: AWS patches none of its images and makes no newer ones"
        yield Problem(
            "image", f"{message}; move the script to PyTorch, or bring an image of your own registry"
        )


@rule(
    "image.mxnet-script",
    "a script that imports MXNet, and no image that has it",
    "4.6",
    "MXNet, Chainer, RL containers, Training Compiler, EIA/Elastic Inference",
    *("image", "entry", "requirements", "strategy"),
)
def script_for_mxnet(context: PlanContext) -> Problems:
    job = context.job
    imports = {name.partition(".")[0] for name in context.facts.script.imports}
    if "mxnet" in imports and job.image is None and job.requirements is None:
        yield Problem(
            "image",
            f"{job.entry} imports mxnet, which is retired: no image of AWS's that is patched has it; move "
            "the script to PyTorch, or name an image of your own",
        )


@rule(
    "image.framework",
    "an image of a framework that the strategy does not distribute",
    "4.1",
    "pytorch-training … tensorflow-training … sklearn / xgboost",
    *("image", "strategy", "entry", "algorithm", "requirements"),
)
def framework_without_the_strategy(context: PlanContext) -> Problems:
    """Images with a requirements file are not checked: it may install the framework."""
    job = context.job
    framework = None if job.image is None else framework_of(job.image)
    if context.strategy is None or framework is None or framework.retired or job.requirements is not None:
        return
    needed_frameworks = context.strategy.frameworks
    if needed_frameworks is not None and framework.name not in needed_frameworks:
        message = (
            f"it is {framework.name}'s, and {context.strategy.name} distributes "
            f"{' or '.join(needed_frameworks)}"
        )
        yield Problem("image", f"{message}; name an image of that, or add requirements that install it")


@rule(
    "image.neuron",
    "an image for Trainium elsewhere, or another one of AWS's on Trainium",
    "4.5",
    "torchrun with nproc_per_node = neuron cores (32 on trn1.32x: 16 devices x 2",
    *("image", "compute.instance_type", "compute.instance_preferences"),
)
def image_for_another_accelerator(context: PlanContext) -> Problems:
    """Yield a problem if the image is for Neuron devices and an instance type has GPUs or CPUs, or the
    reverse."""
    image, compute = context.job.image, context.job.compute
    if image is None or framework_of(image) is None:
        return
    field = "compute.instance_preferences" if compute.instance_preferences else "compute.instance_type"
    made_for_neuron = any(_NEURON in name_part for name_part in repository_of(image).split("-"))
    unsuited_types = [name for name in context.instance_types if is_neuron(name) != made_for_neuron]
    if made_for_neuron and unsuited_types:
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
    "a strategy on Trainium that does not work there",
    "1.4",
    "trn*: only `torch_distributed`, only one key.",
    *("strategy", "entry", "algorithm", "compute.instance_type", "compute.instance_preferences"),
)
def strategy_on_trainium(context: PlanContext) -> Problems:
    trainium_types = [name for name in context.instance_types if is_neuron(name)]
    if context.strategy is not None and trainium_types and context.strategy.trainium_support == "no":
        message = (
            f"{context.strategy.name} does not work on {trainium_types[0]}, where ranks are torchrun's on "
            "NeuronCores"
        )
        yield Problem("strategy", f"{message}; take strategy: neuron, or a type with GPUs")


@rule(
    "image.version",
    "an image and a framework's version",
    "1.5",
    "`retrieve()` returns the *short* tag (`pytorch-training:2.8.0-gpu-py312`)",
    *("image", "framework_version", "algorithm"),
)
def image_and_version(context: PlanContext) -> Problems:
    job = context.job
    if job.image is not None and job.framework_version is not None and job.algorithm is None:
        message = "it chooses AWS's image, and 'image' names another; keep one of them"
        yield Problem("framework_version", message)


RULES = (
    image_and_version,
    retired_image,
    script_for_mxnet,
    framework_without_the_strategy,
    image_for_another_accelerator,
    strategy_on_trainium,
)
