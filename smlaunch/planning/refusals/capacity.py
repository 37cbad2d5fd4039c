"""Which capacity may be asked for together: spot, preferences, warm pools, a bound on the wait."""

from __future__ import annotations

from smlaunch.catalog import algorithms
from smlaunch.errors import Problem
from smlaunch.job import format_duration, parse_duration
from smlaunch.planning.case import Case, is_accelerated, is_neuron
from smlaunch.planning.refusals.rule import Found, rule

WITHOUT_CHECKPOINTS = 3600
"""Seconds that a spot job may take without checkpoints, and that the service lets it where an algorithm keeps
none: what an interruption throws away."""

LONGEST_KEEP_ALIVE = 21_600
SHORTEST_PENDING, LONGEST_PENDING = 1800, 28 * 86_400

DEFAULT_MAX_RUNTIME = 86_400
"""All in seconds, as the API's model has them."""

_SPOT, _PREFERENCES = "compute.spot", "compute.instance_preferences"
_KEEP_ALIVE, _PENDING = "compute.keep_alive", "limits.max_pending"


@rule(
    "spot.checkpoints",
    "spot for more than an hour without checkpoints",
    "2.6",
    "Without CheckpointConfig an interruption restarts from zero.",
    *("compute.spot", "checkpoints", "limits.max_runtime", "limits.segment", "segments", "strategy"),
    "algorithm",
)
def spot_without_checkpoints(case: Case) -> Found:
    job, limits = case.job, case.job.limits
    chained = limits.segment is not None or bool(job.segments)
    if not job.compute.spot or job.checkpoints is not None or chained or case.is_processing:
        return
    seconds = DEFAULT_MAX_RUNTIME if limits.max_runtime is None else parse_duration(limits.max_runtime)
    algorithm = None if job.algorithm is None else algorithms.find(job.algorithm)
    if seconds > WITHOUT_CHECKPOINTS and algorithm is not None and not algorithm.checkpoints:
        told = f"{job.algorithm} keeps no checkpoints: on spot it may take an hour with its wait"
        yield Problem("limits.max_runtime", f"{told}; shorten it, or take hosts on demand")
    elif seconds > WITHOUT_CHECKPOINTS:
        yield Problem(
            "checkpoints",
            f"a spot job of {format_duration(seconds)} that is interrupted starts from zero without them; "
            f"give an S3 prefix (without one a spot job may take {format_duration(WITHOUT_CHECKPOINTS)})",
        )


@rule(
    "spot.wait",
    "`limits.max_wait` without spot",
    "2.1",
    "MaxWaitTimeInSeconds (spot only, ≥ MaxRuntime)",
    *("compute.spot", "limits.max_wait"),
)
def wait_without_spot(case: Case) -> Found:
    if case.job.limits.max_wait is not None and not case.job.compute.spot:
        told = "it bounds the wait for spot capacity; set compute.spot, or leave it out"
        yield Problem("limits.max_wait", told)


@rule(
    "spot.fallback",
    "a fallback from spot without spot",
    "2.6",
    "Needs EnableManagedSpotTraining + MaxWaitTimeInSeconds ≥ MaxRuntimeInSeconds.",
    *("compute.spot", "compute.on_demand_fallback"),
)
def fallback_without_spot(case: Case) -> Found:
    if case.job.compute.on_demand_fallback and not case.job.compute.spot:
        told = "it stands in for spot capacity that does not come; set compute.spot, or leave it out"
        yield Problem("compute.on_demand_fallback", told)


@rule(
    "preferences.instance-type",
    "preferences beside an instance type",
    "2.1",
    "not with InstanceType, InstanceGroups, InstancePlacementConfig, spot",
    *(_PREFERENCES, "compute.instance_type"),
)
def preferences_with_a_type(case: Case) -> Found:
    compute = case.job.compute
    if compute.instance_preferences and compute.instance_type is not None:
        told = f"compute.instance_type names {compute.instance_type} already; keep one of them"
        yield Problem(_PREFERENCES, told)


@rule(
    "preferences.segment",
    "preferences beside the type of a segment",
    "2.1",
    "not with InstanceType, InstanceGroups, InstancePlacementConfig, spot",
    *(_PREFERENCES, "segments"),
)
def preferences_with_a_segments_type(case: Case) -> Found:
    for index, change in enumerate(case.job.segments):
        if case.job.compute.instance_preferences and change.compute.instance_type is not None:
            told = "it cannot go with compute.instance_preferences; leave it out, or name types per segment"
            yield Problem(f"segments[{index}].compute.instance_type", told)


@rule(
    "preferences.spot",
    "preferences on spot",
    "2.6",
    "Not with InstancePreferences (so no type fallback on spot).",
    *(_PREFERENCES, _SPOT),
)
def preferences_on_spot(case: Case) -> Found:
    if case.job.compute.instance_preferences and case.job.compute.spot:
        told = "it is for on-demand capacity, and compute.spot asks for spot; name one compute.instance_type"
        yield Problem(_PREFERENCES, told)


