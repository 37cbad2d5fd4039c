"""How a job had best read its data: every way with what it costs and why it is taken or not. Pure.

The rules of size are those of clusters and of AWS alike: about 10 GB or less is read from memory, about
100 GB or less from the host's own disk, more from where it lies; many small files go into archives first. The
figures, with their sources, stand in catalog/storage.json; times computed from them are ranges, not promises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from smlaunch.catalog.storage import Figure, figure, network
from smlaunch.planning.census import DataFacts
from smlaunch.planning.io_times import NOTHING, Machine, Range, Share
from smlaunch.planning.prose import size

Place = Literal["training", "processing", "slurm"]
Verdict = Literal["take", "first", "works", "poor", "cannot"]

MEMORY = "memory"
FILE = "File"
FASTFILE = "FastFile"
PIPE = "Pipe"
SHARDS = "shards"
FSX = "FSx for Lustre"
EXPRESS = "S3 Express One Zone"
ETL = "EMR, Glue or Spark"
TMPDIR = "$SLURM_TMPDIR"
SHARED = "shared storage"

_WORTH = 60.0
"""Seconds per host: what packing has to save, at the slow end, for being worth a step of its own."""


@dataclass(frozen=True)
class Needs:
    """``epochs``: how often everything is read; None where nobody said, which is taken for more than once.
    ``random``: samples are read in random order inside of files. ``split``: each host reads its part only.
    ``place``: a training or processing job of SageMaker, or a Slurm cluster."""

    epochs: int | None = None
    random: bool = False
    split: bool = False
    place: Place = "training"

    @property
    def reads_again(self) -> bool:
        return self.epochs is None or self.epochs > 1


@dataclass(frozen=True)
class Way:
    """One way to data. ``take`` it, do it ``first``, it ``works`` too, it is ``poor`` here, or it ``cannot``
    be. ``before``: seconds until training begins; ``first_epoch`` and ``epoch``: of reading everything once,
    the first time and later. None where nobody knows."""

    name: str
    verdict: Verdict
    because: str
    before: Range | None = None
    first_epoch: Range | None = None
    epoch: Range | None = None

    def total(self, epochs: int) -> Range | None:
        if self.before is None or self.first_epoch is None or self.epoch is None:
            return None
        return self.before + self.first_epoch + self.epoch.times(epochs - 1)

    def to_dict(self, epochs: int | None) -> dict[str, Any]:
        total = self.total(epochs) if epochs else None
        times = {"before": self.before, "first_epoch": self.first_epoch, "epoch": self.epoch, "total": total}
        seconds = {
            name: None if span is None else [round(span.low, 1), round(span.high, 1)]
            for name, span in times.items()
        }
        return {"way": self.name, "verdict": self.verdict, "because": self.because, "seconds": seconds}


@dataclass(frozen=True)
class Advice:
    """``reasons`` for what is taken, in order; ``pack``: small files go into shards first, and ``ways`` are
    told with their times after that. ``assumed``: the figures behind the times."""

    data: DataFacts
    needs: Needs
    machine: Machine
    share: Share
    pack: bool
    ways: tuple[Way, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    assumed: tuple[Figure, ...]

    @property
    def taken(self) -> Way:
        return next(way for way in self.ways if way.verdict == "take")

    @property
    def mode(self) -> str | None:
        """The input mode of a channel that follows the advice; None where it is not a channel's."""
        if self.needs.place == "slurm":
            return None
        return {MEMORY: FILE, EXPRESS: FASTFILE, FSX: None}.get(self.taken.name, self.taken.name)

    def to_dict(self) -> dict[str, Any]:
        machine = self.machine
        return {
            "data": self.data.to_dict(),
            "needs": {
                "epochs": self.needs.epochs,
                "random_access": self.needs.random,
                "split": self.needs.split,
                "place": self.needs.place,
            },
            "hosts": machine.hosts,
            "instance_type": machine.instance.name if machine.instance else None,
            "per_host": {"bytes": round(self.share.bytes), "files": math.ceil(self.share.files)},
            "take": self.taken.name,
            "mode": self.mode,
            "pack_first": self.pack,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "ways": [way.to_dict(self.needs.epochs) for way in self.ways],
            "assumed": [row._asdict() for row in self.assumed],
        }


def advise(data: DataFacts, needs: Needs, machine: Machine) -> Advice:
    """Every way to the data, one of them taken. ``data`` must hold at least one file."""
    parts = machine.hosts if needs.split else 1
    share = Share(data.bytes / parts, data.files / parts)
    pack = _worth_packing(data, needs, machine, share)
    read = share.packed() if pack else share
    setting = _Setting(data, needs, machine, share, read, pack)
    if needs.place == "slurm":
        ways, reasons = _on_slurm(setting)
    else:
        ways, reasons = _on_sagemaker(setting)
    if needs.random:
        ways = tuple(_untimed(way) for way in ways)
    if pack:
        ways = (_packing(setting), *ways)
    return Advice(
        data, needs, machine, share, pack, ways, reasons, _notes(setting), _assumed(needs.place, machine)
    )


