"""The failure reason names the rank that failed first, with its exception, whatever other ranks print."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.contract.failure_reason import MAX_REASON_LENGTH, parse_failure
from smlaunch.contract.launch_spec import Ref
from smlaunch.contract.sagemaker_paths import LAUNCH_FILE, RUNTIME_CHANNEL
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome
from tests.runtime.host import Host

MakeHost = Callable[..., Host]

PEERS = ["127.0.0.1", "127.0.0.2"]


def test_a_rank_that_raises(make_host: MakeHost) -> None:
    train = """
import os, signal
def work():
    if os.environ["RANK"] == "2":
        raise ValueError("boom: 'x'")
    signal.pause()
work()
"""
    host = make_host(train, hosts=PEERS, current="127.0.0.2")
    result = host.run(per_host=2)
    assert result.exit_code == 1
    failure = parse_failure(host.failure)
    assert failure[:4] == ("ValueError: boom: 'x'", "127.0.0.2", 2, 1)
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert "in work" in failure.traceback
    assert "smlaunch: rank 2 on 127.0.0.2 exited with code 1: ValueError: boom: 'x'" in result.stderr


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSEGV", "SIGABRT"])
def test_a_rank_that_is_killed(make_host: MakeHost, signal_name: str) -> None:
    train = f"""
import os, signal
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.{signal_name})
signal.pause()
"""
    host = make_host(train)
    result = host.run(per_host=3)
    number = {"SIGKILL": 9, "SIGSEGV": 11, "SIGABRT": 6}[signal_name]
    assert result.exit_code == 128 + number
    assert host.failure.startswith(f"rank 1 on algo-1 was killed by {signal_name}")


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("", "import torch.distributed.nn before init_process_group"),
        ('raise ValueError("planted")', "killed by SIGABRT: ValueError: planted"),
    ],
)
def test_an_abort_at_the_end_says_what_helps(make_host: MakeHost, last: str, cause: str) -> None:
    """The hint is added unless an exception explains the failure."""
    train = """
import atexit, os, sys
def end():
    sys.stderr.write("terminate called without an active exception" + os.linesep)
    sys.stderr.flush()
    os.abort()
atexit.register(end)
print("held-out accuracy 0.97", flush=True)
"""
    host = make_host(train + last)
    assert host.run().exit_code == 134
    assert cause in host.failure


def test_followers_do_not_hide_the_first(make_host: MakeHost) -> None:
    """Rank 1 exits long after its exception; the peer that loses its connection exits before it."""
    train = """
import atexit, os, socket, time
path = "peers.sock"
if os.environ["RANK"] == "1":
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        os.rename(path, path + ".up")
        peer = server.accept()[0]
        import sys, traceback
        try:
            raise RuntimeError("the real one")
        except RuntimeError:
            traceback.print_exc()
            sys.stderr.flush()
        peer.close()
        time.sleep(0.5)
        os._exit(1)
else:
    while not os.path.exists(path + ".up"):
        time.sleep(0.01)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path + ".up")
        if not client.recv(1):
            time.sleep(0.05)
            raise ConnectionResetError("noise of a follower")
"""
    host = make_host(train)
    result = host.run(per_host=2)
    assert result.exit_code == 1
    assert host.failure.startswith("rank 1 on algo-1 exited with code 1: RuntimeError: the real one")


def test_leaving_early_with_0_is_fine(make_host: MakeHost) -> None:
    host = make_host("import os, time\ntime.sleep(0.2 * int(os.environ['RANK']))")
    assert (host.run(per_host=2).exit_code, host.failure) == (0, "")


def test_an_exit_with_a_message_has_the_message_as_cause(make_host: MakeHost) -> None:
    host = make_host("import sys\nprint('starting')\nsys.exit('no data in /x')")
    assert host.run().exit_code == 1
    assert host.failure == "rank 0 on algo-1 exited with code 1: no data in /x"


def test_an_error_that_was_survived_is_not_the_cause(make_host: MakeHost) -> None:
    train = """
import sys, traceback
try:
    raise KeyError("handled")
except KeyError:
    traceback.print_exc()
for step in range(100):
    print("step", step)
print("giving up", file=sys.stderr)
sys.exit(3)
"""
    host = make_host(train)
    assert host.run().exit_code == 3
    assert host.failure == "rank 0 on algo-1 exited with code 3: giving up"


def test_a_plain_process_has_no_rank(make_host: MakeHost) -> None:
    host = make_host("raise OSError('x')")
    assert host.run(rendezvous=False).exit_code == 1
    assert host.failure.startswith("algo-1 exited with code 1: OSError: x\nTraceback")


def test_a_failure_the_program_has_written_itself_is_kept(make_host: MakeHost) -> None:
    train = """
import os
with open(os.path.join(os.environ["SM_OUTPUT_DIR"], "failure"), "w") as file:
    file.write("in my own words")
