"""``launcher: torchrun`` with the real torchrun."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from smlaunch.contract.failure_reason import parse_failure
from smlaunch.contract.launch_spec import Ref
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome
from smlaunch.runtime.torchrun import _replace_launcher_by_ranks
from tests.e2e.command import smlaunch
from tests.runtime.host import Host, Result, finish

MakeHost = Callable[..., Host]

with_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
PEERS = ["127.0.0.1", "127.0.0.2"]

PRINT_ENVIRONMENT = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
"""


def run_both(make_host: MakeHost, train: str, port: int, **spec: object) -> list[tuple[Host, Result]]:
    hosts = [make_host(train, name=f"host-{name}", hosts=PEERS, current=name) for name in PEERS]
    spec = {"per_host": 2, "launcher": "torchrun", "port": port, **spec}
    started = [host.start(**spec) for host in hosts]
    return [(host, finish(process)) for host, process in zip(hosts, started, strict=True)]


@pytest.fixture
def port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class TestReal:
    pytestmark = with_torch

    def test_ranks_of_two_hosts_meet(self, make_host: MakeHost, port: int) -> None:
        train = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print(json.dumps({"total": total.item(), "argv": sys.argv[1:], "env": dict(os.environ)}), flush=True)
dist.destroy_process_group()
"""
        words = (Ref("python"), Ref("source", suffix="/train.py"), "a b; $HOME", "é\n")
        results = run_both(make_host, train, port, argv=words)
        lines = []
        for host, result in results:
            assert (result.exit_code, host.failure) == (0, ""), result.stderr + result.stdout
            lines += [line for line in result.lines if not line.startswith("[torchrun]")]
        documents = [json.loads(line.split("] ", 1)[1]) for line in sorted(lines)]
        assert [line[:4] for line in sorted(lines)] == ["[0] ", "[1] ", "[2] ", "[3] "]
        assert [document["total"] for document in documents] == [10.0] * 4
        assert [document["argv"] for document in documents] == [["a b; $HOME", "é\n"]] * 4
        env = documents[3]["env"]
        assert (env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"], env["WORLD_SIZE"]) == ("3", "1", "1", "4")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (PEERS[0], str(port))
        assert env["SM_CURRENT_HOST"] == PEERS[1]

    def test_the_failed_rank_of_a_torchrun_that_a_command_starts(
        self, make_host: MakeHost, port: int
    ) -> None:
        train = """
import os, signal, sys
if os.environ["RANK"] == "1":
    sys.exit(7)
