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

    def check(self, context: LaunchContext) -> list[Problem]:
        problems = super().check(context)
        config_option = context.options.get("config")
        if config_option is not None and (
            not isinstance(config_option, str) or config_option not in context.json_files
        ):
            message = f"{config_option!r} is not a .json file in the source, which it is relative to"
            return [*problems, Problem("options.config", message)]
        config_name, field = _config_and_field(context)
        if config_name in context.json_files:
            ranks = _data_parallel_ranks(context)
            problems += [
                Problem(field, f"{config_name}: {message}")
                for message in config_problems(context.json_files[config_name], ranks)
            ]
        return problems

    def advice(self, context: LaunchContext) -> list[str]:
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
        is_cpu_only = (
            context.target == "aws" and context.instance is not None and not context.instance.accelerators
        )
        return (("DS_ACCELERATOR", "cpu"),) if is_cpu_only else ()


def _data_parallel_ranks(context: LaunchContext) -> int | None:
    """Number of data-parallel ranks; None if unknown: with ``auto`` ranks, or if some of them share a
    model."""
    shares_model = any(name.startswith(_MODEL_PARALLEL_MODULES) for name in context.imports)
    return (
        context.hosts * context.processes_per_host
        if isinstance(context.processes_per_host, int) and not shares_model
        else None
    )


def _config_and_field(context: LaunchContext) -> tuple[str, str]:
    """Name of the configuration and the field that names it; empty if the script reads one that the job
    does not name."""
    config_option = context.options.get("config")
    if config_option is not None:
        return str(config_option), "options.config"
    for key in ("deepspeed_config", "deepspeed"):
        value = context.hyperparameters.get(key)
        if isinstance(value, str):
            return value, f"hyperparameters.{key}"
        for index, argument in enumerate(context.args):
            name, separator, value_text = argument.partition("=")
            if name == f"--{key}":
                following = context.args[index + 1 : index + 2]
                return value_text if separator else "".join(following), f"args[{index}]"
    return "", ""


def config_problems(text: str, ranks: int | None) -> Iterator[str]:
    """Problems of a DeepSpeed configuration with ``ranks`` data-parallel ranks (None: unknown), each a
    clause with the next step. Source: deepspeed 0.19.8, runtime/config.py, _set_batch_related_parameters
    and _batch_assertion."""
    try:
        settings = json.loads(text)
    except ValueError as error:
        yield f"it is not JSON ({error}); correct it"
        return
    if not isinstance(settings, dict):
        yield "it is not a JSON object; DeepSpeed's settings are the keys of one"
        return
    zero_settings = settings.get("zero_optimization", {})
    stage = zero_settings.get("stage", 0) if isinstance(zero_settings, dict) else zero_settings
    if stage not in (0, 1, 2, 3, _AUTO) or isinstance(stage, bool):
        yield f"zero_optimization.stage is 0, 1, 2 or 3, not {stage!r}"
    yield from _batch_problems(
        settings, None if any(key in settings for key in _MODEL_PARALLEL_KEYS) else ranks
    )


def _batch_problems(settings: Mapping[str, Any], ranks: int | None) -> Iterator[str]:
    """Problems of the batch sizes."""
    sizes = {name: settings.get(name) for name in (_TRAIN_BATCH, _MICRO_BATCH, _ACCUMULATION)}
    if _AUTO in sizes.values():
        return
    invalid_keys = [name for name, size in sizes.items() if size is not None and not _is_count(size)]
    for name in invalid_keys:
        yield f"{name} is a whole number from 1, not {sizes[name]!r}"
    train_batch, micro_batch = sizes[_TRAIN_BATCH], sizes[_MICRO_BATCH]
    if train_batch is None and micro_batch is None:
        yield f"it names neither {_TRAIN_BATCH} nor {_MICRO_BATCH}; DeepSpeed needs one of them"
    elif train_batch is not None and ranks is not None and not invalid_keys:
        accumulation_steps = sizes[_ACCUMULATION]
        if micro_batch is None:
            accumulation_steps = accumulation_steps or 1
            micro_batch = max(1, train_batch // ranks // accumulation_steps)
        elif accumulation_steps is None:
            accumulation_steps = max(1, train_batch // micro_batch // ranks)
        if micro_batch * accumulation_steps * ranks != train_batch:
            yield (
                f"{_TRAIN_BATCH} {train_batch} is not {_MICRO_BATCH} {micro_batch} x {_ACCUMULATION} "
                f"{accumulation_steps} x {ranks} ranks; change one, or leave {_TRAIN_BATCH} out"
            )


def _is_count(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0
