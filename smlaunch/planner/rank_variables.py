"""Environment variables that ranks get because of their libraries and machines, each with a reason. Pure.

For Elastic Fabric Adapters only images too old to detect them get any: AWS's launchers set FI_PROVIDER,
FI_EFA_USE_DEVICE_RDMA and NCCL_PROTO for every job, but current images contain a libfabric and an
aws-ofi-nccl that detect the first two, and NCCL_PROTO=simple makes them slower. The job's environment
overrides what is set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from smlaunch.catalog.efa import efa_interfaces, has_device_rdma
from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.planner.plan_context import Diagnostics
from smlaunch.strategies.base import LaunchContext, find_imported_library

MPLBACKEND = "MPLBACKEND"


def add_rank_variables(
    spec: LaunchSpec, context: LaunchContext, has_own_image: bool, diagnostics: Diagnostics
) -> LaunchSpec:
    """Add the variables to the launch specification. ``has_own_image``: the job names its image. Variables of
    the job take precedence and are not reported."""
    variables = {
        **_display_variables(context, diagnostics),
        **_efa_variables(context, has_own_image, diagnostics),
    }
    existing_names = context.environment_names | {name for name, _ in spec.ranks.env}
    added_variables = tuple(pair for pair in variables.items() if pair[0] not in existing_names)
    if not added_variables:
        return spec
    return spec._replace(ranks=spec.ranks._replace(env=(*spec.ranks.env, *added_variables)))


def _display_variables(context: LaunchContext, diagnostics: Diagnostics) -> dict[str, str]:
    """Hosts have no display, and some backends of matplotlib fail without one."""
    if (
        MPLBACKEND in context.environment_names
        or find_imported_library(context.imports, ("matplotlib",)) is None
    ):
        return {}
    diagnostics.add_reason(
        "display.matplotlib",
        f"{context.entry_point} imports matplotlib, and hosts have no display: ranks get {MPLBACKEND}=Agg, "
        "which draws to files (savefig).",
    )
    return {MPLBACKEND: "Agg"}


def _efa_variables(context: LaunchContext, has_own_image: bool, diagnostics: Diagnostics) -> dict[str, str]:
    """Variables for EFA adapters."""
    if context.target != "aws":
        return {}
    settings = efa_settings(context.instance_type, context.image, context.host_count, has_own_image)
    if settings is None:
        return {}
    diagnostics.add_reason(settings.rule, settings.explanation)
    return dict(settings.variables)


EFA_DETECTING_VERSION = (2, 1)
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
    """Return the environment variables for EFA, AWS's fast network between hosts, and the reason for them;
    None for one host, or for an instance type without EFA interfaces. ``has_own_image``: the job names the
    image, which may not be AWS's."""
    interface_count = efa_interfaces(instance_type) if host_count > 1 else 0
    if not interface_count:
        return None
    interfaces_text = (
        f"{instance_type} has {interface_count} EFA interface{'' if interface_count == 1 else 's'}"
    )
    # None for an image that is not, by its name, one of AWS's for PyTorch.
    framework_version = _framework_version(image)
    if framework_version is None and not has_own_image:
        return None
    if framework_version is None:
        return EfaSettings(
            variables=(),
            rule="efa.own-image",
            explanation=f"{interfaces_text}; the image must contain libfabric and aws-ofi-nccl for NCCL to "
            "use them (fi_info -p efa shows it). No variable is set.",
        )
    # From PyTorch 2.1 on the image's libfabric detects EFA.
    if framework_version >= EFA_DETECTING_VERSION:
        return EfaSettings(
            variables=(),
            rule="efa.left-to-the-image",
            explanation=f"{interfaces_text}, which the image's libfabric finds by itself: no variable is "
            "set, and NCCL_PROTO=simple, which older launchers force, would cost speed.",
        )
    # With RDMA the network reaches the GPUs' memory without the CPU; some types have it.
    rdma_variables = [("FI_EFA_USE_DEVICE_RDMA", "1")] if has_device_rdma(instance_type) else []
    variables = (("FI_PROVIDER", "efa"), *rdma_variables, ("RDMAV_FORK_SAFE", "1"))
    assignments = " ".join(f"{name}={value}" for name, value in variables)
    version_text = ".".join(map(str, framework_version))
    return EfaSettings(
        variables=variables,
        rule="efa.old-image",
        explanation=f"{interfaces_text}, which the libfabric of an image with {version_text} does not find "
        f"by itself: {assignments}, unless the job's environment says otherwise.",
    )


def _framework_version(image: str) -> tuple[int, int] | None:
    """Framework version in an AWS image, by its address; None for other images."""
    if ".dkr.ecr." not in image:
        return None
    tag_match = _IMAGE_TAG.search(image)
    if tag_match is None or "tensorflow" in tag_match["repository"]:
        return None
    return int(tag_match["major"]), int(tag_match["minor"])
