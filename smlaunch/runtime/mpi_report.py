"""How an MPI program has ended: from what every host saw and what mpirun said, to whose failure it was.

The ranks' own ends come first: a launcher tells of a rank's end in its own way (Open MPI 5 leaves with 14
when a rank was killed by signal 9), or kills all and tells of none.
"""

import math
import re
import signal
from typing import Any, Dict, NamedTuple, Optional, Sequence, Set, Tuple

from smlaunch.runtime import tracebacks

_KILLED, _ABORTED = -signal.SIGKILL, -signal.SIGABRT

_ABORTS = (
    # Open MPI, from mpirun or prterun
    re.compile(
        r"MPI_ABORT was invoked on rank (?P<rank>\d+).*?\berrorcode:? (?P<code>-?\d+)",
        re.DOTALL | re.IGNORECASE,
    ),
    # MPICH, from the rank itself
    re.compile(r"application called MPI_Abort\(.*?, (?P<code>-?\d+)\) - process (?P<rank>\d+)"),
)

_MISSED = re.compile(r"An error occurred in Socket closed\s+\S+ \*\*\* reported by process \[\d+,(\d+)\]")
"""Open MPI 5, of a rank that has lost a peer, and aborts for it."""

_BEFORE, _AT_ONCE = 0.001, 2.0
"""Seconds."""


class RankEnd(NamedTuple):
    """``status``: an exit code, or minus a signal's number; None for a rank that has not ended. ``began``,
    ``ended``: as outcome.Ended has them. ``tail``: what it said last. ``stopped``: the launcher has ended it.
    """

    rank: int
    host: str
    status: Optional[int]
    ended: float
    began: float
    tail: str
    stopped: bool = False

    @classmethod
    def of(cls, document: Dict[str, Any]) -> "RankEnd":
        return cls(**document)


class Gone(NamedTuple):
    """A host that was lost before the end, or hung, and what is to be said of that."""

    host: str
    why: str
    hung: bool = False


class Report(NamedTuple):
    """The same on every host. ``mpirun``: its status; None when it was not started. ``problem``: what kept
    this host from taking part. ``gone``: who was lost. ``said``: mpirun's last output; ``at``: when it ended.
    ``stopped``: this host was told to stop before it was called.
    """

    ranks: Tuple[RankEnd, ...]
    mpirun: Optional[int]
    problem: Optional[str] = None
    gone: Optional[Gone] = None
    said: str = ""
    at: float = 0.0
    stopped: bool = False

    def to_document(self) -> Dict[str, Any]:
        return dict(self._asdict(), ranks=[end._asdict() for end in self.ranks])

    @classmethod
    def of(cls, document: Dict[str, Any]) -> "Report":
        ranks = tuple(RankEnd.of(end) for end in document["ranks"])
        gone = document["gone"]
        return cls(**dict(document, ranks=ranks, gone=None if gone is None else Gone(*gone)))


def of_gone(ends: Sequence[RankEnd], leader: str, why: str, now: float) -> Report:
    """By a host that has lost the leader."""
    return Report(tuple(map(settled, ends)), None, None, Gone(leader, "it is gone: " + why), "", now)


def compose(
    ends: Sequence[RankEnd], mpirun: Optional[int], said: str, now: float, gone: Optional[Gone] = None
) -> Report:
    """The leader's report. ``ends``: of all ranks that any host has seen; ``said``: mpirun's output."""
    ranks = [settled(end) for end in sorted(ends)]
    aborted = _aborted(ranks, said)
    if aborted is not None:
        number, code = aborted
        first = min((end.began for end in ranks if _failed(end)), default=now)
        ranks = [_as_aborted(end, code, first) if end.rank == number else end for end in ranks]
    victims = _victims(ranks, said)
    ranks = [end._replace(stopped=True) if end.rank in victims else end for end in ranks]
    return Report(tuple(map(_as_follower, ranks)), mpirun, None, gone, said[-4096:], now)


def settled(end: RankEnd) -> RankEnd:
    """One of whose end nothing was heard was still there when everything else was over, and killed."""
    return end._replace(status=_KILLED, stopped=True) if end.status is None else end


def _victims(ranks: Sequence[RankEnd], said: str) -> Set[int]:
    """Ranks that have failed for want of a peer. Its connections close before its end can be told of, so on a
    busy machine theirs may be told of first.
    """
    failed = [end for end in ranks if _failed(end)]
    missed = {int(number) for number in _MISSED.findall(said)}
    if any(end.rank not in missed for end in failed):
        failed = [end for end in failed if end.rank not in missed]
    else:
        missed = set()
    killed = [end for end in failed if end.status is not None and end.status < 0 and end.status != _ABORTED]
    if killed:
        # Nobody is killed for want of a peer; others may have left for want of this one.
        cause = min(killed, key=lambda end: end.began)
        missed.update(end.rank for end in failed if cause.began - _AT_ONCE < end.began < cause.began)
    return missed


def _as_follower(end: RankEnd) -> RankEnd:
    """One that the launcher has ended is only a cause if an exception of its own came before."""
    known = not end.stopped or tracebacks.find(end.tail) is not None
    return end if known else end._replace(began=math.inf)


def _failed(end: RankEnd) -> bool:
    return end.status != 0 and not end.stopped


def _aborted(ranks: Sequence[RankEnd], said: str) -> Optional[Tuple[int, int]]:
    """Which rank has called MPI_Abort first, and with what."""
    for text in (said, *(end.tail for end in ranks)):
        for pattern in _ABORTS:
            found = pattern.search(text)
            if found is not None:
                return int(found.group("rank")), int(found.group("code")) & 0xFF
    return None


def _as_aborted(end: RankEnd, code: int, first: float) -> RankEnd:
    """Whoever aborts may be killed by the launcher as all others are, before it can leave by itself. Not
    where others had failed before: then it has aborted for that, and they are the cause.
    """
    if _failed(end) and end.began > first:
        return end
    tail = end.tail
    if tracebacks.find(tail) is None:
        tail += "\nMPI_Abort was called with {}\n".format(code)
    return end._replace(status=code or 1, began=min(end.began, first - _BEFORE), tail=tail, stopped=False)
