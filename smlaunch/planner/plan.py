"""The plan: every decision about a run, its reason, and the exact requests.

A plan is data, made without side effects; ``launch`` executes it. ``smlaunch.render`` shows it. The job's
hash identifies what is run, independent of place, time, user, name and price.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from smlaunch.chain.workflow import Workflow
from smlaunch.contract import formats
from smlaunch.contract.launch_spec import CheckpointSpec, LaunchSpec
from smlaunch.facts.discovered_facts import DiscoveredFacts, SourceFacts, StoredFile
from smlaunch.facts.team_settings import STAGING_FIELDS
from smlaunch.job.model import Entry, Job


class Reason(NamedTuple):
    """Why the plan decided something."""

    rule: str
    """Stable dotted name of the rule, such as ``strategy.torch-distributed``."""

    explanation: str
    """A sentence."""


@dataclass(frozen=True)
class Upload:
    """An object to store in S3 before the requests are sent."""

    kind: Literal["runtime", "launch", "secret", "source", "data", "shards"]
    """``runtime``: the runtime's zip. ``launch``: job.json, whose text is ``content``. ``secret``: random,
    generated on upload unless it exists. ``source``: archive of directory ``path``. ``data``: local file
    or directory ``path``. ``shards``: list of files or manifest, whose text is ``content``."""

    uri: str
    """Address of the object; for a directory of data the prefix, with a trailing slash."""

    path: str | None = None
    content: str | None = field(default=None, repr=False)
    sha256: str | None = None
    """Hash of the content if the address is derived from it: an existing object is not uploaded again."""

    bytes: int | None = None
    files: tuple[StoredFile, ...] = field(default=(), repr=False, compare=False)
    """``data`` only: the files that were hashed. No others are uploaded, and none with another content."""

    mpi: bool = False
    """``runtime`` only: the runtime starts ranks by mpirun."""


@dataclass(frozen=True)
class PlannedJob:
    """One request of a plan: the first attempt of a segment."""

    name: str
    """Name of the training or processing job."""

    segment: int
    attempt: int
    operation: str
    """The API operation, such as CreateTrainingJob."""

    request: Mapping[str, Any] = field(repr=False)
    launch_spec: LaunchSpec | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PlannedSegment:
    """One of the sequential jobs of a run."""

    index: int
    max_runtime: int
    """Seconds until the service stops the job."""

    stop_after: int | None = None
    """Seconds from the job's start to its planned end; None without one."""

    hosts: int = 1
    instance_type: str = ""
    until_step: int | None = None
    """Training step after which the segment ends at the latest."""


class Schedule(NamedTuple):
    """Expected timing of a chain of segments. All times in seconds."""

    total: int
    """Maximum training time of all jobs together."""

    segment: float
    """From a segment's start to its planned end."""

    start: float
    """From a segment's start until it trains."""

    gap: float
    """From a segment's end until the next job runs."""

    stall: float
    """Interruption of training by one checkpoint."""

    interval: float
    """Time between two checkpoints."""

    restart: float
    """From a failure until training continues."""

    mtbf: float
    """Mean time between failures."""

    goodput: float
    """Share of the total that is useful training."""

    makespan: float
    """From the first job's start to the last job's end."""

    state_bytes: int | None = None
    """Size of one checkpoint; None if unknown: the stall is then assumed."""


class InputSharding(NamedTuple):
    """How a channel with ``split: bytes`` is distributed over the hosts."""

    channel: str
    split_via: str
    """``shards``, ``lists`` or ``jobs``."""

    method: str
    """The algorithm that assigned files to hosts."""

    bytes_by_host: tuple[int, ...]
    """Bytes that each host gets; for ``shards`` a prediction of sizes in any order of hosts."""

    files_by_host: tuple[int, ...]
    """Number of files that each host gets."""

    bytes_by_count: tuple[int, ...]
    """Bytes that each host would get if objects were distributed by number: the worse of contiguous and
    round-robin, as the service does not document which it uses."""

    largest_bytes: int
    """Size of the largest file."""

    names_by_host: tuple[tuple[str, ...], ...] = ()
    """File names of each host, relative to the channel; empty if the service distributes the files."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_host)

    @property
    def imbalance(self) -> float:
        """Load of the fullest host relative to the lowest possible; 1 is optimal."""
        return self._imbalance_of(self.bytes_by_host)

    @property
    def imbalance_by_count(self) -> float:
        return self._imbalance_of(self.bytes_by_count)

    def _imbalance_of(self, loads: tuple[int, ...]) -> float:
        """Largest load relative to the lowest possible."""
        lowest_possible = max(self.total_bytes / len(loads), self.largest_bytes)
        return max(loads) / lowest_possible if lowest_possible else 1.0


class Cost(NamedTuple):
    """US dollars."""

    is_known: bool
    """Whether a price is known; otherwise both amounts are None."""

    per_hour: float | None
    """All hosts together, of the most expensive segment."""

    maximum: float | None
    """Until the time limit or the cost cap ends the run: with each job's start, transfers and stop, and
    without volumes."""

    note: str
    """Source of the price, or why there is none."""

    volume_gb: int = 0
    """Size of all hosts' volumes, which are billed besides, at a price that nobody knows here."""

    money_ends: str | None = None
    """ISO date on which the cost cap ends the run, if it starts today; None if it does not end it."""


