"""What mpirun calls in the place of ssh: runs a command line on another host of this job, by its agent.

    python -c ... PORT KEY-FILE TIMEOUT [options of ssh] HOST COMMAND...

The exit code is that of the command, 128 + n for signal n, and 255, as with ssh, when the host cannot be
reached, refuses the connection, or is lost. Nothing is read from standard input.
"""

import os
import sys
from typing import List, NamedTuple, Optional, Sequence

from smlaunch.runtime import job_secret
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.peer_connection import (
    AGENT_PURPOSE,
    EXIT_STATUS,
    STDERR,
    STDOUT,
    PeerError,
    connect_to_host,
)

_FAILED_EXIT_CODE = 255
_OPTIONS_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
"""ssh(1): options that take a value."""


class RemoteCommand(NamedTuple):
    """A command line for another host."""

    host: str
    command_line: str


def parse_arguments(arguments: Sequence[str]) -> Optional[RemoteCommand]:
    """Return the remote host and the command line that arguments of ssh name; None without one of them. The
    arguments of the command are joined by spaces for a shell on the other side, as with ssh; callers expect
    that and quote.
    """
    remaining: List[str] = list(arguments)
    while remaining and remaining[0].startswith("-"):
        option = remaining.pop(0)
        if option == "--":
            break
        if len(option) == 2 and option[1] in _OPTIONS_WITH_VALUE and remaining:  # such as -p 22
            remaining.pop(0)
    if len(remaining) < 2:
        return None
    host = remaining[0].rpartition("@")[2]  # of user@host
    return RemoteCommand(host, " ".join(remaining[1:]))


def run_remote(command: RemoteCommand, port: int, key: bytes, timeout_seconds: float) -> int:
    """Run a command on another host by its agent, forward its output to this process's, and return its exit
    status. ``key``: the job's secret. ``timeout_seconds``: for the connection. Raises PeerError.
    """
    request = {"do": "run", "line": command.command_line}
    peer = connect_to_host(command.host, port, key, AGENT_PURPOSE, request, timeout_seconds)
    while True:
        frame = peer.receive()
        if frame is None:
            raise PeerError("{}: the connection was closed before the command had ended".format(command.host))
        if frame.kind == EXIT_STATUS:
            return int(frame.payload)
        if frame.kind in (STDOUT, STDERR):
            _write(1 if frame.kind == STDOUT else 2, frame.payload)


def main(arguments: Sequence[str]) -> int:
    """Run a command on another host; return its exit code, or 255."""
    port, key_file, patience = arguments[:3]
    command = parse_arguments(arguments[3:])
    if command is None:
        _write(2, b"smlaunch: a host and a command are needed\n")
        return _FAILED_EXIT_CODE
    try:
        return run_remote(command, int(port), job_secret.read_secret(key_file), float(patience))
    except (PeerError, SetupError) as error:
        _write(2, "smlaunch: {}: {}\n".format(command.host, error).encode("utf-8", "replace"))
        return _FAILED_EXIT_CODE


def _write(descriptor: int, data: bytes) -> None:
    """A missing reader does not matter: the exit status is still needed."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError:
            return


def start() -> None:
    sys.exit(main(sys.argv[1:]))
