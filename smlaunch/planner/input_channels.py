"""Plan S3 addresses, input channels, their uploads, and the disk of each host."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from smlaunch.api.request import InputChannel
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.contract.launch_spec import MPI, LaunchSpec
from smlaunch.contract.paths import (
    LAUNCH_FILE,
    RUNTIME_ARCHIVE,
    RUNTIME_CHANNEL,
    SECRET_FILE,
    SOURCE_ARCHIVE,
    SOURCE_CHANNEL,
)
from smlaunch.contract.shard_lists import (
    SHARDS_CHANNEL,
    SHARDS_FILE,
    ShardList,
    ShardListIndex,
    shard_list_name,
    to_json_lines,
)
from smlaunch.job.model import Channel, Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts, InputFacts
from smlaunch.planner.plan import InputSharding, Upload
from smlaunch.planner.sharding import LISTS, SHARD_FOLDER, SHARDS

DEFAULT_VOLUME_GB = 30
"""The SageMaker SDK's default too."""

RESERVED_CHANNELS = {
    RUNTIME_CHANNEL: "contains the runtime",
    SOURCE_CHANNEL: "contains the source",
    SHARDS_CHANNEL: "contains the file lists",
}
"""Purpose of smlaunch's own channels, by name; the job's channels cannot use these names."""


@dataclass(frozen=True)
class RunLayout:
    """S3 prefixes of one run, in one bucket unless the job says otherwise."""

    bucket: str
    run_id: str

    def launch_prefix(self, number: int = 1) -> str:
        """Prefix of job.json; one for all segments, unless later ones need another job.json."""
        folder = "launch" if number == 1 else f"launch-{number}"
        return f"s3://{self.bucket}/smlaunch/{self.run_id}/{folder}/"

    def source_prefix(self, sha256: str) -> str:
        return f"s3://{self.bucket}/smlaunch/source/{sha256}/"

    def data_prefix(self, sha256: str) -> str:
        return f"s3://{self.bucket}/smlaunch/data/{sha256}/"

    @property
    def file_lists_prefix(self) -> str:
        return f"s3://{self.bucket}/smlaunch/{self.run_id}/shards/"

    @property
    def checkpoints_prefix(self) -> str:
        return f"s3://{self.bucket}/smlaunch/{self.run_id}/checkpoints/"

    @property
    def output_prefix(self) -> str:
        return f"s3://{self.bucket}/smlaunch/{self.run_id}/output/"


def plan_inputs(
    job: Job,
    facts: Facts,
    layout: RunLayout,
    diagnostics: Diagnostics,
    sharding_by_channel: Mapping[str, InputSharding] = {},
    shard_index: int | None = None,
) -> tuple[list[InputChannel], list[Upload]]:
    """Return the channels of the request in order, with that of the file lists, and the uploads that they
    need.

    ``sharding_by_channel``: of the channels with ``split: bytes``. ``shard_index``: from 0, if each shard is
    a job of its own.
    """
    channels: list[InputChannel] = []
    uploads: list[Upload] = []
    for name, channel in job.inputs.items():
        if name in RESERVED_CHANNELS:
            continue  # a rule reports it
        input_facts = facts.inputs.get(name) or InputFacts(channel.uri, "local" if channel.is_local else "s3")
        problem = input_problem(channel, input_facts)
        if problem is not None:
            diagnostics.add_problem(f"inputs.{name}", problem)
            continue
        if input_facts.is_pending:
            diagnostics.add_warning(_PENDING_WARNING.format(name))
        uri = channel.uri
        if channel.is_local:
            upload = _data_upload(channel, input_facts, layout)
            uploads.append(upload)
            uri = layout.data_prefix(input_facts.sha256 or "")
        _explain_split(name, channel, job.compute.hosts, diagnostics)
        sharding = sharding_by_channel.get(name)
        is_sharded, is_manifest = channel.split == "key", False
        if sharding is not None and sharding.split_via == SHARDS:
            is_sharded = True
            if not uri.endswith("/" + SHARD_FOLDER):
                uri += SHARD_FOLDER
        elif sharding is not None and sharding.split_via == LISTS:
            uploads += _file_list_uploads(sharding, layout)
        elif sharding is not None and shard_index is not None:
            upload = _manifest_upload(sharding, shard_index, uri, layout)
            uploads.append(upload)
            uri, is_manifest = upload.uri, True
        channels.append(InputChannel(name, uri, channel.mode, is_sharded, channel.content_type, is_manifest))
    if any(sharding.split_via == LISTS for sharding in sharding_by_channel.values()):
        channels.append(InputChannel(SHARDS_CHANNEL, layout.file_lists_prefix))
    return channels, uploads


_PENDING_WARNING = (
    "inputs.{}: an earlier step will write it, so that its size is unknown and not part of this plan's "
    "figures. compute.volume_gb sets the disk size of the hosts."
)


def _file_list_uploads(sharding: InputSharding, layout: RunLayout) -> Iterator[Upload]:
    """Uploads of every host's file list, and their index."""
    folder = f"{layout.file_lists_prefix}{sharding.channel}/"
    index_rows = []
    for host, names in enumerate(sharding.names_by_host):
        list_file = shard_list_name(host)
        index_rows.append(ShardList(list_file, len(names), sharding.bytes_by_host[host]))
        yield Upload("shards", folder + list_file, content=to_json_lines(names))
    yield Upload(
        "shards", folder + SHARDS_FILE, content=ShardListIndex(sharding.channel, tuple(index_rows)).to_json()
    )


