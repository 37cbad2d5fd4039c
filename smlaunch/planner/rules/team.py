"""Rules about the defaults and the policy of the team (docs/defaults.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from smlaunch.errors import Problem
from smlaunch.facts.team_settings import Default
from smlaunch.job.team_config import registry_region
from smlaunch.planner.compute_demand import ComputeOption
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import Objection, PlanContext, PlanWarning, stated_instance_types
from smlaunch.planner.rules.rule import Findings, Problems, rule
from smlaunch.text.format import format_dollars_apart

_DEFAULTS_PAGE = "docs/defaults.md"


@rule(
    "defaults.team",
    phase="advise",
    summary="values that the team's configuration files have given the job",
    source=_DEFAULTS_PAGE,
    quote="The plan names the file and the key of every value that a job has from one",
    fields=("role",),
    facts=("account",),
)
def explain_defaults(context: PlanContext) -> Findings:
    team = context.facts.team
    for default in team.applied:
        yield Reason("defaults.team", f"{default.field}: {_value_text(default)}, by {default.origin}.")
    if team.not_applied:
        fields = ", ".join(dict.fromkeys(default.field for default in team.not_applied))
        files = " and ".join(dict.fromkeys(default.file for default in team.not_applied))
        yield Reason(
            "defaults.local",
            f"Not taken from {files}, because the local endpoint has no account: {fields}.",
        )
    if team.policy is not None and context.policy is None:
        yield Reason(
            "policy.local", f"The policy of {team.policy.file} is about jobs in a region, and is not applied."
        )
    for file, cause in team.unread.items():
        yield PlanWarning(f"The defaults of {file} are not known: {cause}.")


def _value_text(default: Default) -> str:
    """Return the value as a job file has it; not that of a variable, which may be secret."""
    if default.field.startswith("environment."):
        return "set"
    if isinstance(default.value, tuple):
        return ", ".join(default.value)
    return default.value if isinstance(default.value, str) else json.dumps(default.value)


@rule(
    "defaults.image-registry",
    summary="a team's registry of images that is in another region",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_AlgorithmSpecification.html",
    quote="the registry path of the Docker image ... in the same region (not confirmed)",
    fields=("image",),
    facts=("account",),
)
def reject_registry_of_other_region(context: PlanContext) -> Problems:
    default, region = context.facts.team.find("image_registry"), context.facts.region
    if default is None or context.job.image is not None or registry_region(default.value) == region:
        return
    yield Problem(
        "image",
        f"{default.value} ({default.origin}) is in {registry_region(default.value)}, and the job in "
        f"{region}: hosts pull images of their own region; name an image, or take the registry's region",
    )


@rule(
    "policy.machines",
    phase="choose machines",
    summary="types that the team's policy does not have",
    source=_DEFAULTS_PAGE,
    quote="`instance_types`: types that jobs may run on",
    fields=("compute.instance_type",),
    facts=("account",),
)
def avoid_types_outside_policy(option: ComputeOption) -> Iterator[Objection]:
    policy = option.demand.policy
    if policy is not None and not _is_allowed(option.instance.name, policy.rules.instance_types):
        yield Objection(f"policy.instance_types of {policy.file} does not have it")


@rule(
    "policy.instance-types",
    summary="instance types that the team's policy does not have",
    source=_DEFAULTS_PAGE,
    quote="`instance_types`: types that jobs may run on",
    fields=("compute.instance_type", "compute.instance_preferences", "segments"),
    facts=("account",),
)
def reject_types_outside_policy(context: PlanContext) -> Problems:
    policy = context.policy
    if policy is None:
        return
    allowed_types = policy.rules.instance_types
    for field, name in stated_instance_types(context.job):
        if not _is_allowed(name, allowed_types):
            yield Problem(
                field,
                f"{name} is none of {', '.join(allowed_types or ())}, which policy.instance_types of "
                f"{policy.file} allows; take one of them",
            )


@rule(
    "policy.regions",
    summary="regions that the team's policy does not have",
    source=_DEFAULTS_PAGE,
    quote="`regions`: regions that jobs may run in",
    fields=("role",),
    facts=("account",),
)
def reject_regions_outside_policy(context: PlanContext) -> Problems:
    policy, region = context.policy, context.facts.region
    if policy is not None and not _is_allowed(region, policy.rules.regions):
        yield Problem(
            "region",
            f"{region} is none of {', '.join(policy.rules.regions or ())}, which policy.regions of "
            f"{policy.file} allows; give one of them by --region",
        )


@rule(
    "policy.spot",
    summary="hosts on demand where the team's policy takes spot capacity only",
    source=_DEFAULTS_PAGE,
    quote="`spot_only`: every job runs on spot capacity",
    fields=("compute.spot", "compute.on_demand_fallback", "strategy"),
    facts=("account",),
)
def reject_on_demand_outside_policy(context: PlanContext) -> Problems:
    policy, compute = context.policy, context.job.compute
    if policy is None or not policy.rules.spot_only:
        return
    rule_text = f"policy.spot_only of {policy.file} takes spot capacity only"
    if not context.job_kind.trains_model:
        yield Problem(
            "compute.spot", f"{rule_text}, and a {context.job_kind.noun} has none; ask who keeps the policy"
        )
    elif not compute.spot:
        yield Problem("compute.spot", f"{rule_text}; give --spot, or spot: true")
    elif compute.on_demand_fallback:
        yield Problem("compute.on_demand_fallback", f"{rule_text}; leave it out")


@rule(
    "policy.tags",
    summary="jobs without a tag that the team's policy requires",
    source=_DEFAULTS_PAGE,
    quote="`required_tags`: tags that every job has",
    fields=("tags",),
    facts=("account",),
)
def reject_missing_tags(context: PlanContext) -> Problems:
    policy = context.policy
    if policy is None:
        return
    for key in policy.rules.required_tags or ():
        if key not in context.job.tags:
            yield Problem(
                f"tags.{key}",
                f"it is missing, and policy.required_tags of {policy.file} asks for it; "
                "state it below tags in the job file, or below defaults.tags there",
            )


@rule(
    "policy.cost",
    summary="runs that may cost more than the team's policy allows",
    source=_DEFAULTS_PAGE,
    quote="`max_cost_per_run`, `max_cost_per_hour`: US dollars",
    fields=("limits", "compute", "segments", "workload"),
    facts=("account",),
)
def reject_cost_beyond_policy(context: PlanContext) -> Problems:
    """Yield a problem for each cap that the run's cost exceeds, or cannot be compared with."""
    policy, cost = context.policy, context.cost
    if policy is None or cost is None:
        return
    per_run = "limits.max_cost", "max_cost_per_run", policy.rules.max_cost_per_run, cost.maximum, ""
    per_hour = "compute", "max_cost_per_hour", policy.rules.max_cost_per_hour, cost.per_hour, " an hour"
    for field, name, cap, dollars, unit in (per_run, per_hour):
        if cap is None:
            continue
        if dollars is None:
            yield Problem(
                "compute.price_per_hour",
                f"the price is unknown, so that policy.{name} of {policy.file} cannot be checked; state it",
            )
        elif dollars * context.run_count > cap:
            dollars_text, cap_text = format_dollars_apart(dollars * context.run_count, cap)
            remedy = "take fewer or cheaper hosts"
            if not unit:
                remedy = f"lower limits.max_runtime, or state limits.max_cost: {cap:g} for a chain"
            yield Problem(
                field,
                f"the run may cost {dollars_text}{unit}, more than {cap_text}, which policy.{name} of "
                f"{policy.file} allows; {remedy}",
            )


def _is_allowed(name: str, patterns: Iterable[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
