"""Render a plan as text for people and as JSON for programs. Both contain everything."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

from smlaunch.api.request import CREATE_PROCESSING_JOB
from smlaunch.catalog import instances
from smlaunch.contract.launch_spec import (
    ALL,
    AUTO,
    LEADER,
    RUNTIME,
    Arg,
    CheckpointSpec,
    Concat,
    Ref,
    ServiceSpec,
)
from smlaunch.contract.segment import SYNC
from smlaunch.job.model import Channel, Job, format_duration
from smlaunch.planner.cost import format_dollars
from smlaunch.planner.facts import InputFacts
from smlaunch.planner.plan import InputSharding, Plan, PlannedJob, Schedule, Upload
from smlaunch.planner.render_candidates import candidate_as_dict, comparison_lines
from smlaunch.planner.segments import format_span
from smlaunch.planner.sharding import JOBS, LISTS, SHARDS
from smlaunch.secrets.masking import MASK, mask_arguments, mask_document, mask_named_value, mask_text
from smlaunch.text.format import escape_unprintable, format_size, wrap_bullets


def as_dict(plan: Plan) -> dict[str, Any]:
    """The document of ``plan --json`` in plain types, secrets masked. docs/planner.md lists the keys."""
    launch_spec = plan.planned_jobs[0].launch_spec
    document = {
        "run": plan.run,
        "job_hash": plan.job_hash,
        "target": plan.facts.target,
        "region": plan.facts.region,
        "strategy": plan.strategy,
        "hosts": plan.hosts,
        "processes_per_host": plan.processes_per_host,
        "instance_type": plan.instance_type,
        "instance_preferences": list(plan.job.compute.instance_preferences),
        "image": plan.image,
        "reasons": [{"rule": reason.rule, "because": reason.explanation} for reason in plan.reasons],
        "warnings": list(plan.warnings),
        "left_out": [
            {"field": field, "file": name, "because": reason}
            for field, files in plan.excluded_by_field.items()
            for name, reason in sorted(files.items())
        ],
        "segments": [asdict(segment) for segment in plan.segments],
        "schedule": None if plan.schedule is None else asdict(plan.schedule),
        "checkpoints": None if plan.checkpoints is None else _checkpoints_as_dict(plan.checkpoints),
        "input_shardings": [
            {"channel": name, "hosts": plan.hosts, "objects": _input_facts(plan, name, channel).objects}
            for name, channel in plan.job.inputs.items()
            if channel.split == "key"
        ]
        + [_sharding_as_dict(sharding) for sharding in plan.input_shardings],
        "cost": {
            "known": plan.cost.is_known,
            "per_hour": plan.cost.per_hour,
            "at_most": plan.cost.maximum,
            "currency": "USD",
            "note": plan.cost.note,
        },
        "candidates": [candidate_as_dict(candidate) for candidate in plan.candidates],
        "uploads": [
            {"kind": upload.kind, "uri": upload.uri, "path": upload.path, "sha256": upload.sha256}
            for upload in plan.uploads
        ],
        "launch": None if launch_spec is None else json.loads(launch_spec.to_json()),
        "requests": [dict(request) for request in plan.requests],
    }
    return {key: mask_document(value) for key, value in document.items()}


def _checkpoints_as_dict(spec: CheckpointSpec) -> dict[str, Any]:
    return {
        "path": spec.path,
        "uri": spec.uri,
        "upload": spec.upload,
        "keep": spec.keep,
        "interval_seconds": spec.interval_seconds,
        "failure_seconds": spec.failure_seconds,
    }


def _sharding_as_dict(sharding: InputSharding) -> dict[str, Any]:
    """Row of ``input_shardings`` in ``plan --json``."""
    per_host = zip(sharding.bytes_by_host, sharding.files_by_host, sharding.bytes_by_count, strict=True)
    return {
        "channel": sharding.channel,
        "hosts": len(sharding.files_by_host),
        "objects": sum(sharding.files_by_host),
        "split_via": sharding.split_via,
        "method": sharding.method,
        "imbalance": sharding.imbalance,
        "imbalance_by_count": sharding.imbalance_by_count,
        "shards": [
            {"host": host, "bytes": bytes_of_host, "keys": file_count, "bytes_by_count": bytes_by_count}
            for host, (bytes_of_host, file_count, bytes_by_count) in enumerate(per_host)
        ],
    }


Paint = Callable[[str, str], str]
"""Colours a line for a terminal: its kind (heading, chosen, warning) and its text."""


def as_text(plan: Plan, paint: Paint | None = None) -> str:
    """Render the plan as text, secrets masked; ``paint`` adds colours for a terminal."""
    reasons = (f"{reason.explanation} [{reason.rule}]" for reason in plan.reasons)
    blocks = [[headline(plan)], _table_lines(summary_rows(plan)), ["Why", *wrap_bullets("-", reasons)]]
    if plan.warnings:
        blocks.append(["Warnings", *wrap_bullets("!", plan.warnings)])
    if len(plan.candidates) > 1:
        blocks.append(comparison_lines(plan.candidates))
    step_lines = (f"  {number}. {step}" for number, step in enumerate(launch_steps(plan), 1))
    blocks.append(["Actions", *step_lines])
    return "\n\n".join("\n".join(_paint_line(line, paint) for line in block) for block in blocks)


def _paint_line(line: str, paint: Paint | None) -> str:
    """The line masked, escaped and coloured by its kind."""
    text = escape_unprintable(mask_text(line))
    if paint is None:
        return text
    if not text.startswith(" "):
        return paint("heading", text)
    mark = text.lstrip()[:2]
    return paint({"* ": "chosen", "! ": "warning"}.get(mark, "line"), text)


def headline(plan: Plan) -> str:
    """One line: program, hosts, strategy and target."""
    target_text = f"in region {plan.facts.region}"
    if plan.facts.target == "local":
        endpoint = plan.facts.endpoint
        isolation_kind = "containers by" if endpoint.runs_images else "isolation"
        target_text = "on this machine" + (
            f" ({isolation_kind} {endpoint.isolation})" if endpoint.isolation else ""
        )
    program = plan.facts.source.entry or plan.job.program
    return f"Run {plan.run}: {program} on {_ranks_text(plan)}, by {plan.strategy}, {target_text}"


def _ranks_text(plan: Plan) -> str:
    """``2 hosts x 4 processes = 8 ranks``."""
    hosts_text = _plural(plan.hosts, "host")
    if plan.processes_per_host == AUTO:
        return f"{hosts_text} with a rank for each accelerator"
    ranks_text = _plural(plan.hosts * int(plan.processes_per_host), "rank")
    if 1 in (plan.hosts, plan.processes_per_host):
        return (
            f"{hosts_text} = {ranks_text}"
            if plan.processes_per_host == 1
            else f"{hosts_text} with {ranks_text}"
        )
    return f"{hosts_text} x {plan.processes_per_host} processes = {ranks_text}"


def summary_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield label and value of each row of the plan's summary."""
    first_job = plan.planned_jobs[0]
    job, request = plan.job, first_job.request
    yield (
        "job",
        first_job.name + (f" to {plan.shard_plans[-1].planned_jobs[0].name}" if plan.shard_plans else ""),
    )
    if plan.schedule is not None:
        yield "segments", _segments_text(plan)
    yield "command", _command_text(first_job)
    for service in () if first_job.launch_spec is None else first_job.launch_spec.services:
        yield f"service {service.name}", _service_text(service)
    if job.hyperparameters:
        yield "hyperparameters", "  ".join(_pair_text(*item) for item in sorted(job.hyperparameters.items()))
    if job.requirements:
        yield "installs", job.requirements
    if job.environment:
        yield "environment", "  ".join(_pair_text(*item) for item in job.environment.items())
    if plan.facts.target == "local" and not plan.facts.endpoint.runs_images:
        yield "hosts", f"{plan.hosts} on this machine, recorded as {plan.instance_type}"
        yield "image", f"not run, recorded as {plan.image}"
    else:
        yield "hosts", _machines_text(plan, request)
        yield "image", plan.image
    for name, channel in job.inputs.items():
        sharding = next(
            (
                sharding_of_channel
                for sharding_of_channel in plan.input_shardings
                if sharding_of_channel.channel == name
            ),
            None,
        )
        yield f"input {name}", _input_text(channel, _input_facts(plan, name, channel), plan.hosts, sharding)
        if sharding is not None:
            yield f"shards of {name}", _balance_text(sharding)
    if plan.checkpoints is not None:
        yield "checkpoints", _checkpoints_text(plan.checkpoints, plan)
    shards_text = ", for each shard" if plan.shard_plans else ""
    yield "output", _output_prefix(first_job) + shards_text
    network_parts = list(_network_parts(job))
    if network_parts:
        yield "network", ", ".join(network_parts)
    yield "role", request["RoleArn"]
    yield "time limit", _time_limit_text(plan, request["StoppingCondition"])
    if plan.schedule is not None:
        yield "expected", _schedule_text(plan.schedule)
    if job.deterministic:
        yield "deterministic", "by smlaunch.train"
    if job.limits.hang is not None:
        yield "hang", f"after {job.limits.hang} without output and CPU use on a host"
    yield "cost", _cost_text(plan)
    if job.tags:
        yield "tags", "  ".join(_pair_text(*item) for item in job.tags.items())


