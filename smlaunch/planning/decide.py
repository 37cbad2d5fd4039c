"""Makes a plan: takes each decision once, in order, with its reason; then checks the request it led to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.job import Job, Workload, format_duration
from smlaunch.planning import segments
from smlaunch.planning.built_in import tell_built_in
from smlaunch.planning.carriers import plan_checkpoints
from smlaunch.planning.carry import JOBS, LISTS, choose_carriers, effective
from smlaunch.planning.choose import choose_strategy
from smlaunch.planning.compile import Compiled, Compiler
from smlaunch.planning.cost import plan_cost
from smlaunch.planning.fields import dotted, field_of, members
from smlaunch.planning.identity import job_hash
from smlaunch.planning.notes import Notes
from smlaunch.planning.part_plans import plan_parts
from smlaunch.planning.plan import Candidate, Carried, Plan, Segment, Task
from smlaunch.planning.processing import tell_processing
from smlaunch.planning.quotas import tell_quotas
from smlaunch.planning.reading import tell_reading
from smlaunch.planning.refusals import Case, overlap, refusals
from smlaunch.planning.resumable import tell_worth
from smlaunch.planning.scaling import tell_scaling
from smlaunch.planning.storage import Layout, plan_inputs
from smlaunch.planning.surroundings import Surroundings
from smlaunch.planning.tell_script import tell_idle, tell_script
from smlaunch.planning.workflow import Policy, Workflow, request_for, variant_for
from smlaunch.protocol.names import RUN_LIMIT, is_run_id
from smlaunch.protocol.segment import STOP_AFTER
from smlaunch.request import PROCESSING, TRAINING, name_member, operation_of
from smlaunch.strategies import load
from smlaunch.validate import check

OPERATION = TRAINING
"""Of every job of a chain."""

TOOLKIT_PREFIX = "sagemaker_"

DEFAULT_ATTEMPTS = 3
"""Per segment of a chain; a single job is tried once."""

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/")

_LEFT_TO_THE_SERVICE = {("compute.instance_type", "enum"), ("compute.instance_preferences", "enum")}
"""The service knows new instance types before any client's tables do; the plan has warned."""


def make_plan(job: Job, surroundings: Surroundings, run_id: str) -> Plan:
    """Decides everything. Pure: the same arguments give the same plan.

    Raises JobError listing every problem of the job in these surroundings.
    """
    notes = Notes()
    for note in surroundings.source.notes:
        notes.warn(note)
    for name, facts in surroundings.inputs.items():
        for note in facts.notes:
            notes.warn(f"inputs.{name}: {note}")
    settled, candidates = _settled(job, surroundings, notes)
    carried = choose_carriers(settled, surroundings, notes)
    digest = job_hash(job, surroundings)
    if any(one.way == JOBS for one in carried.values()):
        plan = plan_parts(settled, surroundings, run_id, carried, notes, make_one, digest)
    else:
        plan = make_one(settled, surroundings, run_id, carried, notes, digest)
    return replace(plan, job=job, candidates=candidates) if candidates else plan


def _settled(job: Job, surroundings: Surroundings, notes: Notes) -> tuple[Job, tuple[Candidate, ...]]:
    """The job with the machines that its workload asks for; the same where it says nothing of one."""
    strategy = load(choose_strategy(job, surroundings, Notes()))
    if job.workload == Workload() and not strategy.sized_by_data:
        return job, ()
    # Late: most jobs name their machines, and every command that plans would pay for it.
    from smlaunch.planning.candidates import settle

    settled, candidates = settle(job, strategy, surroundings, notes)
    notes.filled |= _stated_fields(settled.to_mapping()) - _stated_fields(job.to_mapping())
    return settled, candidates


