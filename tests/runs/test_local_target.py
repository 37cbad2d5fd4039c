"""``local_target`` finds the background endpoint at its present address."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import sys
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
