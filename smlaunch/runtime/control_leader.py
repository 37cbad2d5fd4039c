"""The leader's end of the control channel (control_channel.py): accept followers, note their failures, and
send them the end.
"""

import select
import socket
import time
from typing import Any, Dict, List, Optional, Sequence, Set

from smlaunch.contract.failure import format_failure
from smlaunch.runtime import peer_connection
from smlaunch.runtime.control_channel import GOODBYE_SECONDS, PEER_LOST_EXIT_CODE, ControlChannel, PeerStatus
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.peer_connection import TO_LEADER, IncomingHandshake, PeerConnection, PeerError

_HANDSHAKE_SECONDS = 30.0

_WAITING_LOG_SECONDS = 60.0
"""After this time the log names the hosts that are not ready yet. There is no limit here: each host has its
own limit and reports it, or the platform ends it.
"""


class _FollowerConnection:
    """A connection to the leader. ``host``: None until the handshake is finished."""

    def __init__(self, connection: socket.socket, key: bytes, host: str) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.handshake = IncomingHandshake(connection, key, TO_LEADER, host)
        self.handshake_deadline = time.monotonic() + _HANDSHAKE_SECONDS
        self.host: Optional[str] = None
        self.peer: Optional[PeerConnection] = None
        self.is_ready = False


class LeaderChannel(ControlChannel):
    """Listens from the start, at every address: a name look-up could take long and delay signals. Raises
    SetupError when it cannot listen.
    """

    is_leader = True

    def __init__(self, host: str, others: Sequence[str], key: bytes, port: int) -> None:
        self._host = host
        self._follower_hosts = set(others)
        self._key = key
        self._connection_by_fd: Dict[int, _FollowerConnection] = {}
        self._has_sent_status = False
        self.is_connected = True
        self.all_ready = not others
        self.next_action_at = time.monotonic() + _WAITING_LOG_SECONDS
        try:
            self._listener = socket.create_server(("", port), backlog=max(128, len(others)))
        except OSError as error:
            raise SetupError(
                "port {}, at which the other hosts follow this one, cannot be had: {}".format(
                    port, error.strerror
                )
            ) from None
        self._listener.setblocking(False)

    def descriptors(self) -> List[int]:
        return [self._listener.fileno(), *self._connection_by_fd]

    def process_events(self, ready: Set[int]) -> None:
        """Handle messages and connections of followers. ``ready``: descriptors that can be read."""
        for descriptor in ready & set(self._connection_by_fd):
            self._receive(self._connection_by_fd[descriptor])
        if self._listener.fileno() in ready:
            self._accept()
        self.log_message = ""
        if self.next_action_at is not None and (self.all_ready or time.monotonic() >= self.next_action_at):
            self.next_action_at = None
            if not self.all_ready:
                self.log_message = "waits for {} to be ready".format(", ".join(self.unready_hosts()))

    def unready_hosts(self) -> List[str]:
        """Hosts whose services are not known to be up."""
        return sorted(
            self._follower_hosts
            - {follower.host for follower in self._connection_by_fd.values() if follower.is_ready}
        )

    def send_status(self, status: PeerStatus) -> None:
        """Send the end to all followers, and wait until they have closed their connections."""
        if self._has_sent_status:
            return
        self._has_sent_status = True
        self._listener.close()
        poll = select.poll()
        open_peers = {}
        for descriptor, connection in self._connection_by_fd.items():
            try:
                if connection.peer is not None:
                    connection.peer.send_message({"end": status._asdict()})
                    open_peers[descriptor] = connection.peer
                    poll.register(descriptor, select.POLLIN)
            except PeerError:
                continue
        deadline = time.monotonic() + GOODBYE_SECONDS
        while open_peers and time.monotonic() < deadline:
            for descriptor, _ in poll.poll(int((deadline - time.monotonic()) * 1000) + 1):
                if _has_disconnected(open_peers[descriptor]):
                    poll.unregister(descriptor)
                    del open_peers[descriptor]
        for connection in self._connection_by_fd.values():
            connection.connection.close()
        self._connection_by_fd = {}

    def _accept(self) -> None:
        """Accept a connection, and drop those whose handshake takes too long."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is closed already
            return
        now = time.monotonic()
        unverified = [follower for follower in self._connection_by_fd.values() if follower.host is None]
        for follower in unverified:
            if now > follower.handshake_deadline:
                self._disconnect(follower)
        if len(unverified) >= peer_connection.MAX_PENDING_HANDSHAKES:
            connection.close()
            return
        peer_connection.configure_socket(connection)
        self._connection_by_fd[connection.fileno()] = _FollowerConnection(connection, self._key, self._host)

    def _receive(self, follower: _FollowerConnection) -> None:
        """Read what a follower has sent; drop a connection that is not valid."""
        try:
            if follower.peer is None:
                self._finish_handshake(follower)
                return
            frame = follower.peer.receive_available()
            if frame is not None:
                self._handle_message(follower, frame.parse_json())
        except (PeerError, ValueError):
            self._disconnect(follower)

    def _finish_handshake(self, follower: _FollowerConnection) -> None:
        """Finish a handshake if all of it has arrived. Raises PeerError."""
        try:
            peer, request = follower.handshake.accept()
        except BlockingIOError:
            return
        host = str(request.get("from"))
        connected_hosts = {connection.host for connection in self._connection_by_fd.values()}
        if host not in self._follower_hosts or host in connected_hosts:
            raise PeerError("not a host of this job, or already connected")
        follower.host, follower.peer = host, peer
        # The follower learns that its proof was accepted.
        peer.send_message({"welcome": True})

    def _handle_message(self, follower: _FollowerConnection, message: Dict[str, Any]) -> None:
        if message.get("ready"):
            follower.is_ready = True
            self.all_ready = self.all_ready or not self.unready_hosts()
        if "failed" in message and self.peer_status is None:
            self.peer_status = PeerStatus(**message["failed"])

    def _disconnect(self, follower: _FollowerConnection) -> None:
        """Close a connection; a verified host that is lost has failed."""
        del self._connection_by_fd[follower.connection.fileno()]
        follower.connection.close()
        if follower.host is not None and self.peer_status is None:
            cause = "its runtime is gone: the connection ended without a final message; see its log"
            self.peer_status = PeerStatus(
                PEER_LOST_EXIT_CODE, format_failure(follower.host, None, None, cause), time.time()
            )


def _has_disconnected(peer: PeerConnection) -> bool:
    try:
        peer.receive_available()
    except PeerError:
        return True
    return False
