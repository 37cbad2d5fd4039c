"""One host's side of a segment: variables for its ranks, its planned end, and its outcome.

Ranks get variables (contract.segment), and a file appears when they should exit. No signal is involved, so a
script that knows nothing of segments is not disturbed. What the next segment and the client need is in an
outcome file in the checkpoint directory, which the platform uploads.
"""

import contextlib
import math
import os
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from smlaunch.contract import segment as names
from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.contract.names import RESERVED_FOLDER, outcome_path, parse_job_name
from smlaunch.contract.paths import Paths
from smlaunch.contract.segment import Segment
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.step_tracker import StepTracker

if TYPE_CHECKING:
    from smlaunch.contract.outcome import RanksOfHost, SegmentOutcome
    from smlaunch.runtime.host_outcome import FinishedProcess
    from smlaunch.runtime.independent_ranks import IndependentRanks

_SIGTERM_MARGIN_SHARE = 0.5
_SIGKILL_MARGIN_SHARE = 0.9
"""Shares of the margin after the planned end at which running ranks get SIGTERM and SIGKILL: the host exits
before the time limit of the platform.
"""

_MAX_OUTCOME_BYTES = 1 << 20

_PENDING_SUFFIX = "-later"
"""Name of the stop file until the planned end. It exists from the start, since a rename works on a full disk.
"""


class SegmentEnd:
    """The planned end of a segment, for a loop that waits. Times are of time.monotonic."""

    def __init__(
        self,
        stop_file: str,
        planned_at: Optional[float] = None,
        margin_seconds: float = 0.0,
    ) -> None:
        self._stop_file = stop_file
        self._margin_seconds = margin_seconds
        self._created_at = time.monotonic()
        self.planned_at = planned_at
        """None for a segment without a planned end."""
        self.signal_at = None if planned_at is None else planned_at + _SIGTERM_MARGIN_SHARE * margin_seconds
        """When ranks that still run get SIGTERM."""
        self.stop_requested = False
        """The stop file exists, or could not be made."""
        self._requested_at: Optional[float] = None
        self._signalled_at: Optional[float] = None
        self.problem: Optional[str] = None
        """Why the stop file could not be made; the ranks then learn of the end by the signal only."""

    @property
    def has_passed(self) -> bool:
        return self.planned_at is not None and self.stop_requested and time.monotonic() >= self.planned_at

    @property
    def next_action_at(self) -> Optional[float]:
        """When there is something to do next."""
        return self.signal_at if self.stop_requested else self.planned_at

    def seconds_until_kill(self, now: float) -> float:
        """Seconds from ``now`` until ranks that were stopped are killed."""
        return (
            (now if self.planned_at is None else self.planned_at)
            + _SIGKILL_MARGIN_SHARE * self._margin_seconds
            - now
        )

    def request_stop(self) -> None:
        """Make the stop file appear, once."""
        if self.stop_requested:
            return
        self.stop_requested = True
        self._requested_at = time.time()
        try:
            os.rename(self._stop_file + _PENDING_SUFFIX, self._stop_file)
        except OSError as error:
            self.problem = "{}: the stop file cannot be made: {}".format(self._stop_file, error.strerror)

    @property
    def is_near(self) -> bool:
        """Whether the last quarter of the segment has begun."""
        if self.planned_at is None:
            return False
        return self.planned_at - time.monotonic() <= 0.25 * (self.planned_at - self._created_at)

    def record_signal(self) -> None:
        """The ranks get a stop signal now."""
        self._signalled_at = time.time()

    def was_requested_before(self, ended_at: float) -> bool:
        """Whether the stop file appeared before a rank exited. ``ended_at``: in seconds since the epoch."""
        return self._requested_at is not None and self._requested_at <= ended_at

    def was_signalled_before(self, ended_at: float) -> bool:
        """The same for the stop signal."""
        return self._signalled_at is not None and self._signalled_at <= ended_at


