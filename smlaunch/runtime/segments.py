"""One host's side of a segment: what its ranks are told, when it is to end, and how it has ended.

Ranks are told by variables (protocol.segment) and, when they are to leave, by a file that appears. Nothing of
this is a signal, so a script that knows nothing of segments is not disturbed. What the next segment, and the
client, need to know stands in ``outcome.json`` in the checkpoint directory, which the platform carries away.
"""

import math
import os
import time
from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional, Tuple

from smlaunch.protocol import segment as names
from smlaunch.protocol.launch_spec import LaunchSpec
from smlaunch.protocol.names import parse_task_name
from smlaunch.protocol.paths import Paths
from smlaunch.protocol.segment import Segment
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.reported import Reported

if TYPE_CHECKING:
    from smlaunch.protocol import checkpoint

_SIGNAL_AT = 0.5
_KILL_AT = 0.9
"""Shares of the margin after the planned end: ranks that are still there get SIGTERM at the one, SIGKILL at
the other, so that the host is gone before the platform's own time limit.
"""

_LATER = "-later"
"""The stop file is there from the start under another name: to rename it needs no room on a full disk."""


class End:
    """The end of a segment, for a loop that waits. Times are of time.monotonic.

    ``at``: the planned end, None without one. ``signal_at``: when ranks that have not left after it are
    stopped. ``told``: the ranks have been asked to leave; ``problem``: why they could not
    be, so that only the signal will tell them.
    """

    def __init__(self, file: str, at: Optional[float] = None, margin: float = 0.0) -> None:
        self._file = file
        self.at = at
        self.signal_at = None if at is None else at + _SIGNAL_AT * margin
        self._margin = margin
        self.told = False
        self.problem: Optional[str] = None

    @property
    def has_come(self) -> bool:
        return self.at is not None and self.told and time.monotonic() >= self.at

    @property
    def due(self) -> Optional[float]:
        """When there is something to do next."""
        return self.signal_at if self.told else self.at

    def kill_after(self, now: float) -> float:
        """Seconds from ``now`` on that ranks which were stopped may take to leave."""
        return (now if self.at is None else self.at) + _KILL_AT * self._margin - now

    def tell(self) -> None:
        """The stop file appears; once."""
        if self.told:
            return
        self.told = True
        try:
            os.rename(self._file + _LATER, self._file)
        except OSError as error:
            self.problem = "{}: the stop file cannot be made: {}".format(self._file, error.strerror)


def segment_of(spec: LaunchSpec, paths: Paths, own: str, environ: Mapping[str, str], now: float) -> Segment:
    """``own``: the runtime's own folder, for the stop file. ``environ`` is the request's; ``now``: seconds
    since the epoch when the host began. Makes the directories the ranks are told of. Raises Unusable.

    What the request says of the run counts more than job.json: where an orchestrator drives, one job.json
    serves many runs, and each has checkpoints of its own.
    """
    try:
        given = Segment.from_environment(environ)
    except ValueError as error:
        raise Unusable(str(error)) from None
    job = environ.get("TRAINING_JOB_NAME") or None
    task = parse_task_name(job or "")
    # A variable that was only inherited, from a job that runs this one on its own host, is another run's.
    asked = given.run if task is None or task.run == given.run else None
    run = asked or spec.run or given.run
    if task is not None and task.run == (run or task.run):
        run = task.run
        given = given._replace(segment=task.segment, attempt=task.attempt)
    after = stop_after(environ)
    segment = given._replace(
        run=run,
        job=job or given.job,
        stop_file=_fresh_stop_file(own),
        stop_at=None if after is None else now + after,
        deterministic=spec.deterministic or given.deterministic,
    )
    kept = spec.checkpoints
    if kept is None:
        return segment._replace(checkpoints=None, uri=None)
    return segment._replace(
        checkpoints=_directory(paths.here(kept.path)),
        uri=(asked and given.uri) or kept.uri,
        carrier=kept.carrier,
        keep=kept.keep,
        interval=given.interval if kept.interval_seconds is None else kept.interval_seconds,
        failure_seconds=given.failure_seconds if kept.failure_seconds is None else kept.failure_seconds,
    )


