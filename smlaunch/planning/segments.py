"""How a run is cut into segments, when each of them ends itself, and what that comes to. Pure.

The rule for a segment's planned end: before its time limit there must be room for a stop (the 120 s that the
service leaves after SIGTERM), for the last checkpoint and its way to S3, and for the data that came before
the training if the service counts that; short segments give a quarter of themselves instead. What nobody
knows before a run (the state's size, how often hosts fail) is assumed, and said to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from smlaunch.job import Job, SegmentChange, format_duration, parse_duration
from smlaunch.planning.notes import Notes
from smlaunch.planning.plan import Schedule
from smlaunch.planning.surroundings import Surroundings
from smlaunch.protocol.daly import daly_interval, segment_progress
from smlaunch.protocol.segment import DIRECT

DEFAULT_MAX_RUNTIME = 86400
LONGEST_RUNTIME = 28 * 86400
"""Seconds; both from the API reference of StoppingCondition."""

DEFAULT_QUOTA = 5 * 86400
"""Seconds: AWS's default of the quota "Longest run time for a training job"."""

MOST_SEGMENTS = 999
"""A job's name has room for so many."""

STOP_SECONDS = 120
ASSUMED_SAVE = 180.0
SHORT_SHARE = 0.25
"""Of a segment at most so much lies after its planned end."""

HOST_MTBF = 54 * 86400 * 2048 / 466
"""Seconds, 237 days: Llama 3's training saw 466 interruptions of 2,048 hosts in 54 days (Meta, 2024)."""

SPOT_MTBF = 5 * 86400
"""Seconds, of one host: an assumption on the careful side; AWS's Spot Advisor only says "more than 20 % a
month" for the worst types."""

ASSUMED_STALL = 1.0
COPY_RATE = 2e9
"""Bytes per second of a copy in a host's memory: the stall of a checkpoint whose size is known."""

S3_RATE = 2e8
"""Bytes per second that one host moves to or from S3, on the careful side."""

START_SECONDS = 60.0
"""From a region's host running until its ranks train: imports, joining, compiling."""

PROVISIONING = 300.0
"""Until a region has the next job's hosts ready; it is not billed."""

WORTHWHILE = 0.8
"""A goodput below this is warned of."""


@dataclass(frozen=True)
class Shape:
    """What segments from number ``first`` on are like. ``job``: with the change laid over it. ``length``:
    seconds until the service stops one; ``stop_after``: until it ends itself, None without a planned end;
    ``margin``: what is left of it then for leaving."""

    first: int
    job: Job
    length: int
    stop_after: int | None = None
    margin: int | None = None
    until_step: int | None = None

    @property
    def wall(self) -> int:
        """Seconds that a whole one takes when it ends itself."""
        return self.length if self.stop_after is None else self.length - (self.margin or 0)


def total_seconds(job: Job, notes: Notes) -> int:
    """Of training, all segments together."""
    if job.limits.max_runtime is not None:
        return parse_duration(job.limits.max_runtime)
    lengths = [change.length for change in job.segments]
    stated = [parse_duration(length) for length in lengths if length is not None]
    if stated and len(stated) == len(lengths):
        notes.because("limit.lengths", "The job states no limits.max_runtime; its segments' lengths add up.")
        return sum(stated)
    notes.because("limit.default", "The job states no limits.max_runtime; 24h is the API's default.")
    return DEFAULT_MAX_RUNTIME


def longest_job(job: Job, surroundings: Surroundings, total: int, notes: Notes) -> int:
    """Seconds that one job may train: the service's limit, the account's and the job's own."""
    limit = LONGEST_RUNTIME
    own = None if job.limits.segment is None else parse_duration(job.limits.segment)
    if own is not None and own > LONGEST_RUNTIME:
        notes.refuse("limits.segment", f"{job.limits.segment} is longer than the 28d a training job may run")
    if surroundings.longest_run is not None and surroundings.longest_run < LONGEST_RUNTIME:
        limit = surroundings.longest_run
        if min(total, own or total) > limit:
            notes.because(
                "segment.quota",
                f"The account's quota lets a training job run for {format_duration(limit)} at most.",
            )
    elif min(total, own or total) > DEFAULT_QUOTA and surroundings.target == "aws":
        why = surroundings.longest_run_problem
        if why is not None:
            notes.warn(
                f"The account's quota for the longest run of a training job could not be read ({why}); AWS's "
                "default is 5d, and longer jobs are refused then: state limits.segment if yours is lower."
            )
    return min(limit, own or limit)


