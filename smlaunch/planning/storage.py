"""Where everything lies: input channels, what is uploaded for them, outputs, the disk of each host."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from smlaunch.catalog.instances import InstanceType
from smlaunch.job import Channel, Job
from smlaunch.planning.carry import LISTS, SHARD_FOLDER, SHARDS
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Carried, Upload
from smlaunch.planning.surroundings import InputFacts, Surroundings
from smlaunch.protocol.launch_spec import LaunchSpec
from smlaunch.protocol.part_lists import PARTS_CHANNEL, PARTS_INDEX, Part, PartsIndex, list_name, to_lines
from smlaunch.protocol.paths import (
    LAUNCH_FILE,
    RUNTIME_ARCHIVE,
    RUNTIME_CHANNEL,
    SECRET_FILE,
    SOURCE_ARCHIVE,
    SOURCE_CHANNEL,
)
from smlaunch.request import InputChannel

DEFAULT_VOLUME_GB = 30
"""The SageMaker SDK's default too."""

RESERVED_CHANNELS = {
    RUNTIME_CHANNEL: "carries the runtime",
    SOURCE_CHANNEL: "carries the source",
    PARTS_CHANNEL: "carries the lists of files",
}
"""Names that the job's own channels cannot have, and why."""


@dataclass(frozen=True)
class Layout:
    """S3 addresses of one run, all below one bucket unless the job says otherwise."""

    bucket: str
    run: str

    def launch(self, number: int = 1) -> str:
        """One for all segments, unless later ones need another job.json."""
        folder = "launch" if number == 1 else f"launch-{number}"
        return f"s3://{self.bucket}/smlaunch/{self.run}/{folder}/"

    def source(self, sha256: str) -> str:
        return f"s3://{self.bucket}/smlaunch/source/{sha256}/"

    def data(self, sha256: str) -> str:
        return f"s3://{self.bucket}/smlaunch/data/{sha256}/"

    @property
    def parts(self) -> str:
        return f"s3://{self.bucket}/smlaunch/{self.run}/parts/"

    @property
    def checkpoints(self) -> str:
        return f"s3://{self.bucket}/smlaunch/{self.run}/checkpoints/"

    @property
    def output(self) -> str:
        return f"s3://{self.bucket}/smlaunch/{self.run}/output/"


def plan_inputs(
    job: Job,
    surroundings: Surroundings,
    layout: Layout,
    notes: Notes,
    carried: Mapping[str, Carried] = {},
    part: int | None = None,
) -> tuple[list[InputChannel], list[Upload]]:
    """The job's own channels, by name in the job's order, what carries their parts, and what is to be sent
    for them. ``carried``: of the channels that are split by bytes; ``part``: which one this job is of, from
    0, where every part is a job of its own."""
    channels: list[InputChannel] = []
    uploads: list[Upload] = []
    for name, channel in job.inputs.items():
        if name in RESERVED_CHANNELS:
            continue  # refused by a rule
        facts = surroundings.inputs.get(name) or InputFacts(
            channel.uri, "local" if channel.is_local else "s3"
        )
        fault = fault_of_input(channel, facts)
        if fault is not None:
            notes.refuse(f"inputs.{name}", fault)
            continue
        if facts.pending:
            notes.warn(_PENDING.format(name))
        uri = channel.uri
        if channel.is_local:
            upload = _data_upload(channel, facts, layout)
            uploads.append(upload)
            uri = layout.data(facts.sha256 or "")
        _tell_split(name, channel, job.compute.hosts, notes)
        one = carried.get(name)
        sharded, manifest = channel.split == "key", False
        if one is not None and one.way == SHARDS:
            sharded = True
            if not uri.endswith("/" + SHARD_FOLDER):
                uri += SHARD_FOLDER
        elif one is not None and one.way == LISTS:
            uploads += _lists(one, layout)
        elif one is not None and part is not None:
            upload = _manifest(one, part, uri, layout)
            uploads.append(upload)
            uri, manifest = upload.uri, True
        channels.append(InputChannel(name, uri, channel.mode, sharded, channel.content_type, manifest))
    if any(one.way == LISTS for one in carried.values()):
        channels.append(InputChannel(PARTS_CHANNEL, layout.parts))
    return channels, uploads


_PENDING = (
    "inputs.{}: an earlier step is to leave it, so that nobody has looked at it: its size is in no figure of "
    "this plan. compute.volume_gb says how much disk the hosts are to have."
)


def _lists(carried: Carried, layout: Layout) -> Iterator[Upload]:
    """Every host's list, and their index."""
    folder = f"{layout.parts}{carried.channel}/"
    rows = []
    for host, names in enumerate(carried.lists):
        file = list_name(host)
        rows.append(Part(file, len(names), carried.by_bytes[host]))
        yield Upload("parts", folder + file, content=to_lines(names))
    yield Upload("parts", folder + PARTS_INDEX, content=PartsIndex(carried.channel, tuple(rows)).to_json())


