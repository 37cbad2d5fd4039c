"""State of a run as the services keep it: its jobs, its checkpoints, and a few files in its S3 folder.

No other state exists. Every client reads it from names, tags and S3.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from smlaunch.aws.interfaces import CallError, ObjectStorage
from smlaunch.aws.retry import call_with_retries
from smlaunch.contract import formats
from smlaunch.contract.checkpoint import is_smlaunch_path
from smlaunch.contract.names import JobName, parse_job_name
from smlaunch.contract.outcome import SegmentOutcome
from smlaunch.contract.paths import RUNTIME_CHANNEL
from smlaunch.contract.progress import iter_steps
from smlaunch.contract.segment import (
    FROM_FILES_VARIABLE,
    FROM_REPORTED_VARIABLE,
    FROM_STEP_VARIABLE,
    RUN_VARIABLE,
)
from smlaunch.planner.reconcile import ObservedJob
from smlaunch.planner.workflow import WORKFLOW_FILE, Workflow, classify_ending
from smlaunch.runs.checkpoints import RunCheckpoints
from smlaunch.runs.job_poller import TERMINAL_STATUSES, host_number, host_of_stream, log_group
from smlaunch.runs.target import Target

GROUP_FILE = "group.json"
"""In the folder of a sharded run: the names of its shards' runs."""

EXCLUDED_FILE = "excluded.json"
"""Files of the source and of local inputs that were not uploaded, with reasons. Read when a run fails because
of a missing file."""

STOP_FILE = "stop"
"""Exists while a person wants the run to submit no further job."""


_DIGEST_LENGTH = 16


@dataclass(frozen=True)
class RunFolder:
    """The run's folder in S3: ``s3://<bucket>/smlaunch/<run>/``."""

    bucket: str
    prefix: str
    """Ends in a slash."""

    @classmethod
    def for_run(cls, bucket: str, run: str) -> RunFolder:
        return cls(bucket, f"smlaunch/{run}/")

    @classmethod
    def from_description(cls, run: str, description: Mapping[str, Any]) -> RunFolder | None:
        """Return the folder that a job of the run gets its runtime from; None for a job that smlaunch did not
        make."""
        for channel in description.get("InputDataConfig", []):
            if channel["ChannelName"] == RUNTIME_CHANNEL:
                uri = str(channel["DataSource"]["S3DataSource"]["S3Uri"])
                bucket, _, key = uri.removeprefix("s3://").partition("/")
                head, run_part, _ = key.partition(f"smlaunch/{run}/")
                return cls(bucket, head + run_part) if run_part else None
        return None

    def save_workflow(self, workflow: Workflow, storage: ObjectStorage) -> None:
        before = call_with_retries(lambda: storage.get_bytes(self.bucket, self.prefix + WORKFLOW_FILE))
        if before is not None:
            Workflow.from_json(before)
        storage.put_bytes(self.bucket, self.prefix + WORKFLOW_FILE, workflow.to_json(before).encode())

    def load_workflow(self, storage: ObjectStorage) -> Workflow | None:
        """Return None for a run of a single job, which has no workflow file. Raises JobError for an
        unreadable file."""
        content = call_with_retries(lambda: storage.get_bytes(self.bucket, self.prefix + WORKFLOW_FILE))
        return None if content is None else Workflow.from_json(content)

    def folder_of_sibling(self, run: str, sibling: str) -> RunFolder:
        """Return the folder of the run ``sibling``, given that this folder belongs to ``run``."""
        return RunFolder(self.bucket, self.prefix.removesuffix(f"{run}/") + f"{sibling}/")

    def save_shard_runs(self, runs: Sequence[str], storage: ObjectStorage) -> None:
        content = json.dumps(formats.GROUP.stamp({"runs": list(runs)})) + "\n"
        storage.put_bytes(self.bucket, self.prefix + GROUP_FILE, content.encode())

    def load_shard_runs(self, storage: ObjectStorage) -> list[str] | None:
        """Return the names of the shards' runs; None for a run without shards."""
        content = call_with_retries(lambda: storage.get_bytes(self.bucket, self.prefix + GROUP_FILE))
        if content is None:
            return None
        return [str(run) for run in formats.GROUP.upgrade_document(json.loads(content), GROUP_FILE)["runs"]]

    def save_excluded_files(self, files: Mapping[str, str], storage: ObjectStorage) -> None:
        if files:
            content = json.dumps(formats.EXCLUDED.stamp({"files": dict(files)})) + "\n"
            storage.put_bytes(self.bucket, self.prefix + EXCLUDED_FILE, content.encode())

    def load_excluded_files(self, storage: ObjectStorage) -> dict[str, str]:
        content = storage.get_bytes(self.bucket, self.prefix + EXCLUDED_FILE)
        if content is None:
            return {}
        document = formats.EXCLUDED.upgrade_document(json.loads(content), EXCLUDED_FILE)
        return {str(path): str(reason) for path, reason in document["files"].items()}

    def is_stop_requested(self, storage: ObjectStorage) -> bool:
        return call_with_retries(lambda: storage.size(self.bucket, self.prefix + STOP_FILE)) is not None

    def set_stop_requested(self, storage: ObjectStorage, is_requested: bool) -> None:
        if is_requested:
            storage.put_bytes(self.bucket, self.prefix + STOP_FILE, b"")
        else:
            storage.delete(self.bucket, [self.prefix + STOP_FILE])


