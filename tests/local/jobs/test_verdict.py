from __future__ import annotations

from smlaunch.contract.failure_reason import parse_failure
from smlaunch.local.executors.executor_interface import HostExit
from smlaunch.local.jobs.failure_reasons import HostReport, choose_failure_reason


def report(
    label: str, code: int, ended: float, was_stopped: bool = False, failure: str = "", at: float | None = None
) -> HostReport:
    return HostReport(label, HostExit(code), ended, was_stopped, failure, at)


def test_no_failure() -> None:
    assert choose_failure_reason([report("algo-1", 0, 5.0), report("algo-2", 0, 1.0)]) is None


def test_the_first_failure_file_counts_even_when_its_host_exits_last() -> None:
    reports = [
        report("algo-2", 1, ended=10.0, failure="rank 2 lost its peer", at=9.9),
        report("algo-1", 3, ended=25.0, was_stopped=True, failure="rank 0: boom", at=9.5),
    ]
    assert choose_failure_reason(reports) == "AlgorithmError: rank 0: boom, exit code: 3"


def test_a_host_that_only_followed_is_no_cause() -> None:
    reports = [report("algo-1", 143, 4.0, was_stopped=True), report("algo-2", 7, 4.0)]
    assert choose_failure_reason(reports) == "AlgorithmError: , exit code: 7"


def test_a_long_failure_file_keeps_its_head() -> None:
    reason = choose_failure_reason([report("algo-1", 1, 1.0, failure="x" * 5000, at=1.0)])
    assert reason is not None
    assert len(reason) == 1024
    assert reason.endswith(", exit code: 1")


def test_a_program_that_is_not_there_and_a_lost_supervisor() -> None:
    missing = HostReport("algo-1", HostExit(127, "not_started", "train: no such program"), 1.0, False)
    assert choose_failure_reason([missing]) == (
        "AlgorithmError: algo-1 exited with code 127: train: no such program, exit code: 127"
    )
    lost = HostReport("algo-1", HostExit(137, "lost", "its supervisor was killed"), 1.0, False)
    assert choose_failure_reason([lost]) == "InternalServerError: algo-1 failed: its supervisor was killed"


def test_a_first_process_that_was_killed_has_a_host_and_a_cause() -> None:
    killed = HostReport("algo-2", HostExit(137, signal="SIGKILL"), 1.0, False)
    reason = choose_failure_reason([killed])
    assert reason is not None
    assert reason.startswith("AlgorithmError: algo-2 was killed by SIGKILL: its first process")
    failure = parse_failure(reason)
    assert (failure.host, failure.rank, failure.exit_code) == ("algo-2", None, 137)
    # An exit without a message has AWS's text.
    silent = HostReport("algo-2", HostExit(1), 1.0, False)
    assert choose_failure_reason([silent]) == "AlgorithmError: , exit code: 1"


def test_a_host_that_was_killed_is_named_so_if_a_peer_misses_it_first() -> None:
    peer = report("algo-2", 1, ended=9.9, failure="algo-1 failed: it is gone: connection closed", at=9.8)
    killed = HostReport("algo-1", HostExit(137, signal="SIGKILL"), 9.9, was_asked_to_stop=False)
    reason = choose_failure_reason([peer, killed])
    assert reason is not None
    assert reason.startswith("AlgorithmError: algo-1 was killed by SIGKILL: its first process")
    assert reason.endswith(", exit code: 137")
    stopped_later = HostReport("algo-1", HostExit(143), 12.0, was_asked_to_stop=True)
    reason = choose_failure_reason([peer, stopped_later])
    assert reason is not None and reason.startswith("AlgorithmError: algo-1 failed: it is gone")
