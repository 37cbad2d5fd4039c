"""What an MPI starts as each rank: it gives the rank its host's environment and output, and stays its parent.

A launcher hands on its own host's environment (hydra), or none at all; how a rank has ended it tells in its
own way, or not at all. So the runtime of each host leaves a file of what its ranks are to be, and this
program, which needs only to find that file, starts the rank by it, tells the runtime of beginning and end,
and ends as the rank did.

There are two of us. The launcher's child passes on what it is signalled; should it be killed, so is the rank.
The rank's parent is in a session of its own, out of the launcher's reach: when one rank fails, launchers kill
all at once, and nobody would be left to tell which one it was.

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

from smlaunch.runtime import mpi_words

FOLDER = "SMLAUNCH_MPI"
"""The runtime's folder on this host. On the leader it is an argument: hydra would hand its variable on."""

PLACE = "ranks.json"
BEGINS, STARTED, ENDED = ("begins", "started", "ended")
"""Of the events."""

EVENTS = "events"
OUTPUT = "output-{}"
"""In that folder: what to start; a FIFO for what happens; a FIFO for each local rank's output."""

_LAUNCHERS_OWN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_", "MPIR_", "HYDI_", "HYDRA_", "I_MPI_", "MPICH_")
_PATHS = ("PATH", "LD_LIBRARY_PATH")
"""What a launcher sets for its ranks: its own names, and where its libraries are."""

_NOT_STARTED = 127

_PASSED_ON = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)
_EXITING = 0x4
"""proc(5), flags of a process: PF_EXITING of the kernel's linux/sched.h."""


class Place(NamedTuple):
    """``env`` and ``directory``: this host's, for each of its ranks."""

    argv: Tuple[bytes, ...]
    env: Dict[bytes, bytes]
    directory: str

    def to_json(self) -> str:
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in self.env.items()}
        argv = [os.fsdecode(word) for word in self.argv]
        return json.dumps({"argv": argv, "env": env, "directory": self.directory})

    @classmethod
    def read(cls, folder: str) -> "Place":
        with open(os.path.join(folder, PLACE), encoding="ascii") as file:
            document = json.load(file)
        env = {os.fsencode(name): os.fsencode(value) for name, value in document["env"].items()}
        return cls(tuple(os.fsencode(word) for word in document["argv"]), env, document["directory"])


class Numbers(NamedTuple):
    rank: int
    local_rank: int
    world_size: int
    local_size: int


def numbers(environ: Mapping[bytes, bytes]) -> Numbers:
    """Raises ValueError where no MPI has said them."""
    return Numbers(
        _number(environ, mpi_words.RANK, None),
        _number(environ, mpi_words.LOCAL_RANK, 0),
        _number(environ, mpi_words.WORLD_SIZE, 1),
        _number(environ, mpi_words.LOCAL_WORLD_SIZE, 1),
    )


def _number(environ: Mapping[bytes, bytes], names: Sequence[str], default: Optional[int]) -> int:
    for name in names:
        value = environ.get(name.encode())
        if value is not None and value.isdigit():
            return int(value)
    if default is None:
        raise ValueError("no rank's number in {}".format(" or ".join(names)))
    return default


