"""The ways to read a data set, each with whether it is possible for a job and its estimated times. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from smlaunch.catalog.storage import storage_figure
from smlaunch.facts.dataset_stats import DatasetStats
from smlaunch.storage.read_time_estimates import ZERO_SECONDS, DataShare, EstimateRange, HostProfile
from smlaunch.text.format import format_size

Platform = Literal["training", "processing", "slurm"]
"""Where the job runs: a training or processing job of SageMaker, or a Slurm cluster."""


StorageVerdict = Literal["take", "first", "works", "poor", "cannot"]
"""``take``: the chosen option; ``first``: a preparation step before it; ``works``: an alternative;
``poor``: possible, but unsuitable here; ``cannot``: impossible."""


MEMORY = "memory"


FILE = "File"


FASTFILE = "FastFile"


PIPE = "Pipe"


SHARDS = "shards"


FSX = "FSx for Lustre"


EXPRESS = "S3 Express One Zone"


ETL = "EMR, Glue or Spark"


TMPDIR = "$SLURM_TMPDIR"


SHARED_STORAGE = "shared storage"


@dataclass(frozen=True)
class AccessPattern:
    """How the job reads its data."""

    epochs: int | None = None
    """How often all data is read; None if unknown, which counts as more than once."""

    random_access: bool = False
    """Samples are read in random order within files."""

    is_data_split: bool = False
    """Each host reads only its own share."""

    platform: Platform = "training"

    @property
    def reads_repeatedly(self) -> bool:
        return self.epochs is None or self.epochs > 1


@dataclass(frozen=True)
class StorageOption:
    """One way to read the data, with its verdict and estimated times. A time is None if it cannot be
    estimated."""

    name: str
    verdict: StorageVerdict
    explanation: str
    startup: EstimateRange | None = None
    """Seconds until training begins."""

    first_epoch: EstimateRange | None = None
    """Seconds to read all data the first time."""

    later_epoch: EstimateRange | None = None
    """Seconds to read all data again."""

    def total_time(self, epochs: int) -> EstimateRange | None:
        if self.startup is None or self.first_epoch is None or self.later_epoch is None:
            return None
        return self.startup + self.first_epoch + self.later_epoch.scaled(epochs - 1)

    def to_dict(self, epochs: int | None) -> dict[str, Any]:
        total_time = self.total_time(epochs) if epochs else None
        times_by_phase = {
            "before": self.startup,
            "first_epoch": self.first_epoch,
            "epoch": self.later_epoch,
            "total": total_time,
        }
        seconds = {
            name: None if time_range is None else [round(time_range.low, 1), round(time_range.high, 1)]
            for name, time_range in times_by_phase.items()
        }
        return {"way": self.name, "verdict": self.verdict, "because": self.explanation, "seconds": seconds}


@dataclass(frozen=True)
class AdviceContext:
    """The inputs of one comparison."""

    dataset: DatasetStats
    access: AccessPattern
    host: HostProfile
    host_data: DataShare
    """What one host reads before packing."""

    data_to_read: DataShare
    """What one host reads after packing, if packing comes first."""

    pack_first: bool

    @property
    def fits_memory(self) -> bool:
        """Whether a host's data is at most about 10 GB and fits in the host's free memory; False if the data
        was not counted to its end."""
        free_bytes = self.host.memory_bytes
        fits_free_memory = free_bytes is None or self.host_data.bytes <= free_bytes
        is_small = self.host_data.bytes <= storage_figure("memory_bytes").low
        return is_small and fits_free_memory and not self.dataset.is_truncated

    @property
    def fits_disk(self) -> bool:
        return self.host_data.bytes <= self.host.disk_bytes

    @property
    def suits_local_disk(self) -> bool:
        """Whether a host's data is at most about 100 GB and fits on the host's disk; False if the data was
        not counted to its end."""
        is_small = self.host_data.bytes <= storage_figure("local_bytes").low
        return is_small and self.fits_disk and not self.dataset.is_truncated


def list_sagemaker_options(context: AdviceContext) -> tuple[StorageOption, ...]:
    """Return all ways to read the data on SageMaker, none of them chosen yet."""
    return (
        _memory_option(context),
        _file_option(context),
        _fastfile_option(context),
        _pipe_option(context),
        _fsx_option(context),
        _express_option(context),
        _etl_option(context),
    )


def _memory_option(context: AdviceContext) -> StorageOption:
    """Return the option of a File channel that stays in the page cache, and whether it is possible, with the
    estimated times of the download and of an epoch."""
    memory_bytes = context.host.memory_bytes  # that data may use; None for an unknown instance type
    works_in_memory = StorageOption(
        name=MEMORY,
        verdict="works",
        explanation="a File channel, read once and then cached in memory",
        startup=context.host.download_time(context.data_to_read),
        first_epoch=context.host.disk_read_time(context.data_to_read),
        later_epoch=context.host.memory_read_time(context.data_to_read),
    )
    if context.fits_memory:
        return works_in_memory
    # About 10 GB, which most instance types have: here the host's memory is too small.
    usual_memory_bytes = storage_figure("memory_bytes").low
    if memory_bytes is not None and context.host_data.bytes <= usual_memory_bytes:
        return StorageOption(
            name=MEMORY,
            verdict="cannot",
            explanation=f"the host has {size_text(memory_bytes)} of memory to spare",
        )
    # More than that, but this instance type has a large memory. Truncated: the data's full size is unknown.
    fits_large_memory = memory_bytes is not None and context.host_data.bytes <= memory_bytes
    if fits_large_memory and not context.dataset.is_truncated:
        return replace(works_in_memory, explanation="this host's memory is large enough")
    return StorageOption(
        name=MEMORY,
        verdict="cannot",
        explanation=f"{size_text(context.host_data.bytes)} do not fit in a host's memory",
    )


def _file_option(context: AdviceContext) -> StorageOption:
    """Return the option of a File channel, copied to the host's disk before training begins."""
    host = context.host
    # data_to_read: what one host reads, after packing into shards if that comes first.
    startup, epoch_time = host.download_time(context.data_to_read), host.disk_read_time(context.data_to_read)
    if not context.fits_disk:
        explanation = f"the host's disk has {size_text(host.disk_bytes)} to spare, and cannot be made larger"
        return StorageOption(name=FILE, verdict="cannot", explanation=explanation)
    disk_text = "NVMe disk" if host.nvme_bytes else "volume, 128 to 250 MiB/s, as large as compute.volume_gb"
    explanation = f"copied to the host's {disk_text}, before training begins"
    rereads_slow_volume = not host.nvme_bytes and context.access.reads_repeatedly and not context.fits_memory
    if rereads_slow_volume:
        explanation += "; every epoch reads it at that speed, so consider an instance type with NVMe disks"
    return StorageOption(
        name=FILE,
        verdict="works",
        explanation=explanation,
        startup=startup,
        first_epoch=epoch_time,
        later_epoch=epoch_time,
    )


