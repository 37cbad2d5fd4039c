"""Start one process of the supervisor, and hold its state."""

import errno
import os
import signal
from typing import Dict, Mapping, Optional, Tuple, TypeVar

from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.log_streams import HostOutput, ProcessOutput
from smlaunch.runtime.process_commands import ProcessCommand

_Word = TypeVar("_Word", str, bytes)

_DEFAULT_SIGNALS = frozenset((signal.SIGPIPE, signal.SIGXFSZ, signal.SIGABRT))
"""Python ignores the first two, and an ignored signal stays ignored after exec: restore the default for
ranks. An MPI ends its ranks by SIGABRT.
"""


class ChildProcess:
    """A started process."""

    def __init__(self, command: ProcessCommand, pid: int, output: ProcessOutput) -> None:
        self.command = command
        self.pid = pid
        self.output = output
        self.rank_outputs: Dict[int, ProcessOutput] = {}
        """Outputs of the ranks that it starts, by rank."""
        self.status: Optional[int] = None
        self.ended_at = 0.0
        self.was_stopped = False
        """It was sent a signal to exit: another process had failed, or it is no longer needed."""

    @property
    def is_running(self) -> bool:
        return self.status is None


def spawn_with_output_pipe(argv: Tuple[_Word, ...], env: Mapping[_Word, _Word]) -> Tuple[int, int]:
    """Start a program in a process group of its own, with stdout and stderr in one pipe. ``argv[0]``: a path,
    or a name to look up in PATH. Return its process id and the pipe's read end. Raises OSError.
    """
    read_end, write_end = os.pipe()
    try:
        pid = os.posix_spawnp(
            argv[0],
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, write_end, 1),
                (os.POSIX_SPAWN_DUP2, write_end, 2),
            ],
            setpgroup=0,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return pid, read_end


def start_process(command: ProcessCommand, output: HostOutput) -> ChildProcess:
    """Start a process in a process group of its own. Raises SetupError."""
    try:
        pid, read_end = spawn_with_output_pipe(command.argv, command.env)
    except OSError as error:
        raise SetupError(_describe_start_error(command, error)) from None
    process = ChildProcess(command, pid, ProcessOutput(read_end, command.prefix, output))
    for outlet in command.rank_fifos:
        # O_RDWR: without a writer of its own it would be at its end before the first rank opens it.
        descriptor = os.open(outlet.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        process.rank_outputs[outlet.rank] = ProcessOutput(descriptor, outlet.prefix, output)
    return process


def send_signal(pid: int, signal_number: int) -> None:
    """Send a signal to a child that has not been reaped, so its pid is still valid."""
    try:
        os.kill(pid, signal_number)
    except PermissionError:  # it runs as another user now
        return


def kill_group(pid: int) -> None:
    """Send SIGKILL to a process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # none left; or, on macOS, none left but zombies
        return


def _describe_start_error(command: ProcessCommand, error: OSError) -> str:
    """Return why the program of ``command`` could not be started, for a message. ``error``: what
    posix_spawn raised.
    """
    program = command.argv[0].decode("utf-8", "replace")
    if error.errno == errno.E2BIG:
        argv_bytes = sum(map(len, command.argv))
        env_bytes = sum(len(name) + len(value) for name, value in command.env.items())
        return "{}: arguments and environment are {} bytes, more than this system accepts".format(
            program, argv_bytes + env_bytes
        )
    if error.errno == errno.EACCES:
        return "{}: is not executable (chmod +x), or may not be run by this user".format(program)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):  # ENOTDIR: what should be its folder is a file
        return "{}: no such program on this host".format(program)
    return "{}: cannot be started: {}".format(program, error.strerror)
