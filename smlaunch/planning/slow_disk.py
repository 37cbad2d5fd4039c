"""Where a File channel meets a slow disk: a volume that takes in less than the network brings."""

from __future__ import annotations

from smlaunch.planning.io_times import Machine, Share

_WORTH_A_WARNING = 300.0
"""Seconds of waiting for the disk, at best, while the hosts are paid for and nothing trains."""


def slow_disk(share: Share, machine: Machine) -> str | None:
    """A sentence on what a File channel waits for on such a host, and what would not wait; None where it does
    not, or where the instance type is not known."""
    instance = machine.instance
    if instance is None or machine.nvme:
        return None
    with_disk, without = machine.download(share), machine.download(share, to_disk=False)
    if with_disk.low - without.low < _WORTH_A_WARNING:
        return None
    fits = machine.memory is not None and share.bytes <= machine.memory
    again = "" if fits else ", and every epoch reads it from there at that speed"
    return (
        f"mode File copies {share.bytes / 1e9:,.0f} GB to a volume of 128 to 250 MiB/s before training "
        f"begins ({with_disk}; the network alone: {without}){again}. {instance.name} has no NVMe disk; one "
        "that has does not wait for it, nor does mode FastFile."
    )
