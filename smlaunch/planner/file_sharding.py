"""Distributes the files of channels with ``split: bytes`` over the hosts, and explains the choice. Pure.

There are three methods. None relies on which host gets which key, or on that staying so, since SageMaker does
not document either:

``shards``  the data is packed into shards of similar size, which the service distributes by number
``lists``   every host can read all data (FastFile) and reads the files of its own list, found by its position
``jobs``    one single-host job per shard, with a manifest; each is retried on its own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from smlaunch.contract.shard_lists import find_file_name_problem
from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts, ScriptFacts, StoredFile
from smlaunch.facts.shard_index import SHARD_INDEX_NAME
from smlaunch.job.model import Channel, Job
from smlaunch.planner.plan import InputSharding
from smlaunch.planner.plan_context import Diagnostics, detect_strategy_of_script, stated_job_kind
from smlaunch.planner.script_advice import FILE_LIST_IMPORTS
from smlaunch.storage import multiway_partitioning
from smlaunch.strategies import load_strategy
from smlaunch.strategies.share_nothing import FAIL_WHOLE_JOB, FINISH_OTHER_SHARDS, ON_HOST_FAILURE

VIA_SHARDS, VIA_LISTS, VIA_JOBS = "shards", "lists", "jobs"
"""Values of an input's ``split_via``."""

_UNIT_BY_SPLIT_VIA = {VIA_SHARDS: "shard", VIA_LISTS: "file"}

MAX_IMBALANCE = 1.05
"""Shards are distributed by number if the fullest host gets at most this factor of the lowest possible
load."""


def plan_sharding(job: Job, facts: DiscoveredFacts, diagnostics: Diagnostics) -> dict[str, InputSharding]:
    """Return, by channel name, how the files of each input with ``split: bytes`` are distributed over the
    hosts; empty for a single host. Adds a problem for each input that cannot be distributed."""
    split_channels = {
        name: channel
        for name, channel in job.inputs.items()
        # Only a folder's files are distributed; rules reject the split of other data.
        if channel.split == "bytes" and not channel.is_listed and channel.file_system is None
    }
    for name, channel in job.inputs.items():
        if channel.split_via is not None and channel.split != "bytes":
            diagnostics.add_problem(
                f"inputs.{name}.split_via", "it applies to split: bytes; add that, or leave it out"
            )
    if job.compute.hosts == 1:
        for name in split_channels:
            diagnostics.add_reason(f"inputs.{name}.split", "One host gets every object, split or not.")
        return {}
    sharding_by_channel: dict[str, InputSharding] = {}
    for name, channel in split_channels.items():
        input_facts = facts.inputs.get(name)
        if input_facts is None or input_facts.problem is not None or not input_facts.exists:
            continue  # plan_inputs, which checks all inputs, reports that
        if facts.account_problem is not None and channel.is_in_s3:
            continue  # no objects were listed: who planned says that this needs an account
        files = _files_to_distribute(f"inputs.{name}", channel, input_facts, diagnostics)
        if files is not None:
            channel_planner = _ShardingPlanner(
                name=name,
                channel=channel,
                input_facts=input_facts,
                files=files,
                job=job,
                facts=facts,
                diagnostics=diagnostics,
            )
            sharding_by_channel[name] = channel_planner.plan_sharding_of_channel()
    # If one input makes a single-host job for each shard (jobs), all others must do so too.
    _reject_other_methods_beside_jobs(sharding_by_channel, diagnostics)
    return sharding_by_channel


def _reject_other_methods_beside_jobs(
    sharding_by_channel: Mapping[str, InputSharding], diagnostics: Diagnostics
) -> None:
    """Add a problem if one input is distributed by single-host jobs (VIA_JOBS), and another within a job of
    several hosts."""
    other_channels = [
        name for name, sharding in sharding_by_channel.items() if sharding.split_via != VIA_JOBS
    ]
    if other_channels and len(other_channels) < len(sharding_by_channel):
        diagnostics.add_problem(
            "inputs",
            f"single-host jobs for one channel leave nothing to split for {', '.join(other_channels)}: use "
            "split_via: jobs for all of them, or none",
        )


