"""One host's side of a segment: variables for its ranks, its planned end, and its outcome.

Ranks get variables (contract.segment), and a file appears when they should exit. No signal is involved, so a
script that knows nothing of segments is not disturbed. What the next segment and the client need is in an
outcome file in the checkpoint directory, which the platform uploads.
"""

import math
import os
import time
from typing import (
    TYPE_CHECKING,
    Callable,
    FrozenSet,
    Mapping,
    Optional,
    Set,
)

from smlaunch.contract import segment as segment_variables
from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.contract.run_names import RESERVED_FOLDER, parse_job_name
from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.contract.segment import Segment
from smlaunch.runtime.errors import SetupError

if TYPE_CHECKING:
    pass

_SIGTERM_MARGIN_SHARE = 0.5
_SIGKILL_MARGIN_SHARE = 0.9
"""Shares of the margin after the planned end at which running ranks get SIGTERM and SIGKILL: the host exits
before the time limit of the platform.
"""

_MAX_LISTED_FILES = 100_000

_PENDING_SUFFIX = "-later"
"""Name of the stop file until the planned end. It exists from the start, since a rename works on a full disk.
"""


class SegmentDeadline:
    """The planned end of a segment, for a loop that waits. Times are of time.monotonic."""

    def __init__(
        self,
        stop_file: str,
        planned_at: Optional[float] = None,
        margin_seconds: float = 0.0,
        checkpoint_dir: Optional[str] = None,
        until_step: Optional[int] = None,
    ) -> None:
        """``until_step``: the planned end is also the first report of this training step or a later one."""
        self._stop_file = stop_file
        self._until_step = until_step
        self._checkpoint_dir = checkpoint_dir
        self._checkpoints_at_request: FrozenSet[str] = frozenset()
        self._margin_seconds = margin_seconds
        self._created_at = time.monotonic()
        self.planned_end_at = planned_at
        """None for a segment without a planned end."""
        self.sigterm_at = None if planned_at is None else planned_at + _SIGTERM_MARGIN_SHARE * margin_seconds
        """When ranks that still run get SIGTERM."""
        self.is_stop_requested = False
        """The stop file exists, or could not be made."""
        self._requested_at: Optional[float] = None
        self._signalled_at: Optional[float] = None
        self.stop_file_error: Optional[str] = None
        """Why the stop file could not be made; the ranks then learn of the end by the signal only."""

    @property
    def has_passed(self) -> bool:
        return (
            self.planned_end_at is not None
            and self.is_stop_requested
            and time.monotonic() >= self.planned_end_at
        )

    @property
    def next_wakeup_at(self) -> Optional[float]:
        """When there is something to do next."""
        return self.sigterm_at if self.is_stop_requested else self.planned_end_at

    def seconds_until_kill(self, now: float) -> float:
        """Return the seconds from ``now`` until ranks that were stopped are killed."""
        return (
            (now if self.planned_end_at is None else self.planned_end_at)
            + _SIGKILL_MARGIN_SHARE * self._margin_seconds
            - now
        )

    def record_reported_step(
        self, step: Optional[int], script_may_read_stop_file: Callable[[], bool]
    ) -> None:
        """Let the planned end be now if the ranks have reported the segment's last step. A script that does
        not read the stop file gets SIGTERM at once: each further step would have this segment's settings.

        ``step``: the highest one so far; None before the first. ``script_may_read_stop_file`` reads the
        source, and is called once at most.
        """
        if self._until_step is None or step is None or step < self._until_step:
            return
        self._until_step = None
        now = time.monotonic()
        if self.planned_end_at is not None and self.planned_end_at <= now:
            return
        self.planned_end_at = self.sigterm_at = now
        if script_may_read_stop_file():
            self.sigterm_at += _SIGTERM_MARGIN_SHARE * self._margin_seconds

    def request_stop(self) -> None:
        """Make the stop file appear, once."""
        if self.is_stop_requested:
            return
        self.is_stop_requested = True
        self._requested_at = time.time()
        self._checkpoints_at_request = list_script_files(self._checkpoint_dir)
        try:
            os.rename(self._stop_file + _PENDING_SUFFIX, self._stop_file)
        except OSError as error:
            self.stop_file_error = "{}: the stop file cannot be made: {}".format(
                self._stop_file, error.strerror
            )

    @property
    def is_near(self) -> bool:
        """Whether the last quarter of the segment has begun."""
        if self.planned_end_at is None:
            return False
        return self.planned_end_at - time.monotonic() <= 0.25 * (self.planned_end_at - self._created_at)

    def were_checkpoints_removed(self) -> bool:
        """Return whether the ranks have left nothing to resume from: no file, or fewer files than when the
        stop was requested and no new one. Other files may lie there, such as a log.
        """
        remaining = list_script_files(self._checkpoint_dir)
        return not remaining or remaining < self._checkpoints_at_request

    def record_stop_signal(self) -> None:
        """Record that the ranks get a stop signal now."""
        self._signalled_at = time.time()

    def was_stop_requested_before(self, ended_at: float) -> bool:
        """Return whether the stop file appeared before a rank exited. ``ended_at``: in seconds since the
        epoch."""
        return self._requested_at is not None and self._requested_at <= ended_at

    def was_stop_signal_sent_before(self, ended_at: float) -> bool:
        """Return the same for the stop signal."""
        return self._signalled_at is not None and self._signalled_at <= ended_at


