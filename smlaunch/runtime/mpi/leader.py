"""The leader of an MPI program: connects to the other hosts, starts mpirun, and reports how
everything ended.
"""

import os
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.mpi import report as mpi_report
from smlaunch.runtime.mpi.host import MpiHost, MpiHostConfig, module_command, send_message, start_thread
from smlaunch.runtime.mpi.report import RankExit
from smlaunch.runtime.peer_connection import PeerConnection, PeerError, connect_to_agent
from smlaunch.runtime.signals import SignalQueue

_MPIRUN_KILL_SECONDS = 3.0
"""Between an mpirun's SIGTERM and its SIGKILL."""

_STACK_DUMP_SECONDS = 2.0
"""Time for hanging ranks to print their stacks before mpirun is stopped; the runtime itself waits 5 s."""

_FINAL_REPORT_SECONDS = 20.0
"""Time for all hosts to send the last output of their ranks."""


class MpiLeader(MpiHost):
    """The process of the leading host."""

    def __init__(self, config: MpiHostConfig, folder: str, signals: SignalQueue) -> None:
        super().__init__(config, folder, signals)
        self._connection_by_host: Dict[str, Optional[PeerConnection]] = dict.fromkeys(config.hosts[1:])
        self._mpirun = _MpirunProcess(config, folder, self.output)
        self._exit_by_rank: Dict[int, RankExit] = {}
        self._pending_hosts: List[str] = []
        self._is_over = False
        self._lost_host: Optional[mpi_report.LostHost] = None
        self._end_mpirun_at: Optional[float] = None
        self._report_at: Optional[float] = None

    def on_start(self) -> None:
        for host in self._connection_by_host:
            start_thread(self._connect, host)
        if not self._connection_by_host:
            self._mpirun.start()

    def _connect(self, host: str) -> None:
        """Connect to a host and read its messages. Runs in a thread."""
        try:
            peer = connect_to_agent(
                host, self.config.agent_port, self.key, {"do": "follow"}, self.config.peer_timeout_seconds
            )
        except PeerError as error:
            self.post_event(self.on_disconnected, host, str(error))
            return
        self.post_event(self.on_connected, host, peer)
        self.receive_messages(host, peer)

    def on_connected(self, host: str, peer: PeerConnection) -> None:
        self._connection_by_host[host] = peer
        if all(self._connection_by_host.values()) and not self._is_over:
            self._mpirun.start()

    # ---- what happens ------------------------------------------------------------------------------------

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        """Handle the message of a host: the exit of a rank, the exits of all its ranks at the end, or a
        hang."""
        if "ended" in message:
            self.on_rank_exit(RankExit.from_document(message["ended"]))
        elif "last" in message:
            self._exit_by_rank.update((end.rank, end) for end in map(RankExit.from_document, message["last"]))
            self._mark_reported(host)
        elif "hangs" in message:
            self.on_hang(host)

    def on_hang(self, host: str) -> None:
        if self._lost_host is None:
            self._lost_host = mpi_report.LostHost(host, "its ranks hung, and were ended", is_hung=True)
        if self._end_mpirun_at is None and self._mpirun.is_running:
            self._end_mpirun_at = time.monotonic() + _STACK_DUMP_SECONDS

    def on_rank_exit(self, rank_exit: RankExit) -> None:
        self._exit_by_rank[rank_exit.rank] = rank_exit
        if (
            rank_exit.status != 0
            and not rank_exit.was_stopped
            and self.stop_signal is None
            and self._end_mpirun_at is None
        ):
            # Usually the MPI ends the other ranks by itself.
            self._end_mpirun_at = time.monotonic() + self.config.failure_grace_seconds

    def on_disconnected(self, host: str, reason: str) -> None:
        """Note that a host is lost and end mpirun, unless the program is over."""
        self._connection_by_host[host] = None
        if self._is_over:
            self._mark_reported(host)
            return
        if self._lost_host is None and self.stop_signal is None:
            self._lost_host = mpi_report.LostHost(host, "it is gone: " + reason)
        if self._mpirun.is_running:
            self._end_mpirun_at = time.monotonic()
        else:
            self._finish_program()

    def on_stop(self, signal_number: int) -> None:
        for peer in self._open_connections():
            send_message(peer, {"do": "signal", "number": signal_number})
        if not self._mpirun.is_running:
            self._finish_program()

    def descriptors(self) -> List[int]:
        return self._mpirun.descriptors()

    def deadlines(self) -> List[float]:
        return [deadline for deadline in (self._end_mpirun_at, self._report_at) if deadline is not None]

    def process_events(self, ready: Set[int]) -> None:
        """Forward mpirun's output, and do what is due: end mpirun, or publish the report. ``ready``:
        descriptors that can be read."""
        self._mpirun.pump(ready)
        now = time.monotonic()
        if self._mpirun.reap():
            self._finish_program()
        elif self._end_mpirun_at is not None and now >= self._end_mpirun_at:
            self._end_mpirun_at = now + _MPIRUN_KILL_SECONDS if self._mpirun.terminate() else None
        if self._report_at is not None and now >= self._report_at:
            self._publish_report()

    # ---- the end -----------------------------------------------------------------------------------------

    def _finish_program(self) -> None:
        """mpirun has exited or cannot run: collect the last output of all hosts."""
        if self._is_over:
            return
        self._is_over = True
        self._end_mpirun_at = None
        self._report_at = time.monotonic() + _FINAL_REPORT_SECONDS
        self._pending_hosts = [
            self.config.host,
            *(host for host, peer in self._connection_by_host.items() if peer),
        ]
        for peer in self._open_connections():
            send_message(peer, {"do": "over"})
        self.begin_shutdown()

    def on_ranks_exited(self) -> None:
        self._exit_by_rank.update((end.rank, end) for end in self.ranks.collect_exits())
        self._mark_reported(self.config.host)

    def _mark_reported(self, host: str) -> None:
        if host in self._pending_hosts:
            self._pending_hosts.remove(host)
            if not self._pending_hosts:
                self._publish_report()

    def _publish_report(self) -> None:
        """Compose the report from what all hosts have sent, and send it to all."""
        mpirun = self._mpirun
        mpirun_output = mpirun.last_output()
        self.report = mpi_report.compose_report(
            list(self._exit_by_rank.values()), mpirun.status, mpirun_output, time.time(), self._lost_host
        )
        for peer in self._open_connections():
            send_message(peer, {"report": self.report.to_document()})

    def _open_connections(self) -> List[PeerConnection]:
        return [peer for peer in self._connection_by_host.values() if peer is not None]


