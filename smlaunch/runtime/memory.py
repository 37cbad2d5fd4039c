"""Whether the kernel has killed for want of memory: the ranks cannot tell, they are simply gone."""

import os
from typing import List, Optional

_CGROUPS = "/sys/fs/cgroup"
_OWN = "/proc/self/cgroup"
_MACHINE = "/proc/vmstat"


def out_of_memory_kills() -> int:
    """How often the kernel has done so: in this process's own control group, where that counts them, so that
    a neighbour's misfortune is not taken for ours; else on this machine. -1 where nobody says.
    """
    for path in (*_own_counters(), _MACHINE):
        count = _count(path)
        if count is not None:
            return count
    return -1


def _own_counters() -> List[str]:
    """Version 2 and version 1. Within a container's own namespace the path is just ``/``, and the mount shows
    the container's group; without one, the path leads there.
    """
    paths = []
    try:
        with open(_OWN, encoding="utf-8") as file:
            for line in file:
                _, controllers, group = line.rstrip("\n").split(":", 2)
                below = group.strip("/")
                if not controllers:
                    paths.append(os.path.join(_CGROUPS, below, "memory.events"))
                elif "memory" in controllers.split(","):
                    folder = os.path.join(_CGROUPS, "memory")
                    # Docker shows version 1 mounted at the group itself, whatever the path says.
                    paths += [os.path.join(folder, name, "memory.oom_control") for name in (below, "")]
    except (OSError, ValueError):
        return []
    return paths


def _count(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None
