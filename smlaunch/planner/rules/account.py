"""Rules about the account's quotas, and about the types that exist and that a region offers."""

from __future__ import annotations

from collections.abc import Iterator

from smlaunch.catalog import instances, regions
from smlaunch.catalog.instances import InstanceType
from smlaunch.catalog.quotas import DEFAULT_HOSTS_PER_JOB, HOSTS_PER_JOB_QUOTA, WARM_POOL_QUOTA
from smlaunch.catalog.type_families import family_of
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import UNKNOWN_ACCOUNT, UNKNOWN_ROLE
from smlaunch.planner.plan import Reason
from smlaunch.planner.plan_context import (
    PlanContext,
    PlanWarning,
    instance_quota_pattern,
    is_accelerated,
    relevant_quotas,
    stated_instance_types,
    stated_job_kind,
)
from smlaunch.planner.rules.data import DEFAULT_BUCKET, stated_buckets
from smlaunch.planner.rules.machines import RETIRED_FAMILIES
from smlaunch.planner.rules.rule import Findings, Problems, rule

_RAISE_QUOTA_HINT = "ask for more in the Service Quotas console (Amazon SageMaker), or take another type"


@rule(
    "quotas.instances",
    summary="more hosts than the account's quota for the type",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/distributed-data-parallel-support.html",
    quote="'ml.p3dn.24xlarge for training job usage' is 0 Instances (the name for spot is not confirmed)",
    fields=(
        "compute.hosts",
        "compute.instance_type",
        "compute.instance_preferences",
        "compute.instance_groups",
        "compute.spot",
        "segments",
    ),
    facts=("quotas",),
)
def reject_more_hosts_than_quota(context: PlanContext) -> Problems:
    """Yield a problem if the job takes more hosts than the account's quotas for its instance types allow.
    Quotas that could not be read are assumed to suffice; for some kinds of jobs they are not read.
    ``context.hosts``: of the largest segment."""
    if not context.job_kind.has_quotas:
        return
    # The types whose quota is too small, with the number of hosts that it allows.
    max_count_by_type, compute = _insufficient_quotas(context), context.job.compute
    if compute.instance_preferences:
        # One sufficient quota is enough: the service skips the other types.
        if len(max_count_by_type) == len(set(compute.instance_preferences)):
            counts_text = "; ".join(f"{name}: {max_count}" for name, max_count in max_count_by_type.items())
            message = (
                f"the account's quotas are too small for {context.hosts} of any ({counts_text}); "
                f"{_RAISE_QUOTA_HINT}"
            )
            yield Problem("compute.instance_preferences", message)
        return
    for instance_type, max_count in max_count_by_type.items():
        # Such as "ml.m5.xlarge for training job usage".
        quota_name = instance_quota_pattern(context.job, context.job_kind).format(instance_type)
        if max_count == 0:
            field = "compute.spot" if compute.spot else compute.field_of_types
            on_demand_hint = ", or hosts on demand" if compute.spot else ""
            yield Problem(
                field, f"the account's quota {quota_name!r} is 0; {_RAISE_QUOTA_HINT}{on_demand_hint}"
            )
        else:
            host_count = _hosts_of_type(context, instance_type)
            message = f"the account's quota {quota_name!r} is {max_count}, and the job takes {host_count}"
            field = "compute.instance_groups" if compute.instance_groups else "compute.hosts"
            yield Problem(field, f"{message}; take fewer hosts, or {_RAISE_QUOTA_HINT}")


def _hosts_of_type(context: PlanContext, instance_type: str) -> int:
    """Return how many hosts of a type the job takes: those of the groups of the type, or all."""
    groups = context.job.compute.instance_groups
    return sum(group.hosts for group in groups if group.type == instance_type) or context.hosts


