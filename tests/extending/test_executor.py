"""An executor from one file: the example of docs/extending.md runs jobs, and nothing of them is left."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from smlaunch import Compute, EndpointError, Job, Target, launch, plan
from smlaunch.cli.doctor import doctor
from smlaunch.cli.run import run as run_command
from smlaunch.connection.open_connection import open_connection
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors import process_cleanup
from smlaunch.local.executors.executor_base import EndpointContext
from smlaunch.local.executors.executor_interface import HostExit, HostsRequest, Program
from smlaunch.local.state_dir import StateDir

WRAPPER = """\
import os, sys
os.environ["WRAPPED"] = "yes"
os.execvp(sys.argv[1], sys.argv[1:])
"""
SUM_OF_RANKS = """\
import os
import socket
import sys
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(address) as server:
        total = 0
        for _ in range(size - 1):
            connection, _ = server.accept()
            total += int(connection.recv(9))
            connection.close()
    print("sum", total, "wrapped", os.environ["WRAPPED"])
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "sum"), "w") as stream:
        stream.write(str(total))
else:
    while True:
        try:
            connection = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    connection.sendall(str(rank).encode())
if "fails" in sys.argv and rank == 1:
    sys.exit("rank 1 cannot go on")
"""
WAITING = """\
import signal
import subprocess

