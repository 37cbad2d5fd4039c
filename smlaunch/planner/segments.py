"""How a run is divided into segments, when each ends itself, and the expected timing. Pure.

A segment's planned end leaves time before its limit for a stop (the 120 s that the service grants after
SIGTERM), for the last checkpoint and its upload, and for the download of data if the service counts that;
short segments reserve a quarter of their length instead. What is unknown before a run (the state's size,
how often hosts fail) is assumed, and the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from smlaunch.contract.daly import daly_interval, segment_progress
from smlaunch.contract.segment import DIRECT
from smlaunch.job.model import Job, SegmentChange, format_duration, parse_duration
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.plan import Schedule

DEFAULT_MAX_RUNTIME = 86400
MAX_JOB_SECONDS = 28 * 86400
"""Seconds; both from the API reference of StoppingCondition."""

DEFAULT_RUNTIME_QUOTA = 5 * 86400
"""Seconds: AWS's default of the quota "Longest run time for a training job"."""

MAX_SEGMENTS = 999
"""Limit of the job name's format."""

STOP_SECONDS = 120
ASSUMED_SAVE_SECONDS = 180.0
MAX_MARGIN_SHARE = 0.25
"""Largest share of a segment after its planned end."""

HOST_MTBF = 54 * 86400 * 2048 / 466
"""Seconds, 237 days: Llama 3's training had 466 interruptions of 2,048 hosts in 54 days (Meta, 2024)."""

SPOT_MTBF = 5 * 86400
"""Seconds, of one host: a conservative assumption; AWS's Spot Advisor only states "more than 20 % a month"
for the worst types."""

ASSUMED_STALL_SECONDS = 1.0
COPY_RATE = 2e9
"""Bytes per second of a copy in a host's memory: determines the stall of a checkpoint of known size."""

S3_RATE = 2e8
"""Bytes per second that one host transfers to or from S3: conservative."""

START_SECONDS = 60.0
"""In a region, from a running host to training ranks: imports, rendezvous, compilation."""

PROVISIONING_SECONDS = 300.0
"""Time until a region provides the next job's hosts; not billed."""

MIN_GOODPUT = 0.8
"""The plan warns of a lower goodput."""


@dataclass(frozen=True)
class SegmentShape:
    """Segments from number ``first_segment`` on. Seconds."""

    first_segment: int
    job: Job
    """The job with the segment's changes applied."""

    max_seconds: int
    """Time until the service stops the segment."""

    stop_after: int | None = None
    """Time until it stops itself; None without a planned end."""

    margin: int | None = None
    """Time between its planned end and its limit."""

    until_step: int | None = None

    @property
    def wall_seconds(self) -> int:
        """Duration of a full segment that stops itself."""
        return self.max_seconds if self.stop_after is None else self.max_seconds - (self.margin or 0)


def total_training_seconds(job: Job, diagnostics: Diagnostics) -> int:
    """Training time of all segments together."""
    if job.limits.max_runtime is not None:
        return parse_duration(job.limits.max_runtime)
    lengths = [change.length for change in job.segments]
    stated_lengths = [parse_duration(length) for length in lengths if length is not None]
    if stated_lengths and len(stated_lengths) == len(lengths):
        diagnostics.add_reason(
            "limit.lengths", "The job states no limits.max_runtime; its segments' lengths add up."
        )
        return sum(stated_lengths)
    diagnostics.add_reason("limit.default", "The job states no limits.max_runtime; 24h is the API's default.")
    return DEFAULT_MAX_RUNTIME


