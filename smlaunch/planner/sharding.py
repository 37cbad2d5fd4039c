"""Distributes the files of channels with ``split: bytes`` over the hosts, and explains the choice. Pure.

There are three methods. None relies on which host gets which key, or on that staying so, since SageMaker does
not document either:

``shards``  the data is packed into shards of similar size, which the service distributes by number
``lists``   every host can read all data (FastFile) and reads the files of its own list, found by its position
``jobs``    one single-host job per shard, with a manifest; each is retried on its own
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from smlaunch.api.request import CREATE_PROCESSING_JOB
from smlaunch.contract.shard_lists import file_name_problem
from smlaunch.job.model import Channel, Job
from smlaunch.planner import partitioning
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts, InputFacts, ScriptFacts, StoredFile
from smlaunch.planner.plan import InputSharding
from smlaunch.planner.strategy_detection import detect_strategy
from smlaunch.strategies import load_strategy
from smlaunch.strategies.share_nothing import FAIL, FINISH, ON_HOST_FAILURE

SHARDS, LISTS, JOBS = "shards", "lists", "jobs"

_UNIT = {SHARDS: "shard", LISTS: "file"}

SHARD_FOLDER = "shards/"
SHARD_INDEX = "index.json"
"""Where ``smlaunch data pack`` writes the shards and, last, their index."""

MAX_IMBALANCE = 1.05
"""Shards are distributed by number if the fullest host gets at most this factor of the lowest possible
load."""

_FILE_LIST_IMPORTS = ("smlaunch.train.shard_files", "smlaunch.train.shard_files.shard_files")

_MANIFEST_UNSUPPORTED = "each shard's job gets a manifest, which FastFile does not support"


def plan_sharding(job: Job, facts: Facts, diagnostics: Diagnostics) -> dict[str, InputSharding]:
    """How each channel with ``split: bytes`` is distributed, by channel name. Adds a problem for each
    impossible one."""
    split_channels = {name: channel for name, channel in job.inputs.items() if channel.split == "bytes"}
    for name, channel in job.inputs.items():
        if channel.split_via is not None and channel.split != "bytes":
            diagnostics.add_problem(
                f"inputs.{name}.split_via", "it applies to split: bytes; add that, or leave it out"
            )
    hosts = job.compute.hosts
    if not split_channels or hosts == 1:
        for name in split_channels:
            diagnostics.add_reason(f"inputs.{name}.split", "One host gets every object, split or not.")
        return {}
    sharding_by_channel: dict[str, InputSharding] = {}
    for name, channel in split_channels.items():
        input_facts = facts.inputs.get(name)
        if input_facts is None or input_facts.problem is not None or not input_facts.exists:
            continue  # the channel itself is reported
        files = _files_to_split(f"inputs.{name}", channel, input_facts, diagnostics)
        if files is not None:
            sharding_by_channel[name] = _ShardingPlanner(
                name, channel, input_facts, files, job, facts, diagnostics
            ).sharding()
    if {sharding.split_via for sharding in sharding_by_channel.values()} > {JOBS}:
        other_channels = ", ".join(
            name for name, sharding in sharding_by_channel.items() if sharding.split_via != JOBS
        )
        diagnostics.add_problem(
            "inputs",
            f"single-host jobs for one channel leave nothing to split for {other_channels}: use split_via: "
            "jobs for all of them, or none",
        )
    return sharding_by_channel


def shard_names(index: bytes) -> tuple[str, ...] | None:
    """Names of the shards relative to the packed prefix; None if ``index`` is not one of ``smlaunch data
    pack``."""
    try:
        document = json.loads(index)
        if document["kind"] != "smlaunch.shards" or str(document["version"]).partition(".")[0] != "1":
            return None
        return tuple(str(row["name"]) for row in document["shards"])
    except (ValueError, KeyError, TypeError):
        return None


def _files_to_split(
    field: str, channel: Channel, facts: InputFacts, diagnostics: Diagnostics
) -> list[StoredFile] | None:
    """Files to distribute, sorted by name; None after adding a problem."""
    if channel.is_local and not facts.is_directory:
        diagnostics.add_problem(
            f"{field}.split", f"{channel.uri} is one file, which cannot be split; name a folder"
        )
    elif not channel.is_local and not channel.uri.endswith("/"):
        diagnostics.add_problem(
            f"{field}.uri", f"files are listed below a folder; end {channel.uri} with a slash"
        )
    elif facts.files is None:
        count_text = f"more than {facts.objects:,}" if facts.objects else "too many"
        diagnostics.add_problem(
            f"{field}.split",
            f"{channel.uri} has {count_text} objects, too many to be split in a plan; pack them first "
            "(smlaunch data pack)",
        )
    else:
        files = [file for file in facts.files if not file.name.endswith("/")]  # folder markers
        if not files:
            diagnostics.add_problem(field, f"{channel.uri} contains only folders; there is nothing to split")
            return None
        problems = [problem for file in files if (problem := file_name_problem(file.name)) is not None]
        if not problems:
            return files
        more_text = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        diagnostics.add_problem(field, f"{problems[0]}{more_text}; a host could not find it: rename it")
    return None


@dataclass(frozen=True)
class _ShardingPlanner:
    """Plans the sharding of one channel."""

    name: str
    channel: Channel
    input_facts: InputFacts
    files: Sequence[StoredFile]
    job: Job
    facts: Facts
    diagnostics: Diagnostics

    def sharding(self) -> InputSharding:
        """Choose the method and assign files to hosts."""
        split_via, shards = self._choose_method(), self._shard_files()
        if shards:
            self._check_unindexed(shards)
        if split_via == SHARDS and shards:
            sizes = [file.bytes for file in shards]
            count_partition = _worst_by_count(sizes, self.hosts)
            bytes_by_host = _whole_loads(count_partition)
            largest = max(sizes, default=0)
            result = InputSharding(
                self.name,
                SHARDS,
                count_partition.method,
                bytes_by_host,
                count_partition.counts,
                bytes_by_host,
                largest,
            )
        else:
            files = shards or self.files
            sizes = [file.bytes for file in files]
            byte_partition = partitioning.best_partition(sizes, self.hosts)
            names_by_host: list[list[str]] = [[] for _ in range(self.hosts)]
            for file, host in zip(files, byte_partition.host_by_item, strict=True):
                names_by_host[host].append(file.name)
            result = InputSharding(
                self.name,
                split_via,
                byte_partition.method,
                _whole_loads(byte_partition),
                byte_partition.counts,
                _whole_loads(_worst_by_count(sizes, self.hosts)),
                max(sizes, default=0),
                tuple(map(tuple, names_by_host)),
            )
        self._report_balance(result)
        return result

    @property
    def hosts(self) -> int:
        return self.job.compute.hosts

    def _choose_method(self) -> str:
        """``shards``, ``lists`` or ``jobs``; adds a problem if the stated one is impossible."""
        field, mode, stated_way = f"inputs.{self.name}", self.channel.mode, self.channel.split_via
        split_via = stated_way or self._default_method()
        if self._is_processing and split_via == LISTS:
            self.diagnostics.add_problem(
                f"{field}.split_via",
                "a processing job copies all of its inputs to every host, so that lists save nothing; use "
                "shards or jobs",
            )
        elif mode == "Pipe" and split_via == LISTS:
            self.diagnostics.add_problem(
                f"{field}.mode", "a pipe cannot be read by a list; leave the mode out"
            )
        if mode == "FastFile" and split_via in (SHARDS, JOBS):
            message = (
                "SageMaker does not document that FastFile is limited to a host's share"
                if split_via == SHARDS
                else _MANIFEST_UNSUPPORTED
            )
            self.diagnostics.add_problem(f"{field}.mode", f"{message}; use File, or split_via: lists")
        if split_via == SHARDS and not self._shard_files():
            self.diagnostics.add_problem(
                f"{field}.split_via",
                f"{self.channel.uri} has no {SHARD_INDEX} of `smlaunch data pack`; pack it, or use "
                "split_via: lists",
            )
        if split_via == LISTS and stated_way is not None and not asks_for_files(self.facts.script):
            self.diagnostics.add_warning(
                f"{field}: file lists need a script that reads them, and {self.facts.source.entry} does not "
                "import smlaunch.train.shard_files."
            )
        if split_via == JOBS:
            self._check_jobs()
        elif stated_way is not None and self.job.options.get(ON_HOST_FAILURE) == FINISH:
            self.diagnostics.add_problem(
                f"{field}.split_via",
                f"{ON_HOST_FAILURE}: {FINISH} makes a job for every shard; use jobs, or leave it out",
            )
        return split_via

    def _default_method(self) -> str:
        """The method for a channel that states none, with the reason."""
        field, shards, script = f"inputs.{self.name}", self._shard_files(), self.facts.script
        entry = self.facts.source.entry
        if shards and self.channel.mode != "FastFile":
            count_partition = _worst_by_count([file.bytes for file in shards], self.hosts)
            imbalance = partitioning.imbalance(count_partition.loads, max(file.bytes for file in shards))
            if imbalance <= MAX_IMBALANCE:
                self.diagnostics.add_reason(
                    f"{field}.split_via",
                    f"The {len(shards)} shards are similar enough to split by number, whichever host gets "
                    f"which (at worst {imbalance:.3f} times the least possible).",
                )
                return SHARDS
        failure_policy = self.job.options.get(ON_HOST_FAILURE)
        if failure_policy == FINISH:
            self.diagnostics.add_reason(
                f"{field}.split_via",
                f"{ON_HOST_FAILURE}: {FINISH}: a separate job for each shard, so that a failure affects no "
                "other shard.",
            )
            return JOBS
        if asks_for_files(script) and not self._is_processing:
            self.diagnostics.add_reason(
                f"{field}.split_via",
                f"{entry} reads its file list (smlaunch.train.shard_files): each host gets a list.",
            )
            return LISTS
        if self._join_evidence() is None and failure_policy == FAIL:
            self.diagnostics.add_problem(
                f"options.{ON_HOST_FAILURE}",
                f"{FAIL} applies to one job for all shards, in which {entry} must read its file list: call "
                "smlaunch.train.shard_files(), or pack the data (smlaunch data pack), or leave it out",
            )
            return LISTS
        if self._join_evidence() is None:
            self.diagnostics.add_reason(
                f"{field}.split_via",
                f"{entry} neither joins ranks nor reads its file list: a separate job for each shard, which "
                "is retried separately."
                if not self._is_processing
                else (
                    "Processing jobs copy all of their inputs: a separate job for each shard, which is "
                    "retried separately."
                ),
            )
            return JOBS
        self.diagnostics.add_problem(
            f"{field}.split",
            f"{entry} joins ranks ({self._join_evidence()}), so that they must be one job, and does not "
            "read its file list: call smlaunch.train.shard_files(), or pack the data (smlaunch data pack)",
        )
        return LISTS

    @property
    def _is_processing(self) -> bool:
        """Whether the job is a processing job, which has no FastFile."""
        strategy_name = self.job.strategy
        return strategy_name is not None and load_strategy(strategy_name).operation == CREATE_PROCESSING_JOB

    def _join_evidence(self) -> str | None:
        """Evidence that the ranks of all hosts communicate; None if there is none."""
        if self.job.strategy is not None:
            return f"strategy: {self.job.strategy}" if load_strategy(self.job.strategy).joins_hosts else None
        if self.facts.script.reads_resource_config:
            return "it reads resourceconfig.json"
        detected = detect_strategy(self.facts.script.imports)
        return detected.library if detected is not None and detected.joins_hosts else None

    def _check_jobs(self) -> None:
        """Report what does not work with single-host jobs."""
        joined = self._join_evidence()
        if joined is not None and self.job.strategy is None:
            self.diagnostics.add_warning(
                f"Single-host jobs cannot communicate, but the script may need to: {joined}."
            )
        elif joined is not None:
            self.diagnostics.add_problem(
                "strategy",
                f"{self.job.strategy} joins the ranks of all hosts, which single-host jobs do not allow; "
                "use split_via: lists",
            )
        if any(change.compute.hosts is not None for change in self.job.segments):
            self.diagnostics.add_problem(
                "segments", "with split_via: jobs every job has one host; leave compute.hosts out"
            )
        for name, channel in self.job.inputs.items():
            if channel.split == "key":
                self.diagnostics.add_problem(
                    f"inputs.{name}.split",
                    "each job has one host, which gets every object; use split: bytes, or leave it out",
                )

    def _shard_files(self) -> list[StoredFile]:
        """Files of the shards; empty without a complete set."""
        indexed_names = set(self.input_facts.shard_names or ())
        shards = [file for file in self.files if file.name in indexed_names]
        return shards if len(shards) == len(indexed_names) else []

    def _check_unindexed(self, shards: Sequence[StoredFile]) -> None:
        """Report files next to the shards that the index does not name: one method would skip them,
        another distribute them."""
        indexed_names = {SHARD_INDEX, *(file.name for file in shards)}
        unindexed_names = [file.name for file in self.files if file.name not in indexed_names]
        if unindexed_names:
            more_text = f" and {len(unindexed_names) - 1} more" if len(unindexed_names) > 1 else ""
            self.diagnostics.add_problem(
                f"inputs.{self.name}.uri",
                f"besides its shards {self.channel.uri} contains {unindexed_names[0]!r}{more_text}, which "
                "is in no index; move it elsewhere, or pack it too",
            )

    def _report_balance(self, sharding: InputSharding) -> None:
        """Warn of hosts without files and of unequal shares."""
        field = f"inputs.{self.name}"
        if 0 in sharding.files_by_host and sharding.split_via == JOBS:
            empty_hosts = sharding.files_by_host.count(0)
            self.diagnostics.add_warning(
                f"{field}: {empty_hosts} of {self.hosts} hosts get no file: there are fewer files than hosts."
            )
        elif 0 in sharding.files_by_host:
            self.diagnostics.add_problem(
                f"{field}.split",
                too_few_message(sum(sharding.files_by_host), _UNIT[sharding.split_via], self.hosts),
            )
        share_ratio = max(sharding.bytes_by_host) * self.hosts / max(1, sharding.total_bytes)
        if sharding.imbalance > MAX_IMBALANCE:
            self.diagnostics.add_warning(
                f"{field}: the fullest host gets {sharding.imbalance:.2f} times the least possible."
            )
        elif share_ratio > MAX_IMBALANCE:
            self.diagnostics.add_warning(
                f"{field}: the fullest host gets {share_ratio:.2f} times an equal share, as one file alone "
                "is that large; objects are not split."
            )


def too_few_message(count: int, unit: str, host_count: int) -> str:
    """Problem text: some hosts would get nothing and still be billed. ``unit``: shard, file or object."""
    count_text = f"{count} {unit}{'' if count == 1 else 's'}"
    message = f"{count_text} cannot be split among {host_count} hosts: some would get none"
    return f"{message}; take fewer hosts, or smaller {unit}s"


def asks_for_files(script: ScriptFacts) -> bool:
    return any(name in _FILE_LIST_IMPORTS for name in script.imports | script.module_imports)


def _worst_by_count(sizes: Sequence[int], host_count: int) -> partitioning.Partition:
    """The worse of both distributions by number: the service does not document which one it uses."""
    partitions = partitioning.contiguous(sizes, host_count), partitioning.round_robin(sizes, host_count)
    return max(partitions, key=lambda one: max(one.loads))


def _whole_loads(partition: partitioning.Partition) -> tuple[int, ...]:
    return tuple(int(load) for load in partition.loads)


def apply_sharding(
    job: Job, facts: Facts, sharding_by_channel: Mapping[str, InputSharding]
) -> tuple[Job, Facts]:
    """The job and the facts as one host sees them: its input modes and its share of each channel."""
    channels, inputs = dict(job.inputs), dict(facts.inputs)
    for name, sharding in sharding_by_channel.items():
        if sharding.split_via == LISTS:
            channels[name] = channels[name].model_copy(update={"mode": "FastFile"})
        else:
            inputs[name] = replace(inputs[name], bytes=max(sharding.bytes_by_host))
    return job.model_copy(update={"inputs": channels}), replace(facts, inputs=inputs)
