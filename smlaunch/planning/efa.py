"""Variables for Elastic Fabric Adapters: only where an image is too old to find them by itself. Pure.

AWS's launchers set FI_PROVIDER, FI_EFA_USE_DEVICE_RDMA and NCCL_PROTO for every job. Images of today bring a
libfabric and an aws-ofi-nccl that detect the first two, and forcing NCCL_PROTO=simple costs speed there. So
nothing is set for them; and what is set can be overridden by the job's environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from smlaunch.catalog.efa import has_device_rdma, interfaces

DETECTS_FROM = (2, 1)
"""PyTorch version of AWS's images from which EFA is found without variables: those of 2.1 (2023) bring EFA
installer 1.26 and later. From memory: to be confirmed with ``fi_info -p efa`` in the image."""

_TAG = re.compile(
    r"/(?P<repository>[a-z0-9-]*(?:pytorch|tensorflow)[a-z0-9-]*):(?P<major>\d+)\.(?P<minor>\d+)"
)


@dataclass(frozen=True)
class Efa:
    """``variables`` for the ranks, and why: a rule's name and a sentence."""

    variables: tuple[tuple[str, str], ...]
    rule: str
    because: str


def efa(instance_type: str, image: str, hosts: int, own_image: bool) -> Efa | None:
    """None where there is nothing to say: one host, or a type without adapters. ``own_image``: the job named
    the image, which may not be AWS's."""
    count = interfaces(instance_type) if hosts > 1 else 0
    if not count:
        return None
    adapters = f"{instance_type} has {count} EFA interface{'' if count == 1 else 's'}"
    version = _version(image)
    if version is None:
        if not own_image:
            return None
        return Efa(
            (),
            "efa.own-image",
            f"{adapters}; the image has to bring libfabric and aws-ofi-nccl for NCCL to use them "
            "(fi_info -p efa shows it). No variable is set.",
        )
    if version >= DETECTS_FROM:
        return Efa(
            (),
            "efa.left-to-the-image",
            f"{adapters}, which the image's libfabric finds by itself: no variable is set, and "
            "NCCL_PROTO=simple, which older launchers force, would cost speed.",
        )
    variables = [("FI_PROVIDER", "efa"), ("RDMAV_FORK_SAFE", "1")]
    if has_device_rdma(instance_type):
        variables.insert(1, ("FI_EFA_USE_DEVICE_RDMA", "1"))
    told = " ".join(f"{name}={value}" for name, value in variables)
    return Efa(
        tuple(variables),
        "efa.old-image",
        f"{adapters}, which the libfabric of an image with {'.'.join(map(str, version))} does not find by "
        f"itself: {told}, unless the job's environment says otherwise.",
    )


def _version(image: str) -> tuple[int, int] | None:
    """Of the framework in one of AWS's images, by its address; None for other images."""
    if ".dkr.ecr." not in image:
        return None
    match = _TAG.search(image)
    if match is None or "tensorflow" in match["repository"]:
        return None
    return int(match["major"]), int(match["minor"])
