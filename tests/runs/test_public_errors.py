"""Every response of a service leads to an exception below SmlaunchError for users of plan, launch and Run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smlaunch import Compute, Job, Run, SmlaunchError, Target, attach, launch, plan
from smlaunch.aws.interfaces import CallError
from smlaunch.runs.chain_driver import ChainDriver
from smlaunch.runs.job_list import JobList
from smlaunch.runs.run_kinds import run_of_chain, run_of_shards, run_of_single_job
from tests.runs.fakes import ROLE, fake_target
from tests.runs.test_chain import FOLDER, RUN, workflow

PORTS = ("control_plane", "storage", "transfer", "logs", "orchestrators", "identity", "quotas")
METHODS: dict[str, Callable[[Run], Any]] = {
    "status": lambda run: run.status,
    "result": Run.result,
    "exception": Run.exception,
    "is_over": Run.done,
    "describe": Run.describe,
    "glance": lambda run: run.describe(reads_logs=True),
    "hosts": Run.host_count,
    "wait": Run.wait,
    "resume": Run.resume,
    "logs": lambda run: list(run.logs()),
    "stop": Run.stop,
}


class RefusingControl:
    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise CallError(operation, "AccessDeniedException", "not for you", 400)

        return call


@pytest.fixture
def refusing() -> Target:
    target = fake_target()
    target.__dict__.update(dict.fromkeys(PORTS, RefusingControl()))
    return target


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "train.py").write_text("print(1)")
    return Job(entry=tmp_path / "train.py", compute=Compute(instance_type="ml.m5.large"), role=ROLE)


def test_plan_and_launch(refusing: Target, job: Job) -> None:
    with pytest.raises(SmlaunchError):
        plan(job, refusing)
    with pytest.raises(SmlaunchError):
        launch(job, refusing)
    job_plan = plan(job, fake_target())
    with pytest.raises(SmlaunchError):
        launch(job_plan, refusing)
    with pytest.raises(SmlaunchError):
        attach("x", refusing)


@pytest.mark.parametrize("name", METHODS)
def test_a_run(refusing: Target, name: str) -> None:
    single_job = run_of_single_job("x", refusing, "x", attached=True)
    chain = run_of_chain(
        ChainDriver(workflow(), FOLDER, refusing, jobs=JobList(RUN, refusing, ["x"])), refusing, attached=True
    )
    shards = run_of_shards("x", refusing, {1: chain, 2: single_job}, attached=True)
    error_count = 0
    for run in (single_job, chain, shards):
        try:
            METHODS[name](run)
        except SmlaunchError:
            error_count += 1
    assert error_count, "some of them have to ask"
