"""Addresses and ports for a job's hosts, which no other job on this machine has at the same time.

Hosts are 127.A.B.1, 127.A.B.2, ... A reservation is a bound UDP socket: it needs no file, holds across users
and state directories, and ends with the process that made it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

from smlaunch.contract.tcp_ports import PORTS_PER_JOB
from smlaunch.local.executors.base import CannotAllocate

_GUARD = 254
"""The last number of a subnet's address that stands for the reservation."""
_FIRST_PORT, _AFTER_PORTS = 19968, 32768
"""Both multiples of BLOCK, and below Linux' ephemeral range (32768 to 60999), so that no outgoing connection
takes a port first."""
_TRIES = 500


class Reservation:
    """PORTS_PER_JOB ports from ``port`` on are free on all addresses when they are assigned."""

    def __init__(self, addresses: tuple[str, ...], port: int, guards: list[socket.socket]) -> None:
        self.addresses = addresses
        self.port = port
        self._guards = guards

    def release(self) -> None:
        for guard in self._guards:
            guard.close()
        self._guards = []


def reserve(hosts: int) -> Reservation:
    """Raises CannotAllocate when loopback offers no further addresses (macOS: only 127.0.0.1)."""
    if hosts >= _GUARD:
        raise CannotAllocate(f"{hosts} hosts: one machine can stand for {_GUARD - 1} at most")
    port, port_guard = _free_port()
    for prefix in _subnets():
        guard = _bound(f"{prefix}.{_GUARD}", port=29499)
        if guard is not None:
            addresses = tuple(f"{prefix}.{number}" for number in range(1, hosts + 1))
            return Reservation(addresses, port, [port_guard, guard])
    if hosts == 1:
        return Reservation(("127.0.0.1",), port, [port_guard])
    port_guard.close()
    raise CannotAllocate(
        f"{hosts} hosts need as many loopback addresses, and this machine has 127.0.0.1 only; "
        "on macOS add some with: sudo ifconfig lo0 alias 127.64.0.1 (and 127.64.0.2, ..., 127.64.0.254)"
    )


def _subnets() -> Iterator[str]:
    yield "127.64.0"
    for _ in range(_TRIES):
        yield f"127.{random.randint(64, 127)}.{random.randint(0, 255)}"  # noqa: S311


def _free_port() -> tuple[int, socket.socket]:
    """The first of a block, and what keeps other jobs off it: blocks do not overlap, so their first will do.

    A block where connections of an earlier job linger is taken when there is no other: most servers do not
    mind.
    """
    blocks = list(range(_FIRST_PORT, _AFTER_PORTS, PORTS_PER_JOB))
    random.shuffle(blocks)
    for lingering in (False, True):
        for port in blocks:
            guard = _bound("127.0.0.1", port)
            if guard is None:
                continue
            if all(_is_free(port + offset, lingering) for offset in range(PORTS_PER_JOB)):
                return port, guard
            guard.close()
    raise CannotAllocate(
        f"no {PORTS_PER_JOB} free ports in a row between {_FIRST_PORT} and {_AFTER_PORTS}: "
        "other jobs have them"
    )


def _is_free(port: int, lingering: bool) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, lingering)
        try:
            trial.bind(("0.0.0.0", port))  # noqa: S104
        except OSError:
            return False
    return True


def _bound(address: str, port: int) -> socket.socket | None:
    guard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        guard.bind((address, port))
    except OSError:
        guard.close()
        return None
    return guard
