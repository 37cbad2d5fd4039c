"""Rules for single built-in algorithms, beyond the common table.

From the algorithms' own pages in the developer guide; where two sources differ, the rule warns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from smlaunch.catalog.algorithms import Algorithm
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext

_FIRST_GPU_VERSION = (1, 2, 1)
_FIRST_DASK_VERSION = (1, 5, 1)
_FIRST_MULTI_HOST_DASK_VERSION = (1, 7, 1)
"""XGBoost's versions: the first two from AWS's announcement of distributed training on GPUs (2023-05-30), the
last from memory: that several hosts need it, the announcement does not say."""

_FIRST_UNCONFIRMED_GPU_VERSION = (3,)

_DASK_FORMATS = ("text/csv", "application/x-parquet")


def find_algorithm_problems(algorithm: Algorithm, context: LaunchContext) -> Iterator[Problem]:
    """What cannot work with this algorithm."""
    rule = _PROBLEM_RULE_BY_ALGORITHM.get(algorithm.id)
    return iter(()) if rule is None else rule(context)


def find_algorithm_warnings(algorithm: Algorithm, context: LaunchContext) -> Iterator[str]:
    """What works with this algorithm, but probably not as intended."""
    rule = _WARNING_RULE_BY_ALGORITHM.get(algorithm.id)
    return iter(()) if rule is None else rule(context)


# ---- XGBoost ---------------------------------------------------------------------------------------------


def _find_xgboost_problems(context: LaunchContext) -> Iterator[Problem]:
    """Yield what is wrong with a job that asks for XGBoost's distributed training on GPUs, which
    uses Dask.
    """
    if not _is_true_text(context.hyperparameters.get("use_dask_gpu_training")):
        return
    version = _parse_xgboost_version(context.image)  # empty where the image is not AWS's
    field = "hyperparameters.use_dask_gpu_training"
    if not _count_gpus_per_host(context):
        yield Problem(
            field, f"it trains on GPUs, and {context.instance_type} has none; take a type with GPUs"
        )
    if version and version < _FIRST_DASK_VERSION:  # 1.5-1
        yield Problem(
            field,
            f"XGBoost {_format_version(version)} does not support it; use framework_version 1.5-1 or later",
        )
    if context.hyperparameters.get("tree_method") != "gpu_hist":
        yield Problem("hyperparameters.tree_method", "use_dask_gpu_training needs gpu_hist")
    for channel_name, channel in context.channels.items():
        if channel.split is not None:  # each host would get only a part of the data
            message = (
                "use_dask_gpu_training distributes the data itself, and every host needs all of it; leave "
                "it out"
            )
            yield Problem(f"inputs.{channel_name}.split", message)
        if channel.mode != "File":
            yield Problem(f"inputs.{channel_name}.mode", "use_dask_gpu_training reads in File mode")
        # `text/csv; label_size=0`
        media_type = (channel.content_type or "").partition(";")[0].strip().lower()
        if media_type not in _DASK_FORMATS:
            message = f"use_dask_gpu_training reads {' or '.join(_DASK_FORMATS)}; state which it is"
            yield Problem(f"inputs.{channel_name}.content_type", message)


def _find_xgboost_warnings(context: LaunchContext) -> Iterator[str]:
    """Yield warnings about GPUs and hosts of the job that XGBoost does not use, or not surely. ``version`` is
    empty where the image is not AWS's.
    """
    version, gpus_per_host = _parse_xgboost_version(context.image), _count_gpus_per_host(context)
    # Dask distributes the training over GPUs.
    uses_dask = _is_true_text(context.hyperparameters.get("use_dask_gpu_training"))
    if gpus_per_host and version[:1] >= _FIRST_UNCONFIRMED_GPU_VERSION:  # 3
        version_text = _format_version(version)
        yield f"That XGBoost {version_text} uses GPUs is unconfirmed; framework_version 1.7-1 does"
    if gpus_per_host and not uses_dask:
        if context.hyperparameters.get("tree_method") != "gpu_hist":
            yield "XGBoost uses a GPU only with tree_method: gpu_hist; otherwise the GPUs are idle"
        if gpus_per_host > 1:
            yield (
                f"XGBoost uses one of the {gpus_per_host} GPUs of a host; with use_dask_gpu_training: 'true' "
                "(from 1.5-1, CSV or Parquet, all data on every host) it uses all"
            )
    if uses_dask and context.host_count > 1 and version and version < _FIRST_MULTI_HOST_DASK_VERSION:
        yield f"For GPUs of several hosts 1.7-1 is confirmed; sources differ about {_format_version(version)}"
    train_channel = context.channels.get("train")
    every_host_gets_all_data = train_channel is not None and train_channel.split is None
    if context.host_count > 1 and not uses_dask and every_host_gets_all_data:
        yield (
            f"inputs.train is not split: all {context.host_count} hosts train on the same data, and gain "
            "nothing; use split: key"
        )


def _parse_xgboost_version(image: str) -> tuple[int, ...]:
    """Version of an AWS XGBoost image; empty for other images."""
    version_match = re.search(r"/sagemaker-xgboost:(\d+)\.(\d+)-(\d+)", image)
    return tuple(map(int, version_match.groups())) if version_match else ()


def _format_version(version: tuple[int, ...]) -> str:
    """``(1, 5, 1)`` -> ``1.5-1``."""
    return "{}.{}-{}".format(*version)


def _count_gpus_per_host(context: LaunchContext) -> int:
    """GPUs of a host."""
    instance_spec = context.instance_spec
    return 0 if instance_spec is None or instance_spec.is_neuron else instance_spec.accelerators


def _is_true_text(value: Any) -> bool:
    return str(value).strip().lower() == "true"


# ---- others ----------------------------------------------------------------------------------------------


def _find_random_cut_forest_problems(context: LaunchContext) -> Iterator[Problem]:
    train_channel, test_channel = context.channels.get("train"), context.channels.get("test")
    if train_channel is not None and train_channel.split != "key":
        message = f"{context.algorithm} reads train only as ShardedByS3Key; use split: key"
        yield Problem("inputs.train.split", message)
    if test_channel is not None and test_channel.split is not None:
        yield Problem(
            "inputs.test.split", f"{context.algorithm} needs all of test on every host; leave it out"
        )


def _find_image_problems(context: LaunchContext) -> Iterator[Problem]:
    for name, channel in context.channels.items():
        is_recordio = (channel.content_type or "").lower() == "application/x-recordio"
        if channel.mode == "Pipe" and is_recordio and channel.split is not None:
            message = f"{context.algorithm} reads all recordIO data in Pipe mode on every host; leave it out"
            yield Problem(f"inputs.{name}.split", message)


def _find_image_warnings(context: LaunchContext) -> Iterator[str]:
    if context.host_count > 1 and "kv_store" not in context.hyperparameters:
        yield f"{context.algorithm} on several hosts wants hyperparameters.kv_store: dist_sync, or dist_async"


def _find_lightgbm_problems(context: LaunchContext) -> Iterator[Problem]:
    if context.host_count > 1 and "train" not in context.channels and "training" in context.channels:
        yield Problem("inputs.training", "lightgbm on several hosts reads a channel train; rename it")


def _find_blazingtext_problems(context: LaunchContext) -> Iterator[Problem]:
    if context.hyperparameters.get("mode") == "batch_skipgram" and _count_gpus_per_host(context):
        message = f"mode batch_skipgram runs on CPUs, and {context.instance_type} has GPUs"
        yield Problem("compute.instance_type", f"{message}; take a type without GPUs, or mode skipgram")


def _find_blazingtext_warnings(context: LaunchContext) -> Iterator[str]:
    if context.host_count > 1:
        yield (
            f"{context.algorithm} on {context.host_count} hosts: its own page allows it for mode "
            "batch_skipgram, the table of all algorithms does not (unconfirmed)"
        )


def _find_kmeans_warnings(context: LaunchContext) -> Iterator[str]:
    if context.host_count > 1:
        yield (
            f"{context.algorithm} on {context.host_count} hosts: its own page describes it, with split: key "
            "for train; the table of all algorithms says that it is not parallelizable"
        )


def _find_linear_learner_warnings(context: LaunchContext) -> Iterator[str]:
    """Yield advice about which inputs should be split, so that each host gets a part of the data, and which
    each host should have whole.
    """
    train_channel = context.channels.get("train")
    if context.host_count > 1 and train_channel is not None and train_channel.split is None:
        yield f"{context.algorithm} on several hosts recommends split: key for inputs.train"
    for name in ("validation", "test"):
        if name in context.channels and context.channels[name].split is not None:
            yield f"{context.algorithm} recommends all of {name} on every host: leave out inputs.{name}.split"


def _find_ipinsights_warnings(context: LaunchContext) -> Iterator[str]:
    if context.host_count > 1 and _count_gpus_per_host(context):
        yield f"{context.algorithm} uses several hosts with CPUs, and with GPUs those of one host"


def _find_factorization_machines_warnings(context: LaunchContext) -> Iterator[str]:
    if context.host_count > 1 and _count_gpus_per_host(context):
        yield f"{context.algorithm} is distributed over hosts with CPUs; GPUs are for dense data"


def _find_deepar_warnings(context: LaunchContext) -> Iterator[str]:
    if context.host_count > 1:
        yield f"{context.algorithm} gains from several hosts only with large models"


def _find_neural_topic_model_warnings(context: LaunchContext) -> Iterator[str]:
    yield f"{context.algorithm} leaves no model behind when it is stopped: give limits.max_runtime room"


_Rule = Callable[[LaunchContext], Iterator[Any]]

_PROBLEM_RULE_BY_ALGORITHM: dict[str, _Rule] = {
    "xgboost": _find_xgboost_problems,
    "randomcutforest": _find_random_cut_forest_problems,
    "image-classification": _find_image_problems,
    "object-detection": _find_image_problems,
    "lightgbm": _find_lightgbm_problems,
    "blazingtext": _find_blazingtext_problems,
}

_WARNING_RULE_BY_ALGORITHM: dict[str, _Rule] = {
    "xgboost": _find_xgboost_warnings,
    "image-classification": _find_image_warnings,
    "object-detection": _find_image_warnings,
    "blazingtext": _find_blazingtext_warnings,
    "kmeans": _find_kmeans_warnings,
    "linear-learner": _find_linear_learner_warnings,
    "ipinsights": _find_ipinsights_warnings,
    "factorization-machines": _find_factorization_machines_warnings,
    "forecasting-deepar": _find_deepar_warnings,
    "ntm": _find_neural_topic_model_warnings,
}
