"""Explain the choice of machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from smlaunch.catalog.instances import price_region
from smlaunch.job.model import format_duration
from smlaunch.planner.compute_demand import ComputeOption, EvaluatedOption
from smlaunch.planner.plan_context import Diagnostics
from smlaunch.storage.host_data import bound_word
from smlaunch.storage.workload_estimate import MODEL_MEMORY_SHARE
from smlaunch.text.format import format_dollar_range, format_size


def explain_choice(
    chosen: ComputeOption,
    suitable: Sequence[ComputeOption],
    evaluated_options: Sequence[EvaluatedOption],
    diagnostics: Diagnostics,
) -> None:
    """Add the reasons for the chosen machines to the plan, and warnings if they may be too slow.

    ``suitable``: all options that no rule rejects. ``evaluated_options``: all that were compared. Estimates
    are ranges of seconds, None without a measurement. An option is a pair of instance type and number of
    hosts.
    """
    demand, estimated = chosen.demand, chosen.estimated_seconds
    rule_name, sentence = _decisive_reason(chosen, suitable, evaluated_options)
    diagnostics.add_reason(rule_name, sentence)
    if demand.model_bytes is not None:
        diagnostics.add_reason("compute.model-memory", _model_memory_reason(chosen, demand.model_bytes))
    if estimated is None:
        return
    diagnostics.add_reason("estimate.assumed", _assumptions_text(chosen))
    if demand.wanted_seconds is not None and estimated.high > demand.wanted_seconds:
        diagnostics.add_warning(
            f"{chosen.describe()} takes {estimated}: it may be more than the "
            f"{demand.job.workload.wanted_time} that are wanted."
        )
    if estimated.high > chosen.limit_seconds:
        diagnostics.add_warning(
            f"It may take {estimated}, and limits.max_runtime ends it after "
            f"{format_duration(chosen.limit_seconds)}: state a longer one."
        )


MAX_PREFERENCES = 5
"""Maximum number in a request (API model)."""


def suggest_preferences(
    chosen: ComputeOption, similar: Sequence[ComputeOption], diagnostics: Diagnostics
) -> None:
    """Suggest equally suitable types, so that the service can use the first with free capacity. ``similar``:
    options of about the same price as the chosen one; only on-demand training jobs can state preferences."""
    demand = chosen.demand
    is_on_demand = demand.facts.target == "aws" and not demand.job.compute.spot
    if demand.names_instance_type or not is_on_demand or not demand.strategy.job_kind.trains_model:
        return
    # The preferences of a job have one number of hosts, and of ranks on each, in common.
    alternatives = [
        option
        for option in similar
        if option is not chosen
        and option.host_count == chosen.host_count
        and option.ranks_per_host == chosen.ranks_per_host
    ]
    if not alternatives:
        return
    type_names = [option.instance.name for option in (chosen, *alternatives)][:MAX_PREFERENCES]
    diagnostics.add_reason(
        "capacity.preferences",
        f"If capacity is short, compute.instance_preferences: [{', '.join(type_names)}] uses the first type "
        f"with free capacity; they cost about the same{_price_basis_text(chosen)}.",
    )


def _decisive_reason(
    chosen: ComputeOption, suitable: Sequence[ComputeOption], evaluated_options: Sequence[EvaluatedOption]
) -> tuple[str, str]:
    """Return the reason that decided the choice of machines: the name of its rule, and a sentence. What left
    the least choice is named first: the job itself, then the kind of program, then the hardware.

    ``suitable``: all options that no rule rejects. ``evaluated_options``: all that were compared. An option
    is a pair of instance type and number of hosts.
    """
    demand, description, instance = chosen.demand, chosen.describe(), chosen.instance
    # Clauses, empty if there is nothing to say: estimated time and cost, and how many others are suitable.
    estimate_text, comparison_text = _estimate_text(chosen), _comparison_text(chosen, suitable)
    states_host_count = "hosts" in demand.job.compute.stated_fields
    if demand.names_instance_type and states_host_count:
        return "compute.given", f"The job names {description}{estimate_text}."
    # The strategy (how the program is started) processes tables, as Spark does.
    if demand.strategy.is_for_tables:
        return "compute.tables", _tables_reason(chosen)
    if not demand.ranks_communicate and chosen.host_count > 1:
        return (
            "compute.share-nothing",
            f"Hosts do not communicate, so that {chosen.host_count} of them are {chosen.host_count} times "
            f"as fast: {description}{estimate_text}{comparison_text}.",
        )
    if not instance.accelerators:
        is_type_chosen_by_memory = not demand.names_instance_type or chosen.host_count > 1
        if chosen.in_memory_bytes is not None and is_type_chosen_by_memory:
            return "instance-type.in-memory", _in_memory_reason(chosen, chosen.in_memory_bytes)
        return (
            "compute.processors",
            f"{description}{estimate_text}{comparison_text}.",
        )
    # Heavy preprocessing: the vCPU per accelerator decide, not the accelerators.
    if demand.vcpu_per_accelerator is not None:
        return "compute.cpu-budget", _vcpu_reason(chosen, demand.vcpu_per_accelerator, evaluated_options)
    if chosen.host_count > 1:
        return "compute.scale-out", _scale_out_reason(chosen, suitable)
    # Accelerators of the one host that have a rank.
    busy_accelerators = chosen.host_group.busy_accelerators
    if busy_accelerators > 1:
        return (
            "compute.scale-up",
            f"{busy_accelerators} accelerators of one {instance.name} are "
            f"enough{estimate_text}: one instance is easier to debug than several, and its "
            f"accelerators communicate faster than hosts{comparison_text}.",
        )
    return "compute.one-accelerator", _one_accelerator_reason(chosen, suitable)


def _tables_reason(chosen: ComputeOption) -> str:
    """Reason for machines that process tables."""
    description = f"{chosen.describe()}: a host for every 100 GB of tables"
    if "hosts" in chosen.demand.job.compute.stated_fields:
        description = f"The job names {chosen.host_count} hosts; for tables they are {chosen.instance.name}"
    return (
        f"{description}, a rough assumption; {chosen.demand.strategy.name.capitalize()} distributes the work."
    )


def _one_accelerator_reason(chosen: ComputeOption, suitable: Sequence[ComputeOption]) -> str:
    """Reason for one accelerator."""
    demand = chosen.demand
    description = (
        "One accelerator, of "
        f"{chosen.instance.name}{_estimate_text(chosen)}{_comparison_text(chosen, suitable)}"
    )
    if demand.capability.accelerator_use != "one":
        return f"{description}."
    program = demand.facts.source.entry or demand.job.program
    missing = "; ".join(demand.capability.missing_steps)
    missing_text = f" For several it lacks, by its source: {missing}." if missing else ""
    return f"{description}: {program} uses one, as most programs do.{missing_text}"


def _vcpu_reason(
    chosen: ComputeOption, needed_vcpu: float, evaluated_options: Sequence[EvaluatedOption]
) -> str:
    """Return the reason for a type chosen by its vCPU per accelerator, compared with a type that has several
    of the same accelerators and too few vCPU for them. ``needed_vcpu``: for each accelerator."""
    types_with_few_vcpu = [
        option.instance.name
        for option, rejection in evaluated_options
        if rejection is not None
        and rejection.rule_id == "cpu.too-few-per-accelerator"
        and option.instance.accelerators > 1
        and option.instance.accelerator == chosen.instance.accelerator
    ]
    comparison_text = (
        f", where {types_with_few_vcpu[-1]} has too few for its accelerators" if types_with_few_vcpu else ""
    )
    vcpu_per_accelerator = chosen.instance.vcpu / chosen.instance.accelerators
    return (
        f"Preprocessing keeps {needed_vcpu:g} vCPU busy for each accelerator, and {chosen.instance.name} has "
        f"{vcpu_per_accelerator:g}{comparison_text}: {chosen.describe()}{_estimate_text(chosen)}."
    )


def _scale_out_reason(chosen: ComputeOption, suitable: Sequence[ComputeOption]) -> str:
    """Reason for several hosts."""
    fixed_hosts = "hosts" in chosen.demand.job.compute.stated_fields
    if fixed_hosts:
        return f"The job names {chosen.host_count} hosts; {chosen.describe()}{_estimate_text(chosen)}."
    return (
        "No single instance is enough, so there are several: "
        f"{chosen.describe()}{_estimate_text(chosen)}{_comparison_text(chosen, suitable)}."
    )


def _in_memory_reason(chosen: ComputeOption, bytes_per_host: float) -> str:
    """Reason for a type, or a number of hosts, chosen by its memory."""
    need_text = (
        "The program reads all of its data into memory, which needs about five times its size, "
        f"{bound_word(chosen.demand.facts, chosen.demand.job.inputs)}{format_size(int(bytes_per_host))}"
    )
    if chosen.host_count > 1:
        need_text += f" on each of {chosen.host_count} hosts"
    price_text = (
        ""
        if chosen.demand.names_instance_type
        else f" at about the lowest hourly price{_price_basis_text(chosen)}"
    )
    return (
        f"{need_text}: {chosen.instance.name} ({chosen.instance.describe()}) has enough memory{price_text}."
    )


def _model_memory_reason(chosen: ComputeOption, needed_bytes: float) -> str:
    """How the model fits into the accelerators' memory."""
    instance, devices = chosen.instance, chosen.devices_per_replica
    device = instance.accelerator or instance.name
    usable_memory = f"{MODEL_MEMORY_SHARE:.0%} of the {chosen.device_memory_gib:g} GiB of {device}"
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


