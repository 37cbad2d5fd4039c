"""A follower's end of the control channel (control_channel.py): connect, and learn how the leader ended."""

import _thread
import os
import select
import time
from typing import Any, Dict, List, Optional, Set

from smlaunch.contract.failure import format_failure
from smlaunch.runtime import peer_connection
from smlaunch.runtime.control_channel import GOODBYE_SECONDS, PEER_LOST_EXIT_CODE, ControlChannel, PeerStatus
from smlaunch.runtime.peer_connection import TO_LEADER, PeerConnection, PeerError, PeerLost

_RETRY_PAUSE_SECONDS = 0.5
"""Before the next attempt when the leader has closed the connection during the handshake."""


class FollowerChannel(ControlChannel):
    """Connects in a thread; reads and sends in the supervisor's loop."""

    is_leader = False

    def __init__(self, host: str, leader: str, key: bytes, port: int, timeout_seconds: float) -> None:
        self._host = host
        self._leader = leader
        self._key = key
        self._port = port
        self._peer: Optional[PeerConnection] = None
        self._problem: Optional[str] = None
        self._is_ready = self._has_sent_status = False
        self._connected_fd, self._connected_write_fd = os.pipe()
        _thread.start_new_thread(self._connect, (time.monotonic() + timeout_seconds, timeout_seconds))

    def descriptors(self) -> List[int]:
        """Return what the supervisor's loop waits for: the thread that connects, then the connection."""
        if self.peer_status is not None:
            return []
        if not self.is_connected:
            return [self._connected_fd]  # before that, the connection belongs to the thread
        return [] if self._peer is None else [self._peer.fileno()]

    def process_events(self, ready: Set[int]) -> None:
        """Handle the end of the connecting thread, or a message of the leader. ``ready``: descriptors that
        can be read."""
        if self._connected_fd in ready and not self.is_connected and self.peer_status is None:
            os.read(self._connected_fd, 1)
            if self._problem is not None:
                self._fail(self._problem)
                return
            self.is_connected = True
            if self._is_ready:
                self._send({"ready": True})
        elif self.is_connected and self._peer is not None and self._peer.fileno() in ready:
            self._receive(self._peer)

    def report_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            if self.is_connected:
                self._send({"ready": True})

    def send_status(self, status: PeerStatus) -> None:
        """Report a failure to the leader, and close the connection."""
        if self._has_sent_status:
            return
        self._has_sent_status = True
        if status.failure_text and not self.is_connected and self.peer_status is None:
            poll = select.poll()
            poll.register(self._connected_fd, select.POLLIN)
            if poll.poll(int(GOODBYE_SECONDS * 1000)):
                self.process_events({self._connected_fd})
        if self.is_connected and self._peer is not None:
            if self.peer_status is None:
                self._send({"failed": status._asdict()})
            self._close()

    def _receive(self, peer: PeerConnection) -> None:
        """Read the leader's final message."""
        try:
            frame = peer.receive_available()
            message = {} if frame is None else frame.parse_json()
        except (PeerError, ValueError):
            self._handle_disconnect()
            return
        if "end" in message:
            self.peer_status = PeerStatus(**message["end"])
            self._close()  # after this the leader may exit

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            if self._peer is not None:
                self._peer.send_message(message)
        except PeerError:
            self._handle_disconnect()

    def _handle_disconnect(self) -> None:
        self._close()
        self._fail(self._leader_lost_message())

    def _leader_lost_message(self) -> str:
        message = "the leader, {}, is gone: the connection ended without a final message; see its log"
        return message.format(self._leader)

    def _close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _fail(self, cause: str) -> None:
        if self.peer_status is None:
            self.peer_status = PeerStatus(
                PEER_LOST_EXIT_CODE, format_failure(self._host, None, None, cause), time.time()
            )

    def _connect(self, deadline: float, timeout_seconds: float) -> None:
        """Runs in a thread: look-ups, connecting and the handshake may take long."""
        try:
            while True:
                try:
                    self._peer = self._handshake(deadline, timeout_seconds)
                    return
                except (PeerLost, OSError, UnicodeError) as error:
                    if time.monotonic() + _RETRY_PAUSE_SECONDS > deadline:
                        self._problem = "the leader, {}, did not answer at port {} within {:g} s ({})".format(
                            self._leader, self._port, timeout_seconds, error
                        )
                        return
                except PeerError as error:
                    self._problem = str(error)
                    return
                time.sleep(_RETRY_PAUSE_SECONDS)
        finally:
            os.write(self._connected_write_fd, b".")

    def _handshake(self, deadline: float, timeout_seconds: float) -> PeerConnection:
        """Connect and wait as long as necessary: the leader may be installing requirements before it accepts.

        Raises PeerError, with the cause; PeerLost or OSError when the leader closes before it has sent
        anything.
        """
        connection = peer_connection.connect_with_retry(self._leader, self._port, deadline, timeout_seconds)
        connection.settimeout(None)
        request = {"host": self._leader, "from": self._host}
        leader_name = "the server at the address of the leader, {}, port {},".format(self._leader, self._port)
        try:
            peer = peer_connection.connect_handshake(connection, self._key, TO_LEADER, request, leader_name)
        except PeerError:
            connection.close()
            raise
        try:
            welcome_frame = peer.receive()
        except PeerError:
            welcome_frame = None
        if welcome_frame is None:
            peer.close()
            raise PeerError(self._leader_lost_message())
        peer.set_non_blocking()
        return peer
