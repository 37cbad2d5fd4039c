"""Chooses the machines for a workload: every type that might do is compared, one is taken, and why. Pure.

Only what the job leaves open is chosen; what it fixes (instance type, hosts) is kept and checked. Without a
word on the workload there is nothing to compare by, and the job stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from smlaunch.catalog import instances
from smlaunch.catalog.instances import InstanceType
from smlaunch.job import Job
from smlaunch.planning.compute_reasons import explain, tell_capacity
from smlaunch.planning.compute_rules import (
    OVER_BUDGET,
    RULES,
    TOO_SMALL_A_QUOTA,
    Option,
    at_most,
    verdict,
)
from smlaunch.planning.compute_task import Task, named_type, one_process, read_task
from smlaunch.planning.estimate import speed
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Candidate
from smlaunch.planning.surroundings import Surroundings
from smlaunch.strategies.base import Strategy

MOST_HOSTS = 64
"""Hosts up to which a plan scales out by itself; the job may state more."""

SIMILAR = 1.25
"""Within this factor of the cheapest the estimates do not tell options apart."""

TABLES_HOST = "ml.m5.4xlarge"
TABLES_PER_HOST = 1e11
"""Bytes of tables for one host of Spark: what "enters the compute node's local storage" (Alliance, Machine
Learning: about 100 GB). The type, 16 vCPU and 64 GiB, is an assumption."""

UP_BEFORE_OUT = ("scale.up-before-out", "one instance will do")
"""A rule that looks at all candidates together. AWS, best practices: scale vertically first."""

Judged = tuple[Option, tuple[str, str] | None]


def settle(
    job: Job, strategy: Strategy, surroundings: Surroundings, notes: Notes
) -> tuple[Job, tuple[Candidate, ...]]:
    """The job with its machines filled in, and what they were chosen from. Refuses what nothing will do
    for."""
    task = read_task(job, strategy, surroundings)
    if task is None:
        return job, ()
    judged = _up_before_out(task, [(option, verdict(option)) for option in _options(task)])
    fitting = [option for option, objection in judged if objection is None]
    if not fitting:
        objected = [(option, said) for option, said in judged if said is not None]
        # With the nearest of them everything else that is wrong with the job is said at once.
        return (_refused(task, objected, notes) if objected else job), ()
    chosen = choose(task, fitting)
    explain(chosen, fitting, judged, notes)
    tell_capacity(chosen, similar(fitting), notes)
    ordered = sorted(fitting, key=lambda option: (option is not chosen, _worth(option)))
    candidates = [_candidate(option, None, option is chosen) for option in ordered]
    candidates += [_candidate(option, said) for option, said in judged if said is not None]
    return _filled(job, chosen), tuple(candidates)


def _filled(job: Job, option: Option) -> Job:
    compute: dict[str, object] = {"hosts": option.hosts}
    if not job.compute.instance_preferences:
        compute["instance_type"] = option.instance.name
    return job.model_copy(update={"compute": job.compute.model_copy(update=compute)})


def _up_before_out(task: Task, judged: Sequence[Judged]) -> list[Judged]:
    """Where one instance will do, several will not, unless their ranks never talk or processors are what
    lacks."""
    alone = any(objection is None and option.hosts == 1 for option, objection in judged)
    if not (alone and task.talks and task.processors is None):
        return list(judged)
    return [
        (option, UP_BEFORE_OUT if objection is None and option.hosts > 1 else objection)
        for option, objection in judged
    ]


def choose(task: Task, fitting: Sequence[Option]) -> Option:
    """The cheapest, and among similar ones what was measured, then fewer hosts."""
    return min(similar(fitting), key=lambda option: _order(task, option))


def similar(fitting: Sequence[Option]) -> list[Option]:
    """Those that cost no more than SIMILAR times the cheapest."""
    least = min(_worth(option) for option in fitting)
    return [option for option in fitting if _worth(option) <= SIMILAR * least]


def _order(task: Task, option: Option) -> tuple[bool, int, float, str]:
    elsewhere = task.measured is not None and not task.measured.is_of(option.instance)
    return elsewhere, option.hosts, option.listed_per_hour, option.instance.name


def _worth(option: Option) -> float:
    """Dollars at the slow end where the time is known, dollars per hour otherwise."""
    if option.seconds is None:
        return option.listed_per_hour
    return option.listed_per_hour * option.seconds.high / 3600


# ---- options ---------------------------------------------------------------------------------------------


def _options(task: Task) -> Iterator[Option]:
    """Of every type one host, or as many as the job names; where that will not do, the least that will, or
    the most that were looked at."""
    for instance in _types(task):
        ranks = _ranks(task, instance)
        one, *more = _hosts(task)
        first = last = Option(task, instance, one, ranks)
        objection = verdict(first)
        least = _least_hosts(first) if objection is not None and more else 1
        for hosts in [number for number in more if number >= least] or more[-1:]:
            if objection is None or not _more_hosts_help(objection[0], task):
                break
            last = Option(task, instance, hosts, ranks)
            objection = verdict(last)
        yield first
        if last is not first:
            yield last


def _least_hosts(one: Option) -> int:
    """Fewer cannot be quick enough: several hosts are at most so many times as fast as ``one``."""
    task = one.task
    alone = None if task.measured is None else speed(one.machines, task.measured)
    if alone is None or task.measured is None or task.wanted is None:
        return 1
    return math.ceil(one.hosts * task.measured.seconds / (alone.low * task.wanted))


def _types(task: Task) -> Iterator[InstanceType]:
    named = named_type(task.job)
    if named is not None:
        known = instances.find(named)
        if known is not None:
            yield known
    elif task.strategy.for_tables:
        yield instances.known_types()[TABLES_HOST]
    else:
        for instance in instances.known_types().values():
            if instance.is_neuron != (task.strategy.trainium == "only"):
                continue
            if (instance.accelerators > 0) != task.can.accelerated:
                continue
            # Without accelerators all types do, and only some have a price: those are the ones compared.
            if instance.accelerators or instance.usd_per_hour is not None:
                yield instance


def _hosts(task: Task) -> Sequence[int]:
    compute = task.job.compute
    if "hosts" in compute.model_fields_set or task.job.algorithm is not None:
        return [compute.hosts]
    if task.strategy.for_tables:
        total = sum(facts.bytes or 0 for facts in task.surroundings.inputs.values())
        return [max(1, min(MOST_HOSTS, -(-int(total) // int(TABLES_PER_HOST))))]
    if task.can.use == "several" or (task.strategy.by_parts and task.parted):
        return range(1, MOST_HOSTS + 1)
    return [1]


def _more_hosts_help(rule: str, task: Task) -> bool:
    if rule in ("time.too-slow", "memory.model-too-large"):
        return rule != "memory.model-too-large" or task.can.shards
    return rule == "memory.data-too-large" and task.parted


def _ranks(task: Task, instance: InstanceType) -> int:
    asked = task.job.compute.processes_per_host
    if isinstance(asked, int):
        return asked
    return 1 if task.is_single else max(1, instance.accelerators)


def _candidate(option: Option, said: tuple[str, str] | None, chosen: bool = False) -> Candidate:
    rule, because = said or ("", "")
    task = option.task
    asks_for_one = task.job.compute.processes_per_host is None and one_process(task.strategy)
    spans = (option.seconds, option.dollars, option.per_hour)
    seconds, dollars, per_hour = (None if span is None else (span.low, span.high) for span in spans)
    return Candidate(
        strategy=task.strategy.name,
        instance_type=option.instance.name,
        hosts=option.hosts,
        processes_per_host=1 if asks_for_one else option.ranks,
        chosen=chosen,
        rule=rule,
        because=because,
        seconds=seconds,
        dollars=dollars,
        per_hour=per_hour,
    )


# ---- when nothing will do --------------------------------------------------------------------------------


def _refused(task: Task, judged: Sequence[tuple[Option, tuple[str, str]]], notes: Notes) -> Job:
    """Told by the option that came furthest: the one that the last of the rules objected to."""
    place = {rule.name: number for number, rule in enumerate(RULES)}

    def distance(pair: tuple[Option, tuple[str, str]]) -> tuple[int, float, float]:
        option, (rule, _) = pair
        ends = {"time.too-slow": option.seconds, OVER_BUDGET: option.dollars}
        span = ends.get(rule)
        return -place[rule], 0.0 if span is None else span.high, option.listed_per_hour

    option, (rule, because) = min(judged, key=distance)
    # Every plan is measured against its cap until the time limit, and against quotas: refused there.
    if rule != TOO_SMALL_A_QUOTA and not (rule == OVER_BUDGET and at_most(option) is not None):
        field = next(one.field for one in RULES if one.name == rule)
        compared = f", the nearest of {len(judged)} that were compared" if len(judged) > 1 else ""
        notes.refuse(field, f"{option.describe()}{compared}: {because}; {_way_out(rule, task)}")
    return _filled(task.job, option)


def _way_out(rule: str, task: Task) -> str:
    if rule == "time.too-slow":
        if task.can.use == "one" and task.can.accelerated and not task.parted:
            return "let the script use several accelerators (docs/planner.md), or allow more time"
        return "allow more time, or more hosts" if task.fixed else "allow more time"
    if rule == "memory.model-too-large":
        return "shard the model over accelerators with FSDP, DeepSpeed or SMP, or take a larger type"
    if rule == OVER_BUDGET:
        return "raise it, or shorten limits.max_runtime"
    if rule == "capability.one-accelerator":
        return "let the script use several (docs/planner.md)"
    return "name compute.instance_type to take one all the same"
