"""Plan: every decision about a run, with its reason, and the exact requests that will be sent.

A plan is data. It was made without touching anything; ``launch`` carries it out. ``str(plan)`` is the plan
for people, ``to_dict()`` the same for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from smlaunch.job import Job
from smlaunch.planning.surroundings import Surroundings
from smlaunch.planning.workflow import Workflow
from smlaunch.protocol.launch_spec import CheckpointSpec, LaunchSpec


@dataclass(frozen=True)
class Reason:
    """``rule`` is a stable dotted name (``strategy.torch-distributed``); ``because`` a sentence."""

    rule: str
    because: str


@dataclass(frozen=True)
class Upload:
    """Something to put into S3 before the requests are sent.

    ``kind``: ``runtime`` (the runtime's zip), ``launch`` (``content`` is the text of job.json), ``secret``
    (random, made when it is sent, and only if nothing is there yet), ``source``
    (the archive of directory ``path``), ``data`` (local file or directory ``path``), ``parts`` (``content``
    is a list of files, or a manifest).
    ``uri``: the object's address; for a directory of data the prefix, ending in ``/``.
    ``sha256``: of the content where the address is made from it: what is already there need not be sent.
    """

    kind: Literal["runtime", "launch", "secret", "source", "data", "parts"]
    uri: str
    path: str | None = None
    content: str | None = field(default=None, repr=False)
    sha256: str | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Task:
    """One request of a plan. ``operation`` is the API's name for it; ``name`` the job's name."""

    name: str
    segment: int
    attempt: int
    operation: str
    request: Mapping[str, Any] = field(repr=False)
    launch_spec: LaunchSpec | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Segment:
    """One of the sequential jobs of a run. Seconds: ``max_runtime`` until the service stops it,
    ``stop_after`` from its start until it ends itself (None without a planned end). ``until_step``: it ends
    after this training step at the latest."""

    index: int
    max_runtime: int
    stop_after: int | None = None
    hosts: int = 1
    instance_type: str = ""
    until_step: int | None = None


@dataclass(frozen=True)
class Schedule:
    """What a chain of segments is expected to come to. All times in seconds.

    ``total``: the time that all its jobs train together, at most. ``segment``: of a whole segment from its
    start until its planned end; ``start``: what of that goes by before it trains; ``gap``: until the next job
    runs. ``stall``: what a checkpoint costs, every ``interval``; ``restart``: from a failure until training
    goes on; ``mtbf``: mean time between failures. ``state_bytes``: one checkpoint's size, None where nobody
    knows it yet, so that the stall is assumed. ``goodput``: the share of the total that is training which
    counts; ``makespan``: from the first job's start to the last one's end.
    """

    total: int
    segment: float
    start: float
    gap: float
    stall: float
    interval: float
    restart: float
    mtbf: float
    goodput: float
    makespan: float
    state_bytes: int | None = None


@dataclass(frozen=True)
class Carried:
    """A channel that is split by bytes: how it comes to the hosts (``way``: shards, lists or jobs).

    Per host: ``by_bytes`` that it is to get, in so many ``files``; ``by_count``: the bytes it would get were
    objects dealt out by their number (the worse of in turn and in ranges, as the service does not say which).
    ``largest``: bytes of the largest file. ``lists``: names of each host's files, relative to the channel;
    empty where the service deals them out, and then by_bytes is a prediction of the sizes, not of whose.
    """

    channel: str
    way: str
    method: str
    by_bytes: tuple[int, ...]
    files: tuple[int, ...]
    by_count: tuple[int, ...]
    largest: int
    lists: tuple[tuple[str, ...], ...] = ()

    @property
    def total(self) -> int:
        return sum(self.by_bytes)

    @property
    def imbalance(self) -> float:
        """The fullest host against the least it could have; 1 cannot be better."""
        return self._against(self.by_bytes)

    @property
    def imbalance_by_count(self) -> float:
        return self._against(self.by_count)

    def _against(self, loads: tuple[int, ...]) -> float:
        least = max(self.total / len(loads), self.largest)
        return max(loads) / least if least else 1.0


@dataclass(frozen=True)
class Cost:
    """US dollars. ``per_hour``: all hosts together, of the dearest segment; ``at_most``: until the time limit
    stops the run, or its cost cap does.
    Both None when ``known`` is False; ``note`` says where the figure comes from, or why there is none."""

    known: bool
    per_hour: float | None
    at_most: float | None
    note: str


@dataclass(frozen=True)
class Candidate:
    """Machines that were thought of for the run. ``rule`` and ``because``: what speaks against them, empty
    where they would do. ``seconds``, ``dollars`` and ``per_hour`` (dollars, all hosts) from the best that is
    expected to the worst; None where nobody can say. ``chosen``: by the plan, or by the job itself."""

    strategy: str
    instance_type: str
    hosts: int
    processes_per_host: int | str
    chosen: bool = False
    rule: str = ""
    because: str = ""
    seconds: tuple[float, float] | None = None
    dollars: tuple[float, float] | None = None
    per_hour: tuple[float, float] | None = None

    @property
    def feasible(self) -> bool:
        return not self.rule


@dataclass(frozen=True)
class Plan:
    """``processes_per_host`` is ``auto`` where only the host can count its accelerators.
    ``job_hash``: what is run (job, source, local data), and nothing of where, when or by which name.
    ``tasks``: the first attempt of every planned segment; ``workflow`` is what drives them. Hosts, processes
    and instance type are those of the first segment. ``schedule``: None for a single job.
    ``checkpoints``: None where nobody keeps any. ``carried``: the channels that are split by bytes.
    ``parts``: a plan for each part where every one is a run of its own; tasks and uploads are then those of
    all. ``candidates``: machines that were compared, the chosen ones first; empty where the job says nothing
    to compare them by."""

    run: str
    job: Job
    job_hash: str
    surroundings: Surroundings
    strategy: str
    hosts: int
    processes_per_host: int | str
    instance_type: str
    image: str
    reasons: tuple[Reason, ...]
    warnings: tuple[str, ...]
    tasks: tuple[Task, ...]
    uploads: tuple[Upload, ...]
    segments: tuple[Segment, ...]
    cost: Cost
    workflow: Workflow = field(repr=False)
    checkpoints: CheckpointSpec | None = None
    schedule: Schedule | None = None
    carried: tuple[Carried, ...] = ()
    parts: tuple[Plan, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @property
    def requests(self) -> list[Mapping[str, Any]]:
        """What is sent, in order."""
        return [task.request for task in self.tasks]

    @property
    def left_out(self) -> dict[str, str]:
        """Why a file of the source or of a local input is not sent, a clause, by its name there."""
        return {name: why for of in self.left_out_by_field.values() for name, why in of.items()}

    @property
    def left_out_by_field(self) -> dict[str, Mapping[str, str]]:
        inputs = self.surroundings.inputs.items()
        return {
            **{f"inputs.{name}": facts.left_out for name, facts in inputs},
            "source": self.surroundings.source.left_out,
        }

    def to_dict(self) -> dict[str, Any]:
        """``plan --json``: plain types, by the keys of docs/planner.md. Secrets are masked; ``requests`` has
        them."""
        from smlaunch.planning.show import as_dict

        return as_dict(self)

    def _repr_html_(self) -> str:
        """For a notebook's cell."""
        from smlaunch.planning.show_html import as_html

        return as_html(self)

    def __str__(self) -> str:
        from smlaunch.planning.show import as_text

        return as_text(self)
