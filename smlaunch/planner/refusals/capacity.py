"""Rules about capacity: spot, preferences, warm pools, maximum waits."""

from __future__ import annotations

from smlaunch.catalog import algorithms
from smlaunch.errors import Problem
from smlaunch.job.model import format_duration, parse_duration
from smlaunch.planner.plan_context import PlanContext, is_accelerated, is_neuron
from smlaunch.planner.refusals.rule import Problems, rule

MAX_SECONDS_WITHOUT_CHECKPOINTS = 3600
"""Seconds that a spot job may run without checkpoints, and the service's limit for an algorithm without
them: what an interruption loses."""

MAX_KEEP_ALIVE_SECONDS = 21_600
MIN_PENDING_SECONDS, MAX_PENDING_SECONDS = 1800, 28 * 86_400

DEFAULT_MAX_RUNTIME = 86_400
"""All in seconds, from the API model."""

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
def spot_without_checkpoints(context: PlanContext) -> Problems:
    """Yield a problem if a spot job is so long that it needs checkpoints, and has none."""
    job, limits = context.job, context.job.limits
    is_chain = limits.segment is not None or bool(job.segments)
    if not job.compute.spot or job.checkpoints is not None or is_chain or context.is_processing:
        return
    seconds = DEFAULT_MAX_RUNTIME if limits.max_runtime is None else parse_duration(limits.max_runtime)
    algorithm = None if job.algorithm is None else algorithms.find_algorithm(job.algorithm)
    if seconds > MAX_SECONDS_WITHOUT_CHECKPOINTS and algorithm is not None and not algorithm.checkpoints:
        message = f"{job.algorithm} saves no checkpoints: on spot it may take an hour including its wait"
        yield Problem("limits.max_runtime", f"{message}; shorten it, or take hosts on demand")
    elif seconds > MAX_SECONDS_WITHOUT_CHECKPOINTS:
        yield Problem(
            "checkpoints",
            f"a spot job of {format_duration(seconds)} that is interrupted starts from zero without them; "
            "give an S3 prefix (without one a spot job may take "
            f"{format_duration(MAX_SECONDS_WITHOUT_CHECKPOINTS)})",
        )


@rule(
    "spot.wait",
    "`limits.max_wait` without spot",
    "2.1",
    "MaxWaitTimeInSeconds (spot only, ≥ MaxRuntime)",
    *("compute.spot", "limits.max_wait"),
)
def wait_without_spot(context: PlanContext) -> Problems:
    if context.job.limits.max_wait is not None and not context.job.compute.spot:
        message = "it bounds the wait for spot capacity; set compute.spot, or leave it out"
        yield Problem("limits.max_wait", message)


@rule(
    "spot.fallback",
    "a fallback from spot without spot",
    "2.6",
    "Needs EnableManagedSpotTraining + MaxWaitTimeInSeconds ≥ MaxRuntimeInSeconds.",
    *("compute.spot", "compute.on_demand_fallback"),
)
def fallback_without_spot(context: PlanContext) -> Problems:
    if context.job.compute.on_demand_fallback and not context.job.compute.spot:
        message = "it replaces spot capacity that is not available; set compute.spot, or leave it out"
        yield Problem("compute.on_demand_fallback", message)


@rule(
    "preferences.instance-type",
    "preferences beside an instance type",
    "2.1",
    "not with InstanceType, InstanceGroups, InstancePlacementConfig, spot",
    *(_PREFERENCES, "compute.instance_type"),
)
def preferences_with_a_type(context: PlanContext) -> Problems:
    compute = context.job.compute
    if compute.instance_preferences and compute.instance_type is not None:
        message = f"compute.instance_type names {compute.instance_type} already; keep one of them"
        yield Problem(_PREFERENCES, message)


@rule(
    "preferences.segment",
    "preferences beside the type of a segment",
    "2.1",
    "not with InstanceType, InstanceGroups, InstancePlacementConfig, spot",
    *(_PREFERENCES, "segments"),
)
def preferences_with_a_segments_type(context: PlanContext) -> Problems:
    for index, change in enumerate(context.job.segments):
        if context.job.compute.instance_preferences and change.compute.instance_type is not None:
            message = (
                "it cannot go with compute.instance_preferences; leave it out, or name types per segment"
            )
            yield Problem(f"segments[{index}].compute.instance_type", message)


@rule(
    "preferences.spot",
    "preferences on spot",
    "2.6",
    "Not with InstancePreferences (so no type fallback on spot).",
    *(_PREFERENCES, _SPOT),
)
def preferences_on_spot(context: PlanContext) -> Problems:
    if context.job.compute.instance_preferences and context.job.compute.spot:
        message = (
            "it is for on-demand capacity, and compute.spot asks for spot; name one compute.instance_type"
        )
        yield Problem(_PREFERENCES, message)