@dataclass(frozen=True)
class _Setting:
    """``read``: what a host reads, after packing where that comes first."""

    data: DataFacts
    needs: Needs
    machine: Machine
    share: Share
    read: Share
    pack: bool

    @property
    def in_memory(self) -> bool:
        """About 10 GB or less, and no more than the host's memory leaves for it."""
        memory = self.machine.memory
        fits = memory is None or self.share.bytes <= memory
        return self.share.bytes <= figure("memory_bytes").low and fits and not self.data.at_least

    @property
    def on_disk(self) -> bool:
        return self.share.bytes <= self.machine.disk_bytes

    @property
    def local(self) -> bool:
        small = self.share.bytes <= figure("local_bytes").low and not self.data.at_least
        return small and self.on_disk


# ---- on SageMaker ----------------------------------------------------------------------------------------


def _on_sagemaker(setting: _Setting) -> tuple[tuple[Way, ...], tuple[str, ...]]:
    name, reasons = _choose(setting)
    if setting.needs.place == "processing" and name not in (MEMORY, FILE):
        name, reasons = _for_processing(setting, reasons)
    ways = (
        _memory(setting),
        _file(setting),
        _fastfile(setting),
        _pipe(setting),
        _fsx(setting),
        _express(setting),
        _etl(setting),
    )
    chosen = tuple(replace(way, verdict="take") if way.name == name else way for way in ways)
    return chosen, tuple(reasons)


def _choose(setting: _Setting) -> tuple[str, list[str]]:
    """The name of the way, and why; each rule in the words of those who gave it."""
    needs, amount = setting.needs, _size(setting.share.bytes)
    if setting.in_memory:
        return MEMORY, [
            f"{amount} per host are about 10 GB or less: they fit in memory, and training should not read "
            "from a disk at all. A File channel brings them, and one read keeps them."
        ]
    if setting.local:
        if not needs.reads_again and not needs.random and (setting.pack or not setting.data.are_small):
            return FASTFILE, [
                f"{amount} per host are read once, in order: a copy on the host's disk would be read once "
                "too, so training need not wait for it."
            ]
        return FILE, [
            f"{amount} per host are about 100 GB or less: they are copied to the host's own disk once, which "
            "is faster and steadier than reading them from storage that others share."
        ]
    why = f"{amount} per host are more than about 100 GB"
    if not setting.on_disk:
        spare = _size(setting.machine.disk_bytes)
        why = f"{amount} per host do not fit on the {spare} that its disk has to spare"
    if setting.data.at_least:
        why = f"there are {amount} per host or more, counting was ended there"
    if needs.random and needs.reads_again:
        if setting.machine.nvme and setting.on_disk and not setting.data.at_least:
            return FILE, [
                f"{why}, but they fit on the host's own NVMe disk, and random reads want one: S3 answers "
                "each only after 0.1 to 0.2 s."
            ]
        return FSX, [
            f"{why}, and samples are read in random order, again and again: a file system that answers in "
            "less than a millisecond, filled from S3 as it is read, serves that; S3 takes 0.1 to 0.2 s."
        ]
    if needs.random:
        return EXPRESS, [
            f"{why}, and samples are read in random order, but once: storage that answers in single-digit "
            "milliseconds serves that without a file system to fill and to keep."
        ]
    return FASTFILE, [
        f"{why}: they stay where they are and are read as streams, in large pieces (one large chunk every "
        "few seconds rather than many small ones every second), while training goes on."
    ]


def _for_processing(setting: _Setting, reasons: list[str]) -> tuple[str, list[str]]:
    """Processing jobs have inputs of mode File and Pipe only."""
    if setting.on_disk:
        why = (
            "Inputs of a processing job are copied or piped: it is the copy, and a part for each of several "
        )
        why += "hosts (ShardedByS3Key over shards of one size) makes it shorter."
        return FILE, [*reasons[:-1], why]
    why = "It does not fit on the host's disk, and inputs of a processing job are copied or piped: a pipe, "
    why += "read in order, or more hosts, until a part fits on each."
    return PIPE, [why]


def _memory(setting: _Setting) -> Way:
    before = setting.machine.download(setting.read)
    first = setting.machine.from_disk(setting.read)
    later = setting.machine.from_memory(setting.read)
    if setting.in_memory:
        return Way(
            MEMORY, "works", "a File channel, read once and kept by the system's cache", before, first, later
        )
    memory = setting.machine.memory
    if setting.share.bytes <= figure("memory_bytes").low and memory is not None:
        return Way(MEMORY, "cannot", f"the host has {_size(memory)} of memory to spare")
    if memory is not None and setting.share.bytes <= memory and not setting.data.at_least:
        return Way(MEMORY, "works", "this host's memory holds even that", before, first, later)
    return Way(MEMORY, "cannot", f"{_size(setting.share.bytes)} do not fit in a host's memory")


