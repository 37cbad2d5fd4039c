"""What became of a host's processes, and what follows from it: pure decisions on plain data."""

import signal
from typing import Dict, NamedTuple, Optional, Tuple

from smlaunch.runtime.hang import EXIT_CODE, Hang

_LINGERING = 5.0
"""Seconds between a rank's exception and its exit in which peers may fail for want of it."""

_FOR_WANT_OF_A_PEER = -signal.SIGABRT
"""Besides exceptions: NCCL's watchdog aborts. Other signals do not come from a peer that is gone."""


class Ended(NamedTuple):
    """``status`` is an exit code, or minus the signal's number. ``ended`` and ``began`` are seconds since the
    epoch: when the process was gone, and when its failing began (its last traceback, when that was its end).
    ``stopped``: it was told to end because another one had failed. ``rank_tails``: of a launcher's ranks,
    their own last output, and when its last traceback began. ``service``: its name, when it was one and no
    rank.
    """

    rank: Optional[int]
    status: int
    ended: float
    began: float
    tail: str
    stopped: bool = False
    rank_tails: Dict[int, Tuple[str, Optional[float]]] = {}  # noqa: RUF012 - never changed
    service: str = ""

    @property
    def exit_code(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def signal_name(self) -> Optional[str]:
        if self.status >= 0:
            return None
        try:
            return signal.Signals(-self.status).name
        except ValueError:  # a real-time signal
            return "SIG{}".format(-self.status)


class News(NamedTuple):
    """How another host ended (link.py). ``text``: for a failure file, empty when nothing failed. ``began``:
    seconds since the epoch when the failure began.
    """

    code: int
    text: str = ""
    began: Optional[float] = None


class Outcome(NamedTuple):
    """``stopped_by`` is the stop signal the host got, if any; processes are in the order of their start.
    ``hang``: why they were ended, when that was it. ``overstayed``: for how many seconds they had stayed
    after the planned end of their segment when they were stopped for it. Where it was none of them:
    ``service`` is the one that ended before them, ``unready`` what a service that never got ready is told by,
    ``elsewhere`` how the host ended that this one follows, or the one that failed.
    """

    processes: Tuple[Ended, ...]
    stopped_by: Optional[int] = None
    hang: Optional[Hang] = None
    overstayed: Optional[float] = None
    service: Optional[Ended] = None
    unready: Optional[Tuple[str, str]] = None
    elsewhere: Optional[News] = None

    @property
    def first_failure(self) -> Optional[Ended]:
        """The process that failed first by time. That ranks die of the signal they were all sent is no
        failure.

        A rank may take a while to leave after its exception, and the peers that miss it may be gone before
        it, upon which it is stopped itself. So a failure counts from where it began, and one that was
        stopped on its way out is the first all the same; it then ends as an exception does, with 1.
        """
        failed = [process for process in self.processes if process.status != 0 and not self._obeyed(process)]
        first = min((p for p in failed if not p.stopped), key=_time, default=None)
        if first is None or (first.status < 0 and first.status != _FOR_WANT_OF_A_PEER):
            return first
        lingering = [
            process._replace(status=1)
            for process in failed
            if process.stopped and first.began - _LINGERING < process.began < first.began
        ]
        return min([first, *lingering], key=_time)

    @property
    def began(self) -> Optional[float]:
        """When the failure began, seconds since the epoch; None where now is as good."""
        if self.hang is not None:
            return None
        if self.elsewhere is not None:
            return self.elsewhere.began
        process = self.service or self.first_failure
        return None if process is None else process.began

    @property
    def exit_code(self) -> int:
        """A hang's own, or the first failure's; without one 128 + n when any rank ended by the stop signal n,
        or none was started; else 0. A service that was not to end has failed, with 1 if it says 0 itself.
        """
        if self.hang is not None:
            return EXIT_CODE
        if self.elsewhere is not None:
            return self.elsewhere.code
        if self.service is not None:
            return self.service.exit_code or 1
        if self.unready is not None:
            return 1
        failure = self.first_failure
        if failure is not None:
            return failure.exit_code
        if self.stopped_by is None:
            return 0
        if self.processes and all(process.status == 0 for process in self.processes):
            return 0
        return 128 + self.stopped_by

    def ended_by_plan(self, others_leave: bool) -> bool:
        """The ranks were stopped for having stayed after the planned end. ``others_leave``: that end has come
        and there are other hosts: theirs may have been stopped a moment before, and ours fail for want of
        them.
        """
        if self.hang is not None or self.service is not None or self.unready is not None:
            return False
        failed_alone = self.overstayed is None and self.stopped_by is None and self.elsewhere is None
        return self.overstayed is not None or (others_leave and failed_alone)

    def _obeyed(self, process: Ended) -> bool:
        return self.stopped_by is not None and process.status in (-self.stopped_by, 128 + self.stopped_by)


def _time(process: Ended) -> Tuple[float, float]:
    return process.began, process.ended