def max_job_seconds(job: Job, facts: Facts, total_seconds: int, diagnostics: Diagnostics) -> int:
    """Longest training time of one job: by the service's limit, the account's quota and the job."""
    limit_seconds = MAX_JOB_SECONDS
    stated_segment = None if job.limits.segment is None else parse_duration(job.limits.segment)
    if stated_segment is not None and stated_segment > MAX_JOB_SECONDS:
        diagnostics.add_problem(
            "limits.segment", f"{job.limits.segment} is longer than the 28d a training job may run"
        )
    if facts.max_runtime_quota is not None and facts.max_runtime_quota < MAX_JOB_SECONDS:
        limit_seconds = facts.max_runtime_quota
        if min(total_seconds, stated_segment or total_seconds) > limit_seconds:
            diagnostics.add_reason(
                "segment.quota",
                f"The account's quota lets a training job run for {format_duration(limit_seconds)} at most.",
            )
    elif (
        min(total_seconds, stated_segment or total_seconds) > DEFAULT_RUNTIME_QUOTA and facts.target == "aws"
    ):
        quota_problem = facts.max_runtime_quota_problem
        if quota_problem is not None:
            diagnostics.add_warning(
                "The account's quota for the longest run of a training job could not be read "
                f"({quota_problem}); AWS's default is 5d, and longer jobs are refused then: state "
                "limits.segment if yours is lower."
            )
    return min(limit_seconds, stated_segment or limit_seconds)


def needs_chain(job: Job, total_seconds: int, limit_seconds: int) -> bool:
    """Whether the run may take several jobs: the job asks for it, or no single job may last as long."""
    return job.limits.segment is not None or bool(job.segments) or total_seconds > limit_seconds


# ---- cutting ---------------------------------------------------------------------------------------------


def single_shape(job: Job, total_seconds: int) -> tuple[SegmentShape, ...]:
    return (SegmentShape(1, job, total_seconds),)


def chain_shapes(
    job: Job, facts: Facts, total_seconds: int, limit_seconds: int, diagnostics: Diagnostics
) -> tuple[SegmentShape, ...]:
    """Return the lengths and planned ends of a chain's segments, in order, one per kind of segment.
    ``total_seconds``: training time of all. ``limit_seconds``: longest time that one job may run."""
    costs = SegmentCosts.for_job(job, facts)
    segment_changes = job.segments or (SegmentChange(),)
    shapes = []
    for index, change in enumerate(segment_changes):
        max_seconds = min(limit_seconds, total_seconds)
        if change.length is not None:
            stated_length = parse_duration(change.length)
            if stated_length > limit_seconds:
                diagnostics.add_problem(
                    f"segments[{index}].length",
                    f"{change.length} is longer than the {format_duration(limit_seconds)} that one job may "
                    "take",
                )
            max_seconds = min(max_seconds, stated_length)
        margin = _margin_seconds(max_seconds, costs)
        stop_after = max(1, int(max_seconds - margin - costs.download_seconds))
        shape = SegmentShape(
            index + 1, apply_change(job, change), max_seconds, stop_after, margin, change.until_step
        )
        if shape.wall_seconds <= costs.start_seconds:
            field = f"segments[{index}].length" if change.length is not None else "limits.segment"
            diagnostics.add_problem(
                field,
                f"{format_duration(max_seconds)} leaves no time to train: starting takes "
                f"{format_span(costs.start_seconds)}, and {format_span(margin)} are reserved for the last "
                "checkpoint; make it longer",
            )
        shapes.append(shape)
    _explain_segments(job, shapes, costs, total_seconds, diagnostics)
    return tuple(shapes)


def apply_change(job: Job, change: SegmentChange) -> Job:
    """The job with a segment's change applied."""
    compute_changes = {key: value for key, value in dict(change.compute).items() if value is not None}
    return job.model_copy(
        update={
            "hyperparameters": {**job.hyperparameters, **change.hyperparameters},
            "compute": job.compute.model_copy(update=compute_changes),
        }
    )


def _margin_seconds(max_seconds: int, costs: SegmentCosts) -> int:
    """Time between the planned end and the limit of a segment."""
    return math.ceil(min(STOP_SECONDS + costs.save_seconds, MAX_MARGIN_SHARE * max_seconds))


