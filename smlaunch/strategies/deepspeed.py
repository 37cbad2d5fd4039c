"""deepspeed: ranks that DeepSpeed joins by torchrun's variables, without its launcher and without ssh."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from smlaunch.contract.launch_spec import Arg, Ref
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.ddp import DDP

_AUTO = "auto"
"""Hugging Face's Trainer fills in these values."""

_TRAIN_BATCH, _MICRO_BATCH, _ACCUMULATION = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)

_MODEL_PARALLEL_MODULES = ("megatron", "deepspeed.pipe", "deepspeed.runtime.pipe", "deepspeed.utils.groups")
_MODEL_PARALLEL_KEYS = ("sequence_parallel_size", "tensor_parallel", "data_parallel_size", "elasticity")
"""Modules and keys that divide the ranks, so that fewer of them share the batch."""


class DeepSpeed(DDP):
    name = "deepspeed"
    summary = (
        "starts every rank with the variables that DeepSpeed reads; neither its launcher nor ssh is used"
    )
    script_joins_ranks = False
    libraries = ("deepspeed",)
    other_libraries = (*DDP.libraries, *DDP.other_libraries)
    options: ClassVar[Mapping[str, str]] = {
        "config": "DeepSpeed's JSON file in the source, which the script gets as --deepspeed_config"
    }

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        """Return what is wrong with the job's options for DeepSpeed, and with the configuration that they, a
        hyperparameter or an argument name; one that the source does not have is not checked."""
        problems = super().find_problems(context)
        config_option = context.options.get("config")
        is_in_source = isinstance(config_option, str) and config_option in context.json_files
        if config_option is not None and not is_in_source:
            message = f"{config_option!r} is not a .json file in the source, which it is relative to"
            return [*problems, Problem("options.config", message)]
        config_name, field = _find_config(context)
        config_json = context.json_files.get(config_name)
        if config_json is not None:
            data_parallel_ranks = _count_data_parallel_ranks(context)
            for message in find_config_problems(config_json, data_parallel_ranks):
                problems.append(Problem(field, f"{config_name}: {message}"))
        return problems

    def find_warnings(self, context: LaunchContext) -> list[str]:
        if context.target == "aws" and "/pytorch" in context.image and context.requirements is None:
            return ["AWS's PyTorch image is not known to contain deepspeed; add it in a requirements file"]
        return []

    def command(self, context: LaunchContext) -> tuple[Arg, ...]:
        config = context.options.get("config")
        *arguments, hyperparameters = super().command(context)
        config_arguments = (
            () if config is None else ("--deepspeed_config", Ref("source", suffix=f"/{config}"))
        )
        return (*arguments, *config_arguments, hyperparameters)

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        # On this machine DeepSpeed finds out by itself.
        is_cpu_only = context.target == "aws" and not context.has_accelerators
        return (("DS_ACCELERATOR", "cpu"),) if is_cpu_only else ()

    def find_reasons(self, context: LaunchContext) -> list[tuple[str, str]]:
        return []


def _count_data_parallel_ranks(context: LaunchContext) -> int | None:
    """Return the number of data-parallel ranks, of which each trains on its own part of a batch; None if it
    is unknown: the number of ranks is ``auto``, or some of them may hold one model together."""
    may_shard_model = any(name.startswith(_MODEL_PARALLEL_MODULES) for name in context.imports)
    if may_shard_model or not isinstance(context.processes_per_host, int):
        return None
    return context.host_count * context.processes_per_host


