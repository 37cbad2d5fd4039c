"""Estimated time of one host to read data, by storage: ranges computed from the catalog's figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from smlaunch.catalog import storage
from smlaunch.catalog.instances import InstanceType
from smlaunch.catalog.storage import storage_figure

_TIB = 2**40


@dataclass(frozen=True)
class EstimateRange:
    """An estimate, usually in seconds, from the best to the worst expected value."""

    low: float
    high: float

    def __add__(self, other: EstimateRange) -> EstimateRange:
        return EstimateRange(low=self.low + other.low, high=self.high + other.high)

    def scaled(self, count: int) -> EstimateRange:
        return EstimateRange(low=self.low * count, high=self.high * count)

    def __str__(self) -> str:
        """Return a range of seconds for messages, such as ``2 to 3 min`` or ``about 10 s``."""
        if self.high == 0:
            return "none"
        if self.high < 1:
            return "under 1 s"
        low_text, high_text = _format_seconds(self.low), _format_seconds(self.high)
        if low_text == high_text:
            return f"about {high_text}"
        # The unit is written once if both ends have the same.
        low_number, _, low_unit = low_text.partition(" ")
        high_unit = high_text.partition(" ")[2]
        return f"{low_number if low_unit == high_unit else low_text} to {high_text}"


ZERO_SECONDS = EstimateRange(low=0, high=0)


class DataShare(NamedTuple):
    """Amount of data that one host reads."""

    bytes: float
    files: float

    def as_shards(self) -> DataShare:
        """The same data packed into tar shards."""
        return DataShare(bytes=self.bytes, files=math.ceil(self.bytes / storage_figure("shard_bytes").low))


class HostProfile(NamedTuple):
    """Storage and network figures of one host of a job."""

    instance: InstanceType | None = None
    """The instance type; None uses figures that hold for every type, without a network limit."""

    hosts: int = 1
    """Number of equal hosts, which share S3's request limit and the file system."""

    @property
    def network_bytes_per_second(self) -> float:
        """Nominal network rate; infinite if unknown."""
        known_network = None if self.instance is None else storage.find_network(self.instance.name)
        return math.inf if known_network is None else known_network.bytes_per_second

    @property
    def memory_bytes(self) -> float | None:
        """Memory that data may use; None if the type is unknown."""
        if self.instance is None:
            return None
        return self.instance.memory_gib * 2**30 * storage_figure("memory_share").low

    @property
    def nvme_bytes(self) -> float:
        """Bytes of the host's NVMe disk that data may use; 0 for a host with a volume, or of an unknown
        type."""
        if self.instance is None or not self.instance.nvme_gb:
            return 0.0
        return self.instance.nvme_gb * 1e9 * storage_figure("disk_share").low

    @property
    def disk_bytes(self) -> float:
        """Bytes of the host's disk that data may use; a volume is sized as needed, up to a limit."""
        return self.nvme_bytes or storage_figure("volume_bytes").high * storage_figure("disk_share").low

    @property
    def reader_counts(self) -> tuple[int, int]:
        """Minimum and maximum number of files read at once: one per rank, or one per vCPU (loader
        workers)."""
        if self.instance is None:
            return 1, 4
        min_readers = max(1, self.instance.accelerators)
        return min_readers, max(min_readers, self.instance.vcpu)

    @property
    def disk_figure(self) -> storage.Figure:
        return storage_figure("nvme" if self.nvme_bytes else "volume")

    def _s3_rates(self) -> tuple[float, float]:
        """Minimum and maximum download rate from S3, in bytes per second."""
        network_limit = self.network_bytes_per_second * storage_figure("s3_network_share").low
        min_rate = min(storage_figure("s3_download").low, network_limit)
        # If the network is unknown: no faster than the fastest disk.
        max_rate = network_limit if math.isfinite(network_limit) else storage_figure("nvme").high
        return min_rate, max(min_rate, max_rate)

    def download_time(self, host_data: DataShare, *, to_disk: bool = True) -> EstimateRange:
        """Time to download all data before training begins."""
        min_rate, max_rate = self._s3_rates()
        if to_disk:
            max_rate = min(max_rate, self.disk_figure.high)
            min_rate = min(min_rate, self.disk_figure.low)
        first_byte, in_flight = storage_figure("s3_first_byte"), storage_figure("s3_in_flight")
        request_limit = storage_figure("s3_requests").low / self.hosts
        min_requests = min(in_flight.low / first_byte.high, request_limit)
        max_requests = min(in_flight.high / first_byte.low, request_limit)
        return EstimateRange(
            low=max(host_data.bytes / max_rate, host_data.files / max_requests),
            high=max(host_data.bytes / min_rate, host_data.files / min_requests),
        )

    def stream_time(self, host_data: DataShare, first_byte: storage.Figure | None = None) -> EstimateRange:
        """Return the time to read all files once directly from S3, each reader one whole file after the
        other."""
        first_byte_wait = storage_figure("s3_first_byte") if first_byte is None else first_byte
        stream_rate = storage_figure("s3_stream")
        # There are at most as many active readers as files.
        file_count = max(1, math.ceil(host_data.files))
        min_readers, max_readers = (min(count, file_count) for count in self.reader_counts)
        network_limit = self.network_bytes_per_second * storage_figure("s3_network_share").low
        return EstimateRange(
            low=max(
                host_data.bytes / min(max_readers * stream_rate.high, network_limit),
                host_data.files * first_byte_wait.low / max_readers,
            ),
            high=host_data.bytes / min(min_readers * stream_rate.low, network_limit)
            + host_data.files * first_byte_wait.high / min_readers,
        )

    def disk_read_time(self, host_data: DataShare) -> EstimateRange:
        first_byte_wait = storage_figure("disk_first_byte")
        min_readers, max_readers = self.reader_counts
        return EstimateRange(
            low=max(
                host_data.bytes / self.disk_figure.high, host_data.files * first_byte_wait.low / max_readers
            ),
            high=host_data.bytes / self.disk_figure.low
            + host_data.files * first_byte_wait.high / min_readers,
        )

    def memory_read_time(self, host_data: DataShare) -> EstimateRange:
        rate = storage_figure("memory_rate").low
        min_readers, max_readers = self.reader_counts
        return EstimateRange(
            low=host_data.bytes / (rate * max_readers), high=host_data.bytes / (rate * min_readers)
        )

    def fsx_read_time(self, host_data: DataShare, dataset_bytes: float) -> EstimateRange:
        """Time to read from FSx for Lustre. ``dataset_bytes``: size of the whole data set, which
        determines the file system's capacity and rate."""
        capacity_tib = max(storage_figure("fsx_least_tib").low, dataset_bytes / _TIB)
        rate_per_tib, first_byte_wait = storage_figure("fsx_per_tib"), storage_figure("fsx_first_byte")
        min_readers, max_readers = self.reader_counts
        rate_limits = [
            min(capacity_tib * per_tib / self.hosts, self.network_bytes_per_second)
            for per_tib in (rate_per_tib.low, rate_per_tib.high)
        ]
        return EstimateRange(
            low=max(host_data.bytes / rate_limits[1], host_data.files * first_byte_wait.low / max_readers),
            high=host_data.bytes / rate_limits[0] + host_data.files * first_byte_wait.high / min_readers,
        )


def _format_seconds(seconds: float) -> str:
    """Format seconds with two digits: ``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    for unit, unit_seconds, limit_seconds in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < limit_seconds:
            return f"{_two_digits(seconds / unit_seconds)} {unit}"
    return f"{_two_digits(seconds / 86_400)} days"


def _two_digits(value: float) -> str:
    """Return a number with one digit behind the point if it is below 10 and the digit is not 0."""
    if value < 1:
        return "<1"
    has_decimal = value < 9.95 and round(value, 1) != round(value)
    return f"{value:.1f}" if has_decimal else f"{value:,.0f}"
