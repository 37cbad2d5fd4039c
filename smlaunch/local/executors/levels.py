"""The isolation levels of ``processes``, what each gives, and which of them work here.

    level   needs                        /opt/ml   names   own /tmp   own processes   own network
    full    root                         yes       algo-N  yes        yes             on wish
    user    unprivileged namespaces      yes       algo-N  yes        yes             on wish
    plain   nothing                      no        no      by TMPDIR  watched         no

``full`` and ``user`` look the same from inside, where both are root. At ``plain`` the same tree lies below
another root, which SMLAUNCH_ML_ROOT names, and hosts are called by their loopback addresses.
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
from smlaunch.local.executors.base import HostExit, Program, View
from smlaunch.local.executors.processes import ProcessAllocation
from smlaunch.local.executors.removal import remove_tree
from smlaunch.local.state_dir import PROBE_PREFIX, write_private_file

LEVELS = ("full", "user", "plain")
_PROBE_SECONDS = 10


@dataclass(frozen=True)
class Level:
    """``views``: whether channels can be shown without copying them (an overlay file system can be mounted).
    ``why_not`` is empty for a level that works."""

    name: str
    works: bool
    views: bool = False
    why_not: str = ""


def levels(scratch: Path | None = None) -> list[Level]:
    """Tries each level by starting a real host that runs `true`. Takes about 30 ms a level.

    ``scratch``: a directory on the disk the hosts will be on, since not every file system bears an overlay.
    """
    return [probe(name, scratch) for name in LEVELS]


def best(scratch: Path, cache: Path, wanted: str | None = None) -> Level:
    """The level to use; the first that works, or ``wanted``. Raises EndpointError when that does not work.

    What was found is kept in ``cache`` for as long as machine, user and rights are the same.
    """
    names: Sequence[str] = LEVELS if wanted is None else (wanted,)
    if wanted is not None and wanted not in LEVELS:
        raise EndpointError(f"isolation {wanted!r} is unknown; there are {', '.join(LEVELS)}")
    known = _read(cache)
    for name in names:
        level = known.get(name) or probe(name, scratch)
        if known.get(name) is None:
            known[name] = level
            _write(cache, known)
        if level.works:
            return level
    raise EndpointError(
        f"isolation {wanted} does not work here: {known[names[0]].why_not}; "
        "leave --isolation out to get the best that does"
    )


def probe(name: str, scratch: Path | None = None) -> Level:
    """Whether ``name`` works here, by trying it."""
    if name == "plain":
        return Level(name, works=True)
    if sys.platform != "linux":
        return Level(name, works=False, why_not="namespaces exist on Linux only")
    if name == "full" and os.geteuid() != 0:
        return Level(name, works=False, why_not="it needs root")
    outcome = _try(name, scratch, view=True)
    if outcome.code == 0:
        return Level(name, works=True, views=True)
    without = _try(name, scratch, view=False)
    if without.code == 0:
        return Level(name, works=True, views=False)
    return Level(name, works=False, why_not=_explain(without.message))


def _try(name: str, scratch: Path | None, view: bool) -> HostExit:
    folder = Path(tempfile.mkdtemp(prefix=PROBE_PREFIX, dir=scratch))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        (folder / "data").mkdir()
        allocation = ProcessAllocation(folder / "job", "probe", ["algo-1"], name, False, view)
        try:
            tree = allocation.places[0].tree
            (tree / "code").mkdir()
            (tree / "data").mkdir()
            views = (View(folder / "data", "data"),) if view else ()
            path = os.environ.get("PATH", os.defpath)
            (host,) = allocation.start([Program(("true",), {"PATH": path}, views)])
            poll = select.poll()
            poll.register(host.events, select.POLLIN)
            while True:
                if not poll.poll(_PROBE_SECONDS * 1000):
                    return HostExit(1, "lost", f"a host did not start within {_PROBE_SECONDS} s")
                ended = host.read()
                if ended is not None:
                    return ended
        finally:
            allocation.release()
    finally:
        remove_tree(folder)
        os.close(lock)


def _explain(message: str) -> str:
    hints = {
        "unshare: Operation not permitted": "creating namespaces is forbidden here (a container without "
        "CAP_SYS_ADMIN, or kernel.unprivileged_userns_clone=0, or an AppArmor rule)",
        "unshare: No space left on device": "user.max_user_namespaces is 0",
    }
    for text, hint in hints.items():
        if text in message:
            return f"{message} ({hint})"
    return message


def fingerprint() -> str:
    """Changes when the machine was started anew, or this process has other rights than the one before."""
    if sys.platform != "linux":
        return sys.platform
    status = Path("/proc/self/status").read_text()
    (capabilities,) = (line for line in status.splitlines() if line.startswith("CapEff"))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("user", "mnt", "pid")]
    return " ".join([boot, str(os.geteuid()), *capabilities.split(), *spaces])


def _read(cache: Path) -> dict[str, Level]:
    try:
        document = json.loads(cache.read_text())
        if document["fingerprint"] != fingerprint():
            return {}
        return {entry["name"]: Level(**entry) for entry in document["levels"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # not there yet, or half written by a machine that went down: found anew


def _write(cache: Path, known: dict[str, Level]) -> None:
    document = {"fingerprint": fingerprint(), "levels": [asdict(level) for level in known.values()]}
    write_private_file(cache, json.dumps(document).encode())