def _files_to_distribute(
    field: str, channel: Channel, input_facts: InputFacts, diagnostics: Diagnostics
) -> list[StoredFile] | None:
    """Return the files of an input to distribute over the hosts, sorted by name; None after adding a problem.
    ``field``: the job's field, such as ``inputs.train``."""
    if channel.is_local and not input_facts.is_directory:
        diagnostics.add_problem(
            f"{field}.split", f"{channel.uri} is one file, which cannot be split; name a folder"
        )
        return None
    if not channel.is_local and not channel.uri.endswith("/"):
        diagnostics.add_problem(
            f"{field}.uri", f"files are listed below a folder; end {channel.uri} with a slash"
        )
        return None
    # None: discovery stopped listing after a certain number.
    if input_facts.files is None:
        count_text = f"more than {input_facts.objects:,}" if input_facts.objects else "too many"
        diagnostics.add_problem(
            f"{field}.split",
            f"{channel.uri} has {count_text} objects, too many to be split in a plan; pack them first "
            "(smlaunch data pack)",
        )
        return None
    # Empty objects whose names end with a slash only stand for folders.
    files = [file for file in input_facts.files if not file.name.endswith("/")]
    if not files:
        diagnostics.add_problem(field, f"{channel.uri} contains only folders; there is nothing to split")
        return None
    problems_of_names = [find_file_name_problem(file.name) for file in files]
    name_problems = [problem for problem in problems_of_names if problem is not None]
    if name_problems:
        more_text = f" (and {len(name_problems) - 1} more)" if len(name_problems) > 1 else ""
        diagnostics.add_problem(field, f"{name_problems[0]}{more_text}; a host could not find it: rename it")
        return None
    return files


