"""Hosts as process trees on this machine: the executor that needs nothing but Python.

Every host has its own supervisor (supervisor.py), started while the job's data is still being laid out, and
its own folder: ``ml`` (the contract's tree), ``tmp``, ``hosts``. What a host sees beyond that depends on the
isolation level (levels.py).
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
    CannotAllocate,
    HostProcess,
    Offer,
    Place,
    Program,
)
from smlaunch.local.executors.host_plan import OWNER_VARIABLE, HostPlan, ViewPlan
from smlaunch.local.executors.level_notes import notes_on
from smlaunch.local.executors.removal import remove_or_warn
from smlaunch.local.executors.supervised import SupervisedHost

_CONTRACT_ROOT = "/opt/ml"
_SHORT_LINKS = Path(tempfile.gettempdir())
_ROOM_FOR_SOCKETS = 50
"""Characters of a TMPDIR that leave enough for what programs put below it."""


class Processes:
    """``folder`` holds the trees of this endpoint's hosts; ``owner`` names the endpoint in every process."""

    name = "processes"
    runs_images = False

    def __init__(self, folder: Path, owner: str, isolation: str, views: bool) -> None:
        self.isolation = isolation
        self._folder = folder
        self._owner = owner
        self._views = views and isolation != "plain"
        self.shows_anywhere = isolation != "plain"  # a bind is had where an overlay is not

    def allocate(
        self,
        job: str,
        labels: Sequence[str],
        isolated_network: bool,
        image: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> Allocation:
        return ProcessAllocation(
            self._folder / job,
            f"{self._owner}/{job}",
            labels,
            self.isolation,
            isolated_network,
            self._views,
        )

    def recover(self, owner: str) -> int:
        return recover(owner)


def recover(owner: str) -> int:
    """Processes.recover, at any level."""
    for link in _SHORT_LINKS.glob(f"{_link_prefix(owner)}*"):
        link.unlink(missing_ok=True)
    return process_cleanup.end_marked(f"{owner}/")


class ProcessAllocation:
    """The hosts of one job. Their supervisors start at once and wait for what to run."""

    def __init__(
        self,
        folder: Path,
        owner: str,
        labels: Sequence[str],
        level: str,
        isolated_network: bool,
        views: bool,
    ) -> None:
        self._folder = folder
        self._owner = owner
        self._level = level
        self._isolated_network = isolated_network and level != "plain"
        self._network = loopback.reserve(len(labels))
        self._hosts: list[SupervisedHost] = []
        self._links: list[Path] = []
        plain = level == "plain"
        environment = {"SMLAUNCH_PORT": str(self._network.port)}
        self.offer = Offer(environment, tuple(notes_on(level, isolated_network)), views)
        self.places = tuple(
            Place(
                label=label,
                name=address if plain else label,
                address=address,
                tree=folder / label / "ml",
                root=str(folder / label / "ml") if plain else _CONTRACT_ROOT,
            )
            for label, address in zip(labels, self._network.addresses, strict=True)
        )
        try:
            for place in self.places:
                for part in ("ml", "tmp", "stage"):
                    (folder / place.label / part).mkdir(parents=True)
                (folder / place.label / "tmp").chmod(0o1777)
                mark = f"{self._owner}/{place.label}/"
                self._hosts.append(SupervisedHost(place, partial(process_cleanup.end_marked, mark)))
        except OSError as error:
            self.release()
            raise CannotAllocate(f"no process can be started for a host: {error}") from error

    def start(self, programs: Sequence[Program]) -> list[HostProcess]:
        names = "".join(
            f"{place.address}\t{place.name}\n" for place in self.places if place.name != place.address
        )
        keep = _visible_below_tmp(programs[0].environment)
        network = ""
        for index, (host, program) in enumerate(zip(self._hosts, programs, strict=True)):
            if self._isolated_network:
                # The first host makes the network, the others join it.
                network = "new" if index == 0 else str(self._hosts[0].pid)
            host.start(self._plan(host.place, program, names, keep, network).encode())
            if network == "new":
                host.wait_for_start()
        return list(self._hosts)

    def release(self) -> None:
        for host in self._hosts:
            host.kill()
        killed = [host for host in self._hosts if not host.reap()]
        if killed:
            # A supervisor that was killed could end nothing: without a namespace nobody has, and with one the
            # kernel is still at it.
            process_cleanup.end_marked(self._owner + "/")
        self._hosts = []
        for link in self._links:
            link.unlink(missing_ok=True)
        self._network.release()
        remove_or_warn(self._folder)

    def _plan(self, place: Place, program: Program, names: str, keep: list[str], network: str) -> HostPlan:
        folder = place.tree.parent
        hosts_file = folder / "hosts"
        hosts_file.write_text("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + names)
        views = []
        for number, view in enumerate(program.views):
            upper, work = folder / "views" / str(number), folder / "views" / f"{number}.work"
            upper.mkdir(parents=True)
            work.mkdir()
            mode = "read-only" if view.read_only else "shared" if view.shared else "own"
            views.append(ViewPlan(str(view.source), view.target, mode, str(upper), str(work)))
        environment = {**program.environment, OWNER_VARIABLE: f"{self._owner}/{place.label}/"}
        argv = list(program.argv)
        if self._level == "plain":
            environment[ROOT_VARIABLE] = place.root
            environment["TMPDIR"] = str(self._short(folder / "tmp"))
            argv = [_moved(word, place.root) for word in argv]
        return HostPlan(
            level=self._level,
            argv=argv,
            environment=environment,
            directory=f"{place.root}/{program.directory}",
            hostname=place.name,
            tree=str(place.tree),
            root=place.root,
            stage=str(folder / "stage"),
            tmp=str(folder / "tmp"),
            hosts_file=str(hosts_file),
            views=views,
            keep=keep,
            network=network,
        )

    def _short(self, folder: Path) -> Path:
        """A socket's path may have 107 bytes (Linux; macOS: 103), and programs make sockets in TMPDIR."""
        if len(str(folder)) <= _ROOM_FOR_SOCKETS:
            return folder
        link = _SHORT_LINKS / f"{_link_prefix(self._owner)}{secrets.token_hex(4)}"
        link.symlink_to(folder)
        self._links.append(link)
        return link


def _link_prefix(owner: str) -> str:
    """``owner`` may go on with a job's name."""
    return f"sml-{owner.partition('/')[0]}-"


def _moved(word: str, root: str) -> str:
    """A word that names a place of the contract, where its tree lies elsewhere."""
    return root + word[len(_CONTRACT_ROOT) :] if word.startswith(_CONTRACT_ROOT + "/") else word


def _visible_below_tmp(environment: Mapping[str, str]) -> list[str]:
    """Directories below /tmp that a host sees although its /tmp is its own: where programs come from, and the
    home directory, as it would elsewhere."""
    lists = [environment.get(name, "").split(os.pathsep) for name in ("PATH", "LD_LIBRARY_PATH", "HOME")]
    wanted = [sys.prefix, sys.base_prefix, *(folder for some in lists for folder in some)]
    below = sorted({folder for folder in wanted if folder.startswith("/tmp/") and Path(folder).is_dir()})  # noqa: S108
    return [
        folder
        for folder in below
        if not any(folder.startswith(other + "/") for other in below if other != folder)
    ]