def _segments_text(plan: Plan) -> str:
    """``60 x 24h + 5h; the first ends itself after 23h55m``."""
    length_counts = [
        (format_span(length), len(list(group)))
        for length, group in groupby(segment.max_runtime for segment in plan.segments)
    ]
    lengths_text = " + ".join(
        length if count == 1 else f"{count} x {length}" for length, count in length_counts
    )
    stop_after = plan.segments[0].stop_after
    return (
        lengths_text
        if stop_after is None
        else f"{lengths_text}; the first ends itself after {format_span(stop_after)}"
    )


def _checkpoints_text(spec: CheckpointSpec, plan: Plan) -> str:
    """Address, upload and interval of the checkpoints."""
    transport_text = "synchronized with" if spec.upload == SYNC else "each rank's part uploaded from"
    interval_text = ""
    if spec.interval_seconds is not None:
        interval_text = f", one every {format_span(spec.interval_seconds)}"
    elif plan.schedule is not None and plan.schedule.interval < plan.schedule.segment:
        interval_text = f", one every {format_span(plan.schedule.interval)} or as measured"
    elif plan.schedule is not None:
        interval_text = ", one at each planned end or as measured"
    return f"{spec.uri}, {transport_text} {spec.path}{interval_text}; the newest {spec.keep} are kept"


