"""Advice for a training that waits for its data. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from smlaunch.catalog import instances
from smlaunch.contract.sagemaker_paths import RUNTIME_CHANNEL, SOURCE_CHANNEL

INPUT_BOUND_SHARE = 0.1
"""A smaller share of step time is not worth optimizing."""

_SMLAUNCH_CHANNELS = (RUNTIME_CHANNEL, SOURCE_CHANNEL)


class DataWait(NamedTuple):
    """How much of the training time is spent waiting for data."""

    share: float
    """Share of step time."""

    advice: tuple[str, ...] = ()

    @property
    def is_input_bound(self) -> bool:
        return self.share >= INPUT_BOUND_SHARE

    @property
    def summary(self) -> str:
        if self.is_input_bound:
            return f"input bound: {self.share:.0%} of step time"
        return f"not input bound: {self.share:.1%} of step time is waiting for data"

    def to_dict(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "input_bound": self.is_input_bound,
            "because": self.summary,
            "advice": list(self.advice),
        }


def assess_data_wait(share: float, request: Mapping[str, Any], *, has_real_hosts: bool = True) -> DataWait:
    """Assess the share of time spent waiting for data. ``request``: as sent to CreateTrainingJob or
    returned by DescribeTrainingJob. ``has_real_hosts``: hosts are instances of the job's type, not local
    processes."""
    share = min(1.0, max(0.0, share))
    return DataWait(
        share, tuple(_data_wait_suggestions(request, has_real_hosts)) if share >= INPUT_BOUND_SHARE else ()
    )


def _data_wait_suggestions(request: Mapping[str, Any], has_real_hosts: bool) -> Iterator[str]:
    """Yield what may shorten the wait for data, as clauses, by the input modes of the job's channels.

    ``request``: as sent to CreateTrainingJob. ``has_real_hosts``: hosts are instances of the job's type, not
    local processes.
    """
    # smlaunch adds channels for its runtime and the source, which are no data.
    data_channels = [
        channel
        for channel in request.get("InputDataConfig", [])
        if channel["ChannelName"] not in _SMLAUNCH_CHANNELS
    ]
    if not data_channels:
        yield "the job has no channel: whatever its script reads by itself is what it waits for"
        return
    instance_type_name = request.get("ResourceConfig", {}).get("InstanceType", "")
    instance = instances.find_instance_type(instance_type_name) if has_real_hosts else None
    mounted_names = [
        channel["ChannelName"]
        for channel in data_channels
        if "FileSystemDataSource" in channel.get("DataSource", {})
    ]
    if mounted_names:
        yield (
            f"{', '.join(mounted_names)} is read over the network from a file system: open several files at "
            "once (num_workers of the DataLoader) to overlap its latency"
        )
    names_by_mode = _channel_names_by_mode(
        request, [channel for channel in data_channels if channel["ChannelName"] not in mounted_names]
    )
    # FastFile and Pipe read from S3 while training goes on; File copies to the disk before it.
    streamed_names = [*names_by_mode.get("FastFile", []), *names_by_mode.get("Pipe", [])]
    copied_names = names_by_mode.get("File", [])
    if streamed_names:
        yield (
            f"{', '.join(streamed_names)} comes from S3 in every epoch: open several files at once "
            "(num_workers of the DataLoader) to overlap its latency; data that fits on the host's disk is "
            "read faster with mode File, and small files should be packed into shards first (smlaunch data "
            "pack)"
        )
    if copied_names:
        vcpu_text = "" if instance is None else f", of {instance.vcpu} processors"
        yield (
            f"{', '.join(copied_names)} is already on the host's disk: use more workers (num_workers of the "
            f"DataLoader{vcpu_text}), or decode and resize samples once instead of in every epoch"
        )
    if copied_names and instance is not None and instance.nvme_gb == 0:
        yield (
            f"{instance_type_name} has a volume of 128 to 250 MiB/s: data beyond its memory are read at "
            "that speed in every epoch; a type with NVMe disks reads faster"
        )
    # One channel as an example of the command is enough.
    first_uri = data_channels[0].get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
    if first_uri:
        command_options = "" if has_real_hosts else " --local"
        command_options += f" --instance-type {instance_type_name}" if instance is not None else ""
        yield f"what fits these data: smlaunch data advise {shlex.quote(first_uri)}{command_options}"


def _channel_names_by_mode(
    request: Mapping[str, Any], channels: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return the names of a request's input channels by their input mode: File, FastFile or Pipe."""
    default_mode = request.get("AlgorithmSpecification", {}).get("TrainingInputMode", "File")
    names_by_mode: dict[str, list[str]] = {}
    for channel in channels:
        input_mode = channel.get("InputMode") or default_mode
        names_by_mode.setdefault(input_mode, []).append(channel["ChannelName"])
    return names_by_mode
