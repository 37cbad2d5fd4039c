"""builtin: one of SageMaker's own algorithms, whose image brings the program. Nothing of ours is put in.

What each takes is the catalog's (``catalog.algorithms``); what is said of single ones stands in
``builtin_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from smlaunch.catalog.algorithms import CONTENT_TYPES, DATA_CHANNELS, Algorithm, find, unknown
from smlaunch.errors import Problem
from smlaunch.job import Channel
from smlaunch.strategies.base import Setting, Strategy
from smlaunch.strategies.builtin_rules import advice_of, problems_of
from smlaunch.suggest import did_you_mean

LONGEST_WAIT = 3600
"""Seconds: MaxWaitTimeInSeconds of a spot job whose algorithm keeps no checkpoints."""

GPU_FAMILIES = ("p2", "p3", "g4dn", "g5")
"""That the developer guide names for built-in algorithms, in 2023."""

_NAMES = {"cpu": "CPUs", "gpu": "GPUs"}


class Builtin(Strategy):
    name = "builtin"
    summary = "runs SageMaker's own image of the algorithm, with nothing of smlaunch's in it"
    rendezvous = False
    family = None
    needs_script = False
    for_algorithms = True
    sized_by_data = True
    holds_data = True
    options: ClassVar[Mapping[str, str]] = {
        "model": "JumpStart's id, of an algorithm that it hosts, by which the region is asked for the image"
    }
    own_checkpoints = "a built-in algorithm does not end itself to be gone on with by a next job"

    def check(self, setting: Setting) -> list[Problem]:
        if setting.algorithm is None:
            return [Problem("algorithm", "builtin runs one of SageMaker's algorithms; name it")]
        algorithm = find(setting.algorithm)
        if algorithm is None:
            return [Problem("algorithm", unknown(setting.algorithm))]
        found = [*_hosts(algorithm, setting), *_processor(algorithm, setting), *_channels(algorithm, setting)]
        for name in algorithm.required_hyperparameters:
            if name not in setting.hyperparameters:
                told = f"it is missing; {setting.algorithm} does not start without it"
                found.append(Problem(f"hyperparameters.{name}", told))
        found += _spot(algorithm, setting)
        return [*found, *problems_of(algorithm, setting)]

    def advice(self, setting: Setting) -> list[str]:
        algorithm = find(setting.algorithm or "")
        if algorithm is None:
            return []
        told = [*_gpu_advice(algorithm, setting), *_formats_to_state(algorithm, setting)]
        if setting.checkpoints is not None and not algorithm.checkpoints:
            told.append(
                f"checkpoints has no effect: {setting.algorithm} keeps none, and an interruption costs all"
            )
        if algorithm.jumpstart and setting.image and "sagemaker_program" not in setting.hyperparameters:
            told.append(
                f"JumpStart hosts {algorithm.name}: its image runs a script that JumpStart keeps beside it "
                "(hyperparameters sagemaker_program and sagemaker_submit_directory, and a channel model); "
                "smlaunch does not add them"
            )
        if setting.target == "local":
            told.append(
                f"{setting.algorithm} is an image of AWS's: the executor containers runs it, where it can "
                "pull it; the executor processes starts this machine's own `train`"
            )
        return [*told, *advice_of(algorithm, setting)]

    def longest_wait(self, setting: Setting) -> int | None:
        algorithm = find(setting.algorithm or "")
        return None if algorithm is None or algorithm.checkpoints else LONGEST_WAIT


def _hosts(algorithm: Algorithm, setting: Setting) -> Iterator[Problem]:
    if setting.hosts == 1 or algorithm.hosts != "one":
        return
    if algorithm.id == "blazingtext" and setting.hyperparameters.get("mode") == "batch_skipgram":
        return  # the exception of its own page
    only = f"{setting.algorithm} is not parallelizable over hosts: it runs on one"
    many = ", where it uses all GPUs" if algorithm.gpus == "all" else ""
    yield Problem("compute.hosts", f"{only}{many}, not on {setting.hosts}; take one larger host")


def _processor(algorithm: Algorithm, setting: Setting) -> Iterator[Problem]:
    known = setting.instance
    if known is None:
        return
    if known.is_neuron:
        told = f"{setting.algorithm} does not run on NeuronCores, which {setting.instance_type} has"
        yield Problem("compute.instance_type", f"{told}; take a type with {_listed(algorithm)}")
        return
    has = "gpu" if known.accelerators else "cpu"
    if has not in algorithm.processors:
        told = f"{setting.algorithm} runs on {_listed(algorithm)}, not on the {_NAMES[has]}"
        yield Problem("compute.instance_type", f"{told} of {setting.instance_type}; take another type")


def _channels(algorithm: Algorithm, setting: Setting) -> Iterator[Problem]:
    for group in algorithm.required_channels:
        if not any(name in setting.channels for name in group):
            told = f"{setting.algorithm} needs a channel {' or '.join(map(repr, group))}; it has none"
            yield Problem("inputs", told)
    for name, channel in setting.channels.items():
        where = f"inputs.{name}"
        if name not in algorithm.channels:
            hint = did_you_mean(name, algorithm.channels)
            yield Problem(where, f"{setting.algorithm} has no channel of that name{hint}")
            continue
        if channel.mode not in algorithm.modes:
            told = f"{setting.algorithm} reads in {' or '.join(algorithm.modes)} mode, not in {channel.mode}"
            yield Problem(f"{where}.mode", told)
        fault = _format_fault(algorithm, name, channel, setting)
        if fault is not None:
            yield Problem(f"{where}.content_type", fault)


def _format_fault(algorithm: Algorithm, name: str, channel: Channel, setting: Setting) -> str | None:
    stated = channel.content_type
    if stated is None or name not in DATA_CHANNELS:
        return None
    kind = stated.partition(";")[0].strip().lower()  # `text/csv; label_size=0`
    if kind in algorithm.content_types:
        return None
    files = ", ".join(f"{file} ({CONTENT_TYPES[file][0]})" for file in algorithm.files)
    return f"{setting.algorithm} does not read {stated!r}; it reads {files}"


def _spot(algorithm: Algorithm, setting: Setting) -> Iterator[Problem]:
    """Without a checkpoint prefix the rule for all spot jobs says the same already."""
    longest = setting.max_runtime or 0
    if (
        setting.spot
        and not algorithm.checkpoints
        and setting.checkpoints is not None
        and longest > LONGEST_WAIT
    ):
        told = f"{setting.algorithm} keeps no checkpoints: on spot it may take an hour with its wait"
        yield Problem("limits.max_runtime", f"{told}; shorten it, or take hosts on demand")


def _gpu_advice(algorithm: Algorithm, setting: Setting) -> Iterator[str]:
    known = setting.instance
    if known is None or not known.accelerators or known.is_neuron or "gpu" not in algorithm.processors:
        return
    if setting.instance_type.split(".")[1] not in GPU_FAMILIES:
        named = ", ".join(GPU_FAMILIES[:-1]) + f" and {GPU_FAMILIES[-1]}"
        yield (
            f"That built-in algorithms run on {setting.instance_type} is unconfirmed: the guide names "
            f"{named} (2023)"
        )
    if algorithm.gpus == "none":
        yield f"{setting.algorithm} gains nothing from the GPUs of {setting.instance_type}; take CPUs"
    elif algorithm.gpus == "one" and known.accelerators > 1 and algorithm.id != "xgboost":
        yield (
            f"{setting.algorithm} uses one GPU of a host, and {setting.instance_type} has "
            f"{known.accelerators}; take a type with one"
        )


def _formats_to_state(algorithm: Algorithm, setting: Setting) -> Iterator[str]:
    silent = [
        name
        for name, channel in setting.channels.items()
        if name in DATA_CHANNELS and name in algorithm.channels and channel.content_type is None
    ]
    if silent and len(algorithm.files) > 1:
        fields = ", ".join(f"inputs.{name}.content_type" for name in silent)
        formats = ", ".join(algorithm.files)
        yield f"{fields} is not stated: {setting.algorithm} reads {formats}, and takes one for granted"


def _listed(algorithm: Algorithm) -> str:
    return " or ".join(_NAMES[processor] for processor in algorithm.processors)
