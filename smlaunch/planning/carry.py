"""How the parts of a channel that is split by bytes come to the hosts, and why so. Pure.

There are three ways, none of which relies on what SageMaker does not promise (which host gets which key, and
whether that stays so):

``shards``  the data is packed in shards of about the same size, and the service deals them out by number
``lists``   every host sees all of it (FastFile) and reads its own list, found by its position at run time
``jobs``    one job of one host for each part, with a manifest; each part is tried again alone
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from smlaunch.job import Channel, Job
from smlaunch.planning import parts
from smlaunch.planning.libraries import spoken_for
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Carried
from smlaunch.planning.surroundings import InputFacts, ScriptFacts, StoredFile, Surroundings
from smlaunch.protocol.part_lists import fault_of
from smlaunch.request import PROCESSING
from smlaunch.strategies import load
from smlaunch.strategies.share_nothing import FAIL, FINISH, ON_HOST_FAILURE

SHARDS, LISTS, JOBS = "shards", "lists", "jobs"

_EACH = {SHARDS: "shard", LISTS: "file"}

SHARD_FOLDER = "shards/"
SHARD_INDEX = "index.json"
"""Where ``smlaunch data pack`` puts shards and, last, their index."""

EVEN_ENOUGH = 1.05
"""Shards are dealt out by number where the fullest host gets no more than this times the least possible."""

_ASKS = ("smlaunch.train.part_files", "smlaunch.train.part_files.part_files")

_NO_MANIFEST = "a part's job gets a manifest, which FastFile does not take"


def choose_carriers(job: Job, surroundings: Surroundings, notes: Notes) -> dict[str, Carried]:
    """For every channel that is split by bytes, how. Refuses what cannot be, in ``notes``."""
    split = {name: channel for name, channel in job.inputs.items() if channel.split == "bytes"}
    for name, channel in job.inputs.items():
        if channel.carry is not None and channel.split != "bytes":
            notes.refuse(f"inputs.{name}.carry", "it is about split: bytes; add that, or leave it out")
    hosts = job.compute.hosts
    if not split or hosts == 1:
        for name in split:
            notes.because(f"inputs.{name}.split", "One host gets every object, split or not.")
        return {}
    found: dict[str, Carried] = {}
    for name, channel in split.items():
        facts = surroundings.inputs.get(name)
        if facts is None or facts.problem is not None or not facts.exists:
            continue  # refused with the channel itself
        files = _files(f"inputs.{name}", channel, facts, notes)
        if files is not None:
            found[name] = _Choice(name, channel, facts, files, job, surroundings, notes).carried()
    if {carried.way for carried in found.values()} > {JOBS}:
        others = ", ".join(name for name, carried in found.items() if carried.way != JOBS)
        notes.refuse(
            "inputs",
            f"jobs of one host for one channel leave nothing to split for {others}: carry all of them by "
            "jobs, or none",
        )
    return found


def shard_names(index: bytes) -> tuple[str, ...] | None:
    """Names of the shards, relative to the packed place; None for no index of ``smlaunch data pack``."""
    try:
        document = json.loads(index)
        if document["kind"] != "smlaunch.shards" or str(document["version"]).partition(".")[0] != "1":
            return None
        return tuple(str(row["name"]) for row in document["shards"])
    except (ValueError, KeyError, TypeError):
        return None


def _files(where: str, channel: Channel, facts: InputFacts, notes: Notes) -> list[StoredFile] | None:
    """What is to be shared out, in the order of names; None after a refusal."""
    if channel.is_local and not facts.directory:
        notes.refuse(f"{where}.split", f"{channel.uri} is one file, which cannot be split; name a folder")
    elif not channel.is_local and not channel.uri.endswith("/"):
        notes.refuse(f"{where}.uri", f"files are listed below a whole folder; end {channel.uri} with a slash")
    elif facts.files is None:
        seen = f"more than {facts.objects:,}" if facts.objects else "too many"
        notes.refuse(
            f"{where}.split",
            f"{channel.uri} has {seen} objects, too many to be split in a plan; pack them first "
            "(smlaunch data pack)",
        )
    else:
        files = [file for file in facts.files if not file.name.endswith("/")]  # folder markers
        if not files:
            notes.refuse(where, f"{channel.uri} holds folders and no file; there is nothing to split")
            return None
        faults = [fault for file in files if (fault := fault_of(file.name)) is not None]
        if not faults:
            return files
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        notes.refuse(where, f"{faults[0]}{more}; a host would not find it: give it another name")
    return None


@dataclass(frozen=True)
class _Choice:
    name: str
    channel: Channel
    facts: InputFacts
    files: Sequence[StoredFile]
    job: Job
    surroundings: Surroundings
    notes: Notes

    def carried(self) -> Carried:
        way, shards = self._way(), self._shards()
        if shards:
            self._check_beside(shards)
        if way == SHARDS and shards:
            sizes = [file.bytes for file in shards]
            worst = _by_count(sizes, self.hosts)
            loads = _bytes(worst)
            largest = max(sizes, default=0)
            result = Carried(self.name, SHARDS, worst.method, loads, worst.counts, loads, largest)
        else:
            files = shards or self.files
            sizes = [file.bytes for file in files]
            best = parts.best(sizes, self.hosts)
            names: list[list[str]] = [[] for _ in range(self.hosts)]
            for file, host in zip(files, best.host_of, strict=True):
                names[host].append(file.name)
            result = Carried(
                self.name,
                way,
                best.method,
                _bytes(best),
                best.counts,
                _bytes(_by_count(sizes, self.hosts)),
                max(sizes, default=0),
                tuple(map(tuple, names)),
            )
        self._tell(result)
        return result

    @property
    def hosts(self) -> int:
        return self.job.compute.hosts

    def _way(self) -> str:
        where, mode, stated = f"inputs.{self.name}", self.channel.mode, self.channel.carry
        way = stated or self._chosen()
        if self._copies and way == LISTS:
            self.notes.refuse(
                f"{where}.carry",
                "a processing job copies all of its inputs to every host, so that lists spare nothing; use "
                "shards or jobs",
            )
        elif mode == "Pipe" and way == LISTS:
            self.notes.refuse(f"{where}.mode", "a pipe cannot be read by a list; leave the mode out")
        if mode == "FastFile" and way in (SHARDS, JOBS):
            why = "SageMaker does not say that FastFile keeps to a share" if way == SHARDS else _NO_MANIFEST
            self.notes.refuse(f"{where}.mode", f"{why}; use File, or carry: lists")
        if way == SHARDS and not self._shards():
            self.notes.refuse(
                f"{where}.carry",
                f"{self.channel.uri} has no {SHARD_INDEX} of `smlaunch data pack`; pack it, or carry: lists",
            )
        if way == LISTS and stated is not None and not asks_for_files(self.surroundings.script):
            self.notes.warn(
                f"{where}: the lists work for a script that asks for them, and "
                f"{self.surroundings.source.entry} does not import smlaunch.train.part_files."
            )
        if way == JOBS:
            self._check_jobs()
        elif stated is not None and self.job.options.get(ON_HOST_FAILURE) == FINISH:
            self.notes.refuse(
                f"{where}.carry",
                f"{ON_HOST_FAILURE}: {FINISH} makes a job for every part; use jobs, or leave it out",
            )
        return way

    def _chosen(self) -> str:
        where, shards, script = f"inputs.{self.name}", self._shards(), self.surroundings.script
        entry = self.surroundings.source.entry
        if shards and self.channel.mode != "FastFile":
            worst = _by_count([file.bytes for file in shards], self.hosts)
            even = parts.imbalance(worst.loads, max(file.bytes for file in shards))
            if even <= EVEN_ENOUGH:
                self.notes.because(
                    f"{where}.carry",
                    f"The {len(shards)} shards are so alike that a split by number is one by bytes too, "
                    f"whichever host gets which (at worst {even:.3f} times the least possible).",
                )
                return SHARDS
        policy = self.job.options.get(ON_HOST_FAILURE)
        if policy == FINISH:
            self.notes.because(
                f"{where}.carry",
                f"{ON_HOST_FAILURE}: {FINISH}: a job of its own for each part, so that one that fails "
                "ends no other.",
            )
            return JOBS
        if asks_for_files(script) and not self._copies:
            self.notes.because(
                f"{where}.carry", f"{entry} asks for its files (smlaunch.train.part_files): each host a list."
            )
            return LISTS
        if self._joined() is None and policy == FAIL:
            self.notes.refuse(
                f"options.{ON_HOST_FAILURE}",
                f"{FAIL} is about one job for all parts, and {entry} would have to ask it for its files: "
                "read smlaunch.train.part_files(), or pack the data (smlaunch data pack), or leave it out",
            )
            return LISTS
        if self._joined() is None:
            self.notes.because(
                f"{where}.carry",
                f"{entry} neither joins ranks nor asks for its files: a job of its own for each part, which "
                "is tried again alone."
                if not self._copies
                else "Processing jobs copy all of their inputs: a job for each part, tried again alone.",
            )
            return JOBS
        self.notes.refuse(
            f"{where}.split",
            f"{entry} joins ranks ({self._joined()}), so that they must be one job, and does not ask for its "
            "files: read smlaunch.train.part_files(), or pack the data (smlaunch data pack)",
        )
        return LISTS

    @property
    def _copies(self) -> bool:
        """Processing jobs have no FastFile."""
        named = self.job.strategy
        return named is not None and load(named).operation == PROCESSING

    def _joined(self) -> str | None:
        """What says that the ranks of all hosts work together; None when nothing does."""
        if self.job.strategy is not None:
            return f"strategy: {self.job.strategy}" if load(self.job.strategy).joins_hosts else None
        if self.surroundings.script.reads_resource_config:
            return "it reads resourceconfig.json"
        spoken = spoken_for(self.surroundings.script.imports)
        return spoken.library if spoken is not None and spoken.joins_hosts else None

    def _check_jobs(self) -> None:
        joined = self._joined()
        if joined is not None and self.job.strategy is None:
            self.notes.warn(f"Jobs of one host cannot find each other, and the script may want to: {joined}.")
        elif joined is not None:
            self.notes.refuse(
                "strategy",
                f"{self.job.strategy} joins the ranks of all hosts, and jobs of one host are apart; use "
                "carry: lists",
            )
        if any(change.compute.hosts is not None for change in self.job.segments):
            self.notes.refuse("segments", "with carry: jobs every job has one host; leave compute.hosts out")
        for name, channel in self.job.inputs.items():
            if channel.split == "key":
                self.notes.refuse(
                    f"inputs.{name}.split",
                    "each job has one host, which gets every object; use split: bytes, or leave it out",
                )

    def _shards(self) -> list[StoredFile]:
        wanted = set(self.facts.shards or ())
        found = [file for file in self.files if file.name in wanted]
        return found if len(found) == len(wanted) else []

    def _check_beside(self, shards: Sequence[StoredFile]) -> None:
        """What is not in the index would be left out by one way and dealt out by another."""
        known = {SHARD_INDEX, *(file.name for file in shards)}
        others = [file.name for file in self.files if file.name not in known]
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            self.notes.refuse(
                f"inputs.{self.name}.uri",
                f"beside its shards {self.channel.uri} holds {others[0]!r}{more}, which no index names; move "
                "that away, or pack it too",
            )

    def _tell(self, carried: Carried) -> None:
        where = f"inputs.{self.name}"
        if 0 in carried.files and carried.way == JOBS:
            empty = carried.files.count(0)
            self.notes.warn(f"{where}: {empty} of {self.hosts} hosts get no file; there are fewer files.")
        elif 0 in carried.files:
            self.notes.refuse(f"{where}.split", too_few(sum(carried.files), _EACH[carried.way], self.hosts))
        share = max(carried.by_bytes) * self.hosts / max(1, carried.total)
        if carried.imbalance > EVEN_ENOUGH:
            self.notes.warn(
                f"{where}: the fullest host gets {carried.imbalance:.2f} times the least possible."
            )
        elif share > EVEN_ENOUGH:
            self.notes.warn(
                f"{where}: the fullest host gets {share:.2f} times an equal share, as one file alone is that "
                "large; objects are never split."
            )


def too_few(count: int, what: str, hosts: int) -> str:
    """Some hosts would get nothing (``what``: a shard, a file, an object), and be paid for."""
    things = f"{count} {what}{'' if count == 1 else 's'}"
    told = f"{things} cannot be split among {hosts} hosts: some would get none"
    return f"{told}; take fewer hosts, or smaller {what}s"


def asks_for_files(script: ScriptFacts) -> bool:
    return any(name in _ASKS for name in script.imports | script.reached)


def _by_count(sizes: Sequence[int], hosts: int) -> parts.Parts:
    """The worse of both ways to deal out by number: which one the service takes it does not say."""
    both = parts.contiguous(sizes, hosts), parts.round_robin(sizes, hosts)
    return max(both, key=lambda one: max(one.loads))


def _bytes(one: parts.Parts) -> tuple[int, ...]:
    return tuple(int(load) for load in one.loads)


def effective(
    job: Job, surroundings: Surroundings, carried: Mapping[str, Carried]
) -> tuple[Job, Surroundings]:
    """The job and its surroundings as one host will see them: how its channels are read, and how much of each
    comes to it."""
    channels, inputs = dict(job.inputs), dict(surroundings.inputs)
    for name, one in carried.items():
        if one.way == LISTS:
            channels[name] = channels[name].model_copy(update={"mode": "FastFile"})
        else:
            inputs[name] = replace(inputs[name], bytes=max(one.by_bytes))
    return job.model_copy(update={"inputs": channels}), replace(surroundings, inputs=inputs)