@rule(
    "preferences.once",
    "a preference named twice",
    "1.2",
    "instance_preferences (client-validated: exclusivity, duplicates, count mode)",
    _PREFERENCES,
)
def preferences_twice(case: Case) -> Found:
    named = case.job.compute.instance_preferences
    for name in dict.fromkeys(named):
        if named.count(name) > 1:
            told = f"{name} may be named once, and is named {named.count(name)} times; leave the others out"
            yield Problem(_PREFERENCES, told)


@rule(
    "preferences.image",
    "preferences of several kinds, which no one image of AWS's suits",
    "1.5",
    "processors, version_aliases, ... processor_in_tag",
    *(_PREFERENCES, "image", "algorithm"),
)
def preferences_of_several_kinds(case: Case) -> Found:
    if case.job.image is not None or case.job.algorithm is not None:
        return
    kinds: dict[str, str] = {}
    for name in case.job.compute.instance_preferences:
        kind = "Neuron" if is_neuron(name) else "GPUs" if is_accelerated(name) else "CPUs"
        kinds.setdefault(kind, name)
    if len(kinds) > 1:
        told = " and ".join(f"{name} ({kind})" for kind, name in kinds.items())
        yield Problem(
            _PREFERENCES,
            f"a job has one image, and AWS has none for {told} together; name types of one kind, or an image",
        )


@rule(
    "warm-pool.spot",
    "a warm pool on spot",
    "2.6",
    "Not with warm pools",
    *(_KEEP_ALIVE, _SPOT),
)
def warm_pool_on_spot(case: Case) -> Found:
    if case.job.compute.keep_alive is not None and case.job.compute.spot:
        told = "spot hosts are not kept in a warm pool; leave it out, or take hosts on demand"
        yield Problem(_KEEP_ALIVE, told)


@rule(
    "warm-pool.preferences",
    "a warm pool with preferences, whose type nobody knows before",
    "2.9",
    "Next job matches if identical: RoleArn, InstanceCount, InstanceType",
    *(_KEEP_ALIVE, _PREFERENCES),
)
def warm_pool_of_preferences(case: Case) -> Found:
    if case.job.compute.keep_alive is not None and case.job.compute.instance_preferences:
        yield Problem(
            _KEEP_ALIVE,
            "a pool serves jobs that name its very instance type, which compute.instance_preferences leaves "
            "open; name one compute.instance_type, or leave the pool out",
        )


@rule(
    "warm-pool.longest",
    "a warm pool for more than six hours",
    "2.1",
    "KeepAlivePeriodInSeconds 0-21600",
    _KEEP_ALIVE,
)
def warm_pool_too_long(case: Case) -> Found:
    stated = case.job.compute.keep_alive
    if stated is not None and parse_duration(stated) > LONGEST_KEEP_ALIVE:
        longest = format_duration(LONGEST_KEEP_ALIVE)
        yield Problem(
            _KEEP_ALIVE, f"{stated} is longer than the {longest} that hosts can be kept; shorten it"
        )


@rule(
    "pending.bounds",
    "a bound on the wait for capacity below 30 minutes or above 28 days",
    "2.1",
    "MaxPendingTimeInSeconds 1800-2419200",
    _PENDING,
)
def pending_out_of_bounds(case: Case) -> Found:
    stated = case.job.limits.max_pending
    if stated is not None and not SHORTEST_PENDING <= parse_duration(stated) <= LONGEST_PENDING:
        least, most = format_duration(SHORTEST_PENDING), format_duration(LONGEST_PENDING)
        yield Problem(
            _PENDING, f"{stated} is not between {least} and {most}, as the service wants it; change it"
        )


@rule(
    "pending.accelerator",
    "a bound on the wait for capacity of types without an accelerator, where it has no effect",
    "2.1",
    "(accelerated types only)",
    *(_PENDING, "compute.instance_type", _PREFERENCES, "strategy"),
)
def pending_without_accelerator(case: Case) -> Found:
    if case.job.limits.max_pending is None or case.is_processing or any(map(is_accelerated, case.types)):
        return
    have = f"{case.types[0]} has none" if len(case.types) == 1 else f"{', '.join(case.types)} have none"
    told = f"it has an effect on types with an accelerator only, and {have}; leave it out"
    yield Problem(_PENDING, told)


RULES = (
    spot_without_checkpoints,
    wait_without_spot,
    fallback_without_spot,
    preferences_with_a_type,
    preferences_with_a_segments_type,
    preferences_on_spot,
    preferences_twice,
    preferences_of_several_kinds,
    warm_pool_on_spot,
    warm_pool_of_preferences,
    warm_pool_too_long,
    pending_out_of_bounds,
    pending_without_accelerator,
)
