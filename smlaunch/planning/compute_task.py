"""What is to be done, as far as machines are chosen by it: read from job and surroundings once. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from smlaunch.catalog import algorithms, instances
from smlaunch.job import Job, parse_duration
from smlaunch.job_fields import parse_size
from smlaunch.planning import segments
from smlaunch.planning.capabilities import Capability, capability
from smlaunch.planning.estimate import Measured
from smlaunch.planning.io_times import Share
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import Surroundings
from smlaunch.strategies.base import Strategy, imported

ASSUMED_ACCELERATOR = "ml.g5.xlarge"
ASSUMED_HOST = "ml.m5.xlarge"
"""Where time_on_one is not said to be measured anywhere."""

PROCESSORS = 16
"""vCPU for each accelerator that heavy preprocessing keeps busy where nobody measured: an assumption. Six are
what the Alliance suggests for ordinary work."""

IN_MEMORY = 5
"""Times the size of a table in files that a program needs which reads all of it into memory. McKinney,
"Apache Arrow and the 10 things I hate about pandas", 2017: "5 to 10 times as much RAM as the size of your
dataset"."""

HOLDS_ALL = ("pandas", "sklearn", "xgboost", "lightgbm", "catboost")
"""Libraries whose usual programs read all of their data into memory."""


@dataclass(frozen=True)
class Task:
    """What is to be done: read from the job and its surroundings once. ``measured``: None where the job says
    no time. ``model`` and ``in_memory`` in bytes, of one replica and of one host. ``wanted``, ``limit``:
    seconds that it may take, and that the job may run at most. ``budget``: dollars. ``copied``: bytes that
    File channels bring, all in all, and in how many files; ``parted``: every host gets a part. ``files``: the
    least number of objects of a channel that is split, None without one. ``fixed``: the job names the type.
    ``can``: what the script can use; ``talks``: its ranks exchange something while they work. ``chained``: it
    may take several jobs, which end themselves before their cap. ``processors``: vCPU that each accelerator
    keeps busy, None where they are no bottleneck.
    """

    job: Job
    surroundings: Surroundings
    strategy: Strategy
    can: Capability
    measured: Measured | None
    wanted: float | None
    limit: float
    budget: float | None
    chained: bool
    model: float | None
    in_memory: float | None
    copied: Share
    parted: bool
    files: int | None
    fixed: bool
    talks: bool
    processors: float | None

    @property
    def is_single(self) -> bool:
        """One process on each host, which uses one accelerator."""
        return one_process(self.strategy) and self.can.use != "instance"


def one_process(strategy: Strategy) -> bool:
    """On each host, where the job does not ask for more."""
    return strategy.one_per_host or strategy.one_unless_asked


def named_type(job: Job) -> str | None:
    """The type that the job names; of several preferences the first."""
    preferences = job.compute.instance_preferences
    return preferences[0] if preferences else job.compute.instance_type


def read_task(job: Job, strategy: Strategy, surroundings: Surroundings) -> Task | None:
    """None where the job says nothing to choose machines by, or names a type that nobody knows."""
    named = named_type(job)
    if not _says_enough(job, strategy) or (named is not None and instances.find(named) is None):
        return None
    work, script = job.workload, surroundings.script
    can = capability(script, surroundings.source.entry)
    accelerated = _is_accelerated(job, strategy, can)
    measured = _measured(job, named, accelerated)
    if measured is not None:
        accelerated = measured.accelerated
    use = "several" if strategy.for_several_hosts else can.use
    limit = segments.total_seconds(job, Notes())
    split = any(channel.split is not None for channel in job.inputs.values())
    return Task(
        job=job,
        surroundings=surroundings,
        strategy=strategy,
        can=dataclasses.replace(can, accelerated=accelerated, use=use),
        measured=measured,
        wanted=None if work.wanted_time is None else parse_duration(work.wanted_time),
        limit=limit,
        budget=job.limits.max_cost,
        chained=job.limits.segment is not None or bool(job.segments) or limit > segments.LONGEST_RUNTIME,
        model=None if work.model_memory is None else parse_size(work.model_memory),
        in_memory=None if accelerated else _in_memory(strategy, surroundings),
        copied=_copied(job, surroundings),
        parted=split,
        files=_fewest_files(job, surroundings),
        fixed=named is not None,
        talks=strategy.joins_hosts and not strategy.for_tables,
        processors=_processors(job, measured),
    )


def _says_enough(job: Job, strategy: Strategy) -> bool:
    work = job.workload
    if work.time_on_one or work.model_memory or work.wanted_time or work.preprocessing:
        return True
    by_data = strategy.sized_by_data or work.kind == "preparation"
    return by_data and named_type(job) is None


def _is_accelerated(job: Job, strategy: Strategy, can: Capability) -> bool:
    """Whether types with accelerators are compared, or those without."""
    if job.algorithm is not None:
        algorithm = algorithms.find(job.algorithm)
        return algorithm is not None and "cpu" not in algorithm.processors
    return can.accelerated and job.workload.kind != "preparation" and not strategy.for_tables


def _measured(job: Job, named: str | None, accelerated: bool) -> Measured | None:
    if job.workload.time_on_one is None:
        return None
    on = job.workload.measured_on or named
    reference = instances.find(on or (ASSUMED_ACCELERATOR if accelerated else ASSUMED_HOST))
    if reference is None:
        return None
    seconds = parse_duration(job.workload.time_on_one)
    return Measured(float(seconds), reference, reference.accelerators > 0, on is not None)


def _processors(job: Job, measured: Measured | None) -> float | None:
    if job.workload.preprocessing != "heavy":
        return None
    on = measured.reference if measured is not None and measured.stated else None
    return on.vcpu / max(1, on.accelerators) if on is not None else PROCESSORS


def _in_memory(strategy: Strategy, surroundings: Surroundings) -> float | None:
    holds = strategy.holds_data or imported(surroundings.script.imports, HOLDS_ALL) is not None
    total = sum(facts.bytes or 0 for facts in surroundings.inputs.values())
    return total * IN_MEMORY if holds and total else None


def _copied(job: Job, surroundings: Surroundings) -> Share:
    """By File channels, all of them together; hosts on this machine have no network to wait for."""
    if surroundings.target == "local":
        return Share(0, 0)
    names = [name for name, channel in job.inputs.items() if channel.mode == "File"]
    seen = [surroundings.inputs[name] for name in names if name in surroundings.inputs]
    return Share(sum(facts.bytes or 0 for facts in seen), sum(facts.objects or 0 for facts in seen))


def _fewest_files(job: Job, surroundings: Surroundings) -> int | None:
    names = [name for name, channel in job.inputs.items() if channel.split is not None]
    seen = [surroundings.inputs[name] for name in names if name in surroundings.inputs]
    return min((facts.objects for facts in seen if facts.objects and not facts.capped), default=None)
