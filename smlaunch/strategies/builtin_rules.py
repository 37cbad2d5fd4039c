"""What holds for single built-in algorithms, beyond the table that all are in.

From the algorithms' own pages in the developer guide; what two sources say differently is not refused, but
told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from smlaunch.catalog.algorithms import Algorithm
from smlaunch.errors import Problem
from smlaunch.strategies.base import Setting

_GPU_FROM = (1, 2, 1)
_DASK_FROM = (1, 5, 1)
_DASK_HOSTS_FROM = (1, 7, 1)
"""XGBoost's versions: the first two from AWS's announcement of distributed training on GPUs (2023-05-30), the
last from memory: that several hosts need it, the announcement does not say."""

_GPU_UNKNOWN_FROM = (3,)

_DASK_FORMATS = ("text/csv", "application/x-parquet")


def problems_of(algorithm: Algorithm, setting: Setting) -> Iterator[Problem]:
    """What cannot work with this one."""
    rule = _PROBLEMS.get(algorithm.id)
    return iter(()) if rule is None else rule(setting)


def advice_of(algorithm: Algorithm, setting: Setting) -> Iterator[str]:
    """What works, but probably not as meant."""
    rule = _ADVICE.get(algorithm.id)
    return iter(()) if rule is None else rule(setting)


# ---- XGBoost ---------------------------------------------------------------------------------------------


def _xgboost_problems(setting: Setting) -> Iterator[Problem]:
    version, gpus = _version(setting.image), _gpus(setting)
    wants_dask = _is_true(setting.hyperparameters.get("use_dask_gpu_training"))
    where = "hyperparameters.use_dask_gpu_training"
    if not wants_dask:
        return
    if not gpus:
        yield Problem(
            where, f"it trains on GPUs, and {setting.instance_type} has none; take a type with GPUs"
        )
    if version and version < _DASK_FROM:
        yield Problem(where, f"XGBoost {_dotted(version)} has it not; take framework_version 1.5-1 or later")
    if setting.hyperparameters.get("tree_method") != "gpu_hist":
        yield Problem("hyperparameters.tree_method", "use_dask_gpu_training needs gpu_hist")
    for name, channel in setting.channels.items():
        if channel.split is not None:
            told = "use_dask_gpu_training shares the data out itself, and every host needs all; leave it out"
            yield Problem(f"inputs.{name}.split", told)
        if channel.mode != "File":
            yield Problem(f"inputs.{name}.mode", "use_dask_gpu_training reads in File mode")
        kind = (channel.content_type or "").partition(";")[0].strip().lower()
        if kind not in _DASK_FORMATS:
            told = f"use_dask_gpu_training reads {' or '.join(_DASK_FORMATS)}; state which it is"
            yield Problem(f"inputs.{name}.content_type", told)


def _xgboost_advice(setting: Setting) -> Iterator[str]:
    version, gpus = _version(setting.image), _gpus(setting)
    dask = _is_true(setting.hyperparameters.get("use_dask_gpu_training"))
    if gpus and version[:1] >= _GPU_UNKNOWN_FROM:
        yield f"That XGBoost {_dotted(version)} uses GPUs is unconfirmed; framework_version 1.7-1 does"
    if gpus and not dask:
        if setting.hyperparameters.get("tree_method") != "gpu_hist":
            yield "XGBoost uses a GPU with tree_method: gpu_hist alone; without it the GPUs stay idle"
        if gpus > 1:
            yield (
                f"XGBoost uses one of the {gpus} GPUs of a host; with use_dask_gpu_training: 'true' (from "
                "1.5-1, CSV or Parquet, all data on every host) it uses all"
            )
    if dask and setting.hosts > 1 and version and version < _DASK_HOSTS_FROM:
        yield f"For GPUs of several hosts 1.7-1 is sure; of {_dotted(version)} sources say different things"
    train = setting.channels.get("train")
    if setting.hosts > 1 and not dask and train is not None and train.split is None:
        yield (
            f"inputs.train is not split: all {setting.hosts} hosts train on the same data, and gain nothing; "
            "say split: key"
        )


def _version(image: str) -> tuple[int, ...]:
    """Of one of AWS's XGBoost images; empty where it is another's."""
    found = re.search(r"/sagemaker-xgboost:(\d+)\.(\d+)-(\d+)", image)
    return tuple(map(int, found.groups())) if found else ()


def _dotted(version: tuple[int, ...]) -> str:
    """``(1, 5, 1)`` -> ``1.5-1``."""
    return "{}.{}-{}".format(*version)


def _gpus(setting: Setting) -> int:
    known = setting.instance
    return 0 if known is None or known.is_neuron else known.accelerators


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() == "true"


# ---- others ----------------------------------------------------------------------------------------------


def _forest_problems(setting: Setting) -> Iterator[Problem]:
    train, test = setting.channels.get("train"), setting.channels.get("test")
    if train is not None and train.split != "key":
        told = f"{setting.algorithm} reads train as ShardedByS3Key alone; say split: key"
        yield Problem("inputs.train.split", told)
    if test is not None and test.split is not None:
        yield Problem(
            "inputs.test.split", f"{setting.algorithm} needs all of test on every host; leave it out"
        )


def _image_problems(setting: Setting) -> Iterator[Problem]:
    for name, channel in setting.channels.items():
        recordio = (channel.content_type or "").lower() == "application/x-recordio"
        if channel.mode == "Pipe" and recordio and channel.split is not None:
            told = f"{setting.algorithm} reads recordIO in Pipe mode on every host whole; leave it out"
            yield Problem(f"inputs.{name}.split", told)


def _image_advice(setting: Setting) -> Iterator[str]:
    if setting.hosts > 1 and "kv_store" not in setting.hyperparameters:
        yield f"{setting.algorithm} on several hosts wants hyperparameters.kv_store: dist_sync, or dist_async"


def _lightgbm_problems(setting: Setting) -> Iterator[Problem]:
    if setting.hosts > 1 and "train" not in setting.channels and "training" in setting.channels:
        yield Problem("inputs.training", "lightgbm on several hosts reads a channel train; rename it")


def _blazingtext_problems(setting: Setting) -> Iterator[Problem]:
    if setting.hosts > 1 and setting.hyperparameters.get("mode") == "batch_skipgram" and _gpus(setting):
        told = f"batch_skipgram trains on several hosts with CPUs alone, and {setting.instance_type} has GPUs"
        yield Problem("compute.instance_type", f"{told}; take a type without, or one host")


def _blazingtext_advice(setting: Setting) -> Iterator[str]:
    if setting.hosts > 1:
        yield (
            f"{setting.algorithm} on {setting.hosts} hosts: its own page allows it for mode batch_skipgram, "
            "the table of all algorithms does not (unconfirmed)"
        )


def _kmeans_advice(setting: Setting) -> Iterator[str]:
    if setting.hosts > 1:
        yield (
            f"{setting.algorithm} on {setting.hosts} hosts: its own page describes it, with split: key for "
            "train; the table of all algorithms says that it is not parallelizable"
        )


def _sharded_advice(setting: Setting) -> Iterator[str]:
    train = setting.channels.get("train")
    if setting.hosts > 1 and train is not None and train.split is None:
        yield f"{setting.algorithm} on several hosts recommends split: key for inputs.train"
    for name in ("validation", "test"):
        if name in setting.channels and setting.channels[name].split is not None:
            yield f"{setting.algorithm} recommends all of {name} on every host: leave out inputs.{name}.split"


def _ipinsights_advice(setting: Setting) -> Iterator[str]:
    if setting.hosts > 1 and _gpus(setting):
        yield f"{setting.algorithm} uses several hosts with CPUs, and with GPUs those of one host"


def _machines_advice(setting: Setting) -> Iterator[str]:
    if setting.hosts > 1 and _gpus(setting):
        yield f"{setting.algorithm} is distributed over hosts with CPUs; GPUs are for dense data"


def _deepar_advice(setting: Setting) -> Iterator[str]:
    if setting.hosts > 1:
        yield f"{setting.algorithm} gains from several hosts with large models alone"


def _topics_advice(setting: Setting) -> Iterator[str]:
    yield f"{setting.algorithm} leaves no model behind when it is stopped: give limits.max_runtime room"


_Rule = Callable[[Setting], Iterator[Any]]

_PROBLEMS: dict[str, _Rule] = {
    "xgboost": _xgboost_problems,
    "randomcutforest": _forest_problems,
    "image-classification": _image_problems,
    "object-detection": _image_problems,
    "lightgbm": _lightgbm_problems,
    "blazingtext": _blazingtext_problems,
}

_ADVICE: dict[str, _Rule] = {
    "xgboost": _xgboost_advice,
    "image-classification": _image_advice,
    "object-detection": _image_advice,
    "blazingtext": _blazingtext_advice,
    "kmeans": _kmeans_advice,
    "linear-learner": _sharded_advice,
    "ipinsights": _ipinsights_advice,
    "factorization-machines": _machines_advice,
    "forecasting-deepar": _deepar_advice,
    "ntm": _topics_advice,
}
