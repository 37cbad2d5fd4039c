"""Plan where checkpoints are stored, how they are uploaded, and what ranks know about it."""

from __future__ import annotations

from smlaunch.contract.launch_spec import CheckpointSpec
from smlaunch.contract.segment import DIRECT, SYNC
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Checkpoints, Job, parse_duration
from smlaunch.planner.input_channels import RunS3Layout
from smlaunch.planner.plan_context import Diagnostics
from smlaunch.planner.script_advice import uses_smlaunch_train
from smlaunch.planner.segments import S3_BYTES_PER_SECOND, SegmentOverheads, SegmentTemplate, format_seconds

MAX_SYNC_SHARE_OF_SEGMENT = 0.05
"""Share of a segment. If downloading all checkpoints to a host takes longer, ranks download their own
parts."""


def plan_checkpoints(
    job: Job,
    facts: DiscoveredFacts,
    layout: RunS3Layout,
    has_several_segments: bool,
    first_template: SegmentTemplate,
    diagnostics: Diagnostics,
) -> CheckpointSpec | None:
    """Return the run's checkpoint settings for job.json: where they are stored, how they are uploaded, how
    many are kept; None for a run of one job that asks for none.

    ``facts``: what discovery read about the script, its data and earlier checkpoints. ``layout``: S3 prefixes
    of the run. ``has_several_segments``: the run may take several training jobs in a row, each of which
    continues from a checkpoint. ``first_template``: time limit and planned end of the first of them.
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
    upload_mode = _choose_upload_mode(
        job, checkpoints, facts, has_several_segments, first_template, diagnostics
    )
    stated_interval = checkpoints.interval
    # Estimates: what takes time in a segment besides training, and how often its hosts fail.
    overheads = SegmentOverheads.for_job(job, facts)
    return CheckpointSpec(
        path=checkpoints.local_path,
        uri=uri,
        upload=upload_mode,
        keep=checkpoints.keep,
        interval_seconds=None if stated_interval is None else float(parse_duration(stated_interval)),
        # Mean time between failures of the run's hosts, from which smlaunch.train computes an interval.
        failure_seconds=round(overheads.mtbf_seconds, 1),
    )


def _choose_upload_mode(
    job: Job,
    checkpoints: Checkpoints,
    facts: DiscoveredFacts,
    has_several_segments: bool,
    first_template: SegmentTemplate,
    diagnostics: Diagnostics,
) -> str:
    """Return how checkpoints reach S3, and add the reason: ``sync`` by the service, which copies the whole
    directory, or ``direct`` by each rank. What the job states is kept; otherwise ``direct`` is chosen if the
    service's download at each start would take too much of a segment.

    ``has_several_segments``: the run may take several training jobs in a row. ``first_template``: time limit
    of the first of them.
    """
    if checkpoints.upload == DIRECT:
        _report_stated_direct_upload(job, facts, diagnostics)
        return DIRECT
    if checkpoints.upload == SYNC:
        return SYNC
    # By the checkpoints that the run has saved before; None without any.
    one_checkpoint_bytes = SegmentOverheads.for_job(job, facts).one_checkpoint_bytes
    if one_checkpoint_bytes is None:
        if has_several_segments and facts.target == "aws":
            diagnostics.add_reason(
                "upload.sync",
                "SageMaker's own sync copies checkpoints to S3, and all of them to every host at each "
                "start; how long that takes is unknown before the first checkpoint.",
            )
        return SYNC
    # The sync downloads all kept checkpoints, not only the newest, at an assumed 200 MB/s.
    sync_download_seconds = one_checkpoint_bytes * checkpoints.keep / S3_BYTES_PER_SECOND
    # More than 5 % of a segment is too much.
    max_download_seconds = MAX_SYNC_SHARE_OF_SEGMENT * first_template.max_seconds
    sync_duration_text = (
        f"Downloading all {checkpoints.keep} checkpoints of {one_checkpoint_bytes / 1e9:.1f} GB to every "
        f"host would take {format_seconds(sync_download_seconds)}"
    )
    if sync_download_seconds <= max_download_seconds:
        diagnostics.add_reason("upload.sync", f"{sync_duration_text}: SageMaker's own sync is fast enough.")
        return SYNC
    # smlaunch.train, used by the script, uploads; it needs a network.
    can_ranks_upload = uses_smlaunch_train(facts.script) and not job.network_isolation
    if not can_ranks_upload:
        diagnostics.add_warning(f"{sync_duration_text} at each start, and only the sync is possible here.")
        return SYNC
    diagnostics.add_reason(
        "upload.direct",
        f"{sync_duration_text}, more than {MAX_SYNC_SHARE_OF_SEGMENT:.0%} of a segment. {_DIRECT_TEXT}",
    )
    return DIRECT


def _report_stated_direct_upload(job: Job, facts: DiscoveredFacts, diagnostics: Diagnostics) -> None:
    """Add the reason for direct uploads, which the job states, and a problem for what makes them
    impossible."""
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


_DIRECT_TEXT = (
    "Every rank transfers its own parts to and from S3 (needs boto3 in the image and the role's permission)."
)
