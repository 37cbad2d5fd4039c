"""A host of an MPI program that is not the leader: the leader connects to it, and it ends as the leader says.

It tells the leader how and when each of its ranks exits, and their last output: the leader finds the rank
that failed first, and its report has every rank.
"""

import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.runtime.mpi import report as mpi_report
from smlaunch.runtime.mpi.mpi_host import MpiHost, MpiHostConfig
from smlaunch.runtime.mpi.report import MpiReport, RankExit
from smlaunch.runtime.peer_connection import PeerError
from smlaunch.runtime.signals import SignalQueue

_REPORT_TIMEOUT_SECONDS = 30.0
"""Time for the leader to send its report after the end."""


class MpiFollower(MpiHost):
    """The process of a host that is not the leader."""

    def __init__(self, config: MpiHostConfig, folder: str, signals: SignalQueue) -> None:
        super().__init__(config, folder, signals)
        self._is_connected = False
        self._deadline: Optional[float] = time.monotonic() + config.peer_timeout_seconds

    def on_start(self) -> None:
        """Nothing to do: the leader connects."""

    def on_connected(self, host: str) -> None:
        self._is_connected = True
        self._deadline = None

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        """Handle a message of the leader ``host``: a signal for the ranks; that mpirun has ended, upon which
        this host ends its remaining ranks; or the final report on all ranks, with which it ends itself.
        """
        if message.get("do") == "signal":
            self.handle_signal(int(message["number"]))
        elif message.get("do") == "over":
            self.begin_shutdown()
        elif "report" in message:
            self.report = MpiReport.from_document(message["report"])

    def on_disconnected(self, host: str, error: PeerError) -> None:
        """Report that the leader is lost; after a stop, how the ranks of this host ended."""
        if self.stop_signal is None:
            self._report_lost_leader(str(error))
        elif self.report is None:
            rank_exits = map(mpi_report.assume_killed_if_unreported, self.ranks.collect_exits())
            self.report = MpiReport(tuple(rank_exits), None, stopped_early=True)

    def on_hang(self, host: str) -> None:
        self._send_to_leader({"hung_host": host})

    def on_rank_exit(self, rank_exit: RankExit) -> None:
        self._send_to_leader({"rank_exit": rank_exit._asdict()})

    def on_ranks_exited(self) -> None:
        self._deadline = time.monotonic() + _REPORT_TIMEOUT_SECONDS
        self._send_to_leader({"all_rank_exits": [end._asdict() for end in self.ranks.collect_exits()]})

    def _send_to_leader(self, message: Dict[str, Any]) -> None:
        self.channel.send(self.config.leader, message)

    def on_stop(self, signal_number: int) -> None:
        if not self._is_connected:
            self.report = MpiReport((), None, stopped_early=True)

    def handle_ready_descriptors(self, ready_fds: Set[int]) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._report_lost_leader("it has not sent anything in time")

    def deadlines(self) -> List[float]:
        return [] if self._deadline is None else [self._deadline]

    def _report_lost_leader(self, reason: str) -> None:
        if self.report is None:
            self.report = mpi_report.report_of_lost_leader(
                self.ranks.collect_exits(), self.config.leader, reason, time.time()
            )