@rule(
    "quotas.hosts",
    summary="more hosts than the account's quota for one job",
    source="https://docs.aws.amazon.com/general/latest/gr/sagemaker.html",
    quote='"Number of instances for a training job" (not confirmed: the page could not be opened)',
    fields=("compute.hosts", "segments"),
    facts=("quotas",),
)
def reject_more_hosts_than_per_job_quota(context: PlanContext) -> Problems:
    quota_name = HOSTS_PER_JOB_QUOTA.format(context.job_kind.noun)
    limit = context.quotas.get(quota_name)
    if limit is not None and context.hosts > limit:
        message = f"the account's quota {quota_name!r} is {int(limit)}, and the job takes {context.hosts}"
        yield Problem("compute.hosts", f"{message}; take fewer hosts of a larger type, or ask for more")


@rule(
    "quotas.read",
    phase="advise",
    summary="the account's quotas that the job needs: their values, or that they are assumed to suffice",
    source="https://docs.aws.amazon.com/sagemaker/latest/dg/distributed-data-parallel-support.html",
    quote="'ml.p3dn.24xlarge for training job usage' is 0 Instances (that for warm pools is not confirmed)",
    fields=("compute", "segments", "strategy"),
    facts=("quotas",),
)
def report_quotas(context: PlanContext) -> Findings:
    """Nothing for local jobs, and for kinds of jobs whose quotas are not read. Too small a quota for a job
    with one instance type is not reported here: a rule rejects the job."""
    if context.facts.target != "aws" or not context.job_kind.has_quotas:
        return
    if context.facts.account_problem is not None:
        return  # one warning says all that was not asked
    # Why the quotas could not be read; None if they were.
    if context.facts.quotas_problem is not None:
        yield from _report_unreadable_quotas(context, context.facts.quotas_problem)
        return
    yield from _report_quota_values(context)
    yield from _warn_of_empty_warm_pools(context)
    if context.job.compute.instance_preferences:
        yield from _warn_of_skipped_preferences(context)


@rule(
    "quotas.stored",
    phase="advise",
    summary="quotas that were read before, where the account is not asked now",
    source="docs/planner.md",
    quote="smlaunch catalog update",
    fields=("compute", "segments", "strategy"),
    facts=("quotas",),
)
def report_stored_quotas(context: PlanContext) -> Findings:
    """A quota may have been raised since it was read: too small a one is a warning, and no problem."""
    facts, stored = context.facts, context.facts.region_catalog
    is_unread = facts.account_problem is not None or facts.quotas_problem is not None
    if stored is None or not is_unread or facts.target != "aws":
        return
    if facts.account not in (UNKNOWN_ACCOUNT, stored.account):
        return
    for quota_name in relevant_quotas(context.job, context.job_kind):
        value = stored.quotas.get(quota_name)
        if value is None:
            continue
        text = (
            f"the quota {quota_name!r} of account {stored.account} was {value:g} on {stored.quotas_read_on}, "
            f"when `smlaunch catalog update` read it; the job takes {_hosts_text(context)}."
        )
        if value < context.hosts:
            yield PlanWarning(f"compute.hosts: {text}")
        else:
            yield Reason("quotas.stored", text[0].upper() + text[1:])


def _report_unreadable_quotas(context: PlanContext, problem: str) -> Findings:
    """Yield that the quotas are assumed to suffice: as a warning for types with accelerators, as the default
    quota of many is 0, otherwise as a reason. ``problem``: why the quotas could not be read."""
    notes = []
    if any(map(is_accelerated, context.instance_types)):
        notes.append("compute.instance_type: most accounts start with a quota of 0 for types with GPUs")
    if context.hosts > DEFAULT_HOSTS_PER_JOB:
        notes.append(f"compute.hosts: {_default_hosts_text(context)}")
    unread = f"quotas could not be read ({problem})"
    for note in notes:
        yield PlanWarning(
            f"{note}. This account's {unread}: unless they were raised, the service rejects the job."
        )
    if not notes:
        assumption = f"{_hosts_text(context)} is assumed to be within them"
        yield Reason("quotas.assumed", f"The account's {unread}: {assumption}.")


