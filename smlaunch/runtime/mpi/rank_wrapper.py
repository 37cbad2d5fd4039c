"""What an MPI starts as each rank: it gives the rank its host's environment and output, and stays its parent.

A launcher passes on its own host's environment (hydra), or none; it reports the exit of a rank in its own
way, or not at all. So the runtime of each host writes a file with the ranks' command, and this program, which
needs only to find that file, starts the rank by it, reports its start and exit to the runtime, and exits as
the rank did.

There are two processes. The launcher's child forwards the signals it gets; if it is killed, so is the rank.
The rank's parent has a session of its own, out of the launcher's reach: when one rank fails, launchers kill
all at once, and nothing would be left to report which one it was.

    launcher -> launcher's child  ~ control pipe ~>  parent -> rank
                                  <~ status pipe ~
"""

import json
import os
import select
import signal
import sys
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from smlaunch.runtime.mpi import mpirun_args

FOLDER_VARIABLE = "SMLAUNCH_MPI"
"""The runtime's folder on this host. On the leader it is an argument: hydra would pass its variable to all
hosts.
"""

RANK_COMMAND_FILE = "ranks.json"
EVENT_PARENT_STARTED, EVENT_RANK_STARTED, EVENT_RANK_EXITED = ("begins", "started", "ended")
"""What the parent of a rank reports to the runtime: that it is there itself, and the rank's start and end."""

EVENTS_FIFO = "events"
OUTPUT_FIFO = "output-{}"
"""In that folder: the command; a FIFO of events; a FIFO for each local rank's output."""

_LAUNCHER_PREFIXES = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "MPI_",
    "MPIR_",
    "HYDI_",
    "HYDRA_",
    "I_MPI_",
    "MPICH_",
)
_LAUNCHER_PATHS = ("PATH", "LD_LIBRARY_PATH")
"""What a launcher sets for its ranks: variables of its own, and the paths of its libraries."""

_NOT_STARTED_STATUS = 127

_FORWARDED_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)
_STACK_DUMP_SECONDS = 5.0
"""How long the other ranks of a hang have to print their stacks; the leader stops mpirun after 2 s."""

_PF_EXITING = 0x4
"""proc(5), flags of a process: PF_EXITING of the kernel's linux/sched.h."""


class RankCommand(NamedTuple):
    """What every rank of this host runs. ``env`` and ``directory``: of this host."""

    argv: Tuple[bytes, ...]
    env: Dict[bytes, bytes]
    directory: str

    def to_json(self) -> str:
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in self.env.items()}
        argv = [os.fsdecode(argument) for argument in self.argv]
        return json.dumps({"argv": argv, "env": env, "directory": self.directory})

    @classmethod
    def read(cls, folder: str) -> "RankCommand":
        with open(os.path.join(folder, RANK_COMMAND_FILE), encoding="ascii") as file:
            document = json.load(file)
        env = {os.fsencode(name): os.fsencode(value) for name, value in document["env"].items()}
        return cls(tuple(os.fsencode(argument) for argument in document["argv"]), env, document["directory"])


class RankEvent(NamedTuple):
    """What the parent of a rank reports to the runtime, as one line of JSON."""

    kind: str
    rank: int
    local_rank: int
    value: int
    """The pid of the parent or of the rank that has started; the rank's exit code, or minus the number of the
    signal that ended it.
    """

    time: float
    """In seconds since the epoch."""

    was_stopped: bool
    """A signal of the launcher ended the rank."""


class RankNumbers(NamedTuple):
    """The numbers that the MPI gives to a rank."""

    rank: int
    local_rank: int
    world_size: int
    local_size: int


def read_rank_numbers(environ: Mapping[bytes, bytes]) -> RankNumbers:
    """Return the rank's numbers, from the MPI's variables. Raises ValueError without any."""
    return RankNumbers(
        _read_int_variable(environ, mpirun_args.RANK_VARIABLES, None),
        _read_int_variable(environ, mpirun_args.LOCAL_RANK_VARIABLES, 0),
        _read_int_variable(environ, mpirun_args.WORLD_SIZE_VARIABLES, 1),
        _read_int_variable(environ, mpirun_args.LOCAL_WORLD_SIZE_VARIABLES, 1),
    )


def _read_int_variable(environ: Mapping[bytes, bytes], names: Sequence[str], default: Optional[int]) -> int:
    """Return the value of the first environment variable of ``names`` that is a number, or ``default``.
    Raises ValueError without both.
    """
    for name in names:
        value = environ.get(name.encode())
        if value is not None and value.isdigit():
            return int(value)
    if default is None:
        raise ValueError("no rank's number in {}".format(" or ".join(names)))
    return default


