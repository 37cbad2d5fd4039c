"""Test harness: an endpoint in its own process at an isolation level, its jobs' processes, and its leftovers.

Level full runs as root; ``user`` and ``plain`` run as an ordinary user, also when the tests run as root.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.executors import process_cleanup
from smlaunch.local.executors.host_plan import OWNER_VARIABLE
from smlaunch.local.state_dir import StateDir
from tests.conftest import IS_ROOT, ROOT
from tests.local import ordinary_user
from tests.local.executors.conftest import eventually, level_or_skip

SHORT_GRACE = {"close_grace_seconds": 0.3, "stop_grace_seconds": 0.5, "failed_peer_grace_seconds": 0.3}


@dataclass(frozen=True)
class JobProcess:
    """A process of a job. ``role`` is supervisor, first (pid 1 of its host) or below (a rank, a daemon);
    ``host_name`` is the name of its host."""

    pid: int
    role: str
    host_name: str
    variables: Mapping[str, str]


class EndpointHarness:
    """A state directory, and the endpoints that are started in it one after the other."""

    def __init__(self, level: str, settings: dict[str, Any] | None = None) -> None:
        self.level = level
        self._settings = json.dumps({**SHORT_GRACE, **(settings or {})})
        self._folder = Path(tempfile.mkdtemp(prefix="sml-test-"))
        self.home = self._folder / "home"
        self._prefix: list[str] = []
        if level != "full" and IS_ROOT:
            self._prefix = ordinary_user.prefix()
            os.chown(self._folder, ordinary_user.UID, ordinary_user.UID)
        self._embedded: subprocess.Popen[str] | None = None
        self._pid: int | None = None
        self.killed = False
        """Whether an endpoint was killed; the next one then has to remove its files."""
        self.supervisors_killed = False
        """Whether supervisors were killed too; at level plain the next endpoint then has to end processes."""
        self.info: EndpointInfo
        self._owners: set[str] = set()
        self._mounts = _mounts()

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs ``arguments`` as the endpoint's user."""
        return [*self._prefix, *arguments]

    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PYTHONPATH": str(ROOT),
            "SMLAUNCH_HOME": str(self.home),
        }

    def start(self, kind: str = "embedded") -> EndpointInfo:
        arguments = ["-m", "tests.local.endpoint_process", str(self.home), self.level, kind, self._settings]
        process = subprocess.Popen(
            self.command(sys.executable, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )
        assert process.stdout is not None
        info = EndpointInfo.from_json(process.stdout.readline().encode())
        self.info, self._pid = info, info.pid
        if kind == "embedded":
            self._embedded = process
        else:
            process.communicate()
        self.collect_owners()
        return info

    def collect_owners(self) -> None:
        """Record endpoints that were started elsewhere, such as one embedded in a command."""
        self._owners |= {lock.stem for lock in (self.home / "owners").glob("*.lock")}

    def kill(self, *others: int) -> None:
        """Send SIGKILL to the endpoint and to other processes; return when the endpoint has exited."""
        self.killed = True
        assert self._pid is not None
        try:
            handle = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._embedded, self._pid = None, None  # a test has killed it
            return
        for pid in (*others, self._pid):
            os.kill(pid, signal.SIGKILL)
        self._wait_for_exit(handle)

    def close(self) -> None:
        """Stop the endpoint."""
        if self._pid is None:
            return
        if self._embedded is not None:
            self._embedded.communicate(timeout=30)
            assert self._embedded.returncode == 0
            self._embedded, self._pid = None, None
        else:
            try:
                handle = os.pidfd_open(self._pid)
            except ProcessLookupError:
                self._pid = None  # a test has killed it
                return
            os.kill(self._pid, signal.SIGTERM)
            self._wait_for_exit(handle)

    def _wait_for_exit(self, handle: int) -> None:
        if self._embedded is not None:
            self._embedded.communicate(timeout=30)
        assert select.select([handle], [], [], 30)[0], "the endpoint did not end"
        os.close(handle)
        self._embedded, self._pid = None, None

    def processes(self) -> list[JobProcess]:
        """Return all processes of all jobs, and their supervisors."""
        return processes_of(self._owners)

    def has_no_processes(self) -> bool:
        """Whether no process of a host and no supervisor runs, of any endpoint."""
        marked = [
            pid for owner in self._owners for pid in process_cleanup.find_processes_of_owner(owner + "/")
        ]
        # A supervisor's environment is empty, what it has open is not.
        return not marked and not [pid for pid in _with_files_below(self.home) if pid != self._pid]

    def leftovers(self) -> list[str]:
        """List files, mounts and processes that a stop, or the next endpoint, should have removed."""
        state = StateDir(self.home, self._folder.stat().st_uid)
        remaining = [str(path) for folder in (state.hosts_dir, state.owners_dir) for path in folder.iterdir()]
        for owner in self._owners:
            remaining += [str(path) for path in Path(tempfile.gettempdir()).glob(f"sml-{owner}*")]
        # A network namespace that no process lives in stays only where it is mounted.
        remaining += [line for line in _mounts() - self._mounts if str(self.home) in line or " /opt" in line]
        return remaining + [f"pid {process.pid}" for process in self.processes()]

    def remove(self) -> None:
        shutil.rmtree(self._folder)


def processes_of(owners: Iterable[str]) -> list[JobProcess]:
    """Return processes of all jobs of these endpoints: supervisors, then hosts', each sorted by pid."""
    variables_by_pid = {
        pid: _variables(pid)
        for owner in owners
        for pid in sorted(process_cleanup.find_processes_of_owner(owner + "/"))
    }
    variables_by_pid = {pid: variables for pid, variables in variables_by_pid.items() if variables}
    host_name_by_pid = {
        pid: variables[OWNER_VARIABLE].split("/")[2] for pid, variables in variables_by_pid.items()
    }
    parents = {pid: _parent(pid) for pid in variables_by_pid}
    supervisors: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        if parent not in variables_by_pid and b"supervisor_script.py" in _command(parent):
            supervisors.setdefault(parent, []).append(pid)
    # Level plain gives a supervisor its host's orphans too: the first process is the oldest.
    first = {min(children) for children in supervisors.values()}
    supervisor_processes = [
        JobProcess(pid, "supervisor", host_name_by_pid[min(children)], {})
        for pid, children in supervisors.items()
    ]
    return supervisor_processes + [
        JobProcess(pid, "first" if pid in first else "below", host_name_by_pid[pid], variables)
        for pid, variables in variables_by_pid.items()
    ]


def _variables(pid: int) -> dict[str, str]:
    """Return a process's environment; empty for one that has exited."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs if name}


@contextmanager
def endpoint_harness(level: str, **settings: Any) -> Iterator[EndpointHarness]:
    """Context with a harness; checks at its end that no process runs and no file is left."""
    level_or_skip(level)
    harness = EndpointHarness(level, settings)
    try:
        yield harness
        harness.close()
        if not (level == "plain" and harness.supervisors_killed):
            assert eventually(harness.has_no_processes), harness.processes()
        if harness.killed:
            harness.start()
            assert eventually(harness.has_no_processes), harness.processes()
            hosts = harness.home / "hosts"
            assert eventually(lambda: not list(hosts.iterdir())), sorted(hosts.rglob("*"))
            harness.close()
        assert harness.leftovers() == []
    finally:
        if harness._pid is not None:
            harness.kill()
        harness.remove()


def _mounts() -> set[str]:
    return set(Path("/proc/self/mounts").read_text().splitlines())


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _with_files_below(folder: Path) -> Iterator[int]:
    """Yield processes that have a file below ``folder`` open."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            links = [os.readlink(link) for link in (entry / "fd").iterdir()]
            if any(link.startswith(f"{folder}/") for link in links):
                yield int(entry.name)
