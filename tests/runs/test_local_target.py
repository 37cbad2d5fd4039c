"""``local_target`` finds the background endpoint at its present address."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import smlaunch.connection.open_connection
from smlaunch import Job, Run, Target, launch, local_target
from smlaunch.local import background_endpoint
from smlaunch.local.endpoint_info import EndpointInfo


@pytest.fixture
def job(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Returns a job with a state directory of its own, and no endpoint left from another test."""
    (tmp_path / "source").mkdir()
    script = tmp_path / "source" / "train.py"
    script.write_text("print('hello')\n")
    monkeypatch.setattr(smlaunch.connection.open_connection, "_OPEN_CONNECTIONS", {})
    return Job(entry=str(script))


def restart_on_another_port(home: Path, previous: EndpointInfo | None = None) -> EndpointInfo:
    """Restarts the endpoint on another port."""
    port = 0
    if previous is not None:
        port = int(previous.url.rpartition(":")[2])
        background_endpoint.stop_endpoint(home)
    new = background_endpoint.start_endpoint(home, isolation="plain")
    if int(new.url.rpartition(":")[2]) == port:
        return restart_on_another_port(home, new)
    return new


def run_to_completion(job: Job, target: Target, name: str) -> None:
    run: Run = launch(job.with_changes(name=name), target)
    assert run.result().exit_code == 0


def test_a_restarted_endpoint_is_found_again(job: Job, home: Path) -> None:
    first = restart_on_another_port(home)
    try:
        target = local_target()
        run_to_completion(job, target, "one")
        second = restart_on_another_port(home, first)
        assert second.url != first.url
        run_to_completion(job, local_target(), "two")
        run_to_completion(job, target, "three")  # the one that a notebook has in a variable
        background_endpoint.stop_endpoint(home)
        (home / "credentials.json").unlink()
        third = restart_on_another_port(home)
        assert third.secret_key != first.secret_key
        run_to_completion(job, target, "four")
    finally:
        background_endpoint.stop_endpoint(home)
        shutil.rmtree(home)


def test_forked_processes_have_connections_of_their_own(job: Job, home: Path) -> None:
    """With the parent's connection they would read each other's responses, or wait for ever."""
    background_endpoint.start_endpoint(home, isolation="plain")
    try:
        target = local_target()
        job_names = [launch(job.with_changes(name=f"forked-{n}"), target).jobs[0] for n in range(2)]

        def describe_often(job_name: str) -> None:
            signal.alarm(60)
            described = {target.control_plane.describe_job(job_name)["TrainingJobName"] for _ in range(50)}
            sys.exit(described != {job_name})

        fork = multiprocessing.get_context("fork")
        children = [fork.Process(target=describe_often, args=(job_name,)) for job_name in job_names * 2]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * len(children)
    finally:
        background_endpoint.stop_endpoint(home)


SAVES_AT_SIGTERM = """
import pathlib, signal, sys, time
def leave(*_):
    time.sleep(1.5)
    pathlib.Path("/opt/ml/checkpoints/saved").write_text("state")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("training", flush=True)
time.sleep(600)
"""
LAUNCHES = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell's children ignore it
from smlaunch import Checkpoints, Job, LogLine, launch, local_target
def tell(event):
    if isinstance(event, LogLine) and event.text.endswith("training"):
        print("ready", flush=True)
target = local_target()
job = Job(entry=sys.argv[1], name="kept", checkpoints=Checkpoints(f"s3://{target.bucket}/kept/"))
launch(job, target).wait(tell)
"""


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_of_a_program_stores_the_checkpoints_of_its_jobs(
    home: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "source").mkdir()
    script = tmp_path / "source" / "train.py"
    script.write_text(SAVES_AT_SIGTERM)
    program = start_program(LAUNCHES, str(script))
    try:
        program.send_signal(number)
        _, errors = program.communicate(timeout=100)
    finally:
        program.kill()
    assert [path.read_text() for path in home.glob("s3/*/kept/saved")] == ["state"], errors
    assert program.returncode == (143 if number == signal.SIGTERM else -number)
    assert "Traceback" not in errors or number == signal.SIGINT


def start_program(text: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python program, and return it when it has written the line ``ready``."""
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n", program.communicate()
    return program


