"""Plan S3 addresses, input channels, their uploads and the disk of each host; advise on how channels are
read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from smlaunch.api.job_kinds import JobKind
from smlaunch.api.request_builder import InputChannel
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.contract.launch_spec import MPI, LaunchSpec
from smlaunch.contract.sagemaker_paths import (
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
from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts
from smlaunch.facts.shard_index import SHARD_FOLDER
from smlaunch.job.model import Channel, Job
from smlaunch.planner.file_sharding import VIA_LISTS, VIA_SHARDS
from smlaunch.planner.plan import InputSharding, Upload
from smlaunch.planner.plan_context import Diagnostics, bytes_of_file_channels
from smlaunch.storage.host_data import bound_word, data_of_host
from smlaunch.storage.read_time_estimates import DataShare, HostProfile

if TYPE_CHECKING:
    from smlaunch.storage.storage_options import Platform

DEFAULT_VOLUME_GB = 30
"""The SageMaker SDK's default too."""

RESERVED_CHANNELS = {
    RUNTIME_CHANNEL: "contains the runtime",
    SOURCE_CHANNEL: "contains the source",
    SHARDS_CHANNEL: "contains the file lists",
}
"""Purpose of smlaunch's own channels, by name; the job's channels cannot use these names."""


SMLAUNCH_FOLDER = "smlaunch"
"""Folder of all runs in their bucket."""

_DIGITS_OF_CONTENT = 32
"""Hexadecimal digits of a SHA-256 in an address, as in the names of checkpoints."""


class RunS3Layout(NamedTuple):
    """S3 prefixes of one run, in one bucket unless the job says otherwise."""

    bucket: str
    run_id: str
    bucket_prefix: str = ""
    """Folder in the bucket that has smlaunch's own; empty for the top."""

    @property
    def own_folder(self) -> str:
        """Prefix of the files of all runs."""
        return f"s3://{'/'.join(filter(None, (self.bucket, self.bucket_prefix, SMLAUNCH_FOLDER)))}/"

    def launch_prefix(self, job_json: str, runtime_sha256: str) -> str:
        """Prefix of job.json and the runtime, of their content: whatever another client launches under this
        name, it does not change what this run's hosts read."""
        return self._prefix_of_content("launch", job_json, runtime_sha256)

    def file_lists_prefix(self, lists: Mapping[str, str]) -> str:
        """Prefix of lists of files, of their content (``lists``, by name)."""
        return self._prefix_of_content("shards", *chain.from_iterable(sorted(lists.items())))

    def _prefix_of_content(self, folder: str, *parts: str) -> str:
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_DIGITS_OF_CONTENT]
        return f"{self.own_folder}{self.run_id}/{folder}/{digest}/"

    def source_prefix(self, sha256: str) -> str:
        return f"{self.own_folder}source/{sha256}/"

    def data_prefix(self, sha256: str) -> str:
        return f"{self.own_folder}data/{sha256}/"

    @property
    def export_prefix(self) -> str:
        """Prefix of what a state machine with many shards reads and writes."""
        return f"{self.own_folder}{self.run_id}/shards/"

    @property
    def checkpoints_prefix(self) -> str:
        return f"{self.own_folder}{self.run_id}/checkpoints/"

    @property
    def output_prefix(self) -> str:
        return f"{self.own_folder}{self.run_id}/output/"


