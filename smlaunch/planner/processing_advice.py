"""Warnings about a processing job, and where it writes its output. Pure."""

from __future__ import annotations

from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import ScriptFacts


def advise_processing(job: Job, script: ScriptFacts, joins_hosts: bool, diagnostics: Diagnostics) -> None:
    """Add the diagnostics. ``joins_hosts``: the strategy makes the hosts work together."""
    hosts = job.compute.hosts
    if job.entry is None:
        return
    alone = hosts > 1 and not joins_hosts and not script.reads_resource_config
    if alone and not any(channel.split for channel in job.inputs.values()):
        diagnostics.add_warning(
            f"No input is split, and {job.entry} does not name resourceconfig.json: unless one of its "
            f"modules reads it, {hosts} hosts do the same work {hosts} times."
        )
    diagnostics.add_reason(
        "processing.output",
        "Files that the script writes to /opt/ml/processing/output (SM_OUTPUT_DATA_DIR) are uploaded when "
        "the job completes; inputs are in /opt/ml/processing/input (SM_CHANNEL_...).",
    )
