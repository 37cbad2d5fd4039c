"""A host that runs `true`: whether an isolation level works on this machine."""

from __future__ import annotations

import fcntl
import os
import select
import tempfile
from pathlib import Path

from smlaunch.local.executors.executor_interface import DirectoryMount, HostExit, HostProcess, Program
from smlaunch.local.executors.process_allocation import ProcessAllocation
from smlaunch.local.executors.tree_removal import remove_tree
from smlaunch.local.state_dir import PROBE_PREFIX

_TRIAL_SECONDS = 10


def run_trial_host(level_name: str, scratch_folder: Path | None, with_overlay: bool) -> HostExit:
    """Start a host that runs `true` at an isolation level, and return how it ended. ``with_overlay``: the
    host has an overlay mount."""
    trial_folder = Path(tempfile.mkdtemp(prefix=PROBE_PREFIX, dir=scratch_folder))
    # A locked folder is in use: other endpoints remove only those of dead processes.
    lock_fd = os.open(trial_folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    try:
        (trial_folder / "data").mkdir()
        allocation = ProcessAllocation(
            hosts_folder=trial_folder / "job",
            process_owner="probe",
            host_names=["algo-1"],
            isolation_level=level_name,
            isolated_network=False,
            can_mount=with_overlay,
        )
        try:
            opt_ml_folder = allocation.hosts[0].opt_ml_folder
            (opt_ml_folder / "code").mkdir()  # the program's working directory
            (opt_ml_folder / "data").mkdir()  # the target of the mount
            mounts = (DirectoryMount(trial_folder / "data", target="data"),) if with_overlay else ()
            search_path = os.environ.get("PATH", os.defpath)
            program = Program(argv=("true",), environment={"PATH": search_path}, mounts=mounts)
            (host_process,) = allocation.start([program])
            return _wait_for_exit(host_process)
        finally:
            allocation.release()
    finally:
        remove_tree(trial_folder)
        os.close(lock_fd)


def _wait_for_exit(host_process: HostProcess) -> HostExit:
    """Return how a host ended, or that it did not react in time."""
    poll = select.poll()
    poll.register(host_process.events_fd, select.POLLIN)
    while poll.poll(_TRIAL_SECONDS * 1000):
        host_exit = host_process.read_exit()
        if host_exit is not None:
            return host_exit
    return HostExit(1, "lost", f"a host did not start within {_TRIAL_SECONDS} s")
