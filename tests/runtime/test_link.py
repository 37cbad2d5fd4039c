"""Hosts without ranks follow the leader: real runtimes, one process per host, and what is killed of them."""

from __future__ import annotations

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

from smlaunch.contract.failure import parse_failure
from smlaunch.contract.launch_spec import LEADER, OTHERS, Concat, Ref, ServiceSpec
from smlaunch.contract.tcp_ports import CONTROL_CHANNEL_PORT
from smlaunch.local.executors import loopback
from smlaunch.runtime import control_leader, secret
from smlaunch.runtime.control_channel import PeerStatus
from smlaunch.runtime.control_leader import LeaderChannel
from smlaunch.runtime.peer_connection import TO_LEADER, connect_handshake
from tests.runtime.host import Host, Result, finish
from tests.runtime.test_ranks import python_of

MakeHost = Callable[..., Host]

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SECRET = "ab" * 32
WAITS = """
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
    """The first of a block that no other job, and no outgoing connection, is given."""
    reserved = loopback.reserve(1)
    yield reserved.port
    reserved.release()


class Job:
    """Some hosts of one job; ``hosts[0]`` leads. Ends what is left when the test is over."""

    def __init__(
        self,
        host: MakeHost,
        train: str,
        port: int,
        worker: str = WAITS,
        names: Sequence[str] = HOSTS,
        secrets: Sequence[str] = (),
        services: Sequence[ServiceSpec] = (WORKER,),
        environ: dict[str, str] | None = None,
        python: str = sys.executable,
        **spec: object,
    ) -> None:
        self.hosts = [
            host(
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
        for made, text in zip(self.hosts, secrets or [SECRET] * len(names), strict=True):
            (made.runtime.parent / "secret").write_text(text)
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
        return [made.failure.partition("\n")[0] for made in self.hosts]

    def await_line(self, index: int, expected: str) -> None:
        stream = self.processes[index].stdout
        assert stream is not None
        while True:
            line = stream.readline()
            assert line, f"host {index} ended without {expected!r}"
            if line.strip().endswith(expected):
                return

    def child(self, index: int, word: str) -> int:
        """The number of the process of a host that has this word on its command line."""
        runtime = self.processes[index].pid
        children = Path(f"/proc/{runtime}/task/{runtime}/children").read_text().split()
        (found,) = (
            int(pid) for pid in children if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def job(host: MakeHost, port: int) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(train: str, **more: object) -> Job:
        made.append(Job(host, train, port, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_all_end_with_0_when_the_leader_does(job: Callable[..., Job]) -> None:
    done = job("import os; print('driver', flush=True)").start().finish()
    assert done.codes == [0, 0, 0], done.results
    assert done.failures == ["", "", ""]
    assert done.results[0].lines == ["driver"]
    assert done.results[1].lines == done.results[2].lines == ["[worker] up", "[worker] told to end"]


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_on_the_oldest_and_the_newest_python(job: Callable[..., Job], version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    done = job("import sys; raise SystemExit('%d.%d' % sys.version_info[:2])", python=python).start().finish()
    assert done.codes == [1, 1, 1]
    assert done.results[0].lines == [version]
    assert done.failures == [f"{HOSTS[0]} exited with code 1: {version}"] * 3


def test_the_leaders_ranks_begin_when_all_services_are_up(job: Callable[..., Job], port: int) -> None:
    """Each worker listens only after half a second; the driver finds all of them at once."""
    slow = WAITS.replace("server =", "import time; time.sleep(0.5); server =")
    train = f"""
import socket
for index, host in enumerate({HOSTS[1:]!r}, 1):
    socket.create_connection((host, {port} + 8 + index)).close()
