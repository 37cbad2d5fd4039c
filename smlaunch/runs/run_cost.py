"""What the jobs of a run have cost, estimated from on-demand prices."""

from __future__ import annotations

import time

from smlaunch.catalog.instances import find_instance_type
from smlaunch.runs.launch_target import TargetKind
from smlaunch.runs.run_outcome import RunOutcome


def estimate_dollars(outcome: RunOutcome, target_kind: TargetKind) -> float | None:
    """Return what the jobs of a run have cost so far at on-demand prices; None where a price, or the time of
    a job that runs, is not known."""
    if target_kind != "aws":
        return 0.0
    dollars = 0.0
    for job in outcome.jobs:
        catalog_entry = find_instance_type(job.instance_type or "")
        seconds = job.billable_seconds
        if seconds is None and job.started is not None:  # it runs
            seconds = round((job.ended or time.time()) - job.started)
        if catalog_entry is None or catalog_entry.usd_per_hour is None or job.host_count is None:
            return None
        dollars += catalog_entry.usd_per_hour * job.host_count * (seconds or 0) / 3600
    return dollars
