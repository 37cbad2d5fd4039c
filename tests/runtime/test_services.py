"""Services: they start before the ranks, are waited for, end after the ranks, and their failures are
reported."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smlaunch.contract.failure_reason import parse_failure
from smlaunch.contract.launch_spec import LEADER, OTHERS, Arg, Concat, Ref, ServiceSpec
from smlaunch.local.executors import loopback
from tests.runtime.host import Host, Result, finish

MakeHost = Callable[..., Host]

LISTEN = """
import os, signal, socket, sys, time
time.sleep(float(sys.argv[2]))
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
def leave(number, frame):
    print("told to end", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
while True:
    signal.pause()
"""
AWAIT_TWO_FILES = """
import os, time
while len([name for name in os.listdir(".") if name.startswith("up-")]) < 2:
    time.sleep(0.02)
"""
PYTHON: Arg = Ref("python")
SERVICE_SCRIPT: Arg = Ref("source", suffix="/service.py")
READY_ADDRESS = Concat(("127.0.0.1:", Ref("port", offset=4)))


@pytest.fixture
def port() -> Iterator[int]:
    """The first port of a block that no other job and no outgoing connection gets."""
    reserved = loopback.reserve_addresses(1)
    yield reserved.port
    reserved.release()


def listening_service(
    name: str = "table", ready: bool = True, after: str = "0", **more: object
) -> ServiceSpec:
    argv = (PYTHON, SERVICE_SCRIPT, Ref("port", offset=4), after)
    return ServiceSpec(name, argv, ready_address=READY_ADDRESS if ready else None, **more)  # type: ignore[arg-type]


def program_service(text: str, name: str = "table") -> ServiceSpec:
    return ServiceSpec(name, (PYTHON, "-c", text))


def make_service_host(make_host: MakeHost, train: str) -> Host:
    return make_host(train, source={"service.py": LISTEN})


def test_it_is_ready_before_the_ranks_and_told_to_end_after_them(make_host: MakeHost, port: int) -> None:
    train = """
import os, socket
socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]) + 4)).close()
print("rank", flush=True)
"""
    host = make_service_host(make_host, train)
    result = host.run(services=(listening_service(after="0.3"),), per_host=2, port=port)
    assert (result.exit_code, host.failure) == (0, ""), result.stderr
    assert result.lines[0] == "[table] listens"
    assert sorted(result.lines[1:3]) == ["[0] rank", "[1] rank"]
    assert result.lines[3:] == ["[table] told to end"]


def test_they_start_in_their_order(make_host: MakeHost, port: int) -> None:
    second = Concat(("127.0.0.1:", Ref("port", offset=5)))
    argv = (PYTHON, SERVICE_SCRIPT, Ref("port", offset=5), "0")
    host = make_service_host(make_host, "print('rank')")
    services = (listening_service(after="0.3"), ServiceSpec("two", argv, ready_address=second))
    result = host.run(services=services, port=port)
    assert result.exit_code == 0
    assert result.lines[:3] == ["[table] listens", "[two] listens", "[0] rank"]


def test_words_of_a_service(make_host: MakeHost) -> None:
    script = "import json, os, sys, time; print(json.dumps([sys.argv[1:], os.environ['TOLD']]), flush=True); "
    script += "[open('up-%d' % number, 'w').close() for number in range(2)]; "
    words: tuple[Arg, ...] = (
        Ref("port", offset=9),
        Ref("own_port", prefix="p", suffix="q", offset=9),
        Ref("each_host", prefix="<", suffix=">"),
        Ref("each_endpoint", prefix='"', suffix='"', offset=10),
        Concat((Ref("leader"), "/", Ref("host_rank"), " $HOME")),
        Ref("leader_address"),
        Ref("address"),
        Ref("hyperparameters"),
    )
    hosts = ["127.0.0.2", "127.0.0.1"]
    host = make_host(AWAIT_TWO_FILES, hosts=hosts, current="127.0.0.2", hyperparameters={"lr": "0.10"})
    service = ServiceSpec(
        "teller", (PYTHON, "-c", script + "time.sleep(60)", *words), (("TOLD", Concat(("x=", Ref("host")))),)
    )
    result = host.run(services=(service,), port=29500, rendezvous=False)
    assert result.exit_code == 0, result.stderr
    argv, variable = json.loads(result.lines[0].removeprefix("[teller] "))
    assert argv == [
        *("29509", "p29510q", "<127.0.0.1>,<127.0.0.2>", '"127.0.0.1:29510","127.0.0.2:29511"'),
        *("127.0.0.1/1 $HOME", "127.0.0.1", "127.0.0.2", "--lr", "0.10"),
    ]
    assert variable == "x=127.0.0.2"


@pytest.mark.parametrize(
    ("ending_code", "code", "message"),
    [
        ("raise SystemExit(7)", 7, "service table on algo-1 exited with code 7"),
        ("raise ValueError('boom')", 1, "service table on algo-1 exited with code 1: ValueError: boom"),
        ("os.kill(os.getpid(), 9)", 137, "service table on algo-1 was killed by SIGKILL"),
        ("pass", 1, "service table on algo-1 exited with code 0: it was to run as long as the ranks do"),
    ],
)
def test_one_that_ends_by_itself_ends_the_ranks(
    make_host: MakeHost, ending_code: str, code: int, message: str
) -> None:
    host = make_host("import signal; signal.pause()")
    result = host.run(
        services=(program_service(f"import os, time; time.sleep(0.2)\n{ending_code}"),), per_host=2
    )
    assert result.exit_code == code
    assert host.failure.startswith(message)
    assert parse_failure(host.failure).service == "table"
    assert parse_failure(host.failure).rank is None


def test_a_rank_that_misses_it_is_not_the_one_that_failed(make_host: MakeHost, port: int) -> None:
    """The rank fails after 0.1 s with a traceback. A rank that failed within a millisecond could be named
    instead: the kernel closes the sockets of a killed process before it notifies the parent."""
    train = """
