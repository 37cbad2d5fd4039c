"""Count the kills of the kernel's OOM killer. A killed rank itself cannot report the reason."""

import os
from typing import List, Optional

_CGROUPS = "/sys/fs/cgroup"
_SELF_CGROUP = "/proc/self/cgroup"
_VMSTAT = "/proc/vmstat"


def count_oom_kills() -> int:
    """Number of OOM kills so far: of this process's control group where it has a counter, so that kills of
    other jobs do not count; otherwise of this machine. -1 where there is no counter.
    """
    for path in (*_cgroup_counter_paths(), _VMSTAT):
        count = _read_oom_kills(path)
        if count is not None:
            return count
    return -1


def _cgroup_counter_paths() -> List[str]:
    """Counter files of cgroup versions 2 and 1. In a container with a cgroup namespace the path is ``/``, and
    the mount shows the container's group; without one, the path leads to it.
    """
    paths = []
    try:
        with open(_SELF_CGROUP, encoding="utf-8") as file:
            for line in file:
                _, controllers, group = line.rstrip("\n").split(":", 2)
                group_path = group.strip("/")
                if not controllers:
                    paths.append(os.path.join(_CGROUPS, group_path, "memory.events"))
                elif "memory" in controllers.split(","):
                    folder = os.path.join(_CGROUPS, "memory")
                    # Docker shows version 1 mounted at the group itself, whatever the path says.
                    paths += [os.path.join(folder, name, "memory.oom_control") for name in (group_path, "")]
    except (OSError, ValueError):
        return []
    return paths


def _read_oom_kills(path: str) -> Optional[int]:
    """Return the counter ``oom_kill`` of a file; None without it."""
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None
