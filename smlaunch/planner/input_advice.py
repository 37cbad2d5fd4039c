"""Reasons and warnings of a plan about how each channel is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smlaunch.job.model import Channel, Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts, InputFacts

if TYPE_CHECKING:
    from smlaunch.planner.storage_advice import Platform

_MIN_BYTES = 10**9
"""Bytes. Below this all input modes perform alike, unless there are very many files."""

_MIN_OBJECTS = 1_000
"""Number of objects from which small channels are examined too."""


def advise_reading(
    job: Job, facts: Facts, instance_type: str, diagnostics: Diagnostics, is_processing: bool = False
) -> None:
    """Add reasons and warnings about the channels' input modes. None for local hosts, which read without a
    network."""
    if facts.target == "local":
        return
    for name, channel in job.inputs.items():
        input_facts = facts.inputs.get(name)
        if (
            input_facts is None
            or input_facts.problem is not None
            or not input_facts.objects
            or input_facts.bytes is None
        ):
            continue
        if input_facts.bytes >= _MIN_BYTES or input_facts.objects >= _MIN_OBJECTS:
            platform: Platform = "processing" if is_processing else "training"
            _advise_channel(name, channel, input_facts, job, instance_type, platform, diagnostics)


def _advise_channel(
    name: str,
    channel: Channel,
    facts: InputFacts,
    job: Job,
    instance_type: str,
    platform: Platform,
    diagnostics: Diagnostics,
) -> None:
    """Add reasons and warnings about one channel."""
    # Imported late: most plans need no advice, and these modules would slow down every command that plans.
    from smlaunch.catalog import instances
    from smlaunch.catalog.storage import figure
    from smlaunch.planner.dataset_stats import DatasetStats
    from smlaunch.planner.slow_disk import slow_disk_warning
    from smlaunch.planner.storage_advice import AccessPattern, advise_storage
    from smlaunch.planner.storage_advice_text import one_line
    from smlaunch.planner.throughput import DataShare, HostProfile

    objects, size_bytes = facts.objects or 0, facts.bytes or 0
    host = HostProfile(instances.find_instance_type(instance_type), job.compute.hosts)
    split_count = job.compute.hosts if channel.split is not None else 1
    disk_warning = (
        slow_disk_warning(DataShare(size_bytes / split_count, objects / split_count), host)
        if channel.mode == "File"
        else None
    )
    if disk_warning is not None:
        diagnostics.add_warning(f"inputs.{name}: {disk_warning}")
    data = DatasetStats(objects, size_bytes, is_truncated=facts.is_truncated)
    if facts.is_truncated and size_bytes <= figure("local_bytes").low:
        if data.has_small_files:
            diagnostics.add_warning(
                f"inputs.{name}: more than {objects:,} small objects, each a request; to see whether they go "
                f"into shards first: smlaunch data advise {channel.uri}"
            )
        return
    advice = advise_storage(
        data, AccessPattern(is_data_split=channel.split is not None, platform=platform), host
    )
    if advice.pack_first:
        diagnostics.add_warning(f"inputs.{name}: {advice.options[0].explanation}. See smlaunch data pack.")
    elif size_bytes < _MIN_BYTES:
        return
    rule, advice_line = f"inputs.{name}.storage", one_line(advice)
    if advice.mode == channel.mode:
        diagnostics.add_reason(rule, f"Mode {channel.mode} as advised: {advice_line}")
    else:
        diagnostics.add_reason(
            rule, f"Mode {channel.mode} as the job says; advised for most scripts: {advice_line}"
        )