class _ShardingPlanner(NamedTuple):
    """Plans the sharding of one channel."""

    name: str
    channel: Channel
    input_facts: InputFacts
    files: Sequence[StoredFile]
    job: Job
    facts: DiscoveredFacts
    diagnostics: Diagnostics

    def plan_sharding_of_channel(self) -> InputSharding:
        """Choose how the channel's files are distributed, assign them to hosts and report how well their
        bytes are balanced. A partition assigns each file to a host; its ``counts`` are files by host.
        """
        # "shards": packed shards, distributed by the service. "lists", "jobs": files, assigned by the plan.
        split_via = self._choose_split_via()
        # Shards that `smlaunch data pack` has written, if all that its index names are there.
        shard_files = self._packed_shard_files()
        if shard_files:
            self._reject_unindexed_files(shard_files)
        # Without them, all files of the channel.
        files = shard_files or self.files
        sizes = [file.bytes for file in files]
        # The service gives each host the same number of objects, in one of two ways: the less balanced
        # counts.
        worst_partition_by_number = _worst_partition_by_number(sizes, self.hosts)
        service_assigns_files = split_via == VIA_SHARDS and bool(shard_files)
        if service_assigns_files:
            partition = worst_partition_by_number
        else:
            # The plan balances the bytes of the hosts instead.
            partition = multiway_partitioning.best_partition(sizes, self.hosts)
        sharding = InputSharding(
            channel=self.name,
            split_via=split_via,
            method=partition.method,  # name of the partitioning algorithm
            bytes_by_host=_bytes_of_hosts(partition),
            files_by_host=partition.counts,
            # What a distribution by number would give, for comparison.
            bytes_by_count=_bytes_of_hosts(worst_partition_by_number),
            largest_bytes=max(sizes, default=0),
            names_by_host=() if service_assigns_files else _file_names_by_host(files, partition),
        )
        self._report_balance(sharding)
        return sharding

    @property
    def hosts(self) -> int:
        return self.job.compute.hosts

    def _choose_split_via(self) -> str:
        """Return how the input's files are distributed: ``shards`` (the service distributes packed shards by
        number), ``lists`` (each host reads the files of its list) or ``jobs`` (one single-host job for each
        shard). Adds problems and warnings about what does not work that way."""
        is_stated = self.channel.split_via is not None
        split_via = self.channel.split_via or self._default_split_via()
        self._check_input_mode(split_via)
        field = f"inputs.{self.name}.split_via"
        if split_via == VIA_SHARDS and not self._packed_shard_files():
            self.diagnostics.add_problem(
                field,
                f"{self.channel.uri} has no {SHARD_INDEX_NAME} of `smlaunch data pack`; pack it, or use "
                "split_via: lists",
            )
        if split_via == VIA_LISTS and is_stated and not script_reads_file_lists(self.facts.script):
            self.diagnostics.add_warning(
                f"inputs.{self.name}: file lists need a script that reads them, and "
                f"{self.facts.source.entry} does not import smlaunch.train.shard_files."
            )
        if split_via == VIA_JOBS:
            self._check_single_host_jobs()
        elif is_stated and self.job.options.get(ON_HOST_FAILURE) == FINISH_OTHER_SHARDS:
            # The job's option for a failed host contradicts its split_via.
            self.diagnostics.add_problem(
                field,
                f"{ON_HOST_FAILURE}: {FINISH_OTHER_SHARDS} makes a job for every shard; use jobs, or "
                "leave it out",
            )
        return split_via

    def _check_input_mode(self, split_via: str) -> None:
        """Add a problem if the channel's input mode does not work with this way to distribute its files."""
        field, input_mode = f"inputs.{self.name}", self.channel.mode
        kind = stated_job_kind(self.job.strategy)
        if kind.copies_all_inputs and split_via == VIA_LISTS:
            self.diagnostics.add_problem(
                f"{field}.split_via",
                f"a {kind.noun} copies all of its inputs to every host, so that lists save nothing; use "
                "shards or jobs",
            )
        elif input_mode == "Pipe" and split_via == VIA_LISTS:
            self.diagnostics.add_problem(
                f"{field}.mode", "a pipe cannot be read by a list; leave the mode out"
            )
        elif input_mode == "FastFile" and split_via == VIA_SHARDS:
            message = "SageMaker does not document that FastFile is limited to a host's share"
            self.diagnostics.add_problem(f"{field}.mode", f"{message}; use File, or split_via: lists")
        elif input_mode == "FastFile" and split_via == VIA_JOBS:
            message = "each shard's job gets a manifest, which FastFile does not support"
            self.diagnostics.add_problem(f"{field}.mode", f"{message}; use File, or split_via: lists")

    def _default_split_via(self) -> str:
        """Return ``shards``, ``lists`` or ``jobs`` for an input that states no ``split_via``, and add the
        reason, or a problem if the program cannot work with any of them: then ``lists``, with which planning
        continues."""
        field, entry = f"inputs.{self.name}", self.facts.source.entry
        # A sentence, if packed shards are so similar in size that the service can distribute them.
        balance_text = self._balance_of_similar_shards()
        if balance_text is not None:
            self.diagnostics.add_reason(f"{field}.split_via", balance_text)
            return VIA_SHARDS
        # The job's option for a failed host: finish the other shards, or fail the whole job.
        failure_policy = self.job.options.get(ON_HOST_FAILURE)
        if failure_policy == FINISH_OTHER_SHARDS:
            self.diagnostics.add_reason(
                f"{field}.split_via",
                f"{ON_HOST_FAILURE}: {FINISH_OTHER_SHARDS}: a separate job for each shard, so that a failure "
                "affects no other shard.",
            )
            return VIA_JOBS
        kind = stated_job_kind(self.job.strategy)
        if script_reads_file_lists(self.facts.script) and not kind.copies_all_inputs:
            self.diagnostics.add_reason(
                f"{field}.split_via",
                f"{entry} reads its file list (smlaunch.train.shard_files): each host gets a list.",
            )
            return VIA_LISTS
        # Ranks that communicate must be one job, and the program cannot read the lists of one job.
        communication_evidence = self._rank_communication_evidence()
        if communication_evidence is not None:
            self.diagnostics.add_problem(
                f"{field}.split",
                f"{entry} joins ranks ({communication_evidence}), so that they must be one job, and does not "
                "read its file list: call smlaunch.train.shard_files(), or pack the data (smlaunch data "
                "pack)",
            )
            return VIA_LISTS
        if failure_policy == FAIL_WHOLE_JOB:
            self.diagnostics.add_problem(
                f"options.{ON_HOST_FAILURE}",
                f"{FAIL_WHOLE_JOB} applies to one job for all shards, in which {entry} must read its file "
                "list: call smlaunch.train.shard_files(), or pack the data (smlaunch data pack), or "
                "leave it out",
            )
            return VIA_LISTS
        cause = f"{entry} neither joins ranks nor reads its file list"
        if kind.copies_all_inputs:
            cause = f"{kind.noun.capitalize()}s copy all of their inputs"
        self.diagnostics.add_reason(
            f"{field}.split_via", f"{cause}: a separate job for each shard, which is retried separately."
        )
        return VIA_JOBS

    def _balance_of_similar_shards(self) -> str | None:
        """Return a sentence about the sizes of the packed shards, if they are similar enough to be
        distributed by number; None if they are not, or if there are none that the service could
        distribute."""
        shard_files = self._packed_shard_files()
        # It is not documented that a FastFile channel shows a host only its share.
        if not shard_files or self.channel.mode == "FastFile":
            return None
        sizes = [file.bytes for file in shard_files]
        worst_partition = _worst_partition_by_number(sizes, self.hosts)
        # Load of the fullest host relative to the lowest possible.
        imbalance = multiway_partitioning.imbalance(worst_partition.loads, max(sizes))
        if imbalance > MAX_IMBALANCE:
            return None
        return (
            f"The {len(shard_files)} shards are similar enough to split by number, whichever host "
            f"gets which (at worst {imbalance:.3f} times the least possible)."
        )

    def _rank_communication_evidence(self) -> str | None:
        """Return what shows that the ranks of all hosts communicate, so that they must be one job; None if
        nothing does. A strategy is how the program is started, such as ``ddp``: it joins hosts if the ranks
        of all of them form one group."""
        if self.job.strategy is not None:
            return f"strategy: {self.job.strategy}" if load_strategy(self.job.strategy).joins_hosts else None
        # resourceconfig.json names the other hosts: a script that reads it connects to them.
        if self.facts.script.reads_resource_config:
            return "it reads resourceconfig.json"
        detected = detect_strategy_of_script(self.facts.script)
        return detected.library if detected is not None and detected.joins_hosts else None

    def _check_single_host_jobs(self) -> None:
        """Add a problem or warning for what does not work if each shard of the data is a single-host job."""
        communication_evidence = self._rank_communication_evidence()
        if communication_evidence is not None and self.job.strategy is not None:
            self.diagnostics.add_problem(
                "strategy",
                f"{self.job.strategy} joins the ranks of all hosts, which single-host jobs do not allow; "
                "use split_via: lists",
            )
        elif communication_evidence is not None:
            # Found in the script, and not stated by the job: it may be wrong.
            self.diagnostics.add_warning(
                f"Single-host jobs cannot communicate, but the script may need to: {communication_evidence}."
            )
        if any(segment_change.compute.hosts is not None for segment_change in self.job.segments):
            self.diagnostics.add_problem(
                "segments", "with split_via: jobs every job has one host; leave compute.hosts out"
            )
        for name, channel in self.job.inputs.items():
            if channel.split == "key":
                self.diagnostics.add_problem(
                    f"inputs.{name}.split",
                    "each job has one host, which gets every object; use split: bytes, or leave it out",
                )

    def _packed_shard_files(self) -> list[StoredFile]:
        """Files of the shards; empty without a complete set. Packed: written by ``smlaunch data pack``, whose
        index names them."""
        indexed_names = set(self.input_facts.shard_names or ())
        shards = [file for file in self.files if file.name in indexed_names]
        return shards if len(shards) == len(indexed_names) else []

    def _reject_unindexed_files(self, shards: Sequence[StoredFile]) -> None:
        """Report files next to the shards that the index does not name: one method would skip them,
        another distribute them."""
        indexed_names = {SHARD_INDEX_NAME, *(file.name for file in shards)}
        unindexed_names = [file.name for file in self.files if file.name not in indexed_names]
        if unindexed_names:
            more_text = f" and {len(unindexed_names) - 1} more" if len(unindexed_names) > 1 else ""
            self.diagnostics.add_problem(
                f"inputs.{self.name}.uri",
                f"besides its shards {self.channel.uri} contains {unindexed_names[0]!r}{more_text}, which "
                "is in no index; move it elsewhere, or pack it too",
            )

    def _report_balance(self, sharding: InputSharding) -> None:
        """Add a problem for hosts without files, or a warning if each shard is a job, as no job is made for
        an empty shard; and a warning for unequal shares."""
        field = f"inputs.{self.name}"
        empty_hosts = sharding.files_by_host.count(0)
        if empty_hosts and sharding.split_via == VIA_JOBS:
            self.diagnostics.add_warning(
                f"{field}: {empty_hosts} of {self.hosts} hosts get no file: there are fewer files than hosts."
            )
        elif empty_hosts:
            # "shard" or "file".
            unit = _UNIT_BY_SPLIT_VIA[sharding.split_via]
            message = too_few_files_message(sum(sharding.files_by_host), unit, self.hosts)
            self.diagnostics.add_problem(f"{field}.split", message)
        # Two measures: the lowest possible load of the fullest host is that of the largest file, if this is
        # more than an equal share. Up to 1.05 times is equal enough (MAX_IMBALANCE).
        ratio_to_lowest_possible = sharding.imbalance
        ratio_to_equal_share = max(sharding.bytes_by_host) * self.hosts / max(1, sharding.total_bytes)
        if ratio_to_lowest_possible > MAX_IMBALANCE:
            self.diagnostics.add_warning(
                f"{field}: the fullest host gets {ratio_to_lowest_possible:.2f} times the least possible."
            )
        elif ratio_to_equal_share > MAX_IMBALANCE:
            self.diagnostics.add_warning(
                f"{field}: the fullest host gets {ratio_to_equal_share:.2f} times an equal share, as one "
                "file alone is that large; objects are not split."
            )