class Candidate(NamedTuple):
    """A set of machines compared for the run. Estimates are (best, worst); None if unknown."""

    strategy: str
    instance_type: str
    hosts: int
    processes_per_host: int | str
    chosen: bool = False
    """Chosen by the plan, or by the job itself."""

    rule: str = ""
    """Name of the rule that rejected the candidate; empty if none did."""

    objection: str = ""
    """Why it was rejected; empty if it was not."""

    seconds: tuple[float, float] | None = None
    dollars: tuple[float, float] | None = None
    per_hour: tuple[float, float] | None = None
    """Dollars, all hosts."""

    @property
    def is_feasible(self) -> bool:
        return not self.rule


@dataclass(frozen=True)
class RunPlan:
    """All decisions about a run. Hosts, processes and instance type are those of the first segment."""

    run: str
    job: Job
    job_hash: str
    """Identifies what is run (job, source, local data), independent of place, time and name."""

    facts: DiscoveredFacts
    strategy: str
    hosts: int
    processes_per_host: int | str
    """A number, or ``auto`` if only the host can count its accelerators."""

    instance_type: str
    image: str
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...]
    planned_jobs: tuple[PlannedJob, ...]
    """The first attempt of every planned segment."""

    uploads: tuple[Upload, ...]
    segments: tuple[PlannedSegment, ...]
    cost: Cost
    workflow: Workflow = field(repr=False)
    """What drives the run from job to job."""

    checkpoints: CheckpointSpec | None = None
    """None if the run saves no checkpoints."""

    schedule: Schedule | None = None
    """None for a single job."""

    input_shardings: tuple[InputSharding, ...] = ()
    """The channels with ``split: bytes``."""

    shard_plans: tuple[RunPlan, ...] = ()
    """One plan per shard if each shard is a run of its own; jobs and uploads are then those of all."""

    candidates: tuple[Candidate, ...] = ()
    """Compared machines, the chosen ones first; empty if the job gives nothing to compare by."""

    @property
    def requests(self) -> list[Mapping[str, Any]]:
        """The requests of all planned jobs, in order."""
        return [planned_job.request for planned_job in self.planned_jobs]

    @property
    def excluded_by_field(self) -> dict[str, Mapping[str, str]]:
        """Reason, by field of the job and by file name, why a file of the source or of a local input is not
        uploaded although no ignore file names it."""
        input_facts_by_channel = self.facts.inputs.items()
        return {
            **{f"inputs.{name}": facts.excluded_files for name, facts in input_facts_by_channel},
            "source": self.facts.source.excluded_files,
        }


_TOP_LEVEL_FIELDS_NOT_HASHED = ("name", "role", "source", "entry", "include_secrets", "allow")
_FIELDS_NOT_HASHED_BY_SECTION = {
    "compute": ("price_per_hour", "on_demand_fallback"),
    "limits": ("max_cost", "attempts"),
}


class JobHashes(NamedTuple):
    """SHA-256 (hex) of a job, its source archive and its local inputs."""

    complete: str
    without_max_runtime: str
    """The same for jobs that differ in nothing but ``limits.max_runtime``."""


def job_hashes(job: Job, facts: DiscoveredFacts) -> JobHashes:
    """Return the hashes that identify a job.

    Local paths are replaced by the hash of their content, so that another clone of the same source on
    another machine attaches to its own run. What is hashed is part of a run's format (docs/formats.md).
    """
    job_mapping = job.to_mapping()
    # Fields that say nothing about what is computed, such as the run's name or a price.
    for field_name in _TOP_LEVEL_FIELDS_NOT_HASHED:
        job_mapping.pop(field_name, None)
    for section, fields in _FIELDS_NOT_HASHED_BY_SECTION.items():
        _remove_from_section(job_mapping, section, fields)
    for name, channel in job.inputs.items():
        input_facts = facts.inputs.get(name)
        if channel.is_local and input_facts is not None:
            job_mapping["inputs"][name]["uri"] = f"sha256:{input_facts.sha256}"
    hashed_document = {
        # A change of what is hashed gets another version, and so another hash.
        "version": formats.JOB_HASH.version,
        "job": job_mapping,
        "entry": facts.source.entry if job.entry is None else _hashed_entry(job.entry, facts.source),
        "source": facts.source.identity_sha256 or facts.source.archive_sha256,
    }
    # Values that no job states, and that a configuration file gives: without any the hash is as it was.
    if staging := _hashed_staging(job, facts):
        hashed_document["staging"] = staging
    complete = _sha256_of_document(hashed_document)
    _remove_from_section(job_mapping, "limits", ("max_runtime",))
    return JobHashes(complete, _sha256_of_document(hashed_document))


def _remove_from_section(job_mapping: dict[str, Any], section: str, fields: Iterable[str]) -> None:
    """Remove fields of a section. One in which nothing is left counts as one that the job does not state."""
    section_mapping = job_mapping.get(section, {})
    for field_name in fields:
        section_mapping.pop(field_name, None)
    if not section_mapping:
        job_mapping.pop(section, None)


def _sha256_of_document(document: Mapping[str, Any]) -> str:
    canonical_json = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical_json.encode()).hexdigest()


def _hashed_staging(job: Job, facts: DiscoveredFacts) -> dict[str, str]:
    """Return where a run's own files and AWS's images are, as far as that is not where every client of the
    account has them."""
    staging = {name: facts.team.staging_value(name) for name in STAGING_FIELDS}
    if staging["bucket"] == f"sagemaker-{facts.region}-{facts.account}":
        del staging["bucket"]
    if job.image is not None:
        del staging["image_registry"]
    return {name: value for name, value in staging.items() if value is not None}


def _hashed_entry(entry: Entry, source: SourceFacts) -> Any:
    """A script's path in the source; the mapping of a module or a command."""
    return source.entry if entry.script is not None else entry.to_mapping()
