"""Makes a plan: takes each decision once, in order, with its reason; then checks the request it led to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from smlaunch.errors import JobError
from smlaunch.job import Job, format_duration, parse_duration
from smlaunch.planning.choose import choose_image, choose_instance_type, choose_processes, choose_strategy
from smlaunch.planning.cost import plan_cost
from smlaunch.planning.fields import dotted, field_of, members
from smlaunch.planning.identity import job_hash
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Plan, Segment, Task
from smlaunch.planning.storage import Layout, plan_inputs, plan_launch_channels, plan_volume
from smlaunch.planning.surroundings import Surroundings
from smlaunch.protocol.names import (
    RUN_LIMIT,
    TAG_ATTEMPT,
    TAG_JOB,
    TAG_RUN,
    TAG_SEGMENT,
    TaskName,
    is_run_id,
)
from smlaunch.protocol.paths import WHEELHOUSE_CHANNEL
from smlaunch.request import ENTRYPOINT, TrainingTask, create_training_job
from smlaunch.strategies import load
from smlaunch.strategies.base import Setting
from smlaunch.validate import check

OPERATION = "CreateTrainingJob"
DEFAULT_MAX_RUNTIME = 86400
LONGEST_RUNTIME = 28 * 86400
"""Seconds; both from the API reference of StoppingCondition."""

TOOLKIT_PREFIX = "sagemaker_"

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/")

_LEFT_TO_THE_SERVICE = {("compute.instance_type", "enum")}
"""The service knows new instance types before any client's tables do; the plan has warned."""


def make_plan(job: Job, surroundings: Surroundings, run_id: str) -> Plan:
    """Decides everything. Pure: the same arguments give the same plan.

    Raises JobError listing every problem of the job in these surroundings.
    """
    notes = Notes()
    _check_surroundings(job, surroundings, run_id, notes)
    strategy = load(choose_strategy(job, surroundings, notes))
    instance = choose_instance_type(job, notes)
    per_host = choose_processes(job, strategy.name, instance, surroundings, notes)
    image = choose_image(job, instance, surroundings, notes)
    max_runtime = _max_runtime(job, notes)
    max_wait = _max_wait(job, max_runtime, notes)
    _check_network(job, notes)
    _check_names(job, notes)

    setting = Setting(
        entry=surroundings.source.entry,
        args=job.args,
        hosts=job.compute.hosts,
        per_host=per_host,
        environment=frozenset(job.environment),
        requirements=job.requirements,
        max_runtime=max_runtime,
        hang=None if job.limits.hang is None else parse_duration(job.limits.hang),
        launcher=job.launcher,
        imports=surroundings.script.imports,
        reads_resource_config=surroundings.script.reads_resource_config,
    )
    if setting.hang is None and strategy.hang is not None:
        notes.because(
            "limit.hang",
            f"The job states no limits.hang; a host whose ranks print nothing and use no CPU for "
            f"{format_duration(strategy.hang)} is taken to hang, and fails with the stacks of its ranks.",
        )
    for problem in strategy.check_all(setting):
        notes.refuse(problem.path, problem.message)
    for sentence in strategy.advice(setting):
        notes.warn(sentence + ".")

    name = TaskName(run_id, segment=1, attempt=1)
    spec = strategy.launch_spec(setting)
    layout = Layout(surroundings.bucket, run_id)
    channels, uploads = plan_inputs(job, surroundings, layout, notes)
    own_channels, own_uploads = plan_launch_channels(str(name), spec, surroundings, layout)
    digest = job_hash(job, surroundings)
    task = TrainingTask(
        name=str(name),
        role=surroundings.role or "",
        image=image,
        entrypoint=ENTRYPOINT,
        hyperparameters=job.hyperparameters,
        channels=(*channels, *own_channels),
        output=job.output or layout.output,
        instance_type=instance[0],
        hosts=job.compute.hosts,
        volume_gb=plan_volume(job, instance, surroundings, notes),
        max_runtime=max_runtime,
        spot=job.compute.spot,
        max_wait=max_wait,
        checkpoints=None
        if job.checkpoints is None
        else (job.checkpoints.uri or layout.checkpoints, job.checkpoints.local_path),
        environment=job.environment,
        network_isolation=job.network_isolation,
        encrypt_traffic=job.encrypt_traffic,
        subnets=job.subnets,
        security_groups=job.security_groups,
        tags={**job.tags, **_tags(name, digest)},
    )
    request = create_training_job(task)
    cost = plan_cost(job, instance, max_runtime, surroundings, notes)
    _check_request(request, notes)
    _tell_honesty(job, request, surroundings, notes)
    if notes.problems:
        raise JobError(notes.problems)
    return Plan(
        run=run_id,
        job=job,
        job_hash=digest,
        surroundings=surroundings,
        strategy=strategy.name,
        hosts=job.compute.hosts,
        processes_per_host=per_host,
        instance_type=instance[0],
        image=image,
        reasons=tuple(notes.reasons),
        warnings=tuple(notes.warnings),
        tasks=(Task(str(name), name.segment, name.attempt, OPERATION, request, spec),),
        uploads=(*own_uploads, *uploads),
        segments=(Segment(1, max_runtime),),
        cost=cost,
    )


