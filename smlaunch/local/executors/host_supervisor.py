"""The supervisor of a host, a process outside it: starts the host's first process, forwards signals, and
reports how it ended.

    endpoint ── liveness pipe, plan, report ──► supervisor ── fork ──► first process (pid 1 of its namespace)

The report consists of lines of text: ``started PID``, ``exit CODE``, ``killed SIGNAL``, ``error STEP CODE
MESSAGE``.

The liveness pipe is a pipe whose other end only the endpoint has. When it closes, by intention or because the
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
_NOT_FOUND_CODE, _NOT_EXECUTABLE_CODE = 127, 126
"""Exit codes of a shell, and of Docker, for a program that cannot be started."""


def main(liveness_fd: int, report_fd: int) -> None:
    """Run the supervisor of a host (the process that starts the host's first process and reports its end to
    the endpoint). Its HostPlan, what the host runs and sees, comes from standard input. The arguments are
    descriptors: the read end of the liveness pipe, which closes when the endpoint ends, and the write end of
    the report."""
    os.set_inheritable(liveness_fd, False)  # the host's program must have neither of them
    os.set_inheritable(report_fd, False)
    with open(0, "rb", closefd=False) as stream:
        plan_data = stream.read()
    if not plan_data:
        os._exit(0)  # the endpoint no longer wants the host
    plan = HostPlan.decode(plan_data)  # the program, its environment, mounts and isolation level
    # Before the fork, so that no signal is lost between the fork and the loop.
    wakeup_reader = _redirect_signals_to_pipe()
    try:
        first_pid = _start_first_process(plan)
    except _HostNotStarted as failure:  # the forked process has written why: ``error STEP CODE MESSAGE``
        _write_report(report_fd, failure.report_line)
        os._exit(1)
    except OSError as error:
        _write_report(report_fd, _format_error_report("isolation", error.strerror or str(error)))
        os._exit(1)
    _write_report(report_fd, b"started %d" % first_pid)
    wait_status = _wait_for_first_process(first_pid, liveness_fd, wakeup_reader)
    # Plain is the level without namespaces; at others the kernel ends all processes with the first one.
    if plan.isolation_level == "plain":
        from smlaunch.local.executors.process_cleanup import kill_descendants

        kill_descendants()
    exit_code = os.waitstatus_to_exitcode(wait_status)  # negative: ended by that signal
    _write_report(report_fd, b"exit %d" % exit_code if exit_code >= 0 else b"killed %d" % -exit_code)
    os._exit(0)  # without the interpreter's shutdown, which takes time


class _HostNotStarted(Exception):
    """The program of the host could not be started; ``report_line`` says why."""

    def __init__(self, report_line: bytes) -> None:
        super().__init__(report_line)
        self.report_line = report_line


def _redirect_signals_to_pipe() -> int:
    """Let signals only write their numbers to a pipe, and return its read end."""
    wakeup_reader, wakeup_writer = os.pipe()
    os.set_blocking(wakeup_writer, False)
    signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
    for signal_number in (*_FORWARDED_SIGNALS, signal.SIGCHLD):
        signal.signal(signal_number, _ignore_signal)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # unblock what the thread that started us had blocked
    return wakeup_reader


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the number is read from the wake-up pipe."""


def _format_error_report(step: str, message: str, code: int = _NOT_EXECUTABLE_CODE) -> bytes:
    """Return a line for the report. ``step`` is isolation or program."""
    return f"error {step} {code} {message}".encode("utf-8", "backslashreplace")


def _write_report(report_fd: int, line: bytes) -> None:
    """Write a line to the report."""
    try:
        os.write(report_fd, line + b"\n")
    except BrokenPipeError:
        return  # the endpoint has ended; the liveness pipe is closed too


