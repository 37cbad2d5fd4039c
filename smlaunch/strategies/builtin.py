"""builtin: one of SageMaker's algorithms, whose image contains the program. smlaunch adds nothing to it.

``catalog.algorithms`` states the requirements of all algorithms; ``builtin_rules`` has rules for single
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from smlaunch.catalog.algorithms import (
    CONTENT_TYPES,
    DATA_CHANNELS,
    Algorithm,
    find_algorithm,
    unknown_algorithm_message,
)
from smlaunch.errors import Problem
from smlaunch.job.model import Channel
from smlaunch.strategies.base import LaunchContext, Strategy
from smlaunch.strategies.builtin_rules import find_algorithm_problems, find_algorithm_warnings
from smlaunch.text.did_you_mean import did_you_mean

MAX_WAIT_SECONDS = 3600
"""Limit of MaxWaitTimeInSeconds for a spot job whose algorithm saves no checkpoints."""

DOCUMENTED_GPU_FAMILIES = ("p2", "p3", "g4dn", "g5")
"""Named by the developer guide for built-in algorithms, in 2023."""

_PLURAL_BY_PROCESSOR = {"cpu": "CPUs", "gpu": "GPUs"}


class Builtin(Strategy):
    name = "builtin"
    summary = "runs SageMaker's own image of the algorithm, with nothing of smlaunch's in it"
    rendezvous = False
    image_family = None
    needs_script = False
    runs_algorithms = True
    sized_by_data = True
    loads_all_data = True
    options: ClassVar[Mapping[str, str]] = {
        "model": "JumpStart's model id, for an algorithm that JumpStart hosts: determines the image"
    }
    checkpoint_note = "a built-in algorithm does not stop itself to be continued by another job"

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        """Return what is wrong with a job that runs a built-in algorithm: its hosts, inputs, hyperparameters
        and spot settings.
        """
        if context.algorithm is None:
            return [Problem("algorithm", "builtin runs one of SageMaker's algorithms; name it")]
        algorithm = find_algorithm(context.algorithm)
        if algorithm is None:
            return [Problem("algorithm", unknown_algorithm_message(context.algorithm))]
        problems = [
            *_find_host_problems(algorithm, context),
            *_find_processor_problems(algorithm, context),
            *_find_channel_problems(algorithm, context),
        ]
        for name in algorithm.required_hyperparameters:
            if name not in context.hyperparameters:
                message = f"it is missing; {context.algorithm} does not start without it"
                problems.append(Problem(f"hyperparameters.{name}", message))
        problems += _find_spot_problems(algorithm, context)
        return [*problems, *find_algorithm_problems(algorithm, context)]  # rules of this algorithm alone

    def find_warnings(self, context: LaunchContext) -> list[str]:
        """Return warnings about the instance type, inputs, checkpoints and image of a job that runs a
        built-in algorithm.
        """
        algorithm = find_algorithm(context.algorithm or "")
        if algorithm is None:
            return []
        warnings = [*_find_gpu_warnings(algorithm, context), *_find_content_type_warnings(algorithm, context)]
        if context.checkpoints is not None and not algorithm.checkpoints:
            warnings.append(
                f"checkpoints has no effect: {context.algorithm} saves none, and an interruption loses all "
                "progress"
            )
        # JumpStart, SageMaker's model hub, is the only source of some algorithms' images.
        if algorithm.jumpstart and context.image and "sagemaker_program" not in context.hyperparameters:
            warnings.append(
                f"JumpStart hosts {algorithm.name}: its image runs a separate script of JumpStart "
                "(hyperparameters sagemaker_program and sagemaker_submit_directory, and a channel model); "
                "smlaunch does not add them"
            )
        if context.target == "local":
            warnings.append(
                f"{context.algorithm} is an image of AWS's: the executor containers runs it, where it can "
                "pull it; the executor processes starts this machine's own `train`"
            )
        return [*warnings, *find_algorithm_warnings(algorithm, context)]  # by rules of this algorithm alone

    def max_wait_seconds(self, context: LaunchContext) -> int | None:
        algorithm = find_algorithm(context.algorithm or "")
        return None if algorithm is None or algorithm.checkpoints else MAX_WAIT_SECONDS


def _find_host_problems(algorithm: Algorithm, context: LaunchContext) -> Iterator[Problem]:
    """Yield a problem if the job has several hosts and the algorithm, by its entry in the catalog, runs on
    one.
    """
    if context.host_count == 1 or algorithm.hosts != "one":
        return
    if algorithm.id == "blazingtext" and context.hyperparameters.get("mode") == "batch_skipgram":
        return  # an exception on the algorithm's own page
    message = f"{context.algorithm} is not parallelizable over hosts: it runs on one"
    gpu_text = ", where it uses all GPUs" if algorithm.gpus == "all" else ""
    yield Problem("compute.hosts", f"{message}{gpu_text}, not on {context.host_count}; take one larger host")


def _find_processor_problems(algorithm: Algorithm, context: LaunchContext) -> Iterator[Problem]:
    """Yield a problem if the algorithm does not run on the processors of the job's instance type."""
    instance_spec = context.instance_spec  # the catalog's entry for the type
    if instance_spec is None:
        return
    if instance_spec.is_neuron:
        message = f"{context.algorithm} does not run on NeuronCores, which {context.instance_type} has"
        yield Problem("compute.instance_type", f"{message}; take a type with {_format_processors(algorithm)}")
        return
    processor = "gpu" if instance_spec.accelerators else "cpu"
    if processor not in algorithm.processors:
        message = (
            f"{context.algorithm} runs on {_format_processors(algorithm)}, not on the "
            f"{_PLURAL_BY_PROCESSOR[processor]}"
        )
        yield Problem("compute.instance_type", f"{message} of {context.instance_type}; take another type")


