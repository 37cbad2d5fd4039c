"""The differences between kinds of jobs, as an interface: the runner and its attempts are the same for all
kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from smlaunch.api.job_kinds import JobKind, get_at_path, set_at_path
from smlaunch.local import api_support
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.job_spec import JobSpec, SecondsUntilAvailable
from smlaunch.local.jobs.s3_folder_sync import S3FolderSync
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.stores.job_store import JobRecord

LogToHost = Callable[[str, str], None]
"""Writes a line of the endpoint's own, given as (host name, text), to a host's log."""


@dataclass(frozen=True)
class AttemptOutcome:
    """The result of an attempt."""

    failure_reason: str | None = None
    """FailureReason, if the attempt failed."""
    is_spot_interrupted: bool = False
    """Whether the hosts were taken away by a spot interruption."""
    describe_fields: JsonMapping = field(default_factory=dict)
    """Fields for the response of Describe."""


@dataclass(frozen=True)
class HandlerContext:
    """What a handler needs of its endpoint."""

    object_store: S3ObjectStore
    settings: Settings
    log_to_host: LogToHost


class JobHandler(Protocol):
    """One attempt at a job of a certain kind."""

    job_kind: JobKind
    request: JsonMapping
    spec: JobSpec
    working_directory: str
    """Where the hosts' programs start, relative to /opt/ml."""
    reads_failure_file: bool
    """Whether a host's file /opt/ml/output/failure gives the reason of its failure."""

    def describe_selected_instance(self, selection: JsonMapping) -> JsonMapping:
        """Return the fields of Describe that change when a type was selected from InstancePreferences.
        ``selection`` has SelectedInstanceType and SelectedInstanceCount."""
        changed_fields: JsonObject = {}
        resources_path = self.job_kind.resources
        requested_resources = get_at_path(self.request, resources_path)
        set_at_path(changed_fields, resources_path, {**requested_resources, **selection})
        return changed_fields

    def recorded_fields(self, runs_images: bool) -> Mapping[str, str]:
        """Return the fields of the request that have no effect here, except the image, each with a note on
        what happens instead. ``runs_images``: whether the executor runs images."""
        notes = api_support.recorded_fields(
            self.request, api_support.support_rows(self.job_kind, runs_images)
        )
        notes.pop(".".join(map(str, self.job_kind.request_path_by_field["image"])), None)
        return notes

    def write_host_files(self, hosts: Sequence[JobHost], current_host: JobHost) -> None:
        """Create the directories and configuration files of ``current_host``."""

    def create_syncs(
        self, hosts: Sequence[JobHost], context: HandlerContext, raise_if_stopping: Callable[[], None]
    ) -> list[S3FolderSync]:
        """Return the syncs between directories of the hosts and S3, after the initial downloads.
        ``raise_if_stopping`` is called between files. Raises InputDataError."""

    def upload_results(
        self, hosts: Sequence[JobHost], context: HandlerContext, failure_reason: str | None, is_stopped: bool
    ) -> AttemptOutcome:
        """Upload the output of hosts that have ended, and return how this attempt at the job ended.
        ``failure_reason``: why the job failed; None if it did not, or if it was stopped. Raises
        UploadError."""


class JobHandlerFactory(Protocol):
    """Creates the handler for one attempt. ``seconds_until_available`` tells how long hosts are
    not available."""

    def __call__(self, record: JobRecord, seconds_until_available: SecondsUntilAvailable) -> JobHandler: ...
