"""A plan for people and for programs. Both say the same, and all of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

from smlaunch.catalog import instances
from smlaunch.job import Channel, Job, format_duration
from smlaunch.masking import MASK, mask, mask_text, masked, masked_words
from smlaunch.planning.carry import JOBS, LISTS, SHARDS
from smlaunch.planning.cost import dollars
from smlaunch.planning.plan import Carried, Plan, Schedule, Task, Upload
from smlaunch.planning.prose import bullets, size, visible
from smlaunch.planning.segments import span
from smlaunch.planning.show_candidates import as_row, comparison
from smlaunch.planning.surroundings import InputFacts
from smlaunch.protocol.launch_spec import (
    ALL,
    AUTO,
    LEADER,
    RUNTIME,
    CheckpointSpec,
    Joined,
    Ref,
    Service,
    Word,
)
from smlaunch.protocol.segment import SYNC
from smlaunch.request import PROCESSING


def as_dict(plan: Plan) -> dict[str, Any]:
    """The document of ``plan --json``: everything in plain types, secrets masked. docs/planner.md says what
    the keys are."""
    launch = plan.tasks[0].launch_spec
    document = {
        "run": plan.run,
        "job_hash": plan.job_hash,
        "target": plan.surroundings.target,
        "region": plan.surroundings.region,
        "strategy": plan.strategy,
        "hosts": plan.hosts,
        "processes_per_host": plan.processes_per_host,
        "instance_type": plan.instance_type,
        "instance_preferences": list(plan.job.compute.instance_preferences),
        "image": plan.image,
        "reasons": [{"rule": reason.rule, "because": reason.because} for reason in plan.reasons],
        "warnings": list(plan.warnings),
        "left_out": [
            {"field": where, "file": name, "because": why}
            for where, files in plan.left_out_by_field.items()
            for name, why in sorted(files.items())
        ],
        "segments": [asdict(segment) for segment in plan.segments],
        "schedule": None if plan.schedule is None else asdict(plan.schedule),
        "checkpoints": None if plan.checkpoints is None else plan.checkpoints._asdict(),
        "parts": [
            {"channel": name, "hosts": plan.hosts, "objects": _facts(plan, name, channel).objects}
            for name, channel in plan.job.inputs.items()
            if channel.split == "key"
        ]
        + [_parts(carried) for carried in plan.carried],
        "cost": {
            "known": plan.cost.known,
            "per_hour": plan.cost.per_hour,
            "at_most": plan.cost.at_most,
            "currency": "USD",
            "note": plan.cost.note,
        },
        "candidates": [as_row(candidate) for candidate in plan.candidates],
        "uploads": [
            {"kind": upload.kind, "uri": upload.uri, "path": upload.path, "sha256": upload.sha256}
            for upload in plan.uploads
        ],
        "launch": None if launch is None else json.loads(launch.to_json()),
        "requests": [dict(request) for request in plan.requests],
    }
    return {key: mask(value) for key, value in document.items()}


def _parts(carried: Carried) -> dict[str, Any]:
    per_host = zip(carried.by_bytes, carried.files, carried.by_count, strict=True)
    return {
        "channel": carried.channel,
        "hosts": len(carried.files),
        "objects": sum(carried.files),
        "carry": carried.way,
        "method": carried.method,
        "imbalance": carried.imbalance,
        "imbalance_by_count": carried.imbalance_by_count,
        "parts": [
            {"host": host, "bytes": own, "keys": files, "bytes_by_count": by_count}
            for host, (own, files, by_count) in enumerate(per_host)
        ],
    }


Paint = Callable[[str, str], str]
"""Colours a line (heading, chosen, warning) for a terminal: what it is, and its text."""


def as_text(plan: Plan, paint: Paint | None = None) -> str:
    """The plan for people, secrets masked; with ``paint`` for a terminal that knows colours."""
    reasons = (f"{reason.because} [{reason.rule}]" for reason in plan.reasons)
    blocks = [[headline(plan)], _table(decisions(plan)), ["Why", *bullets("-", reasons)]]
    if plan.warnings:
        blocks.append(["Watch out", *bullets("!", plan.warnings)])
    if len(plan.candidates) > 1:
        blocks.append(comparison(plan.candidates))
    launching = (f"  {number}. {step}" for number, step in enumerate(steps(plan), 1))
    blocks.append(["What launching does", *launching])
    return "\n\n".join("\n".join(_painted(line, paint) for line in block) for block in blocks)


def _painted(line: str, paint: Paint | None) -> str:
    text = visible(mask_text(line))
    if paint is None:
        return text
    if not text.startswith(" "):
        return paint("heading", text)
    mark = text.lstrip()[:2]
    return paint({"* ": "chosen", "! ": "warning"}.get(mark, "line"), text)


def headline(plan: Plan) -> str:
    where = f"in region {plan.surroundings.region}"
    if plan.surroundings.target == "local":
        endpoint = plan.surroundings.endpoint
        kind = "containers by" if endpoint.runs_images else "isolation"
        where = "on this machine" + (f" ({kind} {endpoint.isolation})" if endpoint.isolation else "")
    program = plan.surroundings.source.entry or plan.job.program
    return f"Run {plan.run}: {program} on {_ranks(plan)}, by {plan.strategy}, {where}"


def _ranks(plan: Plan) -> str:
    hosts = _count(plan.hosts, "host")
    if plan.processes_per_host == AUTO:
        return f"{hosts} with a rank for each accelerator"
    total = _count(plan.hosts * int(plan.processes_per_host), "rank")
    if 1 in (plan.hosts, plan.processes_per_host):
        return f"{hosts} = {total}" if plan.processes_per_host == 1 else f"{hosts} with {total}"
    return f"{hosts} x {plan.processes_per_host} processes = {total}"


def decisions(plan: Plan) -> Iterator[tuple[str, str]]:
    task = plan.tasks[0]
    job, request = plan.job, task.request
    yield "job", task.name + (f" to {plan.parts[-1].tasks[0].name}" if plan.parts else "")
    if plan.schedule is not None:
        yield "segments", _segments(plan)
    yield "command", _command(task)
    for service in () if task.launch_spec is None else task.launch_spec.services:
        yield f"beside it, {service.name}", _service(service)
    if job.hyperparameters:
        yield "hyperparameters", "  ".join(_pair(*item) for item in sorted(job.hyperparameters.items()))
    if job.requirements:
        yield "installs", job.requirements
    if job.environment:
        yield "environment", "  ".join(_pair(*item) for item in job.environment.items())
    if plan.surroundings.target == "local" and not plan.surroundings.endpoint.runs_images:
        yield "hosts", f"{plan.hosts} on this machine, recorded as {plan.instance_type}"
        yield "image", f"not run, recorded as {plan.image}"
    else:
        yield "hosts", _machines(plan, request)
        yield "image", plan.image
    for name, channel in job.inputs.items():
        carried = next((one for one in plan.carried if one.channel == name), None)
        yield f"input {name}", _input(channel, _facts(plan, name, channel), plan.hosts, carried)
        if carried is not None:
            yield f"parts of {name}", _fullest(carried)
    if plan.checkpoints is not None:
        yield "checkpoints", _checkpoints(plan.checkpoints, plan)
    others = ", and so for each part" if plan.parts else ""
    yield "output", _output(task) + others
    network = list(_network(job))
    if network:
        yield "network", ", ".join(network)
    yield "role", request["RoleArn"]
    yield "time limit", _time_limit(plan, request["StoppingCondition"])
    if plan.schedule is not None:
        yield "expected", _expected(plan.schedule)
    if job.deterministic:
        yield "deterministic", "asked of smlaunch.train"
    if job.limits.hang is not None:
        yield "hang", f"after {job.limits.hang} without output and CPU use on a host"
    yield "cost", _cost(plan)
    if job.tags:
        yield "tags", "  ".join(_pair(*item) for item in job.tags.items())


def _segments(plan: Plan) -> str:
    """``60 x 24h + 5h; the first ends itself after 23h55m``."""
    runs = [(span(length), len(list(of))) for length, of in groupby(s.max_runtime for s in plan.segments)]
    told = " + ".join(length if count == 1 else f"{count} x {length}" for length, count in runs)
    after = plan.segments[0].stop_after
    return told if after is None else f"{told}; the first ends itself after {span(after)}"


def _checkpoints(kept: CheckpointSpec, plan: Plan) -> str:
    how = "kept in step with" if kept.carrier == SYNC else "each rank's part moved from and to"
    often = ""
    if kept.interval_seconds is not None:
        often = f", one every {span(kept.interval_seconds)}"
    elif plan.schedule is not None and plan.schedule.interval < plan.schedule.segment:
        often = f", one every {span(plan.schedule.interval)} or as measured"
    elif plan.schedule is not None:
        often = ", one at each planned end or as measured"
    return f"{kept.uri}, {how} {kept.path}{often}; the newest {kept.keep} stay"


def _time_limit(plan: Plan, stopping: Mapping[str, int]) -> str:
    wait, pending = stopping.get("MaxWaitTimeInSeconds"), stopping.get("MaxPendingTimeInSeconds")
    if plan.schedule is not None:
        limit = f"{format_duration(plan.schedule.total)} of training in all"
        with_wait = "; one segment is stopped after"
    else:
        limit = f"stopped after {format_duration(stopping['MaxRuntimeInSeconds'])} of training"
        with_wait = ", or"
    if pending is not None:
        limit += f"; given up after {format_duration(pending)} without capacity"
    return limit if wait is None else f"{limit}{with_wait} {format_duration(wait)} of training and waiting"


def _expected(schedule: Schedule) -> str:
    return (
        f"{schedule.goodput:.1%} of the time is training that counts; {span(schedule.makespan)} from the "
        "first start to the last end, should every segment take its whole time"
    )


def _output(task: Task) -> str:
    """Below which all lies that the job leaves."""
    request = task.request
    if task.operation == PROCESSING:
        return str(request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"])
    return f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{task.name}/output/"


def _machines(plan: Plan, request: Mapping[str, Any]) -> str:
    known = instances.find(plan.instance_type)
    about = f" ({known.describe()})" if known else ""
    # Types with NVMe disks of their own have no volume.
    disk = "" if known and known.nvme_gb else f", {_resources(request)['VolumeSizeInGB']} GB disk"
    compute = plan.job.compute
    others = "".join(f", or {name}" for name in compute.instance_preferences[1:])
    spot = ", spot" if compute.spot else ""
    kept = f", kept for {compute.keep_alive} after the job" if compute.keep_alive else ""
    return f"{plan.hosts} x {plan.instance_type}{about}{others}{disk}{spot}{kept}"


def _resources(request: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (
        request.get("ResourceConfig") or request["ProcessingResources"]["ClusterConfig"]
    )
    return found


def _network(job: Job) -> Iterator[str]:
    if job.network_isolation:
        yield "isolated: no way out of the hosts"
    if job.encrypt_traffic:
        yield "traffic between hosts encrypted"
    if job.subnets:
        yield f"subnets {' '.join(job.subnets)} with security groups {' '.join(job.security_groups)}"


def _command(task: Task) -> str:
    if task.launch_spec is None:
        program = task.request.get("AlgorithmSpecification") or task.request["AppSpecification"]
        return " ".join(["the image's own program", *_shown_words(program.get("ContainerArguments", ()))])
    words = task.launch_spec.ranks.argv
    if "HyperParameters" not in task.request:
        words = tuple(word for word in words if word != Ref("hyperparameters"))
    by = "" if task.launch_spec.ranks.launcher == RUNTIME else f"{task.launch_spec.ranks.launcher}: "
    where = " (on the leader alone)" if task.launch_spec.ranks.on == LEADER else ""
    return by + " ".join(_shown_words(words)) + where


def _service(service: Service) -> str:
    """``every host: ray start --block``."""
    where = {LEADER: "the leader", ALL: "every host"}.get(service.on, "the other hosts")
    return f"{where}: {' '.join(_shown_words(service.argv))}"


def _shown_words(words: Iterable[Word]) -> Iterator[str]:
    # A word with references in it is a tuple, which masking would take for a list.
    own = list(words)
    for word, shown in zip(own, masked_words(w if isinstance(w, str) else None for w in own), strict=True):
        yield _word(word if shown is None else shown)


def _word(word: Word) -> str:
    """``<...>`` is what only a host knows, ``<port+4>`` the fifth of the job's ports."""
    if isinstance(word, Joined):
        return "".join(map(_word, word.words))
    if not isinstance(word, Ref):
        return shlex.quote(word) if word.isprintable() else json.dumps(word)
    if word.name == "source":
        return shlex.quote(word.suffix.lstrip("/"))
    if word.name == "hyperparameters":
        return "[hyperparameters as --key value]"
    if word.name == "python":
        return word.name
    return f"{word.prefix}<{word.name}{f'+{word.offset}' if word.offset else ''}>{word.suffix}"


