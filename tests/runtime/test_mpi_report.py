"""The first failure, from the reports of hosts and the output of mpirun."""

from __future__ import annotations

import signal

import pytest

from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome
from smlaunch.runtime.mpi.mpirun import _replace_launcher_by_ranks
from smlaunch.runtime.mpi.report import LostHost, MpiReport, RankExit, compose_report, report_of_lost_leader

TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: planted\n'

OPEN_MPI_4 = """
--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
with errorcode 5.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
"""
OPEN_MPI_5 = """
MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
  Proc: [[21226,1],3]
  Errorcode: 5
"""
MPICH = "Abort(5) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 5) - process 3\n"


def rank_exit(rank: int, status: int | None, at: float, tail: str = "", stopped: bool = False) -> RankExit:
    return RankExit(rank, f"algo-{1 + rank // 2}", status, at, at, tail, stopped)


def outcome_of(report: MpiReport, host: str = "algo-1", stopped_by: int | None = None) -> HostOutcome:
    own = FinishedProcess(0, 0, 200.0, 200.0, "")
    return _replace_launcher_by_ranks(HostOutcome((own,), stopped_by), report, host)


def reason(outcome: HostOutcome) -> str:
    assert outcome.peer_exit is not None
    return outcome.peer_exit.failure_text.partition("\n")[0]


def test_the_first_that_failed_by_itself() -> None:
    """The earliest failure counts, not mpirun's: Open MPI 5 exits with 14 when a rank was killed."""
    rank_exits = [
        rank_exit(0, -15, 101, stopped=True),
        rank_exit(1, 1, 100.5, TRACE),
        rank_exit(2, None, 101),
        rank_exit(3, -9, 100),
    ]
    report = MpiReport.from_document(compose_report(rank_exits, 14, "prterun noise", 102.0).to_document())
    outcome = outcome_of(report)
    assert reason(outcome).startswith("rank 3 on algo-2 was killed by SIGKILL")
    assert (outcome.exit_code, outcome.failed_at) == (137, 100)
    other_host = outcome_of(report, "algo-2")
    assert (other_host.peer_exit, other_host.exit_code) == (None, 137)
    assert other_host.first_failure is not None and other_host.first_failure.rank == 3


@pytest.mark.parametrize(("launcher_output", "tail"), [(OPEN_MPI_4, ""), (OPEN_MPI_5, ""), ("", MPICH)])
@pytest.mark.parametrize("itself", [True, False])
def test_who_aborts_is_the_cause(launcher_output: str, tail: str, itself: bool) -> None:
    """Also if the launcher kills that rank before it exits, and other ranks exit by themselves."""
    last = rank_exit(3, 5, 100.1, tail) if itself else rank_exit(3, -9, 101, tail, stopped=True)
    rank_exits = [
        rank_exit(0, -9, 100.8, stopped=True),
        rank_exit(1, 14, 100.9),
        rank_exit(2, None, 101),
        last,
    ]
    outcome = outcome_of(compose_report(rank_exits, 5, launcher_output, 102.0))
    assert reason(outcome) == "rank 3 on algo-2 exited with code 5: MPI_Abort was called with 5"
    assert outcome.exit_code == 5


def test_who_aborts_for_want_of_another_is_not() -> None:
    rank_exits = [
        rank_exit(0, 0, 90),
        rank_exit(1, -9, 99),
        rank_exit(2, -9, 101, stopped=True),
        rank_exit(3, 5, 100, TRACE),
    ]
    outcome = outcome_of(compose_report(rank_exits, 5, OPEN_MPI_4, 102.0))
    assert outcome.peer_exit is None
    assert outcome.first_failure is not None and outcome.first_failure.rank == 1


SOCKET_CLOSED = """[algo-1:00000] *** An error occurred in Socket closed
[algo-1:00000] *** reported by process [1391067137,1]
[algo-1:00000] *** on a NULL communicator
prterun has exited due to process rank 1 with PID 12 on node algo-1 calling
"abort". This may have caused other processes in the application to be
"""


@pytest.mark.parametrize(("status", "launcher_output"), [(7, SOCKET_CLOSED), (-9, SOCKET_CLOSED), (-11, "")])
def test_a_peers_complaint_that_comes_first_does_not_hide_it(status: int, launcher_output: str) -> None:
    rank_exits = [
        rank_exit(0, -15, 102, stopped=True),
        rank_exit(1, 14, 100),
        rank_exit(2, -9, 102),
        rank_exit(3, status, 100.2),
    ]
    rank_exits[2] = rank_exits[2]._replace(was_stopped=True)
    outcome = outcome_of(compose_report(rank_exits, 14, launcher_output, 103.0))
    assert reason(outcome).startswith("rank 3 on algo-2 ")
    assert outcome.exit_code == (status if status > 0 else 128 - status)


@pytest.mark.parametrize("crash", [signal.SIGSEGV, signal.SIGBUS])
@pytest.mark.parametrize("crashed_at", [99.9, 100.1])
def test_a_crash_of_the_mpi_after_a_peer_has_exited_is_not_the_cause(crash: int, crashed_at: float) -> None:
    rank_exits = [rank_exit(0, -crash, crashed_at), rank_exit(3, 7, 100)]
    outcome = outcome_of(compose_report(rank_exits, 9, "", 101), "algo-2")
    assert outcome.first_failure is not None
    assert (outcome.first_failure.rank, outcome.exit_code) == (3, 7)


