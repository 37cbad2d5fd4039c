"""The host of an MPI program that leads: it calls the others, starts mpirun, and says how it all ended."""

import os
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.runtime import mpi_report
from smlaunch.runtime.mpi_host import Config, Part, in_thread, python_words, tell
from smlaunch.runtime.mpi_report import RankEnd
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.signals import Signals
from smlaunch.runtime.streams import Output, Stream
from smlaunch.runtime.wire import Wire, WireError, call_agent

_KILL_SECONDS = 3.0
"""Between an mpirun's SIGTERM and its SIGKILL."""

_HANG_SECONDS = 2.0
"""For ranks that hung to show their stacks before mpirun is ended; the runtime itself waits 5 s."""

_LAST_WORDS_SECONDS = 20.0
"""For all hosts to tell what their ranks have left behind."""


class Leader(Part):
    def __init__(self, config: Config, folder: str, signals: Signals) -> None:
        super().__init__(config, folder, signals)
        self._others: Dict[str, Optional[Wire]] = dict.fromkeys(config.hosts[1:])
        self._mpirun = _Mpirun(config, folder, self.output)
        self._heard: Dict[int, RankEnd] = {}
        self._waited_for: List[str] = []
        self._over = False
        self._gone: Optional[mpi_report.Gone] = None
        self._end_mpirun_at: Optional[float] = None
        self._finish_at: Optional[float] = None

    def begin(self) -> None:
        for host in self._others:
            in_thread(self._call, host)
        if not self._others:
            self._mpirun.start()

    def _call(self, host: str) -> None:
        """In a thread of its own."""
        try:
            wire = call_agent(host, self.config.port, self.key, {"do": "follow"}, self.config.patience)
        except WireError as error:
            self.put("lost", host, str(error))
            return
        self.put("met", host, wire)
        self.listen(host, wire)

    def met(self, host: str, wire: Wire) -> None:
        self._others[host] = wire
        if all(self._others.values()) and not self._over:
            self._mpirun.start()

    # ---- what happens ------------------------------------------------------------------------------------

    def hear(self, host: str, message: Dict[str, Any]) -> None:
        if "ended" in message:
            self.rank_ended(RankEnd.of(message["ended"]))
        elif "last" in message:
            self._heard.update((end.rank, end) for end in map(RankEnd.of, message["last"]))
            self._no_longer_waited_for(host)
        elif "hangs" in message:
            self.hangs(host)

    def hangs(self, host: str) -> None:
        if self._gone is None:
            self._gone = mpi_report.Gone(host, "its ranks hung, and were ended", hung=True)
        if self._end_mpirun_at is None and self._mpirun.running:
            self._end_mpirun_at = time.monotonic() + _HANG_SECONDS

    def rank_ended(self, end: RankEnd) -> None:
        self._heard[end.rank] = end
        if end.status != 0 and not end.stopped and self.stopped_by is None and self._end_mpirun_at is None:
            # An MPI ends the others by itself, usually.
            self._end_mpirun_at = time.monotonic() + self.config.failure_grace

    def lost(self, host: str, why: str) -> None:
        self._others[host] = None
        if self._over:
            self._no_longer_waited_for(host)
            return
        if self._gone is None and self.stopped_by is None:
            self._gone = mpi_report.Gone(host, "it is gone: " + why)
        if self._mpirun.running:
            self._end_mpirun_at = time.monotonic()
        else:
            self._everything_is_over()

    def stop(self, number: int) -> None:
        for wire in self._wires():
            tell(wire, {"do": "signal", "number": number})
        if not self._mpirun.running:
            self._everything_is_over()

    def descriptors(self) -> List[int]:
        return self._mpirun.descriptors()

    def due(self) -> List[float]:
        return [at for at in (self._end_mpirun_at, self._finish_at) if at is not None]

    def act(self, ready: Set[int]) -> None:
        self._mpirun.pump(ready)
        now = time.monotonic()
        if self._mpirun.reap():
            self._everything_is_over()
        elif self._end_mpirun_at is not None and now >= self._end_mpirun_at:
            self._end_mpirun_at = now + _KILL_SECONDS if self._mpirun.end() else None
        if self._finish_at is not None and now >= self._finish_at:
            self._finish()

    # ---- the end -----------------------------------------------------------------------------------------

    def _everything_is_over(self) -> None:
        if self._over:
            return
        self._over = True
        self._end_mpirun_at = None
        self._finish_at = time.monotonic() + _LAST_WORDS_SECONDS
        self._waited_for = [self.config.host, *(host for host, wire in self._others.items() if wire)]
        for wire in self._wires():
            tell(wire, {"do": "over"})
        self.settle()

    def last_words(self) -> None:
        self._heard.update((end.rank, end) for end in self.ranks.ends())
        self._no_longer_waited_for(self.config.host)

    def _no_longer_waited_for(self, host: str) -> None:
        if host in self._waited_for:
            self._waited_for.remove(host)
            if not self._waited_for:
                self._finish()

    def _finish(self) -> None:
        """The report, from what all hosts have told; and to all of them."""
        mpirun = self._mpirun
        said = mpirun.said()
        self.report = mpi_report.compose(
            list(self._heard.values()), mpirun.status, said, time.time(), self._gone
        )
        for wire in self._wires():
            tell(wire, {"report": self.report.to_document()})

    def _wires(self) -> List[Wire]:
        return [wire for wire in self._others.values() if wire is not None]


