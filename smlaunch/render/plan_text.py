"""A plan as text for people. It contains everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from smlaunch.api.job_kinds import JOB_KINDS, get_at_path
from smlaunch.catalog import instances
from smlaunch.contract.launch_spec import AUTO, LEADER, CheckpointSpec
from smlaunch.contract.segment import SYNC
from smlaunch.facts.discovered_facts import InputFacts
from smlaunch.job.model import Channel, Job, format_duration
from smlaunch.planner.file_sharding import VIA_JOBS, VIA_LISTS, VIA_SHARDS
from smlaunch.planner.plan import Cost, InputSharding, PlannedJob, RunPlan, Schedule, Upload
from smlaunch.planner.segments import format_exact_seconds, format_seconds
from smlaunch.render.candidates import candidate_table_lines
from smlaunch.render.command_text import command_text, key_value_text, service_text
from smlaunch.render.plan_document import input_facts_of
from smlaunch.secrets.masking import mask_text
from smlaunch.text.format import (
    WIDTH,
    escape_unprintable,
    format_all_units,
    format_dollars,
    format_size,
    wrap_bullets,
    wrap_words,
)

Paint = Callable[[str, str], str]
"""Colours a line for a terminal: its kind (heading, chosen, warning) and its text."""


def as_text(plan: RunPlan, paint: Paint | None = None, width: int | None = None) -> str:
    """Render the plan as text, secrets masked. ``paint`` adds colours for a terminal; ``width`` is the number
    of its columns: all lines are wrapped at words to it. Without it, rows of the summary stay whole."""
    reasons = (f"{reason.explanation} [{reason.rule}]" for reason in plan.reasons)
    blocks = [
        list(_wrapped_lines([plan_headline(plan)], width, "  ")),
        _table_lines(summary_rows(plan), width),
        ["Why", *wrap_bullets("-", reasons, width or WIDTH)],
    ]
    if plan.warnings:
        blocks.append(["Warnings", *wrap_bullets("!", plan.warnings, width or WIDTH)])
    if len(plan.candidates) > 1:
        blocks.append(candidate_table_lines(plan.candidates))
    step_lines = (f"  {number}. {step}" for number, step in enumerate(describe_launch_steps(plan), 1))
    blocks.append(["Actions", *_wrapped_lines(step_lines, width, "   ")])
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


def plan_headline(plan: RunPlan) -> str:
    """Return one line about the plan: run, program, hosts and ranks, strategy, and where it runs."""
    target_text = f"in region {plan.facts.region}"
    if plan.facts.target == "local":
        endpoint = plan.facts.endpoint
        target_text = "on this machine"
        if endpoint.hosts:
            target_text += f" ({endpoint.hosts})"
    program = plan.facts.source.entry or plan.job.program
    return f"Run {plan.run}: {program} on {ranks_text(plan)}, by {plan.strategy}, {target_text}"


def ranks_text(plan: RunPlan) -> str:
    """Return the numbers of hosts and ranks: ``2 hosts x 4 processes = 8 ranks``."""
    hosts_text = _count_text(plan.hosts, "host")
    launch_spec = plan.planned_jobs[0].launch_spec
    if launch_spec is not None and launch_spec.ranks.runs_on == LEADER:
        return f"{hosts_text} with the program on the leader alone"
    # Only the hosts can count their accelerators.
    if plan.processes_per_host == AUTO:
        return f"{hosts_text} with a rank for each accelerator"
    ranks_text = _count_text(plan.hosts * int(plan.processes_per_host), "rank")
    if plan.processes_per_host == 1:
        return f"{hosts_text} = {ranks_text}"
    if plan.hosts == 1:
        return f"{hosts_text} with {ranks_text}"
    return f"{hosts_text} x {plan.processes_per_host} processes = {ranks_text}"


def summary_rows(plan: RunPlan) -> Iterator[tuple[str, str]]:
    """Yield label and value of each row of the plan's summary. A row is left out if the job states nothing
    for it. With one run for each shard of the data, the rows are those of the first."""
    first_job = plan.planned_jobs[0]
    last_shard_text = f" to {plan.shard_plans[-1].planned_jobs[0].name}" if plan.shard_plans else ""
    yield "job", first_job.name + last_shard_text
    if plan.schedule is not None:
        yield "segments", _segments_text(plan)
    yield from _program_rows(plan.job, first_job)
    yield from _host_rows(plan, first_job)
    yield from _data_rows(plan, first_job)
    yield from _limit_rows(plan, first_job)


def _program_rows(job: Job, first_job: PlannedJob) -> Iterator[tuple[str, str]]:
    """Yield the rows of the summary about what is run: the command of each rank, programs beside the ranks
    (services), and what they are given."""
    yield "command", command_text(first_job)
    services = () if first_job.launch_spec is None else first_job.launch_spec.services
    for service in services:
        yield f"service {service.name}", service_text(service)
    if job.hyperparameters:
        yield "hyperparameters", _settings_text(sorted(job.hyperparameters.items()))
    if first_job.launch_spec is not None and first_job.launch_spec.requirements is not None:
        yield "installs", first_job.launch_spec.requirements
    if job.environment:
        yield "environment", _settings_text(job.environment.items())


def _host_rows(plan: RunPlan, first_job: PlannedJob) -> Iterator[tuple[str, str]]:
    """Yield the rows of the summary about hosts and image."""
    # Otherwise hosts are processes of this machine, and types and image are only recorded.
    has_real_hosts = plan.facts.target != "local" or plan.facts.endpoint.runs_images
    if has_real_hosts:
        yield "hosts", _hosts_text(plan, first_job.request)
        yield "image", plan.image
    else:
        yield "hosts", f"{plan.hosts} on this machine, recorded as {plan.instance_type}"
        yield "image", f"not run, recorded as {plan.image}"


def _data_rows(plan: RunPlan, first_job: PlannedJob) -> Iterator[tuple[str, str]]:
    """Yield the rows of the summary about inputs, checkpoints and output."""
    sharding_by_channel = {sharding.channel: sharding for sharding in plan.input_shardings}
    for name, channel in plan.job.inputs.items():
        sharding = sharding_by_channel.get(name)
        yield f"input {name}", _input_text(channel, input_facts_of(plan, name, channel), plan.hosts, sharding)
        if sharding is not None:
            yield f"shards of {name}", _shard_balance_text(sharding)
    if plan.checkpoints is not None:
        yield "checkpoints", _checkpoints_text(plan.checkpoints, plan)
    shards_text = ", for each shard" if plan.shard_plans else ""
    yield "output", _output_prefix(first_job) + shards_text


def _limit_rows(plan: RunPlan, first_job: PlannedJob) -> Iterator[tuple[str, str]]:
    """Yield the rows of the summary about network, role, limits, cost and tags."""
    job, request = plan.job, first_job.request
    network_texts = list(_network_setting_texts(job))
    if network_texts:
        yield "network", ", ".join(network_texts)
    yield "role", request["RoleArn"]
    yield "time limit", time_limit_text(plan, request["StoppingCondition"])
    if plan.schedule is not None:
        yield "expected", _schedule_text(plan.schedule) + _paid_time_text(plan, plan.schedule)
    if job.deterministic:
        yield "deterministic", "by smlaunch.train"
    if job.limits.hang is not None:
        yield "hang", f"after {job.limits.hang} without output and CPU use on a host"
    yield "cost", _cost_text(plan)
    if job.tags:
        yield "tags", _settings_text(job.tags.items())


def _settings_text(settings: Iterable[tuple[str, Any]]) -> str:
    """Return names and values as text on one line, secrets masked."""
    return "  ".join(key_value_text(name, value) for name, value in settings)


def _segments_text(plan: RunPlan) -> str:
    """``60 x 24h + 5h; the first ends itself after 23h55m``."""
    length_counts = [
        (format_seconds(length), len(list(group)))
        for length, group in groupby(segment.max_runtime for segment in plan.segments)
    ]
    lengths_text = " + ".join(
        length if count == 1 else f"{count} x {length}" for length, count in length_counts
    )
    stop_after = plan.segments[0].stop_after
    return (
        lengths_text
        if stop_after is None
        else f"{lengths_text}; the first ends itself after {format_exact_seconds(stop_after)}"
    )


def _checkpoints_text(spec: CheckpointSpec, plan: RunPlan) -> str:
    """Return address, upload and interval of the checkpoints, as a row of the summary. A run of several
    segments (jobs in a row) has a schedule with the expected interval; None for a single job."""
    upload_text = "synchronized with" if spec.upload == SYNC else "each rank's part uploaded from"
    interval_text, schedule = "", plan.schedule
    if spec.interval_seconds is not None:
        interval_text = f", one every {format_seconds(spec.interval_seconds)}"
    elif schedule is not None and schedule.interval < schedule.segment:
        interval_text = f", one every {format_seconds(schedule.interval)} or as measured"
    elif schedule is not None:
        # The interval is longer than a segment, which always ends with a checkpoint.
        interval_text = ", one at each planned end or as measured"
    return f"{spec.uri}, {upload_text} {spec.path}{interval_text}; the newest {spec.keep} are kept"


def time_limit_text(plan: RunPlan, stopping_condition: Mapping[str, int]) -> str:
    """Return when the service or the run's limit stops the run, as a row of the summary.
    ``stopping_condition``: of the first request."""
    max_wait_seconds = stopping_condition.get("MaxWaitTimeInSeconds")
    max_pending_seconds = stopping_condition.get("MaxPendingTimeInSeconds")
    # A run with a schedule takes several segments: the request's limits are those of one of them.
    has_segments = plan.schedule is not None
    if plan.schedule is not None:
        limit_text = f"{format_all_units(plan.schedule.total)} of training in all"
    else:
        limit_text = f"stopped after {format_duration(stopping_condition['MaxRuntimeInSeconds'])} of training"
        if not plan.workflow.is_single_job:
            limit_text += ", all its attempts together"
    if max_pending_seconds is not None:
        limit_text += f"; given up after {format_duration(max_pending_seconds)} without capacity"
    if max_wait_seconds is not None:
        max_wait_prefix = "; one segment is stopped after" if has_segments else ", or"
        limit_text += f"{max_wait_prefix} {format_duration(max_wait_seconds)} of training and waiting"
    return limit_text


def _schedule_text(schedule: Schedule) -> str:
    """Expected goodput and duration."""
    return (
        f"{schedule.goodput:.1%} of the time is useful training; {format_seconds(schedule.makespan)} from "
        "the first start to the last end, if every segment takes its full time"
    )


def _paid_time_text(plan: RunPlan, schedule: Schedule) -> str:
    """Return for how long ``limits.max_cost`` pays, if that is less than the training time of the run."""
    cost, max_cost = plan.cost, plan.job.limits.max_cost
    if max_cost is None or not cost.per_hour:
        return ""
    paid_seconds = max_cost / cost.per_hour * 3600 - plan.workflow.variants[0].keep_alive_seconds
    if paid_seconds >= schedule.total:
        return ""
    date_text = f", until about {cost.money_ends} if it starts today" if cost.money_ends else ""
    return (
        f"; limits.max_cost pays for {format_seconds(paid_seconds)} of it at {format_dollars(cost.per_hour)} "
        f"per hour{date_text}"
    )


def _output_prefix(planned_job: PlannedJob) -> str:
    """Prefix of everything that the job writes."""
    kind = JOB_KINDS[planned_job.operation]
    output_uri = str(get_at_path(planned_job.request, kind.request_path_by_field["output"]))
    # The service adds the job's name, unless the request has it.
    return output_uri if kind.output_suffix else f"{output_uri.rstrip('/')}/{planned_job.name}/output/"


def _hosts_text(plan: RunPlan, request: Mapping[str, Any]) -> str:
    """Return hosts, instance type, alternatives, disk, spot and warm pool, as a row of the summary.
    ``request``: of the first job. The first of the preferred types is the plan's."""
    catalog_entry = instances.find_instance_type(plan.instance_type)
    type_text = f" ({catalog_entry.describe()})" if catalog_entry else ""
    has_nvme_disk = catalog_entry is not None and bool(catalog_entry.nvme_gb)
    # Types with NVMe disks have no volume. The request's cluster has type, number and volume of the hosts.
    disk_text = "" if has_nvme_disk else f", {_cluster_config_of(request)['VolumeSizeInGB']} GB disk"
    compute = plan.job.compute
    alternatives = "".join(f", or {name}" for name in compute.instance_preferences[1:])
    spot_text = ", spot" if compute.spot else ""
    keep_alive_text = f", kept for {compute.keep_alive} after the job" if compute.keep_alive else ""
    hosts_text = compute.groups_text or f"{plan.hosts} x {plan.instance_type}{type_text}{alternatives}"
    return f"{hosts_text}{disk_text}{spot_text}{keep_alive_text}"


