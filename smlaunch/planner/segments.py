"""How a run is divided into segments, when each ends itself, and the expected timing. Pure.

A segment's planned end leaves time before its limit for a stop (the 120 s that the service grants after
SIGTERM), for the last checkpoint and its upload, and for the download of data if the service counts that;
short segments reserve a quarter of their length instead. What is unknown before a run (the state's size,
how often hosts fail) is assumed, and the plan says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from smlaunch.catalog.quotas import DEFAULT_RUNTIME_QUOTA
from smlaunch.contract.checkpoint_interval import daly_interval, segment_progress
from smlaunch.contract.segment import DIRECT
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job, SegmentChange, format_duration, parse_duration
from smlaunch.planner.plan import Schedule
from smlaunch.planner.plan_context import (
    Diagnostics,
    bytes_of_file_channels,
    max_hosts_of,
    unknown_quota_text,
)

DEFAULT_MAX_RUNTIME = 86400
MAX_JOB_SECONDS = 28 * 86400
"""Seconds; both from the API reference of StoppingCondition."""


MAX_SEGMENTS = 999
"""Limit of the job name's format."""

STOP_GRACE_SECONDS = 120
ASSUMED_SAVE_SECONDS = 180.0
"""Time for the last checkpoint and its upload, if its size is unknown."""

SAVE_SECONDS_BEFORE_UPLOAD = 30.0
"""Time of the last checkpoint without its upload: an assumption."""

MAX_MARGIN_SHARE = 0.25
"""Largest share of a segment after its planned end."""

HOST_MTBF_SECONDS = 54 * 86400 * 2048 / 466
"""Seconds, 237 days: Llama 3's training had 466 interruptions of 2,048 hosts in 54 days (Meta, 2024)."""

SPOT_MTBF_SECONDS = 5 * 86400
"""Seconds, of one host: a conservative assumption; AWS's Spot Advisor only states "more than 20 % a month"
for the worst types."""

ASSUMED_STALL_SECONDS = 1.0
MEMORY_COPY_BYTES_PER_SECOND = 2e9
"""Bytes per second of a copy in a host's memory: determines the stall of a checkpoint of known size."""

S3_BYTES_PER_SECOND = 2e8
"""Bytes per second that one host transfers to or from S3: conservative."""

HOST_STARTUP_SECONDS = 60.0
"""In a region, from a running host to training ranks: imports, rendezvous, compilation."""

PROVISIONING_SECONDS = 300.0
"""Time until a region provides the next job's hosts; not billed."""

MIN_GOODPUT = 0.8
"""The plan warns of a lower goodput."""


class SegmentTemplate(NamedTuple):
    """Job, time limit and planned end of the segments from number ``first_segment`` on, until the next
    template's."""

    first_segment: int
    job: Job
    """The job with the segment's changes applied."""

    max_seconds: int
    """Time until the service stops the segment."""

    stop_after_seconds: int | None = None
    """Time until it stops itself; None without a planned end."""

    margin_seconds: int | None = None
    """Time between its planned end and its limit."""

    until_step: int | None = None

    @property
    def planned_seconds(self) -> int:
        """From the start of a full segment to its planned end, or to its limit without a planned end."""
        return (
            self.max_seconds
            if self.stop_after_seconds is None
            else self.max_seconds - (self.margin_seconds or 0)
        )


def stated_training_seconds(job: Job) -> int | None:
    """Training time of all segments together, as the job states it; None if it does not."""
    if job.limits.max_runtime is not None:
        return parse_duration(job.limits.max_runtime)
    lengths = [change.length for change in job.segments]
    stated_lengths = [parse_duration(length) for length in lengths if length is not None]
    return sum(stated_lengths) if stated_lengths and len(stated_lengths) == len(lengths) else None


def total_training_seconds(job: Job, diagnostics: Diagnostics) -> int:
    """Training time of all segments together."""
    stated_seconds = stated_training_seconds(job)
    if stated_seconds is None:
        diagnostics.add_reason(
            "limit.default", "The job states no limits.max_runtime; 24h is the API's default."
        )
        return DEFAULT_MAX_RUNTIME
    if job.limits.max_runtime is None:
        diagnostics.add_reason(
            "limit.lengths", "The job states no limits.max_runtime; its segments' lengths add up."
        )
    return stated_seconds


