"""What an attempt leaves for the next one: the outcome files beside the checkpoints (contract.outcome)."""

import contextlib
import os
import stat
from functools import partial
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional, Sequence, Tuple

from smlaunch.contract.names import RESERVED_FOLDER, outcome_path
from smlaunch.contract.segment import Segment
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.segment_lifecycle import SegmentEnd, own_files
from smlaunch.runtime.step_tracker import StepTracker

if TYPE_CHECKING:
    from smlaunch.contract.outcome import RanksOfHost, SegmentOutcome
    from smlaunch.runtime.host_outcome import FinishedProcess
    from smlaunch.runtime.independent_ranks import IndependentRanks

_MAX_FILE_BYTES = 1 << 20


class PreviousOutcome(NamedTuple):
    """What the checkpoint directory contains when a host starts."""

    finished_outcome: "Optional[SegmentOutcome]" = None
    """Outcome of the run's newest attempt, if it trained to the end and its ranks exited with 0."""

    outcome_stamp: Optional[Tuple[int, int]] = None
    """Of this attempt's own outcome file, to recognize that the ranks write a new one."""


class RanksEnd(NamedTuple):
    """How the ranks of one host ended."""

    succeeded: bool
    """All ranks exited with 0."""

    were_signalled: bool
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
    previous_outcome: PreviousOutcome,
    step_tracker: StepTracker,
    ranks_end: RanksEnd,
    host: Optional[str] = None,
    independent_ranks: "Optional[IndependentRanks]" = None,
    *,
    is_leader: bool = True,
) -> "Optional[SegmentOutcome]":
    """Write the outcome of this attempt when all ranks of the host have exited; where the ranks wrote one,
    add what they did not know. Returns it; None where no checkpoints are kept. Raises OSError.

    ``previous_outcome``: the files that were there when the host started. ``host``: its name, where hosts
    train apart from each other; the host then writes an outcome of its own, and the leader that of the
    attempt besides.
    """
    from smlaunch.contract.outcome import CONTINUE, FINISHED  # takes milliseconds, and most jobs have none

    if segment.checkpoint_dir is None:
        return None
    outcome, is_new = _outcome_of_ranks(segment, segment_end, previous_outcome, step_tracker, ranks_end)
    outcome = outcome._replace(
        ranks_succeeded=ranks_end.succeeded,
        repeats_steps=segment_end.has_passed
        and outcome.reported_step is not None
        and step_tracker.mostly_repeats,
    )
    if independent_ranks is not None:
        job = segment.job or ""
        if outcome.result == FINISHED and ranks_end.succeeded:
            independent_ranks = independent_ranks.after_all_finished(job)
        elif is_new:
            independent_ranks = independent_ranks.after(
                ranks_end.processes, segment_end, job, ranks_end.may_read_stop_file
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
    previous_outcome: PreviousOutcome,
    step_tracker: StepTracker,
    ranks_end: RanksEnd,
) -> "Tuple[SegmentOutcome, bool]":
    """Return the outcome that the ranks of this host wrote in this attempt and False, or else a new one and
    True."""
    from smlaunch.contract import outcome as outcomes

    outcome = _read_own_outcome(segment)
    highest_step = step_tracker.highest_step
    # Compared by file, not by job name: an interrupted spot job continues under the same name.
    if outcome is not None and _outcome_stamp(segment) != previous_outcome.outcome_stamp:
        return outcome._replace(reported_step=highest_step), False
    if outcome is not None and outcome.job == segment.job and outcome.reported_step is not None:
        highest_step = (
            outcome.reported_step if highest_step is None else max(highest_step, outcome.reported_step)
        )
    has_finished = _has_finished(segment_end, step_tracker, ranks_end)
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


def _has_finished(segment_end: SegmentEnd, step_tracker: StepTracker, ranks_end: RanksEnd) -> bool:
    """Return whether the ranks have trained to the end. Ranks that exit with 0 have, unless they exited
    because they were asked to, or because they watched the time.

    The last progress line decides where it speaks for all ranks. A rank that got a signal may have exited
    anywhere, also in the middle of saving its model: it has finished if no later segment could do better,
    because there is nothing to resume from, or the whole training was repeated.
    """
    if not ranks_end.succeeded:
        return False
    is_midway = ranks_end.train_together and step_tracker.is_midway
    if not segment_end.stop_requested:
        return not (segment_end.is_near and is_midway and ranks_end.may_read_planned_end())
    if is_midway:
        return False
    is_complete = ranks_end.train_together and step_tracker.is_complete
    if is_complete and not ranks_end.were_signalled:
        return True
    has_result = any(own_files(directory) for directory in ranks_end.result_dirs)
    if ranks_end.train_together and step_tracker.knows_total and has_result:
        cannot_resume = segment_end.checkpoints_were_removed()
        if cannot_resume or step_tracker.repeats_whole_training:
            return True
    return not ranks_end.were_signalled and not ranks_end.may_read_stop_file()


def read_ranks_of_hosts(segment: Segment) -> "List[RanksOfHost]":
    """Return what hosts that train apart wrote in the segments before this one. Raises SetupError for an
    outcome that another release wrote."""
    from smlaunch.contract.formats import FormatError
    from smlaunch.contract.outcome import find_ranks_of_hosts

    try:
        return find_ranks_of_hosts(_reserved_files(segment), partial(_read_reserved, segment), segment.writer)
    except FormatError as error:
        raise SetupError(str(error)) from None


def _read_newest_outcome(segment: Segment) -> "Optional[SegmentOutcome]":
    """Return the newest outcome of the run's attempts. Raises SetupError for one that another release
    wrote."""
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
    """Return the paths of smlaunch's own files, below the checkpoint directory."""
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
    """Return the outcome of this attempt."""
    from smlaunch.contract.outcome import parse_outcome

    content = _read_small_file(_own_outcome_path(segment))
    return None if content is None else parse_outcome(content, _own_outcome_path(segment))


def _own_outcome_path(segment: Segment) -> str:
    return os.path.join(segment.checkpoint_dir or "", outcome_path(segment.writer))


def _outcome_stamp(segment: Segment) -> Optional[Tuple[int, int]]:
    """Inode and modification time of this attempt's outcome file."""
    try:
        file_status = os.lstat(_own_outcome_path(segment))
    except OSError:
        return None
    return file_status.st_ino, file_status.st_mtime_ns


def _read_small_file(path: str) -> Optional[bytes]:
    """Return the content of a regular file of at most _MAX_FILE_BYTES; None for anything else. The script may
    have put a FIFO, a link or a file without an end there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        try:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(_MAX_FILE_BYTES + 1) if is_regular else b""
        except OSError:
            return None
    return content if is_regular and len(content) <= _MAX_FILE_BYTES else None


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
