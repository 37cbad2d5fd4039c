"""Rules about sizes, reserved names and combinations of request members."""

from __future__ import annotations

from smlaunch.api.request import CREATE_PROCESSING_JOB, CREATE_TRAINING_JOB, hyperparameter_text
from smlaunch.api.validation import check_request
from smlaunch.contract.names import TAG_ATTEMPT, TAG_FORMAT, TAG_JOB, TAG_RUN, TAG_SEGMENT
from smlaunch.contract.paths import WHEELHOUSE_CHANNEL
from smlaunch.contract.segment import (
    FROM_STEP_VARIABLE,
    RUN_VARIABLE,
    STOP_AFTER_VARIABLE,
    UNTIL_STEP_VARIABLE,
)
from smlaunch.errors import Problem
from smlaunch.planner.plan_context import PlanContext
from smlaunch.planner.refusals.rule import Problems, rule
from smlaunch.planner.request_fields import job_field

_OWN_TAGS = (TAG_FORMAT, TAG_RUN, TAG_SEGMENT, TAG_ATTEMPT, TAG_JOB)
_REMEDY = {
    "HyperParameters": "what is long or many goes into a file of the source, or of an input",
    "Environment": "what is long or many goes into a file of the source, or of an input",
    "Tags": "shorten it, or leave some out",
}
_RESERVED_PREFIXES = ("smlaunch:", "aws:")


@rule(
    "request.sizes",
    "hyperparameters, variables and tags that are too many or too long",
    "2.1",
    "≤100; key ≤256; value ≤2500 ... key [a-zA-Z_][a-zA-Z0-9_]* ≤512; value ≤512 ... ≤50; key 1-128",
    *("hyperparameters.*", "environment.*", "tags.*"),
)
def request_sizes(context: PlanContext) -> Problems:
    """Checked by the API model's tables, as is the whole request later."""
    job = context.job
    tags = {**dict.fromkeys(_OWN_TAGS, ""), **job.tags}
    request = {
        "HyperParameters": {key: hyperparameter_text(value) for key, value in job.hyperparameters.items()},
        "Environment": dict(job.environment),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    if context.is_processing:
        del request["HyperParameters"]
    for violation in check_request(
        CREATE_PROCESSING_JOB if context.is_processing else CREATE_TRAINING_JOB, request
    ):
        member = violation.path[0]
        if member not in request or violation.rule == "service":
            continue
        message = violation.problem().message
        if member == "Tags" and violation.rule == "max_items":
            message = f"{len(job.tags)} and smlaunch's own {len(_OWN_TAGS)} are {len(tags)}; {message}"
        yield Problem(job_field(violation.path, request), f"{message}; {_REMEDY[str(member)]}")


@rule("tags.reserved", "tags with a reserved prefix", "2.1", "≤50; key 1-128, value 0-256", "tags.*")
def reserved_tags(context: PlanContext) -> Problems:
    for key in context.job.tags:
        if key.lower().startswith(_RESERVED_PREFIXES):
            yield Problem(f"tags.{key}", f"{key.split(':')[0]}: is a reserved prefix; choose another key")


@rule(
    "environment.own",
    "variables that the plan sets itself",
    "2.1",
    "key [a-zA-Z_][a-zA-Z0-9_]* ≤512; value ≤512",
    "environment.*",
)
def own_variables(context: PlanContext) -> Problems:
    for key in (STOP_AFTER_VARIABLE, UNTIL_STEP_VARIABLE, FROM_STEP_VARIABLE, RUN_VARIABLE):
        if key in context.job.environment:
            message = "the plan sets it itself; use limits.segment or segments[].until_step"
            yield Problem(f"environment.{key}", message)


@rule(
    "network.both",
    "subnets without security groups, or the other way round",
    "2.1",
    "SGs 1-5, subnets 1-16",
    "subnets",
    "security_groups",
)
def half_a_network(context: PlanContext) -> Problems:
    job = context.job
    if bool(job.subnets) != bool(job.security_groups):
        stated_field, missing_field = (
            ("subnets", "security_groups") if job.subnets else ("security_groups", "subnets")
        )
        yield Problem(missing_field, f"it goes together with {stated_field}; give both or neither")


@rule(
    "network.requirements",
    "requirements without a network and without wheels",
    "2.1",
    "EnableNetworkIsolation",
    *("network_isolation", "requirements", "inputs"),
)
def requirements_without_a_network(context: PlanContext) -> Problems:
    job = context.job
    if job.network_isolation and job.requirements and WHEELHOUSE_CHANNEL not in job.inputs:
        message = f"under network_isolation pip reaches no index; add an input {WHEELHOUSE_CHANNEL!r}"
        yield Problem("requirements", f"{message} with the wheels")


RULES = (request_sizes, reserved_tags, own_variables, half_a_network, requirements_without_a_network)