class CheckpointStatus(NamedTuple):
    """State of the run's checkpoint prefix."""

    step: int = 0
    """The newest complete step; 0 for none."""
    outcome: SegmentOutcome | None = None
    files_digest: str = ""
    """Digest of the names and contents of the script's own files, where there is no complete step. Empty
    without such files."""


def read_checkpoint_status(
    run: str, checkpoints: RunCheckpoints | None, storage: ObjectStorage
) -> CheckpointStatus:
    """Read names, sizes, manifests and the outcome file. Downloads no part of a checkpoint."""
    if checkpoints is None:
        return CheckpointStatus()
    outcome = checkpoints.read_outcome(run)
    manifests = checkpoints.complete_manifests()
    if manifests:
        return CheckpointStatus(manifests[0].step, outcome)
    try:
        stored_objects = call_with_retries(lambda: list(storage.list(checkpoints.bucket, checkpoints.prefix)))
    except CallError as error:
        if error.code != "NoSuchBucket":
            raise
        return CheckpointStatus(0, outcome)
    return CheckpointStatus(
        0,
        outcome,
        _digest_of_script_files(
            (stored.key[len(checkpoints.prefix) :], stored.size, stored.etag) for stored in stored_objects
        ),
    )


def _digest_of_script_files(files: Iterable[tuple[str, int, str | None]]) -> str:
    """Return a digest of the files that smlaunch did not write; empty without any."""
    script_files = sorted(file for file in files if not is_smlaunch_path(file[0]))
    if not script_files:
        return ""
    return hashlib.sha256(repr(script_files).encode()).hexdigest()[:_DIGEST_LENGTH]


def last_step_in_log(description: Mapping[str, Any], target: Target) -> int | None:
    """Return the highest step at the end of a job's log; None where the log has none or cannot be read.

    For a job whose host was killed before it could write its outcome.
    """
    job, group = str(description["TrainingJobName"]), log_group(description)
    try:
        streams = {
            name: host_of_stream(job, name)
            for name in call_with_retries(partial(target.logs.streams, group, job + "/"))
        }
        leader = min(streams.values(), key=host_number, default=None)
        tails = [
            call_with_retries(partial(target.logs.tail, group, name))
            for name, host in streams.items()
            if host == leader
        ]
    except CallError:
        return None
    return max(
        (step for tail in tails for event in tail for step, _ in iter_steps(event.text.encode())),
        default=None,
    )


class JobHistory:
    """The jobs of one run. A job that has ended is described once, because it does not change any more."""

    def __init__(self, run: str, target: Target) -> None:
        self.run = run
        self._target = target
        self._descriptions: dict[JobName, dict[str, Any]] = {}

    def describe_all(self) -> dict[JobName, dict[str, Any]]:
        """Return DescribeTrainingJob's current responses by job, oldest first."""
        control = self._target.control
        # The list may not show a new job yet, so that known jobs are added.
        names = set(self._descriptions)
        for summary in call_with_retries(lambda: list(control.list(f"{self.run}-s"))):
            name = parse_job_name(summary.name)
            if name is not None and name.run == self.run:
                names.add(name)
        for name in names:
            description = self._descriptions.get(name, {})
            if description.get("TrainingJobStatus") not in TERMINAL_STATUSES:
                self._descriptions[name] = call_with_retries(partial(control.describe, str(name)))
        self._descriptions = dict(sorted(self._descriptions.items()))
        return dict(self._descriptions)

    @property
    def known_descriptions(self) -> list[dict[str, Any]]:
        """The last response for each job that has been described, oldest first."""
        return [description for _, description in sorted(self._descriptions.items()) if description]

    def add_submitted(self, name: JobName) -> None:
        """Add a job that was just created."""
        self._descriptions.setdefault(name, {})


def external_run_name(description: Mapping[str, Any]) -> str | None:
    """Return the run that an orchestrator's job belongs to; None for a job that no orchestrator created
    (export.run_template)."""
    run = description.get("Environment", {}).get(RUN_VARIABLE)
    return None if run is None else str(run)


def observe_job(name: JobName, description: Mapping[str, Any]) -> ObservedJob:
    """Return the parts of a job's description that decisions need."""
    status = str(description["TrainingJobStatus"])
    reason = str(description.get("FailureReason", ""))
    environment = description.get("Environment", {})
    ended_at = description.get("TrainingEndTime") or description.get("LastModifiedTime")
    ending = classify_ending(status, str(description.get("SecondaryStatus", status)), reason)
    return ObservedJob(
        segment=name.segment,
        attempt=name.attempt,
        ending=ending,
        reason=reason,
        ended_at=ended_at.timestamp() if ending is not None and isinstance(ended_at, datetime) else None,
        training_seconds=float(description.get("TrainingTimeInSeconds") or 0),
        billable_seconds=float(description.get("BillableTimeInSeconds") or 0),
        spot=bool(description.get("EnableManagedSpotTraining")),
        from_step=_parse_number(environment.get(FROM_STEP_VARIABLE)) or 0,
        from_reported_step=_parse_number(environment.get(FROM_REPORTED_VARIABLE)),
        from_files_digest=str(environment.get(FROM_FILES_VARIABLE, "")),
    )


def _parse_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
