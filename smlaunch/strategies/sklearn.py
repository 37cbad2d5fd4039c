"""sklearn: one process on one host, whose cores scikit-learn uses through joblib."""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy


class Sklearn(Strategy):
    name = "sklearn"
    summary = "trains in one process of one host, whose cores joblib uses (n_jobs=-1)"
    rendezvous = False
    image_family = "sklearn"
    trainium_support = "no"
    one_process_per_host = True
    joins_hosts = False
    libraries = ("sklearn",)
    # Many scripts import scikit-learn only for a metric; its image has none of these.
    excluded_libraries = (
        "torch",
        "tensorflow",
        "keras",
        "jax",
        "flax",
        "lightgbm",
        "catboost",
        "mxnet",
        "paddle",
    )
    more_ranks_hint = "joblib starts its own (n_jobs)"

    def unimported_consequence(self, context: LaunchContext) -> str:
        return ""  # one process on one host: nothing else is started

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        if context.host_count == 1:
            return []
        message = (
            f"scikit-learn uses one host, and {context.host_count} would train the same "
            f"{context.host_count} times; use one host, or strategy: share-nothing if each host "
            "has its own work"
        )
        return [Problem("compute.hosts", message, change="--hosts 1")]
