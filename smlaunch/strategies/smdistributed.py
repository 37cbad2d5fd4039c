"""Common parts of smddp and smp: libraries that AWS no longer develops."""

from __future__ import annotations

from collections.abc import Collection

from smlaunch.catalog.image_address import parse_image_address
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext

WHY_DDP = (
    "strategy: ddp is the default, because NCCL over EFA is in every image of today and on every type that "
    "has EFA"
)


def instance_type_problems(
    context: LaunchContext, library: str, supported_types: Collection[str]
) -> list[Problem]:
    """Problem of an instance type that ``library`` does not run on."""
    if context.instance_type in supported_types or (
        context.instance_spec is not None and context.instance_spec.is_neuron
    ):
        return []  # on Trainium another rule reports the strategy
    message = (
        f"{library} runs only on {_list_text(supported_types)}, not on {context.instance_type}; use one of "
        "them, or strategy: ddp"
    )
    return [Problem("compute.instance_type", message)]


def repository_and_tag(image: str) -> tuple[str, str]:
    """``("pytorch-training", "2.2.0-gpu-py310")`` for an AWS image; two empty strings for others."""
    address = parse_image_address(image)
    return (address.repository, address.tag) if address.is_of_aws else ("", "")


def _list_text(names: Collection[str]) -> str:
    *first_names, last_name = names
    return f"{', '.join(first_names)} and {last_name}" if first_names else last_name
