"""A host of an MPI program that does not lead: it is called by the leader, and ends as the leader says.

The link (link.py) is not for this. It is between the runtimes themselves and tells one last word each way.
Here it is the leader that calls, from a process of its own, once all agents are there, and what is told goes
on: signals, how each rank has ended and when, what ranks said last. Only from all of that does the leader
find the rank that failed first, and its report has every rank.
"""

import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.runtime import mpi_report
from smlaunch.runtime.mpi_host import Config, Part, tell
from smlaunch.runtime.mpi_report import RankEnd, Report
from smlaunch.runtime.signals import Signals
from smlaunch.runtime.wire import Wire, WireError

_REPORT_SECONDS = 30.0
"""For the leader to say how it all ended, once it has said that it is over."""


class Follower(Part):
    def __init__(self, config: Config, folder: str, signals: Signals) -> None:
        super().__init__(config, folder, signals)
        self._leader: Optional[Wire] = None
        self._until: Optional[float] = time.monotonic() + config.patience

    def begin(self) -> None:
        """Nothing to do but to be called."""

    def asked(self, wire: Wire, request: Dict[str, Any]) -> None:
        if request.get("do") != "follow":
            raise WireError("{!r} cannot be asked for here".format(request.get("do")))
        self.put("met", self.config.leader, wire)
        self.listen(self.config.leader, wire)

    def met(self, host: str, wire: Wire) -> None:
        self._leader = wire
        self._until = None

    def hear(self, host: str, message: Dict[str, Any]) -> None:
        if message.get("do") == "signal":
            self.signalled(int(message["number"]))
        elif message.get("do") == "over":
            self.settle()
        elif "report" in message:
            self.report = Report.of(message["report"])

    def lost(self, host: str, why: str) -> None:
        if self.stopped_by is None:
            self._gone(why)
        elif self.report is None:
            ends = map(mpi_report.settled, self.ranks.ends())
            self.report = Report(tuple(ends), None, stopped=True)

    def hangs(self, host: str) -> None:
        if self._leader is not None:
            tell(self._leader, {"hangs": host})

    def rank_ended(self, end: RankEnd) -> None:
        if self._leader is not None:
            tell(self._leader, {"ended": end._asdict()})

    def last_words(self) -> None:
        self._until = time.monotonic() + _REPORT_SECONDS
        if self._leader is not None:
            tell(self._leader, {"last": [end._asdict() for end in self.ranks.ends()]})

    def stop(self, number: int) -> None:
        if self._leader is None:
            self.report = Report((), None, stopped=True)

    def act(self, ready: Set[int]) -> None:
        if self._until is not None and time.monotonic() >= self._until:
            self._gone("it was not heard of in time")

    def due(self) -> List[float]:
        return [] if self._until is None else [self._until]

    def _gone(self, why: str) -> None:
        if self.report is None:
            self.report = mpi_report.of_gone(self.ranks.ends(), self.config.leader, why, time.time())
