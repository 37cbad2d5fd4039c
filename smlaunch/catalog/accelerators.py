"""Relative speed of accelerators, and how well several of them scale: rough estimates.

accelerators.json is maintained by hand. Two figures per accelerator, peak arithmetic and memory bandwidth,
bound the speed ratio of a training: a large model in 16 bits follows the first, small kernels the second.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from smlaunch.catalog.catalog_tables import load_catalog_table
from smlaunch.catalog.instances import InstanceType
from smlaunch.catalog.storage import Figure, find_network

CudaVersion = tuple[int, int]
"""Major and minor number."""

SLOW_NETWORK, STEADY_NETWORK, FAST_NETWORK = "slow-network", "network", "fast-network"

_STEADY_BYTES_PER_SECOND = 25e9 / 8
_FAST_BYTES_PER_SECOND = 100e9 / 8


class SpeedRatio(NamedTuple):
    """Factor of speed, from lowest to highest."""

    low: float
    high: float

    def multiply(self, other: SpeedRatio) -> SpeedRatio:
        return SpeedRatio(self.low * other.low, self.high * other.high)

    def scale(self, factor: float) -> SpeedRatio:
        return SpeedRatio(self.low * factor, self.high * factor)


def relative_speed(instance: InstanceType, reference: InstanceType) -> SpeedRatio | None:
    """Speed of one accelerator of ``instance`` relative to one of ``reference``; None if a figure is
    missing."""
    if (
        instance.accelerator == reference.accelerator
        and instance.accelerator_memory_gib == reference.accelerator_memory_gib
    ):
        return SpeedRatio(1.0, 1.0)
    peaks, reference_peaks = _peak_figures(instance), _peak_figures(reference)
    if peaks is None or reference_peaks is None:
        return None
    arithmetic_ratio = peaks.tflops / reference_peaks.tflops
    bandwidth_ratio = peaks.gb_per_second / reference_peaks.gb_per_second
    return SpeedRatio(min(arithmetic_ratio, bandwidth_ratio), max(arithmetic_ratio, bandwidth_ratio))


def scaling_efficiency(name: str) -> Figure:
    """Share of linear speed-up, by a name in accelerators.json."""
    return _efficiencies()[name]


def intra_host_efficiency(instance: InstanceType) -> Figure:
    """Scaling efficiency among the accelerators of one instance."""
    if instance.accelerators < 2:
        return scaling_efficiency("one-accelerator")
    return scaling_efficiency("nvlink" if instance.name.split(".")[1].startswith(("p", "trn")) else "pcie")


def inter_host_efficiency(instance: InstanceType) -> Figure:
    """Return the scaling efficiency among hosts of this type, by its network."""
    network = find_network(instance.name)
    if network is None or network.burst or network.bytes_per_second < _STEADY_BYTES_PER_SECOND:
        return scaling_efficiency(SLOW_NETWORK)
    is_fast = network.bytes_per_second >= _FAST_BYTES_PER_SECOND
    return scaling_efficiency(FAST_NETWORK if is_fast else STEADY_NETWORK)


def find_cuda_mismatch(accelerator: str, cuda: CudaVersion) -> str | None:
    """Return why a program that was built with this version of CUDA finds no code for the accelerator, as a
    clause; None if it finds some, or if nothing is known of the accelerator."""
    tables = load_catalog_table("accelerators")
    capability = tables["compute_capability"]["by_accelerator"].get(accelerator)
    generations = tables["cuda"]["by_major"]
    generation = generations.get(capability) or generations.get((capability or "").partition(".")[0])
    if generation is None:
        return None
    gpu_text = f"{accelerator} ({generation['name']}, compute capability {capability})"
    first, dropped = generation["first"], generation["dropped"]
    if cuda < _parse_cuda(first):
        return f"CUDA {cuda[0]}.{cuda[1]} is older than {gpu_text}, which needs CUDA {first} or later"
    if dropped is not None and cuda >= _parse_cuda(dropped):
        return f"CUDA {cuda[0]}.{cuda[1]} has no code for {gpu_text}, which needs a CUDA before {dropped}"
    return None


def _parse_cuda(text: str) -> CudaVersion:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


@cache
def _efficiencies() -> dict[str, Figure]:
    rows = load_catalog_table("accelerators")["efficiency"]
    return {name: Figure(name, unit="share", **row) for name, row in rows.items()}


class _PeakFigures(NamedTuple):
    """What an accelerator does at most: arithmetic in 16 bits, and reads of its own memory."""

    tflops: float
    gb_per_second: float


def _peak_figures(instance: InstanceType) -> _PeakFigures | None:
    """Return the peak figures of the type's accelerator; None if they are unknown."""
    table = load_catalog_table("accelerators")["accelerators"]
    memory_gib = instance.accelerator_memory_gib or 0
    # Some accelerators are sold with different memory.
    row = table.get(f"{instance.accelerator} {memory_gib:g} GiB") or table.get(instance.accelerator or "")
    return None if row is None else _PeakFigures(row["tflops"], row["gb_per_second"])
