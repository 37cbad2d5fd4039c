"""One host's part in an MPI program: a child of the runtime, and the parent of what the MPI starts there.

    every host    an agent (agent.py), by which the leader's mpirun starts its daemon there
                  the output of this host's ranks, line by line, with their numbers
                  signals, given to each rank of this host and to no launcher, which would kill
    the leader    (mpi_leader.py) waits for the others' agents, starts mpirun, and hears how each rank ends
    the others    (mpi_follower.py) tell the leader how theirs end
    at the end    every host tells what its ranks said last; the leader's report goes to all, so that the
                  same failure is told everywhere

One loop waits for everything. Connections have threads, which only put what they hear into its inbox.
"""

import json
import os
import queue
import select
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from smlaunch.runtime import mpi_rank, secret
from smlaunch.runtime.agent import Agent
from smlaunch.runtime.mpi_ranks import Ranks
from smlaunch.runtime.mpi_report import RankEnd, Report
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.signals import STOP, Signals
from smlaunch.runtime.streams import Output
from smlaunch.runtime.wire import Wire, WireError, own_address

CONFIG = "host.json"
REPORT = "report.json"
"""In the folder: what we are told, and what we leave."""

_LEFT_ALONE = 1.0
_GIVEN_UP = 6.0
"""Seconds after everything else is over in which ranks end with their launcher; in which, once killed, their
end is told.
"""


class Config(NamedTuple):
    """``mpirun``: the leader's words, None elsewhere. ``env``: what daemons and mpirun are started with.
    ``secret``: its file. ``port``: the agents'. Times in seconds.
    """

    host: str
    hosts: List[str]
    per_host: int
    port: int
    secret: str
    env: Dict[str, str]
    mpirun: Optional[List[str]]
    patience: float
    failure_grace: float

    @property
    def leader(self) -> str:
        return self.hosts[0]


