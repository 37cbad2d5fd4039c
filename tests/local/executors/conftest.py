"""Real hosts at every isolation level of this machine."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from smlaunch.local.executors import process_cleanup
from smlaunch.local.executors.executor_interface import (
    Allocation,
    DirectoryMount,
    HostExit,
    HostProcess,
    Program,
)
from smlaunch.local.executors.isolation_levels import ISOLATION_LEVELS, IsolationLevel, probe_isolation_level
from smlaunch.local.executors.process_allocation import ProcessAllocation

_PATIENCE = 20.0
_levels: dict[str, IsolationLevel] = {}


def level_or_skip(name: str) -> IsolationLevel:
    if name not in _levels:
        _levels[name] = probe_isolation_level(name)
    if not _levels[name].works:
        pytest.skip(f"isolation {name}: {_levels[name].why_not}")
    return _levels[name]


@pytest.fixture(params=ISOLATION_LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    level_or_skip(name)
    return name


class Hosts:
    """Runs shell programs on the hosts of one job and collects what they print."""

    def __init__(self, folder: Path, level: str) -> None:
        self.level = level
        self.owner = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.folder = folder / "hosts"
        self.allocations: list[Allocation] = []

    def allocate(self, job: str, host_names: Sequence[str], isolated_network: bool) -> ProcessAllocation:
        return ProcessAllocation(
            self.folder / job,
            f"{self.owner}/{job}",
            host_names,
            self.level,
            isolated_network,
            can_mount=self.level != "plain",
        )

    def start(
        self,
        *scripts: str,
        argv: Sequence[str] | None = None,
        mounts: Sequence[DirectoryMount] = (),
        isolated_network: bool = False,
        environment: dict[str, str] | None = None,
        job: str = "job",
    ) -> list[HostProcess]:
        labels = [f"algo-{number}" for number in range(1, len(scripts) + 1)]
        allocation = self.allocate(job, labels, isolated_network)
        self.allocations.append(allocation)
        for host in allocation.hosts:
            (host.opt_ml_folder / "code").mkdir()
            for mount in mounts:
                if not mount.target.startswith("/"):
                    (host.opt_ml_folder / mount.target).mkdir(parents=True)
        base = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **allocation.info.environment}
        return allocation.start(
            [
                Program(tuple(argv or ("sh", "-c", script)), {**base, **(environment or {})}, tuple(mounts))
                for script in scripts
            ]
        )

    def run(self, *scripts: str, **options: object) -> list[tuple[HostExit, str]]:
        """Run scripts on hosts until all have ended; return each host's exit and output."""
        hosts = self.start(*scripts, **options)  # type: ignore[arg-type]
        return [(wait_for_exit(host), output(host)) for host in hosts]

    def remaining_pids(self) -> list[int]:
        return process_cleanup.find_processes_of_owner(self.owner + "/")

    def release(self) -> None:
        for allocation in self.allocations:
            allocation.release()


def wait_for_exit(host: HostProcess) -> HostExit:
    deadline = time.monotonic() + _PATIENCE
    while True:
        ready, _, _ = select.select([host.events_fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, "the host did not end"
        host_exit = host.read_exit()
        if host_exit is not None:
            return host_exit


def output(host: HostProcess) -> str:
    """Return all output of a host that has ended."""
    parts = []
    while part := os.read(host.output_fd, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode()


def read_until(host: HostProcess, text: str) -> str:
    output_text = ""
    while text not in output_text:
        part = os.read(host.output_fd, 1 << 16).decode()
        assert part, f"ended after {output_text!r}"
        output_text += part
    return output_text


def eventually(condition: Callable[[], bool], patience: float = _PATIENCE) -> bool:
    """Poll a condition without an event, such as the end of a process that is no child of this one."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.fixture
def hosts(tmp_path: Path, level: str) -> Iterator[Hosts]:
    job_hosts = Hosts(tmp_path, level)
    yield job_hosts
    job_hosts.release()
    with contextlib.suppress(FileNotFoundError):
        assert list((tmp_path / "hosts").iterdir()) == []
    assert job_hosts.remaining_pids() == []