class _Mpirun:
    def __init__(self, config: Config, folder: str, output: Output) -> None:
        # On other hosts a variable of their agent's says where their folder is.
        ranks = (*python_words("mpi_rank", sys.executable, sys.path[0]), folder)
        self._words = (*(config.mpirun or ()), *ranks)
        self._env = config.env
        self._output = output
        self._pid: Optional[int] = None
        self._stream: Optional[Stream] = None
        self._asked = False
        self.status: Optional[int] = None

    @property
    def running(self) -> bool:
        return self._pid is not None and self.status is None

    def start(self) -> None:
        """Raises Unusable."""
        read_end, write_end = os.pipe()
        try:
            self._pid = os.posix_spawn(
                self._words[0],
                self._words,
                self._env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write_end, 1),
                    (os.POSIX_SPAWN_DUP2, write_end, 2),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGABRT),
            )
        except OSError as error:
            raise Unusable("{}: cannot be started: {}".format(self._words[0], error.strerror)) from None
        finally:
            os.close(write_end)
        self._stream = _Said(read_end, b"[mpirun] ", self._output)

    def descriptors(self) -> List[int]:
        shown = self._stream is not None and self._stream.open and not self._output.full
        return [self._stream.descriptor] if shown and self._stream is not None else []

    def pump(self, ready: Set[int]) -> None:
        if self._stream is not None and self._stream.descriptor in ready:
            self._stream.pump()

    def reap(self) -> bool:
        """Whether it has ended just now."""
        if self._pid is None or self.status is not None:
            return False
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return bool(pid)

    def end(self) -> bool:
        """SIGTERM, upon which it ends its daemons and ranks; SIGKILL the second time. False when all is
        done.
        """
        if self._pid is None or self.status is not None:
            return False
        os.kill(self._pid, signal.SIGKILL if self._asked else signal.SIGTERM)
        again, self._asked = not self._asked, True
        return again

    def said(self) -> str:
        """Its last output."""
        if self._stream is None:
            return ""
        while self._stream.pump():
            pass
        return self._stream.tail()


class _Said(Stream):
    """Open MPI 5 has zero bytes in what it says."""

    def _keep(self, block: bytes) -> None:
        super()._keep(block.replace(b"\0", b""))

    def _pass_lines(self, block: bytes) -> None:
        super()._pass_lines(block.replace(b"\0", b""))
