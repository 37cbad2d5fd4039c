"""Programs beside the ranks: what they are started with, and when one is ready.

A service is started before the ranks and told to end after them. A service on the leader is waited for by all
hosts: what others start may need it.
"""

import _thread
import os
import socket
import time
from typing import List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.protocol.launch_spec import ALL, LEADER, LaunchSpec
from smlaunch.runtime.commands import Command, Host, argv_of, base_environment, environment_of, text_of
from smlaunch.runtime.problems import Unusable

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5


class Step(NamedTuple):
    """One service of job.json as this host sees it. ``command``: None where it runs on other hosts only.
    ``ready``: the host and port that must accept a connection before the next step; ``patience``: seconds.
    """

    name: str
    command: Optional[Command]
    ready: Optional[Tuple[str, int]]
    patience: float

    def door(self) -> "Door":
        return Door(self)


def steps(spec: LaunchSpec, host: Host, environ: Mapping[str, str]) -> List[Step]:
    """``environ`` is what every program of the user starts from. Raises Unusable."""
    values = {name: text for name, text in host.values(0).items() if name not in ("rank", "local_rank")}
    shared = base_environment(host, environ)
    leads = host.cluster.current == host.cluster.leader
    found = []
    for index, service in enumerate(spec.services):
        where = "services[{}]".format(index)
        here = service.on == ALL or (service.on == LEADER) == leads
        command = None
        if here:
            command = Command(
                argv=argv_of(service.argv, values, host.hyperparameters, where),
                env=environment_of(shared, service.env, values, where),
                prefix="[{}] ".format(service.name).encode("utf-8", "replace"),
                service=service.name,
            )
        ready = None
        if service.ready is not None and (here or service.on == LEADER):
            ready = _endpoint(text_of(service.ready, values, where + ".ready"), where)
        if here or ready is not None:
            found.append(Step(service.name, command, ready, service.ready_seconds))
    return found


def _endpoint(text: str, where: str) -> Tuple[str, int]:
    name, _, port = text.rpartition(":")
    if not name or not port.isdigit():
        raise Unusable("job.json: {}.ready: host:port is needed, not {!r}".format(where, text))
    return name, int(port)


class Door:
    """Knocks until somebody opens. ``descriptor`` gets readable when that has happened.

    Nothing tells when a port begins to be listened at, so it is asked again and again, less and less often;
    in a thread of its own, since a look-up of a name cannot be interrupted. ``_thread`` and not
    ``threading``: nobody ever joins this thread, and it imports nothing.
    """

    def __init__(self, step: Step) -> None:
        assert step.ready is not None
        self.step = step
        self.gives_up = time.monotonic() + step.patience
        self._address = step.ready
        self._last = ""
        self._closed = False
        self.descriptor, self._write_end = os.pipe()
        self._ours = _thread.allocate_lock()
        _thread.start_new_thread(self._knock, ())

    @property
    def problem(self) -> str:
        name, port = self._address
        return "was not ready within {:g} s: {}:{} accepts no connection ({})".format(
            self.step.patience, name, port, self._last or "no answer"
        )

    def close(self) -> None:
        with self._ours:
            self._closed = True
            os.close(self.descriptor)
            os.close(self._write_end)

    def _knock(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed:
            left = max(_LONGEST_PAUSE, self.gives_up - time.monotonic())
            try:
                socket.create_connection(self._address, left).close()
            except (OSError, UnicodeError) as error:
                self._last = str(error)
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            with self._ours:
                if not self._closed:
                    os.write(self._write_end, b".")
            return