def _check_surroundings(job: Job, surroundings: Surroundings, run_id: str, notes: Notes) -> None:
    script, source = surroundings.script, surroundings.source
    if not is_run_id(run_id):
        notes.refuse(
            "name",
            f"{run_id!r} cannot name a run: lower-case letters, digits and single dashes between them, "
            f"{RUN_LIMIT} characters at most",
        )
    if script.problem is not None:
        notes.refuse("entry", script.problem)
    elif not script.exists:
        notes.refuse("entry", f"{job.entry} does not exist; check the path")
    if source.problem is not None:
        notes.refuse("source", source.problem)
    if job.requirements is not None and not source.has_requirements:
        notes.refuse(
            "requirements", f"{job.requirements!r} is not in {source.root}; it is relative to the source"
        )
    if surroundings.role is None:
        notes.refuse("role", surroundings.role_problem or "no execution role was found; give its ARN")
    elif not _ROLE_ARN.match(surroundings.role):
        notes.refuse(
            "role",
            f"{surroundings.role!r} is not a role's ARN; it looks like arn:aws:iam::123456789012:role/NAME",
        )


def _max_runtime(job: Job, notes: Notes) -> int:
    if job.limits.max_runtime is None:
        notes.because("limit.default", "The job states no limits.max_runtime; 24h is the API's default.")
        return DEFAULT_MAX_RUNTIME
    seconds = parse_duration(job.limits.max_runtime)
    if seconds > LONGEST_RUNTIME:
        notes.refuse(
            "limits.max_runtime",
            f"{job.limits.max_runtime} is longer than the 28d a training job may run; take 28d or less and "
            "continue from checkpoints",
        )
    return min(seconds, LONGEST_RUNTIME)


def _max_wait(job: Job, max_runtime: int, notes: Notes) -> int | None:
    """Seconds; None without spot."""
    stated = None if job.limits.max_wait is None else parse_duration(job.limits.max_wait)
    if not job.compute.spot:
        if stated is not None:
            notes.refuse(
                "limits.max_wait", "it bounds the wait for spot capacity; set compute.spot, or leave it out"
            )
        return None
    if job.checkpoints is None:
        notes.refuse(
            "checkpoints", "a spot job that is interrupted starts from zero without them; give an S3 prefix"
        )
    if stated is None:
        notes.because(
            "spot.wait",
            f"The job states no limits.max_wait: {format_duration(2 * max_runtime)}, twice the training "
            "time, for training and waiting for capacity together.",
        )
        return 2 * max_runtime
    if stated < max_runtime:
        notes.refuse(
            "limits.max_wait",
            f"{job.limits.max_wait} is shorter than the training time of {format_duration(max_runtime)} that "
            "it includes; make it longer",
        )
    return stated


