"""The hosts of a job as process trees on this machine.

Each host has a supervisor (host_supervisor.py), which is started while the job's data is still being
copied, and a folder with ``ml`` (the contract's tree), ``tmp`` and ``hosts``. The isolation level
(isolation_levels.py) decides what else a host sees.
"""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from smlaunch.local.executors import loopback, process_cleanup
from smlaunch.local.executors.executor_interface import (
    AllocationInfo,
    CannotAllocate,
    DirectoryMount,
    HostProcess,
    JobHost,
    Program,
    relocate_opt_ml,
)
from smlaunch.local.executors.host_plan import OWNER_VARIABLE, HostPlan, MountPlan
from smlaunch.local.executors.isolation_level_notes import notes_about_level
from smlaunch.local.executors.supervised_host import SupervisedHost
from smlaunch.local.executors.tree_removal import remove_or_warn

_OPT_ML = "/opt/ml"
_SHORT_LINK_FOLDER = Path(tempfile.gettempdir())
_MAX_TMPDIR_LENGTH = 50
"""Characters of a TMPDIR that leave enough for the names of sockets below it."""


def remove_leftovers(endpoint_id: str) -> None:
    """Kill the processes of the dead endpoint, at any level."""
    for link in _SHORT_LINK_FOLDER.glob(f"{_link_prefix(endpoint_id)}*"):
        link.unlink(missing_ok=True)
    process_cleanup.kill_processes_of_owner(f"{endpoint_id}/")


class ProcessAllocation:
    """The hosts of one job. Their supervisors start at once and wait for their plans."""

    def __init__(
        self,
        hosts_folder: Path,
        process_owner: str,
        host_names: Sequence[str],
        isolation_level: str,
        isolated_network: bool,
        can_mount: bool,
    ) -> None:
        """Reserve addresses for the hosts of one job, create their folders below ``hosts_folder``, and start
        their supervisors, which wait for ``start``. ``process_owner`` is ENDPOINT_ID/JOB, the
        beginning of a variable (SMLAUNCH_OWNER) in the environment of the job's processes, which finds
        them. ``isolation_level`` is full, user or plain; at plain,
        hosts have neither names nor a /opt/ml of their own. ``can_mount``: whether data can be mounted on a
        host instead of copied. Raises CannotAllocate."""
        is_plain = isolation_level == "plain"
        self._hosts_folder = hosts_folder
        self._process_owner = process_owner
        self._isolation_level = isolation_level
        self._isolated_network = isolated_network and not is_plain
        # Addresses, and a block of ports for SMLAUNCH_PORT.
        self._reservation = loopback.reserve_addresses(len(host_names))
        self._supervised_hosts: list[SupervisedHost] = []
        self._short_links: list[Path] = []  # to folders whose own paths are too long for sockets
        environment = {"SMLAUNCH_PORT": str(self._reservation.port)}
        # What the job needs to know beside the hosts: variables for its programs, and notes for its log.
        self.info = AllocationInfo(
            environment=environment,
            notes=tuple(notes_about_level(isolation_level, isolated_network)),
            can_mount=can_mount,
        )
        self.hosts = tuple(
            JobHost(
                name=host_name,
                network_name=address if is_plain else host_name,
                address=address,
                opt_ml_folder=hosts_folder / host_name / "ml",
                ml_path_on_host=str(hosts_folder / host_name / "ml") if is_plain else _OPT_ML,
            )
            for host_name, address in zip(host_names, self._reservation.addresses, strict=True)
        )
        try:
            for host in self.hosts:
                self._supervised_hosts.append(self._start_supervisor(host))
        except OSError as error:
            self.release()
            raise CannotAllocate(f"no process can be started for a host: {error}") from error

    def _start_supervisor(self, host: JobHost) -> SupervisedHost:
        """Create a host's folders and start its supervisor. Raises OSError."""
        host_folder = self._hosts_folder / host.name
        for subfolder in ("ml", "tmp", "stage"):
            (host_folder / subfolder).mkdir(parents=True)
        (host_folder / "tmp").chmod(0o1777)  # as /tmp has it
        host_owner = f"{self._process_owner}/{host.name}/"
        return SupervisedHost(host, partial(process_cleanup.kill_processes_of_owner, host_owner))

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        """Start one program per host: send each host's supervisor, which runs already, its plan (a HostPlan:
        what the host runs and sees). Return the hosts' processes."""
        etc_hosts_lines = "".join(
            f"{host.address}\t{host.network_name}\n"
            for host in self.hosts
            if host.network_name != host.address  # isolation level plain: hosts have no names
        )
        # Hosts have a /tmp of their own, where these (with Python, say) must be visible nevertheless. They
        # come from PATH and the like, which the hosts of a job have in common.
        visible_folders = _find_needed_folders_below_tmp(programs[0].environment)
        network = ""  # the machine's network
        for host_index, (supervised_host, program) in enumerate(
            zip(self._supervised_hosts, programs, strict=True)
        ):
            if self._isolated_network:
                # The first host makes the network; the others join that of its supervisor.
                network = "new" if host_index == 0 else str(self._supervised_hosts[0].pid)
            host_plan = self._prepare_host(
                supervised_host.host, program, etc_hosts_lines, visible_folders, network
            )
            supervised_host.send_plan(host_plan.encode())
            if network == "new":
                supervised_host.wait_for_start()  # the others cannot join the network before
        return list(self._supervised_hosts)

    def release(self) -> None:
        """Kill all processes of the hosts, and remove their links, addresses and files."""
        for supervised_host in self._supervised_hosts:
            supervised_host.kill()
        # For all of them, whatever the first returns: it also closes the supervisor's pipes.
        have_exited = [supervised_host.wait_and_close() for supervised_host in self._supervised_hosts]
        if not all(have_exited):
            # A supervisor was killed and left processes behind: without a namespace nobody kills them, and
            # with one the kernel may still be killing them.
            process_cleanup.kill_processes_of_owner(self._process_owner + "/")
        self._supervised_hosts = []
        for link in self._short_links:
            link.unlink(missing_ok=True)
        self._reservation.release()
        remove_or_warn(self._hosts_folder)  # logs what cannot be removed; the next endpoint tries again

    def _prepare_host(
        self, host: JobHost, program: Program, etc_hosts_lines: str, visible_folders: list[str], network: str
    ) -> HostPlan:
        """Create a host's mount directories and /etc/hosts, and return the plan for its supervisor.
        ``network``: see HostPlan.network."""
        folder = host.opt_ml_folder.parent
        hosts_file = folder / "hosts"
        hosts_file.write_text(
            "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + etc_hosts_lines
        )
        if self._isolation_level == "plain":
            program = relocate_opt_ml(program, host.ml_path_on_host)
        environment = {**program.environment, OWNER_VARIABLE: f"{self._process_owner}/{host.name}/"}
        if self._isolation_level == "plain":
            environment["TMPDIR"] = str(self._short_path_to(folder / "tmp"))
        return HostPlan(
            isolation_level=self._isolation_level,
            argv=list(program.argv),
            environment=environment,
            working_directory=f"{host.ml_path_on_host}/{program.directory}",
            hostname=host.network_name,
            ml_folder=str(host.opt_ml_folder),
            ml_path_on_host=host.ml_path_on_host,
            staging_folder=str(folder / "stage"),
            tmp_folder=str(folder / "tmp"),
            hosts_file=str(hosts_file),
            mounts=[
                _plan_mount(mount, folder / "views" / str(mount_number))
                for mount_number, mount in enumerate(program.mounts)
            ],
            visible_folders=visible_folders,
            network=network,
        )

    def _short_path_to(self, folder: Path) -> Path:
        """Return the folder, or a short link to it. Programs create sockets in TMPDIR, and the path of a
        socket is limited to 107 bytes (macOS: 103)."""
        if len(str(folder)) <= _MAX_TMPDIR_LENGTH:
            return folder
        link = _SHORT_LINK_FOLDER / f"{_link_prefix(self._process_owner)}{secrets.token_hex(4)}"
        link.symlink_to(folder)
        self._short_links.append(link)
        return link