def is_chain(job: Job, total: int, limit: int) -> bool:
    """A run may take several jobs when it is asked to, or when no single one may last as long."""
    return job.limits.segment is not None or bool(job.segments) or total > limit


# ---- cutting ---------------------------------------------------------------------------------------------


def single(job: Job, total: int) -> tuple[Shape, ...]:
    return (Shape(1, job, total),)


def cut(job: Job, surroundings: Surroundings, total: int, limit: int, notes: Notes) -> tuple[Shape, ...]:
    """The shapes of a chain's segments, in order."""
    costs = Costs.of(job, surroundings)
    changes = job.segments or (SegmentChange(),)
    shapes = []
    for index, change in enumerate(changes):
        length = min(limit, total)
        if change.length is not None:
            asked = parse_duration(change.length)
            if asked > limit:
                notes.refuse(
                    f"segments[{index}].length",
                    f"{change.length} is longer than the {format_duration(limit)} that one job may take",
                )
            length = min(length, asked)
        margin = _margin(length, costs)
        stop_after = max(1, int(length - margin - costs.download))
        shape = Shape(index + 1, changed(job, change), length, stop_after, margin, change.until_step)
        if shape.wall <= costs.start:
            field = f"segments[{index}].length" if change.length is not None else "limits.segment"
            notes.refuse(
                field,
                f"{format_duration(length)} leaves no time to train: starting takes {span(costs.start)}, and "
                f"{span(margin)} are kept for the last checkpoint; make it longer",
            )
        shapes.append(shape)
    _explain(job, shapes, costs, total, notes)
    return tuple(shapes)


def changed(job: Job, change: SegmentChange) -> Job:
    machines = {key: value for key, value in dict(change.compute).items() if value is not None}
    return job.model_copy(
        update={
            "hyperparameters": {**job.hyperparameters, **change.hyperparameters},
            "compute": job.compute.model_copy(update=machines),
        }
    )


def _margin(length: int, costs: Costs) -> int:
    return math.ceil(min(STOP_SECONDS + costs.save, SHORT_SHARE * length))


def _explain(job: Job, shapes: Sequence[Shape], costs: Costs, total: int, notes: Notes) -> None:
    first = shapes[0]
    if job.limits.max_runtime is None and len(shapes) == 1 and total <= first.length:
        notes.warn(
            f"The job states no limits.max_runtime: {format_duration(total)} in all, which one segment of "
            f"{format_duration(first.length)} holds."
        )
    known = "the last checkpoint and its way to S3"
    if costs.state_bytes is None:
        known = f"the last checkpoint, whose size nobody knows yet ({span(ASSUMED_SAVE)} assumed)"
    if first.margin is not None and first.margin < STOP_SECONDS + costs.save:
        text = f"a quarter of its time before its limit, for {known}"
    else:
        text = f"{span(first.margin or 0)} before its limit, for a stop and {known}"
    notes.because("segment.planned-end", f"Every segment ends itself {text}.")
    if costs.download:
        brought = [
            f"{amount / 1e9:.1f} GB of {what}"
            for amount, what in ((costs.data_bytes, "data"), (costs.kept_bytes, "kept checkpoints"))
            if amount
        ]
        notes.because(
            "segment.start",
            f"Every start brings {' and '.join(brought)} to each of {costs.hosts} hosts, in "
            f"{span(costs.download)} at {S3_RATE / 1e6:.0f} MB/s assumed; the planned end is earlier by "
            "that, should the service count it.",
        )


