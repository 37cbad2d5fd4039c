"""A task's tries on a real endpoint, each a process without memory, without Airflow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.airflow.task_runs import (
    StartedRun,
    TaskTry,
    fetch_outcome,
    reattach,
    start_or_reattach,
    submit_due_jobs,
)
from smlaunch.connection.open_connection import target_of_endpoint
from smlaunch.job.model import Job
from smlaunch.local.endpoint import Endpoint
from smlaunch.runs.attach_run import attach
from smlaunch.runs.job_poller import Event
from smlaunch.runs.launch_target import Target
from tests.e2e.chains import SEGMENTS, write_script


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with Endpoint(tmp_path_factory.mktemp("home")) as info:
        yield target_of_endpoint(info)


class TaskTries:
    def __init__(self, target: Target, folder: Path, base: str) -> None:
        self.target, self.base = target, base
        self.script = write_script(folder / base)
        self.messages: list[str] = []
        self.events: list[Event] = []

    def job(self) -> Job:
        return Job.from_mapping(
            {"entry": str(self.script), "limits": {"max_runtime": "10m", "segment": "60s", "attempts": 1}}
        )

    def begin(self, number: int, last_cleared: int = 0, *, own_job: bool = True) -> StartedRun:
        this = TaskTry(self.base, number, last_cleared, own_job)
        return start_or_reattach(this, self.job, self.target, self.messages.append)

    def jobs(self) -> list[str]:
        names = sorted(row.name for row in self.target.control_plane.list_jobs(self.base))
        return [name.removeprefix(f"{self.base}-") for name in names]


CHAIN = [f"s{number}-a1" for number in range(1, SEGMENTS + 1)]


def step_by_step(name: str, target: Target, messages: list[str]) -> None:
    """Continues as a deferred task does: every step in a process of its own."""
    while True:
        run = reattach(name, target, messages.append)
        task_state = submit_due_jobs(run)
        if task_state.run_has_ended:
            return
        while any(
            target.control_plane.describe_job(job)["TrainingJobStatus"] == "InProgress"
            for job in task_state.running_jobs
        ):
            time.sleep(0.02)


def test_each_try_finds_the_run_in_another_process(target: Target, tmp_path: Path) -> None:
    tries = TaskTries(target, tmp_path, "steps")
    first, second = tries.begin(1), tries.begin(2)
    assert first.run.name == second.run.name == "steps" and not second.is_finished
    step_by_step("steps", target, tries.messages)
    assert tries.jobs() == CHAIN
    assert fetch_outcome("steps", target).to_dict()["status"] == "Completed"
    # No try has reported the end yet: the third one does, and trains nothing.
    assert tries.begin(3).is_finished and tries.jobs() == CHAIN
    # Cleared after that: to be done again, under the name of that try; a retry of it goes on with it.
    assert tries.begin(4, last_cleared=3).run.name == "steps-t4"
    assert tries.begin(5, last_cleared=3).run.name == "steps-t4"
    tries.begin(5, last_cleared=3).run.wait(tries.events.append)
    assert tries.jobs() == CHAIN + [f"t4-{job}" for job in CHAIN]


def test_a_failed_chain_is_resumed_and_a_changed_job_starts_a_new_run(target: Target, tmp_path: Path) -> None:
    tries = TaskTries(target, tmp_path, "fails")
    script_text = tries.script.read_text()
    tries.script.write_text("import smlaunch.train\nraise SystemExit(3)\n")
    tries.begin(1).run.wait(tries.events.append)
    assert fetch_outcome("fails", target).exit_code == 1 and tries.jobs() == ["s1-a1"]
    tries.begin(2).run.wait(tries.events.append)
    assert tries.jobs() == ["s1-a1", "s1-a2"], "a retry is the next attempt"
    tries.script.write_text(script_text)
    tries.begin(3, last_cleared=2).run.wait(tries.events.append)
    assert tries.jobs() == ["s1-a1", "s1-a2"] + [f"t3-{job}" for job in CHAIN]


def test_a_try_waits_for_a_run_that_is_being_stopped(target: Target, tmp_path: Path) -> None:
    tries = TaskTries(target, tmp_path, "stopped")
    tries.script.write_text(tries.script.read_text().replace('"TEST_PAUSE", "0"', '"TEST_PAUSE", "0.05"'))
    run = tries.begin(1).run
    while not any("progress" in line.text for line in run.logs()):
        time.sleep(0.05)
    attach(run.name, target).stop()
    tries.begin(2).run.wait(tries.events.append)
    assert tries.jobs()[:2] == ["s1-a1", "s1-a2"]
    assert fetch_outcome("stopped", target).exit_code == 0