def max_job_seconds(job: Job, facts: DiscoveredFacts, total_seconds: int, diagnostics: Diagnostics) -> int:
    """Return the longest training time of one job in seconds: by the service's limit of 28 days, the
    account's quota and the length of a segment that the job states; a segment is one of the sequential jobs
    of a long run. An unknown quota is AWS's default of 5 days for segments that smlaunch cuts.
    ``total_seconds``: training time of the whole run.
    """
    stated_segment_seconds = None if job.limits.segment is None else parse_duration(job.limits.segment)
    if stated_segment_seconds is not None and stated_segment_seconds > MAX_JOB_SECONDS:
        diagnostics.add_problem(
            "limits.segment", f"{job.limits.segment} is longer than the 28d a training job may run"
        )
    # Without the quota, that is what one job would take.
    wanted_seconds = min(total_seconds, stated_segment_seconds or total_seconds)
    quota, limit_seconds = facts.max_runtime_quota, MAX_JOB_SECONDS
    states_lengths = stated_segment_seconds is not None or any(change.length for change in job.segments)
    if quota is not None and quota < MAX_JOB_SECONDS:
        limit_seconds = quota
        if wanted_seconds > quota:
            diagnostics.add_reason(
                "segment.quota",
                f"The account's quota lets a training job run for {format_duration(quota)} at most.",
            )
    elif quota_text := unknown_quota_text(facts, wanted_seconds):
        if not states_lengths:
            limit_seconds = DEFAULT_RUNTIME_QUOTA
            quota_text += ". So no segment is longer; limits.segment states another length"
        diagnostics.add_warning(f"{quota_text}.")
    return min(limit_seconds, stated_segment_seconds or limit_seconds)


def needs_several_segments(job: Job, total_seconds: int, limit_seconds: int) -> bool:
    """Whether the run may take several jobs: the job asks for it, or no single job may last as long."""
    return job.limits.segment is not None or bool(job.segments) or total_seconds > limit_seconds


# ---- cutting ---------------------------------------------------------------------------------------------


def single_job_template(job: Job, total_seconds: int) -> tuple[SegmentTemplate, ...]:
    return (SegmentTemplate(1, job, total_seconds),)


def plan_segment_templates(
    job: Job, facts: DiscoveredFacts, total_seconds: int, limit_seconds: int, diagnostics: Diagnostics
) -> tuple[SegmentTemplate, ...]:
    """Return one template for each kind of segment, in order, with its time limit and planned end. A segment
    is one of the sequential training jobs of a long run; entries of ``job.segments`` change hosts, types or
    hyperparameters from a certain segment on.

    ``total_seconds``: training time of the whole run. ``limit_seconds``: longest time that one job may run.
    """
    # Time of a segment that is not training: its start, its last checkpoint.
    overheads = SegmentOverheads.for_job(job, facts)
    # Without entries all segments are of one kind.
    segment_changes = job.segments or (SegmentChange(),)
    templates: list[SegmentTemplate] = []
    reached_step = 0  # before the element begins
    for index, change in enumerate(segment_changes):
        stated_seconds = None if change.length is None else parse_duration(change.length)
        if stated_seconds is not None and stated_seconds > limit_seconds:
            diagnostics.add_problem(
                f"segments[{index}].length",
                f"{change.length} is longer than the {format_duration(limit_seconds)} that one job may take",
            )
        max_seconds = min(limit_seconds, total_seconds, stated_seconds or total_seconds)
        if change.until_step is not None:
            if change.until_step <= reached_step:
                diagnostics.add_problem(
                    f"segments[{index}].until_step",
                    f"the elements before it apply until step {reached_step}, so that this one, until step "
                    f"{change.until_step}, never does; the steps must rise",
                )
            reached_step = max(reached_step, change.until_step)
        # Reserved before the time limit, for the last checkpoint.
        margin_seconds = _margin_seconds(max_seconds, overheads)
        template = SegmentTemplate(
            first_segment=index + 1,
            job=apply_change(job, change),
            max_seconds=max_seconds,
            # The service may count the download of data as training.
            stop_after_seconds=max(1, int(max_seconds - margin_seconds - overheads.download_seconds)),
            margin_seconds=margin_seconds,
            # Training step after which the next kind of segment begins.
            until_step=change.until_step,
        )
        # planned_seconds: from the segment's start to its planned end.
        if template.planned_seconds <= overheads.start_seconds:
            length_field = f"segments[{index}].length" if change.length is not None else "limits.segment"
            diagnostics.add_problem(
                length_field,
                f"{format_duration(max_seconds)} leaves no time to train: starting takes "
                f"{format_seconds(overheads.start_seconds)}, and {format_seconds(margin_seconds)} are "
                "reserved for the last checkpoint; make it longer",
            )
        templates.append(template)
    _explain_segments(job, templates, overheads, total_seconds, diagnostics)
    return tuple(templates)