def other_problems(job: Job, surroundings: Surroundings, unknown: Sequence[str]) -> list[Problem]:
    """What else is wrong with a job of which the fields ``unknown`` could not be read. Only what holds
    whatever they are: nothing is said that follows from a default in their place."""
    notes = Notes()
    _check_surroundings(job, surroundings, job.name or "unnamed", notes)
    if "entry" in unknown:
        unknown = [*unknown, "source", "requirements"]  # which are about the script's folder
    strategy = None
    if job.strategy is not None or not any(overlap(field, read) for field in unknown for read in _CHOOSE_BY):
        strategy = load(choose_strategy(job, surroundings, Notes()))
    unread = [*unknown, *(() if strategy is not None else ("strategy",))]
    for problem in refusals(Case(job, surroundings, strategy), unread):
        notes.refuse(problem.path, problem.message)
    return [one for one in notes.problems if not any(overlap(one.path, field) for field in unknown)]


_CHOOSE_BY = ("strategy", "entry", "algorithm", "image", "workload", "compute", "inputs")
"""Where one of these is not known, nobody can say which strategy would be chosen."""


def make_one(
    job: Job,
    surroundings: Surroundings,
    run_id: str,
    carried: Mapping[str, Carried],
    notes: Notes,
    digest: str,
    part: int | None = None,
) -> Plan:
    """A run that is one job or one chain. ``part``: which one it has, from 0, where others have the rest."""
    asked, seen = job, surroundings
    job, surroundings = effective(job, surroundings, carried)
    _check_surroundings(job, surroundings, run_id, notes)
    strategy = load(choose_strategy(job, surroundings, notes))
    if strategy.operation == PROCESSING:
        tell_processing(asked, surroundings.script, strategy.joins_hosts, notes)
    total = segments.total_seconds(job, notes)
    limit = segments.longest_job(job, surroundings, total, notes)
    chainable = strategy.operation == TRAINING and job.entry is not None
    chain = chainable and segments.is_chain(job, total, limit)
    if chain:
        shapes = segments.cut(job, surroundings, total, limit, notes)
        if len(shapes) > 1 or total > shapes[0].length:
            field, why = _cause_of_chain(job, limit)
            tell_worth(job, surroundings, strategy, field, why, notes)
    else:
        shapes = segments.single(job, total)
    case = Case(asked, seen, strategy)
    for problem in refusals(case):
        notes.refuse(problem.path, problem.message)
    tell_quotas(case, notes)
    _tell_names(job, notes)

    layout = Layout(surroundings.bucket, run_id)
    kept = plan_checkpoints(job, surroundings, layout, chain, shapes[0], notes)
    channels, uploads = plan_inputs(job, surroundings, layout, notes, carried, part)
    _check_hosts(shapes, carried, notes)
    compiler = Compiler(run_id, digest, strategy, surroundings, layout, kept, tuple(channels), notes)
    compiled = [compiler.compile(shape) for shape in shapes]
    for before, after in pairwise(compiled):
        _tell_difference(before, after, notes)
    first = compiled[0]
    tell_reading(job, surroundings, first.instance_type, notes, strategy.operation == PROCESSING)
    ranks = first.per_host * job.compute.hosts if isinstance(first.per_host, int) else None
    tell_script(surroundings, strategy, ranks, notes)
    tell_idle(job, surroundings, strategy, first.instance_type, notes)
    tell_built_in(job, surroundings.script, notes)
    if strategy.joins_hosts and strategy.operation == TRAINING:
        tell_scaling(job, ranks, notes)
    workflow = Workflow(
        run=run_id,
        job_hash=digest,
        variants=tuple(one.variant for one in compiled),
        policy=Policy(
            chain=chain,
            attempts=job.limits.attempts or (DEFAULT_ATTEMPTS if chain else 1),
            total_seconds=total if chain else None,
            max_cost=job.limits.max_cost if chain else None,
            on_demand_fallback=job.compute.on_demand_fallback,
            keep=segments.keep_of(job),
        ),
        checkpoints=None if kept is None else kept.uri,
    )
    planned, tasks, walls = _first_attempts(workflow, compiled, total, notes)
    least = max(first.variant.least_seconds, segments.Costs.of(job, surroundings).start)
    cost = plan_cost(job, [one.rate for one in compiled], total, chain, least, notes)
    expected = segments.schedule(job, surroundings, walls, shapes[0], total, notes) if chain else None
    for one in compiled:
        _check_request(one.variant.request, notes)
        _tell_honesty(job, one.variant.request, surroundings, notes)
    if notes.problems:
        raise JobError(notes.problems)
    return Plan(
        run=run_id,
        job=asked,
        job_hash=digest,
        surroundings=seen,
        strategy=strategy.name,
        hosts=first.shape.job.compute.hosts,
        processes_per_host=first.per_host,
        instance_type=first.instance_type,
        image=first.image,
        reasons=tuple(notes.reasons),
        warnings=tuple(notes.warnings),
        tasks=tuple(tasks),
        uploads=(*compiler.uploads, *uploads),
        segments=tuple(planned),
        cost=cost,
        workflow=workflow,
        checkpoints=kept,
        schedule=expected,
        carried=tuple(carried.values()),
    )


