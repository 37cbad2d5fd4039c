"""State of a run as the services keep it: its jobs and its checkpoints (its files in S3: run_folder).

No other state exists. Every client reads it from names, tags and S3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from smlaunch.aws.interfaces import CallError, ObjectStorage
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.chain.observed_run import ObservedJob
from smlaunch.chain.workflow import classify_ending
from smlaunch.contract.checkpoint_layout import is_smlaunch_path
from smlaunch.contract.progress_line import iter_steps
from smlaunch.contract.run_names import JobName
from smlaunch.contract.segment import (
    FROM_FILES_VARIABLE,
    FROM_REPORTED_VARIABLE,
    FROM_STEP_VARIABLE,
)
from smlaunch.contract.segment_outcome import SegmentOutcome
from smlaunch.runs.job_poller import host_number, host_of_log_stream, log_group_of
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_checkpoints import RunCheckpoints

_DIGEST_LENGTH = 16


class CheckpointStatus(NamedTuple):
    """State of the run's checkpoint prefix."""

    step: int = 0
    """The newest complete step; 0 for none."""
    outcome: SegmentOutcome | None = None
    files_digest: str = ""
    """Digest of the names and contents of the script's own files, where there is no complete step. Empty
    without such files."""


def read_checkpoint_status(
    run: str, checkpoints: RunCheckpoints | None, storage: ObjectStorage, job_hash: str | None = None
) -> CheckpointStatus:
    """Return the state of a run's checkpoints: the newest complete step, and how the newest job ended by its
    outcome file, which hosts write there. Without a complete step, what the script itself saved there counts:
    a digest shows whether it changes. ``checkpoints`` is None for a run without any. ``job_hash``: of the
    run's job, if it is known.

    Reads names, sizes, manifests (lists of a step's files) and outcome files; downloads no other content.
    """
    if checkpoints is None:
        return CheckpointStatus()
    outcome = checkpoints.read_outcome(run, job_hash)
    manifests_newest_first = checkpoints.read_complete_manifests()
    if manifests_newest_first:
        return CheckpointStatus(step=manifests_newest_first[0].step, outcome=outcome)
    try:
        stored_objects = call_with_retries(
            lambda: list(storage.list_objects(checkpoints.bucket, checkpoints.prefix))
        )
    except CallError as error:
        if error.code != "NoSuchBucket":
            raise
        return CheckpointStatus(step=0, outcome=outcome)
    # A file's ETag changes with its content.
    path_size_and_etag_of_files = (
        (stored.key[len(checkpoints.prefix) :], stored.size, stored.etag) for stored in stored_objects
    )
    return CheckpointStatus(
        step=0, outcome=outcome, files_digest=_digest_of_script_files(path_size_and_etag_of_files)
    )


def _digest_of_script_files(files: Iterable[tuple[str, int, str | None]]) -> str:
    """Return a digest of the files that smlaunch did not write; empty without any."""
    script_files = sorted(file for file in files if not is_smlaunch_path(file[0]))
    if not script_files:
        return ""
    return hashlib.sha256(repr(script_files).encode()).hexdigest()[:_DIGEST_LENGTH]


def read_last_step_in_log(description: Mapping[str, Any], target: Target) -> int | None:
    """Return the highest step at the end of a job's log; None where the log has none or cannot be read.

    For a job whose host was killed before it could write its outcome.
    """
    job, log_group = str(description["TrainingJobName"]), log_group_of(description)
    try:
        host_by_stream = {
            stream: host_of_log_stream(job, stream)
            for stream in call_with_retries(partial(target.logs.list_streams, log_group, job + "/"))
        }
        first_host = min(host_by_stream.values(), key=host_number, default=None)
        last_pages = [
            call_with_retries(partial(target.logs.read_last_page, log_group, stream))
            for stream, host in host_by_stream.items()
            if host == first_host
        ]
    except CallError:
        return None
    steps = (step for page in last_pages for event in page for step, _ in iter_steps(event.text.encode()))
    return max(steps, default=None)


def observed_job_from_description(name: JobName, description: Mapping[str, Any]) -> ObservedJob:
    """Return the parts of a job's description that decisions need."""
    status = str(description["TrainingJobStatus"])
    reason = str(description.get("FailureReason", ""))
    environment = description.get("Environment", {})
    started_at, stopped_at = description.get("TrainingStartTime"), description.get("TrainingEndTime")
    ended_at = stopped_at or description.get("LastModifiedTime")
    # The service counts the time of training jobs only.
    counted_seconds = 0.0
    if isinstance(started_at, datetime) and isinstance(stopped_at, datetime):
        counted_seconds = max(0.0, (stopped_at - started_at).total_seconds())
    training_seconds = float(description.get("TrainingTimeInSeconds", counted_seconds))
    # A warm pool's hosts are billed while they wait for a next job.
    retained_seconds = float(
        description.get("WarmPoolStatus", {}).get("ResourceRetainedBillableTimeInSeconds", 0)
    )
    ending = classify_ending(status, str(description.get("SecondaryStatus", status)), reason)
    return ObservedJob(
        segment=name.segment,
        attempt=name.attempt,
        ending=ending,
        reason=reason,
        ended_at=ended_at.timestamp() if ending is not None and isinstance(ended_at, datetime) else None,
        training_seconds=training_seconds,
        billable_seconds=float(description.get("BillableTimeInSeconds", training_seconds)) + retained_seconds,
        is_spot=bool(description.get("EnableManagedSpotTraining")),
        from_step=_parse_number(environment.get(FROM_STEP_VARIABLE)) or 0,
        from_reported_step=_parse_number(environment.get(FROM_REPORTED_VARIABLE)),
        from_files_digest=str(environment.get(FROM_FILES_VARIABLE, "")),
    )


def _parse_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