def apply_change(job: Job, change: SegmentChange) -> Job:
    """The job with a segment's change applied."""
    return job.with_changes(
        hyperparameters={**job.hyperparameters, **change.hyperparameters},
        compute=change.compute.to_mapping(),
    )


def _margin_seconds(max_seconds: int, overheads: SegmentOverheads) -> int:
    """Time between the planned end and the limit of a segment."""
    return math.ceil(min(STOP_GRACE_SECONDS + overheads.last_save_seconds, MAX_MARGIN_SHARE * max_seconds))


def _explain_segments(
    job: Job,
    templates: Sequence[SegmentTemplate],
    overheads: SegmentOverheads,
    total_seconds: int,
    diagnostics: Diagnostics,
) -> None:
    """Add the reasons why each segment (one of the run's sequential jobs) stops itself before its time limit,
    and how long its start takes.

    ``templates``: one for each kind of segment. ``total_seconds``: training time of the whole run.
    """
    first_template = templates[0]
    fits_one_segment = len(templates) == 1 and total_seconds <= first_template.max_seconds
    if job.limits.max_runtime is None and fits_one_segment:
        diagnostics.add_warning(
            f"The job states no limits.max_runtime: {format_duration(total_seconds)} in all, which one "
            f"segment of {format_duration(first_template.max_seconds)} holds."
        )
    diagnostics.add_reason(
        "segment.planned-end", f"Every segment stops itself {_planned_end_text(first_template, overheads)}."
    )
    if not overheads.download_seconds:
        return
    downloads = [
        f"{size_bytes / 1e9:.1f} GB of {content}"
        for size_bytes, content in (
            (overheads.downloaded_data_bytes, "data"),
            (overheads.downloaded_checkpoint_bytes, "checkpoints"),
        )
        if size_bytes
    ]
    diagnostics.add_reason(
        "segment.start",
        f"Every start downloads {' and '.join(downloads)} to each of {overheads.host_count} hosts, in "
        f"{format_seconds(overheads.download_seconds)} at {S3_BYTES_PER_SECOND / 1e6:.0f} MB/s assumed; "
        "the planned end is earlier by that, in case the service counts it.",
    )


def _planned_end_text(template: SegmentTemplate, overheads: SegmentOverheads) -> str:
    """Return how long before its time limit a segment stops itself, and what for."""
    reserve_text = "the last checkpoint and its upload"
    if overheads.one_checkpoint_bytes is None:
        reserve_text = f"the last checkpoint of unknown size ({format_seconds(ASSUMED_SAVE_SECONDS)} assumed)"
    margin_seconds = template.margin_seconds
    needed_seconds = STOP_GRACE_SECONDS + overheads.last_save_seconds
    # A short segment reserves less than is needed: at most a quarter of its time.
    if margin_seconds is not None and margin_seconds < needed_seconds:
        return f"a quarter of its time before its limit, for {reserve_text}"
    return f"{format_seconds(margin_seconds or 0)} before its limit, for a stop and {reserve_text}"


# ---- overheads and expected timing -----------------------------------------------------------------------