def prepare_segment(
    spec: LaunchSpec, paths: Paths, runtime_dir: str, environ: Mapping[str, str], now: float
) -> Segment:
    """The segment that this host's ranks train. Makes the directories that it names. Raises SetupError.

    ``runtime_dir``: for the stop file. ``environ``: of the request. ``now``: when the host started, in
    seconds since the epoch. The request takes precedence over job.json: an orchestrator uses one job.json for
    many runs, each of which has checkpoints of its own.
    """
    try:
        requested = Segment.from_environment(environ)
    except ValueError as error:
        raise SetupError(str(error)) from None
    job = environ.get("TRAINING_JOB_NAME") or None
    job_name = parse_job_name(job or "")
    # An inherited variable, from a job that runs this one on its own host, belongs to another run.
    requested_run = requested.run if job_name is None or job_name.run == requested.run else None
    run_id = requested_run or spec.run or requested.run
    if job_name is not None and job_name.run == (run_id or job_name.run):
        run_id = job_name.run
        requested = requested._replace(segment=job_name.segment, attempt=job_name.attempt)
    stop_after = read_stop_after(environ)
    segment = requested._replace(
        run=run_id,
        job=job or requested.job,
        stop_file=_prepare_stop_file(runtime_dir),
        stop_at=None if stop_after is None else now + stop_after,
        deterministic=spec.deterministic or requested.deterministic,
    )
    checkpoints = spec.checkpoints
    if checkpoints is None:
        return segment._replace(checkpoint_dir=None, checkpoints_uri=None)
    return segment._replace(
        checkpoint_dir=_make_directory(paths.resolve(checkpoints.path)),
        checkpoints_uri=(requested_run and requested.checkpoints_uri) or checkpoints.uri,
        upload_mode=checkpoints.upload,
        keep_steps=checkpoints.keep,
        interval_seconds=requested.interval_seconds
        if checkpoints.interval_seconds is None
        else checkpoints.interval_seconds,
        failure_seconds=requested.failure_seconds
        if checkpoints.failure_seconds is None
        else checkpoints.failure_seconds,
    )


def make_segment_end(segment: Segment, spec: LaunchSpec) -> SegmentEnd:
    """The planned end, in the clock of the supervisor's loop."""
    margin_seconds = spec.grace_seconds if spec.margin_seconds is None else spec.margin_seconds
    planned_at = None if segment.stop_at is None else time.monotonic() + segment.stop_at - time.time()
    return SegmentEnd(segment.stop_file or "", planned_at, margin_seconds)