def _start_first_process(plan: HostPlan) -> int:
    """Fork the first process of a host, and return its pid when its program runs. Raises _HostNotStarted if
    the program cannot be started, and OSError if the host cannot be isolated."""
    if sys.platform == "linux":
        from smlaunch.local.executors import namespaces

        if plan.isolation_level == "plain":  # without namespaces
            namespaces.adopt_orphans()  # so that no process of the host escapes when its parent ends
        else:
            namespaces.enter_namespaces(plan.isolation_level, plan.network)
    # The child waits for a byte in this pipe; if this process dies first, the pipe closes instead.
    permission_reader, permission_writer = os.pipe()
    error_reader, error_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(permission_writer)
        _exec_program_of_host(plan, permission_reader, error_writer)  # never returns
    os.close(permission_reader)
    os.close(error_writer)
    os.write(permission_writer, b".")
    with open(error_reader, "rb") as stream:
        report_line = stream.read()  # empty if the program runs: exec closes the pipe
    if report_line:
        os.waitpid(pid, 0)
        raise _HostNotStarted(report_line)
    return pid


def _exec_program_of_host(plan: HostPlan, permission_reader: int, error_writer: int) -> None:
    """Set up the host in this forked process and exec its program, or write the report line ``error STEP CODE
    MESSAGE`` to ``error_writer``; STEP is isolation or program, CODE what a shell would exit with. The
    supervisor writes a byte to the pipe of ``permission_reader`` when it is ready. Never returns."""
    step = "isolation"
    try:
        signal.set_wakeup_fd(-1)  # no longer write signals to the pipe of the supervisor
        if sys.platform == "linux":
            from smlaunch.local.executors import namespaces

            namespaces.die_with_parent()
        # The supervisor may have died before that took effect; then the pipe closes without a byte.
        if not os.read(permission_reader, 1):
            os._exit(1)
        if plan.isolation_level == "plain":
            os.setsid()  # signals of the supervisor's session must not reach the program
        else:
            namespaces.set_up_host(plan)
        # Python ignores the last two, and exec would keep that.
        for signal_number in (*_FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signal_number, signal.SIG_DFL)
        step = "program"
        os.chdir(plan.working_directory)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvpe(plan.argv[0], plan.argv, plan.environment)  # noqa: S606 - without a shell on purpose
    except OSError as error:
        problem, code = error.strerror or str(error), _NOT_EXECUTABLE_CODE
        if step == "program":
            problem = f"{plan.argv[0]}: {error.strerror}"
            code = _NOT_FOUND_CODE if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE_CODE
        os.write(error_writer, _format_error_report(step, problem, code))
    except BaseException as error:
        os.write(error_writer, _format_error_report(step, repr(error)))
    os._exit(1)


def _wait_for_first_process(first_pid: int, liveness_fd: int, wakeup_reader: int) -> int:
    """Wait until the host's first process ends, and return its wait status. Meanwhile forward to it the
    signals that this process receives, whose numbers come from the pipe ``wakeup_reader``
    (signal.set_wakeup_fd), and kill it when the liveness pipe closes: the endpoint is gone then."""
    poll = select.poll()
    poll.register(liveness_fd, select.POLLIN)
    poll.register(wakeup_reader, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == liveness_fd:
                poll.unregister(liveness_fd)  # it would stay readable
                os.kill(first_pid, signal.SIGKILL)
                continue
            for signal_number in os.read(wakeup_reader, 4096):  # each byte is a signal's number
                if signal_number == signal.SIGCHLD:
                    wait_status = _reap_ended_children(first_pid)
                    if wait_status is not None:
                        return wait_status
                else:
                    os.kill(first_pid, signal_number)


def _reap_ended_children(first_pid: int) -> int | None:
    """Reap the children that have ended, adopted orphans too, until the host's first process is among them.
    Return its wait status; None while it runs."""
    while True:
        try:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)  # -1: any child
        except ChildProcessError:
            return None  # there are no children
        if pid == first_pid:
            return wait_status
        if pid == 0:  # no other child has ended
            return None
