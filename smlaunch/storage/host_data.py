"""How much of a job's inputs one host reads. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts
from smlaunch.job.channel import Channel
from smlaunch.storage.read_time_estimates import DataShare

ELSEWHERE = (
    "Tables of terabytes fit better in EMR Serverless or AWS Glue (Spark), or Amazon Athena (SQL), which "
    "read S3 (s3a://) where the data lies"
)
"""What fits better than a processing job, which copies each input completely to every host."""


def bound_word(facts: DiscoveredFacts, channel_names: Iterable[str]) -> str:
    """Return ``at least``, with a space, for the size of channels of which not all objects were counted."""
    is_bound = any(name in facts.inputs and facts.inputs[name].is_truncated for name in channel_names)
    return "at least " if is_bound else ""


def data_of_host(channel: Channel, input_facts: InputFacts, host_count: int) -> DataShare:
    """Return how much of an input one host reads. ``input_facts``: of an input with ``split: bytes`` what the
    sharding has left of it for one host, or all of it."""
    data = DataShare(bytes=input_facts.bytes or 0, files=input_facts.objects or 0)
    if channel.split != "key" or host_count == 1:
        return data
    # The service deals out whole objects.
    files = math.ceil(data.files / host_count)
    return DataShare(bytes=data.bytes * (files / data.files if files else 1 / host_count), files=files)
