"""What tells one kind of job from another: the runner and its attempts are the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from smlaunch.local.executors.base import Place
from smlaunch.local.job_store import JobRecord
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.spec import JobSpec, Wait
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.settings import Settings

Note = Callable[[str, str], None]
"""(host label, text): a line of the endpoint's own in a host's log."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: ``reason`` is None unless it failed, ``interrupted`` when its hosts were taken
    away. ``result``: what Describe is to show of it."""

    reason: str | None = None
    interrupted: bool = False
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tools:
    """What a kind of job works with."""

    objects: Objects
    settings: Settings
    note: Note


class Work(Protocol):
    """One job of a kind, as one attempt sees it. ``directory``: where its programs start, relative to
    /opt/ml. ``failure_file``: whether a host's /opt/ml/output/failure says why it failed."""

    log_group: str
    directory: str
    failure_file: bool

    @property
    def spec(self) -> JobSpec: ...

    def selected(self, chosen: Mapping[str, Any]) -> Mapping[str, Any]:
        """What Describe shows once a type was ``chosen`` of InstancePreferences."""

    def recorded_fields(self, runs_images: bool) -> Mapping[str, str]:
        """Fields of the request that have no effect here, with what happens instead; the image aside.
        ``runs_images``: whether the executor here does."""

    def lay_out(self, places: Sequence[Place], current: Place) -> None:
        """Makes one host's directories and configuration files."""

    def synced(
        self, places: Sequence[Place], tools: Tools, check: Callable[[], None]
    ) -> list[CheckpointSync]:
        """The directories that are kept like S3 while hosts run, with what they begin with. ``check`` raises
        to give up. Raises DataError."""

    def finish(self, places: Sequence[Place], tools: Tools, reason: str | None, stopped: bool) -> Outcome:
        """All hosts have ended: takes what they left. ``reason``: why the job has failed, if it has, which a
        job that was stopped has not. Raises UploadError."""


class WorkOf(Protocol):
    def __call__(self, record: JobRecord, wait: Wait) -> Work: ...
