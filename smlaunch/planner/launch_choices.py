"""Choose what the job leaves open: strategy, instance type, ranks per host; advise on what several ranks do
to batch size and learning rate.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from smlaunch.catalog import instances
from smlaunch.catalog.instances import DEFAULT_INSTANCE_TYPE, InstanceChoice, InstanceType
from smlaunch.contract.launch_spec import AUTO
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import Diagnostics, JobContext, is_accelerated
from smlaunch.planner.rules import rules_of
from smlaunch.planner.script_launch import needed_processes
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import Strategy
from smlaunch.text.did_you_mean import nearest_match


def choose_strategy(context: JobContext, diagnostics: Diagnostics) -> Strategy:
    """Return the strategy that starts the program on hosts and ranks, such as ``ddp`` or ``mpi``, by the
    first rule that applies, and add the reason."""
    for rule in rules_of("choose strategy"):
        for name, evidence, reason_rule in rule.check(context):
            strategy = load_strategy(name)
            diagnostics.add_reason(reason_rule or rule.id, f"{evidence}: {name} {strategy.summary}.")
            return strategy
    raise LookupError("no rule chooses a strategy")


def choose_instance_type(job: Job, diagnostics: Diagnostics) -> InstanceChoice:
    """Return the instance type that the plan's figures are for, with its entry in the catalog: the one that
    the job names, the first of its preferences, or the default. Warns of types that the catalog does not
    know."""
    preferences = job.compute.instance_preferences
    if preferences:
        diagnostics.add_reason(
            "instance-type.preferences",
            f"The service uses the first of {', '.join(preferences)} with free capacity; figures are for "
            f"{preferences[0]} unless stated otherwise.",
        )
        for preference in preferences:
            _warn_of_unknown_type(preference, diagnostics)
        return InstanceChoice(preferences[0], instances.find_instance_type(preferences[0]))
    if job.compute.instance_groups:
        return _choose_type_among_groups(job, diagnostics)
    instance_type = job.compute.instance_type
    if instance_type is None:
        default_type = instances.known_types()[DEFAULT_INSTANCE_TYPE]
        diagnostics.add_reason(
            "instance-type.default",
            f"The job names no instance type; {DEFAULT_INSTANCE_TYPE} ({default_type.describe()}) is what "
            "the SageMaker SDK takes too. A workload section lets the plan compare types (docs/planner.md).",
        )
        return InstanceChoice(DEFAULT_INSTANCE_TYPE, default_type)
    _warn_of_unknown_type(instance_type, diagnostics)
    return InstanceChoice(instance_type, instances.find_instance_type(instance_type))


def _choose_type_among_groups(job: Job, diagnostics: Diagnostics) -> InstanceChoice:
    """Return the type of the first group with accelerators, for which the image is, or of the first group."""
    types = job.compute.instance_types
    for name in types:
        _warn_of_unknown_type(name, diagnostics)
    name = next(filter(is_accelerated, types), types[0])
    if len(types) > 1:
        diagnostics.add_reason(
            "instance-groups.type",
            f"All groups run one image, chosen for {name}; figures that depend on the type are for it, and "
            "the cost is that of all groups.",
        )
    return InstanceChoice(name, instances.find_instance_type(name))


def _warn_of_unknown_type(name: str, diagnostics: Diagnostics) -> None:
    """Warn of an instance type that is missing in the catalog."""
    if instances.find_instance_type(name) is None:
        closest = nearest_match(name, instances.known_types())
        hint = f" (did you mean {closest}?)" if closest else ""
        diagnostics.add_warning(
            f"{name} is not in the catalog of {instances.catalog_month()}{hint}. Nothing is known about it: "
            "it is sent as it is, and nothing is assumed about its accelerators, memory or price."
        )


def choose_processes_per_host(
    job: Job,
    strategy: Strategy,
    instance_choice: InstanceChoice,
    facts: DiscoveredFacts,
    diagnostics: Diagnostics,
) -> int | str:
    """Return the number of ranks (processes) per host: as the job states, otherwise what the strategy needs
    or one for each accelerator; ``auto`` if only the host can count its accelerators."""
    # A number, "auto" (one for each accelerator), or None if the job states nothing.
    requested = job.compute.processes_per_host
    # The type that the plan's figures are for; no entry if the catalog does not know it.
    instance_type, catalog_entry = instance_choice
    if isinstance(requested, int):
        if facts.target == "aws" and catalog_entry is not None:
            _warn_of_unsuitable_process_count(requested, catalog_entry, diagnostics)
        return requested
    need = needed_processes(job, facts.script.program) if strategy.rendezvous else None
    if need is not None:
        diagnostics.add_reason(need.rule, need.explanation)
        return need.processes
    # An image's own program starts its processes itself.
    if requested is None and job.entry is None:
        return 1
    # The strategy starts one process on each host: always, or unless the job asks for more.
    if requested is None and (strategy.one_process_per_host or strategy.one_process_by_default):
        diagnostics.add_reason("processes.one-per-host", f"{strategy.name} starts one process per host.")
        return 1
    if facts.target == "local":
        return _local_processes_per_host(instance_type, catalog_entry, facts, diagnostics)
    if _types_differ_in_accelerators(job):
        types = "groups" if job.compute.instance_groups else "preferences"
        message = f"The {types} differ in their accelerators: each host counts its own."
        diagnostics.add_reason("processes.auto", message)
        return AUTO
    return _processes_for_hardware(job, strategy, instance_choice, diagnostics)


def threads_per_rank(job: Job) -> int:
    """Threads of each rank, as the job's OMP_NUM_THREADS states them; 1 without a number."""
    stated_number = str(job.environment.get("OMP_NUM_THREADS", ""))
    return max(1, int(stated_number)) if stated_number.isascii() and stated_number.isdigit() else 1