subprocess.Popen(["sleep", "600"], start_new_session=True)
print("started", flush=True)
signal.pause()
"""


@pytest.fixture
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "wrapper.py"
    script.write_text(WRAPPER)
    monkeypatch.setenv("HOST_WRAPPER", f"{sys.executable} {script}")


@pytest.fixture
def target(home: Path, wrapper: None, import_example: Callable[[str], Any]) -> Iterator[Target]:
    import_example("wrapped_executor.py")
    options = {"local": True, "region": None, "profile": None, "executor": "wrapped"}
    with open_connection(options) as connection:
        yield connection.target
    assert list((home / "hosts").iterdir()) == []


def job_of(folder: Path, script: str, *arguments: str) -> Job:
    source = folder / "source"
    source.mkdir()
    (source / "train.py").write_text(script)
    compute = Compute(hosts=2, processes_per_host=2)
    return Job(entry=source / "train.py", args=arguments, strategy="ddp", name="demo", compute=compute)


def has_host_processes() -> bool:
    """Whether a process of this test's endpoint runs: each has the test's variable too."""
    marker = f"HOST_WRAPPER_TEST={os.getpid()}".encode()
    own = [pid for pid in process_cleanup.find_processes_of_owner("") if pid != os.getpid()]
    return any(marker in process_cleanup._read_file(f"/proc/{pid}/environ").split(b"\0") for pid in own)


def test_two_hosts_of_two_ranks_meet(tmp_path: Path, target: Target) -> None:
    run = launch(job_of(tmp_path, SUM_OF_RANKS), target)
    outcome = run.result()
    assert outcome.status == "Completed"
    lines = [(line.host, line.text) for line in run.logs()]
    assert any(host == "algo-1" and "sum 6 wrapped yes" in text for host, text in lines)
    assert any("runs on this machine's Python (wrapped by " in text for _, text in lines)
    assert outcome.to_dict()["model_artifacts"]


def test_a_failing_rank_fails_the_job(tmp_path: Path, target: Target) -> None:
    run = launch(job_of(tmp_path, SUM_OF_RANKS, "fails"), target)
    outcome = run.wait()
    assert (outcome.status, outcome.exit_code) == ("Failed", 1)
    failure = outcome.to_dict()["jobs"][0]["failure"]
    assert (failure["rank"], failure["exit_code"]) == (1, 1)


def test_a_stopped_job_leaves_no_process(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, WAITING).with_changes(environment={"HOST_WRAPPER_TEST": str(os.getpid())})
    run = launch(job, target)
    wait_until(lambda: sum("started" in line.text for line in run.logs()) == 4)
    assert has_host_processes()
    run.stop()
    assert run.wait().status == "Stopped"
    wait_until(lambda: not has_host_processes())


def test_a_killed_host_leaves_no_process(
    home: Path, wrapper: None, import_example: Callable[[str], Any]
) -> None:
    executor = import_example("wrapped_executor.py").Wrapped(EndpointContext(StateDir(home), Settings()))
    endpoint_id = f"killed-{os.getpid()}-{time.monotonic_ns()}"
    folder = home / "hosts" / "job"
    request = HostsRequest(job_id="job", endpoint_id=endpoint_id, folder=folder, host_names=["algo-1"])
    allocation = executor.allocate(request)
    try:
        (folder / "algo-1" / "ml" / "code").mkdir()
        argv = ("sh", "-c", "setsid sleep 600 & echo ready; wait")
        (process,) = allocation.start([Program(argv, {"PATH": os.environ["PATH"]})])
        assert os.read(process.output_fd, 100) == b"ready\n"
        assert process.read_exit() is None
        process.kill()
        assert select.select([process.events_fd], [], [], 60)[0]
        assert process.read_exit() == HostExit(128 + signal.SIGKILL)
        assert process_cleanup.find_processes_of_owner(endpoint_id) == []
    finally:
        allocation.release()
        executor.remove_leftovers(endpoint_id)
    assert not folder.exists()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_plan_says_what_the_hosts_are(tmp_path: Path, target: Target) -> None:
    text = str(plan(job_of(tmp_path, SUM_OF_RANKS), target))
    assert f"on this machine (wrapped by {sys.executable})" in text
    assert "SMLAUNCH_ML_ROOT" in text


def test_what_does_not_fit_is_rejected(
    home: Path, monkeypatch: pytest.MonkeyPatch, import_example: Callable[[str], Any]
) -> None:
    with pytest.raises(EndpointError, match=r"'wrapped' is unknown; there is processes, containers$"):
        Endpoint(home, executor="wrapped")
    import_example("wrapped_executor.py")
    monkeypatch.delenv("HOST_WRAPPER", raising=False)
    with pytest.raises(EndpointError, match="needs HOST_WRAPPER"):
        Endpoint(home, executor="wrapped").preview()
    with pytest.raises(EndpointError, match="isolation levels belong to the executor `processes`"):
        Endpoint(home, executor="wrapped", isolation="plain")


def test_a_wrapper_that_is_missing_fails_the_job(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_WRAPPER", str(tmp_path / "missing"))
    outcome = launch(job_of(tmp_path, SUM_OF_RANKS), target).wait()
    assert outcome.status == "Failed"
    assert "CapacityError" in str(outcome.to_dict()) and "missing cannot be started" in str(outcome.to_dict())


def test_the_command_line_knows_an_installed_one(
    home: Path, install_example: Callable[[str, str, str], None]
) -> None:
    unknown = CliRunner().invoke(run_command, ["train.py", "--local", "--executor", "wrapped"])
    assert "'wrapped' is not one of 'processes', 'containers'." in unknown.output
    install_example("wrapped_executor.py", "smlaunch.executors", "wrapped = wrapped_executor:Wrapped")
    help_text = " ".join(CliRunner().invoke(run_command, ["--help"]).output.split())
    assert "[processes|containers|wrapped]" in help_text
    assert "or processes behind the command in HOST_WRAPPER. Default: processes." in help_text
    completion = ShellComplete(run_command, {}, "smlaunch", "_COMPLETE")
    assert [item.value for item in completion.get_completions(["--executor"], "w")] == ["wrapped"]
    other = CliRunner().invoke(run_command, ["train.py", "--local", "--executor", "slurmy"])
    assert "'slurmy' is not one of 'processes', 'containers', 'wrapped'." in other.output


def test_doctor_names_one_that_cannot_be_loaded(
    home: Path, install_example: Callable[[str, str, str], None]
) -> None:
    install_example("wrapped_executor.py", "smlaunch.executors", "wrapped = wrapped_executor:Missing")
    result = CliRunner().invoke(doctor, ["--json"], standalone_mode=False)
    checks = {check["name"]: check for check in json.loads(result.output)["checks"]}
    assert checks["executor wrapped"]["verdict"] == "missing"
    assert "has no attribute 'Missing'" in checks["executor wrapped"]["text"]
    assert "isolation plain" in checks


def test_a_dead_endpoint_may_have_had_any_executor(
    home: Path, import_example: Callable[[str], Any], install_example: Callable[[str, str, str], None]
) -> None:
    """One that cannot be loaded does not end the endpoint that cleans up."""
    wrapped = import_example("wrapped_executor.py").Wrapped
    removed: list[str] = []
    wrapped.remove_leftovers = lambda self, dead_endpoint_id: removed.append(dead_endpoint_id)
    install_example("wrapped_executor.py", "smlaunch.executors", "broken = wrapped_executor:Missing")
    Endpoint(home)._remove_leftovers("dead")
    assert removed == ["dead"]
