"""Messages between this host and other hosts of the job: the one way in which runtimes talk to each other.

The control channel of services (control_channel.py) and the hosts of an MPI program (mpi/mpi_host.py) use it.
Threads look up names, connect, verify and read, each of which may take long; what they learn waits in a queue
for the owner's loop. The loop polls the channel and calls ``dispatch_events``. Sending is up to the loop.

A connection that ends means that the other host has left, or is lost: the kernel closes it when the runtime
is killed, and keep-alive notices a lost machine within half a minute.
"""

import _thread
import collections
import os
import select
import time
from typing import Any, Collection, Deque, Dict, NamedTuple, Optional

from smlaunch.runtime.peer_connection import ConnectionPurpose, PeerConnection, PeerError, connect_to_host

_REQUEST = "messages"
"""What a connection that carries messages asks for."""


class ChannelOwner:
    """Receives the events of a message channel, in its own loop."""

    def on_connected(self, host: str) -> None:
        """A connection to another host is established."""
        raise NotImplementedError

    def on_message(self, host: str, message: Dict[str, Any]) -> None:
        """Another host has sent a message."""
        raise NotImplementedError

    def on_disconnected(self, host: str, error: PeerError) -> None:
        """The connection to another host has ended, or could not be made."""
        raise NotImplementedError


class _Event(NamedTuple):
    """What has happened to the connection with ``host``: a message has come, it has ended, or, without both,
    it was made.
    """

    host: str
    message: Optional[Dict[str, Any]] = None
    error: Optional[PeerError] = None


class MessageChannel:
    """The connections of ``own_host``. ``accepted_hosts``: hosts that may connect to this one."""

    def __init__(
        self, own_host: str, accepted_hosts: Collection[str], key: bytes, purpose: ConnectionPurpose
    ) -> None:
        self._own_host = own_host
        self._accepted_hosts = frozenset(accepted_hosts)
        self._key = key
        self._purpose = purpose
        self._lock = _thread.allocate_lock()
        self._peer_by_host: Dict[str, PeerConnection] = {}
        self._events: Deque[_Event] = collections.deque()
        self._events_fd, self._events_write_fd = os.pipe()
        os.set_blocking(self._events_fd, False)
        os.set_blocking(self._events_write_fd, False)

    def fileno(self) -> int:
        """Return a descriptor that can be read when there are events."""
        return self._events_fd

    def connect(self, host: str, port: int, timeout_seconds: float, peer_description: str = "") -> None:
        """Begin to connect to another host, which may start up to ``timeout_seconds`` later.
        ``peer_description``: what messages call the other side, by default ``host``.
        """
        _thread.start_new_thread(self._connect_and_receive, (host, port, timeout_seconds, peer_description))

    def accept(self, peer: PeerConnection, request: Dict[str, Any]) -> None:
        """Receive messages of a host that has connected, until its connection ends. A PeerListener calls it
        in a thread. Raises PeerError for another request, and for a host that is not accepted or is connected
        already.
        """
        host = request.get("from")
        if request.get("do") != _REQUEST or host not in self._accepted_hosts:
            raise PeerError("{!r} is not a request for this host".format(request.get("do")))
        self._receive_messages(host, peer)

    def send(self, host: str, message: Dict[str, Any]) -> None:
        """Send a message, if the host is connected. Where that fails, ``on_disconnected`` follows."""
        with self._lock:
            peer = self._peer_by_host.get(host)
        if peer is not None:
            try:
                peer.send_message(message)
            except PeerError:
                peer.close()  # wakes up the thread that reads it

    def wait(self, deadline: float) -> bool:
        """Wait for events, at most until ``deadline`` (time.monotonic). Return whether there are any."""
        poll = select.poll()
        poll.register(self._events_fd, select.POLLIN)
        return bool(poll.poll(max(0, int((deadline - time.monotonic()) * 1000) + 1)))

    def dispatch_events(self, owner: ChannelOwner) -> None:
        """Call the owner's methods for what has happened since the last call. Does not wait."""
        try:
            while os.read(self._events_fd, 4096):  # empty the pipe: it only wakes the owner
                pass
        except BlockingIOError:
            pass
        while self._events:
            event = self._events.popleft()
            if event.error is not None:
                owner.on_disconnected(event.host, event.error)
            elif event.message is not None:
                owner.on_message(event.host, event.message)
            else:
                owner.on_connected(event.host)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            peers = list(self._peer_by_host.values())
        for peer in peers:
            peer.close()

    def _connect_and_receive(
        self, host: str, port: int, timeout_seconds: float, peer_description: str
    ) -> None:
        """Connect to a host and receive its messages. Runs in a thread."""
        request = {"do": _REQUEST, "from": self._own_host}
        try:
            peer = connect_to_host(
                host, port, self._key, self._purpose, request, timeout_seconds, peer_description
            )
        except PeerError as error:
            self._post(_Event(host, error=error))
            return
        self._receive_messages(host, peer)

    def _receive_messages(self, host: str, peer: PeerConnection) -> None:
        """Queue the messages of a host until its connection ends, then its end. Runs in a thread. Raises
        PeerError where the host is connected already.
        """
        with self._lock:
            if host in self._peer_by_host:
                raise PeerError("{} is connected already".format(host))
            self._peer_by_host[host] = peer
        self._post(_Event(host))
        try:
            while True:
                self._post(_Event(host, peer.receive_message()))
        except PeerError as error:
            with self._lock:
                del self._peer_by_host[host]
            peer.close()
            self._post(_Event(host, error=error))

    def _post(self, event: _Event) -> None:
        self._events.append(event)
        try:
            os.write(self._events_write_fd, b".")
        except BlockingIOError:  # the pipe is full, so it can be read
            return
