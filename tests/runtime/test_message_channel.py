"""The message channel: what its owner learns of other hosts, and in which order."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from smlaunch.runtime.message_channel import ChannelOwner, MessageChannel
from smlaunch.runtime.peer_connection import CONTROL_PURPOSE, PeerError, PeerLost, PeerUnreachable
from smlaunch.runtime.peer_listener import PeerListener

KEY = bytes(range(32))
HOST = "127.0.0.1"


class Owner(ChannelOwner):
    """Records the events of its channel."""

    def __init__(self, accepted_hosts: tuple[str, ...] = (), host: str = HOST, key: bytes = KEY) -> None:
        self.channel = MessageChannel(host, accepted_hosts, key, CONTROL_PURPOSE)
        self.events: list[Any] = []

    def on_connected(self, host: str) -> None:
        self.events.append(host)

    def on_message(self, host: str, message: dict[str, Any]) -> None:
        self.events.append((host, message))

    def on_disconnected(self, host: str, error: PeerError) -> None:
        self.events.append((host, type(error)))

    def await_events(self, count: int) -> list[Any]:
        """Return the first events, ``count`` of them."""
        deadline = time.monotonic() + 20
        while len(self.events) < count and self.channel.wait(deadline):
            self.channel.dispatch_events(self)
        return self.events


@pytest.fixture
def leader() -> Owner:
    return Owner(accepted_hosts=("algo-2",))


@pytest.fixture
def port(leader: Owner) -> Iterator[int]:
    listener = PeerListener(KEY, CONTROL_PURPOSE, HOST, HOST, 0, leader.channel.accept)
    listener.start()
    yield listener.port
    listener.close()
    leader.channel.close()


def connected_follower(port: int, host: str = "algo-2") -> Owner:
    follower = Owner(host=host)
    follower.channel.connect(HOST, port, 10)
    assert follower.await_events(1)[0] == HOST  # where the leader refuses it, the end may have come as well
    return follower


def test_messages_come_in_their_order_and_then_the_end(leader: Owner, port: int) -> None:
    follower = connected_follower(port)
    follower.channel.send(HOST, {"number": 1})
    follower.channel.send(HOST, {"number": 2})
    assert leader.await_events(3) == ["algo-2", ("algo-2", {"number": 1}), ("algo-2", {"number": 2})]
    leader.channel.send("algo-2", {"answer": 3})
    assert follower.await_events(2)[1:] == [(HOST, {"answer": 3})]
    follower.channel.close()
    assert leader.await_events(4)[3:] == [("algo-2", PeerLost)]
    leader.channel.send("algo-2", {"answer": 4})  # to a host that is gone: nothing happens
    assert follower.await_events(3)[2:] == [(HOST, PeerLost)]


@pytest.mark.parametrize("host", ["algo-2", "algo-3"])
def test_a_second_connection_and_another_host_are_refused(leader: Owner, port: int, host: str) -> None:
    first = connected_follower(port)
    second = connected_follower(port, host)
    assert second.await_events(2)[1:] == [(HOST, PeerLost)]
    first.channel.send(HOST, {"still": "here"})
    assert leader.await_events(2) == ["algo-2", ("algo-2", {"still": "here"})]
    first.channel.close()


def test_a_host_may_connect_again(leader: Owner, port: int) -> None:
    connected_follower(port).channel.close()
    assert leader.await_events(2) == ["algo-2", ("algo-2", PeerLost)]
    connected_follower(port).channel.close()
    assert leader.await_events(4)[2:] == ["algo-2", ("algo-2", PeerLost)]


def test_a_connection_that_is_closed_before_its_handshake_is_tried_again(leader: Owner, port: int) -> None:
    """A leader with too many connections closes some."""
    with socket.create_server((HOST, 0)) as server:
        free_port = server.getsockname()[1]
        follower = Owner(host="algo-2")
        follower.channel.connect(HOST, free_port, 20)
        server.accept()[0].close()
        connection = server.accept()[0]
    listener = PeerListener(KEY, CONTROL_PURPOSE, HOST, HOST, free_port, leader.channel.accept)
    listener.start()
    connection.close()
    assert follower.await_events(1) == [HOST]
    follower.channel.close()
    listener.close()


def test_why_no_connection_is_made(port: int) -> None:
    stranger = Owner(host="algo-2", key=bytes(32))
    stranger.channel.connect(HOST, port, 10)
    assert stranger.await_events(1) == [(HOST, PeerError)]
    with socket.create_server((HOST, 0)) as server:
        unused_port = server.getsockname()[1]
    late = Owner(host="algo-2")
    late.channel.connect(HOST, unused_port, 0.1)
    assert late.await_events(1) == [(HOST, PeerUnreachable)]
