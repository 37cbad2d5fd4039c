"""How much of a job's inputs one host reads. Pure."""

from __future__ import annotations

import math

from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts
from smlaunch.job.channel import Channel
from smlaunch.job.model import Job
from smlaunch.storage.read_time_estimates import DataShare


def bytes_of_file_channels(job: Job, facts: DiscoveredFacts) -> int:
    """Return the size of the inputs that the service copies to each host before training (mode ``File``): of
    one with ``split: key`` a host's share of the objects, each of the average size."""
    return sum(
        math.ceil(data_of_host(channel, facts.inputs[name], job.hosts_of_channel(channel)).bytes)
        for name, channel in job.inputs.items()
        if channel.mode == "File" and name in facts.inputs
    )


def data_of_host(channel: Channel, input_facts: InputFacts, host_count: int) -> DataShare:
    """Return how much of an input one host reads. ``input_facts``: of an input with ``split: bytes`` what the
    sharding has left of it for one host, or all of it."""
    data = DataShare(bytes=input_facts.bytes or 0, files=input_facts.objects or 0)
    if channel.split != "key" or host_count == 1:
        return data
    # The service deals out whole objects.
    files = math.ceil(data.files / host_count)
    return DataShare(bytes=data.bytes * (files / data.files if files else 1 / host_count), files=files)
