"""What an attempt leaves for the next one: the outcome files beside the checkpoints (contract.outcome)."""

import contextlib
import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional, Sequence, Tuple

from smlaunch.contract.run_names import RESERVED_FOLDER, outcome_path
from smlaunch.contract.segment import Segment
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.segment_lifecycle import SegmentDeadline, list_script_files
from smlaunch.runtime.step_tracker import StepTracker

if TYPE_CHECKING:
    from smlaunch.contract.segment_outcome import HostSegmentOutcome, SegmentOutcome
    from smlaunch.runtime.host_outcome import FinishedProcess
    from smlaunch.runtime.independent_ranks import IndependentRanks

_MAX_OUTCOME_FILE_BYTES = 1 << 20


class PreviousOutcome(NamedTuple):
    """What the checkpoint directory contains when a host starts."""

    finished_outcome: "Optional[SegmentOutcome]" = None
    """Outcome of the run's newest attempt, if that came before this one, trained to the end, and its ranks
    exited with 0."""

    file_identity: Optional[Tuple[int, int]] = None
    """Of this attempt's own outcome file, to recognize that the ranks write a new one."""


class RanksResult(NamedTuple):
    """How the ranks of one host ended."""

    all_succeeded: bool
    """All ranks exited with 0."""

    got_stop_signal: bool
    """The SIGTERM of the platform or of the planned end reached them."""

    train_together: bool
    """The progress lines of one rank speak for all: it is the only one, or the ranks meet at a rendezvous."""

    processes: "Sequence[FinishedProcess]"
    """In the order of their ranks."""

    result_dirs: Sequence[str]
    """The directories of the model and of other outputs."""

    script_may_read_stop_file: Callable[[], bool]
    """Called only where the answer matters: it reads the source."""

    script_may_read_planned_end: Callable[[], bool]
    """The same for the variables that have the time of the planned end."""


def read_previous_outcome(segment: Segment) -> PreviousOutcome:
    """Raises SetupError for an outcome that another release wrote, and for a run that has trained to its end
    as another job: this one would complete without having trained anything."""
    outcome = _read_newest_outcome(segment)
    if outcome is None or not outcome.has_finished:
        return PreviousOutcome(None, _outcome_file_identity(segment))
    if not outcome.is_of_job(segment.job_hash):
        raise SetupError(
            "{}: another job has trained to its end under the name of run {} (other settings, source or "
            "data), and this job would train nothing; take another name, or another prefix for "
            "checkpoints".format(segment.checkpoints_uri or segment.checkpoint_dir, segment.run)
        )
    # This job was interrupted after its end, or its record was deleted and it was created again: the host
    # has no model of it, and an empty one would become the job's. So the program runs again.
    if (outcome.segment, outcome.attempt) >= (segment.segment, segment.attempt):
        outcome = None
    return PreviousOutcome(outcome, _outcome_file_identity(segment))


def write_finished_outcome(segment: Segment, finished_outcome: "SegmentOutcome") -> None:
    """Write this attempt's outcome where an earlier attempt has finished the training. Raises OSError."""
    outcome = finished_outcome._replace(job=segment.job, segment=segment.segment, attempt=segment.attempt)
    _write_atomically(os.path.join(segment.checkpoint_dir or "", outcome.path), outcome.to_bytes())