class SegmentOverheads(NamedTuple):
    """Time of a segment that is not training."""

    download_seconds: float
    """Download of data and checkpoints to a host before it trains."""

    start_seconds: float
    """Time until it trains, including the download."""

    last_save_seconds: float
    """Last checkpoint and its upload."""

    checkpoint_stall_seconds: float
    """Interruption of training by one checkpoint."""

    provisioning_seconds: float
    """Time between two jobs, until the next one has its hosts."""

    mtbf_seconds: float
    """Mean time between failures of all hosts together."""

    host_count: int
    one_checkpoint_bytes: int | None = None
    """Size of one checkpoint; None if unknown."""

    downloaded_data_bytes: int = 0
    """Data that each host downloads."""

    downloaded_checkpoint_bytes: int = 0
    """Checkpoints that each host downloads."""

    @classmethod
    def for_job(cls, job: Job, facts: DiscoveredFacts) -> SegmentOverheads:
        """Return the overheads of a segment (one of the run's sequential jobs), with as many hosts as the
        largest segment has.
        """
        host_count = max_hosts_of(job)
        # Mean time between failures of one host; any host's failure interrupts all.
        host_mtbf_seconds = SPOT_MTBF_SECONDS if job.compute.spot else HOST_MTBF_SECONDS
        # The run's earlier checkpoints show the size of one; None before the first.
        one_checkpoint_bytes = None if facts.checkpoints is None else facts.checkpoints.step_bytes
        is_local = facts.target == "local"
        # Local hosts exist at once, and have data and checkpoints already.
        data_bytes = 0 if is_local else bytes_of_file_channels(job, facts)
        checkpoint_bytes = 0 if is_local else _checkpoint_bytes_at_start(job, facts)
        download_seconds = (data_bytes + checkpoint_bytes) / S3_BYTES_PER_SECOND
        return cls(
            download_seconds=download_seconds,
            start_seconds=0.0 if is_local else download_seconds + HOST_STARTUP_SECONDS,
            last_save_seconds=_last_save_seconds(one_checkpoint_bytes, host_count, is_local),
            checkpoint_stall_seconds=_checkpoint_stall_seconds(one_checkpoint_bytes, host_count),
            provisioning_seconds=0.0 if is_local else PROVISIONING_SECONDS,
            mtbf_seconds=host_mtbf_seconds / host_count,
            host_count=host_count,
            one_checkpoint_bytes=one_checkpoint_bytes,
            downloaded_data_bytes=data_bytes,
            downloaded_checkpoint_bytes=checkpoint_bytes,
        )


def _last_save_seconds(one_checkpoint_bytes: int | None, host_count: int, is_local: bool) -> float:
    """Return how long the last checkpoint of a segment and its upload take."""
    if one_checkpoint_bytes is None:
        return ASSUMED_SAVE_SECONDS
    if is_local:
        # All hosts are this machine, which writes the whole checkpoint.
        return one_checkpoint_bytes / S3_BYTES_PER_SECOND
    # Each host uploads its part.
    return SAVE_SECONDS_BEFORE_UPLOAD + one_checkpoint_bytes / host_count / S3_BYTES_PER_SECOND


def _checkpoint_stall_seconds(one_checkpoint_bytes: int | None, host_count: int) -> float:
    """Return how long one checkpoint interrupts training: each host copies its part in memory, and trains on
    during the upload."""
    if one_checkpoint_bytes is None:
        return ASSUMED_STALL_SECONDS
    return one_checkpoint_bytes / host_count / MEMORY_COPY_BYTES_PER_SECOND


def checkpoints_to_keep(job: Job) -> int:
    return 3 if job.checkpoints is None else job.checkpoints.keep


def expected_schedule(
    job: Job,
    facts: DiscoveredFacts,
    segment_durations: Sequence[int],
    first_template: SegmentTemplate,
    total_seconds: int,
    diagnostics: Diagnostics,
) -> Schedule:
    """Return the expected timing of a run of several segments (sequential jobs), and explain the checkpoint
    interval; warn if much time is expected to be lost. All times are seconds.

    ``segment_durations``: of each planned segment. ``first_template``: the first kind of segment.
    ``total_seconds``: training time of the whole run.
    """
    # What is not training: starts, checkpoints, gaps between two jobs, failures.
    overheads = SegmentOverheads.for_job(job, facts)
    checkpoint_interval = _checkpoint_interval(job, overheads)
    # A failed job is followed by a new one.
    restart_seconds = overheads.provisioning_seconds + overheads.start_seconds
    useful_seconds = sum(
        segment_progress(
            segment=duration,
            start=min(overheads.start_seconds, duration),
            interval=checkpoint_interval,
            stall=overheads.checkpoint_stall_seconds,
            restart=restart_seconds,
            mtbf=overheads.mtbf_seconds,
        )
        for duration in segment_durations
    )
    # The share that is useful training; none in segments that are refused because they leave no time.
    goodput = useful_seconds / max(sum(segment_durations), 1)
    if goodput < MIN_GOODPUT and facts.target == "aws":
        diagnostics.add_warning(
            f"Only {goodput:.0%} of the time is expected to be useful training: of a segment of "
            f"{format_seconds(first_template.max_seconds)}, the start takes "
            f"{format_seconds(overheads.start_seconds)} and a checkpoint "
            f"{format_seconds(overheads.checkpoint_stall_seconds)}; make segments longer."
        )
    if job.checkpoints is None or job.checkpoints.interval is None:
        _explain_checkpoint_interval(job, overheads, checkpoint_interval, diagnostics)
    return Schedule(
        total=total_seconds,
        segment=float(first_template.planned_seconds),
        start=overheads.start_seconds,
        gap=overheads.provisioning_seconds,
        stall=overheads.checkpoint_stall_seconds,
        interval=checkpoint_interval,
        restart=restart_seconds,
        mtbf=overheads.mtbf_seconds,
        goodput=goodput,
        makespan=sum(segment_durations) + overheads.provisioning_seconds * len(segment_durations),
        state_bytes=overheads.one_checkpoint_bytes,
    )


