"""Environment variables for Elastic Fabric Adapters: only for images too old to detect them. Pure.

AWS's launchers set FI_PROVIDER, FI_EFA_USE_DEVICE_RDMA and NCCL_PROTO for every job. Current images
contain a libfabric and an aws-ofi-nccl that detect the first two, and NCCL_PROTO=simple makes them slower.
So nothing is set for them; the job's environment overrides what is set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from smlaunch.catalog.efa import efa_interfaces, has_device_rdma

SELF_DETECTING_VERSION = (2, 1)
"""First PyTorch version whose AWS images detect EFA: those of 2.1 (2023) contain EFA installer 1.26 or
later. From memory: to be confirmed with ``fi_info -p efa`` in the image."""

_IMAGE_TAG = re.compile(
    r"/(?P<repository>[a-z0-9-]*(?:pytorch|tensorflow)[a-z0-9-]*):(?P<major>\d+)\.(?P<minor>\d+)"
)


@dataclass(frozen=True)
class EfaSettings:
    """Variables for the ranks, with the rule and the explanation."""

    variables: tuple[tuple[str, str], ...]
    rule: str
    explanation: str


def efa_settings(instance_type: str, image: str, host_count: int, has_own_image: bool) -> EfaSettings | None:
    """Return the settings of EFA, the fast network between hosts; None for one host, or for a type without
    EFA interfaces. ``has_own_image``: the job names the image, which may not be AWS's."""
    interface_count = efa_interfaces(instance_type) if host_count > 1 else 0
    if not interface_count:
        return None
    adapters = f"{instance_type} has {interface_count} EFA interface{'' if interface_count == 1 else 's'}"
    version = _framework_version(image)
    if version is None:
        if not has_own_image:
            return None
        return EfaSettings(
            (),
            "efa.own-image",
            f"{adapters}; the image must contain libfabric and aws-ofi-nccl for NCCL to use them (fi_info "
            "-p efa shows it). No variable is set.",
        )
    if version >= SELF_DETECTING_VERSION:
        return EfaSettings(
            (),
            "efa.left-to-the-image",
            f"{adapters}, which the image's libfabric finds by itself: no variable is set, and "
            "NCCL_PROTO=simple, which older launchers force, would cost speed.",
        )
    variables = [("FI_PROVIDER", "efa"), ("RDMAV_FORK_SAFE", "1")]
    if has_device_rdma(instance_type):
        variables.insert(1, ("FI_EFA_USE_DEVICE_RDMA", "1"))
    assignments = " ".join(f"{name}={value}" for name, value in variables)
    return EfaSettings(
        tuple(variables),
        "efa.old-image",
        f"{adapters}, which the libfabric of an image with {'.'.join(map(str, version))} does not find by "
        f"itself: {assignments}, unless the job's environment says otherwise.",
    )


def _framework_version(image: str) -> tuple[int, int] | None:
    """Framework version in an AWS image, by its address; None for other images."""
    if ".dkr.ecr." not in image:
        return None
    tag_match = _IMAGE_TAG.search(image)
    if tag_match is None or "tensorflow" in tag_match["repository"]:
        return None
    return int(tag_match["major"]), int(tag_match["minor"])