def _file(setting: _Setting) -> Way:
    machine = setting.machine
    before, epoch = machine.download(setting.read), machine.from_disk(setting.read)
    if not setting.on_disk:
        why = f"the host's disk has {_size(machine.disk_bytes)} to spare, and cannot be made larger"
        return Way(FILE, "cannot", why)
    disk = "NVMe disk" if machine.nvme else "volume, 128 to 250 MiB/s, as large as compute.volume_gb"
    why = f"copied to the host's {disk}, before training begins"
    slow = not machine.nvme and setting.needs.reads_again and not setting.in_memory
    if slow:
        why += "; every epoch reads it at that speed, so an instance type with NVMe disks is worth a look"
    return Way(FILE, "works", why, before, epoch, epoch)


def _fastfile(setting: _Setting) -> Way:
    if setting.needs.place == "processing":
        return Way(FASTFILE, "cannot", "a processing job has no such input")
    epoch = setting.machine.stream(setting.read)
    if setting.needs.random:
        return Way(
            FASTFILE,
            "poor",
            "every random read is a request of its own, answered after 0.1 to 0.2 s",
            NOTHING,
        )
    if setting.data.are_small and not setting.pack and setting.data.files > 1:
        why = "begins at once; every small file is a request that a reader waits for, in every epoch"
        return Way(FASTFILE, "works", why, NOTHING, epoch, epoch)
    return Way(FASTFILE, "works", "begins at once; every epoch streams from S3 again", NOTHING, epoch, epoch)


def _pipe(setting: _Setting) -> Way:
    if setting.needs.random:
        return Way(PIPE, "cannot", "a pipe is read in order, once per epoch")
    epoch = setting.machine.download(setting.read, to_disk=False)
    why = "for built-in algorithms and augmented manifests; FastFile streams as well, and gives files"
    return Way(PIPE, "works", why, NOTHING, epoch, epoch)


def _fsx(setting: _Setting) -> Way:
    machine = setting.machine
    if setting.needs.place == "processing":
        return Way(FSX, "cannot", "a processing job's inputs come from S3")
    epoch = machine.from_fsx(setting.read, setting.data.bytes)
    first = Range(epoch.low, (machine.stream(setting.read) + epoch).high)
    least = max(figure("fsx_least_tib").low, setting.data.bytes / 2**40)
    large = setting.share.bytes > figure("local_bytes").low
    why = (
        f"{least:.1f} TiB or more, linked to the bucket, in a VPC, paid for while it stands: "
        "for large data that many jobs read, or that are read at random. smlaunch has no channel "
        "for it yet: request it with FileSystemDataSource"
    )
    return Way(FSX, "works" if large or setting.needs.random else "poor", why, NOTHING, first, epoch)


def _express(setting: _Setting) -> Way:
    if setting.needs.place == "processing":
        return Way(EXPRESS, "poor", "a copy at the start has no use for quick answers, once files are packed")
    epoch = setting.machine.stream(setting.read, figure("express_first_byte"))
    why = (
        "a directory bucket in the job's own availability zone, answering in single-digit milliseconds: for "
        "small or random reads that cannot be packed; the data are copied there first, and cost more to keep"
    )
    fits = setting.needs.random or (setting.data.are_small and not setting.in_memory)
    return Way(EXPRESS, "works" if fits else "poor", why, NOTHING, epoch, epoch)


def _etl(setting: _Setting) -> Way:
    tables = setting.data.tables or 0
    if 2 * tables >= setting.data.bytes > figure("local_bytes").low:
        return Way(
            ETL,
            "first",
            f"{_size(tables)} are text tables: what is filtered, joined and parsed anew in every epoch is "
            "ETL. Do it once, with Spark (SageMaker Processing's PySpark image, EMR or Glue), and train on "
            "Parquet or shards that it leaves",
        )
    return Way(ETL, "poor", "for filtering, joining and parsing tables at scale, not for reading samples")


# ---- on Slurm --------------------------------------------------------------------------------------------


