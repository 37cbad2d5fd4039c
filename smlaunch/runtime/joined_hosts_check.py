"""Warns from within a rank that its host trains separately from the job's other hosts.

The runtime copies this file into a folder on the ranks' PYTHONPATH, as an extension of torch: since 2.5,
``import torch`` calls the functions that packages register for the group ``torch.backends``. The file stands
alone, runs in the ranks' Python and must never disturb a training.

Only the process itself knows whether it trains with others. A hook that torch calls after each step of any
optimizer looks at the process group of that moment. A rank that steps while no group has more ranks than its
host is separate, unless there is a connection to another host, by which scripts may join in their own way.
A process whose optimizer never steps, such as one of an inference, and one whose group is gone, says nothing.
"""

import atexit
import importlib
import json
import os
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Iterator, NamedTuple, Sequence, Set, Tuple

_SECONDS_TO_JOIN = 300.0
"""How long after its first step a rank is warned of; a shorter training is warned of at its end."""

_ESTABLISHED, _LISTEN = "01", "0A"
"""States of sockets in /proc/net/tcp (include/net/tcp_states.h)."""

_MAPPED_IPV4 = "0000000000000000FFFF0000"
"""Beginning of an IPv4 address in /proc/net/tcp6."""

_NO_GROUP = "torch.distributed had no process group"
_OTHER_WAYS_TO_JOIN = ("torch_xla", "horovod", "mpi4py", "smdistributed")
"""Packages that join ranks without a process group of torch.distributed."""


class JoinCheck:
    """Watches the optimizers of this process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self._is_settled = False
        """The rank has joined, or it is not known."""

        self._group_text = ""
        """How the process group was at the newest step; empty before any."""

        self._step_count = 0
        self._first_step_at = 0.0
        self._has_warned = False

    def after_step(self, *_: Any) -> None:
        """Called by torch after each step of an optimizer."""
        # torch.compile would trace what follows into the step.
        if self._torch.compiler.is_compiling() or self._is_settled:
            return
        try:
            self._look_at_group()
        except Exception:
            self._is_settled = True

    def at_exit(self) -> None:
        if self._group_text and not self._is_settled and os.getpid() == self._pid:
            with suppress(Exception):
                self._warn()

    def _look_at_group(self) -> None:
        distributed = self._torch.distributed
        if not distributed.is_available():
            self._is_settled = True
        elif distributed.is_initialized():
            world_size = distributed.get_world_size()
            self._is_settled = world_size > int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self._group_text = "the process group had world size {}".format(world_size)
        elif distributed.distributed_c10d._default_pg_init_method is None:  # noqa: SLF001
            self._group_text = self._group_text or _NO_GROUP
        else:
            # There was a group, and it is gone. What it was is known from earlier steps, or not at all.
            self._is_settled = self._group_text in ("", _NO_GROUP)
        now = time.monotonic()
        self._first_step_at = self._first_step_at or now
        self._step_count += 1
        if not self._is_settled and self._step_count & (self._step_count - 1) == 0:  # 1, 2, 4, 8 ...
            self._is_settled = self._has_other_connection()
        is_due = not self._has_warned and now - self._first_step_at > _SECONDS_TO_JOIN
        if is_due and not self._is_settled:
            self._warn()

    def _has_other_connection(self) -> bool:
        """Return whether the rank may have joined others without a process group. Raises OSError where that
        is not known.
        """
        if any(name in sys.modules for name in _OTHER_WAYS_TO_JOIN):
            return True
        return has_connection_to_others(json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"])

    def _warn(self) -> None:
        self._has_warned = True
        if self._has_other_connection():
            self._is_settled = True
            return
        text = (
            "smlaunch: warning: hosts trained separately: an optimizer took steps while {}, and no "
            "connection led to another of the {} hosts. To train together, give the trainer the number of "
            "hosts (such as num_nodes={}), or let smlaunch start the ranks, and no launcher of the script's "
            "own\n"
        )
        host_count = len(json.loads(os.environ["SM_HOSTS"]))
        os.write(2, text.format(self._group_text, host_count, host_count).encode())


class TcpConnection(NamedTuple):
    """A TCP connection in this network; addresses are IPv4, or empty."""

    local: Tuple[str, int]
    remote: Tuple[str, int]
    state: str
    inode: str


def has_connection_to_others(hosts: Sequence[str], current_host: str) -> bool:
    """Return whether there is a TCP connection between this host and another one of the job. Raises OSError.

    Hosts of the local endpoint share one network, in which each has an address of the loopback device of its
    own, and connects to others from 127.0.0.1. There a connection counts if one of its ends is a process of
    this host.
    """
    own_addresses = _find_addresses(current_host)
    other_addresses: Set[str] = set()
    for host in hosts:
        if host != current_host:
            other_addresses |= _find_addresses(host)
    connections = list(_iter_connections())
    if not any(address.startswith("127.") for address in other_addresses):
        return any(connection.remote[0] in other_addresses for connection in connections)
    own_inodes = _find_socket_inodes()
    inode_by_ends = {(each.local, each.remote): each.inode for each in connections}
    for connection in connections:
        if connection.state != _ESTABLISHED or connection.inode not in own_inodes:
            continue
        if connection.remote[0] in other_addresses:
            return True
        peer_inode = inode_by_ends.get((connection.remote, connection.local))
        if connection.local[0] in own_addresses and peer_inode not in own_inodes:
            return True
    return False


def _find_addresses(host: str) -> Set[str]:
    return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}


def _find_socket_inodes() -> Set[str]:
    """Return the inodes of the sockets of all processes of this host, as /proc/net/tcp writes them."""
    inodes = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = "/proc/{}/fd/".format(pid)
        with suppress(OSError):  # it has ended, or is another user's
            for descriptor in os.listdir(folder):
                with suppress(OSError):
                    target = os.readlink(folder + descriptor)
                    if target.startswith("socket:["):
                        inodes.add(target[len("socket:[") : -1])
    return inodes


def _iter_connections() -> Iterator[TcpConnection]:
    for name in ("tcp", "tcp6"):
        with open("/proc/self/net/" + name, encoding="ascii") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] != _LISTEN:
                    yield TcpConnection(_parse_end(fields[1]), _parse_end(fields[2]), fields[3], fields[9])


def _parse_end(field: str) -> Tuple[str, int]:
    """``0100007F:1F90`` is port 8080 at 127.0.0.1. The address is empty for one of IPv6."""
    digits, _, port = field.partition(":")
    if digits.startswith(_MAPPED_IPV4):
        digits = digits[len(_MAPPED_IPV4) :]
    if len(digits) != 8:
        return "", int(port, 16)
    address = ".".join(str(byte) for byte in int(digits, 16).to_bytes(4, sys.byteorder))
    return address, int(port, 16)


def install() -> None:
    """Called by ``import torch``, which an exception would fail."""
    try:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return  # one process speaks for its host
        check = JoinCheck(sys.modules["torch"])
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(check.after_step)
        atexit.register(check.at_exit)
    except Exception:
        return