signal.pause()
"""
        host = make_host(train)
        options = ("--nproc-per-node=2", f"--master-port={port}", Ref("source", suffix="/train.py"))
        argv = (Ref("python"), "-m", "torch.distributed.run", *options)
        assert host.run(argv=argv, rendezvous=False).exit_code == 1
        assert host.failure.startswith("rank 1 on algo-1 exited with code 7")
        assert "ChildFailedError" not in host.failure

    def test_a_program_may_start_it(self, make_host: MakeHost, port: int) -> None:
        """As neuron_parallel_compile: it gets torchrun's command line, and its exit code counts."""
        around = """
import os, subprocess, sys
print("around", os.path.basename(sys.argv[1]), *sys.argv[2:4], flush=True)
sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, "AROUND": "yes"}).returncode + 3)
"""
        host = make_host('import os; print(os.environ["AROUND"], os.environ["RANK"])')
        result = host.run(per_host=2, launcher="torchrun", port=port, options=(sys.executable, "-c", around))
        assert f"[torchrun] around {Path(sys.executable).name} -m torch.distributed.run" in result.lines
        assert sorted(line for line in result.lines if "yes" in line) == ["[0] yes 0", "[1] yes 1"]
        assert result.exit_code == 3

    @pytest.mark.parametrize(
        ("ending_code", "code", "message"),
        [
            ("raise ValueError('boom')", 1, "exited with code 1: ValueError: boom\nTraceback"),
            ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
            ("sys.exit(7)", 7, "exited with code 7"),
        ],
    )
    def test_the_rank_that_failed_is_named(
        self, make_host: MakeHost, port: int, ending_code: str, code: int, message: str
    ) -> None:
        train = f"""
import os, signal, sys
if os.environ["RANK"] == "1":
    {ending_code}
signal.pause()
"""
        host = make_host(train)
        result = host.run(per_host=2, launcher="torchrun", port=port)
        assert result.exit_code == code, result.stdout
        assert host.failure.startswith(f"rank 1 on algo-1 {message}")

    def test_a_stop_reaches_the_ranks(self, make_host: MakeHost, port: int) -> None:
        train = """
import os, signal, sys
def leave(number, frame):
    print("told", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""
        host = make_host(train)
        with host.start(per_host=2, launcher="torchrun", port=port) as process:
            assert process.stdout is not None
            ready_count = 0
            while ready_count < 2:
                ready_count += "ready" in process.stdout.readline()
            process.terminate()
            result = finish(process)
        assert (result.exit_code, host.failure) == (143, "")
        assert sorted(line for line in result.lines if "told" in line) == ["[0] told", "[1] told"]

    def test_a_hang_shows_the_stacks_of_its_ranks(self, make_host: MakeHost, port: int) -> None:
        host = make_host("import signal\ndef waits(): signal.pause()\nwaits()")
        result = host.run(per_host=2, launcher="torchrun", port=port, hang_seconds=6.0)
        assert result.exit_code == 124
        failure = parse_failure(host.failure)
        assert failure.cause == "hang: no output and no CPU use for 6 s by ranks 0 and 1"
        assert "in waits" in failure.traceback


def test_words_that_differ_by_rank_are_refused(make_host: MakeHost) -> None:
    host = make_host(PRINT_ENVIRONMENT)
    result = host.run(argv=("echo", Ref("local_rank")), launcher="torchrun")
    assert result.exit_code == 2
    assert "'local_rank' is not known before torchrun starts its ranks" in result.stderr


def test_no_torch_is_told(make_host: MakeHost) -> None:
    host = make_host(PRINT_ENVIRONMENT, source={"torch.py": ""})
    assert host.run(launcher="torchrun").exit_code == 1
    assert "No module named" in host.failure


REPORT = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_16:00:01
  host      : algo-1
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 12)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_16:00:00
  host      : algo-1
  rank      : 4 (local_rank: 0)
  exitcode  : -11 (pid: 11)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 11
============================================================
"""


def agent_outcome(status: int, tail: str) -> HostOutcome:
    tails = {4: ("Traceback (most recent call last):\nOSError: x\n", 50.0), 5: ("", None)}
    return HostOutcome((FinishedProcess(4, status, 100.0, 100.0, tail, False, tails),))


def test_its_report_is_read() -> None:
    failure = _replace_launcher_by_ranks(agent_outcome(1, REPORT)).first_failure
    assert failure is not None
    assert (failure.rank, failure.status, failure.failed_at) == (4, -11, 50.0)


def test_a_rank_that_takes_long_to_exit_after_its_exception_is_the_cause() -> None:
    """torchrun observes first the peer that missed it, and stops it."""
    raised = "Traceback (most recent call last):\nOSError: x\n"
    for status, traceback_at, rank in (
        (1, 48.0, 5),
        (-6, 48.0, 5),
        (1, 40.0, 4),
        (1, 51.0, 4),
        (-11, 48.0, 4),
    ):
        tails = {4: (raised, 50.0), 5: (raised, traceback_at)}
        report = REPORT.replace("exitcode  : -11", f"exitcode  : {status}")
        agent = FinishedProcess(4, 1, 100.0, 100.0, report, False, tails)
        failure = _replace_launcher_by_ranks(HostOutcome((agent,))).first_failure
        assert failure is not None
        assert (failure.rank, failure.status) == (rank, status if rank == 4 else 1)


