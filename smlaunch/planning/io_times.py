"""How long the ways to data take: ranges, computed from the catalog's figures for one host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from smlaunch.catalog import storage
from smlaunch.catalog.instances import InstanceType
from smlaunch.catalog.storage import figure

_TIB = 2**40


@dataclass(frozen=True)
class Range:
    """Seconds, from the best that is expected to the worst."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def times(self, count: int) -> Range:
        return Range(self.low * count, self.high * count)

    def __str__(self) -> str:
        if self.high == 0:
            return "none"
        low, high = _words(self.low), _words(self.high)
        if self.high < 1:
            return "under 1 s"
        if low == high:
            return f"about {high}"
        if low.partition(" ")[2] == high.partition(" ")[2]:
            low = low.partition(" ")[0]
        return f"{low} to {high}"


NOTHING = Range(0, 0)


@dataclass(frozen=True)
class Share:
    """What one host reads: ``bytes`` in ``files``."""

    bytes: float
    files: float

    def packed(self) -> Share:
        """The same in tar shards."""
        return Share(self.bytes, math.ceil(self.bytes / figure("shard_bytes").low))


@dataclass(frozen=True)
class Machine:
    """One of ``hosts`` equal hosts, of a type that may not be known. Without an instance type, figures that
    hold for every one are used: S3 then has no network that would limit it."""

    instance: InstanceType | None = None
    hosts: int = 1

    @property
    def network(self) -> float:
        """Bytes a second, nominal."""
        known = None if self.instance is None else storage.network(self.instance.name)
        return math.inf if known is None else known.bytes_per_second

    @property
    def memory(self) -> float | None:
        """Bytes that data may take."""
        if self.instance is None:
            return None
        return self.instance.memory_gib * 2**30 * figure("memory_share").low

    @property
    def nvme(self) -> float:
        """Bytes of the host's own disk that data may take; 0 where the host has a volume, or nobody knows."""
        if self.instance is None or not self.instance.nvme_gb:
            return 0.0
        return self.instance.nvme_gb * 1e9 * figure("disk_share").low

    @property
    def disk_bytes(self) -> float:
        """What data may take of the host's disk; a volume is made as large as it has to be, up to a limit."""
        return self.nvme or figure("volume_bytes").high * figure("disk_share").low

    @property
    def readers(self) -> tuple[int, int]:
        """How many files are read at once, at least and at most: by each rank itself, or by a loader's
        worker for each processor."""
        if self.instance is None:
            return 1, 4
        least = max(1, self.instance.accelerators)
        return least, max(least, self.instance.vcpu)

    @property
    def disk(self) -> storage.Figure:
        return figure("nvme" if self.nvme else "volume")

    def _s3(self) -> tuple[float, float]:
        """Bytes a second of a download, at least and at most."""
        most = self.network * figure("s3_network_share").low
        least = min(figure("s3_download").low, most)
        return least, max(least, most if math.isfinite(most) else figure("nvme").high)

    def download(self, share: Share, *, to_disk: bool = True) -> Range:
        """Everything before training begins."""
        least, most = self._s3()
        if to_disk:
            most = min(most, self.disk.high)
            least = min(least, self.disk.low)
        wait, flight = figure("s3_first_byte"), figure("s3_in_flight")
        requests = figure("s3_requests").low / self.hosts
        slow = min(flight.low / wait.high, requests)
        fast = min(flight.high / wait.low, requests)
        return Range(
            max(share.bytes / most, share.files / fast), max(share.bytes / least, share.files / slow)
        )

    def stream(self, share: Share, first_byte: storage.Figure | None = None) -> Range:
        """One reading of all files straight from S3, whole and one after the other by each reader."""
        wait = figure("s3_first_byte") if first_byte is None else first_byte
        one = figure("s3_stream")
        least, most = self.readers
        # A host cannot have more readers at work than there are files.
        least, most = (max(1, min(count, math.ceil(share.files))) for count in (least, most))
        limit = self.network * figure("s3_network_share").low
        return Range(
            max(share.bytes / min(most * one.high, limit), share.files * wait.low / most),
            share.bytes / min(least * one.low, limit) + share.files * wait.high / least,
        )

    def from_disk(self, share: Share) -> Range:
        wait = figure("disk_first_byte")
        least, most = self.readers
        return Range(
            max(share.bytes / self.disk.high, share.files * wait.low / most),
            share.bytes / self.disk.low + share.files * wait.high / least,
        )

    def from_memory(self, share: Share) -> Range:
        rate = figure("memory_rate").low
        least, most = self.readers
        return Range(share.bytes / (rate * most), share.bytes / (rate * least))

    def from_fsx(self, share: Share, stored: float) -> Range:
        """``stored``: bytes of the whole data set, which a file system of its size holds for all hosts."""
        size = max(figure("fsx_least_tib").low, stored / _TIB)
        rate, wait = figure("fsx_per_tib"), figure("fsx_first_byte")
        least, most = self.readers
        limits = [min(size * per_tib / self.hosts, self.network) for per_tib in (rate.low, rate.high)]
        return Range(
            max(share.bytes / limits[1], share.files * wait.low / most),
            share.bytes / limits[0] + share.files * wait.high / least,
        )


def _words(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``: two digits say all that is known."""
    for unit, length, until in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{_digits(seconds / length)} {unit}"
    return f"{_digits(seconds / 86_400)} days"


def _digits(value: float) -> str:
    if value < 1:
        return "<1"
    return f"{value:.1f}" if value < 9.95 and round(value, 1) != round(value) else f"{value:,.0f}"