def plan_inputs(
    job: Job,
    facts: DiscoveredFacts,
    layout: RunS3Layout,
    diagnostics: Diagnostics,
    sharding_by_channel: Mapping[str, InputSharding] = {},
    shard_index: int | None = None,
) -> tuple[list[InputChannel], list[Upload]]:
    """Return the input channels of the request, in order, and the uploads that they need: local data, and the
    lists of the files that each host reads, which have a channel of their own.

    ``layout``: S3 prefixes of the run. ``sharding_by_channel``: how files are distributed over the hosts, for
    the channels with ``split: bytes``. ``shard_index``: from 0, if each shard is a job of its own.
    """
    channels: list[InputChannel] = []
    uploads: list[Upload] = []
    file_lists: dict[str, str] = {}  # of all channels that are split by lists
    for name, channel in job.inputs.items():
        if name in RESERVED_CHANNELS:
            continue  # a name of smlaunch's own channels: a rule of the planner rejects it
        input_facts = facts.inputs.get(name) or InputFacts(channel.uri, "local" if channel.is_local else "s3")
        problem = describe_input_problem(channel, input_facts)
        if problem is not None:
            diagnostics.add_problem(f"inputs.{name}", problem)
            continue
        # An earlier step of a pipeline writes the data.
        if input_facts.is_pending:
            diagnostics.add_warning(_PENDING_WARNING.format(name))
        # Reason for an input with split: key, whose objects the service distributes.
        _explain_split(name, channel, job.hosts_of_channel(channel), diagnostics)
        data_uri = channel.uri
        if channel.is_local:
            uploads.append(_data_upload(channel, input_facts, layout))
            data_uri = layout.data_prefix(input_facts.sha256 or "")
        sharding = sharding_by_channel.get(name)
        if sharding is not None and sharding.split_via == VIA_LISTS:
            file_lists |= _file_lists(sharding)
        request_channel, sharding_uploads = _to_request_channel(
            name=name,
            channel=channel,
            data_uri=data_uri,
            sharding=sharding,
            shard_index=shard_index,
            layout=layout,
        )
        channels.append(request_channel)
        uploads += sharding_uploads
    # The lists of files that hosts read are in a channel of their own.
    if file_lists:
        lists_uri = layout.file_lists_prefix(file_lists)
        channels.append(InputChannel(name=SHARDS_CHANNEL, uri=lists_uri))
        uploads += [Upload("shards", lists_uri + name, content=text) for name, text in file_lists.items()]
    return channels, uploads


def _to_request_channel(
    name: str,
    channel: Channel,
    data_uri: str,
    sharding: InputSharding | None,
    shard_index: int | None,
    layout: RunS3Layout,
) -> tuple[InputChannel, list[Upload]]:
    """Return an input channel of the request, and the uploads that tell each host its files. ``data_uri``:
    S3 prefix of the data. ``sharding``: how its files are distributed; None unless the job splits it by
    bytes. ``shard_index``: from 0, if each shard is a job of its own."""
    request_channel = InputChannel(
        name=name,
        uri=data_uri,
        mode=channel.mode,
        is_sharded=channel.split == "key",  # the service distributes the objects by their number
        content_type=channel.content_type,
        is_manifest=channel.manifest,
        file_system=channel.file_system,
        access=channel.access,
        attributes=channel.attributes or (),
        shuffle_seed=channel.shuffle_seed,
        record_wrapper=channel.record_wrapper,
        is_gzipped=channel.compression is not None,
        instance_groups=channel.instance_groups,
    )
    if sharding is None:
        return request_channel, []
    if sharding.split_via == VIA_SHARDS:
        # The service distributes packed shards, which are all objects of this folder.
        # SHARD_FOLDER: "shards/", in which `smlaunch data pack` writes.
        is_shard_folder = data_uri.endswith("/" + SHARD_FOLDER)
        shards_uri = data_uri if is_shard_folder else data_uri + SHARD_FOLDER
        return request_channel._replace(uri=shards_uri, is_sharded=True), []
    if sharding.split_via == VIA_LISTS or shard_index is None:
        return request_channel, []
    # A manifest names the objects of this job's shard.
    manifest = _manifest_upload(sharding, shard_index, data_uri, layout)
    return request_channel._replace(uri=manifest.uri, is_manifest=True), [manifest]


_PENDING_WARNING = (
    "inputs.{}: an earlier step will write it, so that its size is unknown and not part of this plan's "
    "figures. compute.volume_gb sets the disk size of the hosts."
)


