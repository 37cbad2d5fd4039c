"""The process outside a host: starts the host's first process, forwards signals, reports how it ended.

    endpoint ── lifeline, plan, report ──► supervisor ── fork ──► first process (pid 1 of its namespace)

The report is lines of text: ``started PID``, ``exit CODE``, ``killed SIGNAL``, ``error STEP CODE MESSAGE``.

The lifeline is a pipe whose other end only the endpoint holds. When it closes, on purpose or because the
endpoint died, the host dies. When the supervisor dies, the kernel kills the first process with it.

Its imports are few on purpose: every host waits for them.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import os
import select
import signal
import sys

from smlaunch.local.executors.host_plan import HostPlan

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""What a shell, and docker, exit with when a program cannot be started."""


def main(lifeline: int, report: int) -> None:
    os.set_inheritable(lifeline, False)
    os.set_inheritable(report, False)
    with open(0, "rb", closefd=False) as stream:
        text = stream.read()
    if not text:
        os._exit(0)  # the job was given up before it started
    plan = HostPlan.decode(text)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    # Before the fork: no signal may be lost between the child's birth and the loop.
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (*_FORWARDED, signal.SIGCHLD):
        signal.signal(number, _noted)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the thread that started us had blocked
    try:
        first = _start(plan)
    except OSError as error:
        first = _error("isolation", error.strerror or str(error))
    if isinstance(first, bytes):
        _say(report, first)
        os._exit(1)
    _say(report, b"started %d" % first)
    status = _watch(first, lifeline, woken)
    if plan.level == "plain":
        from smlaunch.local.executors.process_cleanup import kill_children

        kill_children()
    code = os.waitstatus_to_exitcode(status)
    _say(report, b"exit %d" % code if code >= 0 else b"killed %d" % -code)
    os._exit(0)  # spares the interpreter's own leave-taking


def _noted(number: int, frame: object) -> None:
    """The number is read from the wake-up pipe."""


def _error(step: str, message: str, code: int = _NOT_EXECUTABLE) -> bytes:
    """``step`` is isolation or program."""
    return f"error {step} {code} {message}".encode("utf-8", "backslashreplace")


def _say(report: int, line: bytes) -> None:
    try:
        os.write(report, line + b"\n")
    except BrokenPipeError:
        return  # the endpoint is gone, and the lifeline has said so


def _start(plan: HostPlan) -> int | bytes:
    """The first process's pid once its program runs, or the line that says why it does not."""
    if sys.platform == "linux":
        from smlaunch.local.executors import namespaces

        if plan.level == "plain":
            namespaces.adopt_orphans()
        else:
            namespaces.enter(plan.level, plan.network)
    go_read, go_write = os.pipe()
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        _first_process(plan, go_read, error_write)
    os.close(go_read)
    os.close(error_write)
    os.write(go_write, b".")
    with open(error_read, "rb") as stream:
        line = stream.read()  # empty once the program was executed: the pipe closes by itself then
    if not line:
        return pid
    os.waitpid(pid, 0)
    return line


def _first_process(plan: HostPlan, go: int, errors: int) -> None:
    """Never returns: becomes the host's program, or says on ``errors`` why not."""
    step = "isolation"
    try:
        signal.set_wakeup_fd(-1)
        if sys.platform == "linux":
            from smlaunch.local.executors import namespaces

            namespaces.die_with_parent()
        # The supervisor may have died before that took effect; then nobody says go.
        if not os.read(go, 1):
            os._exit(1)
        if plan.level == "plain":
            os.setsid()
        else:
            namespaces.furnish(plan)
        for number in (*_FORWARDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        step = "program"
        os.chdir(plan.directory)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvpe(plan.argv[0], plan.argv, plan.environment)  # noqa: S606 - without a shell on purpose
    except OSError as error:
        what = f"{plan.argv[0]}: {error.strerror}" if step == "program" else error.strerror or str(error)
        code = _NOT_FOUND if step == "program" and isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        os.write(errors, _error(step, what, code))
    except BaseException as error:
        os.write(errors, _error(step, repr(error)))
    os._exit(1)


def _watch(first: int, lifeline: int, woken: int) -> int:
    """Waits for the end of the first process and returns its wait status."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == lifeline:
                poll.unregister(lifeline)
                os.kill(first, signal.SIGKILL)
                continue
            for number in os.read(woken, 4096):
                if number == signal.SIGCHLD:
                    status = _reap(first)
                    if status is not None:
                        return status
                else:
                    os.kill(first, number)


def _reap(first: int) -> int | None:
    """Adopted orphans are reaped on the way."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == first:
            return status
        if pid == 0:
            return None