def write_attempt_outcome(
    segment: Segment,
    segment_deadline: SegmentDeadline,
    previous_outcome: PreviousOutcome,
    step_tracker: StepTracker,
    ranks_result: RanksResult,
    host: Optional[str] = None,
    independent_ranks: "Optional[IndependentRanks]" = None,
    *,
    is_leader: bool = True,
) -> "Optional[SegmentOutcome]":
    """Write the outcome of this attempt at a segment, one job of a chain: whether the run has finished or
    continues. Where the ranks wrote an outcome by smlaunch.train, add what they did not know. Returns the
    outcome; None without a checkpoint directory, in which it is written. Raises OSError.

    ``previous_outcome``: the files that were there when the host started. ``host``: its name, where hosts
    train apart from each other; each then writes an outcome of its own, and the leader that of the attempt.
    """
    # Not at the top: the import takes milliseconds, and most jobs have no outcome.
    from smlaunch.contract.segment_outcome import CONTINUE, FINISHED

    if segment.checkpoint_dir is None:
        return None
    ranks_outcome = _read_outcome_of_ranks(segment, step_tracker, previous_outcome)  # None: they wrote none
    outcome = ranks_outcome or _make_outcome(segment, segment_deadline, step_tracker, ranks_result)
    reports_steps = outcome.reported_step is not None
    outcome = outcome._replace(
        ranks_succeeded=ranks_result.all_succeeded,
        job_hash=segment.job_hash,
        # So that the chain notices a job that comes to its planned end and has only repeated earlier steps.
        repeats_steps=segment_deadline.has_passed and reports_steps and step_tracker.mostly_repeated_steps,
    )
    if independent_ranks is not None:  # they train apart: the run has finished when each of them has
        if outcome.result == FINISHED and ranks_result.all_succeeded:
            independent_ranks = independent_ranks.with_all_finished_now(segment.job or "")
        elif ranks_outcome is None:  # then each rank's own exit says whether it has finished
            independent_ranks = independent_ranks.with_ranks_finished_now(
                processes=ranks_result.processes,
                segment_deadline=segment_deadline,
                job=segment.job or "",
                may_read_stop_file=ranks_result.script_may_read_stop_file,
            )
        outcome = outcome._replace(
            result=FINISHED if independent_ranks.have_all_finished else CONTINUE,
            independent_ranks=independent_ranks.total_ranks,
        )
    if host is not None:
        _write_ranks_of_host(segment.checkpoint_dir, outcome, host, independent_ranks)
    if is_leader:
        if independent_ranks is not None:
            # Ranks that train apart have no step in common.
            outcome = outcome._replace(reported_step=None, repeats_steps=False)
        _write_atomically(os.path.join(segment.checkpoint_dir, outcome.path), outcome.to_bytes())
    return outcome


def _read_outcome_of_ranks(
    segment: Segment, step_tracker: StepTracker, previous_outcome: PreviousOutcome
) -> "Optional[SegmentOutcome]":
    """Return the outcome that the ranks of this host wrote in this attempt; None where they wrote none."""
    written_outcome = _read_attempt_outcome(segment)
    # Compared by file, not by job name: an interrupted spot job continues under the same name.
    if written_outcome is None or _outcome_file_identity(segment) == previous_outcome.file_identity:
        return None
    return written_outcome._replace(reported_step=step_tracker.highest_step)


def _make_outcome(
    segment: Segment, segment_deadline: SegmentDeadline, step_tracker: StepTracker, ranks_result: RanksResult
) -> "SegmentOutcome":
    """Return the outcome of this attempt where the ranks wrote none: by their exits and the steps that they
    reported.
    """
    from smlaunch.contract.segment_outcome import CONTINUE, FINISHED, SegmentOutcome

    reported_step = step_tracker.highest_step
    earlier_outcome = _read_attempt_outcome(segment)
    is_of_this_job = earlier_outcome is not None and earlier_outcome.is_of_job(segment.job_hash)
    if earlier_outcome is not None and is_of_this_job and earlier_outcome.job == segment.job:
        # This job has reported steps before its interruption.
        known_steps = (reported_step, earlier_outcome.reported_step)
        reported_step = max((step for step in known_steps if step is not None), default=None)
    has_finished = _has_training_finished(segment_deadline, step_tracker, ranks_result)
    return SegmentOutcome(
        result=FINISHED if has_finished else CONTINUE,
        step=None,  # only smlaunch.train knows which checkpoint is complete
        run=segment.run,
        job=segment.job,
        segment=segment.segment,
        attempt=segment.attempt,
        reported_step=reported_step,
    )


def _write_ranks_of_host(
    checkpoint_dir: str,
    outcome: "SegmentOutcome",
    host: str,
    independent_ranks: "Optional[IndependentRanks]",
) -> None:
    from smlaunch.contract.segment_outcome import HostSegmentOutcome

    ranks_of_host = HostSegmentOutcome(
        host,
        outcome.result,
        outcome.run,
        outcome.job,
        outcome.segment,
        outcome.attempt,
        outcome.reported_step,
        outcome.independent_ranks,
        () if independent_ranks is None else tuple(sorted(independent_ranks.job_by_finished_rank.items())),
    )
    _write_atomically(os.path.join(checkpoint_dir, ranks_of_host.path), ranks_of_host.to_bytes())