def end_of(segment: Segment, spec: LaunchSpec) -> End:
    margin = spec.grace_seconds if spec.margin_seconds is None else spec.margin_seconds
    at = None if segment.stop_at is None else time.monotonic() + segment.stop_at - time.time()
    return End(segment.stop_file or "", at, margin)


def stop_after(environ: Mapping[str, str]) -> Optional[float]:
    """Seconds from an attempt's start to its planned end. Raises Unusable."""
    text = environ.get(names.STOP_AFTER)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise Unusable("{}: a number of seconds from 0 is needed, not {!r}".format(names.STOP_AFTER, text))
    return seconds


def reported_before(environ: Mapping[str, str]) -> int:
    """The highest step that jobs before have reported, -1 when they have reported none."""
    text = environ.get(names.FROM_REPORTED, "")
    return int(text) if text.isdigit() else -1


# ---- how it has ended ------------------------------------------------------------------------------------


class Left(NamedTuple):
    """What lies there when a host starts. ``finished``: an earlier job of this run has trained to the end,
    and its ranks left in peace after that. ``stamp``: which file it is, to tell it from one ranks write.
    """

    finished: bool = False
    stamp: Optional[Tuple[int, int]] = None


def left_before(segment: Segment) -> Left:
    outcome = _read_outcome(segment)
    finished = outcome is not None and outcome.closed and outcome.result == "finished"
    return Left(finished, _stamp(segment))


def leave_outcome(
    segment: Segment, end: End, before: Left, reported: Reported, in_peace: bool
) -> "Optional[checkpoint.Outcome]":
    """When all ranks of the leader are gone: completes what they have written, or says it for a script that
    writes nothing. ``in_peace``: they have left with 0. Returns what is left, None where no checkpoints are
    kept. Raises OSError.
    """
    from smlaunch.protocol import checkpoint  # takes milliseconds, and most jobs have none

    if segment.checkpoints is None:
        return None
    outcome = _read_outcome(segment)
    highest = reported.highest
    # By the file and not by the job's name: a spot job that was interrupted goes on under the same name.
    if outcome is None or _stamp(segment) == before.stamp:
        if outcome is not None and outcome.job == segment.job and outcome.reported is not None:
            highest = outcome.reported if highest is None else max(highest, outcome.reported)
        result = checkpoint.FINISHED if in_peace and not end.told else checkpoint.CONTINUE
        outcome = checkpoint.Outcome(result, None, segment.run, segment.job)
    outcome = outcome._replace(
        closed=in_peace, reported=highest, repeats=end.has_come and highest is not None and reported.repeats
    )
    _replace(os.path.join(segment.checkpoints, checkpoint.OUTCOME), outcome.to_bytes())
    return outcome


def _read_outcome(segment: Segment) -> "Optional[checkpoint.Outcome]":
    """This run's; None for another's."""
    if segment.checkpoints is None:
        return None
    try:
        with open(os.path.join(segment.checkpoints, "outcome.json"), "rb") as file:
            content = file.read()
    except OSError:  # not there is the usual case; one that cannot be read says nothing either
        return None
    from smlaunch.protocol import checkpoint

    outcome = checkpoint.parse_outcome(content)
    return outcome if outcome is not None and outcome.run == segment.run else None


def _stamp(segment: Segment) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(os.path.join(segment.checkpoints or "", "outcome.json"))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _replace(path: str, content: bytes) -> None:
    """Whole or not at all, for whoever copies the directory meanwhile."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, ".{}.{}".format(name, os.getpid()))
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _fresh_stop_file(own: str) -> str:
    file = os.path.join(own, "stop")
    if os.path.exists(file):  # of an attempt that ran here before
        os.unlink(file)
    os.close(os.open(file + _LATER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    return file


def _directory(path: str) -> str:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise Unusable(
            "{}: the directory for checkpoints cannot be made: {}".format(path, error.strerror)
        ) from None
    return path