def _cause_of_chain(job: Job, limit: int) -> tuple[str, str]:
    """The field that makes a run take several jobs, and the beginning of a sentence about it."""
    if job.limits.segment is not None:
        return "limits.segment", f"the run takes several jobs of {job.limits.segment}"
    if job.segments:
        return "segments", "the run takes several jobs"
    longest = format_duration(limit)
    return (
        "limits.max_runtime",
        f"{job.limits.max_runtime} is longer than the {longest} a training job may run",
    )


def _first_attempts(
    workflow: Workflow, compiled: Sequence[Compiled], total: int, notes: Notes
) -> tuple[list[Segment], list[Task], list[int]]:
    """Every planned segment with the request of its first attempt, as the driver would send it if all goes
    well and every segment takes its whole time; and how many seconds each takes then."""
    planned: list[Segment] = []
    tasks: list[Task] = []
    walls: list[int] = []
    left = total
    while len(planned) < segments.MOST_SEGMENTS:
        number = len(planned) + 1
        variant = variant_for(workflow, number)
        if planned and left < min(variant.least_seconds, variant.max_runtime):
            break
        one = next(one for one in compiled if one.variant is variant)
        request = request_for(workflow, number, 1, seconds_left=left)
        seconds = request["StoppingCondition"]["MaxRuntimeInSeconds"]
        stop_after = request.get("Environment", {}).get(STOP_AFTER)
        compute = one.shape.job.compute
        planned.append(
            Segment(
                number,
                seconds,
                None if stop_after is None else int(stop_after),
                compute.hosts,
                one.instance_type,
                one.shape.until_step,
            )
        )
        tasks.append(Task(request[name_member(request)], number, 1, operation_of(request), request, one.spec))
        walls.append(min(one.shape.wall, left))
        left -= walls[-1]
        if not workflow.policy.chain:
            break
    else:
        why = f"{format_duration(total)} would take more than {segments.MOST_SEGMENTS} segments"
        if compiled[0].shape.job.limits.max_runtime is not None:
            notes.refuse("limits.segment", f"{why}; make them longer")
        else:
            notes.warn(f"{why}, which is as many as are planned; state limits.max_runtime.")
    for one in compiled[len(planned) :]:
        notes.warn(
            f"segments[{one.shape.first - 1}] never begins unless an earlier one ends before its time: "
            f"{format_duration(total)} in all are over before."
        )
    return planned, tasks, walls


def _tell_difference(before: Compiled, after: Compiled, notes: Notes) -> None:
    """Segments may differ, and then the run is not what one long job would have been."""
    told = []
    for name, old, new in (
        ("hosts", before.shape.job.compute.hosts, after.shape.job.compute.hosts),
        ("ranks per host", before.per_host, after.per_host),
        ("instance type", before.instance_type, after.instance_type),
    ):
        if old != new:
            told.append(f"{name} {old} -> {new}")
    old_values, new_values = before.shape.job.hyperparameters, after.shape.job.hyperparameters
    keys = [*old_values, *(key for key in new_values if key not in old_values)]
    told += [
        f"{key} {old_values.get(key)} -> {new_values.get(key)}"
        for key in keys
        if old_values.get(key) != new_values.get(key)
    ]
    if told:
        until = before.shape.until_step
        who = f"Segment {after.shape.first}" if until is None else f"What follows on step {until}"
        notes.warn(
            f"{who} differs ({', '.join(told)}): from there on the run is not bit-identical with one that "
            "does not change."
        )


