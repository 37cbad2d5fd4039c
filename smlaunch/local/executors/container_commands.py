"""Runs the commands of a container engine, always with a time limit, since a daemon may hang.

A short command (inspect, network, rm) gets TIMEOUT_SECONDS. A command that may take long (creating a
container of a large image) has no limit while the endpoint lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile, takewhile

TIMEOUT_SECONDS = 60.0
"""Far more than any short command took, even on a busy machine."""

TIMED_OUT_CODE = 124
"""Exit code for a command that was ended after the time limit, as of timeout(1). Engines fail with 1 or
125."""

_TERMINATION_SECONDS = 5.0
_ENDPOINT_CHECK_SECONDS = 0.5


def run_with_timeout(
    command: Sequence[str],
    timeout_seconds: float,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    start_new_session: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of a container engine. After ``timeout_seconds``, end it and return the exit code
    TIMED_OUT_CODE (124) with a message as its stderr. ``start_new_session``: run the command in a session of
    its own, so that no signal of the terminal reaches it."""
    with _start_command(command, environment, start_new_session) as process:
        try:
            output, error_output = process.communicate(stdin, timeout_seconds)
            return subprocess.CompletedProcess(command, process.returncode, output, error_output)
        except subprocess.TimeoutExpired:
            terminate_or_kill(process, signal_session=start_new_session)
    return _timed_out_result(command, timeout_seconds)


def run_while_endpoint_lives(
    command: Sequence[str],
    is_endpoint_gone: Callable[[], bool],
    timeout_seconds: float,
    environment: Mapping[str, str],
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of a container engine that may take as long as the local endpoint lives, which needs its
    result. From the end of the endpoint on, it has ``timeout_seconds`` left, with the result of
    ``run_with_timeout``. The command has a session of its own."""
    deadline: float | None = None  # None while the endpoint lives
    with _start_command(command, environment, start_new_session=True) as process:
        while deadline is None or time.monotonic() < deadline:
            try:
                output, error_output = process.communicate(timeout=_ENDPOINT_CHECK_SECONDS)
                return subprocess.CompletedProcess(command, process.returncode, output, error_output)
            except subprocess.TimeoutExpired:
                if deadline is None and is_endpoint_gone():
                    deadline = time.monotonic() + timeout_seconds
        terminate_or_kill(process, signal_session=True)
    return _timed_out_result(command, timeout_seconds)


def _start_command(
    command: Sequence[str], environment: Mapping[str, str] | None, start_new_session: bool
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=start_new_session,
    )


def _timed_out_result(command: Sequence[str], timeout_seconds: float) -> subprocess.CompletedProcess[bytes]:
    message = _format_timeout_message(command, timeout_seconds)
    return subprocess.CompletedProcess(command, TIMED_OUT_CODE, b"", message.encode())


def terminate_or_kill(process: subprocess.Popen[bytes], signal_session: bool = False) -> None:
    """End a client of the engine by SIGTERM, and by SIGKILL if that is not enough. ``signal_session``: signal
    all processes of its session, which it leads."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            if signal_session:
                os.killpg(process.pid, signal_number)
            else:
                process.send_signal(signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATION_SECONDS)
            return


def last_error_line(completed: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line of the engine's stderr."""
    lines = completed.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("Error: ") if lines else f"the engine ended with {completed.returncode}"


def _format_timeout_message(command: Sequence[str], timeout: float) -> str:
    """Return a message that names the program and its verb; the rest of the command is long."""
    program = os.path.basename(command[0])  # noqa: PTH119 - pathlib would cost every host's start its import
    after_flags = dropwhile(_is_flag, command[1:])
    verbs = list(takewhile(lambda argument: not _is_flag(argument), after_flags))[:2]
    return (
        f"`{' '.join([program, *verbs])}` has not answered for {timeout:g} s; see whether `{program} ps` "
        "does, and restart the engine where not"
    )


def _is_flag(argument: str) -> bool:
    return argument.startswith("-")