def _cluster_config_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request's member with instance type, count and volume."""
    resources: Mapping[str, Any] = (
        request.get("ResourceConfig") or request["ProcessingResources"]["ClusterConfig"]
    )
    return resources


def _network_setting_texts(job: Job) -> Iterator[str]:
    """Yield descriptions of the job's network settings that are not the defaults."""
    if job.network_isolation:
        yield "isolated: no way out of the hosts"
    if job.encrypt_traffic:
        yield "traffic between hosts encrypted"
    if job.subnets:
        yield f"subnets {' '.join(job.subnets)} with security groups {' '.join(job.security_groups)}"


_DISTRIBUTION_TEXT_BY_SPLIT_VIA = {
    VIA_SHARDS: "its shards are distributed to the hosts",
    VIA_LISTS: "each host reads its own list",
    VIA_JOBS: "a job for each shard",
}


def _shard_balance_text(sharding: InputSharding) -> str:
    """``61.2 MB to 61.9 MB a host (1.004 x the least possible); by count up to 93.0 MB (1.51 x)``."""
    smallest, largest = format_size(min(sharding.bytes_by_host)), format_size(max(sharding.bytes_by_host))
    amount = largest if smallest == largest else f"{smallest} to {largest}"
    balance_text = f"{amount} a host ({sharding.imbalance:.4f} x the least possible)"
    if sharding.split_via == VIA_SHARDS:
        return balance_text
    return (
        f"{balance_text}; by count up to {format_size(max(sharding.bytes_by_count))} "
        f"({sharding.imbalance_by_count:.4f} x)"
    )