@pytest.mark.parametrize(
    "tail",
    ["Fatal error in internal_Barrier: Other MPI error, error stack:\n", TRACE],
    ids=["MPI", "exception"],
)
def test_a_crash_is_the_cause_where_its_peers_complain(tail: str) -> None:
    rank_exits = [rank_exit(0, 1, 99.9, tail), rank_exit(3, -signal.SIGSEGV, 100)]
    outcome = outcome_of(compose_report(rank_exits, 9, "", 101), "algo-2")
    assert outcome.first_failure is not None
    assert (outcome.first_failure.rank, outcome.exit_code) == (3, 139)


def test_a_complaint_of_all_is_still_a_failure() -> None:
    outcome = outcome_of(compose_report([rank_exit(1, 14, 100)], 14, SOCKET_CLOSED, 103.0))
    assert outcome.first_failure is not None and outcome.first_failure.rank == 1


def test_an_exception_is_told_with_its_traceback() -> None:
    failing = rank_exit(3, 1, 101.0, TRACE)._replace(failed_at=100.0)
    outcome = outcome_of(compose_report([rank_exit(0, -9, 100.5, stopped=True), failing], 1, "", 102.0))
    assert outcome.peer_exit is not None
    assert (
        outcome.peer_exit.failure_text
        == "rank 3 on algo-2 exited with code 1: ValueError: planted\n" + TRACE.strip()
    )
    assert outcome.failed_at == 100.0


def test_mpirun_speaks_for_itself_where_no_rank_has_failed() -> None:
    outcome = outcome_of(compose_report([], 213, "No network interfaces were found\n", 102.0))
    assert outcome.exit_code == 213
    assert outcome.first_failure is not None
    assert outcome.first_failure.output_tail == "No network interfaces were found\n"


def test_all_well() -> None:
    outcome = outcome_of(compose_report([rank_exit(rank, 0, 100) for rank in range(4)], 0, "", 102.0))
    assert (outcome.exit_code, outcome.first_failure, outcome.peer_exit) == (0, None, None)


def test_a_host_that_was_lost() -> None:
    rank_exits = [rank_exit(0, -9, 101, stopped=True), rank_exit(1, -9, 101, stopped=True)]
    outcome = outcome_of(
        compose_report(
            rank_exits, -15, "", 102.0, LostHost("algo-2", "it is gone: its connection was closed")
        )
    )
    assert reason(outcome) == "algo-2 failed: it is gone: its connection was closed"
    assert outcome.exit_code == 1
    outcome = outcome_of(
        report_of_lost_leader([rank_exit(2, None, 101)], "algo-1", "its connection was closed", 102.0),
        "algo-2",
    )
    assert reason(outcome) == "algo-1 failed: it is gone: its connection was closed"


def test_a_hang_of_another_host() -> None:
    """Ranks of other hosts may fail because the ranks of the hung host were ended."""
    lost_host = LostHost("algo-2", "its ranks hung, and were ended", is_hung=True)
    outcome = outcome_of(
        MpiReport.from_document(
            compose_report(
                [rank_exit(0, 14, 100), rank_exit(3, -6, 101, TRACE)], 14, "", 102.0, lost_host
            ).to_document()
        )
    )
    assert reason(outcome) == "algo-2 failed: its ranks hung, and were ended"


def test_what_kept_a_host_from_taking_part() -> None:
    with pytest.raises(SetupError, match="no mpirun"):
        outcome_of(MpiReport((), None, "no mpirun here"))


def test_nothing_was_left_to_say() -> None:
    own = FinishedProcess(0, -9, 200.0, 200.0, "")
    outcome = _replace_launcher_by_ranks(HostOutcome((own,)), None, "algo-1")
    assert (outcome.exit_code, outcome.first_failure) == (137, own._replace(rank=None))


@pytest.mark.parametrize(
    ("statuses", "code"),
    [([0, 0, 0, 0], 0), ([-15, -9, -9, 0], 143), ([143, -9, 0, 0], 143), ([3, -9, -9, -9], 3)],
)
def test_a_stop_is_no_failure(statuses: list[int], code: int) -> None:
    """Some ranks exit in time, and their launcher kills the others."""
    rank_exits = [
        rank_exit(rank, status, 100 + rank, "", status == -9) for rank, status in enumerate(statuses)
    ]
    outcome = outcome_of(compose_report(rank_exits, 1, "", 105.0), stopped_by=signal.SIGTERM)
    assert outcome.exit_code == code
    if code == 143:
        assert outcome.first_failure is None


def test_a_stop_that_comes_after_a_failure_does_not_hide_it() -> None:
    """The platform stops the other hosts when one has failed."""
    rank_exits = [rank_exit(2, -9, 101, stopped=True), rank_exit(3, -9, 100)]
    outcome = outcome_of(compose_report(rank_exits, 9, "", 102.0), "algo-2", stopped_by=signal.SIGTERM)
    assert outcome.first_failure is not None
    assert (outcome.first_failure.rank, outcome.exit_code) == (3, 137)