def _explain_checkpoint_interval(
    job: Job, overheads: SegmentOverheads, interval_seconds: float, diagnostics: Diagnostics
) -> None:
    """Add the reason for a computed checkpoint interval: the longer a checkpoint stops the training (stall),
    the longer; the more often hosts fail, the shorter."""
    size_source = (
        "of unknown size" if overheads.one_checkpoint_bytes is None else "by the size of existing ones"
    )
    mtbf_source = (
        "spot capacity, assumed" if job.compute.spot else "237 days between failures of one host, Llama 3's"
    )
    diagnostics.add_reason(
        "checkpoints.interval",
        f"Daly's formula for a stall of {overheads.checkpoint_stall_seconds:.2g} s per checkpoint "
        f"({size_source}) and a failure every {format_seconds(overheads.mtbf_seconds)} ({mtbf_source}) "
        f"gives {format_seconds(interval_seconds)} between checkpoints; smlaunch.train uses what it "
        "measures.",
    )


def _checkpoint_bytes_at_start(job: Job, facts: DiscoveredFacts) -> int:
    """Return how many bytes of checkpoints the service downloads to each host when a segment starts: what is
    there now, or the number of checkpoints that the run keeps, if that is more. 0 before the first one."""
    existing_checkpoints = facts.checkpoints
    # The service's sync downloads the whole prefix; direct uploads are not downloaded by it.
    uses_service_sync = job.checkpoints is None or job.checkpoints.upload != DIRECT
    if existing_checkpoints is None or not uses_service_sync:
        return 0
    expected_bytes = (existing_checkpoints.step_bytes or 0) * checkpoints_to_keep(job)
    return max(existing_checkpoints.total_bytes, expected_bytes)


def _checkpoint_interval(job: Job, overheads: SegmentOverheads) -> float:
    """Seconds between two checkpoints: stated, or by Daly's formula."""
    stated_interval = None if job.checkpoints is None else job.checkpoints.interval
    return (
        daly_interval(overheads.checkpoint_stall_seconds, overheads.mtbf_seconds)
        if stated_interval is None
        else float(parse_duration(stated_interval))
    )


def format_exact_seconds(seconds: int) -> str:
    """Format a duration by all of its units: ``27d23h55m``."""
    parts, remaining_seconds = [], seconds
    for unit, unit_seconds in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, remaining_seconds = divmod(remaining_seconds, unit_seconds)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_seconds(seconds: float) -> str:
    """Format a duration by its two largest units: ``23h55m``, ``1d12h``, ``0.4s``."""
    if seconds < 1:
        return f"{seconds:.2g}s"
    whole_seconds = round(seconds)
    unit_symbols = {86400: "d", 3600: "h", 60: "m", 1: "s"}
    for large_unit, small_unit in ((86400, 3600), (3600, 60), (60, 1)):
        if whole_seconds >= large_unit:
            large_count, remaining_seconds = divmod(whole_seconds, large_unit)
            small_count = remaining_seconds // small_unit
            small_text = f"{small_count}{unit_symbols[small_unit]}" if small_count else ""
            return f"{large_count}{unit_symbols[large_unit]}{small_text}"
    return f"{whole_seconds}s"
