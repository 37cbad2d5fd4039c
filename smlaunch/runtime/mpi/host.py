"""One host's part in an MPI program: a child of the runtime, and the parent of what the MPI starts there.

    every host    an agent (exec_agent.py), through which the leader's mpirun starts its daemon there
                  the output of this host's ranks, line by line, with their numbers
                  signals, sent to each rank of this host and to no launcher, which would kill
    the leader    (leader.py) waits for the agents of the others, starts mpirun, and learns how each rank ends
    the others    (follower.py) report how their ranks end
    at the end    every host sends the last output of its ranks; the leader's report goes to all, so that
                  all hosts report the same failure

One loop waits for everything. Connections have threads, which only post what they receive to its inbox.
"""

import json
import os
import queue
import select
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from smlaunch.runtime import secret
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.log_streams import HostOutput
from smlaunch.runtime.mpi import rank_wrapper as mpi_rank
from smlaunch.runtime.mpi.exec_agent import ExecAgent
from smlaunch.runtime.mpi.local_ranks import LocalRanks
from smlaunch.runtime.mpi.report import MpiReport, RankExit
from smlaunch.runtime.peer_connection import PeerConnection, PeerError, listen_address
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


class MpiHost:
    """What leader and follower have in common. It runs until ``report`` is set."""

    def __init__(self, config: MpiHostConfig, folder: str, signals: SignalQueue) -> None:
        self.config = config
        self.key = secret.read_secret(config.secret_file)
        self.output = HostOutput(1)
        first_rank = config.hosts.index(config.host) * config.ranks_per_host
        self.ranks = LocalRanks(folder, config.host, first_rank, config.ranks_per_host, self.output)
        self.report: Optional[MpiReport] = None
        self.stop_signal: Optional[int] = None
        self._folder = folder
        self._signals = signals
        self._inbox: "queue.SimpleQueue[Tuple[Callable[[str, Any], None], str, Any]]" = queue.SimpleQueue()
        self._inbox_fd, self._inbox_write_fd = os.pipe()
        self._abort_received = False
        self._kill_at: Optional[float] = None
        self._give_up_at: Optional[float] = None

    def run(self) -> MpiReport:
        """Run until the report is there. Raises SetupError for what prevents the start."""
        # The runtime ends a hang with SIGABRT. This process stays and forwards the stacks of the ranks.
        signal.signal(signal.SIGABRT, self._abort)
        agent = self._make_agent()
        agent.start()
        try:
            self.on_start()
            while self.report is None:
                self._run_once()
        finally:
            agent.close()
            self.ranks.drain()
        return self.report

    def _make_agent(self) -> ExecAgent:
        """Return the agent of this host. Raises SetupError where its port is not available."""
        environment = {os.fsencode(name): os.fsencode(value) for name, value in self.config.env.items()}
        environment[mpi_rank.FOLDER_VARIABLE.encode()] = os.fsencode(self._folder)
        address = listen_address(self.config.host)
        try:
            return ExecAgent(
                self.key, self.config.host, address, self.config.agent_port, environment, self.on_request
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

    def on_request(self, peer: PeerConnection, request: Dict[str, Any]) -> None:
        """A host of this job requests something else than a command. Runs in a thread of the agent. Raises
        PeerError.
        """
        raise PeerError("{!r} is not a request for this host".format(request.get("do")))

    def on_connected(self, host: str, peer: PeerConnection) -> None:
        """A connection to another host is established."""
        raise NotImplementedError

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        """Another host has sent a message."""
        raise NotImplementedError

    def on_disconnected(self, host: str, reason: str) -> None:
        """Called when the connection to another host is lost."""
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

    def descriptors(self) -> List[int]:
        return []

    def process_events(self, ready: Set[int]) -> None:
        """Called in each turn of the loop."""

    def deadlines(self) -> List[float]:
        """When the loop must turn at the latest."""
        return []

    # ---- connections -------------------------------------------------------------------------------------

    def post_event(self, handler: Callable[[str, Any], None], host: str, value: Any) -> None:
        """Queue a call of ``handler`` with ``host`` and ``value`` for the loop. Any thread may call this."""
        self._inbox.put((handler, host, value))
        os.write(self._inbox_write_fd, b".")

    def receive_messages(self, host: str, peer: PeerConnection) -> None:
        """Post the messages of a connection until it ends. Runs in a thread."""
        try:
            while True:
                frame = peer.receive()
                if frame is None:
                    break
                self.post_event(self.on_message, host, frame.parse_json())
        except (PeerError, ValueError) as error:
            self.post_event(self.on_disconnected, host, str(error))
            return
        self.post_event(self.on_disconnected, host, "its connection was closed")

    # ---- the loop ----------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Wait for the next event and handle what has arrived."""
        poll = select.poll()
        descriptors = (
            self._signals.wakeup_fd,
            self._inbox_fd,
            *self.ranks.descriptors(),
            *self.descriptors(),
        )
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        if self.output.has_pending:
            poll.register(self.output.descriptor, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(self._poll_timeout_ms())}
        for signal_number in self._signals.take_pending():
            self.handle_signal(signal_number)
        if self._abort_received:
            self._abort_received = False
            self.ranks.mark_stopped()
            self.on_hang(self.config.host)
        for rank_exit in self.ranks.read_events():
            self.on_rank_exit(rank_exit)
        if self._inbox_fd in ready:
            os.read(self._inbox_fd, 4096)
        while not self._inbox.empty():
            handler, host, value = self._inbox.get()
            handler(host, value)
        self.ranks.pump(ready)
        self.process_events(ready)
        self.output.write_available()
        self._continue_shutdown()

    def _poll_timeout_ms(self) -> Optional[int]:
        shutdown_deadlines = (self._kill_at, self._give_up_at)
        deadlines = [
            *self.deadlines(),
            *(deadline for deadline in shutdown_deadlines if deadline is not None),
        ]
        return None if not deadlines else max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1)

    def _abort(self, number: int, frame: Any) -> None:
        self._abort_received = True
        os.write(self._inbox_write_fd, b".")

    def handle_signal(self, signal_number: int) -> None:
        """Send a signal on to the ranks."""
        if signal_number in STOP_SIGNALS:
            if self.stop_signal is not None:
                return  # the platform and the leader both send it; handlers of ranks must run once
            self.stop_signal = signal_number
        self.ranks.send_signal(signal_number, include_later=signal_number in STOP_SIGNALS)
        if signal_number in STOP_SIGNALS:
            self.on_stop(signal_number)

    def begin_shutdown(self) -> None:
        """Everything else is over: kill ranks that do not exit with their launcher; then on_ranks_exited."""
        if self._give_up_at is None:
            self._kill_at = time.monotonic() + _KILL_RANKS_AFTER_SECONDS
            self._give_up_at = time.monotonic() + _GIVE_UP_AFTER_SECONDS

    def _continue_shutdown(self) -> None:
        """Kill remaining ranks when their time is over, and finish."""
        now = time.monotonic()
        if self._give_up_at is None:
            return
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.ranks.kill_remaining()
        if self.ranks.all_exited or now >= self._give_up_at:
            self._kill_at = self._give_up_at = None
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


def start_thread(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def send_message(peer: PeerConnection, message: Dict[str, Any]) -> None:
    """Send a message. A lost connection is reported by the thread that reads it."""
    try:
        peer.send_message(message)
    except PeerError:
        return


def main(signals: SignalQueue, folder: str) -> int:
    signals.install()
    signals.defer()
    with open(os.path.join(folder, CONFIG_FILE), encoding="ascii") as file:
        config = MpiHostConfig(**json.load(file))
    try:
        report = _make_host(config, folder, signals).run()
    except SetupError as error:
        report = MpiReport((), None, str(error))
    path = os.path.join(folder, REPORT_FILE)
    with open(path + ".tmp", "w", encoding="ascii") as file:
        json.dump(report.to_document(), file)
    os.replace(path + ".tmp", path)
    return 0


def _make_host(config: MpiHostConfig, folder: str, signals: SignalQueue) -> MpiHost:
    if config.host == config.leader:
        from smlaunch.runtime.mpi.leader import MpiLeader

        return MpiLeader(config, folder, signals)
    from smlaunch.runtime.mpi.follower import MpiFollower

    return MpiFollower(config, folder, signals)


def start() -> None:
    code = main(SignalQueue(), sys.argv[1])
    os._exit(code)  # threads may still be waiting