def environment(place: Place, own: Numbers, given: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """This host's variables, over those that came with the launcher, but for what is the launcher's to say.
    ``given``: our own environment.
    """
    env = dict(given)
    env.pop(FOLDER.encode(), None)
    for name, value in place.env.items():
        launchers = name.startswith(tuple(prefix.encode() for prefix in _LAUNCHERS_OWN))
        if name not in given or not (launchers or name in [path.encode() for path in _PATHS]):
            env[name] = value
    ranks = {
        "RANK": own.rank,
        "LOCAL_RANK": own.local_rank,
        "ROLE_RANK": own.rank,
        "WORLD_SIZE": own.world_size,
        "ROLE_WORLD_SIZE": own.world_size,
        "LOCAL_WORLD_SIZE": own.local_size,
    }
    env.update((name.encode(), str(number).encode()) for name, number in ranks.items())
    return env


def main(arguments: Sequence[str]) -> int:
    """The exit code. Ends the process by a signal where the rank was ended by one."""
    signal.signal(signal.SIGABRT, signal.SIG_IGN)  # a hang is ended by it; we are to tell of the rank's end
    folder = os.environ.get(FOLDER) or arguments[0]
    place = Place.read(folder)
    own = numbers(os.environb)
    control, control_write = os.pipe()
    status, status_write = os.pipe()
    if os.fork() == 0:
        os.close(control_write)
        os.close(status)
        try:
            _Parent(folder, place, own).run(control, status_write)
        finally:
            os._exit(0)
    os.close(control)
    os.close(status_write)
    for number in _PASSED_ON:
        signal.signal(number, lambda number, _: _pass_on(control_write, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _let_go(keep=(control_write, status))
    said = os.read(status, 64)
    code = int(said) if said else 1
    if code < 0:
        _end_by(-code)
    return code


def _pass_on(control: int, number: int) -> None:
    try:
        os.write(control, bytes([number]))
    except OSError:  # the rank has ended just now
        return


class _Parent:
    """Of the rank. ``told``: the launcher has ended it, it has not ended by itself."""

    def __init__(self, folder: str, place: Place, own: Numbers) -> None:
        self._folder = folder
        self._place = place
        self._own = own
        self._events = os.open(os.path.join(folder, EVENTS), os.O_WRONLY)
        self._told: List[int] = []

    def run(self, control: int, status: int) -> None:
        """Tells on ``status`` how the rank has ended: an exit code, or minus the signal's number."""
        os.setsid()
        wakeup, wakeup_write = os.pipe()
        os.set_blocking(wakeup_write, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, _: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._tell(BEGINS, os.getpid())
        ended = _NOT_STARTED
        pid = self._start()
        if pid is not None:
            self._tell(STARTED, pid)
            _let_go(keep=(control, status, wakeup, wakeup_write, self._events))
            ended = self._wait(pid, control, wakeup)
        self._tell(ENDED, ended)
        os.write(status, str(ended).encode())

    def _start(self) -> Optional[int]:
        place, output = self._place, self._output()
        env = environment(place, self._own, os.environb)
        os.chdir(place.directory)
        try:
            return os.posix_spawnp(
                place.argv[0],
                place.argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGABRT),
            )
        except OSError as error:
            program = os.fsdecode(place.argv[0])
            os.write(output, "{}: cannot be started: {}\n".format(program, error.strerror).encode())
            return None

    def _output(self) -> int:
        """The user may have asked the launcher for more ranks on this host than there are outputs."""
        try:
            return os.open(os.path.join(self._folder, OUTPUT.format(self._own.local_rank)), os.O_WRONLY)
        except FileNotFoundError:
            return 1

    def _wait(self, pid: int, control: int, wakeup: int) -> int:
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            ready = [descriptor for descriptor, _ in poll.poll()]
            if wakeup in ready:
                os.read(wakeup, 4096)
            elif control in ready:
                numbers = os.read(control, 64)
                if not numbers:  # the launcher has killed its child
                    poll.unregister(control)
                self._signal(pid, [*numbers] or [int(signal.SIGKILL)])

    def _signal(self, pid: int, numbers: Sequence[int]) -> None:
        """To its group, as launchers do it. Who is about to exit has not been made to by this."""
        if not _is_exiting(pid):
            self._told.extend(numbers)
        for number in numbers:
            try:
                os.killpg(pid, number)
            except (ProcessLookupError, PermissionError):
                return

    def _tell(self, what: str, value: int) -> None:
        """A line of less than PIPE_BUF bytes: no other rank's gets in between."""
        stopped = what == ENDED and bool(self._told) and value != 0 and abs(value) % 128 in self._told
        document: List[object] = [what, self._own.rank, self._own.local_rank, value, time.time(), stopped]
        try:
            os.write(self._events, json.dumps(document).encode() + b"\n")
        except OSError:
            return  # the runtime is gone, and we shall be soon


def _is_exiting(pid: int) -> bool:
    """Its connections close before it can be waited for, and that is what launchers hear."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return bool(int(fields[6]) & _EXITING)


def _let_go(keep: Sequence[int]) -> None:
    """A launcher that waits for its rank to close a connection must not wait for us."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, min(os.sysconf("SC_OPEN_MAX"), 65536))


def _end_by(number: int) -> None:
    """As the rank was ended, so that the launcher sees the same; without a second core file."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def start() -> None:
    sys.exit(main(sys.argv[1:]))