def _processes_for_hardware(
    job: Job, strategy: Strategy, instance_choice: InstanceChoice, diagnostics: Diagnostics
) -> int | str:
    """Return the number of ranks per host by the accelerators of the instance type, usually one for each, or
    by its processors; ``auto`` for a type that the catalog does not know."""
    instance_type, catalog_entry = instance_choice
    if catalog_entry is None:
        diagnostics.add_reason(
            "processes.auto",
            f"The catalog does not know {instance_type}: each host counts its own accelerators.",
        )
        return AUTO
    if not catalog_entry.accelerators:
        return _processes_for_cores(job, strategy, catalog_entry, diagnostics)
    ranks_per_host = strategy.ranks_per_host(catalog_entry)
    ranks_text = (
        "one rank for each" if ranks_per_host == catalog_entry.accelerators else f"{ranks_per_host} ranks"
    )
    diagnostics.add_reason(
        "processes.accelerators",
        f"{instance_type} has {catalog_entry.accelerators_text()}: {ranks_text}.",
    )
    return ranks_per_host


def _processes_for_cores(
    job: Job, strategy: Strategy, catalog_entry: InstanceType, diagnostics: Diagnostics
) -> int:
    """Return the number of ranks per host without accelerators: of preferred types by the smallest."""
    preferred_types = (instances.find_instance_type(name) for name in job.compute.instance_types)
    possible_types = [entry for entry in preferred_types if entry is not None] or [catalog_entry]
    smallest_type = min(possible_types, key=lambda entry: entry.cores)
    thread_count = threads_per_rank(job)
    ranks_per_host = strategy.ranks_per_host(smallest_type, thread_count)
    if ranks_per_host == 1:
        diagnostics.add_reason(
            "processes.no-accelerator", f"{catalog_entry.name} has no accelerator: one rank per host."
        )
        return 1
    threads_text = f", {thread_count} for each rank (OMP_NUM_THREADS)" if thread_count > 1 else ""
    diagnostics.add_reason(
        "processes.cores",
        f"{smallest_type.name} has no accelerator, and {smallest_type.cores} cores of two vCPU"
        f"{threads_text}: {ranks_per_host} ranks per host.",
    )
    return ranks_per_host


def _types_differ_in_accelerators(job: Job) -> bool:
    """Whether the job's instance types have different numbers of accelerators. A type that the catalog does
    not know counts as different from those that it knows."""
    entries = map(instances.find_instance_type, job.compute.instance_types)
    accelerator_counts = {None if entry is None else entry.accelerators for entry in entries}
    return len(accelerator_counts) > 1


def _warn_of_unsuitable_process_count(
    requested_processes: int, catalog_entry: InstanceType, diagnostics: Diagnostics
) -> None:
    """Warn if the number of ranks per host that the job states does not match the accelerators or vCPU of its
    instance type."""
    ranks_text = f"{requested_processes} rank{'' if requested_processes == 1 else 's'} per host"
    if 0 < catalog_entry.accelerators < requested_processes:
        diagnostics.add_warning(
            f"{ranks_text} share the {catalog_entry.accelerators_text()} of {catalog_entry.name}."
        )
    elif requested_processes < catalog_entry.accelerators:
        diagnostics.add_warning(
            f"{ranks_text} may leave some of the {catalog_entry.accelerators_text()} of {catalog_entry.name} "
            "idle."
        )
    elif requested_processes > catalog_entry.vcpu:
        diagnostics.add_warning(f"{ranks_text} share the {catalog_entry.vcpu} vCPU of {catalog_entry.name}.")


def _local_processes_per_host(
    instance_type: str, catalog_entry: InstanceType | None, facts: DiscoveredFacts, diagnostics: Diagnostics
) -> int:
    """Return the number of ranks per host for a run on this machine: one for each accelerator that a host
    gets here, whatever the instance type that the job names has."""
    local_accelerators = facts.endpoint.accelerators_per_host or 0
    if local_accelerators:
        diagnostics.add_reason(
            "processes.local-accelerators",
            f"Hosts here have {local_accelerators} accelerators: one rank for each.",
        )
        return local_accelerators
    diagnostics.add_reason("processes.local", "Hosts here have no accelerator: one rank per host.")
    if catalog_entry is not None and catalog_entry.accelerators > 1:
        diagnostics.add_warning(
            f"A real {instance_type} would run {catalog_entry.accelerators} ranks per host; here it is 1, "
            "unless --processes-per-host says more."
        )
    return 1