def _pair(key: str, value: Any) -> str:
    """``lr=0.1``, ``note="two words"``, ``api_key=****``: on one line, whatever the value."""
    value = masked(key, value)
    if value == MASK:
        return f"{key}={MASK}"
    bare = isinstance(value, str) and shlex.quote(value) == value
    return f"{key}={value if bare else json.dumps(value, ensure_ascii=not str(value).isprintable())}"


_HOW = {
    SHARDS: "its shards dealt out to the hosts",
    LISTS: "each host reads its own list",
    JOBS: "a job for each part",
}


def _fullest(carried: Carried) -> str:
    """``61.2 MB to 61.9 MB a host (1.004 x the least possible); by count up to 93.0 MB (1.51 x)``."""
    low, high = size(min(carried.by_bytes)), size(max(carried.by_bytes))
    amount = high if low == high else f"{low} to {high}"
    text = f"{amount} a host ({carried.imbalance:.4f} x the least possible)"
    if carried.way == SHARDS:
        return text
    return f"{text}; by count up to {size(max(carried.by_count))} ({carried.imbalance_by_count:.4f} x)"


def _input(channel: Channel, facts: InputFacts, hosts: int, carried: Carried | None) -> str:
    how = "a part for each host" if channel.split == "key" and hosts > 1 else "all of it on every host"
    mode = channel.mode
    if carried is not None:
        how, mode = _HOW[carried.way], "FastFile" if carried.way == LISTS else mode
    amount = []
    if facts.objects is not None:
        more = " or more" if facts.capped else ""
        amount.append(_count(facts.objects, "file" if channel.is_local else "object") + more)
    if facts.bytes is not None:
        amount.append(size(facts.bytes))
    return ", ".join([channel.uri, *amount, f"{mode} mode", how])


