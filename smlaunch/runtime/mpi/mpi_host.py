"""One host's part in an MPI program: a child of the runtime, and the parent of what the MPI starts there.

    every host    an agent (exec_agent.py), through which the leader's mpirun starts its daemon there
                  the output of this host's ranks, line by line, with their numbers
                  signals, sent to each rank of this host and to no launcher, which would kill
    the leader    (mpi_leader.py) waits for the agents of the others, starts mpirun, learns how each rank ends
    the others    (mpi_follower.py) report how their ranks end
    at the end    every host sends the last output of its ranks; the leader's report goes to all, so that
                  all hosts report the same failure

One loop waits for everything, also for the messages between the hosts (message_channel.py).
"""

import os
import select
import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set

from smlaunch.runtime import job_secret
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.log_streams import HostOutput
from smlaunch.runtime.message_channel import ChannelOwner, MessageChannel
from smlaunch.runtime.mpi import rank_wrapper
from smlaunch.runtime.mpi.exec_agent import ExecAgent
from smlaunch.runtime.mpi.local_ranks import LocalRanks
from smlaunch.runtime.mpi.report import MpiReport, RankExit
from smlaunch.runtime.peer_connection import AGENT_PURPOSE, listen_address
from smlaunch.runtime.signals import STOP_SIGNALS, SignalQueue

CONFIG_FILE = "host.json"
REPORT_FILE = "report.json"
"""Files in the folder: the input and the result of this process."""

_KILL_RANKS_AFTER_SECONDS = 1.0
_GIVE_UP_AFTER_SECONDS = 6.0
"""Seconds after the end of everything else: when remaining ranks are killed, and when their exit is no longer
waited for.
"""


class MpiHostConfig(NamedTuple):
    """What the runtime tells this process. Times in seconds."""

    host: str
    hosts: List[str]
    ranks_per_host: int
    agent_port: int
    """Port of the agents."""

    secret_file: str
    """Path of the job's secret."""

    env: Dict[str, str]
    """Environment of daemons and mpirun."""

    mpirun_command: Optional[List[str]]
    """On the leader; None elsewhere."""

    peer_timeout_seconds: float
    failure_grace_seconds: float

    @property
    def leader(self) -> str:
        return self.hosts[0]


