"""The differences between kinds of jobs, as an interface: the runner and its attempts are the same for all
kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from smlaunch.local.executors.base import JobHost
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.spec import CapacityWait, JobSpec
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.settings import Settings

WriteNote = Callable[[str, str], None]
"""Writes a line of the endpoint's own, given as (host name, text), to a host's log."""


@dataclass(frozen=True)
class AttemptOutcome:
    """The result of an attempt."""

    reason: str | None = None
    """FailureReason, if the attempt failed."""
    is_spot_interrupted: bool = False
    """Whether the hosts were taken away by a spot interruption."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Members for the response of Describe."""


@dataclass(frozen=True)
class HandlerContext:
    """What a handler needs of its endpoint."""

    objects: Objects
    settings: Settings
    write_note: WriteNote


class JobHandler(Protocol):
    """One attempt at a job of a certain kind."""

    log_group: str
    working_directory: str
    """Where the hosts' programs start, relative to /opt/ml."""
    reads_failure_file: bool
    """Whether a host's file /opt/ml/output/failure gives the reason of its failure."""

    @property
    def spec(self) -> JobSpec: ...

    def describe_selected_instance(self, selection: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the members of Describe that change when a type was selected from InstancePreferences.
        ``selection`` has SelectedInstanceType and SelectedInstanceCount."""

    def recorded_fields(self, runs_images: bool) -> Mapping[str, str]:
        """Return the fields of the request that have no effect here, except the image, each with a note on
        what happens instead. ``runs_images``: whether the executor runs images."""

    def write_host_files(self, hosts: Sequence[JobHost], current: JobHost) -> None:
        """Create the directories and configuration files of the host ``current``."""

    def create_syncs(
        self, hosts: Sequence[JobHost], context: HandlerContext, raise_if_stopping: Callable[[], None]
    ) -> list[CheckpointSync]:
        """Return the syncs between directories of the hosts and S3, after the initial downloads.
        ``raise_if_stopping`` is called between files. Raises DataError."""

    def collect_results(
        self, hosts: Sequence[JobHost], context: HandlerContext, reason: str | None, is_stopped: bool
    ) -> AttemptOutcome:
        """Upload the output after all hosts have ended. ``reason``: why the job failed, if it did; None for
        a stopped job. Raises UploadError."""


class JobHandlerFactory(Protocol):
    """Creates the handler for one attempt. ``capacity_wait`` tells how long hosts are unavailable."""

    def __call__(self, record: JobRecord, instance_wait: CapacityWait) -> JobHandler: ...
