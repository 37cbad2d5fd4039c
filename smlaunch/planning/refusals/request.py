"""What a request has no room for, what it may not hold, and what goes together in it."""

from __future__ import annotations

from smlaunch.errors import Problem
from smlaunch.planning.case import Case
from smlaunch.planning.fields import field_of
from smlaunch.planning.refusals.rule import Found, rule
from smlaunch.protocol.names import TAG_ATTEMPT, TAG_JOB, TAG_RUN, TAG_SEGMENT
from smlaunch.protocol.paths import WHEELHOUSE_CHANNEL
from smlaunch.protocol.segment import FROM_STEP, RUN, STOP_AFTER, UNTIL_STEP
from smlaunch.request import PROCESSING, TRAINING, hyperparameter_text
from smlaunch.validate import check

_OWN_TAGS = (TAG_RUN, TAG_SEGMENT, TAG_ATTEMPT, TAG_JOB)
_WAY_OUT = {
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
def sizes(case: Case) -> Found:
    """By the API model's own tables, which the whole request is checked against as well."""
    job = case.job
    tags = {**dict.fromkeys(_OWN_TAGS, ""), **job.tags}
    request = {
        "HyperParameters": {key: hyperparameter_text(value) for key, value in job.hyperparameters.items()},
        "Environment": dict(job.environment),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    if case.is_processing:
        del request["HyperParameters"]
    for violation in check(PROCESSING if case.is_processing else TRAINING, request):
        member = violation.path[0]
        if member not in request or violation.rule == "service":
            continue
        message = violation.problem().message
        if member == "Tags" and violation.rule == "max_items":
            message = f"{len(job.tags)} and smlaunch's own {len(_OWN_TAGS)} are {len(tags)}; {message}"
        yield Problem(field_of(violation.path, request), f"{message}; {_WAY_OUT[str(member)]}")


@rule("tags.reserved", "tags with a reserved prefix", "2.1", "≤50; key 1-128, value 0-256", "tags.*")
def reserved_tags(case: Case) -> Found:
    for key in case.job.tags:
        if key.lower().startswith(_RESERVED_PREFIXES):
            yield Problem(f"tags.{key}", f"{key.split(':')[0]}: is a reserved prefix; choose another key")


@rule(
    "environment.own",
    "variables that the plan sets itself",
    "2.1",
    "key [a-zA-Z_][a-zA-Z0-9_]* ≤512; value ≤512",
    "environment.*",
)
def own_variables(case: Case) -> Found:
    for key in (STOP_AFTER, UNTIL_STEP, FROM_STEP, RUN):
        if key in case.job.environment:
            told = "the plan sets it itself; use limits.segment or segments[].until_step"
            yield Problem(f"environment.{key}", told)


@rule(
    "network.both",
    "subnets without security groups, or the other way round",
    "2.1",
    "SGs 1-5, subnets 1-16",
    "subnets",
    "security_groups",
)
def half_a_network(case: Case) -> Found:
    job = case.job
    if bool(job.subnets) != bool(job.security_groups):
        given, missing = ("subnets", "security_groups") if job.subnets else ("security_groups", "subnets")
        yield Problem(missing, f"it goes together with {given}; give both or neither")


@rule(
    "network.requirements",
    "requirements without a network and without wheels",
    "2.1",
    "EnableNetworkIsolation",
    *("network_isolation", "requirements", "inputs"),
)
def requirements_without_a_network(case: Case) -> Found:
    job = case.job
    if job.network_isolation and job.requirements and WHEELHOUSE_CHANNEL not in job.inputs:
        told = f"under network_isolation pip reaches no index; add an input {WHEELHOUSE_CHANNEL!r}"
        yield Problem("requirements", f"{told} with the wheels")


RULES = (sizes, reserved_tags, own_variables, half_a_network, requirements_without_a_network)
