"""A shell in a running host of the executor ``processes``: its namespaces, root, environment and directory.

A fresh process of one thread runs this (supervisor_script.py), since only such a process may enter a user
namespace. It stays outside the host, waits for the shell and exits with its exit code.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn

_TERMINAL_VARIABLES = ("TERM", "COLORTERM", "LANG", "LC_ALL")
"""Variables of the user's terminal, which a host's processes do not have."""


def run_shell(pid: int) -> NoReturn:
    """Run a shell like a child of the host's process ``pid``, with the standard streams of this process.
    Never returns."""
    try:
        environment = _environment_of(pid)
        # Opened before the namespaces are entered, in which the process has another pid.
        root_fd = os.open(f"/proc/{pid}/root", os.O_RDONLY)
        directory_fd = os.open(f"/proc/{pid}/cwd", os.O_RDONLY)
        if sys.platform == "linux":
            from smlaunch.local.executors import namespaces

            namespaces.join_namespaces(pid)
    except OSError as error:
        sys.stderr.write(f"error: the host cannot be entered: {error}\n")
        sys.exit(8)
    for signal_number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(signal_number, signal.SIG_IGN)  # Ctrl-C is for the shell
    shell_pid = os.fork()  # the child is the first process of this one in the host's pid namespace
    if shell_pid == 0:
        _exec_shell(root_fd, directory_fd, environment)
    _, wait_status = os.waitpid(shell_pid, 0)
    _take_terminal_back()
    exit_code = os.waitstatus_to_exitcode(wait_status)
    if exit_code == -signal.SIGKILL:
        sys.stderr.write("the shell was killed: its host has probably ended\n")
    sys.exit(exit_code if exit_code >= 0 else 128 - exit_code)


def _environment_of(pid: int) -> dict[bytes, bytes]:
    """Return the variables of a process, and those of this terminal."""
    with open(f"/proc/{pid}/environ", "rb") as stream:
        pairs = (entry.partition(b"=") for entry in stream.read().split(b"\0") if entry)
        environment = {name: value for name, _, value in pairs}
    for name in _TERMINAL_VARIABLES:
        if name in os.environ:
            environment.setdefault(name.encode(), os.fsencode(os.environ[name]))
    return environment


def _exec_shell(root_fd: int, directory_fd: int, environment: dict[bytes, bytes]) -> NoReturn:
    """Replace this process by the shell; bash where the host has it. Never returns."""
    try:
        if not os.path.samestat(os.fstat(root_fd), os.stat("/")):  # noqa: PTH116
            os.fchdir(root_fd)
            os.chroot(".")
        os.fchdir(directory_fd)
        for signal_number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signal_number, signal.SIG_DFL)
        with contextlib.suppress(FileNotFoundError):
            os.execvpe("bash", ["bash"], environment)  # noqa: S606, S607
        os.execve("/bin/sh", ["sh"], environment)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"error: no shell can be started in the host: {error}\n")
        sys.stderr.flush()
    os._exit(127)


def _take_terminal_back() -> None:
    """Make this process group the terminal's again: an interactive shell has made its own that."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