def _explain_segments(
    job: Job,
    shapes: Sequence[SegmentShape],
    costs: SegmentCosts,
    total_seconds: int,
    diagnostics: Diagnostics,
) -> None:
    """Add the reasons why the segments end when they do."""
    first_shape = shapes[0]
    if job.limits.max_runtime is None and len(shapes) == 1 and total_seconds <= first_shape.max_seconds:
        diagnostics.add_warning(
            f"The job states no limits.max_runtime: {format_duration(total_seconds)} in all, which one "
            f"segment of {format_duration(first_shape.max_seconds)} holds."
        )
    reserve_text = "the last checkpoint and its upload"
    if costs.state_bytes is None:
        reserve_text = f"the last checkpoint of unknown size ({format_span(ASSUMED_SAVE_SECONDS)} assumed)"
    if first_shape.margin is not None and first_shape.margin < STOP_SECONDS + costs.save_seconds:
        end_text = f"a quarter of its time before its limit, for {reserve_text}"
    else:
        end_text = f"{format_span(first_shape.margin or 0)} before its limit, for a stop and {reserve_text}"
    diagnostics.add_reason("segment.planned-end", f"Every segment stops itself {end_text}.")
    if costs.download_seconds:
        downloads = [
            f"{size_bytes / 1e9:.1f} GB of {content}"
            for size_bytes, content in (
                (costs.data_bytes, "data"),
                (costs.checkpoint_bytes, "checkpoints"),
            )
            if size_bytes
        ]
        diagnostics.add_reason(
            "segment.start",
            f"Every start downloads {' and '.join(downloads)} to each of {costs.host_count} hosts, in "
            f"{format_span(costs.download_seconds)} at {S3_RATE / 1e6:.0f} MB/s assumed; the planned end "
            "is earlier "
            "by that, in case the service counts it.",
        )


# ---- what it costs and comes to --------------------------------------------------------------------------


@dataclass(frozen=True)
class SegmentCosts:
    """Times of a segment. Seconds."""

    download_seconds: float
    """Download of data and checkpoints to a host before it trains."""

    start_seconds: float
    """Time until it trains, including the download."""

    save_seconds: float
    """Last checkpoint and its upload."""

    stall_seconds: float
    """Interruption of training by one checkpoint."""

    gap_seconds: float
    """Time between two jobs."""

    failure_interval_seconds: float
    """Mean time between failures of all hosts together."""

    host_count: int
    state_bytes: int | None = None
    """Size of one checkpoint; None if unknown."""

    data_bytes: int = 0
    """Data that each host downloads."""

    checkpoint_bytes: int = 0
    """Checkpoints that each host downloads."""

    @classmethod
    def for_job(cls, job: Job, facts: Facts) -> SegmentCosts:
        """Times of a segment of the largest number of hosts."""
        found_checkpoints = facts.checkpoints
        state_bytes = None if found_checkpoints is None else found_checkpoints.step_bytes
        host_count = max([job.compute.hosts, *(change.compute.hosts or 1 for change in job.segments)])
        failure_interval_seconds = (SPOT_MTBF if job.compute.spot else HOST_MTBF) / host_count
        stall_seconds = ASSUMED_STALL_SECONDS if state_bytes is None else state_bytes / host_count / COPY_RATE
        if facts.target == "local":
            save_seconds = ASSUMED_SAVE_SECONDS if state_bytes is None else state_bytes / S3_RATE
            return cls(
                0.0, 0.0, save_seconds, stall_seconds, 0.0, failure_interval_seconds, host_count, state_bytes
            )
        data_bytes = sum(
            facts.inputs[name].bytes or 0
            for name, channel in job.inputs.items()
            if channel.mode == "File" and name in facts.inputs
        )
        is_synced = job.checkpoints is None or job.checkpoints.upload != DIRECT
        checkpoint_bytes = (
            max(found_checkpoints.total_bytes, (state_bytes or 0) * checkpoints_to_keep(job))
            if found_checkpoints is not None and is_synced
            else 0
        )
        download_seconds = (data_bytes + checkpoint_bytes) / S3_RATE
        save_seconds = (
            ASSUMED_SAVE_SECONDS if state_bytes is None else 30 + state_bytes / host_count / S3_RATE
        )
        start_seconds = download_seconds + START_SECONDS
        return cls(
            download_seconds,
            start_seconds,
            save_seconds,
            stall_seconds,
            PROVISIONING_SECONDS,
            failure_interval_seconds,
            host_count,
            state_bytes,
            data_bytes,
            checkpoint_bytes,
        )


