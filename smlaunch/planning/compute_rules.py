"""Which machines a workload may run on: small rules, each with its name and where it comes from. Pure.

A rule looks at one candidate and says why it will not do, or nothing. They are asked in order, and the first
that objects is the candidate's verdict. docs/planner.md is their table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from smlaunch.catalog.instances import InstanceType
from smlaunch.planning.compute_task import Task
from smlaunch.planning.cost import dollars
from smlaunch.planning.estimate import MODEL_SHARE, Machines, duration, price, rate
from smlaunch.planning.io_times import Range, Share
from smlaunch.planning.prose import size
from smlaunch.planning.quotas import usage
from smlaunch.request import PROCESSING
from smlaunch.strategies.base import Setting

RETIRED = ("p2", "p3")
BURSTABLE = ("t2", "t3")


@dataclass(frozen=True)
class Option:
    """Some machines for a task, with what they are expected to take."""

    task: Task
    instance: InstanceType
    hosts: int
    ranks: int

    @property
    def machines(self) -> Machines:
        bound = self.task.processors is not None
        return Machines(self.instance, self.hosts, self.ranks, self.task.talks, bound)

    @cached_property
    def seconds(self) -> Range | None:
        if self.task.measured is None:
            return None
        parts = self.hosts if self.task.parted else 1
        share = Share(self.task.copied.bytes / parts, self.task.copied.files / parts)
        return duration(self.machines, self.task.measured, share)

    @cached_property
    def per_hour(self) -> Range | None:
        own = self.task.job.compute.price_per_hour
        if own is not None and self.task.fixed:
            return Range(own * self.hosts, own * self.hosts)
        return rate(self.instance, self.hosts)

    @cached_property
    def dollars(self) -> Range | None:
        if self.seconds is None or self.per_hour is None:
            return None
        return price(self.per_hour, self.seconds)

    @property
    def listed_per_hour(self) -> float:
        """By the catalog's own price, all hosts."""
        own = self.task.job.compute.price_per_hour if self.task.fixed else None
        price = self.instance.usd_per_hour if own is None else own
        return (price or 0.0) * self.hosts

    def describe(self) -> str:
        return f"{self.hosts} x {self.instance.name}" if self.hosts > 1 else self.instance.name


@dataclass(frozen=True)
class ComputeRule:
    """``field``: the job's, to which a refusal belongs that nothing gets past. ``source``: who says so.
    ``objection``: a sentence, or None. ``fixed_too``: it holds for a type that the job names as well."""

    name: str
    field: str
    source: str
    objection: Callable[[Option], str | None]
    fixed_too: bool = False


def _retired(option: Option) -> str | None:
    family = option.instance.name.split(".")[1]
    if family.startswith(RETIRED):
        return f"{family} is retired or vanishing from price lists"
    return None


def _burstable(option: Option) -> str | None:
    family = option.instance.name.split(".")[1]
    if family.startswith(BURSTABLE):
        return f"{family} has its processors for bursts only, by credits"
    return None


def _price(option: Option) -> str | None:
    if option.per_hour is None:
        return "nobody knows its price; name the type, with compute.price_per_hour, to take it all the same"
    return None


def _one_accelerator(option: Option) -> str | None:
    count = option.instance.accelerators
    asked = option.task.job.compute.processes_per_host
    if count < 2 or asked is not None or not (option.task.is_single or option.task.can.use == "one"):
        return None
    who = option.task.surroundings.source.entry or option.task.job.program
    return f"{who} uses one accelerator, and {count - 1} of its {count} would stand idle"


def _model(option: Option) -> str | None:
    need = option.task.model
    if need is None:
        return None
    ranks = replicas_share(option)
    memory = memory_of(option.instance)
    if need <= memory * 2**30 * MODEL_SHARE * ranks:
        return None
    told = f"{size(int(need))} do not fit in {MODEL_SHARE:.0%} of {memory:g} GiB"
    return f"{told} on each of {ranks} accelerators" if ranks > 1 else told


def memory_of(instance: InstanceType) -> float:
    """GiB of one accelerator, or of a host without."""
    return instance.accelerator_memory_gib or instance.memory_gib


def replicas_share(option: Option) -> int:
    """Accelerators, or hosts without, that one replica of the model is spread over."""
    return option.hosts * max(1, option.machines.accelerators) if option.task.can.shards else 1


def _in_memory(option: Option) -> str | None:
    need = option.task.in_memory
    if need is None:
        return None
    memory = option.instance.memory_gib * 2**30
    parts = option.hosts if option.task.parted else 1
    if need / parts <= memory:
        return None
    return f"{option.instance.memory_gib:g} GiB of memory do not hold {size(int(need / parts))}"


def _processors(option: Option) -> str | None:
    need, count = option.task.processors, option.instance.accelerators
    if need is None or not count:
        return None
    each = option.instance.vcpu / count
    if each >= need:
        return None
    return f"{each:g} vCPU for each accelerator; preprocessing keeps {need:g} busy"