def _has_training_finished(
    segment_deadline: SegmentDeadline, step_tracker: StepTracker, ranks_result: RanksResult
) -> bool:
    """Return whether the ranks of this host have trained to the end. Ranks that exit with 0 have, unless they
    exited because they were asked to, or because they watched the time.

    The last progress line (step and number of steps) decides where it speaks for all ranks, which then
    ``train_together``. ``segment_deadline``: the planned end, at which the stop file asks ranks to exit.
    """
    if not ranks_result.all_succeeded:
        return False
    is_midway = ranks_result.train_together and step_tracker.is_before_last_step
    if not segment_deadline.is_stop_requested:
        # Nobody asked them to exit; but a script may know the planned end, and exit shortly before it.
        may_have_watched_time = segment_deadline.is_near and is_midway  # near: in its last quarter
        return not (may_have_watched_time and ranks_result.script_may_read_planned_end())
    if is_midway:
        return False
    is_complete = ranks_result.train_together and step_tracker.has_reached_last_step
    if is_complete and not ranks_result.got_stop_signal:
        return True
    # It has a result, and either no checkpoint to continue from, or it has trained everything again.
    if _would_next_segment_start_over(segment_deadline, step_tracker, ranks_result):
        return True
    # Ranks that neither got a signal nor read the stop file have exited by themselves.
    return not ranks_result.got_stop_signal and not ranks_result.script_may_read_stop_file()


def _would_next_segment_start_over(
    segment_deadline: SegmentDeadline, step_tracker: StepTracker, ranks_result: RanksResult
) -> bool:
    """Return whether the next segment would train everything again although there is a result: the ranks have
    removed their checkpoints, or have repeated the whole training already. The ranks may have been stopped at
    any point, even while saving their model; such a training counts as finished all the same.
    """
    has_result = any(list_script_files(directory) for directory in ranks_result.result_dirs)
    if not (ranks_result.train_together and step_tracker.knows_total_steps and has_result):
        return False
    return segment_deadline.were_checkpoints_removed() or step_tracker.repeated_whole_training


def read_ranks_of_hosts(segment: Segment) -> "List[HostSegmentOutcome]":
    """Return what hosts that train apart wrote in the segments before this one. Raises SetupError for an
    outcome that another release wrote."""
    from smlaunch.contract.formats import FormatError
    from smlaunch.contract.segment_outcome import find_newest_host_outcomes

    try:
        return find_newest_host_outcomes(
            _list_reserved_files(segment), partial(_read_reserved_file, segment), segment.writer
        )
    except FormatError as error:
        raise SetupError(str(error)) from None


def _read_newest_outcome(segment: Segment) -> "Optional[SegmentOutcome]":
    """Return the newest outcome of the run's attempts. Raises SetupError for one that another release
    wrote."""
    files = _list_reserved_files(segment)
    if not files:
        return None
    from smlaunch.contract.formats import FormatError
    from smlaunch.contract.segment_outcome import find_newest_outcome

    try:
        return find_newest_outcome(files, partial(_read_reserved_file, segment), segment.run)
    except FormatError as error:
        raise SetupError(str(error)) from None


def _list_reserved_files(segment: Segment) -> List[str]:
    """Return the paths of smlaunch's own files, below the checkpoint directory."""
    if segment.checkpoint_dir is None:
        return []
    try:
        file_names = os.listdir(os.path.join(segment.checkpoint_dir, RESERVED_FOLDER))
    except OSError:  # usually there is none yet
        return []
    return [RESERVED_FOLDER + "/" + name for name in file_names]


def _read_reserved_file(segment: Segment, path: str) -> bytes:
    """Raises KeyError for a file that cannot be read."""
    content = _read_small_file(os.path.join(segment.checkpoint_dir or "", path))
    if content is None:
        raise KeyError(path)
    return content


def _read_attempt_outcome(segment: Segment) -> "Optional[SegmentOutcome]":
    """Return the outcome of this attempt."""
    from smlaunch.contract.segment_outcome import parse_outcome

    content = _read_small_file(_attempt_outcome_path(segment))
    return None if content is None else parse_outcome(content, _attempt_outcome_path(segment))


def _attempt_outcome_path(segment: Segment) -> str:
    return os.path.join(segment.checkpoint_dir or "", outcome_path(segment.writer))


def _outcome_file_identity(segment: Segment) -> Optional[Tuple[int, int]]:
    """Inode and modification time of this attempt's outcome file."""
    try:
        file_status = os.lstat(_attempt_outcome_path(segment))
    except OSError:
        return None
    return file_status.st_ino, file_status.st_mtime_ns


def _read_small_file(path: str) -> Optional[bytes]:
    """Return the content of a regular file of at most ``_MAX_OUTCOME_FILE_BYTES`` (1 MiB); None otherwise.
    The script may have put a FIFO (which O_NONBLOCK opens at once), a link or an endless file there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        try:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(_MAX_OUTCOME_FILE_BYTES + 1) if is_regular else b""
        except OSError:
            return None
    return content if is_regular and len(content) <= _MAX_OUTCOME_FILE_BYTES else None


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