raise SystemExit(9)
"""
    host = make_host(train)
    assert host.run().exit_code == 9
    assert host.failure == "in my own words"


def test_the_file_is_as_old_as_the_failure(make_host: MakeHost) -> None:
    """The times of the hosts' failure files show which failed first, however long each took to end."""
    train = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    print("TIME", time.time(), flush=True)
    raise ValueError
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0)))
signal.pause()
"""
    host = make_host(train)
    result = host.run(per_host=2)
    at = float(result.stdout.partition("TIME ")[2].split()[0])
    assert 0 <= os.path.getmtime(host.paths.failure_file) - at < 0.4


def test_it_fits_into_a_failure_reason(make_host: MakeHost) -> None:
    host = make_host("raise ValueError('é' * 5000)")
    host.run()
    assert len(f"AlgorithmError: {host.failure}, exit code: 1") <= MAX_REASON_LENGTH


def test_peers_that_do_not_leave_are_killed(make_host: MakeHost) -> None:
    train = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    raise SystemExit(4)
while True:
    signal.pause()
"""
    result = make_host(train).run(per_host=3, failure_grace_seconds=0.3)
    assert result.exit_code == 4


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not JSON"),
        ('{"version": "2.0"}', "this smlaunch reads up to 1.x"),
        ('{"version": "1.0"}', "ranks: missing"),
        ('{"version": "1.0", "ranks": {"argv": [{"ref": "moon"}]}}', "ranks.argv[0]"),
        ('{"version": "1.0", "ranks": {"argv": ["x"]}, "grace_seconds": "soon"}', "grace_seconds"),
    ],
)
def test_a_broken_launch_file(make_host: MakeHost, document: str, message: str) -> None:
    host = make_host()
    path = Path(host.paths.channel_dir(RUNTIME_CHANNEL)) / LAUNCH_FILE
    path.write_text(document)
    result = host.run()
    assert result.exit_code == 2
    assert message in result.stderr
    assert "job.json" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert parse_failure(host.failure).host == "algo-1"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("no-such-program",), "no-such-program: no such program on this host"),
        ((Ref("source", suffix="/plain.txt"),), "is not executable"),
        (("true", "x" * 3_000_000), "more than this system accepts"),
        ((Ref("hyperparameters", prefix="x"),), "hyperparameters are whole arguments"),
    ],
)
def test_what_cannot_be_started(make_host: MakeHost, argv: tuple[str, ...], message: str) -> None:
    host = make_host(source={"plain.txt": "#!/bin/sh\n"})
    Path(host.paths.code).mkdir()
    host.specify(argv=argv)
    (Path(host.paths.code) / "plain.txt").touch()
    if "plain" in str(argv):
        host.specify(argv=argv, source=None)
    result = host.run()
    assert result.exit_code == 2
    assert message in result.stderr
    assert message in host.failure


def test_a_start_that_fails_half_way_leaves_nobody(make_host: MakeHost) -> None:
    """Only the first rank has a program; it already runs when the second one fails to start."""
    host = make_host(source={"program-0": "#!/bin/sh\nexec sleep 1000\n"})
    result = host.run(per_host=2, argv=(Ref("local_rank", prefix="./program-"), str(host.root)))
    assert result.exit_code == 2
    assert "program-1: no such program" in result.stderr
    process_list = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"{host.root}" not in process_list


def test_an_older_error_of_a_rank_that_went_on_is_not_the_first_failure(make_host: MakeHost) -> None:
    train = """
import os, signal, time, traceback
if os.environ["RANK"] == "0":
    try:
        raise KeyError("handled")
    except KeyError:
        traceback.print_exc()
    open("said", "w").close()
    signal.pause()
while not os.path.exists("said"):
    time.sleep(0.01)
time.sleep(0.2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    host = make_host(train)
    host.run(per_host=2)
    assert host.failure.startswith("rank 1 on algo-1 was killed by SIGKILL")


def test_an_output_nobody_reads_does_not_change_the_exit_code(make_host: MakeHost) -> None:
    """The reader of the host's output has closed it: the ranks go on, and the exit code is theirs."""
    train = "import os\nfor _ in range(20000): os.write(1, b'x' * 100 + b'\\n')\nraise SystemExit(6)"
    with make_host(train).start(per_host=2) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        assert process.wait(timeout=60) == 6


def finished_process(rank: int, status: int, ended_at: float, began: float | None = None) -> FinishedProcess:
    return FinishedProcess(rank, status, ended_at, ended_at if began is None else began, "")


statuses = st.one_of(st.integers(-31, -1), st.integers(0, 255))
times = st.floats(0, 100)


@given(st.lists(st.builds(finished_process, st.integers(0, 7), statuses, times), min_size=1, max_size=8))
def test_without_a_stop_any_failure_counts(processes: list[FinishedProcess]) -> None:
    outcome = HostOutcome(tuple(processes))
    failed = [process for process in processes if process.status]
    if not failed:
        assert (outcome.exit_code, outcome.first_failure) == (0, None)
    else:
        assert outcome.first_failure in failed
        assert all(outcome.first_failure.failed_at <= process.failed_at for process in failed)
        assert outcome.exit_code == outcome.first_failure.exit_code != 0


@given(
    st.lists(
        st.builds(finished_process, st.integers(0, 7), st.sampled_from([0, -15, 143]), times), min_size=1
    )
)
def test_obeying_a_stop_is_no_failure(processes: list[FinishedProcess]) -> None:
    outcome = HostOutcome(tuple(processes), stop_signal=15)
    assert outcome.first_failure is None
    assert outcome.exit_code == (143 if any(process.status for process in processes) else 0)


def test_a_long_message_leaves_room_for_the_frames(make_host: MakeHost) -> None:
    host = make_host("def work():\n    raise ValueError('x' * 600)\nwork()")
    host.run()
    failure = parse_failure(host.failure)
    assert failure.cause.endswith("x" * 600)
    assert "in work" in failure.traceback


def test_who_had_left_in_peace_is_told_and_who_was_stopped_is_not(make_host: MakeHost) -> None:
    train = """
import os, signal, sys
if os.environ["RANK"] == "0":
    sys.exit(0)
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    open("ready", "w").close()
    signal.pause()
while not os.path.exists("ready"):
    pass
import time
time.sleep(0.5)
raise ValueError("alone")
"""
    host = make_host(train)
    assert host.run(per_host=3).exit_code == 1
    first = host.failure.partition("\n")[0]
    assert first == "rank 2 on algo-1 exited with code 1: ValueError: alone; rank 0 had left with exit code 0"
