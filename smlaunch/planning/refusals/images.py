"""Which image, strategy and instance type go together, and which images are no more."""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.errors import Problem
from smlaunch.planning.case import Case, is_neuron
from smlaunch.planning.refusals.rule import Found, rule


class Framework(NamedTuple):
    """What an image of AWS's holds. ``retired``: it is patched no more and in no newer release."""

    name: str
    retired: bool = False


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
"""By the name of AWS's repository; nobody knows what an image of another name holds."""

_TRCOMP = "trcomp"
_NEURON = "neuron"


def repository_of(image: str) -> str:
    """``pytorch-training`` of ``<account>.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10.0-...``."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def framework_of(image: str) -> Framework | None:
    """None for an image that is not AWS's, by its name."""
    name = repository_of(image)
    if _TRCOMP in name.split("-"):
        return Framework("Training Compiler", True)
    return _FRAMEWORKS.get(name)


@rule(
    "image.retired",
    "an image of a framework that AWS has retired: MXNet, Chainer, RL, Training Compiler",
    "4.6",
    "MXNet, Chainer, RL containers, Training Compiler, EIA/Elastic Inference",
    "image",
)
def retired_image(case: Case) -> Found:
    framework = None if case.job.image is None else framework_of(case.job.image)
    if framework is not None and framework.retired:
        told = f"{framework.name} is retired: AWS patches none of its images and makes no newer ones"
        yield Problem("image", f"{told}; move the script to PyTorch, or bring an image of your own registry")


@rule(
    "image.mxnet-script",
    "a script that imports MXNet, and no image that has it",
    "4.6",
    "MXNet, Chainer, RL containers, Training Compiler, EIA/Elastic Inference",
    *("image", "entry", "requirements", "strategy"),
)
def script_for_mxnet(case: Case) -> Found:
    job = case.job
    imports = {name.partition(".")[0] for name in case.surroundings.script.imports}
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
def framework_without_the_strategy(case: Case) -> Found:
    """With requirements of its own an image may get what it lacks."""
    job = case.job
    framework = None if job.image is None else framework_of(job.image)
    if case.strategy is None or framework is None or framework.retired or job.requirements is not None:
        return
    needed = case.strategy.frameworks
    if needed is not None and framework.name not in needed:
        told = f"it is {framework.name}'s, and {case.strategy.name} distributes {' or '.join(needed)}"
        yield Problem("image", f"{told}; name an image of that, or add requirements that install it")


@rule(
    "image.neuron",
    "an image for Trainium elsewhere, or another one of AWS's on Trainium",
    "4.5",
    "torchrun with nproc_per_node = neuron cores (32 on trn1.32x: 16 devices x 2",
    *("image", "compute.instance_type", "compute.instance_preferences"),
)
def image_for_another_accelerator(case: Case) -> Found:
    image, compute = case.job.image, case.job.compute
    if image is None or framework_of(image) is None:
        return
    field = "compute.instance_preferences" if compute.instance_preferences else "compute.instance_type"
    made_for_neuron = any(_NEURON in word for word in repository_of(image).split("-"))
    others = [name for name in case.types if is_neuron(name) != made_for_neuron]
    if made_for_neuron and others:
        told = (
            f"the image is for Trainium, which {others[0]} does not have; take a trn type, or another image"
        )
        yield Problem(field, told)
    elif others:
        yield Problem(
            "image", f"{others[0]} needs a Neuron image, and this one is for GPUs or CPUs; name one"
        )


@rule(
    "strategy.trainium",
    "a strategy on Trainium that does not work there",
    "1.4",
    "trn*: only `torch_distributed`, only one key.",
    *("strategy", "entry", "algorithm", "compute.instance_type", "compute.instance_preferences"),
)
def strategy_on_trainium(case: Case) -> Found:
    on = [name for name in case.types if is_neuron(name)]
    if case.strategy is not None and on and case.strategy.trainium == "no":
        told = f"{case.strategy.name} does not work on {on[0]}, where ranks are torchrun's on NeuronCores"
        yield Problem("strategy", f"{told}; take strategy: neuron, or a type with GPUs")


@rule(
    "image.version",
    "an image and a framework's version",
    "1.5",
    "`retrieve()` returns the *short* tag (`pytorch-training:2.8.0-gpu-py312`)",
    *("image", "framework_version", "algorithm"),
)
def image_and_version(case: Case) -> Found:
    job = case.job
    if job.image is not None and job.framework_version is not None and job.algorithm is None:
        told = "it chooses AWS's image, and 'image' names another; keep one of them"
        yield Problem("framework_version", told)


RULES = (
    image_and_version,
    retired_image,
    script_for_mxnet,
    framework_without_the_strategy,
    image_for_another_accelerator,
    strategy_on_trainium,
)