def test_threads_that_ask_at_once_share_one_endpoint(job: Job) -> None:
    targets: list[Target] = []
    barrier = threading.Barrier(4)

    def open_target() -> None:
        barrier.wait()
        targets.append(local_target(isolation="plain"))

    threads = [threading.Thread(target=open_target) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [target is targets[0] for target in targets] == [True] * 4


FORKS = """
import os, sys, time
from smlaunch import Job, LogLine, launch, local_target
target = local_target(isolation="plain")
run = launch(Job(entry=sys.argv[1], name="kept"), target)
while not any(line.text.endswith("training") for line in run.logs()):
    time.sleep(0.1)
child = os.fork()
if child == 0:
    if sys.argv[2] == "exception":
        raise ValueError("of the child")
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), run.status, len(os.listdir(sys.argv[3])))
print(run.stop().status, run.exception(), flush=True)
"""


@pytest.mark.parametrize("end", ["exit", "exception"])
def test_a_forked_process_that_exits_leaves_its_parents_endpoint_alone(
    home: Path, tmp_path: Path, end: str
) -> None:
    (tmp_path / "source").mkdir()
    script = tmp_path / "source" / "train.py"
    script.write_text("import time\nprint('training', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-c", FORKS, str(script), end, str(home / "owners")]
    program = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    child_code = 1 if end == "exception" else 3
    assert program.stdout.splitlines() == [
        f"{child_code} InProgress 2",  # the lock and the mailbox of the one endpoint
        "Stopping run kept: stopped",
    ], program.stderr
    assert ("liveness" in program.stderr, "ValueError" in program.stderr) == (False, end == "exception")


SIGNAL_PROGRAMS = {
    "handled": (
        """
        signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
        local_target(isolation="plain")
        ready()
        """,
        9,
    ),
    "handled later": (
        """
        local_target(isolation="plain")
        signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
        ready()
        """,
        9,
    ),
    "ignored": (
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        local_target(isolation="plain")
        os.kill(os.getpid(), signal.SIGTERM)
        ready(0)
        os._exit(8)
        """,
        8,
    ),
    "in a thread": (
        """
        thread = threading.Thread(target=lambda: local_target(isolation="plain"))
        thread.start()
        thread.join()
        ready()
        """,
        -signal.SIGTERM,
    ),
    "a forked process": (
        """
        local_target(isolation="plain")
        if pid := os.fork():
            os.kill(pid, signal.SIGTERM)
            status = os.waitpid(pid, 0)[1]
            ready(0)
            os._exit(os.WTERMSIG(status))
        time.sleep(600)
        """,
        signal.SIGTERM,
    ),
    "closed before": (
        """
        local_target(isolation="plain")
        open_connection._EXIT_STACK.close()
        ready()
        """,
        -signal.SIGTERM,
    ),
    "once": (
        """
        local_target(isolation="plain")
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
        finally:
            ready()
        """,
        -signal.SIGTERM,
    ),
}


@pytest.mark.parametrize("name", SIGNAL_PROGRAMS)
def test_signals_of_the_program_stay_its_own(home: Path, name: str) -> None:
    text, expected_code = SIGNAL_PROGRAMS[name]
    beginning = """
        import os, signal, threading, time
        from smlaunch import local_target
        from smlaunch.connection import open_connection
        def ready(seconds=600):
            print("ready", flush=True)
            time.sleep(seconds)
        """
    program = start_program(textwrap.dedent(beginning) + textwrap.dedent(text))
    if expected_code not in (8, signal.SIGTERM):
        program.terminate()
    _, errors = program.communicate(timeout=60)
    assert program.returncode == expected_code, errors
