"""Hosts without ranks follow the leader: real runtimes, one process per host, some of which are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from smlaunch.contract.failure_reason import parse_failure
from smlaunch.contract.launch_spec import LEADER, OTHERS, Concat, Ref, ServiceSpec
from smlaunch.contract.tcp_ports import CONTROL_CHANNEL_PORT
from smlaunch.local.executors import loopback
from smlaunch.runtime import control_channel, job_secret
from smlaunch.runtime.control_channel import LeaderChannel
from smlaunch.runtime.host_outcome import HostExitReport
from smlaunch.runtime.peer_connection import CONTROL_PURPOSE, initiate_handshake
from tests.runtime.host import Host, Result, finish
from tests.runtime.test_ranks import python_of

MakeHost = Callable[..., Host]

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SECRET = "ab" * 32
WORKER_SCRIPT = """
import signal, socket, sys
def leave(number, frame):
    print("told to end", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    server.accept()
"""
WORKER = ServiceSpec(
    "worker",
    (Ref("python"), Ref("source", suffix="/worker.py"), Ref("host"), Ref("own_port", offset=8)),
    runs_on=OTHERS,
    ready_address=Concat((Ref("host", suffix=":"), Ref("own_port", offset=8))),
)


@pytest.fixture
def port() -> Iterator[int]:
    """The first port of a block that no other job and no outgoing connection gets."""
    reserved = loopback.reserve_addresses(1)
    yield reserved.port
    reserved.release()


class Job:
    """The hosts of one job; ``hosts[0]`` is the leader. ``close`` ends the processes that still run."""

    def __init__(
        self,
        make_host: MakeHost,
        train: str,
        port: int,
        worker: str = WORKER_SCRIPT,
        names: Sequence[str] = HOSTS,
        secrets: Sequence[str] = (),
        services: Sequence[ServiceSpec] = (WORKER,),
        environ: dict[str, str] | None = None,
        python: str = sys.executable,
        **spec: object,
    ) -> None:
        self.hosts = [
            make_host(
                train,
                name=f"host-{name}",
                hosts=names,
                current=name,
                source={"worker.py": worker},
                environ=environ or {},
                python=python,
            )
            for name in names
        ]
        for host, text in zip(self.hosts, secrets or [SECRET] * len(names), strict=True):
            (host.runtime.parent / "secret").write_text(text)
        self._spec = {"on": LEADER, "rendezvous": False, "services": services, "port": port, **spec}
        self.processes: list[subprocess.Popen[str]] = []
        self.results: list[Result] = []

    def start(self, order: Sequence[int] | None = None) -> Job:
        started = {index: self.hosts[index].start(**self._spec) for index in order or range(len(self.hosts))}
        self.processes = [started[index] for index in range(len(self.hosts))]
        return self

    def finish(self) -> Job:
        self.results = [finish(process) for process in self.processes]
        return self

    @property
    def codes(self) -> list[int]:
        return [result.exit_code for result in self.results]

    @property
    def failures(self) -> list[str]:
        return [host.failure.partition("\n")[0] for host in self.hosts]

    def await_line(self, index: int, expected: str) -> None:
        stream = self.processes[index].stdout
        assert stream is not None
        while True:
            line = stream.readline()
            assert line, f"host {index} ended without {expected!r}"
            if line.strip().endswith(expected):
                return

    def child(self, index: int, word: str) -> int:
        """Return the pid of the child of a host's runtime that has ``word`` on its command line."""
        runtime = self.processes[index].pid
        children = Path(f"/proc/{runtime}/task/{runtime}/children").read_text().split()
        (child_pid,) = (
            int(pid) for pid in children if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return child_pid

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def make_job(make_host: MakeHost, port: int) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(train: str, **more: object) -> Job:
        jobs.append(Job(make_host, train, port, **more))  # type: ignore[arg-type]
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def test_all_end_with_0_when_the_leader_does(make_job: Callable[..., Job]) -> None:
    job = make_job("import os; print('driver', flush=True)").start().finish()
    assert job.codes == [0, 0, 0], job.results
    assert job.failures == ["", "", ""]
    assert job.results[0].lines == ["driver"]
    assert job.results[1].lines == job.results[2].lines == ["[worker] up", "[worker] told to end"]


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_on_the_oldest_and_the_newest_python(make_job: Callable[..., Job], version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    job = (
        make_job("import sys; raise SystemExit('%d.%d' % sys.version_info[:2])", python=python)
        .start()
        .finish()
    )
    assert job.codes == [1, 1, 1]
    assert job.results[0].lines == [version]
    assert job.failures == [f"{HOSTS[0]} exited with code 1: {version}"] * 3


def test_the_leaders_ranks_begin_when_all_services_are_up(make_job: Callable[..., Job], port: int) -> None:
    """Each worker listens only after half a second; the driver finds all of them at once."""
    slow = WORKER_SCRIPT.replace("server =", "import time; time.sleep(0.5); server =")
    train = f"""
import socket
for index, host in enumerate({HOSTS[1:]!r}, 1):
    socket.create_connection((host, {port} + 8 + index)).close()
print("all there")
"""
    job = make_job(train, worker=slow).start().finish()
    assert job.codes == [0, 0, 0], job.results
    assert job.results[0].lines == ["all there"]


def test_a_leader_that_comes_late_is_waited_for(make_job: Callable[..., Job]) -> None:
    job = make_job("print('driver')")
    followers = {index: job.hosts[index].start(**job._spec) for index in (1, 2)}
    for process in followers.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "[worker] up\n"
    job.processes = [job.hosts[0].start(**job._spec), followers[1], followers[2]]
    job.finish()
    assert job.codes == [0, 0, 0], job.results


def test_whom_the_leader_waits_for_is_told(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "_WAITING_LOG_SECONDS", 0.0)
    leader = LeaderChannel("algo-1", ["algo-2", "algo-3"], bytes(32), port)
    assert leader.next_wakeup_at is not None
    leader.handle_events()
    assert (leader.pending_log_line, leader.next_wakeup_at) == ("waits for algo-2, algo-3 to be ready", None)
    leader.handle_events()
    assert leader.pending_log_line == "", "once is enough"
    leader.send_host_exit(HostExitReport(0))


def test_a_failure_of_the_leaders_rank_is_told_everywhere(make_job: Callable[..., Job]) -> None:
    job = make_job("raise ValueError('boom')").start().finish()
    assert job.codes == [1, 1, 1]
    assert job.failures == [f"{HOSTS[0]} exited with code 1: ValueError: boom"] * 3
    assert len({os.stat(host.paths.failure_file).st_mtime for host in job.hosts}) == 1


def test_a_hang_of_the_leader_ends_all(make_job: Callable[..., Job]) -> None:
    job = make_job("import signal; signal.pause()", hang_seconds=1.0).start().finish()
    assert job.codes == [124, 124, 124]
    assert all("hang: no output and no CPU use for 1 s" in failure for failure in job.failures)


DRIVER_SCRIPT = """
import signal, sys
def leave(number, frame):
    print("driver told", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("driver up", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("signal_number", "code", "message"),
    [
        (signal.SIGKILL, 137, "was killed by SIGKILL"),
        (signal.SIGTERM, 1, "exited with code 0: it was to run as long as the ranks do"),
    ],
)
def test_a_followers_service_that_dies_is_named_by_the_leader(
    make_job: Callable[..., Job], signal_number: int, code: int, message: str
) -> None:
    job = make_job(DRIVER_SCRIPT).start()
    job.await_line(0, "driver up")
    os.kill(job.child(2, "worker.py"), signal_number)
    job.finish()
    assert job.codes == [code] * 3
    for failure in job.failures:
        assert failure.startswith(f"service worker on {HOSTS[2]} {message}")
        assert (parse_failure(failure).host, parse_failure(failure).service) == (HOSTS[2], "worker")


def test_a_follower_that_is_killed_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(DRIVER_SCRIPT).start()
    job.await_line(0, "driver up")
    worker = job.child(1, "worker.py")
    job.processes[1].kill()
    job.finish()
    os.kill(worker, signal.SIGKILL)  # on a host of its own it would be gone with PID 1
    assert job.codes == [1, -9, 1]
    expected = (
        f"{HOSTS[1]} failed: its runtime is gone: the connection ended without a final message; see its log"
    )
    assert [job.failures[0], job.failures[2]] == [expected, expected]


def test_a_leader_that_is_killed_is_named(make_job: Callable[..., Job]) -> None:
    job = make_job(DRIVER_SCRIPT).start()
    job.await_line(0, "driver up")
    driver = job.child(0, "train.py")
    job.processes[0].kill()
    job.finish()
    os.kill(driver, signal.SIGKILL)  # on a host of its own it would be gone with PID 1
    assert job.codes == [-9, 1, 1]
    for index in (1, 2):
        expected = f"{HOSTS[index]} failed: the leader, {HOSTS[0]}, is gone: the connection ended"
        assert job.failures[index].startswith(expected)
        assert job.results[index].lines[-1] == "[worker] told to end"


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_killed_whenever_all_end_and_nothing_stays(
    make_job: Callable[..., Job], seed: int
) -> None:
    """A runtime, a rank or a service, at a random moment from the start on."""
    chance = random.Random(seed)
    job = make_job(DRIVER_SCRIPT).start(order=chance.sample(range(3), 3))
    time.sleep(chance.uniform(0, 0.6))
    index = chance.randrange(3)
    victim = job.processes[index]
    group = sorted(pid for pid in [victim.pid, *_descendants(victim.pid)])
    os.kill(chance.choice(group), signal.SIGKILL)
    # As the platform does: hosts that have not connected yet end too.
    time.sleep(0.5)
    for process in job.processes:
        process.terminate()
    job.finish()
    assert all(code != 0 for code in job.codes) or job.codes == [0, 0, 0], job.results
    for pid in group:
        if pid != victim.pid and victim.returncode == -9:
            _kill(pid)


def _descendants(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class TestStop:
    def test_services_of_followers_stay_until_the_leaders_ranks_have_left(
        self, make_job: Callable[..., Job], port: int
    ) -> None:
        """All hosts get SIGTERM at the same time; the driver needs its workers to save."""
        train = f"""
import signal, socket, sys, time
def leave(number, frame):
    time.sleep(0.5)
    for index, host in enumerate({HOSTS[1:]!r}, 1):
        socket.create_connection((host, {port} + 8 + index)).close()
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("driver up", flush=True)
while True:
    signal.pause()
"""
        job = make_job(train).start()
        job.await_line(0, "driver up")
        for process in reversed(job.processes):
            process.terminate()
        job.finish()
        assert job.codes == [0, 0, 0], job.results
        assert job.results[0].lines == ["saved"]
        assert job.failures == ["", "", ""]

    def test_ranks_that_die_of_it(self, make_job: Callable[..., Job]) -> None:
        job = make_job("import signal; print('driver up', flush=True); signal.pause()").start()
        job.await_line(0, "driver up")
        for process in job.processes:
            process.terminate()
        job.finish()
        assert job.codes == [143, 143, 143]
        assert job.failures == ["", "", ""]

    def test_one_follower_alone_goes_on_until_the_leader_ends(self, make_job: Callable[..., Job]) -> None:
        job = make_job(DRIVER_SCRIPT).start()
        job.await_line(0, "driver up")
        job.processes[1].terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            job.processes[1].wait(0.5)
        job.processes[0].terminate()
        job.finish()
        assert job.codes == [0, 0, 0]

    def test_a_follower_whose_leader_does_not_end_in_time(self, make_job: Callable[..., Job]) -> None:
        ignores_sigterm = (
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            + DRIVER_SCRIPT.partition("signal.")[0]
        )
        job = make_job(
            ignores_sigterm + "print('driver up', flush=True)\nwhile True: signal.pause()", grace_seconds=1.0
        ).start()
        job.await_line(0, "driver up")
        for process in job.processes:
            process.terminate()
        job.finish()
        assert job.codes[0] == 137
        assert all(code in (137, 143) for code in job.codes[1:])

    def test_before_they_have_met(self, make_job: Callable[..., Job]) -> None:
        job = make_job(DRIVER_SCRIPT)
        job.processes = [job.hosts[1].start(**job._spec)]
        job.await_line(0, "up")
        job.processes[0].terminate()
        job.finish()
        assert (job.codes, job.hosts[1].failure) == ([143], "")

    def test_the_planned_end_is_the_leaders_affair(self, make_job: Callable[..., Job]) -> None:
        train = """
import os, time
while not os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]):
    time.sleep(0.02)
time.sleep(0.3)
"""
        job = make_job(train, environ={"SMLAUNCH_STOP_AFTER": "1"}, margin_seconds=20.0).start().finish()
        assert job.codes == [0, 0, 0]
        assert job.failures == ["", "", ""]


class TestStrangers:
    def test_a_follower_with_another_secret_fails_and_says_so(self, make_job: Callable[..., Job]) -> None:
        job = make_job(DRIVER_SCRIPT, secrets=[SECRET, "cd" * 32, SECRET]).start()
        result = finish(job.processes[1])
        assert result.exit_code == 1
        message = "the server at the address of the leader, 127.0.0.1, port"
        assert job.failures[1].startswith(f"{HOSTS[1]} failed: {message}")
        assert "does not know this job's secret" in job.failures[1]
        assert job.processes[0].poll() is None, "a stranger does not end the leader"
        for process in job.processes:
            process.terminate()
        job.processes.pop(1)
        job.finish()
        assert job.codes == [143, 143]

    def test_without_the_file(self, make_job: Callable[..., Job]) -> None:
        job = make_job(DRIVER_SCRIPT)
        for host in job.hosts:
            (host.runtime.parent / "secret").unlink()
        job.start().finish()
        assert job.codes == [2, 2, 2]
        assert "without it the hosts of this job cannot know each other" in job.failures[0]

    def test_nobody_else_is_let_in_and_the_job_goes_on(self, make_job: Callable[..., Job], port: int) -> None:
        job = make_job(DRIVER_SCRIPT).start()
        job.await_line(0, "driver up")
        key = bytes.fromhex(SECRET)
        for payload in (b"", b"GET / HTTP/1.0\r\n\r\n" * 9, os.urandom(500)):
            with socket.create_connection((HOSTS[0], port + CONTROL_CHANNEL_PORT)) as stranger:
                with contextlib.suppress(OSError):  # the leader may have closed after the first bytes
                    stranger.sendall(payload)
                    stranger.shutdown(socket.SHUT_WR)
                await_the_end(stranger)
        # Clients with the secret: one is no host of this job, the other is connected already.
        for name in ("127.0.0.9", HOSTS[1]):
            with socket.create_connection((HOSTS[0], port + CONTROL_CHANNEL_PORT)) as stranger:
                request = {"do": "messages", "host": HOSTS[0], "from": name}
                initiate_handshake(stranger, key, CONTROL_PURPOSE, request, "it")
                await_the_end(stranger)
        job.processes[0].terminate()
        job.finish()
        assert job.codes == [0, 0, 0], job.results

    def test_what_was_recorded_is_worth_nothing(self, make_job: Callable[..., Job], port: int) -> None:
        """Recorded bytes of a host that has left are sent again."""
        key = bytes.fromhex(SECRET)
        leader = LeaderChannel("a", ["b"], key, port)
        sent: list[bytes] = []
        for replay in (False, True):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                for part in sent if replay else _handshake_parts(connection, key, sent):
                    connection.sendall(part)
                    _process_events(leader)
                assert (link_names(leader) == ["b"]) is not replay
            _process_events(leader)
        assert link_names(leader) == []
        leader.send_host_exit(HostExitReport(0))


def await_the_end(stranger: socket.socket) -> None:
    """Read a rejected connection to its end: at most the 64 bytes of the handshake's answer arrive."""
    answer = b""
    try:
        while block := stranger.recv(1024):
            answer += block
    except ConnectionResetError:  # it did not listen to the end
        pass
    assert len(answer) <= 64


def _handshake_parts(connection: socket.socket, key: bytes, sent: list[bytes]) -> Iterator[bytes]:
    sent.append(job_secret.make_nonce())
    yield sent[0]
    answer = connection.recv(64, socket.MSG_WAITALL)
    body = b'{"do": "messages", "host": "a", "from": "b"}'
    proof = job_secret.compute_proof(key, CONTROL_PURPOSE.name, "a", sent[0], answer[:32], body)
    sent.append(len(body).to_bytes(4, "big") + body + proof)
    yield sent[1]


def _process_events(leader: LeaderChannel) -> None:
    import select

    while True:
        ready, _, _ = select.select([leader], [], [], 0.2)
        if not ready:
            return
        leader.handle_events()


def link_names(leader: LeaderChannel) -> list[str]:
    return sorted(leader._connected_hosts)
