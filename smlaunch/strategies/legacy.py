"""What smddp and smp have in common: libraries that AWS has stopped developing."""

from __future__ import annotations

from collections.abc import Collection

from smlaunch.errors import Problem
from smlaunch.strategies.base import Setting

WHY_DDP = (
    "strategy: ddp is the default, because NCCL over EFA is in every image of today and on every type that "
    "has EFA"
)


def instance_problem(setting: Setting, name: str, runs_on: Collection[str]) -> list[Problem]:
    """``runs_on``: the instance types there are."""
    if setting.instance_type in runs_on or (setting.instance is not None and setting.instance.is_neuron):
        return []  # on Trainium the strategy is at fault, and refused as that
    told = f"{name} runs on {_listed(runs_on)} alone, not on {setting.instance_type}; take one, or use ddp"
    return [Problem("compute.instance_type", told)]


def repository_and_tag(image: str) -> tuple[str, str]:
    """``("pytorch-training", "2.2.0-gpu-py310")`` of an image of AWS's; two empty words of any other."""
    host, _, rest = image.partition("/")
    if ".dkr.ecr." not in host:
        return "", ""
    repository, _, tag = rest.partition(":")
    return repository, tag


def _listed(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
