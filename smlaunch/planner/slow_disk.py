"""Warning about a File channel on a slow disk: a volume that writes slower than the network delivers."""

from __future__ import annotations

from smlaunch.planner.throughput import DataShare, HostProfile

_MIN_WAIT_SECONDS = 300.0
"""Minimum time in seconds that hosts wait for the disk, at best, without training."""


def slow_disk_warning(host_data: DataShare, host: HostProfile) -> str | None:
    """Warning about the time a File channel waits for the disk, with alternatives; None if the disk is not
    the limit, or the instance type is unknown."""
    instance = host.instance
    if instance is None or host.nvme_bytes:
        return None
    time_with_disk, time_by_network = (
        host.download_time(host_data),
        host.download_time(host_data, to_disk=False),
    )
    if time_with_disk.low - time_by_network.low < _MIN_WAIT_SECONDS:
        return None
    fits_memory = host.memory_bytes is not None and host_data.bytes <= host.memory_bytes
    epoch_text = "" if fits_memory else ", and every epoch reads it from there at that speed"
    return (
        f"mode File copies {host_data.bytes / 1e9:,.0f} GB to a volume of 128 to 250 MiB/s before training "
        f"begins ({time_with_disk}; the network alone: {time_by_network}){epoch_text}. {instance.name} has "
        "no NVMe disk; one that has does not wait for it, nor does mode FastFile."
    )
