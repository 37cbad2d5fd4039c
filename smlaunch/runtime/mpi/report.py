"""The report of an MPI program: from what every host saw and what mpirun printed, to whose failure it was.

The exits of the ranks themselves count most: a launcher reports them in its own way (Open MPI 5 exits with 14
when a rank was killed by signal 9), or kills all and reports none.
"""

import math
import re
import signal
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from smlaunch.runtime import tracebacks

_KILLED, _ABORTED = -signal.SIGKILL, -signal.SIGABRT

_ABORT_PATTERNS = (
    # Open MPI, from mpirun or prterun
    re.compile(
        r"MPI_ABORT was invoked on rank (?P<rank>\d+).*?\berrorcode:? (?P<code>-?\d+)",
        re.DOTALL | re.IGNORECASE,
    ),
    # MPICH, from the rank itself
    re.compile(r"application called MPI_Abort\(.*?, (?P<code>-?\d+)\) - process (?P<rank>\d+)"),
)

_LOST_PEER_PATTERN = re.compile(
    r"An error occurred in Socket closed\s+\S+ \*\*\* reported by process \[\d+,(\d+)\]"
)
"""Open MPI 5: a rank has lost a peer and aborts."""

_MPI_ERROR_PATTERN = re.compile(
    r"MPI_ERR|An error occurred in |Fatal error in |Other MPI error|Communication error", re.IGNORECASE
)
"""What an MPI prints in a rank whose communication has failed."""

_OPEN_MPI_LOST_PEER_CODE = 14
"""Open MPI 5 ends a rank with this code when it has lost a peer; mpirun prints the error, not the rank."""

_LIBRARY_CRASHES = (-signal.SIGSEGV, -signal.SIGBUS)
"""An MPI may crash so in a rank that has lost a peer (seen with MPICH 5 in a barrier)."""

_ABORT_LEAD_SECONDS, _SIMULTANEOUS_SECONDS = 0.001, 2.0
"""Seconds."""


class RankExit(NamedTuple):
    """How one rank ended."""

    rank: int
    host: str
    status: Optional[int]
    """An exit code, or minus the number of the signal; None while it has not exited."""

    ended_at: float
    """When it exited, in seconds since the epoch."""

    failed_at: float
    """When its failure began, in seconds since the epoch."""

    output_tail: str
    """The end of its output."""

    was_stopped: bool = False
    """The launcher has ended it."""

    @classmethod
    def from_document(cls, document: Dict[str, Any]) -> "RankExit":
        return cls(**document)


class LostHost(NamedTuple):
    """A host that was lost before the end, or hung."""

    host: str
    reason: str
    """For the failure text."""

    is_hung: bool = False


class MpiReport(NamedTuple):
    """How the program ended; the same on every host."""

    rank_exits: Tuple[RankExit, ...]
    mpirun_status: Optional[int]
    """None when it was not started."""

    problem: Optional[str] = None
    """What prevented this host from taking part."""

    lost_host: Optional[LostHost] = None
    mpirun_output: str = ""
    """The end of mpirun's output."""

    ended_at: float = 0.0
    """When mpirun exited."""

    stopped_early: bool = False
    """This host was stopped before the leader connected."""

    def to_document(self) -> Dict[str, Any]:
        return {**self._asdict(), "rank_exits": [rank_exit._asdict() for rank_exit in self.rank_exits]}

    @classmethod
    def from_document(cls, document: Dict[str, Any]) -> "MpiReport":
        rank_exits = tuple(RankExit.from_document(rank_exit) for rank_exit in document["rank_exits"])
        lost_host = None if document["lost_host"] is None else LostHost(*document["lost_host"])
        return cls(**{**document, "rank_exits": rank_exits, "lost_host": lost_host})


def report_of_lost_leader(rank_exits: Sequence[RankExit], leader: str, reason: str, now: float) -> MpiReport:
    """Return the report of a host that has lost the leader."""
    return MpiReport(
        tuple(map(assume_killed_if_unreported, rank_exits)),
        None,
        None,
        LostHost(leader, "it is gone: " + reason),
        "",
        now,
    )


def compose_report(
    rank_exits: Sequence[RankExit],
    mpirun_status: Optional[int],
    mpirun_output: str,
    now: float,
    lost_host: Optional[LostHost] = None,
) -> MpiReport:
    """Return the leader's report: how every rank ended, so that the first failure among them is the cause.
    ``rank_exits``: of all ranks that any host has seen, as they were reported. ``mpirun_status``: None where
    it was not started. ``now``: in seconds since the epoch.
    """
    complete_exits = [assume_killed_if_unreported(rank_exit) for rank_exit in sorted(rank_exits)]
    exits = _mark_first_abort(complete_exits, mpirun_output, now)
    victim_ranks = _find_victim_ranks(exits, mpirun_output)  # they failed because a peer was gone
    judged_exits = [
        rank_exit._replace(was_stopped=True) if rank_exit.rank in victim_ranks else rank_exit
        for rank_exit in exits
    ]
    return MpiReport(
        rank_exits=tuple(map(_clear_stopped_time, judged_exits)),
        mpirun_status=mpirun_status,
        problem=None,
        lost_host=lost_host,
        mpirun_output=mpirun_output[-4096:],
        ended_at=now,
    )


