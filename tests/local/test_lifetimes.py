"""Endpoints that are closed, killed, share a state directory, or run in the background."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.cli.main import run_command
from smlaunch.errors import EXIT_MACHINE, EndpointError
from smlaunch.local import background_endpoint
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors import process_cleanup
from smlaunch.local.state_dir import StateDir, abandoned_host_folders
from tests.local.client import EndpointClient
from tests.local.executors.conftest import eventually

SLEEP_SCRIPT = "print('ready', flush=True); time.sleep(1000)"
SHORT_GRACE = Settings(close_grace_seconds=0.2, stop_grace_seconds=0.2)
ENDPOINT_SCRIPT = """
import sys
from pathlib import Path
from smlaunch.local.endpoint import Endpoint
info = Endpoint(Path(sys.argv[1]), isolation=sys.argv[2]).start()
sys.stdout.buffer.write(info.to_json().replace(b"\\n", b"") + b"\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def start_endpoint_process(
    home: Path, level: str, program: str = ENDPOINT_SCRIPT
) -> tuple[subprocess.Popen[str], EndpointInfo]:
    """Start an endpoint inside another process, which the test may kill."""
    command = [sys.executable, "-c", program, str(home), level]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, EndpointInfo.from_json(process.stdout.readline().encode())


def owner_of(home: Path) -> str:
    (lock,) = StateDir(home).owners_dir.glob("*.lock")
    return lock.stem


def test_jobs_of_a_dead_endpoint_are_failed_by_the_next(tmp_path: Path, level: str) -> None:
    process, info = start_endpoint_process(tmp_path, level)
    client = EndpointClient(info)
    client.create("lost", SLEEP_SCRIPT, hosts=2)
    client.wait_for_line("lost", "ready", count=2)
    owner = owner_of(tmp_path)
    assert process_cleanup.find_processes_of_owner(owner + "/")
    process.kill()
    process.communicate()
    assert eventually(lambda: process_cleanup.find_processes_of_owner(owner + "/") == [])
    with Endpoint(tmp_path, isolation=level) as next_info:
        assert next_info.access_key == info.access_key
        client = EndpointClient(next_info)
        job = client.describe("lost")
        assert job["TrainingJobStatus"] == "Failed"
        assert job["FailureReason"].startswith("InternalServerError: the endpoint that ran this job ended")
        assert client.printed_lines("lost")["algo-1"] == ["ready"]
        assert client.run("found", "print('again')")["TrainingJobStatus"] == "Completed"
        assert eventually(lambda: not (StateDir(tmp_path).hosts_dir / owner).exists())


FORK_SCRIPT = """
import os, time
if os.fork() == 0:
    print("forked", os.getpid(), flush=True)
    time.sleep(1000)
"""