def read_stop_after(environ: Mapping[str, str]) -> Optional[float]:
    """Seconds from the start of an attempt to its planned end. Raises SetupError."""
    text = environ.get(names.STOP_AFTER_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise SetupError(
            "{}: a number of seconds from 0 is needed, not {!r}".format(names.STOP_AFTER_VARIABLE, text)
        )
    return seconds


def read_previous_highest_step(environ: Mapping[str, str]) -> int:
    """The highest step that earlier jobs have reported; -1 without any."""
    text = environ.get(names.FROM_REPORTED_VARIABLE, "")
    return int(text) if text.isdigit() else -1


# ---- outcome ------------------------------------------------------------------------------------


class PreviousOutcome(NamedTuple):
    """What the checkpoint directory contains when a host starts."""

    finished_outcome: "Optional[SegmentOutcome]" = None
    """Outcome of the run's newest attempt, if it trained to the end and its ranks exited with 0."""

    outcome_stamp: Optional[Tuple[int, int]] = None
    """Of this attempt's own outcome file, to recognize that the ranks write a new one."""


class RanksEnded(NamedTuple):
    """How the ranks of one host ended."""

    succeeded: bool
    """All ranks exited with 0."""

    signalled: bool
    """The SIGTERM of the platform or of the planned end reached them."""

    train_together: bool
    """The progress lines of one rank speak for all: it is the only one, or the ranks meet at a rendezvous."""

    processes: "Sequence[FinishedProcess]"
    """In the order of their ranks."""

    result_dirs: Sequence[str]
    """The directories of the model and of other outputs."""

    may_read_stop_file: Callable[[], bool]
    """Called only where the answer matters: it reads the source."""

    may_read_planned_end: Callable[[], bool]
    """The same for the variables that have the time of the planned end."""


def read_previous_outcome(segment: Segment) -> PreviousOutcome:
    """Raises SetupError for an outcome that another release wrote."""
    outcome = _read_newest_outcome(segment)
    if outcome is None or not outcome.ranks_succeeded or outcome.result != "finished":
        return PreviousOutcome(None, _outcome_stamp(segment))
    return PreviousOutcome(outcome, _outcome_stamp(segment))


def write_finished_outcome(segment: Segment, finished_outcome: "SegmentOutcome") -> None:
    """Write this attempt's outcome where an earlier attempt has finished the training. Raises OSError."""
    outcome = finished_outcome._replace(job=segment.job, segment=segment.segment, attempt=segment.attempt)
    _write_atomically(os.path.join(segment.checkpoint_dir or "", outcome.path), outcome.to_bytes())


def write_outcome(
    segment: Segment,
    segment_end: SegmentEnd,
    previous: PreviousOutcome,
    step_tracker: StepTracker,
    ranks_ended: RanksEnded,
    host: Optional[str] = None,
    independent_ranks: "Optional[IndependentRanks]" = None,
    *,
    is_leader: bool = True,
) -> "Optional[SegmentOutcome]":
    """Write the outcome when all ranks of the host have exited: completed, where the ranks wrote one. Returns
    it; None where no checkpoints are kept. Raises OSError.

    ``host``: its name, where hosts train apart from each other; the host then writes an outcome of its own,
    and the leader that of the attempt besides.
    """
    from smlaunch.contract.outcome import CONTINUE, FINISHED  # takes milliseconds, and most jobs have none

    if segment.checkpoint_dir is None:
        return None
    outcome, is_new = _outcome_of_ranks(segment, segment_end, previous, step_tracker, ranks_ended)
    outcome = outcome._replace(
        ranks_succeeded=ranks_ended.succeeded,
        repeats_steps=segment_end.has_passed
        and outcome.reported_step is not None
        and step_tracker.mostly_repeats,
    )
    if independent_ranks is not None:
        job = segment.job or ""
        if outcome.result == FINISHED and ranks_ended.succeeded:
            independent_ranks = independent_ranks.after_all_finished(job)
        elif is_new:
            independent_ranks = independent_ranks.after(
                ranks_ended.processes, segment_end, job, ranks_ended.may_read_stop_file
            )
        outcome = outcome._replace(
            result=FINISHED if independent_ranks.all_finished else CONTINUE,
            independent_ranks=independent_ranks.total,
        )
    if host is not None:
        _write_ranks_of_host(segment.checkpoint_dir, outcome, host, independent_ranks)
    if is_leader:
        if independent_ranks is not None:
            # Ranks that train apart have no step in common.
            outcome = outcome._replace(reported_step=None, repeats_steps=False)
        _write_atomically(os.path.join(segment.checkpoint_dir, outcome.path), outcome.to_bytes())
    return outcome


def _outcome_of_ranks(
    segment: Segment,
    segment_end: SegmentEnd,
    previous: PreviousOutcome,
    step_tracker: StepTracker,
    ranks_ended: RanksEnded,
) -> "Tuple[SegmentOutcome, bool]":
    """The outcome that the ranks of this host wrote in this attempt, or else a new one, and which it is."""
    from smlaunch.contract import outcome as outcomes

    outcome = _read_own_outcome(segment)
    highest_step = step_tracker.highest_step
    # Compared by file, not by job name: an interrupted spot job continues under the same name.
    if outcome is not None and _outcome_stamp(segment) != previous.outcome_stamp:
        return outcome._replace(reported_step=highest_step), False
    if outcome is not None and outcome.job == segment.job and outcome.reported_step is not None:
        highest_step = (
            outcome.reported_step if highest_step is None else max(highest_step, outcome.reported_step)
        )
    has_finished = _has_finished(segment.checkpoint_dir, segment_end, step_tracker, ranks_ended)
    result = outcomes.FINISHED if has_finished else outcomes.CONTINUE
    return outcomes.SegmentOutcome(
        result,
        None,
        segment.run,
        segment.job,
        segment.segment,
        segment.attempt,
        reported_step=highest_step,
    ), True


def _write_ranks_of_host(
    checkpoint_dir: str,
    outcome: "SegmentOutcome",
    host: str,
    independent_ranks: "Optional[IndependentRanks]",
) -> None:
    from smlaunch.contract.outcome import RanksOfHost

    ranks_of_host = RanksOfHost(
        host,
        outcome.result,
        outcome.run,
        outcome.job,
        outcome.segment,
        outcome.attempt,
        outcome.reported_step,
        outcome.independent_ranks,
        () if independent_ranks is None else tuple(sorted(independent_ranks.finished.items())),
    )
    _write_atomically(os.path.join(checkpoint_dir, ranks_of_host.path), ranks_of_host.to_bytes())


def _has_finished(
    checkpoint_dir: Optional[str], segment_end: SegmentEnd, step_tracker: StepTracker, ranks_ended: RanksEnded
) -> bool:
    """Whether the ranks have trained to the end. Ranks that exit with 0 have, unless they exited because they
    were asked to; a script that does not read the stop file cannot know of that. A rank that got a signal
    may have exited anywhere: it has finished if it reported the last step, left a result, and removed its
    checkpoints, so that no later segment could resume. Ranks may also watch the time and exit shortly before
    the planned end: they have not finished if the last step that they reported is not the last of all.
    """
    if not ranks_ended.succeeded:
        return False
    if not segment_end.stop_requested:
        stopped_midway = segment_end.is_near and ranks_ended.train_together and step_tracker.is_midway
        return not (stopped_midway and ranks_ended.may_read_planned_end())
    reached_last_step = ranks_ended.train_together and step_tracker.is_complete
    if not ranks_ended.signalled:
        return reached_last_step or not ranks_ended.may_read_stop_file()
    has_result = any(_has_files(directory) for directory in ranks_ended.result_dirs)
    return reached_last_step and has_result and not _has_files(checkpoint_dir)


def read_ranks_of_hosts(segment: Segment) -> "List[RanksOfHost]":
    """What hosts that train apart wrote in the segments before this one. Raises SetupError for an outcome
    that another release wrote."""
    from smlaunch.contract.formats import FormatError
    from smlaunch.contract.outcome import find_ranks_of_hosts

    try:
        return find_ranks_of_hosts(_reserved_files(segment), partial(_read_reserved, segment), segment.writer)
    except FormatError as error:
        raise SetupError(str(error)) from None


def _read_newest_outcome(segment: Segment) -> "Optional[SegmentOutcome]":
    """The newest outcome of the run's attempts. Raises SetupError for one that another release wrote."""
    files = _reserved_files(segment)
    if not files:
        return None
    from smlaunch.contract.formats import FormatError
    from smlaunch.contract.outcome import find_newest_outcome

    try:
        return find_newest_outcome(files, partial(_read_reserved, segment), segment.run)
    except FormatError as error:
        raise SetupError(str(error)) from None


def _reserved_files(segment: Segment) -> List[str]:
    """Paths of smlaunch's own files, below the checkpoint directory."""
    if segment.checkpoint_dir is None:
        return []
    try:
        file_names = os.listdir(os.path.join(segment.checkpoint_dir, RESERVED_FOLDER))
    except OSError:  # usually there is none yet
        return []
    return [RESERVED_FOLDER + "/" + name for name in file_names]


def _read_reserved(segment: Segment, path: str) -> bytes:
    """Raises KeyError for a file that cannot be read."""
    content = _read_small_file(os.path.join(segment.checkpoint_dir or "", path))
    if content is None:
        raise KeyError(path)
    return content


def _read_own_outcome(segment: Segment) -> "Optional[SegmentOutcome]":
    """The outcome of this attempt."""
    from smlaunch.contract.outcome import parse_outcome

    content = _read_small_file(_own_outcome_path(segment))
    return None if content is None else parse_outcome(content, _own_outcome_path(segment))


def _own_outcome_path(segment: Segment) -> str:
    return os.path.join(segment.checkpoint_dir or "", outcome_path(segment.writer))


def _has_files(directory: Optional[str]) -> bool:
    """Whether a directory has an entry of the script's own."""
    try:
        return any(name != RESERVED_FOLDER for name in os.listdir(directory or ""))
    except OSError:
        return False


def _outcome_stamp(segment: Segment) -> Optional[Tuple[int, int]]:
    """Inode and modification time of this attempt's outcome file."""
    try:
        file_status = os.lstat(_own_outcome_path(segment))
    except OSError:
        return None
    return file_status.st_ino, file_status.st_mtime_ns


def _read_small_file(path: str) -> Optional[bytes]:
    """The content of a regular file; None for anything else. The script may have put a FIFO, a link or a
    file without an end there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        try:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(_MAX_OUTCOME_BYTES + 1) if is_regular else b""
        except OSError:
            return None
    return content if is_regular and len(content) <= _MAX_OUTCOME_BYTES else None


def _write_atomically(path: str, content: bytes) -> None:
    """Replace the file as a whole: other processes may copy the directory at any time."""
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, ".{}.{}".format(name, os.getpid()))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # the script may have put a link there
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


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
