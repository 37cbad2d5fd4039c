"""The supervisor of a host, a process outside it: starts the host's first process, forwards signals, and
reports how it ended.

    endpoint ── lifeline, plan, report ──► supervisor ── fork ──► first process (pid 1 of its namespace)

The report consists of lines of text: ``started PID``, ``exit CODE``, ``killed SIGNAL``, ``error STEP CODE
MESSAGE``.

The lifeline is a pipe whose other end only the endpoint has. When it closes, by intention or because the
endpoint died, the supervisor kills the host. When the supervisor dies, the kernel kills the first process.

It imports little: every host waits for these imports.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import os
import select
import signal
import sys

from smlaunch.local.executors.host_plan import HostPlan

_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""Exit codes of a shell, and of Docker, for a program that cannot be started."""


def main(lifeline_fd: int, report_fd: int) -> None:
    """Run the supervisor. The arguments are descriptors: the read end of the lifeline and the write end of
    the report."""
    os.set_inheritable(lifeline_fd, False)
    os.set_inheritable(report_fd, False)
    with open(0, "rb", closefd=False) as stream:
        plan_data = stream.read()
    if not plan_data:
        os._exit(0)  # the allocation was released before the host started
    plan = HostPlan.decode(plan_data)
    wakeup_reader, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    # Before the fork, so that no signal is lost between the fork and the loop.
    signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
    for number in (*_FORWARDED_SIGNALS, signal.SIGCHLD):
        signal.signal(number, _ignore_signal)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # unblock what the thread that started us had blocked
    try:
        pid_or_error = _start_first_process(plan)
    except OSError as error:
        pid_or_error = _error_line("isolation", error.strerror or str(error))
    if isinstance(pid_or_error, bytes):
        _write_report(report_fd, pid_or_error)
        os._exit(1)
    _write_report(report_fd, b"started %d" % pid_or_error)
    status = _wait_for_end(pid_or_error, lifeline_fd, wakeup_reader)
    if plan.level == "plain":
        from smlaunch.local.executors.process_cleanup import kill_descendants

        kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    _write_report(report_fd, b"exit %d" % code if code >= 0 else b"killed %d" % -code)
    os._exit(0)  # without the interpreter's shutdown, which takes time


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the number is read from the wake-up pipe."""


def _error_line(step: str, message: str, code: int = _NOT_EXECUTABLE) -> bytes:
    """Return a line for the report. ``step`` is isolation or program."""
    return f"error {step} {code} {message}".encode("utf-8", "backslashreplace")


def _write_report(report_fd: int, line: bytes) -> None:
    """Write a line to the report."""
    try:
        os.write(report_fd, line + b"\n")
    except BrokenPipeError:
        return  # the endpoint has ended; the lifeline is closed too


def _start_first_process(plan: HostPlan) -> int | bytes:
    """Return the first process's pid when its program runs, or the error line for the report."""
    if sys.platform == "linux":
        from smlaunch.local.executors import namespaces

        if plan.level == "plain":
            namespaces.adopt_orphans()
        else:
            namespaces.enter_namespaces(plan.level, plan.network)
    go_reader, go_writer = os.pipe()
    error_reader, error_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_writer)
        _run_first_process(plan, go_reader, error_writer)
    os.close(go_reader)
    os.close(error_writer)
    os.write(go_writer, b".")
    with open(error_reader, "rb") as stream:
        line = stream.read()  # empty if the program runs: exec closes the pipe
    if not line:
        return pid
    os.waitpid(pid, 0)
    return line


def _run_first_process(plan: HostPlan, go_reader: int, error_writer: int) -> None:
    """Become the host's program, or write an error line to ``error_writer``. Never returns."""
    step = "isolation"
    try:
        signal.set_wakeup_fd(-1)
        if sys.platform == "linux":
            from smlaunch.local.executors import namespaces

            namespaces.die_with_parent()
        # The supervisor may have died before that took effect; then nobody writes to the go pipe.
        if not os.read(go_reader, 1):
            os._exit(1)
        if plan.level == "plain":
            os.setsid()
        else:
            namespaces.build_host(plan)
        for number in (*_FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        step = "program"
        os.chdir(plan.directory)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvpe(plan.argv[0], plan.argv, plan.environment)  # noqa: S606 - without a shell on purpose
    except OSError as error:
        problem = f"{plan.argv[0]}: {error.strerror}" if step == "program" else error.strerror or str(error)
        code = _NOT_FOUND if step == "program" and isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        os.write(error_writer, _error_line(step, problem, code))
    except BaseException as error:
        os.write(error_writer, _error_line(step, repr(error)))
    os._exit(1)


def _wait_for_end(first_pid: int, lifeline_fd: int, wakeup_reader: int) -> int:
    """Wait until the first process ends, and return its wait status."""
    poll = select.poll()
    poll.register(lifeline_fd, select.POLLIN)
    poll.register(wakeup_reader, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == lifeline_fd:
                poll.unregister(lifeline_fd)
                os.kill(first_pid, signal.SIGKILL)
                continue
            for signal_number in os.read(wakeup_reader, 4096):
                if signal_number == signal.SIGCHLD:
                    status = _reap_children(first_pid)
                    if status is not None:
                        return status
                else:
                    os.kill(first_pid, signal_number)


def _reap_children(first_pid: int) -> int | None:
    """Reap all children that have ended, adopted orphans too. Return the wait status of the first process if
    it has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == first_pid:
            return status
        if pid == 0:
            return None
