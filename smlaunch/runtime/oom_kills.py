"""Count the kills of the kernel's OOM killer. A killed rank itself cannot report the reason."""

import os
from typing import List, Optional

_CGROUP_MOUNT = "/sys/fs/cgroup"
_SELF_CGROUP_FILE = "/proc/self/cgroup"
_VMSTAT = "/proc/vmstat"


def count_oom_kills() -> int:
    """Return the number of OOM kills so far: of this process's control group where it has a counter, so that
    kills of other jobs do not count; otherwise of this machine. -1 where there is no counter.
    """
    for path in (*_list_cgroup_counter_files(), _VMSTAT):
        count = _read_oom_kills(path)
        if count is not None:
            return count
    return -1


def _list_cgroup_counter_files() -> List[str]:
    """Return the files below /sys/fs/cgroup that may count the OOM kills (processes killed for lack of
    memory) in this process's control group, of cgroup versions 2 and 1. In a container with a cgroup
    namespace the group's path is ``/``, and the mount shows the container's group; without one, the path
    leads to it.
    """
    counter_files: List[str] = []
    try:
        with open(_SELF_CGROUP_FILE, encoding="utf-8") as file:
            for line in file:
                # cgroups(7): hierarchy-ID:controller-list:cgroup-path
                _, controllers, group_path = line.rstrip("\n").split(":", 2)
                group_path = group_path.strip("/")
                if not controllers:  # version 2
                    counter_files.append(os.path.join(_CGROUP_MOUNT, group_path, "memory.events"))
                elif "memory" in controllers.split(","):
                    memory_mount = os.path.join(_CGROUP_MOUNT, "memory")
                    counter_files.append(os.path.join(memory_mount, group_path, "memory.oom_control"))
                    # Docker shows version 1 mounted at the group itself, whatever the path says.
                    counter_files.append(os.path.join(memory_mount, "memory.oom_control"))
    except (OSError, ValueError):
        return []
    return counter_files


def _read_oom_kills(path: str) -> Optional[int]:
    """Return the counter ``oom_kill`` in a file of the kernel, such as memory.events; None without it."""
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None
