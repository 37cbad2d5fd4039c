"""The leader of an MPI program: what it reports when hosts and mpirun end in different orders."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from smlaunch.runtime.mpi import rank_wrapper
from smlaunch.runtime.mpi.mpi_host import MpiHostConfig
from smlaunch.runtime.mpi.mpi_leader import MpiLeader
from smlaunch.runtime.mpi.report import MpiReport
from smlaunch.runtime.peer_connection import PeerLost
from smlaunch.runtime.signals import SignalQueue


def _leader(folder: Path, mpirun: str) -> MpiLeader:
    (folder / "secret").write_text("0" * 64)
    os.mkfifo(folder / rank_wrapper.EVENTS_FIFO)
    os.mkfifo(folder / rank_wrapper.OUTPUT_FIFO.format(0))
    config = MpiHostConfig(
        "algo-1", ["algo-1", "algo-2"], 1, 0, str(folder / "secret"), dict(os.environ), [mpirun], 10.0, 1.0
    )
    return MpiLeader(config, str(folder), SignalQueue())


def _end_mpirun(leader: MpiLeader) -> None:
    """Let the leader start mpirun and see its exit."""
    messages: list[dict[str, Any]] = []
    leader.channel.send = lambda host, message: messages.append(message)  # type: ignore[method-assign]
    leader.on_connected("algo-2")
    deadline = time.monotonic() + 30
    while {"do": "over"} not in messages and time.monotonic() < deadline:
        leader.handle_ready_descriptors(set())
        time.sleep(0.01)


def _report(leader: MpiLeader) -> MpiReport:
    leader.on_ranks_exited()
    assert leader.report is not None
    return leader.report


def test_a_host_is_lost_even_if_mpirun_ends_before_its_connection(tmp_path: Path) -> None:
    """mpirun has its own connections to a host that dies; which one ends first is chance."""
    leader = _leader(tmp_path, "/bin/false")
    _end_mpirun(leader)
    leader.on_disconnected("algo-2", PeerLost("its connection was closed"))
    report = _report(leader)
    assert report.lost_host is not None
    assert (report.lost_host.host, report.lost_host.reason) == (
        "algo-2",
        "it is gone: its connection was closed",
    )


def test_a_host_that_has_reported_may_leave(tmp_path: Path) -> None:
    leader = _leader(tmp_path, "/bin/true")
    _end_mpirun(leader)
    leader.on_message("algo-2", {"all_rank_exits": []})
    leader.on_disconnected("algo-2", PeerLost("its connection was closed"))
    assert _report(leader).lost_host is None
