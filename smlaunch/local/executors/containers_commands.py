"""Running an engine's commands, none of which is waited for without end: a daemon may hang.

What takes a moment (inspect, network, rm) is given PATIENCE_SECONDS. What may rightly take long (making a
container of a large image) goes on until it ends, or until ``let_go`` says that nobody wants it any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile, takewhile

PATIENCE_SECONDS = 60.0
"""Far more than any of the short commands took, on a busy machine too."""

UNANSWERED = 124
"""The exit code of a command that was given up, as timeout(1) has it. Engines fail with 1 or 125."""

_LEAVE_SECONDS = 5.0
_LOOK_SECONDS = 0.5


def run(
    words: Sequence[str],
    patience: float,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    let_go: Callable[[], bool] | None = None,
    new_session: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """A command to its end; after ``patience`` seconds it is ended, with UNANSWERED for a code and a line on
    its stderr that says so. With ``let_go`` they count from the moment it is true. ``apart``: in a session of
    its own."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=new_session,
    )
    with process:
        until = None if let_go is not None else time.monotonic() + patience
        given: bytes | None = stdin
        while until is None or time.monotonic() < until:
            wait = _LOOK_SECONDS if until is None else max(0.0, until - time.monotonic())
            try:
                output, complaint = process.communicate(given, wait)
                return subprocess.CompletedProcess(words, process.returncode, output, complaint)
            except subprocess.TimeoutExpired:
                given = None  # it is on its way
            if until is None and let_go is not None and let_go():
                until = time.monotonic() + patience
        end(process, new_session)
    return subprocess.CompletedProcess(words, UNANSWERED, b"", _unanswered(words, patience).encode())


def end(process: subprocess.Popen[bytes], kills_session: bool = False) -> None:
    """An engine's client: by SIGTERM, on which it may put things in order, else by SIGKILL. ``apart``: with
    all of its session, which it leads."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            if kills_session:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_SECONDS)
            return


def error_output(done: subprocess.CompletedProcess[bytes]) -> str:
    """The engine's own words: the last line it complained in."""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("Error: ") if lines else f"the engine ended with {done.returncode}"


def _unanswered(words: Sequence[str], patience: float) -> str:
    """The program and its verb: the rest is long."""
    program = os.path.basename(words[0])  # noqa: PTH119 - pathlib would cost every host's start its import
    behind_flags = dropwhile(_is_flag, words[1:])
    verb = list(takewhile(lambda word: not _is_flag(word), behind_flags))[:2]
    return (
        f"`{' '.join([program, *verb])}` has not answered for {patience:g} s; see whether `{program} ps` "
        "does, and restart the engine where not"
    )


def _is_flag(word: str) -> bool:
    return word.startswith("-")