def _files(option: Option) -> str | None:
    files = option.task.files
    if files is None or option.hosts <= files:
        return None
    return f"{option.hosts} hosts for {files} files: some would get none"


def _time(option: Option) -> str | None:
    wanted, seconds = option.task.wanted, option.seconds
    if wanted is None:
        return None
    if seconds is None:
        if option.task.measured is None:
            return None
        return f"how fast its {option.instance.accelerator or 'processors'} are is not known"
    # What the job fixes is only refused where even the fast end is too slow: the rest is told.
    end = seconds.low if option.task.fixed else seconds.high
    if end <= wanted:
        return None
    return f"takes {seconds}, and {option.task.job.workload.wanted_time} are wanted"


def _quota(option: Option) -> str | None:
    task = option.task
    name = usage(task.job).format(option.instance.name)
    limit = task.surroundings.quotas.get(name)
    if limit is None or limit >= option.hosts or task.strategy.operation == PROCESSING:
        return None
    return f"the account may have {limit:g} of it"


TOO_SMALL_A_QUOTA = "quota.too-small"
OVER_BUDGET = "cost.over-budget"


def at_most(option: Option) -> float | None:
    """Dollars until the time limit of a single job, where they are more than its cap; a chain ends itself
    before."""
    task = option.task
    most = option.listed_per_hour * task.limit / 3600
    if task.budget is None or task.chained or task.surroundings.target == "local":
        return None
    return most if most > task.budget else None


def _budget(option: Option) -> str | None:
    task, most = option.task, at_most(option)
    if task.budget is None or task.surroundings.target == "local":
        return None
    cap = dollars(task.budget)
    if most is not None:
        hours = f"{task.limit / 3600:g} h"
        return f"may cost {dollars(most)} until the time limit of {hours}, more than {cap}"
    if option.dollars is not None and option.dollars.high > task.budget:
        return f"may cost {dollars(option.dollars.high)}, more than {cap}"
    return None


_MACHINES = ("compute.instance_type", "compute.hosts", "compute.processes_per_host")


def _strategy(option: Option) -> str | None:
    """What the strategy itself says of such machines; of the rest of the job it says so elsewhere."""
    task = option.task
    setting = Setting(
        entry=task.surroundings.source.entry,
        hosts=option.hosts,
        per_host=option.ranks,
        imports=task.surroundings.script.imports,
        split=task.parted,
        options=task.job.options,
        algorithm=task.job.algorithm,
        instance_type=option.instance.name,
        instance=option.instance,
        image=task.job.image or "",
        framework_version=task.job.framework_version,
        channels=task.job.inputs,
        hyperparameters=task.job.hyperparameters,
        spot=task.job.compute.spot,
        target=task.surroundings.target,
    )
    return next((one.message for one in task.strategy.check(setting) if one.path in _MACHINES), None)


RULES: tuple[ComputeRule, ...] = (
    ComputeRule(
        "instance.retired",
        "workload",
        "the reference, 4.6: P2 is retired, P3 vanishing from price lists",
        _retired,
    ),
    ComputeRule(
        "instance.burstable", "workload", "EC2, burstable performance instances: CPU credits", _burstable
    ),
    ComputeRule("price.unknown", "limits.max_cost", "the reference, 5: no package has prices", _price),
    ComputeRule("strategy.machines", "strategy", "docs/strategies.md: what each strategy runs on", _strategy),
    ComputeRule(
        "capability.one-accelerator",
        "entry",
        'Alliance, tutorial: "use a single GPU unless you are certain that your program uses several"',
        _one_accelerator,
    ),
    ComputeRule(
        "memory.model-too-large",
        "workload.model_memory",
        "Adaltas, YARN and GPU distribution, 2018: a training often exceeds the GPU's memory",
        _model,
        fixed_too=True,
    ),
    ComputeRule("memory.data-too-large", "inputs", "McKinney 2017: 5 to 10 times the data", _in_memory),
    ComputeRule(
        "cpu.too-few-per-accelerator",
        "workload.preprocessing",
        "AWS, best practices: the CPU budget is high and the CPU-to-GPU ratio too low",
        _processors,
    ),
    ComputeRule(
        "data.more-hosts-than-files", "inputs", "the reference, 2.8: whole objects are dealt out", _files
    ),
    ComputeRule("time.too-slow", "workload.wanted_time", "the job", _time, fixed_too=True),
    ComputeRule(TOO_SMALL_A_QUOTA, "workload", "Service Quotas, where it could be read", _quota),
    ComputeRule(OVER_BUDGET, "limits.max_cost", "the job", _budget),
)


def verdict(option: Option) -> tuple[str, str] | None:
    """The first rule that objects, and its sentence; None where the option will do."""
    for rule in RULES:
        if option.task.fixed and not rule.fixed_too:
            continue
        said = rule.objection(option)
        if said is not None:
            return rule.name, said
    return None