class _MpirunProcess:
    """The mpirun that starts all ranks."""

    def __init__(self, config: MpiHostConfig, folder: str, output: HostOutput) -> None:
        # Other hosts get their folder in a variable of their agent.
        rank_program = (*module_command("mpi.rank_wrapper", sys.executable, sys.path[0]), folder)
        self._argv = (*(config.mpirun_command or ()), *rank_program)
        self._env = config.env
        self._output = output
        self._pid: Optional[int] = None
        self._process_output: Optional[ProcessOutput] = None
        self._sigterm_sent = False
        self.status: Optional[int] = None

    @property
    def is_running(self) -> bool:
        return self._pid is not None and self.status is None

    def start(self) -> None:
        """Start it. Raises SetupError."""
        read_end, write_end = os.pipe()
        try:
            self._pid = os.posix_spawn(
                self._argv[0],
                self._argv,
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
            raise SetupError("{}: cannot be started: {}".format(self._argv[0], error.strerror)) from None
        finally:
            os.close(write_end)
        self._process_output = _MpirunOutput(read_end, b"[mpirun] ", self._output)

    def descriptors(self) -> List[int]:
        is_readable = (
            self._process_output is not None and self._process_output.is_open and not self._output.is_full
        )
        return [self._process_output.descriptor] if is_readable and self._process_output is not None else []

    def pump(self, ready: Set[int]) -> None:
        if self._process_output is not None and self._process_output.descriptor in ready:
            self._process_output.pump()

    def reap(self) -> bool:
        """Return whether it has exited since the last call."""
        if self._pid is None or self.status is not None:
            return False
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return bool(pid)

    def terminate(self) -> bool:
        """Send SIGTERM, upon which it ends its daemons and ranks; SIGKILL at the second call. False when no
        further call is needed.
        """
        if self._pid is None or self.status is not None:
            return False
        os.kill(self._pid, signal.SIGKILL if self._sigterm_sent else signal.SIGTERM)
        needs_sigkill, self._sigterm_sent = not self._sigterm_sent, True
        return needs_sigkill

    def last_output(self) -> str:
        """Return the end of its output."""
        if self._process_output is None:
            return ""
        while self._process_output.pump():
            pass
        return self._process_output.tail()


class _MpirunOutput(ProcessOutput):
    """Output of mpirun without the zero bytes that Open MPI 5 prints."""

    def _remember_tail(self, block: bytes) -> None:
        super()._remember_tail(block.replace(b"\0", b""))

    def _write_lines(self, block: bytes) -> None:
        super()._write_lines(block.replace(b"\0", b""))