def _input_text(
    channel: Channel, input_facts: InputFacts, host_count: int, sharding: InputSharding | None
) -> str:
    """Return address, size, input mode and distribution of an input channel, as a row of the summary.

    ``input_facts``: what discovery found about its data. ``sharding``: how its files are distributed; None
    unless the job splits it by bytes."""
    if channel.file_system is not None:
        return f"{channel.uri}, mounted on every host ({channel.access})"
    input_mode: str = channel.mode
    if sharding is not None:
        distribution_text = _DISTRIBUTION_TEXT_BY_SPLIT_VIA[sharding.split_via]
        # Hosts that read by a list of files see all files, and copy none.
        if sharding.split_via == VIA_LISTS:
            input_mode = "FastFile"
    elif channel.split == "key" and host_count > 1:
        distribution_text = "a shard for each host"
    else:
        distribution_text = "all of it on every host"
    if channel.instance_groups:
        distribution_text += f" of {' and '.join(channel.instance_groups)}"
    more_text = " or more" if input_facts.is_truncated else ""  # counting stopped at a limit
    amount_texts: list[str] = []
    if input_facts.objects is not None:
        amount_texts.append(_count_text(input_facts.objects, "file" if channel.is_local else "object"))
    if input_facts.bytes is not None:
        amount_texts.append(format_size(input_facts.bytes))
    amounts = [text + more_text for text in amount_texts]
    return ", ".join([channel.uri, *amounts, f"{input_mode} mode", distribution_text])


