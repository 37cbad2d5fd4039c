"""Run as a program by root: becomes an ordinary user and executes its arguments.

    python -m tests.local.ordinary_user PROGRAM [ARGUMENT ...]

The tests' Python often lies where only root may look, such as below /root. In a mount namespace of its own,
each closed directory is covered by an empty one that shows only what the tests run with.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from smlaunch.local.executors import namespaces

ROOT = Path(__file__).resolve().parents[2]
UID = 54321
"""A uid that is unlikely to exist."""


def prefix() -> list[str]:
    """Return the command prefix that runs a command as an ordinary user; empty if this process is one."""
    return [sys.executable, "-m", "tests.local.ordinary_user"] if os.geteuid() == 0 else []


def _closed_ancestor(path: Path) -> Path | None:
    """The outermost directory above ``path`` that others may not enter."""
    for ancestor in reversed(path.parents):
        if not ancestor.stat().st_mode & stat.S_IXOTH:
            return ancestor
    return None


def _mount_needed_paths() -> None:
    namespaces._check_syscall(namespaces._libc.unshare(namespaces._CLONE_NEWNS), "unshare")
    namespaces._mount(None, "/", None, namespaces._MS_REC | namespaces._MS_PRIVATE)
    wanted = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, ROOT, *sys.path) if path}
    closed_ancestors = {path: _closed_ancestor(path) for path in sorted(wanted) if path.exists()}
    descriptors = {
        path: os.open(path, os.O_PATH) for path, closed in closed_ancestors.items() if closed is not None
    }
    for closed in {closed for closed in closed_ancestors.values() if closed is not None}:
        namespaces._mount("tmpfs", str(closed), "tmpfs", 0, "mode=755,size=1m")
    for path, descriptor in descriptors.items():
        if path.is_dir():
            continue  # below a directory that is mounted already
        path.mkdir(parents=True)
        namespaces._mount(f"/proc/self/fd/{descriptor}", str(path), None, namespaces._MS_BIND)


def main() -> None:
    _mount_needed_paths()
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
