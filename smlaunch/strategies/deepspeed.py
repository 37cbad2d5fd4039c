"""deepspeed: ranks that DeepSpeed joins by the variables torchrun sets, without its launcher and its ssh."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import Ref, Word
from smlaunch.strategies.base import Setting
from smlaunch.strategies.ddp import DDP

_AUTO = "auto"
"""Hugging Face's Trainer fills these in itself."""

_TRAIN, _MICRO, _ACCUMULATED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)

_SHARES_A_MODEL = ("megatron", "deepspeed.pipe", "deepspeed.runtime.pipe", "deepspeed.utils.groups")
_DIVIDES = ("sequence_parallel_size", "tensor_parallel", "data_parallel_size", "elasticity")
"""Modules and keys after which fewer ranks share the batch than there are."""


class DeepSpeed(DDP):
    name = "deepspeed"
    summary = (
        "starts every rank with the variables that DeepSpeed joins by; neither its launcher nor ssh is used"
    )
    joined_by_script = False
    libraries = ("deepspeed",)
    other_libraries = (*DDP.libraries, *DDP.other_libraries)
    options: ClassVar[Mapping[str, str]] = {
        "config": "DeepSpeed's JSON file in the source, which the script gets as --deepspeed_config"
    }

    def check(self, setting: Setting) -> list[Problem]:
        problems = super().check(setting)
        option = setting.options.get("config")
        if option is not None and (not isinstance(option, str) or option not in setting.files):
            told = f"{option!r} is not a .json file in the source, which it is relative to"
            return [*problems, Problem("options.config", told)]
        name, field = _config_of(setting)
        if name in setting.files:
            ranks = _data_parallel_ranks(setting)
            problems += [Problem(field, f"{name}: {told}") for told in faults(setting.files[name], ranks)]
        return problems

    def advice(self, setting: Setting) -> list[str]:
        if setting.target == "aws" and "/pytorch" in setting.image and setting.requirements is None:
            return ["AWS's PyTorch image is not known to bring deepspeed; name it in a requirements file"]
        return []

    def command(self, setting: Setting) -> tuple[Word, ...]:
        config = setting.options.get("config")
        *words, hyperparameters = super().command(setting)
        given = () if config is None else ("--deepspeed_config", Ref("source", suffix=f"/{config}"))
        return (*words, *given, hyperparameters)

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        without = (
            setting.target == "aws" and setting.instance is not None and not setting.instance.accelerators
        )
        return (("DS_ACCELERATOR", "cpu"),) if without else ()


def _data_parallel_ranks(setting: Setting) -> int | None:
    """None where only the hosts know: of ``auto`` ranks, or where some of them share a model."""
    divided = any(name.startswith(_SHARES_A_MODEL) for name in setting.imports)
    return setting.hosts * setting.per_host if isinstance(setting.per_host, int) and not divided else None


def _config_of(setting: Setting) -> tuple[str, str]:
    """The configuration's name and the field that names it; a script may read one that nobody sees here."""
    option = setting.options.get("config")
    if option is not None:
        return str(option), "options.config"
    for key in ("deepspeed_config", "deepspeed"):
        value = setting.hyperparameters.get(key)
        if isinstance(value, str):
            return value, f"hyperparameters.{key}"
        for index, word in enumerate(setting.args):
            name, equals, rest = word.partition("=")
            if name == f"--{key}":
                following = setting.args[index + 1 : index + 2]
                return rest if equals else "".join(following), f"args[{index}]"
    return "", ""


def faults(text: str, ranks: int | None) -> Iterator[str]:
    """What DeepSpeed would refuse of a configuration with so many data-parallel ranks (None: not known
    beforehand), each as a clause with the next step. Source: deepspeed 0.19.8, runtime/config.py,
    _set_batch_related_parameters and _batch_assertion."""
    try:
        config = json.loads(text)
    except ValueError as error:
        yield f"it is not JSON ({error}); mend it"
        return
    if not isinstance(config, dict):
        yield "it is not a JSON object; DeepSpeed's settings are the keys of one"
        return
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, dict) else zero
    if stage not in (0, 1, 2, 3, _AUTO) or isinstance(stage, bool):
        yield f"zero_optimization.stage is 0, 1, 2 or 3, not {stage!r}"
    yield from _batch_faults(config, None if any(key in config for key in _DIVIDES) else ranks)


def _batch_faults(config: Mapping[str, Any], ranks: int | None) -> Iterator[str]:
    sizes = {name: config.get(name) for name in (_TRAIN, _MICRO, _ACCUMULATED)}
    if _AUTO in sizes.values():
        return
    wrong = [name for name, size in sizes.items() if size is not None and not _counts(size)]
    for name in wrong:
        yield f"{name} is a whole number from 1, not {sizes[name]!r}"
    train, micro = sizes[_TRAIN], sizes[_MICRO]
    if train is None and micro is None:
        yield f"it names neither {_TRAIN} nor {_MICRO}; DeepSpeed needs one of them"
    elif train is not None and ranks is not None and not wrong:
        accumulated = sizes[_ACCUMULATED]
        if micro is None:
            accumulated = accumulated or 1
            micro = max(1, train // ranks // accumulated)
        elif accumulated is None:
            accumulated = max(1, train // micro // ranks)
        if micro * accumulated * ranks != train:
            yield (
                f"{_TRAIN} {train} is not {_MICRO} {micro} x {_ACCUMULATED} {accumulated} x {ranks} ranks; "
                f"change one, or leave {_TRAIN} out"
            )


def _counts(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0