def _default_hosts_text(context: PlanContext) -> str:
    quota_name = HOSTS_PER_JOB_QUOTA.format(context.job_kind.noun)
    return (
        f"an account starts with at most {DEFAULT_HOSTS_PER_JOB} hosts in one job ({quota_name!r}): "
        "take fewer, or ask for more in the Service Quotas console"
    )


def _report_quota_values(context: PlanContext) -> Findings:
    """Yield a reason with the value of each quota that limits the job. A value of None: Service Quotas has no
    quota of that name."""
    relevant_names = relevant_quotas(context.job, context.job_kind)
    for quota_name in relevant_names:
        if quota_name not in context.facts.quotas:
            # The plan has chosen another kind of job than the one whose quotas were read.
            if stated_job_kind(context.job.strategy) is not context.job_kind:
                yield Reason("quotas.assumed", f"{quota_name!r} was not read: it is assumed to suffice.")
            continue
        quota_value = context.facts.quotas[quota_name]
        if quota_value is None:
            yield Reason(
                "quotas.assumed", f"Service Quotas lists no {quota_name!r}: it is assumed to suffice."
            )
        else:
            yield Reason(
                "quotas.read",
                f"The account's quota {quota_name!r} is {quota_value:g}; the job takes "
                f"{_hosts_text(context)}.",
            )


def _warn_of_empty_warm_pools(context: PlanContext) -> Findings:
    """Yield a warning for each instance type whose hosts are not kept for a next job, as the account's quota
    for that is 0."""
    for instance_type in context.instance_types:
        warm_pool_quota = WARM_POOL_QUOTA.format(instance_type)
        if context.facts.quotas.get(warm_pool_quota) == 0:
            yield PlanWarning(
                f"compute.keep_alive: the account's quota {warm_pool_quota!r} is 0: no host stays in the "
                "pool, and the service does not report that."
            )


def _warn_of_skipped_preferences(context: PlanContext) -> Findings:
    """Yield a warning for each preferred instance type that the service skips, as its quota is too small."""
    for instance_type, max_count in _insufficient_quotas(context).items():
        yield PlanWarning(
            f"{instance_type} is skipped: the account may have {max_count} of it; the job takes "
            f"{context.hosts}."
        )


@rule(
    "account.unknown",
    phase="advise",
    summary="what a plan without AWS credentials could not ask",
    source="docs/first-aws-job.md",
    quote="what a plan without an account does not know",
    fields=("role", "compute", "segments", "inputs", "checkpoints", "strategy"),
    facts=("account",),
)
def report_unknown_account(context: PlanContext) -> Findings:
    facts = context.facts
    if facts.account_problem is None:
        return
    yield PlanWarning(
        f"No account was asked ({facts.account_problem}). So the plan does not know: "
        f"{'; '.join(_unasked_things(context))}."
    )


def _unasked_things(context: PlanContext) -> Iterator[str]:
    """Yield clauses about what only the account knows, each with the assumption that stands for it."""
    facts = context.facts
    if facts.account == UNKNOWN_ACCOUNT:
        yield f"the account ({UNKNOWN_ACCOUNT} stands for it, also in the bucket {facts.bucket})"
    yield f"whether the bucket {facts.bucket} exists"
    is_role_known = UNKNOWN_ROLE not in (facts.role or "")
    role_text = "assumed" if is_role_known else f"{facts.role} stands for it"
    yield f"whether there is the execution role ({role_text})"
    quota_names = relevant_quotas(context.job, context.job_kind)
    if quota_names:
        quotas_text = quota_names[0] if len(quota_names) == 1 else f"{len(quota_names)} quotas"
        note = f", though {_default_hosts_text(context)}" if context.hosts > DEFAULT_HOSTS_PER_JOB else ""
        yield f"the account's quotas ({quotas_text}): they are assumed to suffice{note}"
    unlisted_inputs = [name for name, channel in context.job.inputs.items() if channel.is_in_s3]
    if unlisted_inputs:
        yield f"whether there is data for {', '.join(unlisted_inputs)}, and how much"
    if context.job.checkpoints is not None and context.job.checkpoints.uri is not None:
        yield f"whether there are checkpoints at {context.job.checkpoints.uri}"