def test_without_a_report_it_speaks_for_itself() -> None:
    failure = _replace_launcher_by_ranks(agent_outcome(1, "RuntimeError: no store")).first_failure
    assert failure is not None
    assert (failure.rank, failure.status, failure.output_tail) == (None, 1, "RuntimeError: no store")


def test_its_way_to_die_of_a_signal() -> None:
    tail = "...api.SignalException: Process 7 got signal: 15\n"
    outcome = _replace_launcher_by_ranks(agent_outcome(1, tail))._replace(stop_signal=15)
    assert (outcome.exit_code, outcome.first_failure) == (143, None)


@pytest.mark.parametrize(
    ("traceback_at", "rank"),
    [(99.0, 5), (100.5, None), (50.0, None)],
    ids=["just before the stop", "after it", "long before: the rank went on"],
)
def test_a_rank_that_failed_before_its_agent_was_stopped_has_failed(
    traceback_at: float, rank: int | None
) -> None:
    """Another host had ended first, and the platform stopped this one before torchrun reported its rank."""
    tails = {4: ("at work\n", None), 5: ("Traceback (most recent call last):\nOSError: x\n", traceback_at)}
    agent = FinishedProcess(4, 1, 100.0, 100.0, "SignalException: Process 7 got signal: 15\n", False, tails)
    failure = _replace_launcher_by_ranks(HostOutcome((agent,), stop_signal=15)).first_failure
    assert (failure and failure.rank) == rank


class TestPeersThatLeave:
    pytestmark = with_torch

    @pytest.mark.parametrize("launcher", ["runtime", "torchrun"])
    def test_a_rank_that_leaves_with_0_while_others_wait_for_it(
        self, make_host: MakeHost, port: int, launcher: str
    ) -> None:
        """Its peers fail soon; the cause names the rank that they miss where the launcher knows it."""
        train = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os._exit(0)
dist.all_reduce(torch.ones(1))
"""
        host = make_host(train)
        result = host.run(per_host=2, launcher=launcher, port=port)
        assert result.exit_code == 1, result.stdout
        first = host.failure.partition("\n")[0]
        assert first.startswith("rank 0 on algo-1 exited with code 1: ")
        if launcher == "runtime":
            assert first.endswith("; rank 1 had left with exit code 0")
        assert "in <module>" in host.failure


class TestThroughTheCommand:
    pytestmark = with_torch

    TRAIN = """
import atexit, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("total", total.item(), "on", os.environ["SM_CURRENT_HOST"], flush=True)
if os.environ["RANK"] == os.environ.get("FAILS"):
    # After the traceback: its threads may abort the rank while it ends, and peers miss it when they are gone.
    atexit.register(dist.destroy_process_group)
    raise ValueError("planted")
dist.barrier()
dist.destroy_process_group()
"""

    @pytest.mark.parametrize("fails", [None, "2"])
    def test_two_hosts_on_this_machine(self, home: Path, tmp_path: Path, fails: str | None) -> None:
        folder = tmp_path / "source"
        folder.mkdir()
        (folder / "train.py").write_text(self.TRAIN)
        job = {
            "entry": "train.py",
            "launcher": "torchrun",
            "compute": {"hosts": 2, "processes_per_host": 2},
            "environment": {} if fails is None else {"FAILS": fails},
        }
        (folder / "job.yaml").write_text(json.dumps(job))
        result = smlaunch("run", folder / "job.yaml", "--local", "--json")
        (training_job,) = result.json()["jobs"]
        if fails is None:
            assert (result.code, training_job["status"]) == (0, "Completed"), result.text
            assert {f"[{rank}] total 10.0 on algo-{1 + rank // 2}" for rank in range(4)} <= log_lines(
                result.err
            )
        else:
            assert result.code == 1, result.text
            failure = training_job["failure"]
            assert (failure["cause"], failure["host"]) == ("ValueError: planted", "algo-2")
            assert (failure["rank"], failure["exit_code"]) == (2, 1)


def log_lines(text: str) -> set[str]:
    """Return the lines of the hosts' logs without the host's name."""
    return {line.partition(" ")[2] for line in text.splitlines()}
