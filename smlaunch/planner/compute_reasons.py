"""Explain the choice of machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from smlaunch.api.request import CREATE_TRAINING_JOB
from smlaunch.planner.compute_rules import ComputeOption, device_memory_gib, devices_per_replica
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.estimate import MODEL_MEMORY_SHARE, PRICE_SPREAD
from smlaunch.planner.render_candidates import format_dollar_range
from smlaunch.text.format import format_size

JudgedOptions = Sequence[tuple[ComputeOption, tuple[str, str] | None]]


def explain_choice(
    chosen: ComputeOption,
    suitable: Sequence[ComputeOption],
    evaluated_options: JudgedOptions,
    diagnostics: Diagnostics,
) -> None:
    """Add the reasons for the chosen machines, and warnings if they may be too slow."""
    demand = chosen.demand
    rule, sentence = _main_reason(chosen, suitable, evaluated_options)
    diagnostics.add_reason(rule, sentence)
    if demand.model_bytes is not None:
        diagnostics.add_reason("compute.model-memory", _model_memory_reason(chosen, demand.model_bytes))
    if chosen.estimated_seconds is not None:
        diagnostics.add_reason("estimate.assumed", _assumptions_text(chosen))
    wanted_seconds = demand.wanted_seconds
    if (
        wanted_seconds is not None
        and chosen.estimated_seconds is not None
        and chosen.estimated_seconds.high > wanted_seconds
    ):
        diagnostics.add_warning(
            f"{chosen.describe()} takes {chosen.estimated_seconds}: it may be more than the "
            f"{demand.job.workload.wanted_time} that are wanted."
        )
    if chosen.estimated_seconds is not None and chosen.estimated_seconds.high > demand.limit_seconds:
        diagnostics.add_warning(
            f"It may take {chosen.estimated_seconds}, and limits.max_runtime ends it after "
            f"{demand.limit_seconds / 3600:g} h: state a longer one."
        )


MAX_PREFERENCES = 5
"""Maximum number in a request (API model)."""


def suggest_preferences(
    chosen: ComputeOption, similar: Sequence[ComputeOption], diagnostics: Diagnostics
) -> None:
    """Suggest equally suitable types, so that the service can use the first with free capacity."""
    demand = chosen.demand
    chosen_shape = (chosen.host_count, chosen.ranks_per_host)
    alternatives = [
        option
        for option in similar
        if option is not chosen and (option.host_count, option.ranks_per_host) == chosen_shape
    ]
    on_demand = demand.facts.target == "aws" and not demand.job.compute.spot
    if (
        not alternatives
        or demand.has_fixed_type
        or not on_demand
        or demand.strategy.operation != CREATE_TRAINING_JOB
    ):
        return
    type_names = [option.instance.name for option in (chosen, *alternatives)][:MAX_PREFERENCES]
    diagnostics.add_reason(
        "capacity.preferences",
        f"If capacity is short, compute.instance_preferences: [{', '.join(type_names)}] uses the first type "
        "with free capacity; they cost about the same here.",
    )


def _main_reason(
    chosen: ComputeOption, suitable: Sequence[ComputeOption], evaluated_options: JudgedOptions
) -> tuple[str, str]:
    """Rule and sentence of the reason that decided the choice."""
    demand, description = chosen.demand, chosen.describe()
    accelerators = chosen.host_group.busy_accelerators * chosen.host_count
    if demand.has_fixed_type and "hosts" in demand.job.compute.model_fields_set:
        return "compute.given", f"The job names {description}{_estimate_text(chosen)}."
    if demand.strategy.is_for_tables:
        return "compute.tables", _tables_reason(chosen)
    if not demand.ranks_communicate and chosen.host_count > 1:
        return (
            "compute.share-nothing",
            f"Hosts do not communicate, so that {chosen.host_count} of them are {chosen.host_count} times "
            "as fast: "
            f"{description}{_estimate_text(chosen)}{_rank_among_suitable(chosen, suitable)}.",
        )
    if not chosen.instance.accelerators:
        if demand.in_memory_bytes is not None and not demand.has_fixed_type:
            return "instance-type.in-memory", _in_memory_reason(chosen, demand.in_memory_bytes)
        return (
            "compute.processors",
            f"{description}{_estimate_text(chosen)}{_rank_among_suitable(chosen, suitable)}.",
        )
    if demand.vcpu_per_accelerator is not None:
        return "compute.cpu-budget", _vcpu_reason(chosen, demand.vcpu_per_accelerator, evaluated_options)
    if chosen.host_count > 1:
        return "compute.scale-out", _scale_out_reason(chosen, suitable, evaluated_options)
    if accelerators > 1:
        return (
            "compute.scale-up",
            f"{accelerators} accelerators of one {chosen.instance.name} are enough{_estimate_text(chosen)}: "
            "one instance is easier to debug than several, and its accelerators communicate faster than "
            f"hosts{_rank_among_suitable(chosen, suitable)}.",
        )
    return "compute.one-accelerator", _one_accelerator_reason(chosen, suitable)


def _tables_reason(chosen: ComputeOption) -> str:
    """Reason for machines that process tables."""
    description = f"{chosen.describe()}: a host for every 100 GB of tables"
    if "hosts" in chosen.demand.job.compute.model_fields_set:
        description = f"The job names {chosen.host_count} hosts; for tables they are {chosen.instance.name}"
    return (
        f"{description}, a rough assumption; {chosen.demand.strategy.name.capitalize()} distributes the work."
    )


def _one_accelerator_reason(chosen: ComputeOption, suitable: Sequence[ComputeOption]) -> str:
    """Reason for one accelerator."""
    demand = chosen.demand
    description = (
        "One accelerator, of "
        f"{chosen.instance.name}{_estimate_text(chosen)}{_rank_among_suitable(chosen, suitable)}"
    )
    if demand.capability.accelerator_use != "one":
        return f"{description}."
    program = demand.facts.source.entry or demand.job.program
    missing = "; ".join(demand.capability.missing_steps)
    missing_text = f" For several it lacks, by its source: {missing}." if missing else ""
    return f"{description}: {program} uses one, as most programs do.{missing_text}"


def _vcpu_reason(chosen: ComputeOption, needed_vcpu: float, evaluated_options: JudgedOptions) -> str:
    """Reason for a type chosen by its vCPU per accelerator."""
    larger_types = [
        option.instance.name
        for option, objection in evaluated_options
        if objection is not None
        and objection[0] == "cpu.too-few-per-accelerator"
        and option.instance.accelerators > 1
        and option.instance.accelerator == chosen.instance.accelerator
    ]
    larger_type_text = f", where {larger_types[-1]} has too few for its accelerators" if larger_types else ""
    vcpu_each = chosen.instance.vcpu / chosen.instance.accelerators
    return (
        f"Preprocessing keeps {needed_vcpu:g} vCPU busy for each accelerator, and {chosen.instance.name} has "
        f"{vcpu_each:g}{larger_type_text}: {chosen.describe()}{_estimate_text(chosen)}."
    )


def _scale_out_reason(
    chosen: ComputeOption, suitable: Sequence[ComputeOption], evaluated_options: JudgedOptions
) -> str:
    """Reason for several hosts."""
    fixed_hosts = "hosts" in chosen.demand.job.compute.model_fields_set
    if fixed_hosts:
        return f"The job names {chosen.host_count} hosts; {chosen.describe()}{_estimate_text(chosen)}."
    return (
        "No single instance is enough, so there are several: "
        f"{chosen.describe()}{_estimate_text(chosen)}{_rank_among_suitable(chosen, suitable)}."
    )


def _in_memory_reason(chosen: ComputeOption, needed_bytes: float) -> str:
    """Reason for a type chosen by its memory."""
    return (
        "The program reads all of its data into memory, which needs about five times its size, "
        f"{format_size(int(needed_bytes))}: {chosen.instance.name} ({chosen.instance.describe()}) has "
        "enough memory at the lowest hourly price."
    )


def _model_memory_reason(chosen: ComputeOption, needed_bytes: float) -> str:
    """How the model fits into the accelerators' memory."""
    instance, devices = chosen.instance, devices_per_replica(chosen)
    device = instance.accelerator or instance.name
    usable_memory = f"{MODEL_MEMORY_SHARE:.0%} of the {device_memory_gib(instance):g} GiB of {device}"
    if devices > 1:
        bytes_each = format_size(int(needed_bytes / devices))
        return (
            f"{format_size(int(needed_bytes))} of model are sharded: {bytes_each} on each of {devices}, "
            f"within {usable_memory}."
        )
    return f"{format_size(int(needed_bytes))} of model fit within {usable_memory}."