def checkpoints_to_keep(job: Job) -> int:
    return 3 if job.checkpoints is None else job.checkpoints.keep


def expected_schedule(
    job: Job,
    facts: Facts,
    wall_seconds: Sequence[int],
    first_shape: SegmentShape,
    total_seconds: int,
    diagnostics: Diagnostics,
) -> Schedule:
    """Expected timing of a chain. ``wall_seconds``: duration of each planned segment."""
    costs = SegmentCosts.for_job(job, facts)
    interval_seconds = _checkpoint_interval(job, costs)
    restart_seconds = costs.start_seconds + costs.gap_seconds
    useful_seconds = sum(
        segment_progress(
            seconds,
            min(costs.start_seconds, seconds),
            interval_seconds,
            costs.stall_seconds,
            restart_seconds,
            costs.failure_interval_seconds,
        )
        for seconds in wall_seconds
    )
    goodput = useful_seconds / sum(wall_seconds)
    if goodput < MIN_GOODPUT and facts.target == "aws":
        diagnostics.add_warning(
            f"Only {goodput:.0%} of the time is expected to be useful training: of a segment of "
            f"{format_span(first_shape.max_seconds)}, the start takes {format_span(costs.start_seconds)} "
            "and a "
            f"checkpoint {format_span(costs.stall_seconds)}; make segments longer."
        )
    size_note = "of unknown size" if costs.state_bytes is None else "by the size of existing ones"
    mtbf_source = (
        "spot capacity, assumed" if job.compute.spot else "237 days between failures of one host, Llama 3's"
    )
    if job.checkpoints is None or job.checkpoints.interval is None:
        diagnostics.add_reason(
            "checkpoints.interval",
            f"Daly's formula for a stall of {costs.stall_seconds:.2g} s per checkpoint ({size_note}) and "
            "a failure "
            f"every {format_span(costs.failure_interval_seconds)} ({mtbf_source}) gives "
            f"{format_span(interval_seconds)} between "
            "checkpoints; smlaunch.train uses what it measures.",
        )
    return Schedule(
        total=total_seconds,
        segment=float(first_shape.wall_seconds),
        start=costs.start_seconds,
        gap=costs.gap_seconds,
        stall=costs.stall_seconds,
        interval=interval_seconds,
        restart=restart_seconds,
        mtbf=costs.failure_interval_seconds,
        goodput=goodput,
        makespan=sum(wall_seconds) + costs.gap_seconds * len(wall_seconds),
        state_bytes=costs.state_bytes,
    )


def _checkpoint_interval(job: Job, costs: SegmentCosts) -> float:
    """Seconds between two checkpoints: stated, or by Daly's formula."""
    stated_interval = None if job.checkpoints is None else job.checkpoints.interval
    return (
        daly_interval(costs.stall_seconds, costs.failure_interval_seconds)
        if stated_interval is None
        else float(parse_duration(stated_interval))
    )


def format_span(seconds: float) -> str:
    """Format a duration by its two largest units: ``23h55m``, ``1d12h``, ``0.4s``."""
    if seconds < 1:
        return f"{seconds:.2g}s"
    whole_seconds = round(seconds)
    for large_unit, small_unit in ((86400, 3600), (3600, 60), (60, 1)):
        if whole_seconds >= large_unit:
            unit_names = {86400: "d", 3600: "h", 60: "m", 1: "s"}
            small_units = whole_seconds % large_unit // small_unit
            return f"{whole_seconds // large_unit}{unit_names[large_unit]}" + (
                f"{small_units}{unit_names[small_unit]}" if small_units else ""
            )
    return f"{whole_seconds}s"