# ---- what it costs and comes to --------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Seconds: ``download`` of data and checkpoints to a host before it trains, ``start`` with that until it
    trains, ``save`` of the last checkpoint with its upload, ``stall`` of one, ``gap`` between jobs, ``mtbf``
    of all hosts together. ``state_bytes``: of one checkpoint; None where nobody knows. ``data_bytes`` and
    ``kept_bytes``: what each of the ``hosts`` downloads."""

    download: float
    start: float
    save: float
    stall: float
    gap: float
    mtbf: float
    hosts: int
    state_bytes: int | None = None
    data_bytes: int = 0
    kept_bytes: int = 0

    @classmethod
    def of(cls, job: Job, surroundings: Surroundings) -> Costs:
        kept = surroundings.checkpoints
        state = None if kept is None else kept.step_bytes
        hosts = max([job.compute.hosts, *(change.compute.hosts or 1 for change in job.segments)])
        mtbf = (SPOT_MTBF if job.compute.spot else HOST_MTBF) / hosts
        stall = ASSUMED_STALL if state is None else state / hosts / COPY_RATE
        if surroundings.target == "local":
            save = ASSUMED_SAVE if state is None else state / S3_RATE
            return cls(0.0, 0.0, save, stall, 0.0, mtbf, hosts, state)
        data = sum(
            surroundings.inputs[name].bytes or 0
            for name, channel in job.inputs.items()
            if channel.mode == "File" and name in surroundings.inputs
        )
        synced = job.checkpoints is None or job.checkpoints.carrier != DIRECT
        copies = max(kept.bytes, (state or 0) * keep_of(job)) if kept is not None and synced else 0
        download = (data + copies) / S3_RATE
        save = ASSUMED_SAVE if state is None else 30 + state / hosts / S3_RATE
        start = download + START_SECONDS
        return cls(download, start, save, stall, PROVISIONING, mtbf, hosts, state, data, copies)


def keep_of(job: Job) -> int:
    return 3 if job.checkpoints is None else job.checkpoints.keep


def schedule(
    job: Job, surroundings: Surroundings, lengths: Sequence[int], first: Shape, total: int, notes: Notes
) -> Schedule:
    """``lengths``: seconds of the planned segments, each until it ends itself."""
    costs = Costs.of(job, surroundings)
    interval = _interval(job, costs)
    restart = costs.start + costs.gap
    useful = sum(
        segment_progress(length, min(costs.start, length), interval, costs.stall, restart, costs.mtbf)
        for length in lengths
    )
    expected = useful / sum(lengths)
    if expected < WORTHWHILE and surroundings.target == "aws":
        notes.warn(
            f"Only {expected:.0%} of the time is expected to be training that counts: of a segment of "
            f"{span(first.length)}, the start takes {span(costs.start)} and a checkpoint "
            f"{span(costs.stall)}; make segments longer."
        )
    size = "whose size nobody knows before" if costs.state_bytes is None else "by the size of those there"
    source = (
        "spot capacity, assumed" if job.compute.spot else "237 days between failures of one host, Llama 3's"
    )
    if job.checkpoints is None or job.checkpoints.interval is None:
        notes.because(
            "checkpoints.interval",
            f"Daly's formula for a stall of {costs.stall:.2g} s per checkpoint ({size}) and a failure every "
            f"{span(costs.mtbf)} ({source}) gives {span(interval)} between checkpoints; smlaunch.train goes "
            "by what it measures.",
        )
    return Schedule(
        total=total,
        segment=float(first.wall),
        start=costs.start,
        gap=costs.gap,
        stall=costs.stall,
        interval=interval,
        restart=restart,
        mtbf=costs.mtbf,
        goodput=expected,
        makespan=sum(lengths) + costs.gap * len(lengths),
        state_bytes=costs.state_bytes,
    )


def _interval(job: Job, costs: Costs) -> float:
    stated = None if job.checkpoints is None else job.checkpoints.interval
    return daly_interval(costs.stall, costs.mtbf) if stated is None else float(parse_duration(stated))


def span(seconds: float) -> str:
    """A time for people, by its two largest units: ``23h55m``, ``1d12h``, ``0.4s``."""
    if seconds < 1:
        return f"{seconds:.2g}s"
    whole = round(seconds)
    for large, small in ((86400, 3600), (3600, 60), (60, 1)):
        if whole >= large:
            names = {86400: "d", 3600: "h", 60: "m", 1: "s"}
            rest = whole % large // small
            return f"{whole // large}{names[large]}" + (f"{rest}{names[small]}" if rest else "")
    return f"{whole}s"