def _on_slurm(setting: _Setting) -> tuple[tuple[Way, ...], tuple[str, ...]]:
    amount = _size(setting.share.bytes)
    memory = "memory of the job: copy to $SLURM_TMPDIR first, then read once and keep"
    tmpdir = "the node's own disk: one archive, copied and unpacked at the start of the job"
    shared = "home, project and scratch: rarely and in large pieces, never many small reads"
    if setting.in_memory:
        taken = MEMORY
        why = f"{amount} per host are about 10 GB or less: they fit in memory, and training should not read "
        why += "from a disk at all (ask for that much --mem)."
    elif setting.share.bytes <= figure("local_bytes").low and not setting.data.at_least:
        taken = TMPDIR
        why = f"{amount} per host are about 100 GB or less: the node's own disk is far faster and more "
        why += "reliable than storage that others share."
    else:
        taken = SHARED
        why = f"{amount} per host may not fit on the node: they stay on shared storage, which is for reading "
        why += "seldom and much (one large chunk every 10 seconds rather than 10 small ones every second)."
    fits: Verdict = "works" if taken != SHARED else "cannot"
    ways = (
        Way(MEMORY, "works" if setting.in_memory else "cannot", memory),
        Way(TMPDIR, fits, tmpdir),
        Way(SHARED, "poor" if taken != SHARED else "works", shared),
    )
    chosen = tuple(replace(way, verdict="take") if way.name == taken else way for way in ways)
    return chosen, (why,)


def _untimed(way: Way) -> Way:
    """How long random reads take depends on how many there are; from memory they cost no more than others."""
    return way if way.name == MEMORY else replace(way, first_epoch=None, epoch=None)


# ---- packing, and what else to know ----------------------------------------------------------------------


def _worth_packing(data: DataFacts, needs: Needs, machine: Machine, share: Share) -> bool:
    """Small files, many of them, and either a file system that counts them or time to be had."""
    if not data.are_small or data.files < 2:
        return False
    if needs.place == "slurm":
        return data.files >= figure("archive_files").low
    return _saved(machine, share).high >= _WORTH and share.files >= 2 * share.packed().files


def _saved(machine: Machine, share: Share) -> Range:
    """Of one download, by having shards instead of files."""
    before, after = machine.download(share), machine.download(share.packed())
    return Range(max(0.0, before.low - after.low), max(0.0, before.high - after.high))


def _packing(setting: _Setting) -> Way:
    files, shards = math.ceil(setting.data.files), math.ceil(Share(setting.data.bytes, 0).packed().files)
    count = f"{files:,} files of {_size(setting.data.mean)} on average"
    into = f"{shards:,} tar shard{'s' if shards != 1 else ''} of about 150 MB"
    if setting.needs.place == "slurm":
        why = (
            f"{count} go into {into}: shared file systems have a quota of files, and many small "
            "ones slow them down"
        )
    else:
        before = setting.machine.download(setting.share)
        why = f"{count} are as many requests, {before} before training; in {into} it is the bytes that count"
    return Way(SHARDS, "first", why)


def _notes(setting: _Setting) -> tuple[str, ...]:
    notes = []
    needs, machine = setting.needs, setting.machine
    if needs.place == "slurm":
        notes.append(
            "A node's disk may be full of other users' files: check what is free in $SLURM_TMPDIR before the "
            "copy, and fall back to shared storage with large reads."
        )
        return tuple(notes)
    if machine.instance is None:
        notes.append("Without an instance type (--instance-type) memory, disk and network are not known.")
    elif machine.instance.nvme_gb is None:
        notes.append(f"Whether {machine.instance.name} has NVMe disks is not known; a volume is assumed.")
    elif math.isinf(machine.network):
        notes.append(f"The network of {machine.instance.name} is not known; times have no limit by it.")
    elif _bursts(machine):
        notes.append(
            f"{machine.instance.name} has its network of {machine.network * 8 / 1e9:g} Gb/s for some minutes "
            "only; a long download is slower than the range says."
        )
    if machine.hosts > 1 and not needs.split:
        notes.append(
            f"Every one of {machine.hosts} hosts reads everything; with a part for each (split: bytes) it is "
            f"{_size(setting.data.bytes / machine.hosts)} per host."
        )
    if needs.random:
        notes.append("How long an epoch of random reads takes depends on their number, which is not known.")
    if needs.epochs is None:
        notes.append("How often everything is read (--epochs) is not known; more than once is assumed.")
    return tuple(notes)


def _bursts(machine: Machine) -> bool:
    known = None if machine.instance is None else network(machine.instance.name)
    return known is not None and known.burst


def _assumed(place: Place, machine: Machine) -> tuple[Figure, ...]:
    rules = ["memory_bytes", "local_bytes", "small_file_bytes", "shard_bytes"]
    if place == "slurm":
        return tuple(figure(name) for name in [*rules, "archive_files"])
    rates = ["s3_first_byte", "s3_in_flight", "s3_requests", "s3_stream", "s3_download", "s3_network_share"]
    disk = [machine.disk.name, "disk_first_byte", "memory_rate"]
    other = ["fsx_per_tib", "fsx_least_tib", "fsx_first_byte", "express_first_byte"]
    return tuple(figure(name) for name in [*rules, *rates, *disk, *other])


def _size(count: float) -> str:
    return size(round(count))
