"""How hosts without ranks follow the leader, and how the leader learns of their failures.

Each follower keeps one connection to the leader for the whole job (message_channel.py).

    follower -> leader   {"ready": true}                                    its services are up
                         {"failed": {exit_code, failure_text, failed_at}}   it has failed, and why
    leader -> follower   {"end": {exit_code, failure_text, failed_at}}      how the leader ended: all end so

A connection that ends without a final message means that the host is lost. Nothing here blocks the
supervisor: its loop also polls the channel and calls ``handle_events``.
"""

import time
from typing import Any, Dict, Optional, Sequence, Set

from smlaunch.contract.failure_reason import format_failure
from smlaunch.contract.tcp_ports import CONTROL_CHANNEL_PORT
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.errors import SetupError, StoppedDuringSetup
from smlaunch.runtime.host_outcome import HostExitReport
from smlaunch.runtime.message_channel import ChannelOwner, MessageChannel
from smlaunch.runtime.name_lookup import PEER_TIMEOUT_SECONDS
from smlaunch.runtime.peer_connection import CONTROL_PURPOSE, PeerError, PeerUnreachable
from smlaunch.runtime.peer_listener import PeerListener

_FINAL_MESSAGE_TIMEOUT_SECONDS = 5.0
"""Time for followers to close their connections after the final message. If the leader exited first, its
network might disappear together with the message.
"""

_PEER_LOST_EXIT_CODE = 1
"""Exit code of a host that has lost its peer."""

_WAITING_LOG_SECONDS = 60.0
"""After this time the log names the hosts that are not ready yet. There is no limit here: each host has its
own limit and reports it, or the platform ends it.
"""


class ControlChannel(ChannelOwner):
    """One end of the connections between leader and followers."""

    is_leader: bool
    are_all_hosts_ready: bool = False
    """On the leader: the services of all other hosts are up."""

    peer_exit: Optional[HostExitReport] = None
    """Set when this host must end: how the leader ended, or on the leader a follower's failure."""

    is_connected: bool = False

    next_wakeup_at: Optional[float] = None
    """When to call ``handle_events`` even if nothing has happened (time.monotonic)."""

    pending_log_line: str = ""
    """A line for the log, set by the last call of ``handle_events``; empty for none."""

    def __init__(self, host: str, accepted_hosts: Sequence[str], key: bytes) -> None:
        self._messages = MessageChannel(host, accepted_hosts, key, CONTROL_PURPOSE)
        self._has_sent_exit = False

    def fileno(self) -> int:
        """Return the descriptor that the supervisor's loop polls for input."""
        return self._messages.fileno()

    def handle_events(self) -> None:
        """Handle what other hosts have sent, and their loss."""
        self._messages.dispatch_events(self)

    def report_services_ready(self) -> None:
        """This host's services are up."""

    def send_host_exit(self, host_exit: HostExitReport) -> None:
        """Send the final message, how this host ended, and close the connections. Only the first call
        counts.
        """
        if not self._has_sent_exit:
            self._has_sent_exit = True
            self.handle_events()  # hosts that have just connected
            self._send_final_message(host_exit)
            self._messages.close()

    def _send_final_message(self, host_exit: HostExitReport) -> None:
        raise NotImplementedError

    def _record_lost_host(self, host: str, cause: str) -> None:
        if self.peer_exit is None:
            failure_text = format_failure(host, None, None, cause)
            self.peer_exit = HostExitReport(_PEER_LOST_EXIT_CODE, failure_text, time.time())