def _find_config(context: LaunchContext) -> tuple[str, str]:
    """Return the file name of DeepSpeed's configuration and the job's field that names it: an option, a
    hyperparameter or an argument of the script. Both are empty if the job names none.
    """
    config_option = context.options.get("config")
    if config_option is not None:
        return str(config_option), "options.config"
    for parameter in ("deepspeed_config", "deepspeed"):
        hyperparameter = context.hyperparameters.get(parameter)
        if isinstance(hyperparameter, str):
            return hyperparameter, f"hyperparameters.{parameter}"
        for index, argument in enumerate(context.args):
            name, equals_sign, file_name = argument.partition("=")
            if name != f"--{parameter}":
                continue
            if not equals_sign:  # the file name is the next argument, if there is one
                next_arguments = context.args[index + 1 :]
                file_name = next_arguments[0] if next_arguments else ""
            return file_name, f"args[{index}]"
    return "", ""


def find_config_problems(config_json: str, data_parallel_ranks: int | None) -> Iterator[str]:
    """Yield what is wrong with a DeepSpeed configuration, each problem as a clause with the next step.

    ``config_json``: its content. ``data_parallel_ranks``: ranks that train on different parts of a batch;
    None where unknown. Source: deepspeed 0.19.8, runtime/config.py, _set_batch_related_parameters and
    _batch_assertion.
    """
    try:
        settings = json.loads(config_json)
    except ValueError as error:
        yield f"it is not JSON ({error}); correct it"
        return
    if not isinstance(settings, dict):
        yield "it is not a JSON object; DeepSpeed's settings are the keys of one"
        return
    zero_settings = settings.get("zero_optimization", {})
    zero_stage = zero_settings.get("stage", 0) if isinstance(zero_settings, dict) else zero_settings
    # ``auto``: Hugging Face's Trainer fills it in. A bool equals 0 or 1.
    if zero_stage not in (0, 1, 2, 3, _AUTO) or isinstance(zero_stage, bool):
        yield f"zero_optimization.stage is 0, 1, 2 or 3, not {zero_stage!r}"
    if any(key in settings for key in _MODEL_PARALLEL_KEYS):
        data_parallel_ranks = None  # some ranks share a model, for example with ``tensor_parallel``
    yield from _find_batch_size_problems(settings, data_parallel_ranks)


def _find_batch_size_problems(settings: Mapping[str, Any], data_parallel_ranks: int | None) -> Iterator[str]:
    """Yield what is wrong with the batch sizes in DeepSpeed's ``settings``: the batch of a step is the micro
    batch of a GPU x gradient accumulation steps x data-parallel ranks (None: unknown). A size that is not
    given follows from the others, as in DeepSpeed.
    """
    # train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps
    sizes = {name: settings.get(name) for name in (_TRAIN_BATCH, _MICRO_BATCH, _ACCUMULATION)}
    if _AUTO in sizes.values():
        return  # ``auto``: Hugging Face's Trainer fills them in
    invalid_keys = [name for name, size in sizes.items() if size is not None and not _is_count(size)]
    for name in invalid_keys:
        yield f"{name} is a whole number from 1, not {sizes[name]!r}"
    train_batch, micro_batch = sizes[_TRAIN_BATCH], sizes[_MICRO_BATCH]
    if train_batch is None and micro_batch is None:
        yield f"it names neither {_TRAIN_BATCH} nor {_MICRO_BATCH}; DeepSpeed needs one of them"
        return
    if invalid_keys or train_batch is None or data_parallel_ranks is None:
        return  # without train_batch the sizes always fit
    accumulation_steps = sizes[_ACCUMULATION]
    # DeepSpeed derives what is not given.
    if micro_batch is None:
        accumulation_steps = accumulation_steps or 1
        micro_batch = max(1, train_batch // data_parallel_ranks // accumulation_steps)
    elif accumulation_steps is None:
        accumulation_steps = max(1, train_batch // micro_batch // data_parallel_ranks)
    if micro_batch * accumulation_steps * data_parallel_ranks != train_batch:
        yield (
            f"{_TRAIN_BATCH} {train_batch} is not {_MICRO_BATCH} {micro_batch} x {_ACCUMULATION} "
            f"{accumulation_steps} x {data_parallel_ranks} ranks; change one, or leave {_TRAIN_BATCH} out"
        )


def _is_count(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0
