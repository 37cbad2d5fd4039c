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
from smlaunch.local.executors.executor_base import MAX_LOOPBACK_HOSTS
from smlaunch.local.executors.executor_interface import CannotAllocate

_SUBNET_GUARD_NUMBER = MAX_LOOPBACK_HOSTS + 1
"""Last number of the subnet's address to which the guard socket is bound; hosts have the numbers below."""
_PORT_RANGE_START, _PORT_RANGE_END = 19968, 32768
"""Both are multiples of PORTS_PER_JOB and below the ephemeral range of Linux (32768 to 60999), so that no
outgoing connection uses one of these ports."""
_RANDOM_SUBNETS = 500
_SUBNET_NUMBERS = random.Random()  # noqa: S311 - no secret
"""Own numbers: the program's generator, which its user may have seeded, is left alone."""
_SUBNET_GUARD_PORT = 29499
"""Any port will do for the UDP socket that reserves a subnet, as long as all endpoints use the same."""


class Reservation:
    """Addresses and ports of one job. The ports are free on all addresses at the time of the reservation."""

    def __init__(self, addresses: tuple[str, ...], port: int, guard_sockets: list[socket.socket]) -> None:
        self.addresses = addresses
        self.port = port
        """The first of PORTS_PER_JOB ports."""
        self._reservation_sockets = guard_sockets

    def release(self) -> None:
        """Give up the reservation."""
        for guard in self._reservation_sockets:
            guard.close()
        self._reservation_sockets = []


def reserve_addresses(host_count: int) -> Reservation:
    """Reserve loopback addresses for the hosts of one job, in a subnet 127.A.B that no other job uses, and a
    block of ports. Raises CannotAllocate if loopback has no further addresses (macOS: only 127.0.0.1).

    Who binds the UDP socket 127.A.B.254 (_SUBNET_GUARD_NUMBER) has reserved the subnet, until the Reservation
    is released. No file remains, whatever happens to this process."""
    if host_count > MAX_LOOPBACK_HOSTS:
        raise CannotAllocate(f"{host_count} hosts: one machine can stand for {MAX_LOOPBACK_HOSTS} at most")
    first_port, port_socket = _reserve_port_block()
    # Whoever has bound the guard's address in a subnet uses that subnet: try the next one.
    for subnet in _iterate_candidate_subnets():
        subnet_socket = _bind_reservation_socket(f"{subnet}.{_SUBNET_GUARD_NUMBER}", port=_SUBNET_GUARD_PORT)
        if subnet_socket is not None:  # no other job has it
            addresses = tuple(f"{subnet}.{host_number}" for host_number in range(1, host_count + 1))
            return Reservation(addresses, first_port, [port_socket, subnet_socket])
    if host_count == 1:  # jobs can share 127.0.0.1: their ports differ
        return Reservation(("127.0.0.1",), first_port, [port_socket])
    port_socket.close()
    raise CannotAllocate(
        f"{host_count} hosts need as many loopback addresses, and this machine has 127.0.0.1 only; "
        "on macOS add some with: sudo ifconfig lo0 alias 127.64.0.1 (and 127.64.0.2, ..., 127.64.0.254)"
    )


def _iterate_candidate_subnets() -> Iterator[str]:
    """Yield the first three numbers of loopback addresses: ``127.64.0``."""
    yield "127.64.0"
    for _ in range(_RANDOM_SUBNETS):
        yield f"127.{_SUBNET_NUMBERS.randint(64, 127)}.{_SUBNET_NUMBERS.randint(0, 255)}"


def _reserve_port_block() -> tuple[int, socket.socket]:
    """Return the first port of a free block of PORTS_PER_JOB (64) ports, and the UDP socket that reserves the
    block. All jobs use the same blocks, which do not overlap, so that a socket on the first port is enough.

    A block with connections of an earlier job in TIME_WAIT is used only if there is no other: most servers
    (those with SO_REUSEADDR) can bind such a port.
    """
    first_ports = list(range(_PORT_RANGE_START, _PORT_RANGE_END, PORTS_PER_JOB))
    random.shuffle(first_ports)
    for allows_time_wait in (False, True):
        for first_port in first_ports:
            port_socket = _bind_reservation_socket("127.0.0.1", first_port)
            if port_socket is None:
                continue  # another job has the block
            if all(_is_port_free(first_port + offset, allows_time_wait) for offset in range(PORTS_PER_JOB)):
                return first_port, port_socket
            port_socket.close()
    raise CannotAllocate(
        f"no {PORTS_PER_JOB} free ports in a row between {_PORT_RANGE_START} and {_PORT_RANGE_END}: "
        "other jobs have them"
    )


def _is_port_free(port: int, allows_time_wait: bool) -> bool:
    """Return whether a TCP port is free on all addresses. ``allows_time_wait``: connections in TIME_WAIT do
    not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial_socket:
        trial_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, allows_time_wait)
        try:
            trial_socket.bind(("0.0.0.0", port))  # noqa: S104
        except OSError:
            return False
    return True


def _bind_reservation_socket(address: str, port: int) -> socket.socket | None:
    """Return a UDP socket that is bound to the address; None if another process has it."""
    udp_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp_socket.bind((address, port))
    except OSError:
        udp_socket.close()
        return None
    return udp_socket