def _link_prefix(process_owner: str) -> str:
    """Return the beginning of a link's name. ``process_owner``: ENDPOINT_ID or ENDPOINT_ID/JOB."""
    return f"sml-{process_owner.partition('/')[0]}-"


def _plan_mount(mount: DirectoryMount, upper_folder: Path) -> MountPlan:
    """Return the plan of a mount, and create the directories that an overlay would need: ``upper_folder`` for
    what the host writes, and another for the overlay's own use."""
    work_folder = upper_folder.with_name(f"{upper_folder.name}.work")
    upper_folder.mkdir(parents=True)
    work_folder.mkdir()
    mode = "overlay"
    if mount.read_only:
        mode = "read-only"
    elif mount.shared:
        mode = "shared"
    return MountPlan(str(mount.source), mount.target, mode, str(upper_folder), str(work_folder))


def _find_needed_folders_below_tmp(environment: Mapping[str, str]) -> list[str]:
    """Return directories below /tmp that a host must see although it has its own /tmp: those with programs,
    and the home directory. None of them is inside another."""
    path_lists = [environment.get(name, "").split(os.pathsep) for name in ("PATH", "LD_LIBRARY_PATH", "HOME")]
    needed_folders = {sys.prefix, sys.base_prefix, *itertools.chain.from_iterable(path_lists)}
    folders_below_tmp = [
        folder
        for folder in sorted(needed_folders)
        if folder.startswith("/tmp/") and Path(folder).is_dir()  # noqa: S108
    ]
    return [
        folder
        for folder in folders_below_tmp
        if not any(folder.startswith(f"{other_folder}/") for other_folder in folders_below_tmp)
    ]
