"""The supervisor of a container: creates and starts it, reports how it ended, and removes it.

    endpoint ── liveness pipe, instructions, report ──► supervisor ── engine's command line ──► container

The report has the lines of supervisor.py, and ``lost REASON`` if the engine lost the container. When the
liveness pipe closes, by intention or because the endpoint died, the container is killed and removed.
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

from smlaunch.local.executors import container_commands, container_relay
from smlaunch.local.executors.container_commands import TIMED_OUT_CODE, last_error_line

_NOT_FOUND_CODE, _NOT_EXECUTABLE_CODE, _ENGINE_ERROR_CODE = 127, 126, 125
"""Exit codes of a shell, and of Docker, for a program that cannot be started; and of Docker for an error of
its own."""
_SIGKILL_EXIT_CODE = 128 + signal.SIGKILL
_OOM_COUNTER = "/proc/vmstat"
_RETRY_MS = 100
_PID_POLL_SECONDS = 0.05


def main(liveness_fd: int, report_fd: int) -> None:
    """Run the supervisor of a container. The arguments are descriptors: the read end of the liveness pipe,
    which closes when the endpoint ends, and the write end of the report."""
    os.set_inheritable(liveness_fd, False)
    os.set_inheritable(report_fd, False)
    with open(0, "rb", closefd=False) as stream:
        instructions_json = stream.read()
    if not instructions_json:
        os._exit(0)  # the allocation was released before the host started
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    ContainerSupervisor(json.loads(instructions_json), liveness_fd, report_fd).supervise_container()
    os._exit(0)  # without the interpreter's shutdown, and although the relay's threads still run


class ContainerSupervisor:
    """Supervises one container."""

    def __init__(self, instructions: Mapping[str, Any], liveness_fd: int, report_fd: int) -> None:
        """``instructions`` has the engine's command lines by their purpose: ``create``, ``init`` (empty if
        the engine has none), ``start``, ``inspect``, ``terminate``, ``kill``, ``remove``; ``after_exit`` (a
        list of commands), run when the program has ended, before that is reported; ``remove_network``, run
        when the endpoint is dead. Beside them: ``environment``, the engine's environment;
        ``variables_passed_by_name``, variables that `create` has in addition; ``relay_port``, the endpoint's
        port, or 0; ``timeout_seconds``, the time limit of a short command; ``working_dir``, the host's own
        folder, in which the engine's commands run."""
        self._instructions = instructions
        # podman's monitor writes an empty file `oom` there when the kernel kills for lack of memory.
        os.chdir(instructions["working_dir"])
        self._liveness_fd = liveness_fd
        self._report_fd = report_fd
        self._is_endpoint_gone = False
        self._wakeup_reader, wakeup_writer = os.pipe()
        os.set_blocking(wakeup_writer, False)
        # Before anything runs, so that no SIGTERM is lost.
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        for signal_number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(signal_number, _ignore_signal)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def supervise_container(self) -> None:
        """Run this supervisor's container to its end, write the last line of the report to the local
        endpoint, and remove the container. ``self._instructions`` has the engine's commands by purpose."""
        try:
            report_line = self._run_container()
        except Exception as error:  # the endpoint waits for a report, whatever has failed here
            report_line = _format_error_report("container", _ENGINE_ERROR_CODE, repr(error))
        # Before the report, since the endpoint then reads the files: make this user the owner of what the
        # container's users wrote. That has no time limit while the endpoint lives.
        for command in self._instructions["after_exit"]:
            self._run_long_command(command)
        self._write_report(report_line)
        self._run_short_command("remove")
        if self._is_endpoint_gone:  # otherwise the endpoint removes the network, when all hosts have ended
            self._run_short_command("remove_network")

    def _run_container(self) -> str:
        """Create and start the container and wait for its end. Return the last line of the report to the
        endpoint: how the container ended. An engine with `init` (podman) prepares the container's network
        before it starts the program; the others start both at once."""
        create_result = self._run_long_command(
            self._instructions["create"], more_variables=self._instructions["variables_passed_by_name"]
        )
        if create_result.returncode != 0:
            return _format_error_report("container", _ENGINE_ERROR_CODE, last_error_line(create_result))
        engine_has_init = bool(self._instructions["init"])
        if engine_has_init:
            init_result = self._run_long_command(self._instructions["init"])
            if init_result.returncode != 0:
                return _format_start_failure_report(last_error_line(init_result))
            # The container has a network now, but its program does not run yet.
            self._forward_endpoint_port_into_container()
        oom_kills_before = _count_oom_kills()  # by the kernel, when memory runs out on this machine
        with subprocess.Popen(
            self._instructions["start"],
            stdin=subprocess.DEVNULL,
            env=self._instructions["environment"],
            start_new_session=True,  # signals reach the program only by the engine's `kill`
        ) as engine_client:
            if not engine_has_init:
                self._forward_endpoint_port_into_container(engine_client)
            self._write_report(f"started {engine_client.pid}")
            self._wait_for_container_end(engine_client)
        return self._determine_exit_report(oom_kills_before)

    def _forward_endpoint_port_into_container(
        self, engine_client: subprocess.Popen[bytes] | None = None
    ) -> None:
        """Let the container's program reach the endpoint at 127.0.0.1 and the endpoint's port: listen there
        in the container's network, and forward connections to this machine. With an isolated network
        (``relay_port`` 0), do nothing. ``engine_client`` is the process that starts the container, given if
        the engine has no `init`: then the container's network appears only some time later."""
        endpoint_port = self._instructions["relay_port"]
        if not endpoint_port:
            return
        container_pid = self._wait_for_container_pid(engine_client)  # of its first process; 0 without one
        if not container_pid:
            return  # the container has failed to start, or has ended already
        try:
            server_socket = container_relay.listen_in_network_of(container_pid, endpoint_port)
        except OSError as error:
            self._print_note(f"the endpoint cannot be reached from this host: {error}")
            return
        container_relay.start_forwarding(server_socket, endpoint_port)

    def _wait_for_container_pid(self, engine_client: subprocess.Popen[bytes] | None) -> int:
        """Return the pid of the container's first process; 0 if it has none. ``engine_client`` is the process
        that starts the container, given if the engine has no `init`: then the pid is known only some time
        later, so wait for it while the client runs."""
        container_pid = self._find_container_pid()
        while (
            not container_pid
            and engine_client is not None
            and engine_client.poll() is None
            and not self._check_endpoint_gone()
        ):
            time.sleep(_PID_POLL_SECONDS)
            container_pid = self._find_container_pid()
        return container_pid

    def _find_container_pid(self) -> int:
        """Return the pid of the container's first process; 0 if it has none."""
        inspection = self._run_short_command("inspect")
        return 0 if inspection.returncode else int(json.loads(inspection.stdout)["Pid"])

    def _wait_for_container_end(self, engine_client: subprocess.Popen[bytes]) -> None:
        """Wait until ``engine_client``, the engine's `start` command, ends, as it does after the container's
        end. Meanwhile pass SIGTERM on to the container, and kill the container when the endpoint (the process
        that started this supervisor) is gone; if the engine fails to do that in time, kill its client."""
        kill_client_at: float | None = None  # monotonic time; None while the endpoint lives
        poll = select.poll()
        # The endpoint holds the other end of this pipe: it closes when the endpoint ends or dies.
        poll.register(self._liveness_fd, select.POLLIN)
        # Signals, SIGCHLD at the client's end among them, write their numbers to this pipe.
        poll.register(self._wakeup_reader, select.POLLIN)
        must_terminate = False
        while engine_client.poll() is None:
            must_check_again = must_terminate or kill_client_at is not None
            # Wait for one of the two pipes; at most 100 ms if something is to be tried or checked again.
            for descriptor, _ in poll.poll(_RETRY_MS if must_check_again else None):
                if descriptor == self._liveness_fd:
                    poll.unregister(self._liveness_fd)  # it would stay readable
                    self._kill_container_of_dead_endpoint()
                    kill_client_at = time.monotonic() + self._instructions["timeout_seconds"]
                elif signal.SIGTERM in os.read(self._wakeup_reader, 4096):
                    must_terminate = True
            if must_terminate:
                # A container that is just being started cannot be signalled yet: try again.
                must_terminate = self._run_short_command("terminate").returncode != 0
            if kill_client_at is not None and time.monotonic() > kill_client_at:
                container_commands.terminate_or_kill(engine_client, signal_session=True)

    def _kill_container_of_dead_endpoint(self) -> None:
        self._is_endpoint_gone = True
        kill_result = self._run_short_command("kill")
        if kill_result.returncode != 0:
            self._run_short_command("remove")  # the container does not run yet, or has ended

    def _determine_exit_report(self, oom_kills_before: int) -> str:
        """Return the last line of the report to the endpoint: ``exit CODE [MESSAGE]``, ``killed SIGNAL``,
        ``lost REASON`` or, if the program never ran, ``error STEP CODE MESSAGE``. ``oom_kills_before``: how
        many processes the kernel had killed for lack of memory when the container started. Removes a
        container that still runs."""
        inspection = self._run_short_command("inspect")
        if inspection.returncode != 0:
            if self._is_endpoint_gone:  # then this supervisor has killed or removed the container
                return f"killed {signal.SIGKILL}"
            prefix = "" if inspection.returncode == TIMED_OUT_CODE else "the container is gone: "
            return f"lost {prefix}{last_error_line(inspection)}"
        state = json.loads(inspection.stdout)
        # The client of `start` has ended and the container has not: its output would be lost from here on,
        # so the container is removed.
        if state["Status"] == "running":
            self._run_short_command("remove")
            return "lost the engine's client, which carried the output, was killed"
        was_never_started = str(state["StartedAt"]).startswith("0001")  # the zero time: year 1
        if was_never_started:
            return _format_start_failure_report(state.get("Error") or "the container was not started")
        exit_code = int(state["ExitCode"])
        return f"exit {exit_code} {self._describe_oom(exit_code, state, oom_kills_before)}".rstrip()

    def _describe_oom(self, exit_code: int, state: Mapping[str, Any], oom_kills_before: int) -> str:
        """Return a message if memory ran out in the container, otherwise an empty one. ``state`` is the
        engine's State of the ended container; ``oom_kills_before`` is the count of the processes that the
        kernel had killed for lack of memory at its start.

        Engines report that memory ran out only if the kernel killed the first process itself, and podman 4
        with cgroups v1 not even then; so the kernel's counter (of the whole machine) is read too."""
        if state.get("OOMKilled"):
            return "the container ran out of memory"
        oom_kills = _count_oom_kills() - oom_kills_before  # "oom": out of memory
        if exit_code == _SIGKILL_EXIT_CODE and oom_kills > 0:
            noun = "process" if oom_kills == 1 else "processes"
            return f"memory ran out: the kernel killed {oom_kills} {noun} for it meanwhile"
        return ""

    def _run_short_command(self, purpose: str) -> subprocess.CompletedProcess[bytes]:
        """Run the engine's command for a purpose (inspect, terminate, kill, remove, remove_network), which
        does not take long."""
        return container_commands.run_with_timeout(
            self._instructions[purpose],
            self._instructions["timeout_seconds"],
            environment=self._instructions["environment"],
            start_new_session=True,
        )

    def _run_long_command(
        self, command: list[str], more_variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command that may take as long as the endpoint lives."""
        return container_commands.run_while_endpoint_lives(
            command,
            self._check_endpoint_gone,
            self._instructions["timeout_seconds"],
            environment={**self._instructions["environment"], **(more_variables or {})},
        )

    def _check_endpoint_gone(self) -> bool:
        """Return whether the liveness pipe has closed, as it does when the endpoint ends or dies."""
        poll = select.poll()
        poll.register(self._liveness_fd, select.POLLIN)
        self._is_endpoint_gone = self._is_endpoint_gone or bool(poll.poll(0))
        return self._is_endpoint_gone

    def _write_report(self, line: str) -> None:
        """Write a line to the report."""
        try:
            os.write(self._report_fd, line.replace("\n", " ").encode("utf-8", "backslashreplace") + b"\n")
        except BrokenPipeError:
            self._is_endpoint_gone = True

    def _print_note(self, note: str) -> None:
        """Write a line to the host's log."""
        os.write(sys.stdout.fileno(), f"[smlaunch] {note}\n".encode())


def _ignore_signal(signal_number: int, frame: object) -> None:
    """Do nothing: the number is read from the wake-up pipe."""


def _format_start_failure_report(message: str) -> str:
    """Return the report line for a container that did not start; ``message`` is the engine's. The failed step
    is ``program`` if the program itself cannot be executed, otherwise (a mount, a network) ``container``."""
    lower_message = message.lower()
    if "exec" in lower_message:  # in the messages of all runtimes if the program cannot be executed
        if "not found" in lower_message or "no such file" in lower_message:
            return _format_error_report("program", _NOT_FOUND_CODE, message)
        if any(phrase in lower_message for phrase in ("permission denied", "is a directory", "exec format")):
            return _format_error_report("program", _NOT_EXECUTABLE_CODE, message)
    return _format_error_report("container", _ENGINE_ERROR_CODE, message)


def _format_error_report(failed_step: str, exit_code: int, message: str) -> str:
    """Return the report line for a program that was not started since a step (container or program) has
    failed. ``exit_code``: what a shell or Docker would exit with."""
    return f"error {failed_step} {exit_code} {message}"


def _count_oom_kills() -> int:
    """Return how many processes the kernel has killed on this machine because memory ran out."""
    try:
        with open(_OOM_COUNTER, "rb") as stream:
            return next(int(line.split()[1]) for line in stream if line.startswith(b"oom_kill "))
    except (OSError, StopIteration):
        return 0
