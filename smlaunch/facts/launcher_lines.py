"""Lines of a shell script, or a command, that start another launcher, and what several hosts would do that
each execute such a line. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from smlaunch.facts.source_place import SourcePlace

_LAUNCHER = re.compile(
    r"(?:^|[;&|(\s/])"
    r"(torchrun|deepspeed|accelerate launch|mpirun|mpiexec"
    r"|python[0-9.]* -m torch\.distributed\.(?:run|launch))"
    r"(?=\s)"
)
_END_OF_COMMAND = re.compile(r"[;&|]")
_HOST_OPTIONS = ("hostfile", "host", "hosts", "H", "machinefile", "num_nodes", "launcher", "f")
"""Options by which DeepSpeed's launcher and mpirun learn of other hosts."""

_FLAGS = frozenset(
    (
        *("standalone", "m", "module", "no_python", "run_path", "use_env"),  # torchrun
        *("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu"),  # accelerate
        *("debug", "quiet", "q", "same_network", "enable_cpu_affinity", "dynamo_use_dynamic"),
    )
)
"""Options without a value."""

_SEVERAL_RANKS = ("multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "mpirun_hostfile")
"""Options with which ``accelerate launch`` starts ranks of its own."""

THIS_MACHINE = ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104  in texts of scripts


class LauncherLine(NamedTuple):
    """Where a launcher is started."""

    launcher: str
    words: tuple[str, ...]
    """What follows it."""

    place: SourcePlace | None = None
    """None for the job's own command."""


class _Arguments(NamedTuple):
    """What a launcher is started with."""

    options: Mapping[str, str]
    """Values by names with underscores and without dashes; empty values for flags."""

    program: tuple[str, ...]
    """The script, and its arguments."""


def launcher_of_command(command: Sequence[str]) -> LauncherLine | None:
    """Return the launcher that a job's command starts; None for another command."""
    match = _LAUNCHER.search(" ".join(command) + " ")
    if match is None:
        return None
    launcher = match[1]  # such as "accelerate launch"
    word_count = len(launcher.split())
    for index, word in enumerate(command):
        program = word.rpartition("/")[2]
        if " ".join((program, *command[index + 1 : index + word_count])) == launcher:
            return LauncherLine(launcher, tuple(command[index + word_count :]))
    return next(_find_launchers(" ".join(command)), None)  # bash -c "torchrun ..."


def find_launcher_lines(lines: Iterable[str], file: str) -> tuple[LauncherLine, ...]:
    """Return the launchers that a shell script starts. Continued lines count as one."""
    launchers: list[LauncherLine] = []
    first_number, joined_lines = 1, ""
    for number, line in enumerate(lines, 1):
        first_number = first_number if joined_lines else number
        joined_lines += " " + line.rstrip("\\\n")
        if not line.rstrip("\n").endswith("\\"):
            place = SourcePlace(file, first_number)
            launchers += [
                launcher._replace(place=place) for launcher in _find_launchers(joined_lines.strip())
            ]
            joined_lines = ""
    return tuple(launchers)


def _find_launchers(line: str) -> Iterator[LauncherLine]:
    code = line.partition("#")[0]
    match = _LAUNCHER.search(code)
    if match is not None:
        words = _END_OF_COMMAND.split(code[match.end() :])[0].split()
        yield LauncherLine(match[1], tuple(word.strip("\"'") for word in words))


def explain_separate_hosts(line: LauncherLine, host_count: int, has_accelerators: bool) -> str | None:
    """Return why hosts that each execute the line would not train together, as the end of a sentence that
    begins with what starts the launcher; None where they would, or it is not known.

    Sources: torch 2.13, distributed/run.py; accelerate 1.15, commands/launch.py and utils/launch.py. Both
    were run on two hosts.
    """
    arguments = _parse_launcher_arguments(line)
    if arguments is None:
        return None
    options = arguments.options
    if line.launcher == "accelerate launch":
        return _explain_accelerate(line.launcher, options, host_count, has_accelerators)
    if line.launcher in ("deepspeed", "mpirun", "mpiexec"):
        return None if any(name in options for name in _HOST_OPTIONS) else f"{line.launcher} for one host"
    if "standalone" in options:
        return f"{line.launcher} for one host"
    problem = _explain_host_count(line.launcher, options.get("nnodes", "1"), host_count)
    if problem is not None:
        return problem
    # torchrun: any other rendezvous gives the hosts their numbers.
    if options.get("rdzv_backend", "static") != "static":
        return _explain_address(line.launcher, options, None, ("rdzv_endpoint",))
    return _explain_address(line.launcher, options, "node_rank", ("rdzv_endpoint", "master_addr"))


def _explain_accelerate(
    launcher: str, options: Mapping[str, str], host_count: int, has_accelerators: bool
) -> str | None:
    """Return why hosts that each run ``accelerate launch`` with these options would not train together; None
    where they would, or it is not known."""
    if "config_file" in options:
        return None
    if options.get("num_machines", "1") != "1":
        return _explain_host_count(launcher, options["num_machines"], host_count) or _explain_address(
            launcher, options, "machine_rank", ("main_process_ip",)
        )
    process_count = options.get("num_processes", "")
    # One process, or on the CPU any, is the script itself, which then finds the ranks' variables; but for
    # more than one process it is given 127.0.0.1 as the first host.
    is_one_process = process_count == "1" or (not process_count and not has_accelerators)
    if not is_one_process or any(name in options for name in _SEVERAL_RANKS):
        return f"{launcher} for one host"
    if "cpu" not in options and not has_accelerators:
        return f"{launcher} without --cpu, by which ranks without accelerators join"
    return None


def _explain_host_count(launcher: str, stated: str, host_count: int) -> str | None:
    """Return what is wrong with a number of hosts such as ``2``, or a range such as ``1:4``."""
    numbers = stated.split(":")
    if not all(number.isdigit() for number in numbers):
        return None  # a variable of the shell
    least, most = int(numbers[0]), int(numbers[-1])
    if most == 1:
        return f"{launcher} for one host"
    return None if least <= host_count <= most else f"{launcher} for {stated} hosts"


def _explain_address(
    launcher: str, options: Mapping[str, str], rank_option: str | None, address_options: Sequence[str]
) -> str | None:
    """Return what is wrong with the options by which hosts find each other: one with the number of the host,
    and one of those with the address of the first. None: the launcher finds the numbers by itself."""
    if rank_option is not None:
        rank = options.get(rank_option, "0")
        if rank.isdigit():
            return f"{launcher} with the same --{rank_option} on every host"
    address = next((options[name] for name in address_options if name in options), THIS_MACHINE[0])
    if any(address.startswith(host) for host in THIS_MACHINE):
        return f"{launcher} with an address that is each host itself (--{address_options[-1]})"
    return None


def replacement_of(line: LauncherLine) -> str | None:
    """Return the arguments of ``smlaunch run`` that start what the launcher of a command starts, such as
    ``--processes-per-host 4 train.py -- --epochs 3``; None where that is not known."""
    arguments = _parse_launcher_arguments(line)
    if arguments is None or not arguments.program or line.place is not None:
        return None
    program, *program_arguments = arguments.program
    if "no_python" in arguments.options or line.launcher in ("mpirun", "mpiexec"):
        return None
    process_count_options = ("nproc_per_node", "num_gpus", "num_processes")
    process_counts = [arguments.options[name] for name in process_count_options if name in arguments.options]
    own_options: list[str] = []
    if process_counts and process_counts[0].isdigit() and process_counts[0] != "1":
        own_options = ["--processes-per-host", process_counts[0]]
    if "m" in arguments.options or "module" in arguments.options:
        own_options.append("-m")
    separator = ["--"] if program_arguments else []
    return shlex.join([*own_options, program, *separator, *program_arguments])


def _parse_launcher_arguments(line: LauncherLine) -> _Arguments | None:
    """Return the launcher's options and its program. None where a variable of the shell may stand for
    options."""
    options: dict[str, str] = {}
    words = list(line.words)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return None if word.startswith("$") else _Arguments(options, (word, *words))
        name, has_value, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not has_value and name not in _FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        options[name] = value
    return _Arguments(options, ())
