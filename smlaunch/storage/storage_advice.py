"""Advice on how a job should read its data: each option with its time, and why it is chosen or not. Pure.

The size limits are those of HPC clusters and of AWS alike: up to about 10 GB is read from memory, up to
about 100 GB from the host's own disk, more is read where it is stored; many small files are packed into
archives first. The figures and their sources are in catalog/storage.json; computed times are ranges, not
promises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from smlaunch.catalog.storage import Figure, find_network, storage_figure
from smlaunch.facts.dataset_stats import DatasetStats
from smlaunch.storage.read_time_estimates import DataShare, EstimateRange, HostProfile
from smlaunch.storage.storage_options import (
    EXPRESS,
    FASTFILE,
    FILE,
    FSX,
    MEMORY,
    PIPE,
    SHARED_STORAGE,
    TMPDIR,
    AccessPattern,
    AdviceContext,
    Platform,
    StorageOption,
    list_sagemaker_options,
    packing_option,
    size_text,
)

_MIN_PACKING_GAIN_SECONDS = 60.0
"""Seconds per host that packing must save, at the slow end of the estimate, to be worth its own step."""


@dataclass(frozen=True)
class StorageAdvice:
    """The chosen option, the alternatives and the reasons."""

    dataset: DatasetStats
    access: AccessPattern
    host: HostProfile
    host_data: DataShare
    """What one host reads."""

    pack_first: bool
    """Small files are packed into shards first; the times of ``options`` are those after packing."""

    options: tuple[StorageOption, ...]
    reasons: tuple[str, ...]
    """Why the option is chosen, in order of importance."""

    notes: tuple[str, ...]
    assumptions: tuple[Figure, ...]
    """The figures that the times are computed from."""

    @property
    def chosen(self) -> StorageOption:
        """The option with verdict ``take``."""
        return next(option for option in self.options if option.verdict == "take")

    @property
    def mode(self) -> str | None:
        """The input mode of a channel that follows the advice; None if the option is not a channel."""
        if self.access.platform == "slurm":
            return None
        return {MEMORY: FILE, EXPRESS: FASTFILE, FSX: None}.get(self.chosen.name, self.chosen.name)

    def to_dict(self) -> dict[str, Any]:
        host = self.host
        return {
            "data": self.dataset.to_dict(),
            "needs": {
                "epochs": self.access.epochs,
                "random_access": self.access.random_access,
                "split": self.access.is_data_split,
                "place": self.access.platform,
            },
            "hosts": host.hosts,
            "instance_type": host.instance.name if host.instance else None,
            "per_host": {"bytes": round(self.host_data.bytes), "files": math.ceil(self.host_data.files)},
            "take": self.chosen.name,
            "mode": self.mode,
            "pack_first": self.pack_first,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "ways": [option.to_dict(self.access.epochs) for option in self.options],
            "assumed": [row._asdict() for row in self.assumptions],
        }


def advise_storage(dataset: DatasetStats, access: AccessPattern, host: HostProfile) -> StorageAdvice:
    """Compare all ways to read a data set, such as input modes and file systems, and choose one.

    ``dataset``: its number and size of files, at least one. ``access``: how the job reads it. ``host``:
    network, memory and disk of one host.
    """
    # Each host reads only its share of split data.
    share_count = host.hosts if access.is_data_split else 1
    host_data = DataShare(bytes=dataset.bytes / share_count, files=dataset.files / share_count)
    pack_first = _is_worth_packing(dataset, access, host, host_data)
    # As many bytes, in fewer and larger files if they are packed first.
    data_to_read = host_data.as_shards() if pack_first else host_data
    context = AdviceContext(
        dataset=dataset,
        access=access,
        host=host,
        host_data=host_data,
        data_to_read=data_to_read,
        pack_first=pack_first,
    )
    if access.platform == "slurm":
        options, reasons = _compare_slurm_options(context)
    else:
        options, reasons = _compare_sagemaker_options(context)
    if access.random_access:
        # How long an epoch takes depends on the number of reads, which is unknown.
        options = tuple(_without_epoch_times(option) for option in options)
    if pack_first:
        options = (packing_option(context), *options)
    return StorageAdvice(
        dataset=dataset,
        access=access,
        host=host,
        host_data=host_data,
        pack_first=pack_first,
        options=options,
        reasons=reasons,
        notes=_additional_notes(context),
        # Figures such as the latency of S3, from which the times are computed.
        assumptions=_assumed_figures(access.platform, host),
    )


# ---- on SageMaker ----------------------------------------------------------------------------------------


def _compare_sagemaker_options(
    context: AdviceContext,
) -> tuple[tuple[StorageOption, ...], tuple[str, ...]]:
    """Return the ways to read the data on SageMaker, the best one with the verdict ``take``, and the reasons
    for it."""
    chosen_name, reasons = _choose_sagemaker_option(context)
    if context.access.platform == "processing" and chosen_name not in (MEMORY, FILE):
        chosen_name, reasons = _choose_for_processing(context, reasons)
    return _mark_chosen(list_sagemaker_options(context), chosen_name), tuple(reasons)


def _mark_chosen(options: Iterable[StorageOption], chosen_name: str) -> tuple[StorageOption, ...]:
    """Return the options, that of the name ``chosen_name`` with the verdict ``take``."""
    return tuple(
        replace(option, verdict="take") if option.name == chosen_name else option for option in options
    )


def _choose_sagemaker_option(context: AdviceContext) -> tuple[str, list[str]]:
    """Return the name of the best way to read the data on SageMaker, and the reasons: by the size of what one
    host reads, how often it is read and in which order.

    Best is memory (for up to about 10 GB), then the host's disk (about 100 GB), then storage that is read
    over the network. FILE copies the data to the disk, FASTFILE streams it from S3; FSX and EXPRESS are
    faster storage. ``is_truncated``: there is more data than was counted."""
    access, amount_text = context.access, size_text(context.host_data.bytes)
    if context.fits_memory:
        return MEMORY, [
            f"{amount_text} per host are about 10 GB or less: they fit in memory, and training should not "
            "read from a disk at all. A File channel copies them, and one read caches them."
        ]
    if context.suits_local_disk:
        reads_large_files = context.pack_first or not context.dataset.has_small_files
        if not access.reads_repeatedly and not access.random_access and reads_large_files:
            return FASTFILE, [
                f"{amount_text} per host are read once, in order: a copy on the host's disk would be read "
                "only once too, so training need not wait for it."
            ]
        return FILE, [
            f"{amount_text} per host are about 100 GB or less: they are copied to the host's own disk once, "
            "which is faster and steadier than reading them from storage that others share."
        ]
    reason = f"{amount_text} per host are more than about 100 GB"
    if not context.fits_disk:
        spare_text = size_text(context.host.disk_bytes)
        reason = f"{amount_text} per host do not fit in the {spare_text} of free disk space"
    if context.dataset.is_truncated:
        reason = f"there are {amount_text} per host or more (counting stopped)"
    if access.random_access and access.reads_repeatedly:
        if context.host.nvme_bytes and context.fits_disk and not context.dataset.is_truncated:
            return FILE, [
                f"{reason}, but they fit on the host's own NVMe disk, and random reads want one: S3 answers "
                "each only after 0.1 to 0.2 s."
            ]
        return FSX, [
            f"{reason}, and samples are read in random order, again and again: a file system that answers in "
            "less than a millisecond, filled from S3 as it is read, serves that; S3 takes 0.1 to 0.2 s."
        ]
    if access.random_access:
        return EXPRESS, [
            f"{reason}, and samples are read in random order, but once: storage that answers in "
            "single-digit milliseconds serves that without a file system."
        ]
    return FASTFILE, [
        f"{reason}: they stay in S3 and are read as streams, in large pieces (one large chunk every few "
        "seconds rather than many small ones every second), while training goes on."
    ]


def _choose_for_processing(context: AdviceContext, reasons: list[str]) -> tuple[str, list[str]]:
    """Best option of a processing job, which has only the input modes File and Pipe."""
    if context.fits_disk:
        copy_reason = (
            "Inputs of a processing job are copied or piped: it is the copy, and splitting it over several "
            "hosts (ShardedByS3Key over shards of one size) makes it shorter."
        )
        return FILE, [*reasons[:-1], copy_reason]
    return PIPE, [
        "It does not fit on the host's disk, and inputs of a processing job are copied or piped: a pipe, "
        "read in order, or more hosts, until a share fits on each."
    ]


# ---- on Slurm --------------------------------------------------------------------------------------------


def _compare_slurm_options(context: AdviceContext) -> tuple[tuple[StorageOption, ...], tuple[str, ...]]:
    """Return the ways to read the data on a Slurm cluster, the best one with the verdict ``take``, and the
    reasons for it. The best is memory for about 10 GB, the node's own disk ($SLURM_TMPDIR) for about 100 GB,
    otherwise shared storage."""
    amount_text = size_text(context.host_data.bytes)
    memory_text = "memory of the job: copy to $SLURM_TMPDIR first, then read once and cache"
    tmpdir_text = "the node's own disk: one archive, copied and unpacked at the start of the job"
    shared_text = "home, project and scratch: rarely and in large pieces, never many small reads"
    if context.fits_memory:
        chosen_name = MEMORY
        reason = (
            f"{amount_text} per host are about 10 GB or less: they fit in memory, and training should not "
            "read from a disk at all (request that much --mem)."
        )
    elif context.host_data.bytes <= storage_figure("local_bytes").low and not context.dataset.is_truncated:
        chosen_name = TMPDIR
        reason = (
            f"{amount_text} per host are about 100 GB or less: the node's own disk is far faster and more "
            "reliable than storage that others share."
        )
    else:
        chosen_name = SHARED_STORAGE
        reason = (
            f"{amount_text} per host may not fit on the node: they stay on shared storage, which is for "
            "reading seldom and much (one large chunk every 10 seconds rather than 10 small ones every "
            "second)."
        )
    fits_on_node = chosen_name != SHARED_STORAGE
    options = (
        StorageOption(
            name=MEMORY, verdict="works" if context.fits_memory else "cannot", explanation=memory_text
        ),
        StorageOption(name=TMPDIR, verdict="works" if fits_on_node else "cannot", explanation=tmpdir_text),
        StorageOption(
            name=SHARED_STORAGE, verdict="poor" if fits_on_node else "works", explanation=shared_text
        ),
    )
    return _mark_chosen(options, chosen_name), (reason,)


def _without_epoch_times(option: StorageOption) -> StorageOption:
    """Remove the epoch times: the time of random reads depends on their number. Reads from memory are not
    slower."""
    return option if option.name == MEMORY else replace(option, first_epoch=None, later_epoch=None)


# ---- packing, and what else to know ----------------------------------------------------------------------


def _is_worth_packing(
    dataset: DatasetStats, access: AccessPattern, host: HostProfile, host_data: DataShare
) -> bool:
    """Whether there are many small files, and packing them saves enough time or inodes."""
    if not dataset.has_small_files or dataset.files < 2:
        return False
    if access.platform == "slurm":
        return dataset.files >= storage_figure("archive_files").low
    return (
        _packing_gain(host, host_data).high >= _MIN_PACKING_GAIN_SECONDS
        and host_data.files >= 2 * host_data.as_shards().files
    )


def _packing_gain(host: HostProfile, host_data: DataShare) -> EstimateRange:
    """Seconds that one download is shorter with shards instead of files."""
    unpacked_time, packed_time = host.download_time(host_data), host.download_time(host_data.as_shards())
    return EstimateRange(
        low=max(0.0, unpacked_time.low - packed_time.low),
        high=max(0.0, unpacked_time.high - packed_time.high),
    )


def _additional_notes(context: AdviceContext) -> tuple[str, ...]:
    """Return what else the user should know: what is unknown and assumed, and what limits the estimates."""
    access, host = context.access, context.host
    if access.platform == "slurm":
        return (
            "A node's disk may be full of other users' files: check what is free in $SLURM_TMPDIR before the "
            "copy, and fall back to shared storage with large reads.",
        )
    note_texts: list[str] = []
    instance_note = _note_about_instance(host)
    if instance_note is not None:
        note_texts.append(instance_note)
    if host.hosts > 1 and not access.is_data_split:
        note_texts.append(
            f"Every one of {host.hosts} hosts reads everything; with a share for each (split: bytes) it is "
            f"{size_text(context.dataset.bytes / host.hosts)} per host."
        )
    if access.random_access:
        note_texts.append(
            "How long an epoch of random reads takes depends on their number, which is not known."
        )
    if access.epochs is None:
        note_texts.append("How often everything is read (--epochs) is not known; more than once is assumed.")
    return tuple(note_texts)


def _note_about_instance(host: HostProfile) -> str | None:
    """Return what is unknown about the host's disk and network, or that its network rate is no lasting one;
    None if there is nothing to note."""
    if host.instance is None:
        return "Without an instance type (--instance-type) memory, disk and network are not known."
    type_name = host.instance.name
    if host.instance.nvme_gb is None:
        return f"Whether {type_name} has NVMe disks is not known; a volume is assumed."
    network = find_network(type_name)
    if network is None:
        return f"The network of {type_name} is not known; times have no limit by it."
    if network.burst:
        return (
            f"{type_name} has its network of {network.bytes_per_second * 8 / 1e9:g} Gb/s for some minutes "
            "only; a long download is slower than estimated."
        )
    return None


def _assumed_figures(platform: Platform, host: HostProfile) -> tuple[Figure, ...]:
    """Return the figures, such as the latency of S3, from which the choice and the times are computed."""
    rule_figures = ["memory_bytes", "local_bytes", "small_file_bytes", "shard_bytes"]
    if platform == "slurm":
        return tuple(storage_figure(name) for name in [*rule_figures, "archive_files"])
    rate_figures = [
        "s3_first_byte",
        "s3_in_flight",
        "s3_requests",
        "s3_stream",
        "s3_download",
        "s3_network_share",
    ]
    disk_figures = [host.disk_figure.name, "disk_first_byte", "memory_rate"]
    network_figures = ["fsx_per_tib", "fsx_least_tib", "fsx_first_byte", "express_first_byte"]
    return tuple(
        storage_figure(name) for name in [*rule_figures, *rate_figures, *disk_figures, *network_figures]
    )