import os, socket, time
peer = socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]) + 4))
if not peer.recv(1):
    time.sleep(0.1)
    raise ConnectionError("the table is gone")
"""
    dies = LISTEN.replace(
        "while True:",
        "kept = [server.accept() for _ in range(2)]  # the runtime's, and the rank's\n"
        "os.kill(os.getpid(), 9)\nwhile True:",
    )
    for attempt in range(5):
        host = make_host(train, name=f"ml-{attempt}", source={"service.py": dies})
        result = host.run(services=(listening_service(),), port=port)
        assert result.exit_code == 137, result.stdout
        assert host.failure.startswith("service table on algo-1 was killed by SIGKILL"), result.stdout


def test_a_rank_that_fails_first_is_the_one_named(make_host: MakeHost, port: int) -> None:
    host = make_service_host(make_host, "raise SystemExit(9)")
    result = host.run(services=(listening_service(),), port=port)
    assert (result.exit_code, host.failure) == (9, "rank 0 on algo-1 exited with code 9")
    assert "[table] told to end" in result.lines


def test_one_that_never_gets_ready(make_host: MakeHost, port: int) -> None:
    host = make_service_host(make_host, "print('rank')")
    service = listening_service(after="60", ready_seconds=0.5)
    result = host.run(services=(service,), port=port)
    assert result.exit_code == 1
    assert "rank" not in result.stdout
    expected = f"service table on algo-1 failed: was not ready within 0.5 s: 127.0.0.1:{port + 4} accepts no"
    assert host.failure.startswith(expected)


def test_one_that_fails_before_it_is_ready(make_host: MakeHost, port: int) -> None:
    service = program_service("raise SystemExit(3)")._replace(ready_address=READY_ADDRESS)
    host = make_host("print('rank')")
    result = host.run(services=(service,), port=port)
    assert (result.exit_code, host.failure) == (3, "service table on algo-1 exited with code 3")
    assert "rank" not in result.stdout


def test_one_that_cannot_be_started(make_host: MakeHost) -> None:
    host = make_host("print('rank')")
    result = host.run(services=(ServiceSpec("table", ("/nowhere/table",)),))
    assert result.exit_code == 2
    assert "/nowhere/table: no such program on this host" in host.failure


def test_one_that_does_not_end_is_killed_with_what_it_started(make_host: MakeHost) -> None:
    ignores_sigterm = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
os.write(1, b"%d\\n" % os.getpid())
open("up-%d" % os.getpid(), "w").close()
time.sleep(120)
"""
    host = make_host(AWAIT_TWO_FILES)
    result = host.run(services=(program_service(ignores_sigterm),))
    assert (result.exit_code, host.failure, len(result.lines)) == (0, "", 2)
    for line in result.lines:
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)


