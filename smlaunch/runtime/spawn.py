"""One process of the supervisor's: how it is started, and what is known of it."""

import errno
import os
import signal
from typing import Dict, Optional

from smlaunch.runtime.commands import Command
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.streams import Output, Stream

_DEFAULTED = frozenset((signal.SIGPIPE, signal.SIGXFSZ))
"""Python ignores these, and what is ignored stays so through an exec: give them back to the ranks."""


class Process:
    def __init__(self, command: Command, pid: int, stream: Stream) -> None:
        self.command = command
        self.pid = pid
        self.stream = stream
        self.rank_streams: Dict[int, Stream] = {}
        """Of ranks that it starts itself."""
        self.status: Optional[int] = None
        self.ended = 0.0
        self.stopped = False
        """Told to end because another one had failed, or because it is no longer needed."""

    @property
    def running(self) -> bool:
        return self.status is None


def start(command: Command, output: Output) -> Process:
    """In a process group of its own. Raises Unusable."""
    read_end, write_end = os.pipe()
    try:
        pid = os.posix_spawnp(
            command.argv[0],
            command.argv,
            command.env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, write_end, 1),
                (os.POSIX_SPAWN_DUP2, write_end, 2),
            ],
            setpgroup=0,
            setsigmask=(),
            setsigdef=_DEFAULTED,
        )
    except OSError as error:
        os.close(read_end)
        raise Unusable(_why_not(command, error)) from None
    finally:
        os.close(write_end)
    process = Process(command, pid, Stream(read_end, command.prefix, output))
    for outlet in command.outlets:
        # Opened for writing too: so it never ends before its first writer has come.
        descriptor = os.open(outlet.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        process.rank_streams[outlet.rank] = Stream(descriptor, outlet.prefix, output)
    return process


def send(pid: int, number: int) -> None:
    """To a child that has not been reaped, so its number is still its own."""
    try:
        os.kill(pid, number)
    except PermissionError:  # it has taken another user's identity
        return


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # none left; or, on macOS, none left but zombies
        return


def _why_not(command: Command, error: OSError) -> str:
    program = command.argv[0].decode("utf-8", "replace")
    if error.errno == errno.E2BIG:
        size = sum(map(len, command.argv)) + sum(len(k) + len(v) for k, v in command.env.items())
        return "{}: arguments and environment are {} bytes, more than this system takes".format(program, size)
    if error.errno == errno.EACCES:
        return "{}: is not executable (chmod +x), or may not be run by this user".format(program)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "{}: no such program on this host".format(program)
    return "{}: cannot be started: {}".format(program, error.strerror)
