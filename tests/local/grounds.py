"""An endpoint in a process of its own, at a level, as the user that level is for; and what it left behind.

Level full runs as root. ``user`` and ``plain`` run as an ordinary user, also when the tests are root's.
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
from smlaunch.local.executors import sweep
from smlaunch.local.executors.host_plan import OWNER_VARIABLE
from smlaunch.local.state_dir import StateDir
from tests.conftest import IS_ROOT, ROOT
from tests.local import ordinary_user
from tests.local.executors.conftest import eventually, level_or_skip

QUICK = {"close_grace_seconds": 0.3, "stop_grace_seconds": 0.5, "failed_peer_grace_seconds": 0.3}


@dataclass(frozen=True)
class Seen:
    """A process of a job. ``role`` is supervisor, first (pid 1 of its host) or below (a rank, a daemon);
    ``label`` is its host's."""

    pid: int
    role: str
    label: str
    variables: Mapping[str, str]


class Grounds:
    """A home, and the endpoints that are started there one after the other."""

    def __init__(self, level: str, settings: dict[str, Any] | None = None) -> None:
        self.level = level
        self._settings = json.dumps({**QUICK, **(settings or {})})
        self._folder = Path(tempfile.mkdtemp(prefix="sml-test-"))
        self.home = self._folder / "home"
        self._prefix: list[str] = []
        if level != "full" and IS_ROOT:
            self._prefix = ordinary_user.prefix()
            os.chown(self._folder, ordinary_user.UID, ordinary_user.UID)
        self._embedded: subprocess.Popen[str] | None = None
        self._pid: int | None = None
        self.killed = False
        """Whether an endpoint was: then it left files, which the next one has to remove."""
        self.supervisors_killed = False
        """Together with it: at level plain the next one has to end processes as well."""
        self.info: EndpointInfo
        self._owners: set[str] = set()
        self._mounts = _mounts()

    def command(self, *words: str) -> list[str]:
        """``words`` as the user whose endpoint this is."""
        return [*self._prefix, *words]

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
        self.learn_owners()
        return info

    def learn_owners(self) -> None:
        """Of endpoints that were not started here, such as one embedded in a command."""
        self._owners |= {lock.stem for lock in (self.home / "owners").glob("*.lock")}

    def kill(self, *others: int) -> None:
        """SIGKILL to the endpoint and others; returns when it is gone."""
        self.killed = True
        assert self._pid is not None
        try:
            handle = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._embedded, self._pid = None, None  # somebody else has killed it
            return
        for pid in (*others, self._pid):
            os.kill(pid, signal.SIGKILL)
        self._gone(handle)

    def close(self) -> None:
        """The orderly end."""
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
                self._pid = None  # it was killed by others
                return
            os.kill(self._pid, signal.SIGTERM)
            self._gone(handle)

    def _gone(self, handle: int) -> None:
        if self._embedded is not None:
            self._embedded.communicate(timeout=30)
        assert select.select([handle], [], [], 30)[0], "the endpoint did not end"
        os.close(handle)
        self._embedded, self._pid = None, None

    def processes(self) -> list[Seen]:
        """All of all jobs' hosts, and their supervisors."""
        return processes_of(self._owners)

    def nothing_runs(self) -> bool:
        """Neither a host's process nor a supervisor, of any endpoint there was."""
        marked = [pid for owner in self._owners for pid in sweep.marked(owner + "/")]
        # A supervisor's environment is empty, what it has open is not.
        return not marked and not [pid for pid in _with_files_below(self.home) if pid != self._pid]

    def remains(self) -> list[str]:
        """What an orderly end, or the next endpoint, should not have left."""
        state = StateDir(self.home, self._folder.stat().st_uid)
        found = [str(path) for folder in (state.hosts, state.owners) for path in folder.iterdir()]
        for owner in self._owners:
            found += [str(path) for path in Path(tempfile.gettempdir()).glob(f"sml-{owner}*")]
        # A network namespace that no process lives in stays only where it is mounted.
        found += [line for line in _mounts() - self._mounts if str(self.home) in line or " /opt" in line]
        return found + [f"pid {seen.pid}" for seen in self.processes()]

    def remove(self) -> None:
        shutil.rmtree(self._folder)


def processes_of(owners: Iterable[str]) -> list[Seen]:
    """Of all jobs of these endpoints: supervisors, then the hosts' own, each in the order of their pids."""
    found = {pid: _variables(pid) for owner in owners for pid in sorted(sweep.marked(owner + "/"))}
    found = {pid: variables for pid, variables in found.items() if variables}
    labels = {pid: variables[OWNER_VARIABLE].split("/")[2] for pid, variables in found.items()}
    parents = {pid: _parent(pid) for pid in found}
    supervisors: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        if parent not in found and b"host.py" in _command(parent):
            supervisors.setdefault(parent, []).append(pid)
    # Level plain gives a supervisor its host's orphans too: the first process is the oldest.
    first = {min(children) for children in supervisors.values()}
    seen = [Seen(pid, "supervisor", labels[min(children)], {}) for pid, children in supervisors.items()]
    return seen + [
        Seen(pid, "first" if pid in first else "below", labels[pid], variables)
        for pid, variables in found.items()
    ]


def _variables(pid: int) -> dict[str, str]:
    """Empty for a process that has ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs if name}


@contextmanager
def grounds(level: str, **settings: Any) -> Iterator[Grounds]:
    """Afterwards nothing runs and nothing is left."""
    level_or_skip(level)
    place = Grounds(level, settings)
    try:
        yield place
        place.close()
        if not (level == "plain" and place.supervisors_killed):
            assert eventually(place.nothing_runs), place.processes()
        if place.killed:
            place.start()
            assert eventually(place.nothing_runs), place.processes()
            hosts = place.home / "hosts"
            assert eventually(lambda: not list(hosts.iterdir())), sorted(hosts.rglob("*"))
            place.close()
        assert place.remains() == []
    finally:
        if place._pid is not None:
            place.kill()
        place.remove()


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
    """Processes that have a file below ``folder`` open."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            links = [os.readlink(link) for link in (entry / "fd").iterdir()]
            if any(link.startswith(f"{folder}/") for link in links):
                yield int(entry.name)
