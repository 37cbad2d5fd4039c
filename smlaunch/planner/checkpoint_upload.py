"""Plan where checkpoints are stored, how they are uploaded, and what ranks are told about it."""

from __future__ import annotations

from smlaunch.contract.launch_spec import CheckpointSpec
from smlaunch.contract.segment import DIRECT, SYNC
from smlaunch.job.model import Checkpoints, Job, parse_duration
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.input_channels import RunLayout
from smlaunch.planner.resume_advice import uses_smlaunch_train
from smlaunch.planner.segments import S3_RATE, SegmentCosts, SegmentShape, format_span

MAX_SYNC_SHARE = 0.05
"""Share of a segment. If downloading all checkpoints to a host takes longer, ranks download their own
parts."""


def plan_checkpoints(
    job: Job,
    facts: Facts,
    layout: RunLayout,
    has_several_segments: bool,
    first_segment_shape: SegmentShape,
    diagnostics: Diagnostics,
) -> CheckpointSpec | None:
    """Return the run's checkpoint settings for job.json: where they are stored, how they are uploaded, how
    many are kept; None for a run of one job that asks for none.

    ``facts``: what discovery read about the script, its data and earlier checkpoints.
    ``has_several_segments``: the run may take several training jobs in a row, each of which continues from a
    checkpoint. ``first_segment_shape``: times of the first of them.
    """
    checkpoints = job.checkpoints
    if checkpoints is None:
        if not has_several_segments:
            return None
        checkpoints = Checkpoints()
    uri = checkpoints.uri or layout.checkpoints_prefix
    if checkpoints.uri is None:
        diagnostics.add_reason(
            "checkpoints.default", f"The run's checkpoints get a prefix of their own, {uri}."
        )
    return CheckpointSpec(
        path=checkpoints.local_path,
        uri=uri,
        upload=_choose_upload(
            job, checkpoints, facts, has_several_segments, first_segment_shape, diagnostics
        ),
        keep=checkpoints.keep,
        interval_seconds=None
        if checkpoints.interval is None
        else float(parse_duration(checkpoints.interval)),
        failure_seconds=round(SegmentCosts.for_job(job, facts).failure_interval_seconds, 1),
    )


def _choose_upload(
    job: Job,
    checkpoints: Checkpoints,
    facts: Facts,
    has_several_segments: bool,
    first_segment_shape: SegmentShape,
    diagnostics: Diagnostics,
) -> str:
    """Return how checkpoints reach S3, and add the reason: ``sync`` by the service, which copies the whole
    directory, or ``direct`` by each rank. The parameters are those of ``plan_checkpoints``."""
    if checkpoints.upload == DIRECT:
        if job.network_isolation:
            diagnostics.add_problem(
                "checkpoints.upload",
                "direct uploads from the hosts to S3, which network_isolation forbids; use sync",
            )
        if not uses_smlaunch_train(facts.script) and facts.source.entry.endswith(".py"):
            diagnostics.add_problem(
                "checkpoints.upload",
                f"smlaunch.train uploads parts directly, and {facts.source.entry} does not use it; use sync",
            )
        diagnostics.add_reason("upload.given", f"{_DIRECT_TEXT} The job says so.")
        return DIRECT
    state_bytes = SegmentCosts.for_job(job, facts).state_bytes
    if checkpoints.upload == SYNC or state_bytes is None:
        if checkpoints.upload is None and has_several_segments and facts.target == "aws":
            diagnostics.add_reason(
                "upload.sync",
                "SageMaker's own sync copies checkpoints to S3, and all of them to every host at each "
                "start; how long that takes is unknown before the first checkpoint.",
            )
        return SYNC
    download_seconds = state_bytes * checkpoints.keep / S3_RATE
    duration_text = (
        f"Downloading all {checkpoints.keep} checkpoints of {state_bytes / 1e9:.1f} GB to every host would "
        f"take {format_span(download_seconds)}"
    )
    can_upload_directly = uses_smlaunch_train(facts.script) and not job.network_isolation
    if download_seconds <= MAX_SYNC_SHARE * first_segment_shape.max_seconds:
        diagnostics.add_reason("upload.sync", f"{duration_text}: SageMaker's own sync is fast enough.")
        return SYNC
    if not can_upload_directly:
        diagnostics.add_warning(f"{duration_text} at each start, and only the sync is possible here.")
        return SYNC
    diagnostics.add_reason(
        "upload.direct", f"{duration_text}, more than {MAX_SYNC_SHARE:.0%} of a segment. {_DIRECT_TEXT}"
    )
    return DIRECT


_DIRECT_TEXT = (
    "Every rank transfers its own parts to and from S3 (needs boto3 in the image and the role's permission)."
)