def _mark_first_abort(exits: List[RankExit], mpirun_output: str, now: float) -> List[RankExit]:
    """Return the exits with that of the rank that called MPI_Abort, if any did, as the first failure."""
    abort = _find_abort(exits, mpirun_output)
    if abort is None:
        return exits
    aborted_rank, exit_code = abort
    first_failure_at = min(
        (rank_exit.failed_at for rank_exit in exits if _has_failed(rank_exit)), default=now
    )
    return [
        _mark_aborted(rank_exit, exit_code, first_failure_at) if rank_exit.rank == aborted_rank else rank_exit
        for rank_exit in exits
    ]


def assume_killed_if_unreported(rank_exit: RankExit) -> RankExit:
    """Return the exit of a rank; with SIGKILL as its status if no exit was reported: it was killed at the
    end."""
    return rank_exit._replace(status=_KILLED, was_stopped=True) if rank_exit.status is None else rank_exit


def _find_victim_ranks(rank_exits: Sequence[RankExit], mpirun_output: str) -> Set[int]:
    """Return the ranks that failed only because a peer was gone. The peer's connections close before its exit
    can be reported, so on a busy machine the victims may be reported first.
    """
    failed_exits = [rank_exit for rank_exit in rank_exits if _has_failed(rank_exit)]
    named_by_mpirun = {int(rank) for rank in _LOST_PEER_PATTERN.findall(mpirun_output)}
    other_exits = [rank_exit for rank_exit in failed_exits if rank_exit.rank not in named_by_mpirun]
    if not other_exits:  # one of them must be the cause
        named_by_mpirun, other_exits = set(), failed_exits
    crashed_victims = _find_ranks_crashed_with_peer(other_exits)
    victims_of_signal = _find_victims_of_killed_rank(
        [rank_exit for rank_exit in other_exits if rank_exit.rank not in crashed_victims], other_exits
    )
    return named_by_mpirun | crashed_victims | victims_of_signal


def _find_ranks_crashed_with_peer(failed_exits: Sequence[RankExit]) -> Set[int]:
    """Return the ranks in which the MPI library crashed at about the time at which another exited by itself:
    it may crash so when a peer is lost.
    """
    own_exit_times = [rank_exit.failed_at for rank_exit in failed_exits if _exited_by_itself(rank_exit)]
    return {
        rank_exit.rank
        for rank_exit in failed_exits
        if rank_exit.status in _LIBRARY_CRASHES
        and any(abs(rank_exit.failed_at - time) < _SIMULTANEOUS_SECONDS for time in own_exit_times)
    }


def _find_victims_of_killed_rank(
    possible_causes: Sequence[RankExit], failed_exits: Sequence[RankExit]
) -> Set[int]:
    """Return the ranks that failed shortly before one of ``possible_causes`` that a signal ended. Except
    SIGABRT no signal comes from a lost peer, so the killed rank is the cause.
    """
    killed_at = [
        rank_exit.failed_at
        for rank_exit in possible_causes
        if rank_exit.status is not None and rank_exit.status < 0 and rank_exit.status != _ABORTED
    ]
    if not killed_at:
        return set()
    first_killed_at = min(killed_at)
    return {
        rank_exit.rank
        for rank_exit in failed_exits
        if first_killed_at - _SIMULTANEOUS_SECONDS < rank_exit.failed_at < first_killed_at
    }


def _exited_by_itself(rank_exit: RankExit) -> bool:
    """Return whether the rank exited with a code and without an error message: a rank that fails because a
    peer is gone prints MPI's error, or an exception.
    """
    return (
        rank_exit.status is not None
        and rank_exit.status > 0
        and rank_exit.status != _OPEN_MPI_LOST_PEER_CODE
        and tracebacks.find_cause(rank_exit.output_tail) is None
        and _MPI_ERROR_PATTERN.search(rank_exit.output_tail) is None
    )


def _clear_stopped_time(rank_exit: RankExit) -> RankExit:
    """Return the exit of a rank; without the time of a failure (infinity) if the launcher has ended the rank
    and it had no exception before: then it cannot be the cause.
    """
    has_own_failure = not rank_exit.was_stopped or tracebacks.find_cause(rank_exit.output_tail) is not None
    return rank_exit if has_own_failure else rank_exit._replace(failed_at=math.inf)


def _has_failed(rank_exit: RankExit) -> bool:
    return rank_exit.status != 0 and not rank_exit.was_stopped


def _find_abort(rank_exits: Sequence[RankExit], mpirun_output: str) -> Optional[Tuple[int, int]]:
    """Return the rank that called MPI_Abort first, and its error code as an exit code (0 to 255), by what
    mpirun or the ranks have printed about it; None where none did.
    """
    for text in (mpirun_output, *(rank_exit.output_tail for rank_exit in rank_exits)):
        for pattern in _ABORT_PATTERNS:
            match = pattern.search(text)
            if match is not None:
                return int(match.group("rank")), int(match.group("code")) & 0xFF
    return None


def _mark_aborted(rank_exit: RankExit, exit_code: int, first_failure_at: float) -> RankExit:
    """Return the exit of the rank that called MPI_Abort as a failure that came before all others: the
    launcher may kill it like all others before it exits by itself. Unchanged where others had failed before:
    then they are the cause of the abort.
    """
    if _has_failed(rank_exit) and rank_exit.failed_at > first_failure_at:
        return rank_exit
    output_tail = rank_exit.output_tail
    if tracebacks.find_cause(output_tail) is None:
        output_tail += "\nMPI_Abort was called with {}\n".format(exit_code)
    return rank_exit._replace(
        status=exit_code or 1,
        failed_at=min(rank_exit.failed_at, first_failure_at - _ABORT_LEAD_SECONDS),
        output_tail=output_tail,
        was_stopped=False,
    )
