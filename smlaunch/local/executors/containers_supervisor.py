"""The process that watches over one container: makes it, starts it, reports how it ended, and removes it.

    endpoint ── lifeline, order, report ──► supervisor ── engine's command line ──► container

The report's lines are those of supervisor.py, and ``lost WHY`` when the engine lost the container. When the
lifeline closes, on purpose or because the endpoint died, the container ends and is removed.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from smlaunch.local.executors import containers_commands, containers_relay
from smlaunch.local.executors.containers_commands import UNANSWERED, error_output

_NOT_FOUND, _NOT_EXECUTABLE, _ENGINE_FAILED = 127, 126, 125
"""What a shell, and docker, exit with when a program cannot be started, and docker when it itself failed."""
_KILLED = 128 + signal.SIGKILL
_OOM_COUNTER = "/proc/vmstat"
_TELL_AGAIN_MS = 100
_LOOK_AGAIN_SECONDS = 0.05


def main(lifeline: int, report: int) -> None:
    os.set_inheritable(lifeline, False)
    os.set_inheritable(report, False)
    with open(0, "rb", closefd=False) as stream:
        text = stream.read()
    if not text:
        os._exit(0)  # the job was given up before it started
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Container(json.loads(text), lifeline, report).run()
    os._exit(0)  # spares the interpreter's own leave-taking, and the relay's threads


class Container:
    """``order``: the engine's command lines by their purpose: ``create``, ``init`` (empty where the engine
    has none), ``start``, ``inspect``, ``terminate``, ``kill``, ``remove``; ``afterwards``, several, to be run
    when the program has ended, and before that is told; and ``abandoned``, when the endpoint is gone.
    Beside them ``environment`` for the engine, ``by_name``, what `create` finds there beside, ``relay``: the
    endpoint's port, or 0, and ``patience``: how many seconds a command gets that should take a moment."""

    def __init__(self, order: Mapping[str, Any], lifeline: int, report: int) -> None:
        self._order = order
        self._lifeline = lifeline
        self._report = report
        self._abandoned = False
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        # Before anything runs: a request to leave must not be lost.
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, _noted)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def run(self) -> None:
        try:
            line = self._live()
        except Exception as error:
            line = f"error container {_ENGINE_FAILED} {error!r}"
        for command in self._order["afterwards"]:
            self._command(command, is_long=True)
        self._say(line)
        self._engine("remove")
        if self._abandoned:
            self._engine("abandoned")

    def _live(self) -> str:
        """From making the container to its end: the report's last line."""
        created = self._command(self._order["create"], self._order["by_name"], is_long=True)
        if created.returncode:
            return f"error container {_ENGINE_FAILED} {error_output(created)}"
        if self._order["init"]:
            # Its network is there now, its program is not yet.
            started = self._command(self._order["init"], is_long=True)
            if started.returncode:
                return _not_started(error_output(started))
            self._relay()
        before = _killed_for_memory()
        with subprocess.Popen(
            self._order["start"],
            stdin=subprocess.DEVNULL,
            env=self._order["environment"],
            start_new_session=True,  # what is meant for the program comes by the engine's `kill`
        ) as attached:
            if not self._order["init"]:
                self._relay(attached)
            self._say(f"started {attached.pid}")
            self._watch(attached)
        return self._ended(before)

    def _relay(self, attached: subprocess.Popen[bytes] | None = None) -> None:
        """``attached``: what starts the container just now, where it could not be made ready before."""
        port = self._order["relay"]
        if not port:
            return
        pid = self._pid()
        while not pid and attached is not None and attached.poll() is None and not self._let_go():
            time.sleep(_LOOK_AGAIN_SECONDS)
            pid = self._pid()
        try:
            if pid:
                containers_relay.serve(containers_relay.listen_inside(pid, port), port)
        except OSError as error:
            self._print(f"the endpoint cannot be reached from this host: {error}")

    def _pid(self) -> int:
        """Of the container's first process; 0 when it has none."""
        inspection = self._engine("inspect")
        return 0 if inspection.returncode else int(json.loads(inspection.stdout)["Pid"])

    def _watch(self, attached: subprocess.Popen[bytes]) -> None:
        """Until the container ended, or the engine's client did, or the engine would not end it."""
        leave_at = None
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        to_tell = False
        while attached.poll() is None:
            for descriptor, _ in poll.poll(_TELL_AGAIN_MS if to_tell or leave_at is not None else None):
                if descriptor == self._lifeline:
                    poll.unregister(self._lifeline)
                    self._abandoned = True
                    if self._engine("kill").returncode:
                        self._engine("remove")  # it is not running yet, or no longer
                    leave_at = time.monotonic() + self._order["patience"]
                elif signal.SIGTERM in os.read(self._woken, 4096):
                    to_tell = True
            # A container that is just being started cannot be told yet.
            to_tell = to_tell and self._engine("terminate").returncode != 0
            if leave_at is not None and time.monotonic() > leave_at:
                containers_commands.end(attached, kills_session=True)

    def _ended(self, killed_before: int) -> str:
        inspection = self._engine("inspect")
        if inspection.returncode:
            if self._abandoned:
                return f"killed {signal.SIGKILL}"
            what = "" if inspection.returncode == UNANSWERED else "the container is gone: "
            return f"lost {what}{error_output(inspection)}"
        state = json.loads(inspection.stdout)
        if state["Status"] == "running":
            self._engine("remove")
            return "lost the engine's client, which carried the output, was killed"
        if str(state["StartedAt"]).startswith("0001"):
            return _not_started(state.get("Error") or "the container was not started")
        code = int(state["ExitCode"])
        return f"exit {code} {self._memory(code, state, killed_before)}".rstrip()

    def _memory(self, code: int, state: Mapping[str, Any], before: int) -> str:
        """Engines tell of it only when the first process itself was chosen, and podman 4 with cgroups v1 not
        even then; the kernel counts."""
        if state.get("OOMKilled"):
            return "the container ran out of memory"
        killed = _killed_for_memory() - before
        if code == _KILLED and killed > 0:
            return f"memory ran out: the kernel killed {killed} process{'es' * (killed > 1)} for it meanwhile"
        return ""

    def _engine(self, purpose: str) -> subprocess.CompletedProcess[bytes]:
        return self._command(self._order[purpose])

    def _command(
        self, words: list[str], more: Mapping[str, str] | None = None, is_long: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        return containers_commands.run(
            words,
            self._order["patience"],
            environment={**self._order["environment"], **(more or {})},
            let_go=self._let_go if is_long else None,
            new_session=True,
        )

    def _let_go(self) -> bool:
        """Whether the lifeline has closed."""
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        self._abandoned = self._abandoned or bool(poll.poll(0))
        return self._abandoned

    def _say(self, line: str) -> None:
        try:
            os.write(self._report, line.replace("\n", " ").encode("utf-8", "backslashreplace") + b"\n")
        except BrokenPipeError:
            self._abandoned = True

    def _print(self, text: str) -> None:
        """Into the host's log."""
        os.write(sys.stdout.fileno(), f"[smlaunch] {text}\n".encode())


def _noted(number: int, frame: object) -> None:
    """The number is read from the wake-up pipe."""


def _not_started(message: str) -> str:
    """The runtimes' words for a program that cannot be executed all have "exec" in them; whatever else goes
    wrong (a mount, a network) is no fault of the program."""
    lowered = message.lower()
    if "exec" in lowered:
        if "not found" in lowered or "no such file" in lowered:
            return f"error program {_NOT_FOUND} {message}"
        if any(words in lowered for words in ("permission denied", "is a directory", "exec format")):
            return f"error program {_NOT_EXECUTABLE} {message}"
    return f"error container {_ENGINE_FAILED} {message}"


def _killed_for_memory() -> int:
    """How many processes the kernel has killed for want of memory, on the whole machine."""
    try:
        with open(_OOM_COUNTER, "rb") as stream:
            return next(int(line.split()[1]) for line in stream if line.startswith(b"oom_kill "))
    except (OSError, StopIteration):
        return 0