def _cost_text(plan: RunPlan) -> str:
    """Cost per hour and in total."""
    cost = plan.cost
    if cost.per_hour is None or cost.maximum is None:
        return f"unknown: {cost.note}"
    if cost.per_hour == 0:
        return f"none: {cost.note}"
    return f"{format_dollars(cost.per_hour)} per hour, {largest_bill_text(cost)} ({cost.note})"


def largest_bill_text(cost: Cost) -> str:
    """Return the largest bill of a plan with a known price: ``at most $14.44 and 30 GB of disk``."""
    volume_text = f" and {cost.volume_gb:,} GB of disk" if cost.volume_gb else ""
    return f"at most {format_dollars(cost.maximum or 0.0)}{volume_text}"


def describe_launch_steps(plan: RunPlan) -> Iterator[str]:
    """Yield what launching the plan does, in order, as clauses: uploads, then requests. With one run for each
    shard of the data, the uploads are those of the first."""
    yield from _describe_uploads(plan.shard_plans[0].uploads if plan.shard_plans else plan.uploads)
    first_job, last_job = plan.planned_jobs[0], plan.planned_jobs[-1]
    if plan.shard_plans:
        yield f"send {first_job.operation} {first_job.name}, and do the same for the other shards"
        yield "drive each shard separately, and retry only those that fail"
        return
    yield f"send {first_job.operation} {first_job.name}"
    # A run of several segments, each a job that continues from the checkpoint of the one before.
    if first_job is not last_job:
        yield (
            f"when a job ends with a committed checkpoint send the next, up to {last_job.name} if none fails"
        )