def _manifest(carried: Carried, part: int, uri: str, layout: Layout) -> Upload:
    """SageMaker's ManifestFile: the prefix, then the names of the objects below it."""
    text = json.dumps([{"prefix": uri}, *carried.lists[part]], indent=0)
    return Upload("parts", f"{layout.parts}{carried.channel}.manifest", content=text + "\n")


def own_channels(job: Job) -> int:
    """How many smlaunch adds: the runtime, the source, and the lists of files where there may be some."""
    if job.entry is None:
        return 0
    return 2 + any(channel.carry == LISTS for channel in job.inputs.values())


def fault_of_input(channel: Channel, facts: InputFacts) -> str | None:
    """Why nothing can be read there; None when all is well."""
    if facts.problem is not None:
        return facts.problem
    if not facts.exists:
        place = "on this machine" if channel.is_local else "in S3"
        return f"{channel.uri} does not exist {place}; check the path"
    if facts.objects == 0:
        what = "holds no files" if channel.is_local else "has no objects under it"
        return f"{channel.uri} {what}; check the path, or leave the channel out"
    if channel.is_local and facts.sha256 is None:
        return f"{channel.uri} could not be read"
    return None


def _data_upload(channel: Channel, facts: InputFacts, layout: Layout) -> Upload:
    uri = layout.data(facts.sha256 or "")
    if not facts.directory:
        uri += PurePath(channel.uri).name
    return Upload("data", uri, path=channel.uri, sha256=facts.sha256, bytes=facts.bytes)


def _tell_split(name: str, channel: Channel, hosts: int, notes: Notes) -> None:
    if channel.split != "key":
        return
    if hosts == 1:
        notes.because(f"inputs.{name}.split", "One host gets every object, split or not.")
        return
    notes.because(
        f"inputs.{name}.split",
        f"Every object goes to exactly one of {hosts} hosts; which one is the service's choice, by number of "
        "objects and not by size. Ranks may see unequal amounts of data.",
    )


def plan_launch_channels(
    number: int, spec: LaunchSpec, surroundings: Surroundings, layout: Layout
) -> tuple[list[InputChannel], list[Upload]]:
    """The two channels of smlaunch's own: the runtime with job.json, and the source. ``number``: of the
    job.json among those of the run. Its secret is made when it is submitted, and no plan knows it."""
    source = surroundings.source
    launch, code = layout.launch(number), layout.source(source.archive_sha256)
    channels = [InputChannel(RUNTIME_CHANNEL, launch), InputChannel(SOURCE_CHANNEL, code)]
    uploads = [
        Upload("runtime", launch + RUNTIME_ARCHIVE),
        Upload("launch", launch + LAUNCH_FILE, content=spec.to_json()),
        *([Upload("secret", launch + SECRET_FILE)] if spec.linked else []),
        Upload(
            "source",
            code + SOURCE_ARCHIVE,
            path=source.root,
            sha256=source.archive_sha256,
            bytes=source.bytes,
        ),
    ]
    return channels, uploads


def plan_volume(
    job: Job, instance: tuple[str, InstanceType | None], surroundings: Surroundings, notes: Notes
) -> int:
    """GB of disk per host: room for what File channels copy, and as much as usual beside it."""
    copied = sum(
        surroundings.inputs[name].bytes or 0
        for name, channel in job.inputs.items()
        if channel.mode == "File" and name in surroundings.inputs
    )
    name, known = instance
    if known is not None and known.nvme_gb:
        if job.compute.volume_gb is not None:
            notes.warn(f"compute.volume_gb has no effect: {name} brings {known.nvme_gb:g} GB of NVMe disk.")
        if copied > known.nvme_gb * 1e9:
            notes.warn(
                f"File channels copy {copied / 1e9:.0f} GB to every host, and {name} has "
                f"{known.nvme_gb:g} GB of disk; use mode FastFile."
            )
        return job.compute.volume_gb or DEFAULT_VOLUME_GB
    if job.compute.volume_gb is not None:
        if copied > job.compute.volume_gb * 1e9:
            notes.warn(
                f"File channels copy {copied / 1e9:.0f} GB to every host, and compute.volume_gb is "
                f"{job.compute.volume_gb}; make it larger, or use mode FastFile."
            )
        return job.compute.volume_gb
    needed = DEFAULT_VOLUME_GB + -(-copied // 10**9) if copied else DEFAULT_VOLUME_GB
    if copied >= 10**9:
        notes.because(
            "volume.inputs",
            f"File channels copy {copied / 1e9:.0f} GB to every host: a disk of {needed} GB leaves "
            f"{DEFAULT_VOLUME_GB} GB free.",
        )
        return needed
    return DEFAULT_VOLUME_GB
