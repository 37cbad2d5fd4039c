"""A line of a shell script, or a command, that starts another launcher for one host alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from smlaunch.facts.source_place import SourcePlace

_LAUNCHER = re.compile(
    r"(?:^|[;&|(\s/])"
    r"(torchrun|deepspeed|accelerate launch|mpirun|mpiexec"
    r"|python[0-9.]* -m torch\.distributed\.(?:run|launch))"
    r"(?=\s)"
)
_NAMES_HOSTS = re.compile(
    r"\s-{1,2}(?:nnodes|node[-_]rank|rdzv[-_]endpoint|master[-_]addr|hostfile|host|hosts|H|machinefile|num_machines|machine_rank|"
    r"main_process_ip|config_file|num_nodes|launcher)\b"
)
"""Options by which these launchers are told of several hosts."""


class LauncherLine(NamedTuple):
    """Where a launcher is started for one host."""

    launcher: str
    place: SourcePlace | None = None
    """None for the job's own command."""


def find_launcher(line: str) -> str | None:
    """Return the launcher that a line of a shell script starts without telling it of other hosts; None for
    another line."""
    code = line.partition("#")[0]
    match = _LAUNCHER.search(code)
    return match[1] if match is not None and _NAMES_HOSTS.search(code) is None else None


def find_launcher_line(lines: Iterable[str], file: str) -> LauncherLine | None:
    """Return the first such line of a shell script, whose continued lines count as one."""
    first_number, joined = 1, ""
    for number, line in enumerate(lines, 1):
        first_number = first_number if joined else number
        joined += " " + line.rstrip("\\\n")
        if line.rstrip("\n").endswith("\\"):
            continue
        launcher = find_launcher(joined.strip())
        if launcher is not None:
            return LauncherLine(launcher, SourcePlace(file, first_number))
        joined = ""
    return None