def _hosts_text(context: PlanContext) -> str:
    """Return the hosts that the job takes: ``2 x ml.m5.xlarge or ml.m5.2xlarge``."""
    groups_text = context.job.compute.groups_text
    return groups_text or f"{context.hosts} x {' or '.join(context.instance_types)}"


def _insufficient_quotas(context: PlanContext) -> dict[str, int]:
    """Return, for each instance type of the job whose quota is too small for its hosts, the number of hosts
    that the quota allows."""
    quota_pattern = instance_quota_pattern(context.job, context.job_kind)
    limit_by_type = {
        name: context.facts.quotas.get(quota_pattern.format(name)) for name in context.instance_types
    }
    return {
        name: int(limit)
        for name, limit in limit_by_type.items()
        if limit is not None and limit < _hosts_of_type(context, name)
    }


_MAX_NAMED = 6
"""Regions or types that a sentence names."""


@rule(
    "instance.size",
    summary="sizes that a known family of instance types does not have",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ResourceConfig.html",
    quote="InstanceType, valid values",
    fields=("compute.instance_type", "compute.instance_preferences", "segments"),
    may_be_allowed=True,
    allowed_when="if AWS offers it today",
)
def reject_unknown_size(context: PlanContext) -> Problems:
    """A family that the catalog does not know is newer than it, and accepted. Hosts of this machine only
    record the type."""
    if context.facts.target != "aws":
        return
    for field, name in stated_instance_types(context.job):
        if instances.find_instance_type(name) is None and instances.types_of_family(name):
            yield Problem(
                field,
                f"there is no {name} in the table of {instances.catalog_month()}; the nearest sizes are "
                f"{', '.join(instances.near_sizes(name))}",
            )


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
    unlisted_text = regions.unlisted_region_text(region)
    if unlisted_text is not None:
        sentence = unlisted_text if unlisted_text.endswith("?") else f"{unlisted_text}."
        yield PlanWarning(f"region: {sentence} AWS may have opened it since then.")
    prices = context.prices
    for instance_type in context.instance_types:
        if prices.has_price_list:
            if prices.find(instance_type) is None:
                yield PlanWarning(
                    f"compute.instance_type: {prices.unknown_text(instance_type)}: SageMaker probably does "
                    "not offer it there."
                )
        elif regions.is_type_missing(instance_type, region):
            yield PlanWarning(_describe_missing_type(instance_type, region))


def _describe_missing_type(instance_type: str, region: str) -> str:
    """Return a warning about a type that EC2 does not offer in the region, with the regions that have it and
    similar types of this region."""
    ec2_type = instance_type.removeprefix("ml.")
    continent = region.partition("-")[0]
    regions_with_type = regions.regions_with_type(instance_type) or ()
    other_regions = tuple(sorted(regions_with_type, key=lambda other: other.partition("-")[0] != continent))
    sentence = (
        f"compute.instance_type: the catalog ({regions.table_month()}) has no {ec2_type} of EC2 in {region}, "
        f"so that SageMaker probably does not offer it there: name another region or type. "
        f"{_list_names(other_regions)} "
        f"{'has' if len(other_regions) == 1 else 'have'} it"
    )
    similar_types = _similar_types_in_region(instance_type, region)
    return f"{sentence}; {region} has {_list_names(similar_types)}." if similar_types else f"{sentence}."