@rule(
    "preferences.once",
    "a preference named twice",
    "1.2",
    "instance_preferences (client-validated: exclusivity, duplicates, count mode)",
    _PREFERENCES,
)
def preferences_twice(context: PlanContext) -> Problems:
    preferences = context.job.compute.instance_preferences
    for name in dict.fromkeys(preferences):
        if preferences.count(name) > 1:
            message = (
                f"{name} may be named once, and is named {preferences.count(name)} times; leave the others "
                "out"
            )
            yield Problem(_PREFERENCES, message)


@rule(
    "preferences.image",
    "preferences of several kinds, for which AWS has no common image",
    "1.5",
    "processors, version_aliases, ... processor_in_tag",
    *(_PREFERENCES, "image", "algorithm"),
)
def preferences_of_several_kinds(context: PlanContext) -> Problems:
    """Yield a problem if the preferred instance types need different images."""
    if context.job.image is not None or context.job.algorithm is not None:
        return
    type_by_kind: dict[str, str] = {}
    for name in context.job.compute.instance_preferences:
        kind = "Neuron" if is_neuron(name) else "GPUs" if is_accelerated(name) else "CPUs"
        type_by_kind.setdefault(kind, name)
    if len(type_by_kind) > 1:
        types_text = " and ".join(f"{name} ({kind})" for kind, name in type_by_kind.items())
        yield Problem(
            _PREFERENCES,
            f"a job has one image, and AWS has none for {types_text} together; name types of one kind, or "
            "an image",
        )


@rule(
    "warm-pool.spot",
    "a warm pool on spot",
    "2.6",
    "Not with warm pools",
    *(_KEEP_ALIVE, _SPOT),
)
def warm_pool_on_spot(context: PlanContext) -> Problems:
    if context.job.compute.keep_alive is not None and context.job.compute.spot:
        message = "spot hosts cannot stay in a warm pool; leave it out, or use hosts on demand"
        yield Problem(_KEEP_ALIVE, message)


@rule(
    "warm-pool.preferences",
    "a warm pool with preferences, which leave the type open",
    "2.9",
    "Next job matches if identical: RoleArn, InstanceCount, InstanceType",
    *(_KEEP_ALIVE, _PREFERENCES),
)
def warm_pool_of_preferences(context: PlanContext) -> Problems:
    if context.job.compute.keep_alive is not None and context.job.compute.instance_preferences:
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
def warm_pool_too_long(context: PlanContext) -> Problems:
    keep_alive = context.job.compute.keep_alive
    if keep_alive is not None and parse_duration(keep_alive) > MAX_KEEP_ALIVE_SECONDS:
        longest_text = format_duration(MAX_KEEP_ALIVE_SECONDS)
        yield Problem(
            _KEEP_ALIVE,
            f"{keep_alive} is longer than the {longest_text} that hosts can stay in a pool; shorten it",
        )


@rule(
    "pending.bounds",
    "a bound on the wait for capacity below 30 minutes or above 28 days",
    "2.1",
    "MaxPendingTimeInSeconds 1800-2419200",
    _PENDING,
)
def pending_out_of_bounds(context: PlanContext) -> Problems:
    max_pending = context.job.limits.max_pending
    if (
        max_pending is not None
        and not MIN_PENDING_SECONDS <= parse_duration(max_pending) <= MAX_PENDING_SECONDS
    ):
        min_text, max_text = format_duration(MIN_PENDING_SECONDS), format_duration(MAX_PENDING_SECONDS)
        yield Problem(
            _PENDING,
            f"{max_pending} is not between {min_text} and {max_text}, as the service requires; change it",
        )


@rule(
    "pending.accelerator",
    "a bound on the wait for capacity of types without an accelerator, where it has no effect",
    "2.1",
    "(accelerated types only)",
    *(_PENDING, "compute.instance_type", _PREFERENCES, "strategy"),
)
def pending_without_accelerator(context: PlanContext) -> Problems:
    if (
        context.job.limits.max_pending is None
        or context.is_processing
        or any(map(is_accelerated, context.instance_types))
    ):
        return
    types_text = (
        f"{context.instance_types[0]} has none"
        if len(context.instance_types) == 1
        else f"{', '.join(context.instance_types)} have none"
    )
    message = f"it has an effect on types with an accelerator only, and {types_text}; leave it out"
    yield Problem(_PENDING, message)


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
