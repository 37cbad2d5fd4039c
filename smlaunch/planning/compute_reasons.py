"""Why these machines, in plain sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from smlaunch.planning.compute_rules import Option, memory_of, replicas_share
from smlaunch.planning.estimate import MODEL_SHARE, PRICE_SPREAD
from smlaunch.planning.notes import Notes
from smlaunch.planning.prose import size
from smlaunch.planning.show_candidates import between
from smlaunch.request import TRAINING

Judged = Sequence[tuple[Option, tuple[str, str] | None]]


def explain(chosen: Option, fitting: Sequence[Option], judged: Judged, notes: Notes) -> None:
    task = chosen.task
    rule, sentence = _main(chosen, fitting, judged)
    notes.because(rule, sentence)
    if task.model is not None:
        notes.because("compute.model-memory", _model(chosen, task.model))
    if chosen.seconds is not None:
        notes.because("estimate.assumed", _assumed(chosen))
    wanted = task.wanted
    if wanted is not None and chosen.seconds is not None and chosen.seconds.high > wanted:
        notes.warn(
            f"{chosen.describe()} takes {chosen.seconds}: it may be more than the "
            f"{task.job.workload.wanted_time} that are wanted."
        )
    if chosen.seconds is not None and chosen.seconds.high > task.limit:
        notes.warn(
            f"It may take {chosen.seconds}, and limits.max_runtime ends it after {task.limit / 3600:g} h: "
            "state a longer one."
        )


MOST_PREFERENCES = 5
"""Of a request (its API's model)."""


def tell_capacity(chosen: Option, similar: Sequence[Option], notes: Notes) -> None:
    """Types that would do as well, host for host: the service may take the first that it has capacity for."""
    task = chosen.task
    shape = (chosen.hosts, chosen.ranks)
    others = [one for one in similar if one is not chosen and (one.hosts, one.ranks) == shape]
    on_demand = task.surroundings.target == "aws" and not task.job.compute.spot
    if not others or task.fixed or not on_demand or task.strategy.operation != TRAINING:
        return
    names = [one.instance.name for one in (chosen, *others)][:MOST_PREFERENCES]
    notes.because(
        "capacity.preferences",
        f"Should capacity lack, compute.instance_preferences: [{', '.join(names)}] takes the first of these "
        "that there is; they cost about the same here.",
    )


def _main(chosen: Option, fitting: Sequence[Option], judged: Judged) -> tuple[str, str]:
    task, what = chosen.task, chosen.describe()
    accelerators = chosen.machines.accelerators * chosen.hosts
    if task.fixed and "hosts" in task.job.compute.model_fields_set:
        return "compute.given", f"The job names {what}{_takes(chosen)}."
    if task.strategy.for_tables:
        return "compute.tables", _tables(chosen)
    if not task.talks and chosen.hosts > 1:
        return (
            "compute.share-nothing",
            f"Hosts do not talk, so that {chosen.hosts} of them are {chosen.hosts} times as fast: "
            f"{what}{_takes(chosen)}{_why_cheapest(chosen, fitting)}.",
        )
    if not chosen.instance.accelerators:
        if task.in_memory is not None and not task.fixed:
            return "instance-type.in-memory", _in_memory(chosen, task.in_memory)
        return "compute.processors", f"{what}{_takes(chosen)}{_why_cheapest(chosen, fitting)}."
    if task.processors is not None:
        return "compute.cpu-budget", _budget(chosen, task.processors, judged)
    if chosen.hosts > 1:
        return "compute.scale-out", _scale_out(chosen, fitting, judged)
    if accelerators > 1:
        return (
            "compute.scale-up",
            f"{accelerators} accelerators of one {chosen.instance.name} will do{_takes(chosen)}: one "
            "instance is easier to debug than several, and its accelerators talk faster than hosts "
            f"do{_why_cheapest(chosen, fitting)}.",
        )
    return "compute.one-accelerator", _one(chosen, fitting)


def _tables(chosen: Option) -> str:
    told = f"{chosen.describe()}: a host for every 100 GB of tables"
    if "hosts" in chosen.task.job.compute.model_fields_set:
        told = f"The job names {chosen.hosts} hosts; for tables they are {chosen.instance.name}"
    return f"{told}, a rough assumption; {chosen.task.strategy.name.capitalize()} deals out the work."


def _one(chosen: Option, fitting: Sequence[Option]) -> str:
    task = chosen.task
    told = f"One accelerator, of {chosen.instance.name}{_takes(chosen)}{_why_cheapest(chosen, fitting)}"
    if task.can.use != "one":
        return f"{told}."
    who = task.surroundings.source.entry or task.job.program
    lacks = "; ".join(task.can.missing)
    more = f" For several it lacks, as far as it shows: {lacks}." if lacks else ""
    return f"{told}: {who} uses one, as most programs do.{more}"


def _budget(chosen: Option, need: float, judged: Judged) -> str:
    larger = [
        option.instance.name
        for option, said in judged
        if said is not None
        and said[0] == "cpu.too-few-per-accelerator"
        and option.instance.accelerators > 1
        and option.instance.accelerator == chosen.instance.accelerator
    ]
    instead = f", where {larger[-1]} has too few for its accelerators" if larger else ""
    each = chosen.instance.vcpu / chosen.instance.accelerators
    return (
        f"Preprocessing keeps {need:g} vCPU busy for each accelerator, and {chosen.instance.name} has "
        f"{each:g}{instead}: {chosen.describe()}{_takes(chosen)}."
    )


def _scale_out(chosen: Option, fitting: Sequence[Option], judged: Judged) -> str:
    fixed_hosts = "hosts" in chosen.task.job.compute.model_fields_set
    if fixed_hosts:
        return f"The job names {chosen.hosts} hosts; {chosen.describe()}{_takes(chosen)}."
    return (
        f"No single instance will do, so there are several: {chosen.describe()}{_takes(chosen)}"
        f"{_why_cheapest(chosen, fitting)}."
    )


def _in_memory(chosen: Option, need: float) -> str:
    return (
        f"The program reads all of its data into memory, which takes some five times their size, "
        f"{size(int(need))}: {chosen.instance.name} ({chosen.instance.describe()}) holds that for the "
        "least per hour."
    )


def _model(chosen: Option, need: float) -> str:
    instance, ranks = chosen.instance, replicas_share(chosen)
    of = instance.accelerator or instance.name
    room = f"{MODEL_SHARE:.0%} of the {memory_of(instance):g} GiB of {of}"
    if ranks > 1:
        each = size(int(need / ranks))
        return f"{size(int(need))} of model are sharded: {each} on each of {ranks}, within {room}."
    return f"{size(int(need))} of model fit within {room}."


def _takes(chosen: Option) -> str:
    if chosen.seconds is None:
        return ""
    cost = "" if chosen.dollars is None else f" for {between((chosen.dollars.low, chosen.dollars.high))}"
    return f" ({chosen.seconds}{cost}, estimated)"


def _why_cheapest(chosen: Option, fitting: Sequence[Option]) -> str:
    others = len(fitting) - 1
    if not others or chosen.task.fixed:
        return ""
    measured = chosen.task.measured
    if measured is not None and measured.is_of(chosen.instance):
        return f"; of {others + 1} that would do, it is among the cheapest and of the kind that was measured"
    return f"; of {others + 1} that would do, it is among the cheapest"


def _assumed(chosen: Option) -> str:
    task = chosen.task
    if task.measured is None:
        return ""
    on, job = task.measured.reference, task.job
    if task.measured.stated:
        where = on.name
    elif task.measured.accelerated:
        where = f"{on.name}, which is assumed (workload.measured_on says it)"
    else:
        where = f"a host of {on.name}, which is assumed (workload.measured_on says it)"
    spread = PRICE_SPREAD.get(chosen.instance.price_confidence, PRICE_SPREAD["low"])
    here = task.surroundings.target == "local"
    region = " They are of a region's machines, and not of this one." if here else ""
    return (
        f"Estimates start from {job.workload.time_on_one} on {where}; how accelerators compare, what several "
        f"lose, 1 to 10 minutes until training begins and a price within {spread:.0%} are rough assumptions "
        f"(docs/planner.md).{region}"
    )
