"""Services beside the ranks: their commands, and when each is ready.

A service is started before the ranks and stopped after them. All hosts wait for a service on the leader,
since other services may need it.
"""

import _thread
import os
import socket
import time
from typing import List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.contract.launch_spec import ALL, LEADER, LaunchSpec
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.process_commands import (
    HostContext,
    ProcessCommand,
    base_environment,
    resolve_argument,
    resolve_argv,
    resolve_environment,
)

_FIRST_PAUSE_SECONDS = 0.02
_MAX_PAUSE_SECONDS = 0.5


class ServiceStart(NamedTuple):
    """One service of job.json, as this host sees it."""

    name: str
    command: Optional[ProcessCommand]
    """None where the service runs on other hosts only."""

    ready_address: Optional[Tuple[str, int]]
    """Host and port that must accept a connection before the next service starts."""

    timeout_seconds: float

    def start_probe(self) -> "ReadinessProbe":
        return ReadinessProbe(self)


def plan_services(spec: LaunchSpec, host: HostContext, environ: Mapping[str, str]) -> List[ServiceStart]:
    """Return the services (programs beside the ranks) that this host starts or waits for, in their order in
    job.json. ``environ``: the environment that every program of the user inherits. Raises SetupError.
    """
    # The values of the references in job.json, such as ``leader``
    reference_values = host.reference_values_of_host()
    base_env = base_environment(host, environ)
    is_leader = host.cluster.current_host == host.cluster.leader
    service_starts: List[ServiceStart] = []
    for index, service in enumerate(spec.services):
        json_path = "services[{}]".format(index)  # for messages
        # ``runs_on``: all hosts, the leader, or all others
        runs_on_this_host = service.runs_on == ALL or (service.runs_on == LEADER) == is_leader
        if not runs_on_this_host and (service.runs_on != LEADER or service.ready_address is None):
            continue  # every host waits for a service of the leader, if there is an address to probe
        command = None
        if runs_on_this_host:
            command = ProcessCommand(
                argv=resolve_argv(service.argv, reference_values, host.hyperparameters, json_path),
                env=resolve_environment(base_env, service.env, reference_values, json_path),
                prefix="[{}] ".format(service.name).encode("utf-8", "replace"),
                service=service.name,
            )
        ready_address = None  # host and port that accept a connection when the service is ready
        if service.ready_address is not None:
            ready_address = _parse_ready_address(
                resolve_argument(service.ready_address, reference_values, json_path + ".ready"), json_path
            )
        service_starts.append(
            ServiceStart(
                name=service.name,
                command=command,
                ready_address=ready_address,
                timeout_seconds=service.ready_seconds,
            )
        )
    return service_starts


def _parse_ready_address(text: str, json_path: str) -> Tuple[str, int]:
    name, _, port = text.rpartition(":")
    if not name or not port.isdigit():
        raise SetupError("job.json: {}.ready: host:port is needed, not {!r}".format(json_path, text))
    return name, int(port)


class ReadinessProbe:
    """Connect to the service's address until it accepts. ``ready_fd`` then becomes readable.

    There is no event for a port that opens, so this retries, at growing intervals; in a thread, since a name
    look-up cannot be interrupted. Uses ``_thread``, not ``threading``: the thread is never joined, and
    ``_thread`` imports nothing.
    """

    def __init__(self, service: ServiceStart) -> None:
        assert service.ready_address is not None
        self.service = service
        self.deadline = time.monotonic() + service.timeout_seconds
        self._address = service.ready_address
        self._last_error = ""
        self._is_closed = False
        self.ready_fd, self._ready_write_fd = os.pipe()
        self._lock = _thread.allocate_lock()
        _thread.start_new_thread(self._connect_until_ready, ())

    @property
    def problem(self) -> str:
        """Why the service is not ready, for a message."""
        name, port = self._address
        return "was not ready within {:g} s: {}:{} accepts no connection ({})".format(
            self.service.timeout_seconds, name, port, self._last_error or "no answer"
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            os.close(self.ready_fd)
            os.close(self._ready_write_fd)

    def _connect_until_ready(self) -> None:
        """Try to connect to the service's address until it accepts, then make ``ready_fd`` readable, for
        which the supervisor waits. Runs in a thread, until the probe is closed.
        """
        pause_seconds = _FIRST_PAUSE_SECONDS
        while not self._is_closed:
            # Of one attempt; not less than 0.5 s, even after the deadline, which the supervisor watches.
            timeout_seconds = max(_MAX_PAUSE_SECONDS, self.deadline - time.monotonic())
            try:
                socket.create_connection(self._address, timeout_seconds).close()
            except (OSError, UnicodeError) as error:
                self._last_error = str(error)
                time.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 2, _MAX_PAUSE_SECONDS)
                continue
            with self._lock:  # ``close`` closes the pipe
                if not self._is_closed:
                    os.write(self._ready_write_fd, b".")  # any byte makes it readable
            return
