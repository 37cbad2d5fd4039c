"""What became of a host's processes, and what follows from it: pure decisions on plain data."""

import signal
from typing import NamedTuple, Optional, Tuple


class Ended(NamedTuple):
    """``status`` is an exit code, or minus the signal's number. ``ended`` and ``began`` are seconds since the
    epoch: when the process was gone, and when its failing began (its last traceback, when that was its end).
    """

    rank: Optional[int]
    status: int
    ended: float
    began: float
    tail: str

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


class Outcome(NamedTuple):
    """``stopped_by`` is the stop signal the host got, if any; processes are in the order they were started
    in.
    """

    processes: Tuple[Ended, ...]
    stopped_by: Optional[int] = None

    @property
    def first_failure(self) -> Optional[Ended]:
        """The process that failed first by time. That ranks die of the signal they were all sent is no
        failure.

        A rank may take a while to leave after its exception, and the peers that miss it may be gone before
        it: so a failure counts from where it began, not from the exit.
        """
        failed = [
            process
            for process in self.processes
            if process.status != 0 and not (self.stopped_by is not None and self._obeyed(process))
        ]
        return min(failed, key=lambda process: (process.began, process.ended), default=None)

    @property
    def exit_code(self) -> int:
        """The first failure's; without one 128 + n when any rank ended by the stop signal n; else 0."""
        failure = self.first_failure
        if failure is not None:
            return failure.exit_code
        if self.stopped_by is not None and any(process.status != 0 for process in self.processes):
            return 128 + self.stopped_by
        return 0

    def _obeyed(self, process: Ended) -> bool:
        return self.stopped_by is not None and process.status in (-self.stopped_by, 128 + self.stopped_by)