def _similar_types_in_region(instance_type: str, region: str) -> tuple[str, ...]:
    """Return types of the region with at least as many accelerators of the same maker, those with the same
    accelerators first; without accelerators, types with at least as many processors and as much memory."""
    wanted = instances.find_instance_type(instance_type)
    if wanted is None:
        return ()
    candidates = [
        candidate
        for candidate in instances.known_types().values()
        if _is_offered(candidate, region) and _can_replace(candidate, wanted)
    ]
    candidates.sort(
        key=lambda candidate: (
            candidate.accelerator != wanted.accelerator,
            *(candidate.accelerators, candidate.vcpu, candidate.memory_gib),
        )
    )
    return tuple(candidate.name for candidate in candidates)[:3]


def _is_offered(instance: InstanceType, region: str) -> bool:
    """Return whether EC2 offers the type in the region, by the catalog, and has not retired it."""
    is_type_listed = regions.regions_with_type(instance.name) is not None
    is_retired = family_of(instance.name).startswith(RETIRED_FAMILIES)
    return is_type_listed and not regions.is_type_missing(instance.name, region) and not is_retired


def _can_replace(instance: InstanceType, wanted: InstanceType) -> bool:
    """Return whether the instance type has as many accelerators as the wanted one, of the same maker; of
    types without accelerators, as many processors and as much memory."""
    if instance.is_neuron != wanted.is_neuron:
        return False
    if wanted.accelerators:
        return instance.accelerators >= wanted.accelerators
    return (
        not instance.accelerators
        and instance.vcpu >= wanted.vcpu
        and instance.memory_gib >= wanted.memory_gib
    )


def _list_names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


@rule(
    "buckets.account",
    summary="results in the default bucket of another account, by its name, without a stated owner",
    source="https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html",
    quote="you cannot pass a role of another account (not confirmed: the page could not be opened)",
    fields=("checkpoints", "output", "bucket_owner", "role"),
    facts=("account",),
)
def reject_default_bucket_of_other_account(context: PlanContext) -> Problems:
    """A bucket of another account may be meant; then the job says whose it is (``bucket_owner``)."""
    account = context.facts.account
    if context.facts.target != "aws" or account == UNKNOWN_ACCOUNT:
        return
    buckets_with_owner = {owner.bucket for owner in context.stated_bucket_owners}
    for field, bucket in stated_buckets(context.job):
        match = DEFAULT_BUCKET.fullmatch(bucket)
        is_checked = not field.startswith("inputs.") and bucket not in buckets_with_owner
        if match is not None and is_checked and match["account"] != account:
            owner_field = "bucket_owner" if field == "output" else "checkpoints.bucket_owner"
            yield Problem(
                field,
                f"{bucket} is of account {match['account']} by its name, and the job runs in account "
                f"{account} with its role; take a role and a bucket of one account, or state {owner_field}: "
                f"{match['account']}",
            )


@rule(
    "buckets.owner",
    summary="an account for a bucket that it cannot own",
    source="https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucket-owner-condition.html",
    quote="S3 refuses a request whose ExpectedBucketOwner is not the bucket's owner.",
    fields=("bucket_owner", "inputs.*", "checkpoints", "output"),
    facts=("account",),
)
def reject_contradicting_bucket_owners(context: PlanContext) -> Problems:
    """Yield a problem for each account that the job states as the owner of a bucket, if it states another one
    for the same bucket, or if what the field is about is not in a bucket."""
    # By bucket: what says whose it is, and the account. The first statement counts as the true one.
    owner_by_bucket: dict[str, tuple[str, str]] = {}
    if context.facts.account:
        owner_by_bucket[context.facts.bucket] = ("it is your own default bucket", context.facts.account)
    for field, bucket, account in context.stated_bucket_owners:
        if bucket is None:
            # The section of the job that the field belongs to, for the message.
            section = field.rpartition(".")[0] or "output"
            subject = "data" if field.startswith("inputs.") else section
            yield Problem(
                field, f"it is about a bucket of another account, and {subject} names none; leave it out"
            )
            continue
        evidence, known_account = owner_by_bucket.setdefault(bucket, (f"{field} says", account))
        if known_account != account:
            yield Problem(
                field,
                f"{bucket} cannot belong to {account}: {evidence} {known_account}; a bucket has one owner",
            )
