"""What a training job knows and a processing job does not: refused by the job's own field names. Pure."""

from __future__ import annotations

from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import ScriptFacts


def check_processing(job: Job, script: ScriptFacts, notes: Notes) -> None:
    """Before the request is made: it has no place for any of these."""
    no_such = "a processing job knows no such thing; leave it out, or take another strategy"
    if job.hyperparameters:
        notes.refuse("hyperparameters", "a processing job has none; give the script args instead")
    if job.compute.spot:
        notes.refuse("compute.spot", no_such)
    if job.checkpoints is not None:
        notes.refuse("checkpoints", no_such)
    if job.segments:
        notes.refuse("segments", no_such)
    if job.limits.segment is not None:
        notes.refuse("limits.segment", no_such)
    for name, channel in job.inputs.items():
        if channel.mode != "File":
            notes.refuse(
                f"inputs.{name}.mode", f"a processing job copies its inputs: File, not {channel.mode}"
            )
        if channel.content_type is not None:
            notes.refuse(f"inputs.{name}.content_type", no_such)
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
