"""The leader of an MPI program: connects to the other hosts, starts mpirun, and reports how
everything ended.
"""

import os
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.runtime.child_process import spawn_with_output_pipe
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.mpi import report as mpi_report
from smlaunch.runtime.mpi.mpi_host import MpiHost, MpiHostConfig, module_command
from smlaunch.runtime.mpi.report import RankExit
from smlaunch.runtime.peer_connection import PeerError
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
        self._connected_hosts: List[str] = []
        self._mpirun = _MpirunProcess(config, folder, self.output)
        self._exit_by_rank: Dict[int, RankExit] = {}
        self._unreported_hosts: List[str] = []
        self._has_program_ended = False
        self._lost_host: Optional[mpi_report.LostHost] = None
        self._terminate_mpirun_at: Optional[float] = None
        self._publish_report_at: Optional[float] = None

    def on_start(self) -> None:
        for host in self.config.hosts[1:]:
            self.channel.connect(host, self.config.agent_port, self.config.peer_timeout_seconds)
        self._start_mpirun_if_all_connected()

    def on_connected(self, host: str) -> None:
        self._connected_hosts.append(host)
        self._start_mpirun_if_all_connected()

    def _start_mpirun_if_all_connected(self) -> None:
        if len(self._connected_hosts) == len(self.config.hosts) - 1 and not self._has_program_ended:
            self._mpirun.start()

    # ---- what happens ------------------------------------------------------------------------------------

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        """Handle the message of a host: the exit of a rank; the exits of all its ranks when the program has
        ended, with the last output of each; or that its ranks hang.
        """
        if "rank_exit" in message:
            self.on_rank_exit(RankExit.from_document(message["rank_exit"]))
        elif "all_rank_exits" in message:
            last_exits = map(RankExit.from_document, message["all_rank_exits"])
            self._exit_by_rank.update((rank_exit.rank, rank_exit) for rank_exit in last_exits)
            self._mark_host_reported(host)  # the report is published when all hosts have
        elif "hung_host" in message:
            self.on_hang(host)

    def on_hang(self, host: str) -> None:
        """Note that the ranks of a host hang and print their stacks; terminate mpirun, which ends the others,
        when there was time for that.
        """
        if self._lost_host is None:
            self._lost_host = mpi_report.LostHost(host, "its ranks hung, and were ended", is_hung=True)
        if self._terminate_mpirun_at is None and self._mpirun.is_running:
            self._terminate_mpirun_at = time.monotonic() + _STACK_DUMP_SECONDS

    def on_rank_exit(self, rank_exit: RankExit) -> None:
        """Record the exit of a rank; after a failure terminate mpirun, if it does not end in time."""
        self._exit_by_rank[rank_exit.rank] = rank_exit
        has_failed = rank_exit.status != 0 and not rank_exit.was_stopped
        if has_failed and self.stop_signal is None and self._terminate_mpirun_at is None:
            # Usually the MPI ends the other ranks by itself.
            self._terminate_mpirun_at = time.monotonic() + self.config.failure_grace_seconds

    def on_disconnected(self, host: str, error: PeerError) -> None:
        """Note that the connection to a host is lost. Unless the host has sent how its ranks ended, that is a
        failure: terminate mpirun, and with it all ranks.
        """
        if host in self._connected_hosts:
            self._connected_hosts.remove(host)
        has_reported = self._has_program_ended and host not in self._unreported_hosts
        # The first one counts. mpirun has connections of its own to a host, and may end before this is known.
        if self._lost_host is None and self.stop_signal is None and not has_reported:
            self._lost_host = mpi_report.LostHost(host, "it is gone: {}".format(error))
        if self._has_program_ended:
            self._mark_host_reported(host)  # nothing more is to be expected of it
            return
        if self._mpirun.is_running:
            self._terminate_mpirun_at = time.monotonic()  # at once, by ``handle_ready_descriptors``
        else:  # it is not started any more
            self._collect_final_output()  # of all hosts, for the report

    def on_stop(self, signal_number: int) -> None:
        self._send_to_all({"do": "signal", "number": signal_number})
        if not self._mpirun.is_running:
            self._collect_final_output()

    def descriptors_to_poll(self) -> List[int]:
        return self._mpirun.descriptors_to_poll()

    def deadlines(self) -> List[float]:
        return [
            deadline
            for deadline in (self._terminate_mpirun_at, self._publish_report_at)
            if deadline is not None
        ]

    def handle_ready_descriptors(self, ready_fds: Set[int]) -> None:
        """Forward mpirun's output, and do what is due: note that mpirun has exited, terminate it, or publish
        the report to all hosts, even if some have not sent their last output. ``ready_fds``: descriptors that
        can be read.
        """
        self._mpirun.forward_output(ready_fds)
        now = time.monotonic()
        if self._mpirun.reap_if_exited():
            self._collect_final_output()
        elif self._terminate_mpirun_at is not None and now >= self._terminate_mpirun_at:
            # SIGTERM first; if it does not exit within 3 s, the second call sends SIGKILL.
            needs_second_call = self._mpirun.terminate()
            self._terminate_mpirun_at = now + _MPIRUN_KILL_SECONDS if needs_second_call else None
        if self._publish_report_at is not None and now >= self._publish_report_at:
            self._publish_report()

    # ---- the end -----------------------------------------------------------------------------------------

    def _collect_final_output(self) -> None:
        """mpirun has exited or cannot run: collect the last output of all hosts."""
        if self._has_program_ended:
            return
        self._has_program_ended = True
        self._terminate_mpirun_at = None
        self._publish_report_at = time.monotonic() + _FINAL_REPORT_SECONDS
        self._unreported_hosts = [self.config.host, *self._connected_hosts]
        self._send_to_all({"do": "over"})
        self.begin_shutdown()

    def on_ranks_exited(self) -> None:
        self._exit_by_rank.update((end.rank, end) for end in self.ranks.collect_exits())
        self._mark_host_reported(self.config.host)

    def _mark_host_reported(self, host: str) -> None:
        """Note that a host has sent all its exits; publish the report when all hosts have."""
        if host in self._unreported_hosts:
            self._unreported_hosts.remove(host)
            if not self._unreported_hosts:
                self._publish_report()

    def _publish_report(self) -> None:
        """Compose the report from what all hosts have sent, and send it to all."""
        mpirun = self._mpirun
        mpirun_output = mpirun.last_output()
        self.report = mpi_report.compose_report(
            list(self._exit_by_rank.values()), mpirun.status, mpirun_output, time.time(), self._lost_host
        )
        self._send_to_all({"report": self.report.to_document()})

    def _send_to_all(self, message: Dict[str, Any]) -> None:
        for host in self._connected_hosts:
            self.channel.send(host, message)


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
        try:
            self._pid, read_end = spawn_with_output_pipe(self._argv, self._env)
        except OSError as error:
            raise SetupError("{}: cannot be started: {}".format(self._argv[0], error.strerror)) from None
        self._process_output = _MpirunOutput(read_end, b"[mpirun] ", self._output)

    def descriptors_to_poll(self) -> List[int]:
        output = self._process_output
        if output is None or not output.is_open or self._output.is_full:
            return []
        return [output.descriptor]

    def forward_output(self, ready_fds: Set[int]) -> None:
        if self._process_output is not None and self._process_output.descriptor in ready_fds:
            self._process_output.forward_block()

    def reap_if_exited(self) -> bool:
        """Return whether mpirun has exited since the last call; does not wait for that. ``status`` is then
        its exit code, or minus the number of the signal.
        """
        if self._pid is None or self.status is not None:  # not started, or reaped before
            return False
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:  # 0: it is running
            self.status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return bool(pid)

    def terminate(self) -> bool:
        """Send mpirun SIGTERM, upon which it ends its daemons and ranks; at the second call SIGKILL. Return
        whether there is a second call to make.
        """
        if self._pid is None or self.status is not None:  # not started, or exited
            return False
        if self._sigterm_sent:
            os.kill(self._pid, signal.SIGKILL)
            return False
        os.kill(self._pid, signal.SIGTERM)
        self._sigterm_sent = True
        return True

    def last_output(self) -> str:
        """Return the end of its output."""
        if self._process_output is None:
            return ""
        while self._process_output.forward_block():
            pass
        return self._process_output.tail()


class _MpirunOutput(ProcessOutput):
    """Output of mpirun without the zero bytes that Open MPI 5 prints."""

    def _remember_tail(self, block: bytes) -> None:
        super()._remember_tail(block.replace(b"\0", b""))

    def _forward_whole_lines(self, block: bytes) -> None:
        super()._forward_whole_lines(block.replace(b"\0", b""))