def _check_network(job: Job, notes: Notes) -> None:
    if bool(job.subnets) != bool(job.security_groups):
        given, missing = ("subnets", "security_groups") if job.subnets else ("security_groups", "subnets")
        notes.refuse(missing, f"it goes together with {given}; give both or neither")
    if job.network_isolation and job.requirements and WHEELHOUSE_CHANNEL not in job.inputs:
        notes.refuse(
            "requirements",
            "under network_isolation pip reaches no index; add an input "
            f"{WHEELHOUSE_CHANNEL!r} with the wheels",
        )


def _check_names(job: Job, notes: Notes) -> None:
    for key in job.hyperparameters:
        if key.startswith(TOOLKIT_PREFIX):
            notes.warn(
                f"hyperparameters.{key}: names that begin with {TOOLKIT_PREFIX} are for AWS's toolkit; the "
                "script gets them in SM_FRAMEWORK_PARAMS, not as arguments."
            )
    for key in job.tags:
        if key.startswith(("smlaunch:", "aws:")):
            notes.refuse(f"tags.{key}", f"{key.split(':')[0]}: is a reserved prefix; choose another key")


def _tags(name: TaskName, digest: str) -> dict[str, str]:
    return {
        TAG_RUN: name.run,
        TAG_SEGMENT: str(name.segment),
        TAG_ATTEMPT: str(name.attempt),
        TAG_JOB: digest,
    }


def _check_request(request: Mapping[str, Any], notes: Notes) -> None:
    """What the service would refuse: once per field, and not where it was refused for a better reason."""
    refused = {problem.path for problem in notes.problems}
    if not request["AlgorithmSpecification"]["TrainingImage"]:
        # No image could be chosen, and the field at fault was named: framework_version, or the type.
        refused.add("image")
    for violation in check(OPERATION, request):
        field = field_of(violation.path, request)
        if field in refused or (field, violation.rule) in _LEFT_TO_THE_SERVICE:
            continue
        notes.refuse(field, violation.problem().message)
        refused.add(field)


def _tell_honesty(job: Job, request: Mapping[str, Any], surroundings: Surroundings, notes: Notes) -> None:
    """What this endpoint does not do: a warning where the job asked for it, else only a reason."""
    endpoint = surroundings.endpoint
    for note in endpoint.notes:
        notes.warn(note)
    asked = _stated_fields(job.to_mapping())
    fields = _fields_by_member(request)
    for member, sentence in endpoint.refused.items():
        for field in fields.get(member, ()):
            notes.refuse(field, sentence)
    for member, sentence in endpoint.honesty.items():
        told = [field for field in fields.get(member, ()) if field in asked]
        for field in told:
            notes.warn(f"{field}: {sentence}")
        if member in fields and not told:
            notes.because(f"endpoint.{member}", sentence[:1].upper() + sentence[1:].rstrip(".") + ".")


def _fields_by_member(request: Mapping[str, Any]) -> dict[str, list[str]]:
    """For every member, and every member with its value, the job's fields behind it."""
    fields: dict[str, list[str]] = {}
    for path, value in members(request):
        plain = dotted(tuple(part for part in path if isinstance(part, str)))
        keys = [plain] if isinstance(value, (dict, list)) else [plain, f"{plain}={value}"]
        for key in keys:
            known = fields.setdefault(key, [])
            field = field_of(path, request)
            if field not in known:
                known.append(field)
    return fields


def _stated_fields(mapping: Mapping[str, Any], prefix: str = "") -> set[str]:
    fields: set[str] = set()
    for key, value in mapping.items():
        fields.add(prefix + key)
        if isinstance(value, Mapping):
            fields |= _stated_fields(value, f"{prefix}{key}.")
    return fields