def _time_limit_text(plan: Plan, stopping_condition: Mapping[str, int]) -> str:
    """When the service or the run's limit stops the run."""
    wait_seconds, pending_seconds = (
        stopping_condition.get("MaxWaitTimeInSeconds"),
        stopping_condition.get("MaxPendingTimeInSeconds"),
    )
    if plan.schedule is not None:
        limit_text = f"{format_duration(plan.schedule.total)} of training in all"
        wait_text = "; one segment is stopped after"
    else:
        limit_text = f"stopped after {format_duration(stopping_condition['MaxRuntimeInSeconds'])} of training"
        wait_text = ", or"
    if pending_seconds is not None:
        limit_text += f"; given up after {format_duration(pending_seconds)} without capacity"
    return (
        limit_text
        if wait_seconds is None
        else f"{limit_text}{wait_text} {format_duration(wait_seconds)} of training and waiting"
    )


def _schedule_text(schedule: Schedule) -> str:
    """Expected goodput and duration."""
    return (
        f"{schedule.goodput:.1%} of the time is useful training; {format_span(schedule.makespan)} from the "
        "first start to the last end, if every segment takes its full time"
    )


def _output_prefix(planned_job: PlannedJob) -> str:
    """Prefix of everything that the job writes."""
    request = planned_job.request
    if planned_job.operation == CREATE_PROCESSING_JOB:
        return str(request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"])
    return f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{planned_job.name}/output/"


def _machines_text(plan: Plan, request: Mapping[str, Any]) -> str:
    """Hosts, instance type, alternatives, disk, spot and warm pool."""
    catalog_type = instances.find_instance_type(plan.instance_type)
    type_text = f" ({catalog_type.describe()})" if catalog_type else ""
    # Types with NVMe disks have no volume.
    disk_text = (
        "" if catalog_type and catalog_type.nvme_gb else f", {_cluster_of(request)['VolumeSizeInGB']} GB disk"
    )
    compute = plan.job.compute
    alternatives = "".join(f", or {name}" for name in compute.instance_preferences[1:])
    spot_text = ", spot" if compute.spot else ""
    keep_alive_text = f", kept for {compute.keep_alive} after the job" if compute.keep_alive else ""
    return (
        f"{plan.hosts} x {plan.instance_type}{type_text}{alternatives}{disk_text}{spot_text}{keep_alive_text}"
    )


def _cluster_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request's member with instance type, count and volume."""
    resources: Mapping[str, Any] = (
        request.get("ResourceConfig") or request["ProcessingResources"]["ClusterConfig"]
    )
    return resources


def _network_parts(job: Job) -> Iterator[str]:
    """Yield descriptions of the job's network settings that are not the defaults."""
    if job.network_isolation:
        yield "isolated: no way out of the hosts"
    if job.encrypt_traffic:
        yield "traffic between hosts encrypted"
    if job.subnets:
        yield f"subnets {' '.join(job.subnets)} with security groups {' '.join(job.security_groups)}"


def _command_text(planned_job: PlannedJob) -> str:
    """The command of a rank."""
    if planned_job.launch_spec is None:
        specification = (
            planned_job.request.get("AlgorithmSpecification") or planned_job.request["AppSpecification"]
        )
        return " ".join(
            ["the image's own program", *_masked_arguments(specification.get("ContainerArguments", ()))]
        )
    arguments = planned_job.launch_spec.ranks.argv
    if "HyperParameters" not in planned_job.request:
        arguments = tuple(argument for argument in arguments if argument != Ref("hyperparameters"))
    launcher_text = (
        ""
        if planned_job.launch_spec.ranks.launcher == RUNTIME
        else f"{planned_job.launch_spec.ranks.launcher}: "
    )
    host_text = " (on the leader alone)" if planned_job.launch_spec.ranks.runs_on == LEADER else ""
    return launcher_text + " ".join(_masked_arguments(arguments)) + host_text


def _service_text(service: ServiceSpec) -> str:
    """``every host: ray start --block``."""
    hosts_text = {LEADER: "the leader", ALL: "every host"}.get(service.runs_on, "the other hosts")
    return f"{hosts_text}: {' '.join(_masked_arguments(service.argv))}"


def _masked_arguments(launch_arguments: Iterable[Arg]) -> Iterator[str]:
    """Arguments as text, secrets masked."""
    # An argument with references is a tuple, which masking would treat as a list.
    arguments = list(launch_arguments)
    for argument, masked_argument in zip(
        arguments,
        mask_arguments(argument if isinstance(argument, str) else None for argument in arguments),
        strict=True,
    ):
        yield _argument_text(argument if masked_argument is None else masked_argument)


def _argument_text(argument: Arg) -> str:
    """``<...>`` is a value that only a host knows, ``<port+4>`` the fifth of the job's ports."""
    if isinstance(argument, Concat):
        return "".join(map(_argument_text, argument.parts))
    if not isinstance(argument, Ref):
        return shlex.quote(argument) if argument.isprintable() else json.dumps(argument)
    if argument.name == "source":
        return shlex.quote(argument.suffix.lstrip("/"))
    if argument.name == "hyperparameters":
        return "[hyperparameters as --key value]"
    if argument.name == "python":
        return argument.name
    offset = f"+{argument.offset}" if argument.offset else ""
    return f"{argument.prefix}<{argument.name}{offset}>{argument.suffix}"


def _pair_text(key: str, value: Any) -> str:
    """``lr=0.1``, ``note="two words"``, ``api_key=****``: always on one line."""
    value = mask_named_value(key, value)
    if value == MASK:
        return f"{key}={MASK}"
    bare = isinstance(value, str) and shlex.quote(value) == value
    return f"{key}={value if bare else json.dumps(value, ensure_ascii=not str(value).isprintable())}"


_DISTRIBUTION = {
    SHARDS: "its shards are distributed to the hosts",
    LISTS: "each host reads its own list",
    JOBS: "a job for each shard",
}


def _balance_text(sharding: InputSharding) -> str:
    """``61.2 MB to 61.9 MB a host (1.004 x the least possible); by count up to 93.0 MB (1.51 x)``."""
    smallest, largest = format_size(min(sharding.bytes_by_host)), format_size(max(sharding.bytes_by_host))
    amount = largest if smallest == largest else f"{smallest} to {largest}"
    balance_text = f"{amount} a host ({sharding.imbalance:.4f} x the least possible)"
    if sharding.split_via == SHARDS:
        return balance_text
    return (
        f"{balance_text}; by count up to {format_size(max(sharding.bytes_by_count))} "
        f"({sharding.imbalance_by_count:.4f} x)"
    )


def _input_text(channel: Channel, facts: InputFacts, host_count: int, sharding: InputSharding | None) -> str:
    """Address, size, mode and distribution of a channel."""
    distribution = (
        "a shard for each host" if channel.split == "key" and host_count > 1 else "all of it on every host"
    )
    mode = channel.mode
    if sharding is not None:
        distribution, mode = (
            _DISTRIBUTION[sharding.split_via],
            "FastFile" if sharding.split_via == LISTS else mode,
        )
    amounts = []
    if facts.objects is not None:
        more_text = " or more" if facts.is_truncated else ""
        amounts.append(_plural(facts.objects, "file" if channel.is_local else "object") + more_text)
    if facts.bytes is not None:
        amounts.append(format_size(facts.bytes))
    return ", ".join([channel.uri, *amounts, f"{mode} mode", distribution])


def _cost_text(plan: Plan) -> str:
    """Cost per hour and in total."""
    cost = plan.cost
    if cost.per_hour is None or cost.maximum is None:
        return f"unknown: {cost.note}"
    if cost.per_hour == 0:
        return f"none: {cost.note}"
    return f"{format_dollars(cost.per_hour)} per hour, at most {format_dollars(cost.maximum)} ({cost.note})"


def launch_steps(plan: Plan) -> Iterator[str]:
    """What launching the plan does, in order."""
    own_uploads = plan.shard_plans[0].uploads if plan.shard_plans else plan.uploads
    launch_uploads = [upload for upload in own_uploads if upload.kind in ("runtime", "launch")]
    for folder, uploads in groupby(launch_uploads, lambda upload: upload.uri.rpartition("/")[0]):
        yield f"put {_file_names(uploads)} at {folder}/"
    for upload in own_uploads:
        if upload.kind in ("source", "data"):
            size_text = f" ({format_size(upload.bytes)})" if upload.bytes is not None else ""
            yield (
                f"put the {upload.kind}, {upload.path}{size_text}, at {_short_address(upload)}, unless it "
                "exists"
            )
    list_uploads = [upload for upload in own_uploads if upload.kind == "shards"]
    for folder, uploads in groupby(list_uploads, lambda upload: upload.uri.rpartition("/")[0]):
        yield f"put what each host reads, {_file_names(uploads)}, at {folder}/"
    first_job, last_job = plan.planned_jobs[0], plan.planned_jobs[-1]
    if plan.shard_plans:
        yield f"send {first_job.operation} {first_job.name}, and do the same for the other shards"
        yield "drive each shard separately, and retry only those that fail"
        return
    yield f"send {first_job.operation} {first_job.name}"
    if first_job is not last_job:
        yield (
            f"when a job ends with a committed checkpoint send the next, up to {last_job.name} if none fails"
        )


def _file_names(uploads: Iterable[Upload]) -> str:
    """Names of the uploaded files, abbreviated."""
    names = [upload.uri.rpartition("/")[2] for upload in uploads]
    return " and ".join(names) if len(names) < 4 else f"{names[0]} to {names[-2]} and {names[-1]}"


def _short_address(upload: Upload) -> str:
    """The address with an abbreviated hash: the request contains all of it."""
    return upload.uri.replace(upload.sha256, upload.sha256[:12] + "...") if upload.sha256 else upload.uri


def _table_lines(pairs: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(pairs)
    width = max(len(label) for label, _ in rows) + 2
    return [f"  {label:<{width}}{value}" for label, value in rows]


def _input_facts(plan: Plan, name: str, channel: Channel) -> InputFacts:
    input_facts = plan.facts.inputs.get(name)
    return input_facts or InputFacts(channel.uri, "local" if channel.is_local else "s3")


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
