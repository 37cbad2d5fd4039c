"""A host of an MPI program that is not the leader: the leader connects to it, and it ends as the leader says.

The control channel (control_channel.py) is not used here. It connects the runtimes and carries one final
message each way. Here a process of the leader connects when all agents are up, and messages are continuous:
signals, the exit of each rank and its time, the last output of ranks. The leader needs all of them to find
the rank that failed first, and its report has every rank.
"""

import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.runtime.mpi import report as mpi_report
from smlaunch.runtime.mpi.host import MpiHost, MpiHostConfig, send_message
from smlaunch.runtime.mpi.report import MpiReport, RankExit
from smlaunch.runtime.peer_connection import PeerConnection, PeerError
from smlaunch.runtime.signals import SignalQueue

_REPORT_TIMEOUT_SECONDS = 30.0
"""Time for the leader to send its report after the end."""


class MpiFollower(MpiHost):
    """The process of a host that is not the leader."""

    def __init__(self, config: MpiHostConfig, folder: str, signals: SignalQueue) -> None:
        super().__init__(config, folder, signals)
        self._leader: Optional[PeerConnection] = None
        self._deadline: Optional[float] = time.monotonic() + config.peer_timeout_seconds

    def on_start(self) -> None:
        """Nothing to do: the leader connects."""

    def on_request(self, peer: PeerConnection, request: Dict[str, Any]) -> None:
        if request.get("do") != "follow":
            raise PeerError("{!r} is not a request for this host".format(request.get("do")))
        self.post_event(self.on_connected, self.config.leader, peer)
        self.receive_messages(self.config.leader, peer)

    def on_connected(self, host: str, peer: PeerConnection) -> None:
        self._leader = peer
        self._deadline = None

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        """Handle a message of the leader: a signal for the ranks, the end of the program, or the final
        report."""
        if message.get("do") == "signal":
            self.handle_signal(int(message["number"]))
        elif message.get("do") == "over":
            self.begin_shutdown()
        elif "report" in message:
            self.report = MpiReport.from_document(message["report"])

    def on_disconnected(self, host: str, reason: str) -> None:
        if self.stop_signal is None:
            self._report_lost_leader(reason)
        elif self.report is None:
            rank_exits = map(mpi_report.assume_killed, self.ranks.collect_exits())
            self.report = MpiReport(tuple(rank_exits), None, stopped_early=True)

    def on_hang(self, host: str) -> None:
        if self._leader is not None:
            send_message(self._leader, {"hangs": host})

    def on_rank_exit(self, rank_exit: RankExit) -> None:
        if self._leader is not None:
            send_message(self._leader, {"ended": rank_exit._asdict()})

    def on_ranks_exited(self) -> None:
        self._deadline = time.monotonic() + _REPORT_TIMEOUT_SECONDS
        if self._leader is not None:
            send_message(self._leader, {"last": [end._asdict() for end in self.ranks.collect_exits()]})

    def on_stop(self, signal_number: int) -> None:
        if self._leader is None:
            self.report = MpiReport((), None, stopped_early=True)

    def process_events(self, ready: Set[int]) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._report_lost_leader("it has not sent anything in time")

    def deadlines(self) -> List[float]:
        return [] if self._deadline is None else [self._deadline]

    def _report_lost_leader(self, reason: str) -> None:
        if self.report is None:
            self.report = mpi_report.report_of_lost_leader(
                self.ranks.collect_exits(), self.config.leader, reason, time.time()
            )