def _file_lists(sharding: InputSharding) -> dict[str, str]:
    """Every host's file list, and their index, by path in the channel of the lists."""
    list_names = [shard_list_name(host) for host in range(len(sharding.names_by_host))]
    lists = map(ShardList, list_names, map(len, sharding.names_by_host), sharding.bytes_by_host)
    text_by_file = dict(zip(list_names, map(to_json_lines, sharding.names_by_host), strict=True))
    text_by_file[SHARDS_FILE] = ShardListIndex(sharding.channel, tuple(lists)).to_json()
    return {f"{sharding.channel}/{file}": text for file, text in text_by_file.items()}


def _manifest_upload(sharding: InputSharding, shard_index: int, uri: str, layout: RunS3Layout) -> Upload:
    """Upload of a ManifestFile in SageMaker's format: the prefix, then the names of the objects below it."""
    text = json.dumps([{"prefix": uri}, *sharding.names_by_host[shard_index]], indent=0) + "\n"
    file = f"{sharding.channel}.manifest"
    return Upload("shards", layout.file_lists_prefix({file: text}) + file, content=text)


def for_all_groups(job: Job, channels: Sequence[InputChannel]) -> Sequence[InputChannel]:
    """Return the channels: as soon as one names groups all do, smlaunch's own all groups."""
    names = tuple(group.name for group in job.compute.instance_groups)
    if not names or not any(channel.instance_groups for channel in channels):
        return [channel._replace(instance_groups=()) for channel in channels]
    return [channel._replace(instance_groups=channel.instance_groups or names) for channel in channels]


def count_smlaunch_channels(job: Job) -> int:
    """Number of channels that smlaunch adds: the runtime, the source, and possibly the file lists."""
    if job.entry is None:
        return 0
    return 2 + any(channel.split_via == VIA_LISTS for channel in job.inputs.values())


def describe_input_problem(channel: Channel, input_facts: InputFacts) -> str | None:
    """Return why the input channel cannot be read; None if it can. ``input_facts``: what discovery found
    about its data."""
    if input_facts.problem is not None:
        return input_facts.problem
    if not input_facts.exists:
        location = "on this machine" if channel.is_local else "in S3"
        return f"{channel.uri} does not exist {location}; check the path"
    object_count = input_facts.objects
    if object_count == 0:
        emptiness = "holds no files" if channel.is_local else "has no objects under it"
        return f"{channel.uri} {emptiness}; check the path, or remove the channel"
    # Discovery hashes local files that it can read.
    is_unreadable = channel.is_local and input_facts.sha256 is None
    return f"{channel.uri} could not be read" if is_unreadable else None