def _find_channel_problems(algorithm: Algorithm, context: LaunchContext) -> Iterator[Problem]:
    """Yield the problems of the job's input channels, the named inputs of the training job: required ones
    that are missing, and names, input modes and content types that the algorithm does not know.
    """
    for alternative_names in algorithm.required_channels:  # one channel of these names is needed
        if (context.channels.keys() | context.request_channels).isdisjoint(alternative_names):
            names_text = " or ".join(map(repr, alternative_names))
            message = f"{context.algorithm} needs a channel {names_text}; it has none"
            yield Problem("inputs", message)
    for name, channel in context.channels.items():
        field = f"inputs.{name}"
        if name not in algorithm.channels:
            suggestion = did_you_mean(name, algorithm.channels)
            yield Problem(field, f"{context.algorithm} has no channel of that name{suggestion}")
            continue
        if channel.mode not in algorithm.modes:
            message = (
                f"{context.algorithm} reads in {' or '.join(algorithm.modes)} mode, not in {channel.mode}"
            )
            yield Problem(f"{field}.mode", message)
        content_type_problem = _explain_unread_content_type(algorithm, name, channel, context)
        if content_type_problem is not None:
            yield Problem(f"{field}.content_type", content_type_problem)


def _explain_unread_content_type(
    algorithm: Algorithm, name: str, channel: Channel, context: LaunchContext
) -> str | None:
    """Return the problem of a channel whose content type the algorithm does not read; None for one that it
    reads, and for channels with other content than data."""
    content_type = channel.content_type
    if content_type is None or name not in DATA_CHANNELS:
        return None
    media_type = content_type.partition(";")[0].strip().lower()  # of `text/csv; label_size=0`
    if media_type in algorithm.content_types:
        return None
    formats_text = ", ".join(
        f"{file_format} ({CONTENT_TYPES[file_format][0]})" for file_format in algorithm.files
    )
    return f"{context.algorithm} does not read {content_type!r}; it reads {formats_text}"


def _find_spot_problems(algorithm: Algorithm, context: LaunchContext) -> Iterator[Problem]:
    """Yield a problem if a spot job may run for more than an hour with an algorithm that saves no
    checkpoints, although the job states a prefix for them. Without a prefix the rule for all spot jobs
    reports that."""
    if not context.is_spot or algorithm.checkpoints or context.checkpoints is None:
        return
    if (context.max_runtime_seconds or 0) > MAX_WAIT_SECONDS:
        message = f"{context.algorithm} saves no checkpoints: on spot it may take an hour including its wait"
        yield Problem("limits.max_runtime", f"{message}; shorten it, or take hosts on demand")


def _find_gpu_warnings(algorithm: Algorithm, context: LaunchContext) -> Iterator[str]:
    """Yield warnings about GPUs of the instance type that the algorithm does not use, or not surely.
    ``instance_spec`` is the catalog's entry for the type; None where it has none.
    """
    instance_spec = context.instance_spec
    has_gpus = instance_spec is not None and instance_spec.accelerators > 0 and not instance_spec.is_neuron
    if instance_spec is None or not has_gpus or "gpu" not in algorithm.processors:
        return
    instance_family = context.instance_type.split(".")[1]  # g5 of ml.g5.xlarge
    if instance_family not in DOCUMENTED_GPU_FAMILIES:
        families_text = ", ".join(DOCUMENTED_GPU_FAMILIES[:-1]) + f" and {DOCUMENTED_GPU_FAMILIES[-1]}"
        yield (
            f"That built-in algorithms run on {context.instance_type} is unconfirmed: the guide names "
            f"{families_text} (2023)"
        )
    if algorithm.gpus == "none":
        yield f"{context.algorithm} gains nothing from the GPUs of {context.instance_type}; take CPUs"
    elif algorithm.id == "xgboost":
        return  # builtin_rules has warnings of its own for its GPUs
    elif algorithm.gpus == "one" and instance_spec.accelerators > 1:
        yield (
            f"{context.algorithm} uses one GPU of a host, and {context.instance_type} has "
            f"{instance_spec.accelerators}; take a type with one"
        )


def _find_content_type_warnings(algorithm: Algorithm, context: LaunchContext) -> Iterator[str]:
    """Yield a warning if data channels state no content type, and the algorithm reads several formats."""
    untyped_channels = [
        name
        for name, channel in context.channels.items()
        if name in DATA_CHANNELS and name in algorithm.channels and channel.content_type is None
    ]
    if untyped_channels and len(algorithm.files) > 1:
        fields = ", ".join(f"inputs.{name}.content_type" for name in untyped_channels)
        formats = ", ".join(algorithm.files)
        yield f"{fields} is not stated: {context.algorithm} reads {formats}, and assumes one of them"


def _format_processors(algorithm: Algorithm) -> str:
    return " or ".join(_PLURAL_BY_PROCESSOR[processor] for processor in algorithm.processors)
