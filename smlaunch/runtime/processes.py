"""The processes of this machine, as /proc tells them. Outside Linux there are none to be seen."""

import os
import sys
from typing import Dict, List, NamedTuple


class Seen(NamedTuple):
    """``ticks``: CPU time of the process and of those children of it that have ended and been waited for."""

    parent: int
    ticks: int


def living() -> Dict[int, Seen]:
    """By process number; zombies left out."""
    found: Dict[int, Seen] = {}
    if not sys.platform.startswith("linux"):
        return found
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/{}/stat".format(name), "rb") as file:
                # The name in parentheses may itself hold spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in (b"Z", b"X"):
            # proc(5): state, parent, ... and, as fields 14 to 17, utime, stime, cutime, cstime
            found[int(name)] = Seen(int(fields[1]), sum(map(int, fields[11:15])))
    return found


def below(root: int, among: Dict[int, Seen]) -> List[int]:
    """Those that descend from ``root``, parents before their children."""
    children: Dict[int, List[int]] = {}
    for pid, seen in among.items():
        children.setdefault(seen.parent, []).append(pid)
    found: List[int] = []
    row = children.get(root, [])
    while row:
        found.extend(row)
        row = [child for pid in row for child in children.get(pid, [])]
    return found
