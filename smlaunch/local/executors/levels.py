"""The isolation levels of ``processes``, what each provides, and which of them work here.

    level   needs                        /opt/ml   names   own /tmp   own processes   own network
    full    root                         yes       algo-N  yes        yes             on request
    user    unprivileged namespaces      yes       algo-N  yes        yes             on request
    plain   nothing                      no        no      by TMPDIR  supervised      no

``full`` and ``user`` look the same from inside; the program is root in both. At ``plain`` the contract's
tree is below another root, which SMLAUNCH_ML_ROOT names, and the hosts' names are their loopback addresses.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from smlaunch.errors import EndpointError
from smlaunch.local.executors.base import DirectoryMount, HostExit, Program
from smlaunch.local.executors.processes import ProcessAllocation
from smlaunch.local.executors.removal import remove_tree
from smlaunch.local.state_dir import PROBE_PREFIX, write_private_file

LEVELS = ("full", "user", "plain")
_PROBE_SECONDS = 10


@dataclass(frozen=True)
class Level:
    """An isolation level on this machine. The cache file has the same names."""

    name: str
    works: bool
    views: bool = False
    """Whether channels can be mounted instead of copied (an overlay file system works)."""
    why_not: str = ""
    """The reason if the level does not work."""


def probe_levels(scratch: Path | None = None) -> list[Level]:
    """Try each level by starting a real host that runs `true`. Takes about 30 ms per level.

    ``scratch`` is a directory on the disk of the hosts, since not every file system supports an overlay.
    """
    return [probe_level(name, scratch) for name in LEVELS]


def choose_level(scratch: Path, cache: Path, requested_level: str | None = None) -> Level:
    """Return ``requested_level``, or the first level that works. Raises EndpointError if it does not work.

    Results are stored in the file ``cache`` and used while machine, user and privileges are the same.
    """
    candidates: Sequence[str] = LEVELS if requested_level is None else (requested_level,)
    if requested_level is not None and requested_level not in LEVELS:
        raise EndpointError(f"isolation {requested_level!r} is unknown; there are {', '.join(LEVELS)}")
    cached_levels = _read_cache(cache)
    for name in candidates:
        level = cached_levels.get(name) or probe_level(name, scratch)
        if cached_levels.get(name) is None:
            cached_levels[name] = level
            _write_cache(cache, cached_levels)
        if level.works:
            return level
    raise EndpointError(
        f"isolation {requested_level} does not work here: {cached_levels[candidates[0]].why_not}; "
        "leave --isolation out to get the best that does"
    )


def probe_level(name: str, scratch: Path | None = None) -> Level:
    """Find out whether a level works here, by trying it."""
    if name == "plain":
        return Level(name, works=True)
    if sys.platform != "linux":
        return Level(name, works=False, why_not="namespaces exist on Linux only")
    if name == "full" and os.geteuid() != 0:
        return Level(name, works=False, why_not="it needs root")
    mounted_exit = _run_probe_host(name, scratch, with_mount=True)
    if mounted_exit.code == 0:
        return Level(name, works=True, views=True)
    exit_without_mount = _run_probe_host(name, scratch, with_mount=False)
    if exit_without_mount.code == 0:
        return Level(name, works=True, views=False)
    return Level(name, works=False, why_not=_with_hint(exit_without_mount.message))


def _run_probe_host(name: str, scratch: Path | None, with_mount: bool) -> HostExit:
    """Start a host that runs `true`, and return how it ended."""
    folder = Path(tempfile.mkdtemp(prefix=PROBE_PREFIX, dir=scratch))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        (folder / "data").mkdir()
        allocation = ProcessAllocation(folder / "job", "probe", ["algo-1"], name, False, with_mount)
        try:
            tree = allocation.hosts[0].tree
            (tree / "code").mkdir()
            (tree / "data").mkdir()
            mounts = (DirectoryMount(folder / "data", "data"),) if with_mount else ()
            path = os.environ.get("PATH", os.defpath)
            (process,) = allocation.start([Program(("true",), {"PATH": path}, mounts)])
            poll = select.poll()
            poll.register(process.events, select.POLLIN)
            while True:
                if not poll.poll(_PROBE_SECONDS * 1000):
                    return HostExit(1, "lost", f"a host did not start within {_PROBE_SECONDS} s")
                host_exit = process.read()
                if host_exit is not None:
                    return host_exit
        finally:
            allocation.release()
    finally:
        remove_tree(folder)
        os.close(lock)


def _with_hint(message: str) -> str:
    """Add the likely cause to an error message."""
    hints = {
        "unshare: Operation not permitted": "creating namespaces is forbidden here (a container without "
        "CAP_SYS_ADMIN, or kernel.unprivileged_userns_clone=0, or an AppArmor rule)",
        "unshare: No space left on device": "user.max_user_namespaces is 0",
    }
    for text, hint in hints.items():
        if text in message:
            return f"{message} ({hint})"
    return message


def machine_fingerprint() -> str:
    """Return a text that changes when the machine restarts, and that differs for processes with other
    privileges."""
    if sys.platform != "linux":
        return sys.platform
    status = Path("/proc/self/status").read_text()
    (capabilities,) = (line for line in status.splitlines() if line.startswith("CapEff"))
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = [str(Path(f"/proc/self/ns/{namespace}").readlink()) for namespace in ("user", "mnt", "pid")]
    return " ".join([boot_id, str(os.geteuid()), *capabilities.split(), *namespaces])


def _read_cache(cache: Path) -> dict[str, Level]:
    try:
        document = json.loads(cache.read_text())
        if document["fingerprint"] != machine_fingerprint():
            return {}
        return {entry["name"]: Level(**entry) for entry in document["levels"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # missing, or half written before a crash of the machine: probe again


def _write_cache(cache: Path, cached_levels: dict[str, Level]) -> None:
    document = {
        "fingerprint": machine_fingerprint(),
        "levels": [asdict(level) for level in cached_levels.values()],
    }
    write_private_file(cache, json.dumps(document).encode())
