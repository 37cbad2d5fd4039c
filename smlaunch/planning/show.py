"""A plan for people and for programs. Both say the same, and all of it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from smlaunch.catalog import instances
from smlaunch.job import Channel, format_duration
from smlaunch.planning.cost import dollars
from smlaunch.planning.plan import Plan, Task, Upload
from smlaunch.planning.surroundings import InputFacts
from smlaunch.protocol.launch_spec import AUTO, Ref, Word
from smlaunch.protocol.paths import RUNTIME_CHANNEL, SOURCE_CHANNEL

_WIDTH = 100
_LABEL = 14


def as_dict(plan: Plan) -> dict[str, Any]:
    """The document of ``plan --json``: everything in plain types."""
    return {
        "run": plan.run,
        "job_hash": plan.job_hash,
        "target": plan.surroundings.target,
        "region": plan.surroundings.region,
        "strategy": plan.strategy,
        "hosts": plan.hosts,
        "processes_per_host": plan.processes_per_host,
        "instance_type": plan.instance_type,
        "image": plan.image,
        "reasons": [{"rule": reason.rule, "because": reason.because} for reason in plan.reasons],
        "warnings": list(plan.warnings),
        "segments": [
            {"index": segment.index, "max_runtime": segment.max_runtime} for segment in plan.segments
        ],
        "parts": [
            {"channel": name, "hosts": plan.hosts, "objects": _facts(plan, name, channel).objects}
            for name, channel in plan.job.inputs.items()
            if channel.split == "key"
        ],
        "cost": {
            "known": plan.cost.known,
            "per_hour": plan.cost.per_hour,
            "at_most": plan.cost.at_most,
            "currency": "USD",
            "note": plan.cost.note,
        },
        "uploads": [
            {"kind": upload.kind, "uri": upload.uri, "path": upload.path, "sha256": upload.sha256}
            for upload in plan.uploads
        ],
        "requests": [dict(request) for request in plan.requests],
    }


def as_text(plan: Plan) -> str:
    blocks = [
        [_headline(plan), ""],
        *([[*_labelled(_decisions(plan)), ""]]),
        ["Why", *_reasons(plan), ""],
    ]
    if plan.warnings:
        blocks.append(["Watch out", *_bullets(plan.warnings), ""])
    blocks.append(["What launching does", *_steps(plan)])
    return "\n".join(line for block in blocks for line in block)


def _headline(plan: Plan) -> str:
    where = f"region {plan.surroundings.region}"
    if plan.surroundings.target == "local":
        level = plan.surroundings.endpoint.isolation
        where = "this machine" + (f", isolation {level}" if level else "")
    return (
        f"Run {plan.run}: {plan.surroundings.source.entry} on {_ranks(plan)}, by {plan.strategy}, on {where}"
    )


def _ranks(plan: Plan) -> str:
    hosts = _count(plan.hosts, "host")
    if plan.processes_per_host == AUTO:
        return f"{hosts}, one process per accelerator"
    if plan.processes_per_host == 1:
        return f"{hosts}" + (", one process each" if plan.hosts > 1 else ", one process")
    return f"{hosts} x {_count(int(plan.processes_per_host), 'process', 'processes')}"


def _decisions(plan: Plan) -> Iterator[tuple[str, str]]:
    (task,) = plan.tasks
    request = task.request
    known = instances.find(plan.instance_type)
    yield "job", task.name
    yield "command", _command(task)
    if plan.job.hyperparameters:
        yield (
            "hyperparams",
            " ".join(
                f"{key}={shlex.quote(value)}" for key, value in sorted(request["HyperParameters"].items())
            ),
        )
    for name, value in plan.job.environment.items():
        yield "environment", f"{name}={shlex.quote(value)}"
    size = f" ({known.describe()})" if known else ""
    yield "hosts", f"{plan.hosts} x {plan.instance_type}{size}" + (", spot" if plan.job.compute.spot else "")
    yield "image", plan.image
    for name, channel in plan.job.inputs.items():
        yield f"input {name}", _input(channel, _facts(plan, name, channel), plan.hosts)
    if plan.job.checkpoints is not None:
        yield "checkpoints", f"{plan.job.checkpoints.uri}  <->  {plan.job.checkpoints.local_path}"
    yield "output", f"{request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{task.name}/output/"
    yield "role", request["RoleArn"]
    stopping = request["StoppingCondition"]
    limit = f"{format_duration(stopping['MaxRuntimeInSeconds'])}, then stopped"
    if "MaxWaitTimeInSeconds" in stopping:
        limit += f"; {format_duration(stopping['MaxWaitTimeInSeconds'])} with waiting for capacity"
    yield "time limit", limit
    yield "cost", _cost(plan)


def _command(task: Task) -> str:
    if task.launch_spec is None:
        return "the image's own program"
    return " ".join(_word(word) for word in task.launch_spec.ranks.argv)


def _word(word: Word) -> str:
    if not isinstance(word, Ref):
        return shlex.quote(word)
    if word.name == "source":
        return shlex.quote(word.suffix.lstrip("/"))
    if word.name == "hyperparameters":
        return "--key value ..."
    return word.prefix + word.name + word.suffix


def _input(channel: Channel, facts: InputFacts, hosts: int) -> str:
    how = "a part for each host" if channel.split == "key" and hosts > 1 else "all of it on every host"
    amount = []
    if facts.objects is not None:
        more = " or more" if facts.capped else ""
        amount.append(_count(facts.objects, "file" if channel.is_local else "object") + more)
    if facts.bytes is not None:
        amount.append(size(facts.bytes))
    return "; ".join([channel.uri, f"{channel.mode}, {how}", *([", ".join(amount)] if amount else [])])


def _cost(plan: Plan) -> str:
    cost = plan.cost
    if cost.per_hour is None or cost.at_most is None:
        return f"unknown: {cost.note}"
    if cost.per_hour == 0:
        return f"none: {cost.note}"
    return f"{dollars(cost.per_hour)} per hour, at most {dollars(cost.at_most)} ({cost.note})"


def _reasons(plan: Plan) -> Iterator[str]:
    for reason in plan.reasons:
        yield from textwrap.wrap(
            f"{reason.because} [{reason.rule}]",
            _WIDTH,
            initial_indent="  - ",
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
        )


def _steps(plan: Plan) -> Iterator[str]:
    steps = [_upload(upload) for upload in plan.uploads]
    for task in plan.tasks:
        own = (RUNTIME_CHANNEL, SOURCE_CHANNEL)
        channels = [
            channel["ChannelName"]
            for channel in task.request.get("InputDataConfig", ())
            if channel["ChannelName"] not in own
        ]
        names = f" with inputs {', '.join(channels)}" if channels else ""
        steps.append(f"send {task.operation} {task.name}{names}")
    for number, step in enumerate(steps, 1):
        yield f"  {number}. {step}"


def _upload(upload: Upload) -> str:
    amount = f" ({size(upload.bytes)})" if upload.bytes is not None else ""
    unless = ", unless it is there" if upload.sha256 else ""
    what = {
        "runtime": "the runtime",
        "launch": "what to start",
        "source": f"the source {upload.path}{amount}",
        "data": f"the data {upload.path}{amount}",
    }[upload.kind]
    return f"put {what} at {_short(upload)}{unless}"


def _short(upload: Upload) -> str:
    """A content hash is cut to its beginning: the request has it whole."""
    return upload.uri.replace(upload.sha256, upload.sha256[:12] + "...") if upload.sha256 else upload.uri


def _labelled(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = list(pairs)
    width = max(_LABEL, *(len(label) + 2 for label, _ in rows))
    for label, value in rows:
        yield f"  {label:<{width}}{value}"


def _bullets(sentences: Iterable[str]) -> Iterator[str]:
    for sentence in sentences:
        yield from textwrap.wrap(
            sentence,
            _WIDTH,
            initial_indent="  ! ",
            subsequent_indent="    ",
            break_on_hyphens=False,
            break_long_words=False,
        )


def _facts(plan: Plan, name: str, channel: Channel) -> InputFacts:
    facts = plan.surroundings.inputs.get(name)
    return facts or InputFacts(channel.uri, "local" if channel.is_local else "s3")


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(count: int) -> str:
    """Bytes as people say them, in powers of 1,000: ``1.3 MB``."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            return f"{count:,} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError("TB takes whatever is left")