def prepare_segment(
    spec: LaunchSpec, paths: Paths, runtime_dir: str, environ: Mapping[str, str], started_at: float
) -> Segment:
    """Return the segment (one job of a chain that trains a run) that this host's ranks train. Makes the
    directories that it names. Raises SetupError.

    ``runtime_dir``: for the stop file. ``environ``: of the request. ``started_at``: when the host started, in
    seconds since the epoch. The request takes precedence over job.json: an orchestrator uses one job.json for
    many runs, each of which has checkpoints of its own.
    """
    try:
        segment_of_request = Segment.from_environment(environ)  # by the variables SMLAUNCH_...
    except ValueError as error:
        raise SetupError(str(error)) from None
    training_job_name = environ.get("TRAINING_JOB_NAME") or None
    # Run, segment and attempt, of a job that smlaunch named; otherwise None.
    parsed_job_name = parse_job_name(training_job_name or "")
    # The variables may come from another run: one whose job starts this job on its own host.
    is_of_other_run = parsed_job_name is not None and parsed_job_name.run != segment_of_request.run
    requested_run_id = segment_of_request.run
    run_id = (spec.run or requested_run_id) if is_of_other_run else (requested_run_id or spec.run)
    stop_after_seconds = read_stop_after_seconds(environ)
    segment = segment_of_request._replace(
        run=run_id,
        job=training_job_name or segment_of_request.job,
        stop_file=_prepare_stop_file(runtime_dir),  # it appears when the ranks should exit
        stop_at=None if stop_after_seconds is None else started_at + stop_after_seconds,
        deterministic=spec.deterministic or segment_of_request.deterministic,
        job_hash=spec.job_hash,
    )
    if parsed_job_name is not None and parsed_job_name.run == (run_id or parsed_job_name.run):
        segment = segment._replace(
            run=parsed_job_name.run, segment=parsed_job_name.segment, attempt=parsed_job_name.attempt
        )
    if spec.checkpoints is None:
        return segment._replace(checkpoint_dir=None, checkpoints_uri=None)
    requests_this_run = requested_run_id is not None and not is_of_other_run
    requested_uri = segment_of_request.checkpoints_uri if requests_this_run else None
    return segment._replace(
        checkpoint_dir=_make_directory(paths.resolve(spec.checkpoints.path)),
        checkpoints_uri=requested_uri or spec.checkpoints.uri,
        upload_mode=spec.checkpoints.upload,
        keep_steps=spec.checkpoints.keep,
        interval_seconds=_value_or_default(spec.checkpoints.interval_seconds, segment.interval_seconds),
        failure_seconds=_value_or_default(spec.checkpoints.failure_seconds, segment.failure_seconds),
    )


def _value_or_default(value: Optional[float], default: Optional[float]) -> Optional[float]:
    """Return ``value``, or ``default`` where it is None; 0 is a value."""
    return default if value is None else value


def make_segment_deadline(segment: Segment, spec: LaunchSpec) -> SegmentDeadline:
    """Return the planned end, in the clock of the supervisor's loop."""
    margin_seconds = spec.grace_seconds if spec.margin_seconds is None else spec.margin_seconds
    planned_at = None if segment.stop_at is None else time.monotonic() + segment.stop_at - time.time()
    return SegmentDeadline(
        segment.stop_file or "",
        planned_at,
        margin_seconds,
        segment.checkpoint_dir,
        # Ranks that train apart have no step in common, and without checkpoints no job follows.
        until_step=None if spec.ranks.independent or spec.checkpoints is None else segment.until_step,
    )


def read_stop_after_seconds(environ: Mapping[str, str]) -> Optional[float]:
    """Return the seconds from the start of an attempt to its planned end, by SMLAUNCH_STOP_AFTER; None
    without that variable. Raises SetupError.
    """
    text = environ.get(segment_variables.STOP_AFTER_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan  # fails the comparison below
    if not 0 <= seconds < math.inf:
        raise SetupError(
            "{}: a number of seconds from 0 is needed, not {!r}".format(
                segment_variables.STOP_AFTER_VARIABLE, text
            )
        )
    return seconds


def read_previous_highest_step(environ: Mapping[str, str]) -> int:
    """Return the highest step that earlier jobs have reported; -1 without any."""
    text = environ.get(segment_variables.FROM_REPORTED_VARIABLE, "")
    return int(text) if text.isdigit() else -1


def list_script_files(directory: Optional[str]) -> FrozenSet[str]:
    """Return the paths of the script's own files below a directory, without smlaunch's; of a large tree, the
    first ``_MAX_LISTED_FILES`` (100 000) or so. None, or a directory that does not exist, has no files.
    """
    paths: Set[str] = set()
    for folder, subfolders, file_names in os.walk(directory or ""):
        if folder == directory and RESERVED_FOLDER in subfolders:  # the folder of smlaunch's own files
            subfolders.remove(RESERVED_FOLDER)  # os.walk then skips it
        paths.update(os.path.join(folder, name) for name in file_names)
        if len(paths) > _MAX_LISTED_FILES:
            break
    return frozenset(paths)


def _prepare_stop_file(runtime_dir: str) -> str:
    """Remove the stop file of an earlier attempt; return its path."""
    stop_file = os.path.join(runtime_dir, "stop")
    if os.path.exists(stop_file):  # of an earlier attempt on this host
        os.unlink(stop_file)
    os.close(os.open(stop_file + _PENDING_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    return stop_file


def _make_directory(path: str) -> str:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise SetupError(
            "{}: the directory for checkpoints cannot be made: {}".format(path, error.strerror)
        ) from None
    return path