def too_few_files_message(count: int, unit: str, host_count: int) -> str:
    """Problem text: some hosts would get nothing and still be billed. ``unit``: shard, file or object."""
    count_text = f"{count} {unit}{'' if count == 1 else 's'}"
    message = f"{count_text} cannot be split among {host_count} hosts: some would get none"
    return f"{message}; take fewer hosts, or smaller {unit}s"


def script_reads_file_lists(script: ScriptFacts) -> bool:
    return not FILE_LIST_IMPORTS.isdisjoint(script.imports | script.module_imports)


def _worst_partition_by_number(sizes: Sequence[int], host_count: int) -> multiway_partitioning.Partition:
    """The worse of both distributions by number: the service does not document which one it uses."""
    partitions = (
        multiway_partitioning.contiguous(sizes, host_count),
        multiway_partitioning.round_robin(sizes, host_count),
    )
    return max(partitions, key=lambda partition: max(partition.loads))


def _bytes_of_hosts(partition: multiway_partitioning.Partition) -> tuple[int, ...]:
    return tuple(int(load) for load in partition.loads)


def _file_names_by_host(
    files: Sequence[StoredFile], partition: multiway_partitioning.Partition
) -> tuple[tuple[str, ...], ...]:
    """Return the names of each host's files, in the order of ``files``, which the partition assigns."""
    names_by_host: list[list[str]] = [[] for _ in partition.loads]
    for file, host in zip(files, partition.host_by_item, strict=True):
        names_by_host[host].append(file.name)
    return tuple(map(tuple, names_by_host))


def apply_sharding(
    job: Job, facts: DiscoveredFacts, sharding_by_channel: Mapping[str, InputSharding]
) -> tuple[Job, DiscoveredFacts]:
    """The job and the facts as one host sees them: its input modes and its share of each channel."""
    if not sharding_by_channel:
        return job, facts
    channels, inputs = dict(job.inputs), dict(facts.inputs)
    for name, sharding in sharding_by_channel.items():
        if sharding.split_via == VIA_LISTS:
            channels[name] = channels[name].with_changes(mode="FastFile")
        else:
            inputs[name] = replace(inputs[name], bytes=max(sharding.bytes_by_host))
    return job.with_changes(inputs=channels), replace(facts, inputs=inputs)