class TestStop:
    def test_it_outlives_the_ranks_that_are_stopped(self, make_host: MakeHost, port: int) -> None:
        train = """
import os, signal, socket, sys
def leave(number, frame):
    socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]) + 4)).close()
    print("left with the table there", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""
        host = make_service_host(make_host, train)
        with host.start(services=(listening_service(),), port=port) as process:
            await_line(process.stdout, "[0] ready")
            process.terminate()
            result = finish(process)
        assert (result.exit_code, host.failure) == (0, "")
        assert result.lines == ["[0] left with the table there", "[table] told to end"]

    def test_before_a_service_is_ready(self, make_host: MakeHost, port: int) -> None:
        service = program_service("import time; print('up', flush=True); time.sleep(60)")._replace(
            ready_address=READY_ADDRESS
        )
        host = make_host("print('rank')")
        began = time.monotonic()
        with host.start(services=(service,), port=port) as process:
            await_line(process.stdout, "[table] up")
            process.send_signal(signal.SIGINT)
            result = finish(process)
        assert (result.exit_code, host.failure) == (130, "")
        assert "rank" not in result.stdout
        assert time.monotonic() - began < 30  # the service has 300 s to get ready

    def test_a_service_that_dies_of_the_stop_is_no_failure(self, make_host: MakeHost) -> None:
        train = """
import signal, sys, time
def leave(number, frame):
    print("told", flush=True)
    time.sleep(0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""
        host = make_host(train)
        with host.start(
            services=(program_service("import time; print('up', flush=True); time.sleep(60)"),)
        ) as process:
            lines = {process.stdout.readline().strip() for _ in range(2)}  # type: ignore[union-attr]
            assert lines == {"[0] ready", "[table] up"}
            process.terminate()
            await_line(process.stdout, "[0] told")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            service = next(pid for pid in children if "time.sleep(60)" in cmdline(pid))
            os.kill(int(service), signal.SIGKILL)
            result = finish(process)
        assert (result.exit_code, host.failure) == (0, "")


def test_a_hang_is_seen_though_the_service_works_and_talks(make_host: MakeHost) -> None:
    service = program_service(
        "import time\nwhile True:\n    print('busy', sum(range(100000)), flush=True); time.sleep(0.01)"
    )
    host = make_host("import signal\ndef waits(): signal.pause()\nwaits()")
    result = host.run(services=(service,), hang_seconds=2.0)
    assert result.exit_code == 124
    assert parse_failure(host.failure).cause == "hang: no output and no CPU use for 2 s by rank 0"


def test_after_the_planned_end_it_is_ended_with_the_ranks(make_host: MakeHost, port: int) -> None:
    train = """
import os, time
while not os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]):
    time.sleep(0.02)
print("left", flush=True)
"""
    host = make_host(train, source={"service.py": LISTEN}, environ={"SMLAUNCH_STOP_AFTER": "1"})
    result = host.run(services=(listening_service(),), port=port)
    assert (result.exit_code, host.failure) == (0, "")
    assert result.lines == ["[table] listens", "[0] left", "[table] told to end"]


def test_where_it_runs(make_host: MakeHost, port: int) -> None:
    """All hosts wait for the leader's service; the others' service starts after it."""
    names = ["127.0.0.1", "127.0.0.2"]
    address = Concat(("127.0.0.1:", Ref("port", offset=6)))
    argv = (PYTHON, SERVICE_SCRIPT, Ref("port", offset=6), "0")
    services = (
        listening_service(name="head", after="0.3", runs_on=LEADER),
        ServiceSpec("worker", argv, runs_on=OTHERS, ready_address=address),
    )
    # The leader's rank waits for the other host's rank, which starts when its worker listens.
    trains = (f"import socket; socket.create_server(('127.0.0.1', {port} + 7)).accept()", CONNECT_TO_LEADER)
    hosts = [
        make_host(train, source={"service.py": LISTEN}, name=name, hosts=names, current=name)
        for name, train in zip(names, trains, strict=True)
    ]
    started = [
        host.start(services=services, port=port, env={"PORT": Ref("port", offset=7)}) for host in hosts
    ]
    leader, follower = (finish(process) for process in started)
    assert (leader.exit_code, follower.exit_code) == (0, 0), leader.stderr + follower.stderr
    assert leader.lines == ["[head] listens", "[head] told to end"]
    assert follower.lines == ["[worker] listens", "[worker] told to end"]


CONNECT_TO_LEADER = """
import os, socket, time
while True:
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
"""


def await_line(stream: object, expected: str) -> None:
    while True:
        line = stream.readline()  # type: ignore[attr-defined]
        assert line, f"it ended without {expected!r}"
        if line.strip() == expected:
            return


def cmdline(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_a_job_without_services_loads_nothing_of_theirs(make_host: MakeHost) -> None:
    """Modules of services must not lengthen the start of a job without services."""
    result: Result = make_host("pass", name="other", environ={"PYTHONVERBOSE": "1"}).run()
    loaded = {line.split("'")[1] for line in result.stderr.splitlines() if line.startswith("import '")}
    assert "smlaunch.runtime.rank_supervisor" in loaded
    for name in ("services", "control_channel", "peer_connection", "secret"):
        assert f"smlaunch.runtime.{name}" not in loaded
    assert "socket" not in loaded