def rank_environment(
    command: RankCommand, numbers: RankNumbers, inherited: Mapping[bytes, bytes]
) -> Dict[bytes, bytes]:
    """Return the environment of a rank: what this process inherited from the MPI's launcher, and above that
    the variables of this host; but a variable that the launcher sets for its ranks keeps its value.
    """
    env = dict(inherited)
    env.pop(FOLDER_VARIABLE.encode(), None)
    launcher_prefixes = tuple(prefix.encode() for prefix in _LAUNCHER_PREFIXES)  # such as OMPI_
    launcher_paths = [name.encode() for name in _LAUNCHER_PATHS]  # such as PATH
    for name, value in command.env.items():
        is_launcher_variable = name.startswith(launcher_prefixes) or name in launcher_paths
        if name not in inherited or not is_launcher_variable:
            env[name] = value
    rank_variables = {
        "RANK": numbers.rank,
        "LOCAL_RANK": numbers.local_rank,
        "ROLE_RANK": numbers.rank,
        "WORLD_SIZE": numbers.world_size,
        "ROLE_WORLD_SIZE": numbers.world_size,
        "LOCAL_WORLD_SIZE": numbers.local_size,
    }
    env.update((name.encode(), str(number).encode()) for name, number in rank_variables.items())
    return env


def main(arguments: Sequence[str]) -> int:
    """Run the rank in whose place the MPI's launcher has started this process, and return its exit code.
    Where a signal ended the rank, this process ends by the same signal. A second process, which launchers do
    not kill, is the rank's parent. ``arguments``: the runtime's folder, where no variable names it.
    """
    folder = os.environ.get(FOLDER_VARIABLE) or arguments[0]
    command = RankCommand.read(folder)  # the same for every rank of this host
    numbers = read_rank_numbers(os.environb)  # rank, local rank and world sizes, by the MPI's variables
    control_fd, control_write_fd = os.pipe()  # signals for the rank's parent
    status_fd, status_write_fd = os.pipe()  # the rank's exit status, from its parent
    if os.fork() == 0:  # the rank's parent
        os.close(control_write_fd)
        os.close(status_fd)
        try:
            _RankParent(folder, command, numbers).run(control_fd, status_write_fd)
        finally:
            os._exit(0)
    # The launcher's child; signals that it gets go to the rank's parent.
    os.close(control_fd)
    os.close(status_write_fd)
    for signal_number in _FORWARDED_SIGNALS:  # such as SIGTERM
        signal.signal(signal_number, lambda number, _: _forward_signal(control_write_fd, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # block none
    # A launcher may wait until all others are closed.
    _close_descriptors(kept_descriptors=(control_write_fd, status_fd))
    status_text = os.read(status_fd, 64)
    exit_status = int(status_text) if status_text else 1  # empty: the parent ended without a report
    if exit_status < 0:
        _exit_by_signal(-exit_status)
    return exit_status


def _forward_signal(control_fd: int, signal_number: int) -> None:
    try:
        os.write(control_fd, bytes([signal_number]))
    except OSError:  # the rank has ended just now
        return


class _RankParent:
    """The parent of the rank."""

    def __init__(self, folder: str, command: RankCommand, numbers: RankNumbers) -> None:
        self._folder = folder
        self._command = command
        self._numbers = numbers
        self._events = os.open(os.path.join(folder, EVENTS_FIFO), os.O_WRONLY)
        self._received_signals: List[int] = []
        self._is_hang_ended = False

    def run(self, control: int, status: int) -> None:
        """Run the rank, and write its exit code, or minus the signal's number, to ``status``.

        After SIGABRT, by which the runtime says that it aborts the ranks of a hang, that waits: mpirun would
        kill the other ranks as soon as it learns of the first exit, before they have printed their stacks.
        """
        os.setsid()
        wakeup, wakeup_write = os.pipe()
        os.set_blocking(wakeup_write, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, _: None)
        signal.signal(signal.SIGABRT, self._record_abort)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._write_event(EVENT_PARENT_STARTED, os.getpid())
        exit_status = _NOT_STARTED_STATUS
        pid = self._start()
        if pid is not None:
            self._write_event(EVENT_RANK_STARTED, pid)
            own_descriptors = (control, status, wakeup, wakeup_write, self._events)
            _close_descriptors(kept_descriptors=(*own_descriptors, *_connections_to_launcher(os.environ)))
            exit_status = self._supervise_rank(pid, control, wakeup)
        self._write_event(EVENT_RANK_EXITED, exit_status)
        if self._is_hang_ended:
            select.select([control], [], [], _STACK_DUMP_SECONDS)  # the launcher ends its child before
        os.write(status, str(exit_status).encode())

    def _record_abort(self, number: int, frame: object) -> None:
        self._is_hang_ended = True

    def _start(self) -> Optional[int]:
        command, output = self._command, self._open_output()
        environment = rank_environment(command, self._numbers, os.environb)
        os.chdir(command.directory)
        try:
            return os.posix_spawnp(
                command.argv[0],
                command.argv,
                environment,
                file_actions=[(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGABRT),
            )
        except OSError as error:
            program = os.fsdecode(command.argv[0])
            os.write(output, "{}: cannot be started: {}\n".format(program, error.strerror).encode())
            return None

    def _open_output(self) -> int:
        """Open the FIFO for the rank's output and return its descriptor; that of standard output where there
        is no FIFO, since the user's options may start more ranks on this host than there are FIFOs."""
        try:
            return os.open(
                os.path.join(self._folder, OUTPUT_FIFO.format(self._numbers.local_rank)), os.O_WRONLY
            )
        except FileNotFoundError:
            return 1

    def _supervise_rank(self, pid: int, control_fd: int, wakeup_fd: int) -> int:
        """Wait for the rank's exit, and send it the signals whose numbers arrive at ``control_fd``, one byte
        each; SIGKILL when the launcher's child, which writes them, is gone. ``wakeup_fd``: readable after
        SIGCHLD. Returns the exit code, or minus the number of the signal that ended the rank.
        """
        poll = select.poll()
        poll.register(control_fd, select.POLLIN)
        poll.register(wakeup_fd, select.POLLIN)
        while True:
            exited_pid, status = os.waitpid(pid, os.WNOHANG)
            if exited_pid:
                return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            ready_fds = [descriptor for descriptor, _ in poll.poll()]
            if wakeup_fd in ready_fds:
                os.read(wakeup_fd, 4096)
            elif control_fd in ready_fds:
                signal_numbers = os.read(control_fd, 64)
                if signal_numbers:
                    self._signal_rank_group(pid, [*signal_numbers])
                else:  # the end of the pipe: the launcher has killed its child
                    poll.unregister(control_fd)
                    self._signal_rank_group(pid, [int(signal.SIGKILL)])

    def _signal_rank_group(self, pid: int, signal_numbers: Sequence[int]) -> None:
        """Signal the rank's process group, as launchers do, and record the signals: a rank that ends by one
        of them was stopped, and has not failed. That does not hold for a rank that is already exiting.
        """
        if not _is_exiting(pid):
            self._received_signals.extend(signal_numbers)
        for signal_number in signal_numbers:
            try:
                os.killpg(pid, signal_number)
            except (ProcessLookupError, PermissionError):  # nothing is left, or it runs as another user now
                return

    def _write_event(self, event: str, value: int) -> None:
        """Write a line of less than PIPE_BUF bytes, which no other rank's line can split."""
        was_stopped = (
            event == EVENT_RANK_EXITED
            and bool(self._received_signals)
            and value != 0
            and abs(value) % 128 in self._received_signals
        )
        rank_event = RankEvent(
            event, self._numbers.rank, self._numbers.local_rank, value, time.time(), was_stopped
        )
        try:
            os.write(self._events, json.dumps(rank_event).encode() + b"\n")
        except OSError:
            return  # the runtime is gone, and we shall be soon


def _connections_to_launcher(environ: Mapping[str, str]) -> List[int]:
    """Return the descriptor of MPICH's connection to its launcher, if there is one. Its end means to the
    launcher that the rank has failed, so it stays open until ``run`` has reported the exit.
    """
    descriptor = environ.get("PMI_FD", "")
    return [int(descriptor)] if descriptor.isdigit() else []


def _is_exiting(pid: int) -> bool:
    """Return whether the process is exiting. Its connections close before it can be waited for, and launchers
    notice that.
    """
    try:
        with open("/proc/{}/stat".format(pid), "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return bool(int(fields[6]) & _PF_EXITING)


def _close_descriptors(kept_descriptors: Sequence[int]) -> None:
    """Close inherited descriptors: a launcher may wait until its rank closes a connection."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    first = 3
    for descriptor in sorted(kept_descriptors):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, min(os.sysconf("SC_OPEN_MAX"), 65536))


def _exit_by_signal(signal_number: int) -> None:
    """End by the signal that ended the rank, so that the launcher sees the same; without a
    second core dump.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass
    if signal_number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)


def start() -> None:
    sys.exit(main(sys.argv[1:]))
