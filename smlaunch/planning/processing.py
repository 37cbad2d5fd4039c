"""What a processing job is warned of, and where it leaves its output. Pure."""

from __future__ import annotations

from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import ScriptFacts


def tell_processing(job: Job, script: ScriptFacts, notes: Notes) -> None:
    hosts = job.compute.hosts
    if job.entry is None:
        return
    if hosts > 1 and not script.reads_resource_config and not any(c.split for c in job.inputs.values()):
        notes.warn(
            f"No input is split, and {job.entry} does not name resourceconfig.json: unless a module of its "
            f"own reads it, {hosts} hosts do the same work {hosts} times."
        )
    notes.because(
        "processing.output",
        "Whatever the script leaves in /opt/ml/processing/output (SM_OUTPUT_DATA_DIR) is uploaded as it is "
        "when the job completes; inputs lie in /opt/ml/processing/input (SM_CHANNEL_...).",
    )
