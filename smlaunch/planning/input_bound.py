"""What follows from how long a training waited for its data. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from smlaunch.catalog import instances
from smlaunch.protocol.paths import RUNTIME_CHANNEL, SOURCE_CHANNEL

INPUT_BOUND = 0.1
"""A share of the time under a tenth is not worth anybody's work."""

_OWN = (RUNTIME_CHANNEL, SOURCE_CHANNEL)


@dataclass(frozen=True)
class DataWait:
    """``share``: of a step's time, spent waiting for data."""

    share: float
    advice: tuple[str, ...] = ()

    @property
    def bound(self) -> bool:
        return self.share >= INPUT_BOUND

    @property
    def sentence(self) -> str:
        if self.bound:
            return f"input bound: {self.share:.0%} of step time"
        return f"not input bound: {self.share:.1%} of step time is waiting for data"

    def to_dict(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "input_bound": self.bound,
            "because": self.sentence,
            "advice": list(self.advice),
        }


def data_wait(share: float, request: Mapping[str, Any], *, machines: bool = True) -> DataWait:
    """``request``: what CreateTrainingJob was sent, or what DescribeTrainingJob answers. ``machines``: its
    hosts are of its instance type, and not processes of this machine."""
    share = min(1.0, max(0.0, share))
    return DataWait(share, tuple(_advice(request, machines)) if share >= INPUT_BOUND else ())


def _advice(request: Mapping[str, Any], machines: bool) -> Iterator[str]:
    default = request.get("AlgorithmSpecification", {}).get("TrainingInputMode", "File")
    channels = [row for row in request.get("InputDataConfig", []) if row["ChannelName"] not in _OWN]
    by_mode: dict[str, list[str]] = {}
    for row in channels:
        by_mode.setdefault(row.get("InputMode") or default, []).append(row["ChannelName"])
    name = request.get("ResourceConfig", {}).get("InstanceType", "")
    instance = instances.find(name) if machines else None
    streamed = [channel for mode in ("FastFile", "Pipe") for channel in by_mode.get(mode, [])]
    if streamed:
        what = ", ".join(streamed)
        yield (
            f"{what} comes from S3 in every epoch: with several files open at once (num_workers "
            "of the DataLoader) its answers are waited for together; data that fit on the host's disk are "
            "read faster by mode File, and small files go into shards first (smlaunch data pack)"
        )
    if by_mode.get("File"):
        cores = "" if instance is None else f", of {instance.vcpu} processors"
        what = ", ".join(by_mode["File"])
        yield (
            f"{what} lies on the host's disk already: more workers (num_workers of the DataLoader{cores}), "
            "or samples that are decoded and resized once and not in every epoch"
        )
        if instance is not None and instance.nvme_gb == 0:
            yield (
                f"{name} has a volume of 128 to 250 MiB/s: data beyond its memory are read at that speed in "
                "every epoch; a type with NVMe disks reads faster"
            )
    for row in channels[:1]:
        uri = row.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
        if uri:
            more = "" if machines else " --local"
            more += f" --instance-type {name}" if instance is not None else ""
            yield f"what fits these data: smlaunch data advise {shlex.quote(uri)}{more}"
    if not channels:
        yield "the job has no channel: whatever its script reads by itself is what it waits for"
