"""Reserves loopback addresses and ports for a job's hosts, so that no other job on this machine uses them at
the same time.

Hosts are 127.A.B.1, 127.A.B.2, ... A reservation is a bound UDP socket: it needs no file, works across users
and state directories, and ends with its process.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

from smlaunch.contract.tcp_ports import PORTS_PER_JOB
from smlaunch.local.executors.base import CannotAllocate

_GUARD_NUMBER = 254
"""Last number of the subnet's address to which the guard socket is bound."""
_FIRST_PORT, _END_PORT = 19968, 32768
"""Both are multiples of PORTS_PER_JOB and below the ephemeral range of Linux (32768 to 60999), so that no
outgoing connection uses one of these ports."""
_RANDOM_SUBNETS = 500


class Reservation:
    """Addresses and ports of one job. The ports are free on all addresses at the time of the reservation."""

    def __init__(self, addresses: tuple[str, ...], port: int, guard_sockets: list[socket.socket]) -> None:
        self.addresses = addresses
        self.port = port
        """The first of PORTS_PER_JOB ports."""
        self._guard_sockets = guard_sockets

    def release(self) -> None:
        """Give up the reservation."""
        for guard in self._guard_sockets:
            guard.close()
        self._guard_sockets = []


def reserve(host_count: int) -> Reservation:
    """Reserve addresses for so many hosts. Raises CannotAllocate if loopback has no further addresses
    (macOS: only 127.0.0.1)."""
    if host_count >= _GUARD_NUMBER:
        raise CannotAllocate(f"{host_count} hosts: one machine can stand for {_GUARD_NUMBER - 1} at most")
    port, port_guard = _reserve_ports()
    for subnet in _candidate_subnets():
        guard = _bind_guard(f"{subnet}.{_GUARD_NUMBER}", port=29499)
        if guard is not None:
            addresses = tuple(f"{subnet}.{number}" for number in range(1, host_count + 1))
            return Reservation(addresses, port, [port_guard, guard])
    if host_count == 1:
        return Reservation(("127.0.0.1",), port, [port_guard])
    port_guard.close()
    raise CannotAllocate(
        f"{host_count} hosts need as many loopback addresses, and this machine has 127.0.0.1 only; "
        "on macOS add some with: sudo ifconfig lo0 alias 127.64.0.1 (and 127.64.0.2, ..., 127.64.0.254)"
    )


def _candidate_subnets() -> Iterator[str]:
    """Yield first three numbers of addresses."""
    yield "127.64.0"
    for _ in range(_RANDOM_SUBNETS):
        yield f"127.{random.randint(64, 127)}.{random.randint(0, 255)}"  # noqa: S311


def _reserve_ports() -> tuple[int, socket.socket]:
    """Return the first port of a free block and the socket that reserves the block. Blocks do not overlap,
    so that a socket on the first port is enough.

    A block with lingering connections of an earlier job is used only if there is no other: most servers can
    bind such a port.
    """
    first_ports = list(range(_FIRST_PORT, _END_PORT, PORTS_PER_JOB))
    random.shuffle(first_ports)
    for allows_lingering in (False, True):
        for port in first_ports:
            guard = _bind_guard("127.0.0.1", port)
            if guard is None:
                continue
            if all(_is_free(port + offset, allows_lingering) for offset in range(PORTS_PER_JOB)):
                return port, guard
            guard.close()
    raise CannotAllocate(
        f"no {PORTS_PER_JOB} free ports in a row between {_FIRST_PORT} and {_END_PORT}: other jobs have them"
    )


def _is_free(port: int, allows_lingering: bool) -> bool:
    """Return whether a TCP port is free on all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial_socket:
        trial_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, allows_lingering)
        try:
            trial_socket.bind(("0.0.0.0", port))  # noqa: S104
        except OSError:
            return False
    return True


def _bind_guard(address: str, port: int) -> socket.socket | None:
    """Return a UDP socket that is bound to the address; None if another process has it."""
    guard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        guard.bind((address, port))
    except OSError:
        guard.close()
        return None
    return guard
