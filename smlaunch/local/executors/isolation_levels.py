"""The isolation levels of ``processes``, what each provides, and which of them work here.

    level   needs                        /opt/ml   names   own /tmp   own processes   own network
    full    root                         yes       algo-N  yes        yes             on request
    user    unprivileged namespaces      yes       algo-N  yes        yes             on request
    plain   nothing                      no        no      by TMPDIR  supervised      no

``full`` and ``user`` look the same from inside; the program is root in both. At ``plain`` the contract's
tree is below another root, which SMLAUNCH_ML_ROOT names, and the hosts' names are their loopback addresses.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from smlaunch.errors import EndpointError
from smlaunch.local.state_dir import write_private_file

ISOLATION_LEVELS = ("full", "user", "plain")


class IsolationLevel(NamedTuple):
    """An isolation level on this machine. The cache file has the same names."""

    name: str
    works: bool
    views: bool = False
    """Whether channels can be mounted instead of copied (an overlay file system works)."""
    why_not: str = ""
    """The reason if the level does not work."""


def probe_isolation_levels(scratch_folder: Path | None = None) -> list[IsolationLevel]:
    """Try each level by starting a real host that runs `true`. Takes about 30 ms per level.

    ``scratch_folder`` is a directory on the disk of the hosts, since not every file system supports an
    overlay.
    """
    return [probe_isolation_level(name, scratch_folder) for name in ISOLATION_LEVELS]


def choose_isolation_level(
    scratch_folder: Path, cache_file: Path, requested_level: str | None = None
) -> IsolationLevel:
    """Return the isolation level ``requested_level``, or without one the first in ISOLATION_LEVELS that works
    on this machine: full (as root), user (by user namespaces), plain (no isolation; always works). Raises
    EndpointError if the requested level does not work.

    Results are stored in ``cache_file`` and used while machine, user and privileges are the same.
    ``scratch_folder`` is for the trial hosts that find them out."""
    if requested_level is not None and requested_level not in ISOLATION_LEVELS:
        raise EndpointError(
            f"isolation {requested_level!r} is unknown; there are {', '.join(ISOLATION_LEVELS)}"
        )
    levels_to_try: Sequence[str] = ISOLATION_LEVELS if requested_level is None else (requested_level,)
    level_by_name = _load_cached_levels(cache_file)
    for level_name in levels_to_try:
        if level_name not in level_by_name:  # not tried before on this machine
            level_by_name[level_name] = probe_isolation_level(level_name, scratch_folder)
            _save_cached_levels(cache_file, level_by_name)
        if level_by_name[level_name].works:
            return level_by_name[level_name]
    # Only a requested level comes here: without a request, plain has been returned.
    raise EndpointError(
        f"isolation {requested_level} does not work here: {level_by_name[levels_to_try[0]].why_not}; "
        "leave --isolation out to get the best that does"
    )


def probe_isolation_level(level_name: str, scratch_folder: Path | None = None) -> IsolationLevel:
    """Find out by a trial host whether an isolation level works on this machine, and whether its hosts can
    have overlay mounts (``views``: the host's writes stay apart from the mounted data). ``scratch_folder``:
    where the trial host's files are; None for the default."""
    if level_name == "plain":
        return IsolationLevel(level_name, works=True)
    if sys.platform != "linux":
        return IsolationLevel(level_name, works=False, why_not="namespaces exist on Linux only")
    if level_name == "full" and os.geteuid() != 0:
        return IsolationLevel(level_name, works=False, why_not="it needs root")
    from smlaunch.local.executors import trial_host  # only where nothing is cached

    # The host runs `true`: exit code 0 unless the level itself cannot be set up.
    exit_with_overlay = trial_host.run_trial_host(level_name, scratch_folder, with_overlay=True)
    if exit_with_overlay.code == 0:
        return IsolationLevel(level_name, works=True, views=True)
    exit_without_overlay = trial_host.run_trial_host(level_name, scratch_folder, with_overlay=False)
    if exit_without_overlay.code == 0:
        return IsolationLevel(level_name, works=True, views=False)
    return IsolationLevel(level_name, works=False, why_not=_add_likely_cause(exit_without_overlay.message))


def _add_likely_cause(message: str) -> str:
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
    status_lines = Path("/proc/self/status").read_text().splitlines()
    capabilities_line = next(line for line in status_lines if line.startswith("CapEff"))
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = [str(Path(f"/proc/self/ns/{namespace}").readlink()) for namespace in ("user", "mnt", "pid")]
    return " ".join([boot_id, str(os.geteuid()), *capabilities_line.split(), *namespaces])


def _load_cached_levels(cache_file: Path) -> dict[str, IsolationLevel]:
    """Return the isolation levels that were tried before on this machine, by name; empty if it has restarted
    since, or if this process has other privileges."""
    try:
        document = json.loads(cache_file.read_text())
        if document["fingerprint"] != machine_fingerprint():
            return {}
        return {entry["name"]: IsolationLevel(**entry) for entry in document["levels"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}  # missing, or half written before a crash of the machine: probe again


def _save_cached_levels(cache_file: Path, level_by_name: dict[str, IsolationLevel]) -> None:
    document = {
        "fingerprint": machine_fingerprint(),
        "levels": [level._asdict() for level in level_by_name.values()],
    }
    write_private_file(cache_file, json.dumps(document).encode())