def _cost(plan: Plan) -> str:
    cost = plan.cost
    if cost.per_hour is None or cost.at_most is None:
        return f"unknown: {cost.note}"
    if cost.per_hour == 0:
        return f"none: {cost.note}"
    return f"{dollars(cost.per_hour)} per hour, at most {dollars(cost.at_most)} ({cost.note})"


def steps(plan: Plan) -> Iterator[str]:
    own = plan.parts[0].uploads if plan.parts else plan.uploads
    launch = [upload for upload in own if upload.kind in ("runtime", "launch")]
    for folder, uploads in groupby(launch, lambda upload: upload.uri.rpartition("/")[0]):
        yield f"put the runtime and its orders, {_names(uploads)}, at {folder}/"
    for upload in own:
        if upload.kind in ("source", "data"):
            amount = f" ({size(upload.bytes)})" if upload.bytes is not None else ""
            yield f"put the {upload.kind}, {upload.path}{amount}, at {_short(upload)}, unless it is there"
    lists = [upload for upload in own if upload.kind == "parts"]
    for folder, uploads in groupby(lists, lambda upload: upload.uri.rpartition("/")[0]):
        yield f"put what each host reads, {_names(uploads)}, at {folder}/"
    first, last = plan.tasks[0], plan.tasks[-1]
    if plan.parts:
        yield f"send {first.operation} {first.name}, and do the same for the other parts"
        yield "drive each part on its own, tried again alone if it fails"
        return
    yield f"send {first.operation} {first.name}"
    if first is not last:
        yield f"with each committed checkpoint at a job's end send the next, to {last.name} if none fails"


def _names(uploads: Iterable[Upload]) -> str:
    names = [upload.uri.rpartition("/")[2] for upload in uploads]
    return " and ".join(names) if len(names) < 4 else f"{names[0]} to {names[-2]} and {names[-1]}"


def _short(upload: Upload) -> str:
    """A content hash is cut to its beginning: the request has it whole."""
    return upload.uri.replace(upload.sha256, upload.sha256[:12] + "...") if upload.sha256 else upload.uri


def _table(pairs: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(pairs)
    width = max(len(label) for label, _ in rows) + 2
    return [f"  {label:<{width}}{value}" for label, value in rows]


def _facts(plan: Plan, name: str, channel: Channel) -> InputFacts:
    facts = plan.surroundings.inputs.get(name)
    return facts or InputFacts(channel.uri, "local" if channel.is_local else "s3")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