def _fastfile_option(context: AdviceContext) -> StorageOption:
    """Return the option of a FastFile channel, streamed from S3 in every epoch."""
    if context.access.platform == "processing":
        return StorageOption(
            name=FASTFILE, verdict="cannot", explanation="a processing job has no such input"
        )
    if context.access.random_access:
        return StorageOption(
            name=FASTFILE,
            verdict="poor",
            explanation="every random read is a request of its own, answered after 0.1 to 0.2 s",
            startup=ZERO_SECONDS,
        )
    epoch_time = context.host.stream_time(context.data_to_read)
    reads_small_files = (
        context.dataset.has_small_files and context.dataset.files > 1 and not context.pack_first
    )
    explanation = "starts at once; every epoch streams from S3 again"
    if reads_small_files:
        explanation = "starts at once; every small file is a request that a reader waits for, in every epoch"
    return StorageOption(
        name=FASTFILE,
        verdict="works",
        explanation=explanation,
        startup=ZERO_SECONDS,
        first_epoch=epoch_time,
        later_epoch=epoch_time,
    )


def _pipe_option(context: AdviceContext) -> StorageOption:
    """A Pipe channel."""
    if context.access.random_access:
        return StorageOption(
            name=PIPE, verdict="cannot", explanation="a pipe is read in order, once per epoch"
        )
    epoch_time = context.host.download_time(context.data_to_read, to_disk=False)
    explanation = "for built-in algorithms and augmented manifests; FastFile streams as well, and gives files"
    return StorageOption(
        name=PIPE,
        verdict="works",
        explanation=explanation,
        startup=ZERO_SECONDS,
        first_epoch=epoch_time,
        later_epoch=epoch_time,
    )