def _check_surroundings(job: Job, surroundings: Surroundings, run_id: str, notes: Notes) -> None:
    script, source = surroundings.script, surroundings.source
    if not is_run_id(run_id):
        notes.refuse(
            "name",
            f"{run_id!r} cannot name a run: lower-case letters, digits and single dashes between them, "
            f"{RUN_LIMIT} characters at most",
        )
    if job.entry is None:
        _check_without_script(job, notes)
    elif script.problem is not None:
        notes.refuse("entry", script.problem)
    elif not script.exists:
        notes.refuse("entry", f"{job.entry} does not exist; check the path")
    if source.problem is not None:
        notes.refuse("source", source.problem)
    if job.entry is not None and job.requirements is not None and not source.has_requirements:
        why = source.left_out.get(job.requirements)
        told = f"{job.requirements} {why}" if why else f"{job.requirements!r} is not in {source.root}; it is "
        notes.refuse("requirements", told if why else f"{told}relative to the source")
    if surroundings.role is None:
        notes.refuse("role", surroundings.role_problem or "no execution role was found; give its ARN")
    elif not _ROLE_ARN.match(surroundings.role):
        notes.refuse(
            "role",
            f"{surroundings.role!r} is not a role's ARN; it looks like arn:aws:iam::123456789012:role/NAME",
        )


def _check_without_script(job: Job, notes: Notes) -> None:
    """Nothing of ours is put into an image that brings its own program: what
    needs the runtime has no place."""
    given = {
        "source": job.source is not None,
        "requirements": job.requirements is not None,
        "launcher": job.launcher != "runtime",
        "deterministic": job.deterministic,
        "limits.hang": job.limits.hang is not None,
        "compute.processes_per_host": job.compute.processes_per_host not in (None, 1),
    }
    for field, is_given in given.items():
        if is_given:
            notes.refuse(field, f"it is for scripts, and {job.program} brings its own program; leave it out")
    if job.algorithm is not None and job.args:
        notes.refuse("args", "a built-in algorithm takes hyperparameters; use those")


def _check_hosts(shapes: Sequence[segments.Shape], carried: Mapping[str, Carried], notes: Notes) -> None:
    """Lists are for one number of hosts."""
    numbers = {shape.job.compute.hosts for shape in shapes}
    if len(numbers) > 1 and any(one.way == LISTS for one in carried.values()):
        told = ", ".join(map(str, sorted(numbers)))
        notes.refuse("segments", f"lists of files are made for one number of hosts, not for {told}")


def _tell_names(job: Job, notes: Notes) -> None:
    for key in job.hyperparameters:
        if key.startswith(TOOLKIT_PREFIX):
            notes.warn(
                f"hyperparameters.{key}: names that begin with {TOOLKIT_PREFIX} are for AWS's toolkit; the "
                "script gets them in SM_FRAMEWORK_PARAMS, not as arguments."
            )


def _image_of(request: Mapping[str, Any]) -> Any:
    if operation_of(request) == PROCESSING:
        return request["AppSpecification"]["ImageUri"]
    return request["AlgorithmSpecification"]["TrainingImage"]


def _check_request(request: Mapping[str, Any], notes: Notes) -> None:
    """What the service would refuse: once per field, and not where it was refused for a better reason."""
    refused = {problem.path for problem in notes.problems}
    if not _image_of(request):
        # No image could be chosen, and the field at fault was named: framework_version, or the type.
        refused.add("image")
    for violation in check(operation_of(request), request):
        field = field_of(violation.path, request)
        if field in refused or (field, violation.rule) in _LEFT_TO_THE_SERVICE:
            continue
        if field == "compute.spot" and "compute.instance_preferences" in refused:
            continue  # the two exclude each other, which was said of the other one
        notes.refuse(field, violation.problem().message)
        refused.add(field)


def _tell_honesty(job: Job, request: Mapping[str, Any], surroundings: Surroundings, notes: Notes) -> None:
    """What this endpoint does not do: a warning where the job asked for it, else only a reason."""
    endpoint = surroundings.endpoint
    for note in endpoint.notes:
        notes.warn(note)
    asked = _stated_fields(job.to_mapping()) - notes.filled
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