def _data_upload(channel: Channel, facts: InputFacts, layout: RunS3Layout) -> Upload:
    """Upload of a local channel's data."""
    uri = layout.data_prefix(facts.sha256 or "")
    if not facts.is_directory:
        uri += PurePath(channel.uri).name
    return Upload(
        "data", uri, path=channel.uri, sha256=facts.sha256, bytes=facts.bytes, files=facts.files or ()
    )


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
    spec: LaunchSpec, facts: DiscoveredFacts, layout: RunS3Layout
) -> tuple[list[InputChannel], list[Upload]]:
    """smlaunch's own channels: the runtime with job.json, and the source. The secret is generated on upload
    and not part of the plan."""
    source, job_json = facts.source, spec.to_json()
    launch_uri = layout.launch_prefix(job_json, facts.runtime_sha256)
    source_uri = layout.source_prefix(source.archive_sha256)
    channels = [
        InputChannel(name=RUNTIME_CHANNEL, uri=launch_uri),
        InputChannel(name=SOURCE_CHANNEL, uri=source_uri),
    ]
    uploads = [
        Upload(
            "runtime",
            launch_uri + RUNTIME_ARCHIVE,
            sha256=facts.runtime_sha256 or None,
            mpi=spec.ranks.launcher == MPI,
        ),
        Upload("launch", launch_uri + LAUNCH_FILE, content=job_json),
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


def volume_key(
    job: Job, instance_choice: InstanceChoice, facts: DiscoveredFacts, diagnostics: Diagnostics
) -> str | None:
    """Return the key of the hosts' volumes. A type with its own disk takes none, and a team's default is not
    meant for it."""
    entry = instance_choice.catalog_entry
    if entry is None or not entry.nvme_gb or facts.team.find("compute.volume_kms_key") is None:
        return job.compute.volume_kms_key
    diagnostics.add_reason(
        "defaults.volume-key",
        f"compute.volume_kms_key is left out: {entry.name} has its own NVMe disk, which takes no key.",
    )
    return None


def choose_volume_gb(
    job: Job, instance_choice: InstanceChoice, facts: DiscoveredFacts, diagnostics: Diagnostics
) -> int:
    """Return the size of the volume (disk) of each host in GB: as the job states, otherwise the data of File
    channels, which are copied to every host, and the default size on top. A rule rejects too small disks."""
    copied_bytes = bytes_of_file_channels(job, facts)
    stated_gb = job.compute.volume_gb
    instance_type, catalog_entry = instance_choice
    if catalog_entry is not None and catalog_entry.nvme_gb:
        # Types with NVMe disks have no volume: the request's size has no effect.
        if stated_gb is not None:
            diagnostics.add_warning(
                f"compute.volume_gb has no effect: {instance_type} has {catalog_entry.nvme_gb:g} GB of NVMe "
                "disk."
            )
        return stated_gb or DEFAULT_VOLUME_GB
    if stated_gb is not None:
        return stated_gb
    # Less than a GB fits in the default size of 30 GB.
    if copied_bytes < 10**9:
        return DEFAULT_VOLUME_GB
    needed_gb = DEFAULT_VOLUME_GB + -(-copied_bytes // 10**9)  # rounded up
    at_least = bound_word(facts, [name for name, channel in job.inputs.items() if channel.mode == "File"])
    diagnostics.add_reason(
        "volume.inputs",
        f"File channels copy {at_least}{copied_bytes / 1e9:.0f} GB to every host: a disk of {needed_gb} GB "
        f"leaves {DEFAULT_VOLUME_GB} GB free.",
    )
    return needed_gb


# ---- advice ----------------------------------------------------------------------------------------------

_MIN_ADVISED_BYTES = 10**9
"""Bytes. Below this all input modes perform alike, unless there are very many files."""

_MIN_ADVISED_OBJECTS = 1_000
"""Number of objects from which small channels are examined too."""


def advise_input_modes(
    job: Job,
    facts: DiscoveredFacts,
    instance_type: str,
    kind: JobKind,
    diagnostics: Diagnostics,
) -> None:
    """Add reasons and warnings about how the job's input channels are read: input modes, many small files,
    slow disks. Nothing is added for hosts of the local endpoint, which read without a network."""
    if facts.target == "local":
        return
    platform: Platform = "processing" if kind.copies_all_inputs else "training"
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
    from smlaunch.storage.storage_advice import advise_storage
    from smlaunch.storage.storage_advice_text import format_advice_line
    from smlaunch.storage.storage_options import AccessPattern

    object_count, size_bytes = input_facts.objects or 0, input_facts.bytes or 0
    # Disk, memory and network of the hosts, for estimates.
    host = HostProfile(instance=instances.find_instance_type(instance_type), hosts=job.compute.hosts)
    is_data_split = channel.split is not None
    if channel.mode == "File":
        # Bytes and files that one host copies to its disk before training.
        host_data = data_of_host(channel, input_facts, job.hosts_of_channel(channel))
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


def warn_of_shared_pipes(job: Job, processes_per_host: int | str, diagnostics: Diagnostics) -> None:
    """Warn of channels with input mode Pipe if a host has several ranks: only one process can read each pipe
    (developer guide, your-algorithms-training-algo-running-container)."""
    if processes_per_host == 1:
        return
    is_count = isinstance(processes_per_host, int)
    ranks_text = f"{processes_per_host} ranks run" if is_count else "several ranks may run"
    for name, channel in job.inputs.items():
        if channel.mode == "Pipe":
            diagnostics.add_warning(
                f"inputs.{name}: only one process can read a pipe, and {ranks_text} on each host: let one "
                "of them read it for all, or use mode FastFile."
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