class LeaderChannel(ControlChannel):
    """Listens from the start, at every address: a name look-up could take long and delay signals. Raises
    SetupError when it cannot listen.
    """

    is_leader = True
    is_connected = True

    def __init__(self, host: str, others: Sequence[str], key: bytes, port: int) -> None:
        super().__init__(host, others, key)
        self._unready_hosts = set(others)
        self._connected_hosts: Set[str] = set()
        self.are_all_hosts_ready = not others
        self.next_wakeup_at = time.monotonic() + _WAITING_LOG_SECONDS
        try:
            self._listener = PeerListener(key, CONTROL_PURPOSE, host, "", port, self._messages.accept)
        except OSError as error:
            raise SetupError(
                "port {}, at which the other hosts follow this one, cannot be had: {}".format(
                    port, error.strerror
                )
            ) from None
        self._listener.start()

    def handle_events(self) -> None:
        """Handle messages and new connections of followers. Sets ``pending_log_line``, which the supervisor
        then writes to the log.
        """
        super().handle_events()
        self.pending_log_line = self._describe_unready_hosts_once()

    def _describe_unready_hosts_once(self) -> str:
        """Return a line for the log about the hosts whose services (programs beside the ranks) are not up at
        ``next_wakeup_at``; empty before that time, and afterwards.
        """
        if self.are_all_hosts_ready:
            self.next_wakeup_at = None  # nothing more to log
        if self.next_wakeup_at is None or time.monotonic() < self.next_wakeup_at:
            return ""
        self.next_wakeup_at = None
        return "waits for {} to be ready".format(", ".join(sorted(self._unready_hosts)))

    def on_connected(self, host: str) -> None:
        self._connected_hosts.add(host)

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        """Handle the message of a follower: its services are up, or it has failed."""
        if message.get("ready"):
            self._unready_hosts.discard(host)
            self.are_all_hosts_ready = not self._unready_hosts
        if "failed" in message and self.peer_exit is None:
            self.peer_exit = HostExitReport(**message["failed"])

    def on_disconnected(self, host: str, error: PeerError) -> None:
        self._connected_hosts.discard(host)
        self._record_lost_host(
            host, "its runtime is gone: the connection ended without a final message; see its log"
        )

    def _send_final_message(self, host_exit: HostExitReport) -> None:
        """Send all followers how the leader ended, and wait until they have closed their connections, at most
        ``_FINAL_MESSAGE_TIMEOUT_SECONDS``.
        """
        self._listener.close()
        for host in self._connected_hosts:
            self._messages.send(host, {"end": host_exit._asdict()})
        deadline = time.monotonic() + _FINAL_MESSAGE_TIMEOUT_SECONDS
        while self._connected_hosts and self._messages.wait(deadline):
            self.handle_events()


class FollowerChannel(ControlChannel):
    """Begins to connect at once. The leader's final message, or its loss, sets ``peer_exit``."""

    is_leader = False

    def __init__(self, host: str, leader: str, key: bytes, port: int, timeout_seconds: float) -> None:
        super().__init__(host, (), key)
        self._host = host
        self._leader_host = leader
        self._port = port
        self._timeout_seconds = timeout_seconds
        self._are_services_ready = False
        leader_description = "the server at the address of the leader, {}, port {},".format(leader, port)
        self._messages.connect(leader, port, timeout_seconds, leader_description)

    def report_services_ready(self) -> None:
        if not self._are_services_ready:
            self._are_services_ready = True
            if self.is_connected:
                self._send_ready()

    def _send_ready(self) -> None:
        self._messages.send(self._leader_host, {"ready": True})

    def on_connected(self, host: str) -> None:
        self.is_connected = True
        if self._are_services_ready:
            self._send_ready()

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        if "end" in message:
            self.peer_exit = HostExitReport(**message["end"])
            self._messages.close()  # after this the leader may exit

    def on_disconnected(self, host: str, error: PeerError) -> None:
        """Record why this host has no leader any more, or has not reached it."""
        cause = str(error)
        if self.is_connected:
            message = "the leader, {}, is gone: the connection ended without a final message; see its log"
            cause = message.format(host)
        elif isinstance(error, PeerUnreachable):
            cause = "the leader, {}, did not answer at port {} within {:g} s ({})".format(
                host, self._port, self._timeout_seconds, error.cause
            )
        self._record_lost_host(self._host, cause)

    def _send_final_message(self, host_exit: HostExitReport) -> None:
        """Send the leader how this host ended, unless the leader has ended first."""
        deadline = time.monotonic() + _FINAL_MESSAGE_TIMEOUT_SECONDS
        # The leader should learn of a failure, even if this host has not connected to it yet.
        while (
            host_exit.failure_text
            and not self.is_connected
            and self.peer_exit is None
            and self._messages.wait(deadline)
        ):
            self.handle_events()
        if self.peer_exit is None:
            self._messages.send(self._leader_host, {"failed": host_exit._asdict()})


def open_control_channel(
    cluster: Cluster, key: bytes, port: int, timeout_seconds: float = PEER_TIMEOUT_SECONDS
) -> ControlChannel:
    """This host's end of the control channel. ``port``: the job's first port. Raises SetupError when the
    leader cannot listen.
    """
    port += CONTROL_CHANNEL_PORT
    if cluster.current_host == cluster.leader:
        return LeaderChannel(cluster.leader, cluster.hosts[1:], key, port)
    return FollowerChannel(cluster.current_host, cluster.leader, key, port, timeout_seconds)


def host_exit_of_error(host: str, error: BaseException) -> HostExitReport:
    """Status of a host that ends before its ranks or services have started."""
    exit_code = int(getattr(error, "exit_code", 70))
    if isinstance(error, StoppedDuringSetup):
        return HostExitReport(exit_code)
    return HostExitReport(exit_code, format_failure(host, None, None, str(error)), time.time())
