"""Estimate how long a workload takes on given machines and what it costs, from one measurement. Pure.

The user states one number: the time on one accelerator, or on one host without accelerators. All other
figures are in the catalog (accelerators.json, instances.json, storage.json), each with its source or
marked as an assumption. Plans rely on the slow end of a range; the fast end is only a possibility.
"""

from __future__ import annotations

from dataclasses import dataclass

from smlaunch.catalog.accelerators import (
    SpeedRatio,
    inter_host_efficiency,
    intra_host_efficiency,
    relative_speed,
    scaling_efficiency,
)
from smlaunch.catalog.instances import InstanceType
from smlaunch.catalog.prices import HourlyPrice
from smlaunch.storage.read_time_estimates import ZERO_SECONDS, DataShare, EstimateRange, HostProfile

STARTUP_RANGE = EstimateRange(low=60.0, high=600.0)
"""Seconds billed before training begins, without data: image download and imports. An assumption."""

MODEL_MEMORY_SHARE = 0.8
"""Share of an accelerator's memory that the user's model_memory may use: the rest is for CUDA and
fragmentation. An assumption."""


@dataclass(frozen=True)
class Measurement:
    """Time that the user measured on one accelerator, or on one host."""

    seconds: float
    """Duration of the work."""

    instance: InstanceType
    """The instance type it was measured on."""

    on_accelerator: bool
    """Measured on one accelerator of that type; otherwise on one whole host."""

    is_instance_stated: bool
    """The job names the instance type; otherwise it is assumed."""

    def is_same_kind(self, instance: InstanceType) -> bool:
        """Whether ``instance`` has the same accelerator, or is the same type of host."""
        if self.on_accelerator:
            return instance.accelerator == self.instance.accelerator
        return instance.name == self.instance.name


@dataclass(frozen=True)
class HostGroup:
    """The hosts of a job: number, instance type, ranks."""

    instance: InstanceType
    host_count: int
    ranks_per_host: int
    """Ranks per host."""

    ranks_communicate: bool = True
    """Ranks exchange gradients; otherwise they share nothing."""

    is_cpu_bound: bool = False
    """The CPUs limit the speed too."""

    @property
    def busy_accelerators(self) -> int:
        """Accelerators in use on one host."""
        return min(self.ranks_per_host, self.instance.accelerators)


def speedup(host_group: HostGroup, measurement: Measurement) -> SpeedRatio | None:
    """Return the speed of all hosts relative to the machine that the user measured, as a range of factors;
    None if the two accelerators cannot be compared."""
    host_speedup = _host_speedup(host_group, measurement)
    if host_speedup is None or host_group.host_count == 1:
        return host_speedup
    # Several hosts are less than that many times as fast as one: a share of it, as a range.
    efficiency = (
        inter_host_efficiency(host_group.instance)
        if host_group.ranks_communicate
        else scaling_efficiency("share-nothing")
    )
    speedup_per_host = host_speedup.multiply(SpeedRatio(low=efficiency.low, high=efficiency.high))
    return speedup_per_host.scale(host_group.host_count)


def _host_speedup(host_group: HostGroup, measurement: Measurement) -> SpeedRatio | None:
    """Return the speed of one host relative to the machine that the user measured, as a range of factors;
    None if the two accelerators cannot be compared. A busy accelerator is one that has a rank; a host is
    CPU-bound if its preprocessing is heavy."""
    vcpu_ratio = host_group.instance.vcpu / measurement.instance.vcpu
    if not measurement.on_accelerator:
        # Whether the program uses more vCPU is unknown.
        return SpeedRatio(low=min(1.0, vcpu_ratio), high=max(1.0, vcpu_ratio))
    # Of one accelerator; None if the catalog lacks a figure.
    device_speedup = relative_speed(host_group.instance, measurement.instance)
    if device_speedup is None:
        return None
    # Several accelerators of a host are less than that many times as fast as one: a share of it, as a range.
    host_efficiency = (
        intra_host_efficiency(host_group.instance)
        if host_group.busy_accelerators > 1
        else scaling_efficiency("one-accelerator")
    )
    accelerators_speedup = device_speedup.multiply(
        SpeedRatio(low=host_efficiency.low, high=host_efficiency.high)
    ).scale(host_group.busy_accelerators)
    if not host_group.is_cpu_bound:
        return accelerators_speedup
    # The slower of both limits the host.
    return SpeedRatio(
        low=min(accelerators_speedup.low, vcpu_ratio), high=min(accelerators_speedup.high, vcpu_ratio)
    )


def estimate_duration(
    host_group: HostGroup, measurement: Measurement, copied_data: DataShare
) -> EstimateRange | None:
    """Seconds from the start of billing to the end. ``copied_data``: what one host's File channels
    download first."""
    speed_ratio = speedup(host_group, measurement)
    if speed_ratio is None:
        return None
    work_seconds = EstimateRange(
        low=measurement.seconds / speed_ratio.high, high=measurement.seconds / speed_ratio.low
    )
    download_seconds = (
        HostProfile(instance=host_group.instance, hosts=host_group.host_count).download_time(copied_data)
        if copied_data.bytes
        else ZERO_SECONDS
    )
    return work_seconds + STARTUP_RANGE + download_seconds


def estimate_hourly_price(price: HourlyPrice, host_count: int) -> EstimateRange:
    """Dollars per hour of all hosts."""
    dollars = price.dollars * host_count
    return EstimateRange(low=dollars * (1 - price.relative_error), high=dollars * (1 + price.relative_error))


def estimate_price(per_hour: EstimateRange, seconds: EstimateRange) -> EstimateRange:
    """Dollars."""
    return EstimateRange(low=per_hour.low * seconds.low / 3600, high=per_hour.high * seconds.high / 3600)
