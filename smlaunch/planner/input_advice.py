"""Reasons and warnings of a plan about how each channel is read, and about a volume that writes slower than
the network delivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts
from smlaunch.job.model import Channel, Job
from smlaunch.planner.plan_context import Diagnostics

if TYPE_CHECKING:
    from smlaunch.storage.storage_advice import Platform


from smlaunch.storage.read_time_estimates import DataShare, HostProfile

_MIN_ADVISED_BYTES = 10**9
"""Bytes. Below this all input modes perform alike, unless there are very many files."""

_MIN_ADVISED_OBJECTS = 1_000
"""Number of objects from which small channels are examined too."""


def advise_input_modes(
    job: Job,
    facts: DiscoveredFacts,
    instance_type: str,
    diagnostics: Diagnostics,
    is_processing: bool = False,
) -> None:
    """Add reasons and warnings about how the job's input channels are read: input modes, many small files,
    slow disks. Nothing is added for hosts of the local endpoint, which read without a network."""
    if facts.target == "local":
        return
    platform: Platform = "processing" if is_processing else "training"
    for name, channel in job.inputs.items():
        input_facts = facts.inputs.get(name)
        if input_facts is None or input_facts.problem is not None:
            continue
        if not input_facts.objects or input_facts.bytes is None:
            continue
        # Inputs of less than 1 GB are read fast in every mode, unless they are 1,000 files or more.
        is_large = input_facts.bytes >= _MIN_ADVISED_BYTES
        if is_large or input_facts.objects >= _MIN_ADVISED_OBJECTS:
            _advise_channel(
                name=name,
                channel=channel,
                input_facts=input_facts,
                job=job,
                instance_type=instance_type,
                platform=platform,
                diagnostics=diagnostics,
            )


def _advise_channel(
    name: str,
    channel: Channel,
    input_facts: InputFacts,
    job: Job,
    instance_type: str,
    platform: Platform,
    diagnostics: Diagnostics,
) -> None:
    """Add reasons and warnings about how one input channel is read. ``input_facts``: what discovery found
    about its data. ``platform``: kind of the job."""
    # Imported late: most plans need no advice, and these modules would slow down every command that plans.
    from smlaunch.catalog import instances
    from smlaunch.catalog.storage import storage_figure
    from smlaunch.facts.dataset_stats import DatasetStats
    from smlaunch.planner.input_advice import slow_disk_warning
    from smlaunch.storage.read_time_estimates import DataShare, HostProfile
    from smlaunch.storage.storage_advice import AccessPattern, advise_storage
    from smlaunch.storage.storage_advice_text import format_advice_line

    object_count, size_bytes = input_facts.objects or 0, input_facts.bytes or 0
    # Disk, memory and network of the hosts, for estimates.
    host = HostProfile(instance=instances.find_instance_type(instance_type), hosts=job.compute.hosts)
    is_data_split = channel.split is not None
    if channel.mode == "File":
        share_count = job.compute.hosts if is_data_split else 1
        # Bytes and files that one host copies to its disk before training.
        host_data = DataShare(bytes=size_bytes / share_count, files=object_count / share_count)
        disk_warning = slow_disk_warning(host_data, host)
        if disk_warning is not None:
            diagnostics.add_warning(f"inputs.{name}: {disk_warning}")
    # is_truncated: discovery stopped counting; there are more objects, and more bytes.
    dataset = DatasetStats(object_count, size_bytes, is_truncated=input_facts.is_truncated)
    # About 100 GB, up to which data is copied to the disk.
    local_disk_bytes = storage_figure("local_bytes").low
    if input_facts.is_truncated and size_bytes <= local_disk_bytes:
        # Whether all of it fits on a host's disk, which decides the advice, is unknown.
        if dataset.has_small_files:
            diagnostics.add_warning(
                f"inputs.{name}: more than {object_count:,} small objects, each a request; to see whether "
                f"they go into shards first: smlaunch data advise {channel.uri}"
            )
        return
    advice = advise_storage(dataset, AccessPattern(is_data_split=is_data_split, platform=platform), host)
    if advice.pack_first:
        # If small files are worth packing into shards, that option is the first.
        packing_option = advice.options[0]
        diagnostics.add_warning(f"inputs.{name}: {packing_option.explanation}. See smlaunch data pack.")
    elif size_bytes < _MIN_ADVISED_BYTES:
        return
    rule_name, advice_line = f"inputs.{name}.storage", format_advice_line(advice)
    # advice.mode: input mode of a channel that follows the advice; None for other storage.
    if advice.mode == channel.mode:
        diagnostics.add_reason(rule_name, f"Mode {channel.mode} as advised: {advice_line}")
    else:
        diagnostics.add_reason(
            rule_name, f"Mode {channel.mode} as the job says; advised for most scripts: {advice_line}"
        )


_MIN_WAIT_SECONDS = 300.0
"""Minimum time in seconds that hosts wait for the disk, at best, without training."""


def slow_disk_warning(host_data: DataShare, host: HostProfile) -> str | None:
    """Return a warning about the time for which a File channel's download waits for the disk, with
    alternatives; None if the disk is not the limit, or the instance type is unknown. ``host_data``: bytes and
    files that one host downloads. ``host``: its disk, network and memory."""
    instance = host.instance
    has_nvme_disk = host.nvme_bytes > 0
    if instance is None or has_nvme_disk:
        return None
    # Ranges of seconds; low is the fast end. Five minutes are worth a warning.
    download_time = host.download_time(host_data)
    network_time = host.download_time(host_data, to_disk=False)
    if download_time.low - network_time.low < _MIN_WAIT_SECONDS:
        return None
    # What fits in memory is cached there when it is first read.
    fits_memory = host.memory_bytes is not None and host_data.bytes <= host.memory_bytes
    epoch_text = "" if fits_memory else ", and every epoch reads it from there at that speed"
    return (
        f"mode File copies {host_data.bytes / 1e9:,.0f} GB to a volume of 128 to 250 MiB/s before training "
        f"begins ({download_time}; the network alone: {network_time}){epoch_text}. {instance.name} has "
        "no NVMe disk; one that has does not wait for it, nor does mode FastFile."
    )
