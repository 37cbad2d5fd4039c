"""sklearn: one process on one host, whose cores scikit-learn shares out by joblib."""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.strategies.base import Setting, Strategy


class Sklearn(Strategy):
    name = "sklearn"
    summary = "trains in one process of one host, whose cores joblib uses (n_jobs=-1)"
    rendezvous = False
    family = "sklearn"
    trainium = "no"
    one_per_host = True
    joins_hosts = False
    libraries = ("sklearn",)
    # Many scripts import scikit-learn for a metric; its image has none of these.
    never_with = ("torch", "tensorflow", "keras", "jax", "flax", "lightgbm", "catboost", "mxnet", "paddle")
    instead_of_ranks = "joblib starts its own (n_jobs)"

    def unimported(self, setting: Setting) -> str:
        return ""  # one process on one host: nothing is started that it would not use

    def check(self, setting: Setting) -> list[Problem]:
        if setting.hosts == 1:
            return []
        told = (
            f"scikit-learn knows one host, and {setting.hosts} would train the same {setting.hosts} times; "
            "ask for one, or for strategy: share-nothing where each host has work of its own"
        )
        return [Problem("compute.hosts", told)]