print("all there")
"""
    done = job(train, worker=slow).start().finish()
    assert done.codes == [0, 0, 0], done.results
    assert done.results[0].lines == ["all there"]


def test_a_leader_that_comes_late_is_waited_for(job: Callable[..., Job]) -> None:
    late = job("print('driver')")
    followers = {index: late.hosts[index].start(**late._spec) for index in (1, 2)}
    for process in followers.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "[worker] up\n"
    late.processes = [late.hosts[0].start(**late._spec), followers[1], followers[2]]
    late.finish()
    assert late.codes == [0, 0, 0], late.results


def test_whom_the_leader_waits_for_is_told(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_leader, "_WAITING_LOG_SECONDS", 0.0)
    leader = LeaderChannel("algo-1", ["algo-2", "algo-3"], bytes(32), port)
    assert leader.next_action_at is not None
    leader.process_events(set())
    assert (leader.log_message, leader.next_action_at) == ("waits for algo-2, algo-3 to be ready", None)
    leader.process_events(set())
    assert leader.log_message == "", "once is enough"
    leader.send_status(PeerStatus(0))


def test_a_failure_of_the_leaders_rank_is_told_everywhere(job: Callable[..., Job]) -> None:
    done = job("raise ValueError('boom')").start().finish()
    assert done.codes == [1, 1, 1]
    assert done.failures == [f"{HOSTS[0]} exited with code 1: ValueError: boom"] * 3
    assert len({os.stat(made.paths.failure_file).st_mtime for made in done.hosts}) == 1


def test_a_hang_of_the_leader_ends_all(job: Callable[..., Job]) -> None:
    done = job("import signal; signal.pause()", hang_seconds=1.0).start().finish()
    assert done.codes == [124, 124, 124]
    assert all("hang: no output and no CPU use for 1 s" in failure for failure in done.failures)


DRIVER = """
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
    ("how", "code", "said"),
    [
        (signal.SIGKILL, 137, "was killed by SIGKILL"),
        (signal.SIGTERM, 1, "exited with code 0: it was to run as long as the ranks do"),
    ],
)
def test_a_followers_service_that_dies_is_named_by_the_leader(
    job: Callable[..., Job], how: int, code: int, said: str
) -> None:
    running = job(DRIVER).start()
    running.await_line(0, "driver up")
    os.kill(running.child(2, "worker.py"), how)
    running.finish()
    assert running.codes == [code] * 3
    for failure in running.failures:
        assert failure.startswith(f"service worker on {HOSTS[2]} {said}")
        assert (parse_failure(failure).host, parse_failure(failure).service) == (HOSTS[2], "worker")


def test_a_follower_that_is_killed_is_named(job: Callable[..., Job]) -> None:
    running = job(DRIVER).start()
    running.await_line(0, "driver up")
    worker = running.child(1, "worker.py")
    running.processes[1].kill()
    running.finish()
    os.kill(worker, signal.SIGKILL)  # on a host of its own it would be gone with PID 1
    assert running.codes == [1, -9, 1]
    told = (
        f"{HOSTS[1]} failed: its runtime is gone: the connection ended without a final message; see its log"
    )
    assert [running.failures[0], running.failures[2]] == [told, told]


def test_a_leader_that_is_killed_is_named(job: Callable[..., Job]) -> None:
    running = job(DRIVER).start()
    running.await_line(0, "driver up")
    driver = running.child(0, "train.py")
    running.processes[0].kill()
    running.finish()
    os.kill(driver, signal.SIGKILL)  # on a host of its own it would be gone with PID 1
    assert running.codes == [-9, 1, 1]
    for index in (1, 2):
        told = f"{HOSTS[index]} failed: the leader, {HOSTS[0]}, is gone: the connection ended"
        assert running.failures[index].startswith(told)
        assert running.results[index].lines[-1] == "[worker] told to end"


@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_killed_whenever_all_end_and_nothing_stays(job: Callable[..., Job], seed: int) -> None:
    """A runtime, a rank or a service, at a random moment from the start on."""
    chance = random.Random(seed)
    running = job(DRIVER).start(order=chance.sample(range(3), 3))
    time.sleep(chance.uniform(0, 0.6))
    index = chance.randrange(3)
    victim = running.processes[index]
    group = sorted(pid for pid in [victim.pid, *_below(victim.pid)])
    os.kill(chance.choice(group), signal.SIGKILL)
    # As the platform does, so that those end that had not met yet.
    time.sleep(0.5)
    for process in running.processes:
        process.terminate()
    running.finish()
    assert all(code != 0 for code in running.codes) or running.codes == [0, 0, 0], running.results
    for pid in group:
        if pid != victim.pid and victim.returncode == -9:
            _kill(pid)


def _below(pid: int) -> list[int]:
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
        self, job: Callable[..., Job], port: int
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
        running = job(train).start()
        running.await_line(0, "driver up")
        for process in reversed(running.processes):
            process.terminate()
        running.finish()
        assert running.codes == [0, 0, 0], running.results
        assert running.results[0].lines == ["saved"]
        assert running.failures == ["", "", ""]

    def test_ranks_that_die_of_it(self, job: Callable[..., Job]) -> None:
        running = job("import signal; print('driver up', flush=True); signal.pause()").start()
        running.await_line(0, "driver up")
        for process in running.processes:
            process.terminate()
        running.finish()
        assert running.codes == [143, 143, 143]
        assert running.failures == ["", "", ""]

    def test_one_follower_alone_goes_on_until_the_leader_ends(self, job: Callable[..., Job]) -> None:
        running = job(DRIVER).start()
        running.await_line(0, "driver up")
        running.processes[1].terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            running.processes[1].wait(0.5)
        running.processes[0].terminate()
        running.finish()
        assert running.codes == [0, 0, 0]

    def test_a_follower_whose_leader_does_not_end_in_time(self, job: Callable[..., Job]) -> None:
        deaf = (
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + DRIVER.partition("signal.")[0]
        )
        running = job(
            deaf + "print('driver up', flush=True)\nwhile True: signal.pause()", grace_seconds=1.0
        ).start()
        running.await_line(0, "driver up")
        for process in running.processes:
            process.terminate()
        running.finish()
        assert running.codes[0] == 137
        assert all(code in (137, 143) for code in running.codes[1:])

    def test_before_they_have_met(self, job: Callable[..., Job]) -> None:
        alone = job(DRIVER)
        alone.processes = [alone.hosts[1].start(**alone._spec)]
        alone.await_line(0, "up")
        alone.processes[0].terminate()
        alone.finish()
        assert (alone.codes, alone.hosts[1].failure) == ([143], "")

    def test_the_planned_end_is_the_leaders_affair(self, job: Callable[..., Job]) -> None:
        train = """
import os, time
while not os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]):
    time.sleep(0.02)
time.sleep(0.3)
"""
        done = job(train, environ={"SMLAUNCH_STOP_AFTER": "1"}, margin_seconds=20.0).start().finish()
        assert done.codes == [0, 0, 0]
        assert done.failures == ["", "", ""]