class Part:
    """What both kinds of hosts do. ``report`` ends it."""

    def __init__(self, config: Config, folder: str, signals: Signals) -> None:
        self.config = config
        self.key = secret.read(config.secret)
        self.output = Output(1)
        first = config.hosts.index(config.host) * config.per_host
        self.ranks = Ranks(folder, config.host, first, config.per_host, self.output)
        self.report: Optional[Report] = None
        self.stopped_by: Optional[int] = None
        self._folder = folder
        self._signals = signals
        self._inbox: "queue.SimpleQueue[Tuple[str, str, Any]]" = queue.SimpleQueue()
        self._bell, self._ring = os.pipe()
        self._aborted = False
        self._kill_at: Optional[float] = None
        self._give_up_at: Optional[float] = None

    def run(self) -> Report:
        """Raises Unusable for what keeps it from beginning."""
        # A hang is ended by it, everywhere: we are to pass on the stacks that the ranks show upon it.
        signal.signal(signal.SIGABRT, self._abort)
        agent = self._agent()
        agent.start()
        try:
            self.begin()
            while self.report is None:
                self._turn()
        finally:
            agent.close()
            self.ranks.drain()
        return self.report

    def _agent(self) -> Agent:
        env = {os.fsencode(name): os.fsencode(value) for name, value in self.config.env.items()}
        env[mpi_rank.FOLDER.encode()] = os.fsencode(self._folder)
        address = own_address(self.config.host)
        try:
            return Agent(self.key, self.config.host, address, self.config.port, env, self.asked)
        except OSError as error:
            raise Unusable(
                "{}:{}, where the agent of this host listens, cannot be had: {}".format(
                    address or "*", self.config.port, error.strerror
                )
            ) from None

    # ---- what the two kinds differ in --------------------------------------------------------------------

    def begin(self) -> None:
        raise NotImplementedError

    def asked(self, wire: Wire, request: Dict[str, Any]) -> None:
        """In a thread of the agent's: somebody of this job wants something else than a command run. Raises
        WireError.
        """
        raise WireError("{!r} cannot be asked for here".format(request.get("do")))

    def met(self, host: str, wire: Wire) -> None:
        raise NotImplementedError

    def hear(self, host: str, message: Dict[str, Any]) -> None:
        raise NotImplementedError

    def lost(self, host: str, why: str) -> None:
        raise NotImplementedError

    def rank_ended(self, end: RankEnd) -> None:
        raise NotImplementedError

    def stop(self, number: int) -> None:
        """Every rank of this host has been told."""

    def hangs(self, host: str) -> None:
        """The runtime of a host has found its ranks to hang, and is ending them."""
        raise NotImplementedError

    def last_words(self) -> None:
        """Everything here is over, and ``ranks`` know how."""
        raise NotImplementedError

    def descriptors(self) -> List[int]:
        return []

    def act(self, ready: Set[int]) -> None:
        """Whenever the loop has turned."""

    def due(self) -> List[float]:
        """When to turn at the latest."""
        return []

    # ---- connections -------------------------------------------------------------------------------------

    def put(self, what: str, host: str, value: Any) -> None:
        """From any thread, for the loop to see to; ``what`` is met, hear or lost."""
        self._inbox.put((what, host, value))
        os.write(self._ring, b".")

    def listen(self, host: str, wire: Wire) -> None:
        """In the connection's own thread, until it ends."""
        try:
            while True:
                frame = wire.receive()
                if frame is None:
                    break
                self.put("hear", host, frame.document())
        except (WireError, ValueError) as error:
            self.put("lost", host, str(error))
            return
        self.put("lost", host, "its connection was closed")

    # ---- the loop ----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        poll = select.poll()
        watched = (self._signals.wakeup, self._bell, *self.ranks.descriptors(), *self.descriptors())
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        if self.output.waiting:
            poll.register(self.output.descriptor, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(self._milliseconds_left())}
        for number in self._signals.take():
            self.signalled(number)
        if self._aborted:
            self._aborted = False
            self.ranks.are_ended()
            self.hangs(self.config.host)
        for end in self.ranks.hear():
            self.rank_ended(end)
        if self._bell in ready:
            os.read(self._bell, 4096)
        while not self._inbox.empty():
            what, host, value = self._inbox.get()
            heard: Callable[[str, Any], None] = getattr(self, what)
            heard(host, value)
        self.ranks.pump(ready)
        self.act(ready)
        self.output.write()
        self._settle()

    def _milliseconds_left(self) -> Optional[int]:
        own = (self._kill_at, self._give_up_at)
        due = [*self.due(), *(at for at in own if at is not None)]
        return None if not due else max(0, int((min(due) - time.monotonic()) * 1000) + 1)

    def _abort(self, number: int, frame: Any) -> None:
        self._aborted = True
        os.write(self._ring, b".")

    def signalled(self, number: int) -> None:
        if number in STOP:
            if self.stopped_by is not None:
                return  # from the platform and from the leader: handlers of ranks must not run twice
            self.stopped_by = number
        self.ranks.signal(number, also_later=number in STOP)
        if number in STOP:
            self.stop(number)

    def settle(self) -> None:
        """Everything else is over: ranks that do not end with their launcher are killed. Then last_words."""
        if self._give_up_at is None:
            self._kill_at = time.monotonic() + _LEFT_ALONE
            self._give_up_at = time.monotonic() + _GIVEN_UP

    def _settle(self) -> None:
        now = time.monotonic()
        if self._give_up_at is None:
            return
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.ranks.kill()
        if self.ranks.settled or now >= self._give_up_at:
            self._kill_at = self._give_up_at = None
            self.last_words()


# ---- programs of ours ------------------------------------------------------------------------------------

_BEGIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from smlaunch.runtime.{} import start; start()"


def python_words(module: str, python: str, archive: str) -> List[str]:
    """A module of the runtime as a program, by its own Python and from the zip; its arguments follow."""
    return [python, "-I", "-S", "-c", _BEGIN.format(module), archive]


def in_thread(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def tell(wire: Wire, message: Dict[str, Any]) -> None:
    """To somebody who may be gone, which the connection's own thread tells."""
    try:
        wire.tell(message)
    except WireError:
        return


def main(signals: Signals, folder: str) -> int:
    signals.install()
    signals.hold()
    with open(os.path.join(folder, CONFIG), encoding="ascii") as file:
        config = Config(**json.load(file))
    try:
        report = _part(config, folder, signals).run()
    except Unusable as problem:
        report = Report((), None, str(problem))
    path = os.path.join(folder, REPORT)
    with open(path + ".tmp", "w", encoding="ascii") as file:
        json.dump(report.to_document(), file)
    os.replace(path + ".tmp", path)
    return 0


def _part(config: Config, folder: str, signals: Signals) -> Part:
    if config.host == config.leader:
        from smlaunch.runtime.mpi_leader import Leader

        return Leader(config, folder, signals)
    from smlaunch.runtime.mpi_follower import Follower

    return Follower(config, folder, signals)


def start() -> None:
    code = main(Signals(), sys.argv[1])
    os._exit(code)  # threads may still wait for somebody