def _describe_uploads(uploads: Sequence[Upload]) -> Iterator[str]:
    """Yield what is uploaded where, as clauses, files of the same folder together: smlaunch's runtime and
    job.json; source and local data, unless they are there; the lists of the files that each host reads."""
    launch_uploads = [upload for upload in uploads if upload.kind in ("runtime", "launch")]
    for folder, folder_uploads in groupby(launch_uploads, _folder_of_upload):
        yield f"put {_file_names(folder_uploads)} at {folder}/"
    for upload in uploads:
        if upload.kind in ("source", "data"):
            size_text = f" ({format_size(upload.bytes)})" if upload.bytes is not None else ""
            yield (
                f"put the {upload.kind}, {upload.path}{size_text}, at {_shortened_uri_of(upload)}, unless it "
                "exists"
            )
    list_uploads = [upload for upload in uploads if upload.kind == "shards"]
    for folder, folder_uploads in groupby(list_uploads, _folder_of_upload):
        yield f"put what each host reads, {_file_names(folder_uploads)}, at {folder}/"


def _folder_of_upload(upload: Upload) -> str:
    return upload.uri.rpartition("/")[0]


def _file_names(uploads: Iterable[Upload]) -> str:
    """Names of the uploaded files, abbreviated."""
    names = [upload.uri.rpartition("/")[2] for upload in uploads]
    return " and ".join(names) if len(names) < 4 else f"{names[0]} to {names[-2]} and {names[-1]}"


def _shortened_uri_of(upload: Upload) -> str:
    """The address with an abbreviated hash: the request contains all of it."""
    return upload.uri.replace(upload.sha256, upload.sha256[:12] + "...") if upload.sha256 else upload.uri


def _table_lines(pairs: Iterable[tuple[str, str]], width: int | None) -> list[str]:
    rows = list(pairs)
    label_width = max(len(label) for label, _ in rows) + 2
    lines = (f"  {label:<{label_width}}{value}" for label, value in rows)
    return list(_wrapped_lines(lines, width, " " * label_width))


def _wrapped_lines(lines: Iterable[str], width: int | None, indent: str) -> Iterator[str]:
    """Wrap lines at words to ``width`` columns; None leaves them whole."""
    for line in lines:
        yield from [line] if width is None else wrap_words(line, width, indent)


def _count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