def _estimate_text(chosen: ComputeOption) -> str:
    """Estimated duration and cost in parentheses; empty if unknown."""
    if chosen.estimated_seconds is None:
        return ""
    cost_text = (
        ""
        if chosen.estimated_dollars is None
        else f" for {format_dollar_range((chosen.estimated_dollars.low, chosen.estimated_dollars.high))}"
    )
    return f" ({chosen.estimated_seconds}{cost_text}, estimated)"


def _rank_among_suitable(chosen: ComputeOption, suitable: Sequence[ComputeOption]) -> str:
    """How the choice compares with the other suitable options."""
    other_count = len(suitable) - 1
    if not other_count or chosen.demand.has_fixed_type:
        return ""
    measured = chosen.demand.measurement
    if measured is not None and measured.is_same_kind(chosen.instance):
        return f"; of {other_count + 1} suitable ones it is among the cheapest, and of the measured kind"
    return f"; of {other_count + 1} suitable ones it is among the cheapest"


def _assumptions_text(chosen: ComputeOption) -> str:
    """What the estimates are based on."""
    demand = chosen.demand
    if demand.measurement is None:
        return ""
    reference, job = demand.measurement.instance, demand.job
    if demand.measurement.is_stated:
        reference_text = reference.name
    elif demand.measurement.on_accelerator:
        reference_text = f"{reference.name} (assumed; workload.measured_on states it)"
    else:
        reference_text = f"a host of {reference.name} (assumed; workload.measured_on states it)"
    spread = PRICE_SPREAD.get(chosen.instance.price_confidence, PRICE_SPREAD["low"])
    is_local = demand.facts.target == "local"
    region_text = " They are of a region's machines, and not of this one." if is_local else ""
    return (
        f"Estimates start from {job.workload.time_on_one} on {reference_text}; how accelerators compare, "
        f"what several lose, 1 to 10 minutes until training begins and a price within {spread:.0%} are "
        f"rough assumptions (docs/planner.md).{region_text}"
    )
