"""What the jobs of a run have cost, estimated from on-demand prices."""

from __future__ import annotations

import time

from smlaunch.catalog.prices import RegionPrices
from smlaunch.discovery.region_catalog import read_region_catalog
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_outcome import RunOutcome


def estimate_dollars(outcome: RunOutcome, target: Target) -> float | None:
    """Return what the jobs of a run have cost so far at on-demand prices; None where a price, or the time of
    a job that runs, is not known."""
    if target.kind != "aws":
        return 0.0
    dollars = 0.0
    region_catalog = read_region_catalog(target.region_name)
    for job in outcome.jobs:
        trains_model = ":processing-job/" not in job.arn
        prices = RegionPrices(target.region_name, region_catalog, trains_model)
        price = prices.find(job.instance_type or "")
        seconds = job.billable_seconds
        if seconds is None and job.started is not None:  # it runs
            seconds = round((job.ended or time.time()) - job.started)
        if price is None or job.host_count is None:
            return None
        dollars += price.dollars * job.host_count * (seconds or 0) / 3600
    return dollars
