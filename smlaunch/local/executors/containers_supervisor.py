"""The supervisor of a container: creates and starts it, reports how it ended, and removes it.

    endpoint ── lifeline, order, report ──► supervisor ── engine's command line ──► container

The report has the lines of supervisor.py, and ``lost REASON`` if the engine lost the container. When the
lifeline closes, by intention or because the endpoint died, the container is killed and removed.
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
"""Exit codes of a shell, and of Docker, for a program that cannot be started; and of Docker for an error of
its own."""
_KILLED_CODE = 128 + signal.SIGKILL
_OOM_COUNTER = "/proc/vmstat"
_TERMINATE_RETRY_MS = 100
_PID_POLL_SECONDS = 0.05


def main(lifeline_fd: int, report_fd: int) -> None:
    """Run the supervisor. The arguments are descriptors: the read end of the lifeline and the write end of
    the report."""
    os.set_inheritable(lifeline_fd, False)
    os.set_inheritable(report_fd, False)
    with open(0, "rb", closefd=False) as stream:
        order_data = stream.read()
    if not order_data:
        os._exit(0)  # the allocation was released before the host started
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ContainerSupervisor(json.loads(order_data), lifeline_fd, report_fd).run()
    os._exit(0)  # without the interpreter's shutdown, and although the relay's threads still run


class ContainerSupervisor:
    """Supervises one container."""

    def __init__(self, order: Mapping[str, Any], lifeline_fd: int, report_fd: int) -> None:
        """``order`` has the engine's command lines by their purpose: ``create``, ``init`` (empty if the
        engine has none), ``start``, ``inspect``, ``terminate``, ``kill``, ``remove``; ``afterwards`` (a list
        of commands), run when the program has ended, before that is reported; ``abandoned``, run when the
        endpoint is dead. Beside them: ``environment``, the engine's environment; ``by_name``, variables that
        `create` has in addition; ``relay``, the endpoint's port, or 0; ``patience``, the time limit of a
        short command in seconds."""
        self._order = order
        self._lifeline_fd = lifeline_fd
        self._report_fd = report_fd
        self._is_abandoned = False
        self._wakeup_reader, wakeup_writer = os.pipe()
        os.set_blocking(wakeup_writer, False)
        # Before anything runs, so that no SIGTERM is lost.
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        for signal_number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(signal_number, _ignore_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def run(self) -> None:
        """Run the container of the order to its end, write the report's last line, and remove the container.
        If the endpoint is gone, remove the network too."""
        try:
            line = self._run_container()
        except Exception as error:
            line = f"error container {_ENGINE_FAILED} {error!r}"
        for command in self._order["afterwards"]:
            self._run_command(command, may_take_long=True)
        self._write_report(line)
        self._run_engine_command("remove")
        if self._is_abandoned:
            self._run_engine_command("abandoned")

    def _run_container(self) -> str:
        """Create and start the container and wait for its end. Return the last line of the report."""
        created = self._run_command(self._order["create"], self._order["by_name"], may_take_long=True)
        if created.returncode:
            return f"error container {_ENGINE_FAILED} {error_output(created)}"
        if self._order["init"]:
            # The container has a network now, but its program does not run yet.
            started = self._run_command(self._order["init"], may_take_long=True)
            if started.returncode:
                return _not_started_line(error_output(started))
            self._start_relay()
        oom_kills_before = _count_oom_kills()
        with subprocess.Popen(
            self._order["start"],
            stdin=subprocess.DEVNULL,
            env=self._order["environment"],
            start_new_session=True,  # signals reach the program only by the engine's `kill`
        ) as client:
            if not self._order["init"]:
                self._start_relay(client)
            self._write_report(f"started {client.pid}")
            self._wait_for_end(client)
        return self._end_line(oom_kills_before)

    def _start_relay(self, client: subprocess.Popen[bytes] | None = None) -> None:
        """Start the relay to the endpoint. ``client`` is the process that starts the container, if the
        engine has no `init`."""
        port = self._order["relay"]
        if not port:
            return
        pid = self._container_pid()
        while not pid and client is not None and client.poll() is None and not self._check_abandoned():
            time.sleep(_PID_POLL_SECONDS)
            pid = self._container_pid()
        try:
            if pid:
                containers_relay.serve(containers_relay.listen_inside(pid, port), port)
        except OSError as error:
            self._print_note(f"the endpoint cannot be reached from this host: {error}")

    def _container_pid(self) -> int:
        """Return the pid of the container's first process; 0 if it has none."""
        inspection = self._run_engine_command("inspect")
        return 0 if inspection.returncode else int(json.loads(inspection.stdout)["Pid"])

    def _wait_for_end(self, client: subprocess.Popen[bytes]) -> None:
        """Wait until the container has ended, or the engine's client has, or the engine fails to end the
        container."""
        give_up_time = None
        poll = select.poll()
        poll.register(self._lifeline_fd, select.POLLIN)
        poll.register(self._wakeup_reader, select.POLLIN)
        must_terminate = False
        while client.poll() is None:
            for descriptor, _ in poll.poll(
                _TERMINATE_RETRY_MS if must_terminate or give_up_time is not None else None
            ):
                if descriptor == self._lifeline_fd:
                    poll.unregister(self._lifeline_fd)
                    self._is_abandoned = True
                    if self._run_engine_command("kill").returncode:
                        self._run_engine_command("remove")  # the container does not run yet, or has ended
                    give_up_time = time.monotonic() + self._order["patience"]
                elif signal.SIGTERM in os.read(self._wakeup_reader, 4096):
                    must_terminate = True
            # A container that is just being started cannot be signalled yet: try again.
            must_terminate = must_terminate and self._run_engine_command("terminate").returncode != 0
            if give_up_time is not None and time.monotonic() > give_up_time:
                containers_commands.end_client(client, kills_session=True)

    def _end_line(self, oom_kills_before: int) -> str:
        """Return the last line of the report."""
        inspection = self._run_engine_command("inspect")
        if inspection.returncode:
            if self._is_abandoned:
                return f"killed {signal.SIGKILL}"
            prefix = "" if inspection.returncode == UNANSWERED else "the container is gone: "
            return f"lost {prefix}{error_output(inspection)}"
        state = json.loads(inspection.stdout)
        if state["Status"] == "running":
            self._run_engine_command("remove")
            return "lost the engine's client, which carried the output, was killed"
        if str(state["StartedAt"]).startswith("0001"):
            return _not_started_line(state.get("Error") or "the container was not started")
        code = int(state["ExitCode"])
        return f"exit {code} {self._oom_message(code, state, oom_kills_before)}".rstrip()

    def _oom_message(self, code: int, state: Mapping[str, Any], oom_kills_before: int) -> str:
        """Return a message if memory ran out. Engines report that only if the kernel killed the first
        process itself, and podman 4 with cgroups v1 not even then; so the kernel's counter is read too."""
        if state.get("OOMKilled"):
            return "the container ran out of memory"
        oom_kills = _count_oom_kills() - oom_kills_before
        if code == _KILLED_CODE and oom_kills > 0:
            processes = "process" if oom_kills == 1 else "processes"
            return f"memory ran out: the kernel killed {oom_kills} {processes} for it meanwhile"
        return ""

    def _run_engine_command(self, purpose: str) -> subprocess.CompletedProcess[bytes]:
        """Run one of the order's commands."""
        return self._run_command(self._order[purpose])

    def _run_command(
        self, command: list[str], more_variables: Mapping[str, str] | None = None, may_take_long: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        return containers_commands.run(
            command,
            self._order["patience"],
            environment={**self._order["environment"], **(more_variables or {})},
            is_abandoned=self._check_abandoned if may_take_long else None,
            new_session=True,
        )

    def _check_abandoned(self) -> bool:
        """Return whether the lifeline has closed."""
        poll = select.poll()
        poll.register(self._lifeline_fd, select.POLLIN)
        self._is_abandoned = self._is_abandoned or bool(poll.poll(0))
        return self._is_abandoned

    def _write_report(self, line: str) -> None:
        """Write a line to the report."""
        try:
            os.write(self._report_fd, line.replace("\n", " ").encode("utf-8", "backslashreplace") + b"\n")
        except BrokenPipeError:
            self._is_abandoned = True

    def _print_note(self, order_data: str) -> None:
        """Write a line to the host's log."""
        os.write(sys.stdout.fileno(), f"[smlaunch] {order_data}\n".encode())


def _ignore_signal(signal_number: int, frame: object) -> None:
    """Do nothing: the number is read from the wake-up pipe."""


def _not_started_line(message: str) -> str:
    """Return the report's line for a container that did not start. The messages of all runtimes contain
    "exec" if the program cannot be executed; other errors (a mount, a network) are not the program's."""
    lower_message = message.lower()
    if "exec" in lower_message:
        if "not found" in lower_message or "no such file" in lower_message:
            return f"error program {_NOT_FOUND} {message}"
        if any(phrase in lower_message for phrase in ("permission denied", "is a directory", "exec format")):
            return f"error program {_NOT_EXECUTABLE} {message}"
    return f"error container {_ENGINE_FAILED} {message}"


def _count_oom_kills() -> int:
    """Return how many processes the kernel has killed on this machine because memory ran out."""
    try:
        with open(_OOM_COUNTER, "rb") as stream:
            return next(int(line.split()[1]) for line in stream if line.startswith(b"oom_kill "))
    except (OSError, StopIteration):
        return 0