class MpiHost(ChannelOwner):
    """What leader and follower have in common. It runs until ``report`` is set."""

    def __init__(self, config: MpiHostConfig, folder: str, signals: SignalQueue) -> None:
        self.config = config
        self._key = job_secret.read_secret(config.secret_file)
        # The leader connects to all others.
        accepted_hosts = () if config.host == config.leader else (config.leader,)
        self.channel = MessageChannel(config.host, accepted_hosts, self._key, AGENT_PURPOSE)
        self.output = HostOutput(1)
        first_rank = config.hosts.index(config.host) * config.ranks_per_host
        self.ranks = LocalRanks(folder, config.host, first_rank, config.ranks_per_host, self.output)
        self.report: Optional[MpiReport] = None
        self.stop_signal: Optional[int] = None
        self._folder = folder
        self._signals = signals
        self._abort_received = False
        self._kill_ranks_at: Optional[float] = None
        self._give_up_waiting_at: Optional[float] = None

    def run(self) -> MpiReport:
        """Run until the report is there. Raises SetupError for what prevents the start."""
        # The runtime ends a hang with SIGABRT. This process makes the ranks print their stacks.
        signal.signal(signal.SIGABRT, self._record_abort)
        agent = self._make_agent()
        agent.start()
        try:
            self.on_start()
            while self.report is None:
                self._run_loop_once()
        finally:
            agent.close()
            self.ranks.forward_remaining_output()
        return self.report

    def _make_agent(self) -> ExecAgent:
        """Return the agent of this host. Raises SetupError where its port is not available."""
        environment = {os.fsencode(name): os.fsencode(value) for name, value in self.config.env.items()}
        environment[rank_wrapper.FOLDER_VARIABLE.encode()] = os.fsencode(self._folder)
        address = listen_address(self.config.host)
        try:
            return ExecAgent(
                self._key, self.config.host, address, self.config.agent_port, environment, self.channel.accept
            )
        except OSError as error:
            raise SetupError(
                "{}:{}, where the agent of this host listens, cannot be had: {}".format(
                    address or "*", self.config.agent_port, error.strerror
                )
            ) from None

    # ---- differs between leader and follower
    # --------------------------------------------------------------------

    def on_start(self) -> None:
        raise NotImplementedError

    def on_rank_exit(self, rank_exit: RankExit) -> None:
        """A rank of this host has exited."""
        raise NotImplementedError

    def on_stop(self, signal_number: int) -> None:
        """A stop signal has been sent to every rank of this host."""

    def on_hang(self, host: str) -> None:
        """Called when the runtime of a host has found that its ranks hang, and ends them."""
        raise NotImplementedError

    def on_ranks_exited(self) -> None:
        """All ranks of this host have exited."""
        raise NotImplementedError

    def descriptors_to_poll(self) -> List[int]:
        return []

    def handle_ready_descriptors(self, ready_fds: Set[int]) -> None:
        """Called in each turn of the loop."""

    def deadlines(self) -> List[float]:
        """When the loop must turn at the latest."""
        return []

    # ---- the loop ----------------------------------------------------------------------------------------

    def _run_loop_once(self) -> None:
        """Wait for the next event of this host of an MPI program, and handle all that has arrived: signals,
        exits and output of ranks, messages of other hosts and deadlines. The ``on_...``
        methods differ between the leader and the other hosts.
        """
        ready_fds = self._wait_for_descriptors()
        for signal_number in self._signals.take_pending():
            self.handle_signal(signal_number)
        if self._abort_received:  # by SIGABRT the runtime says that it ends a hang
            self._abort_received = False
            self.ranks.abort()  # how they end now is no failure of their own
            self.on_hang(self.config.host)
        for rank_exit in self.ranks.read_events():
            self.on_rank_exit(rank_exit)
        self.channel.dispatch_events(self)  # such as on_message
        self.ranks.forward_output(ready_fds)
        self.handle_ready_descriptors(ready_fds)
        self.output.write_available()
        self._continue_shutdown()

    def _wait_for_descriptors(self) -> Set[int]:
        """Wait until there is something to read, space for output, or until the next deadline. Return the
        descriptors that are ready.
        """
        poll = select.poll()
        descriptors = (
            self._signals.wakeup_fd,
            self.channel.fileno(),
            *self.ranks.descriptors_to_poll(),
            *self.descriptors_to_poll(),
        )
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        if self.output.has_pending:
            poll.register(self.output.descriptor, select.POLLOUT)
        return {descriptor for descriptor, _ in poll.poll(self._poll_timeout_ms())}

    def _poll_timeout_ms(self) -> Optional[int]:
        """Return the milliseconds until the next deadline, for poll(); None without one."""
        shutdown_deadlines = (self._kill_ranks_at, self._give_up_waiting_at)
        deadlines = list(self.deadlines())
        deadlines += [deadline for deadline in shutdown_deadlines if deadline is not None]
        if not deadlines:
            return None
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1)  # rounded up

    def _record_abort(self, number: int, frame: Any) -> None:
        self._abort_received = True  # the loop wakes up, as at every signal (SignalQueue)

    def handle_signal(self, signal_number: int) -> None:
        """Send a signal that this host received on to its ranks. Only the first stop signal counts; ranks
        that start after it get it too.
        """
        if signal_number not in STOP_SIGNALS:
            self.ranks.send_signal(signal_number, include_later=False)
            return
        if self.stop_signal is not None:
            return  # the platform and the leader both send it; handlers of ranks must run once
        self.stop_signal = signal_number
        self.ranks.send_signal(signal_number, include_later=True)
        self.on_stop(signal_number)

    def begin_shutdown(self) -> None:
        """Everything else is over: kill ranks that do not exit with their launcher; then on_ranks_exited."""
        if self._give_up_waiting_at is None:
            self._kill_ranks_at = time.monotonic() + _KILL_RANKS_AFTER_SECONDS
            self._give_up_waiting_at = time.monotonic() + _GIVE_UP_AFTER_SECONDS

    def _continue_shutdown(self) -> None:
        """Continue a shutdown that has begun: kill the remaining ranks when their time is over, and call
        ``on_ranks_exited`` once, when all have exited or are not waited for any longer.
        """
        now = time.monotonic()
        if self._give_up_waiting_at is None:  # the shutdown has not begun, or is over
            return
        if self._kill_ranks_at is not None and now >= self._kill_ranks_at:
            self._kill_ranks_at = None
            self.ranks.kill_remaining()
        if self.ranks.all_exited or now >= self._give_up_waiting_at:
            self._kill_ranks_at = self._give_up_waiting_at = None
            self.on_ranks_exited()


# ---- programs of the runtime
# ------------------------------------------------------------------------------------

_START_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from smlaunch.runtime.{} import start; start()"
)


def module_command(module: str, python: str, archive: str) -> List[str]:
    """Return the command that runs a module of the runtime from the archive, with this Python. Its
    arguments follow.
    """
    return [python, "-I", "-S", "-c", _START_PROGRAM.format(module), archive]
