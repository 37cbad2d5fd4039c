"""SIGTERM in every phase of the runtime, as an ordinary process and as PID 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.host import Host, finish

MakeHost = Callable[..., Host]

AS_PID_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

EXIT_ON_SIGTERM = """
import os, signal, sys
def leave(number, frame):
    open("left-by-" + os.environ["RANK"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""
IGNORE_SIGTERM = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", os.getpid(), flush=True)
while True:
    signal.pause()
"""
DIE_OF_SIGTERM = "import signal\nprint('ready', flush=True)\nsignal.pause()\n"


def read_ready_lines(process: subprocess.Popen[str], ranks: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(ranks)]


def runtime_of(process: subprocess.Popen[str], wrapped: bool) -> int:
    """Return the pid of the runtime: below unshare it is the only child."""
    if not wrapped:
        return process.pid
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@pytest.mark.parametrize(
    "wrapper", [pytest.param((), id="process"), pytest.param(AS_PID_1, id="pid1", marks=pytest.mark.root)]
)
class TestStop:
    def test_each_rank_is_told_and_may_leave_in_peace(
        self, make_host: MakeHost, wrapper: tuple[str, ...]
    ) -> None:
        host = make_host(EXIT_ON_SIGTERM, wrapper=wrapper)
        with host.start(per_host=2) as process:
            read_ready_lines(process, 2)
            os.kill(runtime_of(process, bool(wrapper)), signal.SIGTERM)
            result = finish(process)
        assert (result.exit_code, host.failure) == (0, "")
        assert {"left-by-0", "left-by-1"} <= set(os.listdir(host.paths.code))

    def test_ranks_that_die_of_it_are_no_failure(self, make_host: MakeHost, wrapper: tuple[str, ...]) -> None:
        host = make_host(DIE_OF_SIGTERM, wrapper=wrapper)
        with host.start(per_host=2) as process:
            read_ready_lines(process, 2)
            os.kill(runtime_of(process, bool(wrapper)), signal.SIGTERM)
            result = finish(process)
        assert (result.exit_code, host.failure) == (143, "")

    def test_the_deaf_are_killed_when_the_grace_is_over(
        self, make_host: MakeHost, wrapper: tuple[str, ...]
    ) -> None:
        host = make_host(IGNORE_SIGTERM, wrapper=wrapper)
        with host.start(per_host=2, grace_seconds=0.3) as process:
            read_ready_lines(process, 2)
            os.kill(runtime_of(process, bool(wrapper)), signal.SIGTERM)
            result = finish(process)
        assert result.exit_code == 137

    def test_before_there_are_ranks(self, make_host: MakeHost, wrapper: tuple[str, ...]) -> None:
        """The host waits for a leader whose name never resolves; a stop must not wait for it."""
        hosts = ["nobody-1.invalid", "nobody-2.invalid"]
        host = make_host(DIE_OF_SIGTERM, hosts=hosts, current=hosts[1], wrapper=wrapper)
        with host.start(per_host=2) as process:
            unpacked = Path(host.paths.code) / "train.py"
            while not unpacked.exists():
                time.sleep(0.01)
            os.kill(runtime_of(process, bool(wrapper)), signal.SIGTERM)
            result = finish(process)
        assert (result.exit_code, result.stdout, host.failure) == (143, "", "")


@pytest.mark.root
def test_a_stop_that_came_before_the_first_instruction_is_not_lost(make_host: MakeHost) -> None:
    """PID 1 loses signals without a handler, but not blocked ones; the runtime unblocks them in time."""
    starter = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    host = make_host(DIE_OF_SIGTERM)
    result = make_host(
        name="other", wrapper=(*AS_PID_1, host.python, "-c", starter), train=DIE_OF_SIGTERM
    ).run(per_host=2)
    assert (result.exit_code, result.stdout) == (143, "")


def test_loader_workers_do_not_die_before_their_rank(make_host: MakeHost) -> None:
    """SIGTERM goes to the rank alone; its children, in the same process group, run until the rank ends."""
    train = """
import os, signal, subprocess, sys
worker = subprocess.Popen(["sleep", "1000"])
def leave(number, frame):
    print("worker", worker.poll(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", worker.pid, flush=True)
signal.pause()
"""
    with make_host(train).start() as process:
        worker = int(read_ready_lines(process, 1)[0].split()[-1])
        process.terminate()
        result = finish(process)
    assert result.lines == ["[0] worker None"]
    assert not Path(f"/proc/{worker}").exists(), "what a rank leaves behind must not outlive the host"


def test_other_signals_are_passed_on(make_host: MakeHost) -> None:
    train = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""
    with make_host(train).start() as process:
        read_ready_lines(process, 1)
        process.send_signal(signal.SIGUSR1)
        assert finish(process).exit_code == 7


def test_a_rank_that_fails_on_its_way_out_is_a_failure(make_host: MakeHost) -> None:
    train = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print(flush=True)
signal.pause()
"""
    host = make_host(train)
    with host.start() as process:
        read_ready_lines(process, 1)
        process.terminate()
        result = finish(process)
    assert result.exit_code == 5
    assert host.failure.startswith("rank 0 on algo-1 exited with code 5")


def test_ctrl_c_on_a_terminal_stops_too(make_host: MakeHost) -> None:
    with make_host("import signal\nprint(flush=True)\nsignal.pause()").start(per_host=2) as process:
        read_ready_lines(process, 2)
        process.send_signal(signal.SIGINT)
        assert finish(process).exit_code == 130


def test_a_stop_while_requirements_are_installed(make_host: MakeHost, tmp_path: Path) -> None:
    """pip reads its requirements from a pipe without a writer, so that it never ends."""
    host = make_host(DIE_OF_SIGTERM, environ={"SMLAUNCH_SHARED_PYTHON": "1"})
    Path(host.paths.code).mkdir()
    fifo = Path(host.paths.code) / "requirements.txt"
    os.mkfifo(fifo)
    # The runtime requires a regular file; only pip follows the include.
    (Path(host.paths.code) / "all.txt").write_text("-r requirements.txt\n")
    with host.start(per_host=1, requirements="all.txt", grace_seconds=5.0) as process, fifo.open("w"):
        process.terminate()
        result = finish(process)
    assert result.exit_code == 143
    assert "ready" not in result.stdout


@pytest.mark.parametrize(
    "wrapper", [pytest.param((), id="process"), pytest.param(AS_PID_1, id="pid1", marks=pytest.mark.root)]
)
def test_an_orphan_that_never_stops_writing_does_not_keep_the_host(
    make_host: MakeHost, wrapper: tuple[str, ...]
) -> None:
    train = "import subprocess\nsubprocess.run(['sh', '-c', 'setsid yes & exec true'], check=True)\n"
    assert make_host(train, wrapper=wrapper).run().exit_code == 0


def test_orphans_are_found_wherever_they_went(make_host: MakeHost) -> None:
    """A daemon in a session of its own, whose parent has ended, is in no process group of the runtime."""
    train = """
import subprocess
import sys
daemon = subprocess.run(
    ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True, check=True
)
print(daemon.stdout.strip())
"""
    result = make_host(train).run()
    daemon = int(result.stdout.split()[-1])
    assert result.exit_code == 0
    assert not Path(f"/proc/{daemon}").exists()


@pytest.mark.root
def test_pid_1_reaps_orphans_that_are_nobodys(make_host: MakeHost) -> None:
    train = """
import os, subprocess, time
for _ in range(5):
    subprocess.run(["sh", "-c", "sh -c 'exit 3' & exec true"], check=True)
def zombies():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name) as file:
                found += [name] if file.read().rpartition(")")[2].split()[0] == "Z" else []
        except OSError:
            pass
    return found
end = time.monotonic() + 10
while zombies() and time.monotonic() < end:
    time.sleep(0.01)
print("zombies", zombies())
"""
    assert make_host(train, wrapper=AS_PID_1).run().lines == ["[0] zombies []"]


def test_a_reader_that_has_stopped_reading_does_not_delay_a_stop(make_host: MakeHost) -> None:
    train = """
import os, signal
def leave(number, frame):
    open("told", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
while True:
    os.write(1, b"x" * 99 + b"\\n")
"""
    host = make_host(train)
    with host.start() as process:
        read_ready_lines(process, 1)  # from now on nobody reads; every pipe on the way fills up
        process.terminate()
        marker = Path(host.paths.code) / "told"
        end = time.monotonic() + 20
        while not marker.exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert marker.exists()
        assert finish(process).exit_code == 0


def test_a_stop_that_is_raised_into_a_callback_is_not_lost() -> None:
    """Python drops exceptions of a weak reference's callback; imports have such callbacks."""
    from smlaunch.runtime.errors import StoppedDuringSetup
    from smlaunch.runtime.signals import SignalQueue

    class Referent:
        pass

    signals = SignalQueue()
    referent = Referent()
    dropped: list[object] = []

    def stop(_: object) -> None:
        dropped.append(True)
        signals._handle(signal.SIGTERM, None)

    reference = weakref.ref(referent, stop)
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: dropped.append(unraisable.exc_type)
    try:
        del referent
    finally:
        sys.unraisablehook = hook
    assert reference() is None
    assert dropped == [True, StoppedDuringSetup]
    signals.defer()
    assert signals.take_pending() == [signal.SIGTERM]