def _manifest_upload(sharding: InputSharding, shard_index: int, uri: str, layout: RunLayout) -> Upload:
    """Upload of a ManifestFile in SageMaker's format: the prefix, then the names of the objects below it."""
    text = json.dumps([{"prefix": uri}, *sharding.names_by_host[shard_index]], indent=0)
    return Upload("shards", f"{layout.file_lists_prefix}{sharding.channel}.manifest", content=text + "\n")


def count_own_channels(job: Job) -> int:
    """Number of channels that smlaunch adds: the runtime, the source, and possibly the file lists."""
    if job.entry is None:
        return 0
    return 2 + any(channel.split_via == LISTS for channel in job.inputs.values())


def input_problem(channel: Channel, facts: InputFacts) -> str | None:
    """Why the channel cannot be read; None if it can."""
    if facts.problem is not None:
        return facts.problem
    if not facts.exists:
        location = "on this machine" if channel.is_local else "in S3"
        return f"{channel.uri} does not exist {location}; check the path"
    if facts.objects == 0:
        lack = "holds no files" if channel.is_local else "has no objects under it"
        return f"{channel.uri} {lack}; check the path, or remove the channel"
    if channel.is_local and facts.sha256 is None:
        return f"{channel.uri} could not be read"
    return None


def _data_upload(channel: Channel, facts: InputFacts, layout: RunLayout) -> Upload:
    """Upload of a local channel's data."""
    uri = layout.data_prefix(facts.sha256 or "")
    if not facts.is_directory:
        uri += PurePath(channel.uri).name
    return Upload("data", uri, path=channel.uri, sha256=facts.sha256, bytes=facts.bytes)


def _explain_split(name: str, channel: Channel, host_count: int, diagnostics: Diagnostics) -> None:
    """Add the reason for a channel with ``split: key``."""
    if channel.split != "key":
        return
    if host_count == 1:
        diagnostics.add_reason(f"inputs.{name}.split", "One host gets every object, split or not.")
        return
    diagnostics.add_reason(
        f"inputs.{name}.split",
        f"Every object goes to exactly one of {host_count} hosts; which one is the service's choice, by "
        "number of "
        "objects and not by size. Ranks may see unequal amounts of data.",
    )


def plan_launch_channels(
    number: int, spec: LaunchSpec, facts: Facts, layout: RunLayout
) -> tuple[list[InputChannel], list[Upload]]:
    """smlaunch's own channels: the runtime with job.json, and the source. ``number``: of this job.json
    among those of the run. The secret is generated on upload and not part of the plan."""
    source = facts.source
    launch_uri, source_uri = layout.launch_prefix(number), layout.source_prefix(source.archive_sha256)
    channels = [InputChannel(RUNTIME_CHANNEL, launch_uri), InputChannel(SOURCE_CHANNEL, source_uri)]
    uploads = [
        Upload("runtime", launch_uri + RUNTIME_ARCHIVE, mpi=spec.ranks.launcher == MPI),
        Upload("launch", launch_uri + LAUNCH_FILE, content=spec.to_json()),
        *([Upload("secret", launch_uri + SECRET_FILE)] if spec.needs_secret else []),
        Upload(
            "source",
            source_uri + SOURCE_ARCHIVE,
            path=source.root,
            sha256=source.archive_sha256,
            bytes=source.bytes,
        ),
    ]
    return channels, uploads


def plan_volume(job: Job, instance_choice: InstanceChoice, facts: Facts, diagnostics: Diagnostics) -> int:
    """Disk size of each host in GB: the data of File channels, and the default size on top."""
    copied_bytes = sum(
        facts.inputs[name].bytes or 0
        for name, channel in job.inputs.items()
        if channel.mode == "File" and name in facts.inputs
    )
    name, catalog_type = instance_choice
    if catalog_type is not None and catalog_type.nvme_gb:
        if job.compute.volume_gb is not None:
            diagnostics.add_warning(
                f"compute.volume_gb has no effect: {name} has {catalog_type.nvme_gb:g} GB of NVMe disk."
            )
        if copied_bytes > catalog_type.nvme_gb * 1e9:
            diagnostics.add_warning(
                f"File channels copy {copied_bytes / 1e9:.0f} GB to every host, and {name} has "
                f"{catalog_type.nvme_gb:g} GB of disk; use mode FastFile."
            )
        return job.compute.volume_gb or DEFAULT_VOLUME_GB
    if job.compute.volume_gb is not None:
        if copied_bytes > job.compute.volume_gb * 1e9:
            diagnostics.add_warning(
                f"File channels copy {copied_bytes / 1e9:.0f} GB to every host, and compute.volume_gb is "
                f"{job.compute.volume_gb}; make it larger, or use mode FastFile."
            )
        return job.compute.volume_gb
    needed_gb = DEFAULT_VOLUME_GB + -(-copied_bytes // 10**9) if copied_bytes else DEFAULT_VOLUME_GB
    if copied_bytes >= 10**9:
        diagnostics.add_reason(
            "volume.inputs",
            f"File channels copy {copied_bytes / 1e9:.0f} GB to every host: a disk of {needed_gb} GB leaves "
            f"{DEFAULT_VOLUME_GB} GB free.",
        )
        return needed_gb
    return DEFAULT_VOLUME_GB