def _fsx_option(context: AdviceContext) -> StorageOption:
    """Return the option of a file system FSx for Lustre, filled from S3 as it is read."""
    host = context.host
    if context.access.platform == "processing":
        return StorageOption(name=FSX, verdict="cannot", explanation="a processing job's inputs come from S3")
    epoch_time = host.fsx_read_time(context.data_to_read, context.dataset.bytes)
    first_epoch = EstimateRange(
        low=epoch_time.low, high=(host.stream_time(context.data_to_read) + epoch_time).high
    )
    min_tib = max(storage_figure("fsx_least_tib").low, context.dataset.bytes / 2**40)
    is_large = context.host_data.bytes > storage_figure("local_bytes").low
    explanation = (
        f"{min_tib:.1f} TiB or more, linked to the bucket, in a VPC, billed while it exists: for large data "
        "read by many jobs, or in random order. smlaunch has no channel for it yet: request it with "
        "FileSystemDataSource"
    )
    return StorageOption(
        name=FSX,
        verdict="works" if is_large or context.access.random_access else "poor",
        explanation=explanation,
        startup=ZERO_SECONDS,
        first_epoch=first_epoch,
        later_epoch=epoch_time,
    )


def _express_option(context: AdviceContext) -> StorageOption:
    """Return the option of S3 Express One Zone, storage in the job's own availability zone."""
    if context.access.platform == "processing":
        return StorageOption(
            name=EXPRESS,
            verdict="poor",
            explanation="a copy at the start does not need low latency, once files are packed",
        )
    epoch_time = context.host.stream_time(context.data_to_read, storage_figure("express_first_byte"))
    explanation = (
        "a directory bucket in the job's own availability zone, answering in single-digit milliseconds: "
        "for small or random reads that cannot be packed; the data is copied there first, and costs more "
        "to store"
    )
    is_suitable = context.access.random_access or (
        context.dataset.has_small_files and not context.fits_memory
    )
    return StorageOption(
        name=EXPRESS,
        verdict="works" if is_suitable else "poor",
        explanation=explanation,
        startup=ZERO_SECONDS,
        first_epoch=epoch_time,
        later_epoch=epoch_time,
    )


def _etl_option(context: AdviceContext) -> StorageOption:
    """Return the option of ETL before training, for large text tables."""
    table_bytes = context.dataset.table_bytes or 0
    is_mostly_tables = 2 * table_bytes >= context.dataset.bytes
    is_large = context.dataset.bytes > storage_figure("local_bytes").low
    if is_mostly_tables and is_large:
        return StorageOption(
            name=ETL,
            verdict="first",
            explanation=f"{size_text(table_bytes)} are text tables: filtering, joining and parsing them in "
            "every epoch is ETL. Do it once, with Spark (SageMaker Processing's PySpark image, EMR or Glue), "
            "and train on the resulting Parquet files or shards",
        )
    return StorageOption(
        name=ETL,
        verdict="poor",
        explanation="for filtering, joining and parsing tables at scale, not for reading samples",
    )


def packing_option(context: AdviceContext) -> StorageOption:
    """Return the option of packing the files into shards before training."""
    dataset = context.dataset
    shard_count = math.ceil(DataShare(bytes=dataset.bytes, files=0).as_shards().files)
    files_text = f"{math.ceil(dataset.files):,} files of {size_text(dataset.mean_bytes)} on average"
    shards_text = f"{shard_count:,} tar shard{'s' if shard_count != 1 else ''} of about 150 MB"
    if context.access.platform == "slurm":
        explanation = (
            f"{files_text} go into {shards_text}: shared file systems have a quota of files, and many small "
            "ones slow them down"
        )
    else:
        download_time = context.host.download_time(context.host_data)
        explanation = (
            f"{files_text} are as many requests, {download_time} before training; in {shards_text} only "
            "their size counts"
        )
    return StorageOption(name=SHARDS, verdict="first", explanation=explanation)


def size_text(size_bytes: float) -> str:
    return format_size(round(size_bytes))
