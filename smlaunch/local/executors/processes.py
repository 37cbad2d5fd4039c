"""Hosts as process trees on this machine: the executor that needs only Python.

Each host has a supervisor (supervisor.py), which is started while the job's data is still being copied, and
a folder with ``ml`` (the contract's tree), ``tmp`` and ``hosts``. The isolation level (levels.py) decides
what else a host sees.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from smlaunch.contract.paths import ROOT_VARIABLE
from smlaunch.local.executors import loopback, process_cleanup
from smlaunch.local.executors.base import (
    Allocation,
    AllocationInfo,
    CannotAllocate,
    HostProcess,
    JobHost,
    Program,
)
from smlaunch.local.executors.host_plan import OWNER_VARIABLE, HostPlan, MountPlan
from smlaunch.local.executors.level_notes import notes_about_level
from smlaunch.local.executors.removal import remove_or_warn
from smlaunch.local.executors.supervised import SupervisedHost

_CONTRACT_ROOT = "/opt/ml"
_SHORT_LINK_FOLDER = Path(tempfile.gettempdir())
_MAX_TMPDIR_LENGTH = 50
"""Characters of a TMPDIR that leave enough for the names of sockets below it."""


class Processes:
    """The executor ``processes``."""

    name = "processes"
    runs_images = False

    def __init__(self, folder: Path, owner: str, isolation: str, mounts: bool) -> None:
        """``folder`` is the directory for the hosts' folders. ``owner`` identifies the endpoint in the
        environment of every process. ``mounts``: whether mounts without copies work at this level."""
        self.isolation = isolation
        self._folder = folder
        self._owner = owner
        self._can_mount = mounts and isolation != "plain"
        self.can_mount_anywhere = isolation != "plain"  # a bind mount works even where an overlay does not

    def allocate(
        self,
        job: str,
        host_names: Sequence[str],
        isolated_network: bool,
        image: str = "",
        raise_if_stopping: Callable[[], None] = lambda: None,
    ) -> Allocation:
        return ProcessAllocation(
            self._folder / job,
            f"{self._owner}/{job}",
            host_names,
            self.isolation,
            isolated_network,
            self._can_mount,
        )

    def remove_leftovers(self, owner: str) -> int:
        return remove_leftovers(owner)


def remove_leftovers(owner: str) -> int:
    """Kill the processes of the dead endpoint ``owner``, at any level. Return their number."""
    for link in _SHORT_LINK_FOLDER.glob(f"{_link_prefix(owner)}*"):
        link.unlink(missing_ok=True)
    return process_cleanup.kill_processes_of_owner(f"{owner}/")


class ProcessAllocation:
    """The hosts of one job. Their supervisors start at once and wait for their plans."""

    def __init__(
        self,
        folder: Path,
        owner: str,
        host_names: Sequence[str],
        level: str,
        isolated_network: bool,
        mounts: bool,
    ) -> None:
        self._folder = folder
        self._owner = owner
        self._level = level
        self._isolated_network = isolated_network and level != "plain"
        self._network = loopback.reserve(len(host_names))
        self._processes: list[SupervisedHost] = []
        self._links: list[Path] = []
        is_plain = level == "plain"
        environment = {"SMLAUNCH_PORT": str(self._network.port)}
        self.info = AllocationInfo(environment, tuple(notes_about_level(level, isolated_network)), mounts)
        self.hosts = tuple(
            JobHost(
                name=host_name,
                network_name=address if is_plain else host_name,
                address=address,
                tree=folder / host_name / "ml",
                root=str(folder / host_name / "ml") if is_plain else _CONTRACT_ROOT,
            )
            for host_name, address in zip(host_names, self._network.addresses, strict=True)
        )
        try:
            for host in self.hosts:
                for subfolder in ("ml", "tmp", "stage"):
                    (folder / host.name / subfolder).mkdir(parents=True)
                (folder / host.name / "tmp").chmod(0o1777)
                process_owner = f"{self._owner}/{host.name}/"
                self._processes.append(
                    SupervisedHost(host, partial(process_cleanup.kill_processes_of_owner, process_owner))
                )
        except OSError as error:
            self.release()
            raise CannotAllocate(f"no process can be started for a host: {error}") from error

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        """Send each host's supervisor, which runs already, its plan. The first host makes the network that
        the others join."""
        hosts_lines = "".join(
            f"{host.address}\t{host.network_name}\n"
            for host in self.hosts
            if host.network_name != host.address
        )
        visible_folders = _visible_below_tmp(programs[0].environment)
        network = ""
        for index, (process, program) in enumerate(zip(self._processes, programs, strict=True)):
            if self._isolated_network:
                # The first host makes the network, the others join it.
                network = "new" if index == 0 else str(self._processes[0].pid)
            process.start(
                self._create_plan(process.host, program, hosts_lines, visible_folders, network).encode()
            )
            if network == "new":
                process.wait_for_start()
        return list(self._processes)

    def release(self) -> None:
        """Kill all processes of the hosts, and remove their links, addresses and files."""
        for process in self._processes:
            process.kill()
        killed = [process for process in self._processes if not process.reap()]
        if killed:
            # A killed supervisor leaves processes behind: without a namespace nobody kills them, and with
            # one the kernel may still be killing them.
            process_cleanup.kill_processes_of_owner(self._owner + "/")
        self._processes = []
        for link in self._links:
            link.unlink(missing_ok=True)
        self._network.release()
        remove_or_warn(self._folder)

    def _create_plan(
        self, host: JobHost, program: Program, hosts_lines: str, visible_folders: list[str], network: str
    ) -> HostPlan:
        """Create a host's mount directories and /etc/hosts, and return the plan for its supervisor."""
        folder = host.tree.parent
        hosts_file = folder / "hosts"
        hosts_file.write_text(
            "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + hosts_lines
        )
        mounts = []
        for number, mount in enumerate(program.mounts):
            upper, work = folder / "views" / str(number), folder / "views" / f"{number}.work"
            upper.mkdir(parents=True)
            work.mkdir()
            mode = "read-only" if mount.read_only else "shared" if mount.shared else "own"
            mounts.append(MountPlan(str(mount.source), mount.target, mode, str(upper), str(work)))
        environment = {**program.environment, OWNER_VARIABLE: f"{self._owner}/{host.name}/"}
        argv = list(program.argv)
        if self._level == "plain":
            environment[ROOT_VARIABLE] = host.root
            environment["TMPDIR"] = str(self._shortened(folder / "tmp"))
            argv = [_with_root(argument, host.root) for argument in argv]
        return HostPlan(
            level=self._level,
            argv=argv,
            environment=environment,
            directory=f"{host.root}/{program.directory}",
            hostname=host.network_name,
            tree=str(host.tree),
            root=host.root,
            stage=str(folder / "stage"),
            tmp=str(folder / "tmp"),
            hosts_file=str(hosts_file),
            mounts=mounts,
            visible_folders=visible_folders,
            network=network,
        )

    def _shortened(self, folder: Path) -> Path:
        """Return the folder, or a short link to it. Programs create sockets in TMPDIR, and the path of a
        socket is limited to 107 bytes (macOS: 103)."""
        if len(str(folder)) <= _MAX_TMPDIR_LENGTH:
            return folder
        link = _SHORT_LINK_FOLDER / f"{_link_prefix(self._owner)}{secrets.token_hex(4)}"
        link.symlink_to(folder)
        self._links.append(link)
        return link


def _link_prefix(owner: str) -> str:
    """Return the beginning of a link's name. ``owner`` is an endpoint's id, perhaps followed by a job's
    name."""
    return f"sml-{owner.partition('/')[0]}-"


def _with_root(argument: str, root: str) -> str:
    """Return an argument of the command, with another root if it is a path of the contract."""
    return root + argument[len(_CONTRACT_ROOT) :] if argument.startswith(_CONTRACT_ROOT + "/") else argument


def _visible_below_tmp(environment: Mapping[str, str]) -> list[str]:
    """Return directories below /tmp that a host must see although it has its own /tmp: those with programs,
    and the home directory."""
    path_lists = [environment.get(name, "").split(os.pathsep) for name in ("PATH", "LD_LIBRARY_PATH", "HOME")]
    needed_folders = [
        sys.prefix,
        sys.base_prefix,
        *(folder for path_list in path_lists for folder in path_list),
    ]
    below_tmp = {folder for folder in needed_folders if folder.startswith("/tmp/")}  # noqa: S108
    needed_below_tmp = sorted(folder for folder in below_tmp if Path(folder).is_dir())
    return [
        folder
        for folder in needed_below_tmp
        if not any(folder.startswith(other + "/") for other in needed_below_tmp if other != folder)
    ]