GOYAL_2017 = "Goyal et al. 2017, https://arxiv.org/abs/1706.02677"
MALLADI_2022 = "Malladi et al. 2022, https://arxiv.org/abs/2205.10287"

MAX_LINEAR_BATCH = 8192
"""Largest batch, in samples, for which the linear rule lost no accuracy (Goyal et al. 2017, ResNet-50)."""

_LINEAR_OPTIMIZERS = ("sgd", "momentum", "nesterov", "lars")
_SQUARE_ROOT_OPTIMIZERS = ("adam", "adamw", "adamax", "nadam", "rmsprop", "adagrad", "lamb")

_RATE_HYPERPARAMETERS = ("lr", "learning_rate", "learning-rate")


class ScaledRate(NamedTuple):
    """A learning rate for several ranks."""

    rule: Literal["linear", "square root"]
    factor: float
    """Factor of the learning rate."""

    rate: float | None
    """The scaled rate; None if the job states none."""

    explanation: str


def scale_learning_rate(optimizer: str | None, learning_rate: float | None, rank_count: int) -> ScaledRate:
    """Scale the learning rate for a batch that is ``rank_count`` times as large: linearly for SGD and its
    variants, by the square root for Adam and its. An unknown optimizer is treated as SGD, and the explanation
    says so. ``learning_rate``: None if the job states none. MALLADI_2022 and GOYAL_2017: citations of the
    papers."""
    optimizer_name = (optimizer or "").lower()
    if optimizer_name in _SQUARE_ROOT_OPTIMIZERS:
        factor = math.sqrt(rank_count)
        scaled_rate = None if learning_rate is None else learning_rate * factor
        explanation = f"by the square root ({MALLADI_2022}; valid while gradients are mostly noise)"
        return ScaledRate(rule="square root", factor=factor, rate=scaled_rate, explanation=explanation)
    scaled_rate = None if learning_rate is None else learning_rate * rank_count
    explanation = f"linearly, with a warm-up over the first five epochs ({GOYAL_2017})"
    if optimizer_name not in _LINEAR_OPTIMIZERS:
        optimizer_text = optimizer or "the optimizer, which is not named,"
        explanation += f"; {optimizer_text} is treated as SGD"
    return ScaledRate(rule="linear", factor=float(rank_count), rate=scaled_rate, explanation=explanation)


def advise_scaling(job: Job, ranks: int | None, diagnostics: Diagnostics) -> None:
    """Add a reason with the scaled learning rate if the job has several ranks, which average their gradients,
    and states its batch size, learning rate or optimizer; and a warning for a very large batch. ``ranks``: of
    all hosts; None if only the hosts know."""
    workload = job.workload
    rate_hyperparameter = next((name for name in _RATE_HYPERPARAMETERS if name in job.hyperparameters), None)
    stated_values = (workload.batch_size, workload.learning_rate, workload.optimizer, rate_hyperparameter)
    if ranks is None or ranks < 2 or all(value is None for value in stated_values):
        return
    scaled = scale_learning_rate(workload.optimizer, workload.learning_rate, ranks)
    diagnostics.add_reason(
        "scaling.learning-rate", _scaling_sentence(job, ranks, scaled, rate_hyperparameter)
    )
    # Of all ranks together.
    global_batch_size = (workload.batch_size or 0) * ranks
    if scaled.rule == "linear" and global_batch_size > MAX_LINEAR_BATCH:
        diagnostics.add_warning(
            f"Batches of {global_batch_size:,} samples are larger than the {MAX_LINEAR_BATCH:,} "
            f"up to which the linear rule was seen to lose no accuracy ({GOYAL_2017}): watch how it "
            "converges, or make workload.batch_size smaller."
        )


def _scaling_sentence(job: Job, rank_count: int, scaled: ScaledRate, rate_hyperparameter: str | None) -> str:
    """Return a sentence about how several ranks change batch size and learning rate. ``scaled``: the learning
    rate for ``rank_count`` ranks, and its factor relative to one rank. ``rate_hyperparameter``: name of the
    job's hyperparameter with the learning rate, which the plan does not change; None if there is none."""
    workload = job.workload
    batch_text = f"{rank_count} ranks make a batch {rank_count} times as large"
    if workload.batch_size is not None:
        batch_text = (
            f"{rank_count} ranks with {workload.batch_size:,} samples each make batches of "
            f"{workload.batch_size * rank_count:,}"
        )
    if scaled.rate is not None and workload.learning_rate is not None:
        rate_text = f"the learning rate of {workload.learning_rate:g} becomes {scaled.rate:.3g}"
    else:
        rate_text = f"a learning rate tuned for one rank is multiplied with {scaled.factor:.3g}"
    who_sets_text = "the plan does not set it, the script does"
    if rate_hyperparameter is not None:
        who_sets_text = (
            f"hyperparameters.{rate_hyperparameter} is sent unchanged: "
            f"{job.hyperparameters[rate_hyperparameter]}"
        )
    return f"{batch_text}: {rate_text}, {scaled.explanation}; {who_sets_text}."
