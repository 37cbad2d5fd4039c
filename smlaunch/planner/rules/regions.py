"""Rules about the region: whether the catalog knows it, and what EC2 offers there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from smlaunch.catalog import instances, regions
from smlaunch.planner.plan_context import Objection, PlanContext, PlanWarning
from smlaunch.planner.rules.machines import RETIRED_FAMILIES
from smlaunch.planner.rules.rule import Findings, rule
from smlaunch.text.did_you_mean import nearest_match

if TYPE_CHECKING:
    from smlaunch.planner.compute_demand import ComputeOption

_MAX_NAMED = 6
"""Regions or types that a sentence names."""


@rule(
    "region.types",
    phase="advise",
    summary="a region that the catalog does not know, and types that EC2 does not offer in the region",
    source="https://github.com/getmoto/moto",
    quote="instance_type_offerings/region: EC2's types (those of SageMaker are not confirmed)",
    fields=("compute.instance_type", "compute.instance_preferences", "segments"),
    facts=("account",),
)
def warn_of_region(context: PlanContext) -> Findings:
    """Yield warnings, no problems: AWS publishes no table of SageMaker's types by region, and opens regions
    and adds types any day."""
    region = context.facts.region
    if context.facts.target != "aws":
        return
    if region not in regions.known_regions():
        nearest = nearest_match(region, regions.known_regions())
        hint = f"; did you mean {nearest}?" if nearest else "."
        yield PlanWarning(f"region: {region} is not in the catalog of {regions.table_month()}{hint}")
    for instance_type in context.instance_types:
        if regions.is_type_missing(instance_type, region):
            yield PlanWarning(_describe_missing_type(instance_type, region))


def _describe_missing_type(instance_type: str, region: str) -> str:
    ec2_type, others = instance_type.removeprefix("ml."), regions.regions_with_type(instance_type) or ()
    sentence = (
        f"compute.instance_type: the catalog ({regions.table_month()}) has no {ec2_type} of EC2 in {region}, "
        f"so that SageMaker hardly offers {instance_type} there. {_listing(others)} "
        f"{'has' if len(others) == 1 else 'have'} it"
    )
    alternatives = _similar_types_in_region(instance_type, region)
    return f"{sentence}; {region} has {_listing(alternatives)}." if alternatives else f"{sentence}."


def _similar_types_in_region(instance_type: str, region: str) -> tuple[str, ...]:
    """Return types of the region with at least as many accelerators of the same maker, fewest first; without
    accelerators, types with at least as many processors and as much memory."""
    wanted = instances.find_instance_type(instance_type)
    if wanted is None:
        return ()
    candidates = [
        candidate
        for candidate in instances.known_types().values()
        if regions.regions_with_type(candidate.name) is not None
        and not regions.is_type_missing(candidate.name, region)
        and not candidate.name.split(".")[1].startswith(RETIRED_FAMILIES)
        and candidate.is_neuron == wanted.is_neuron
        and (candidate.accelerators > 0) == (wanted.accelerators > 0)
        and candidate.accelerators >= wanted.accelerators
        and (
            wanted.accelerators
            or (candidate.vcpu >= wanted.vcpu and candidate.memory_gib >= wanted.memory_gib)
        )
    ]
    candidates.sort(key=lambda candidate: (candidate.accelerators, candidate.vcpu, candidate.memory_gib))
    return tuple(candidate.name for candidate in candidates)[:3]


def _listing(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


@rule(
    "region.offers",
    phase="choose machines",
    summary="types that EC2 does not offer in the region",
    source="https://github.com/getmoto/moto",
    quote="instance_type_offerings/region: EC2's types (those of SageMaker are not confirmed)",
    fields=("workload",),
    facts=("account",),
)
def reject_type_missing_in_region(option: ComputeOption) -> Iterator[Objection]:
    facts, name = option.demand.facts, option.instance.name
    if facts.target == "aws" and regions.is_type_missing(name, facts.region):
        yield Objection(f"EC2 does not offer it in {facts.region} ({regions.table_month()})")