def _comparison_text(chosen: ComputeOption, suitable: Sequence[ComputeOption]) -> str:
    """How the choice compares with the other suitable options."""
    other_count = len(suitable) - 1
    if not other_count or chosen.demand.names_instance_type:
        return ""
    measured = chosen.demand.measurement
    is_of_measured_kind = measured is not None and measured.is_same_kind(chosen.instance)
    kind_text = ", and of the measured kind" if is_of_measured_kind else ""
    basis_text = _price_basis_text(chosen)
    return f"; of {other_count + 1} suitable ones it is among the cheapest{basis_text}{kind_text}"


def _price_basis_text(chosen: ComputeOption) -> str:
    """Return by which prices machines are compared, where they are not the region's; empty if they are."""
    if chosen.price_per_hour is not None:
        return ""
    return f" by the prices of {price_region()}, as those of {chosen.demand.facts.region} are not known"


def _assumptions_text(chosen: ComputeOption) -> str:
    """Return a sentence about what the estimates of time and cost are based on; empty without a measurement.
    The user states the time on one accelerator or host, the reference."""
    demand = chosen.demand
    if demand.measurement is None:
        return ""
    reference, job = demand.measurement.instance, demand.job
    if demand.measurement.is_instance_stated:
        reference_text = reference.name
    elif demand.measurement.on_accelerator:
        reference_text = f"{reference.name} (assumed; workload.measured_on states it)"
    else:
        reference_text = f"a host of {reference.name} (assumed; workload.measured_on states it)"
    is_local = demand.facts.target == "local"
    region_text = " They are of a region's machines, and not of this one." if is_local else ""
    assumptions = ["how accelerators compare", "what several lose", "1 to 10 minutes until training begins"]
    if chosen.price is not None and chosen.price.relative_error:
        assumptions.append(f"a price within {chosen.price.relative_error:.0%}")
    return (
        f"Estimates start from {job.workload.time_on_one} on {reference_text}; "
        f"{', '.join(assumptions[:-1])} and {assumptions[-1]} "
        f"are rough assumptions (docs/planner.md).{region_text}"
    )