def test_a_fork_of_the_client_keeps_nothing_alive(tmp_path: Path) -> None:
    """Such as a data loader's workers, which survive the process that embeds the endpoint."""
    program = ENDPOINT_SCRIPT.replace(
        "sys.stdin.read()", f"sys.stdin.readline()\nexec({FORK_SCRIPT!r})\ntime.sleep(1000)"
    )
    process, info = start_endpoint_process(tmp_path, "plain", program)
    client = EndpointClient(info)
    client.create("runs", SLEEP_SCRIPT, hosts=2)
    client.wait_for_line("runs", "ready", count=2)
    owner = owner_of(tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("fork\n")
    process.stdin.flush()
    fork = int(process.stdout.readline().split()[1])
    try:
        process.kill()
        process.wait()
        assert eventually(lambda: process_cleanup.find_processes_of_owner(owner + "/") == [])
        with Endpoint(tmp_path, isolation="plain") as next_info:
            assert EndpointClient(next_info).describe("runs")["TrainingJobStatus"] == "Failed"
    finally:
        os.kill(fork, signal.SIGKILL)
        process.communicate()


def test_only_the_process_that_started_an_endpoint_closes_it(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, isolation="plain", settings=SHORT_GRACE)
    client = EndpointClient(endpoint.start())
    client.create("runs", SLEEP_SCRIPT)
    client.wait_for_line("runs", "ready")
    fork = os.fork()
    if fork == 0:
        with contextlib.suppress(BaseException):
            endpoint.close()
        os._exit(0)
    os.waitpid(fork, 0)
    assert owner_of(tmp_path)
    assert client.describe("runs")["TrainingJobStatus"] == "InProgress"
    endpoint.close()
    assert list(StateDir(tmp_path).owners_dir.iterdir()) == []


def test_the_hosts_of_a_living_endpoint_stay_without_its_lock_file(tmp_path: Path) -> None:
    with Endpoint(tmp_path, isolation="plain", settings=SHORT_GRACE) as info:
        client = EndpointClient(info)
        client.create("runs", "print('ready', flush=True); os.chdir('/'); time.sleep(1000)")
        client.wait_for_line("runs", "ready")
        owner = owner_of(tmp_path)
        for path in StateDir(tmp_path).owners_dir.iterdir():
            path.unlink()
        assert list(abandoned_host_folders(StateDir(tmp_path))) == []
        assert EndpointClient(info).describe("runs")["TrainingJobStatus"] == "InProgress"
    (StateDir(tmp_path).hosts_dir / owner).mkdir()
    assert list(abandoned_host_folders(StateDir(tmp_path))) == [StateDir(tmp_path).hosts_dir / owner]


def test_files_of_an_endpoint_that_died_during_its_start_are_removed(tmp_path: Path) -> None:
    owners = StateDir(tmp_path).owners_dir
    (owners / ".0123456789ab.new").touch()
    os.mkfifo(owners / "0123456789ab.mail")
    hosts = StateDir(tmp_path).hosts_dir
    for name in ("0123456789ab", "of-one-that-closed", "probe-of-one-that-died"):
        (hosts / name / "job" / "algo-1").mkdir(parents=True)
    with Endpoint(tmp_path, isolation="plain"):
        assert len(list(owners.iterdir())) == 2
        assert eventually(lambda: list(hosts.iterdir()) == [])
    assert list(owners.iterdir()) == []


def test_close_stops_running_and_waiting_jobs(tmp_path: Path, level: str) -> None:
    endpoint = Endpoint(
        tmp_path, isolation=level, settings=Settings(close_grace_seconds=0.2, max_parallel_jobs=1)
    )
    client = EndpointClient(endpoint.start())
    client.create("runs", SLEEP_SCRIPT)
    client.create("waits", SLEEP_SCRIPT)
    client.wait_for_line("runs", "ready")
    assert client.describe("waits")["SecondaryStatus"] == "Starting"
    owner = owner_of(tmp_path)
    endpoint.close()
    assert process_cleanup.find_processes_of_owner(owner + "/") == []
    with Endpoint(tmp_path, isolation=level) as info:
        client = EndpointClient(info)
        for name in ("runs", "waits"):
            job = client.describe(name)
            assert job["TrainingJobStatus"] == "Stopped"
            messages = [step["StatusMessage"] for step in job["SecondaryStatusTransitions"]]
            assert "The endpoint that ran this job was closed" in messages


def test_waiting_jobs_run_in_turn_and_can_be_stopped(tmp_path: Path) -> None:
    settings = Settings(max_parallel_jobs=1, stop_grace_seconds=0.2, close_grace_seconds=0.2)
    with Endpoint(tmp_path, isolation="plain", settings=settings) as info:
        client = EndpointClient(info)
        client.create("first", SLEEP_SCRIPT)
        client.create("second", "print('second')")
        client.create("third", "print('third')")
        client.sagemaker.stop_training_job(TrainingJobName="second")
        assert client.wait("second")["TrainingJobStatus"] == "Stopped"
        assert client.printed_lines("second") == {}
        assert client.describe("third")["SecondaryStatus"] == "Starting"
        client.sagemaker.stop_training_job(TrainingJobName="first")
        assert client.wait("third")["TrainingJobStatus"] == "Completed"


def test_processes_that_ignore_sigterm_are_killed_after_the_grace_period(tmp_path: Path, level: str) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP_SCRIPT
    with Endpoint(tmp_path, isolation=level, settings=SHORT_GRACE) as info:
        client = EndpointClient(info)
        client.create("stubborn", script)
        client.wait_for_line("stubborn", "ready")
        client.sagemaker.stop_training_job(TrainingJobName="stubborn")
        assert client.wait("stubborn")["SecondaryStatus"] == "Stopped"


def test_two_endpoints_share_a_state_directory(tmp_path: Path) -> None:
    with (
        Endpoint(tmp_path, isolation="plain", settings=SHORT_GRACE) as one,
        Endpoint(tmp_path, isolation="plain", settings=SHORT_GRACE) as two,
    ):
        first, second = EndpointClient(one), EndpointClient(two)
        first.create("shared", SLEEP_SCRIPT)
        second.wait_for_line("shared", "ready")
        with pytest.raises(second.sagemaker.exceptions.ResourceInUse):
            second.create("shared", SLEEP_SCRIPT)
        second.sagemaker.stop_training_job(TrainingJobName="shared")
        assert second.wait("shared")["SecondaryStatus"] == "Stopped"


@pytest.mark.parametrize("operation", ["describe", "list", "search", "stop"])
def test_a_running_endpoint_finds_that_the_endpoint_of_a_job_died(tmp_path: Path, operation: str) -> None:
    process, info = start_endpoint_process(tmp_path, "plain")
    with Endpoint(tmp_path, isolation="plain") as running_info:
        EndpointClient(info).create("orphan", SLEEP_SCRIPT)
        EndpointClient(info).wait_for_line("orphan", "ready")
        client = EndpointClient(running_info)
        assert client.describe("orphan")["TrainingJobStatus"] == "InProgress"
        process.kill()
        process.communicate()
        if operation == "list":
            (summary,) = client.sagemaker.list_training_jobs(StatusEquals="Failed")["TrainingJobSummaries"]
            assert summary["TrainingJobName"] == "orphan"
        elif operation == "search":
            (result,) = client.sagemaker.search(Resource="TrainingJob")["Results"]
            assert result["TrainingJob"]["TrainingJobStatus"] == "Failed"
        elif operation == "stop":
            with pytest.raises(client.sagemaker.exceptions.ClientError, match="in status Failed"):
                client.sagemaker.stop_training_job(TrainingJobName="orphan")
        job = client.describe("orphan")
        assert job["TrainingJobStatus"] == "Failed"
        assert job["FailureReason"].startswith("InternalServerError: the endpoint that ran this job ended")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    background_endpoint.stop_endpoint(tmp_path / "home")


def test_start_status_and_stop_of_a_background_endpoint(home: Path) -> None:
    assert background_endpoint.running_endpoint(home) is None
    assert not home.exists()  # the query creates no file
    info = background_endpoint.start_endpoint(home, isolation="plain", settings=SHORT_GRACE)
    assert background_endpoint.running_endpoint(home) == info
    assert info.pid != os.getpid()
    assert (home / "endpoint.json").stat().st_mode & 0o777 == 0o600
    assert (home / "credentials.json").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o077 == 0
    with pytest.raises(EndpointError, match="already running"):
        background_endpoint.start_endpoint(home)
    client = EndpointClient(info)
    client.create("runs-on", SLEEP_SCRIPT)
    client.wait_for_line("runs-on", "ready")
    owner = owner_of(home)
    assert background_endpoint.stop_endpoint(home) == info
    assert background_endpoint.running_endpoint(home) is None
    assert process_cleanup.find_processes_of_owner(owner + "/") == []
    assert background_endpoint.stop_endpoint(home) is None


@pytest.mark.parametrize("names", [["endpoint.json"], ["endpoint.lock"], ["endpoint.json", "endpoint.lock"]])
def test_a_background_endpoint_without_its_files_is_found_and_stopped(
    home: Path, names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLAUNCH_HOME", str(home))
    info = background_endpoint.start_endpoint(home, isolation="plain", settings=SHORT_GRACE)
    for name in names:
        (home / name).unlink()
    # At once, before it writes them again: no second endpoint starts.
    with pytest.raises(EndpointError, match=r"already running|another endpoint uses"):
        background_endpoint.start_endpoint(home, isolation="plain")
    assert run_command(["local", "status"]) == 0
    assert f"process {info.pid}" in capsys.readouterr().out
    assert eventually(lambda: all((home / name).exists() for name in names))
    for name in names:
        assert (home / name).stat().st_mode & 0o777 == 0o600
        (home / name).unlink()
    assert run_command(["local", "stop"]) == 0
    assert capsys.readouterr().out == "stopped\n"
    assert not background_endpoint.is_endpoint_running(home)
    assert background_endpoint.running_endpoint(home) is None


def test_a_background_endpoint_that_cannot_write_its_address_is_reported(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLAUNCH_HOME", str(home))
    monkeypatch.setattr(background_endpoint, "_ADDRESS_TIMEOUT_SECONDS", 0.5)
    info = background_endpoint.start_endpoint(home, isolation="plain", settings=SHORT_GRACE)
    os.kill(info.pid, signal.SIGSTOP)
    try:
        (home / "endpoint.json").unlink()
        for word in ("status", "stop", "start"):
            assert run_command(["local", word]) == EXIT_MACHINE
            assert f"`kill {info.pid}`" in capsys.readouterr().err
    finally:
        os.kill(info.pid, signal.SIGCONT)


def test_a_killed_background_endpoint_has_no_status(home: Path) -> None:
    info = background_endpoint.start_endpoint(home, isolation="plain")
    os.kill(info.pid, signal.SIGKILL)
    assert eventually(lambda: background_endpoint.running_endpoint(home) is None)
    next_info = background_endpoint.start_endpoint(home, isolation="plain")
    assert next_info.pid != info.pid


def test_a_failed_start_of_a_background_endpoint_has_its_reason(home: Path) -> None:
    with pytest.raises(EndpointError, match="'half' is unknown"):
        background_endpoint.start_endpoint(home, isolation="half")
    assert background_endpoint.running_endpoint(home) is None
