"""What a processing job is warned of, and where it leaves its output. Pure."""

from __future__ import annotations

from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import ScriptFacts


def tell_processing(job: Job, script: ScriptFacts, joins_hosts: bool, notes: Notes) -> None:
    """``joins_hosts``: the strategy makes the hosts work together."""
    hosts = job.compute.hosts
    if job.entry is None:
        return
    alone = hosts > 1 and not joins_hosts and not script.reads_resource_config
    if alone and not any(channel.split for channel in job.inputs.values()):
        notes.warn(
            f"No input is split, and {job.entry} does not name resourceconfig.json: unless a module of its "
            f"own reads it, {hosts} hosts do the same work {hosts} times."
        )
    notes.because(
        "processing.output",
        "Whatever the script leaves in /opt/ml/processing/output (SM_OUTPUT_DATA_DIR) is uploaded as it is "
        "when the job completes; inputs lie in /opt/ml/processing/input (SM_CHANNEL_...).",
    )