class TestStrangers:
    def test_a_follower_with_another_secret_fails_and_says_so(self, job: Callable[..., Job]) -> None:
        wrong = job(DRIVER, secrets=[SECRET, "cd" * 32, SECRET]).start()
        result = finish(wrong.processes[1])
        assert result.exit_code == 1
        said = "the server at the address of the leader, 127.0.0.1, port"
        assert wrong.failures[1].startswith(f"{HOSTS[1]} failed: {said}")
        assert "does not know this job's secret" in wrong.failures[1]
        assert wrong.processes[0].poll() is None, "a stranger does not end the leader"
        for process in wrong.processes:
            process.terminate()
        wrong.processes.pop(1)
        wrong.finish()
        assert wrong.codes == [143, 143]

    def test_without_the_file(self, job: Callable[..., Job]) -> None:
        bare = job(DRIVER)
        for made in bare.hosts:
            (made.runtime.parent / "secret").unlink()
        bare.start().finish()
        assert bare.codes == [2, 2, 2]
        assert "without it the hosts of this job cannot know each other" in bare.failures[0]

    def test_nobody_else_is_let_in_and_the_job_goes_on(self, job: Callable[..., Job], port: int) -> None:
        running = job(DRIVER).start()
        running.await_line(0, "driver up")
        key = bytes.fromhex(SECRET)
        for what in (b"", b"GET / HTTP/1.0\r\n\r\n" * 9, os.urandom(500)):
            with socket.create_connection((HOSTS[0], port + CONTROL_CHANNEL_PORT)) as stranger:
                stranger.sendall(what)
                stranger.shutdown(socket.SHUT_WR)
                await_the_end(stranger)
        # One that knows the secret, but is no host of this job, or one that is there already.
        for name in ("127.0.0.9", HOSTS[1]):
            with socket.create_connection((HOSTS[0], port + CONTROL_CHANNEL_PORT)) as stranger:
                connect_handshake(stranger, key, TO_LEADER, {"host": HOSTS[0], "from": name}, "it")
                await_the_end(stranger)
        running.processes[0].terminate()
        running.finish()
        assert running.codes == [0, 0, 0], running.results

    def test_what_was_recorded_is_worth_nothing(self, job: Callable[..., Job], port: int) -> None:
        """The same bytes again, as somebody could who has listened to a host that has left."""
        key = bytes.fromhex(SECRET)
        leader = LeaderChannel("a", ["b"], key, port)
        sent: list[bytes] = []
        for replay in (False, True):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                for part in sent if replay else _parts(connection, key, sent):
                    connection.sendall(part)
                    _serve(leader)
                assert (link_names(leader) == ["b"]) is not replay
            _serve(leader)
        assert link_names(leader) == []
        leader.send_status(PeerStatus(0))


def await_the_end(stranger: socket.socket) -> None:
    """Of a connection over which no host has been made welcome: at most the 64 bytes of the answer come."""
    said = b""
    try:
        while block := stranger.recv(1024):
            said += block
    except ConnectionResetError:  # it did not listen to the end
        pass
    assert len(said) <= 64


def _parts(connection: socket.socket, key: bytes, sent: list[bytes]) -> Iterator[bytes]:
    sent.append(secret.make_nonce())
    yield sent[0]
    answer = connection.recv(64, socket.MSG_WAITALL)
    body = b'{"host": "a", "from": "b"}'
    proof = secret.compute_proof(key, TO_LEADER.name, "a", sent[0], answer[:32], body)
    sent.append(len(body).to_bytes(4, "big") + body + proof)
    yield sent[1]


def _serve(leader: LeaderChannel) -> None:
    import select

    while True:
        ready, _, _ = select.select(leader.descriptors(), [], [], 0.2)
        if not ready:
            return
        leader.process_events(set(ready))


def link_names(leader: LeaderChannel) -> list[str]:
    return [guest.host for guest in leader._connections.values() if guest.host]
