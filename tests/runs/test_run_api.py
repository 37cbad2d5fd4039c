"""A run as an object: timeouts, one line of text, copies, and what it says while nobody drives it."""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from smlaunch import Run, Target, attach, launch
from smlaunch.aws.interfaces import CallError
from smlaunch.errors import JobError
from smlaunch.runs.chain_driver import ChainDriver
from smlaunch.runs.job_list import JobList
from smlaunch.runs.run_driver import LoggedMessages, prefix_messages
from smlaunch.runs.run_kinds import run_of_chain, run_of_shards
from tests.runs.fakes import FakeControl, FakeLogs, fake_target, job_description
from tests.runs.test_chain import FIVE_JOBS, FOLDER, RUN, Service, workflow

JOB = "demo-s1-a1"
RUNNING = job_description(JOB, "InProgress", ["Starting", "Training"])
COMPLETED = job_description(JOB, "Completed", ["Starting", "Training", "Completed"])
WAITING: dict[str, Callable[..., Any]] = {"wait": Run.wait, "result": Run.result, "exception": Run.exception}


@pytest.fixture
def target() -> Target:
    return fake_target()


def with_fakes_of(target: Target, changed: Target) -> Target:
    """Returns ``changed`` with the fake services of ``target``."""
    fakes = {name: value for name, value in target.__dict__.items() if name not in changed.__dict__}
    changed.__dict__.update(fakes)
    return changed


def local(target: Target) -> Target:
    """Returns the target with the kind of this machine's endpoint."""
    return with_fakes_of(target, replace(target, kind="local"))


def control(target: Target) -> FakeControl:
    return target.__dict__["control_plane"]  # type: ignore[no-any-return]


# ---- timeouts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", WAITING)
@pytest.mark.parametrize("timeout", [0, 0.01, -1])
def test_a_timeout_ends_the_wait_and_not_the_run(target: Target, method: str, timeout: float) -> None:
    control(target).descriptions_by_job[JOB] = [RUNNING]
    run = attach("demo", target)
    with pytest.raises(TimeoutError, match=r"run demo has not ended after .* s, and goes on: in progress"):
        WAITING[method](run, timeout=timeout)
    assert control(target).stopped == []
    control(target).descriptions_by_job[JOB] = [RUNNING, COMPLETED]
    WAITING[method](run, timeout=60)
    assert run.done()


@pytest.mark.parametrize("method", WAITING)
def test_a_run_that_has_ended_has_its_result_at_once(target: Target, method: str) -> None:
    control(target).descriptions_by_job[JOB] = [COMPLETED]
    logs: FakeLogs = target.__dict__["logs"]
    logs.add_lines(f"{JOB}/algo-1-5", "a")
    WAITING[method](attach("demo", target), timeout=0)


def test_what_came_before_the_timeout_was_told(target: Target) -> None:
    control(target).descriptions_by_job[JOB] = [RUNNING]
    events: list[object] = []
    with pytest.raises(TimeoutError):
        attach("demo", target).wait(events.append, timeout=0.01)
    assert [event.state for event in events] == ["Starting", "Training"]  # type: ignore[attr-defined]


def test_a_chain_that_waits_for_its_next_job_times_out(target: Target) -> None:
    run = undriven_chain(target)
    with pytest.raises(TimeoutError, match="the next job is due"):
        run.result(timeout=0.01)
    assert len(control(target).created) == 1, "the job that was there before"


def test_shards_time_out_together(target: Target) -> None:
    runs: dict[int, Run] = {}
    for number in (1, 2):
        name = f"{RUN}-p{number}"
        control(target).descriptions_by_job[f"{name}-s1-a1"] = [
            job_description(f"{name}-s1-a1", "InProgress", ["Training"])
        ]
        driver = ChainDriver(
            replace(workflow(), run=name), FOLDER, target, jobs=JobList(name, target, [f"{name}-s1-a1"])
        )
        runs[number] = run_of_chain(driver, target, attached=True)
    run = run_of_shards(RUN, target, runs, attached=True)
    with pytest.raises(TimeoutError):
        run.result(timeout=0.05)
    assert control(target).stopped == []


def test_an_interrupted_wait_leaves_the_status_that_it_has_read(target: Target) -> None:
    control(target).descriptions_by_job[JOB] = [RUNNING]

    def interrupt(event: object) -> None:
        if getattr(event, "text", "") == "interrupt here":
            raise KeyboardInterrupt

    run = attach("demo", target)
    logs: FakeLogs = target.__dict__["logs"]
    polled = FakeControl.describe_job

    def describe_and_log(name: str) -> dict[str, Any]:
        answer = polled(control(target), name)
        if len(described) == 2:
            logs.add_lines(f"{JOB}/algo-1-5", "interrupt here")
        described.append(name)
        return answer

    described: list[str] = []
    control(target).describe_job = describe_and_log  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.wait(interrupt)
    assert repr(run) == "Run('demo', InProgress, 1 job, us-east-1)"


def test_the_log_of_a_run_that_has_ended_is_read_once(target: Target) -> None:
    logs: FakeLogs = target.__dict__["logs"]
    stream = f"{JOB}/algo-1-5"
    logs.add_lines(stream, "smlaunch: metric loss=1")
    long_ago = datetime(2020, 1, 1, tzinfo=timezone.utc)
    for answer, expected in (
        (RUNNING, [1]),
        (RUNNING, [1, 2]),
        (COMPLETED, [1, 2, 3]),  # its last lines may still arrive
        ({**COMPLETED, "TrainingEndTime": long_ago}, [1, 2, 3, 4]),
    ):
        control(target).descriptions_by_job[JOB] = [answer]
        run = attach("demo", target)
        assert run.metrics["loss"] == expected
        logs.add_lines(stream, f"smlaunch: metric loss={len(expected) + 1}")
    assert run.metrics["loss"] == [1, 2, 3, 4]


# ---- a chain that this program drives by polling ---------------------------------------------------------


def driven_chain(target: Target, **options: Any) -> Run:
    """Returns a chain that was launched here, whose log takes longer to settle than any timeout here."""
    storage = target.__dict__["storage"]
    slow = with_fakes_of(target, replace(target, polling=target.polling._replace(settle_seconds=3600.0)))
    slow.__dict__["control_plane"] = target.__dict__["control_plane"] = Service(storage)
    driver = ChainDriver(workflow(), FOLDER, slow, is_driving=True, **options)
    FOLDER.save_workflow(workflow(), storage)
    driver.wait_for_next_job()
    return run_of_chain(driver, slow, attached=False)


@pytest.mark.parametrize("method", WAITING)
def test_each_call_submits_the_job_that_is_due_however_short_its_timeout(target: Target, method: str) -> None:
    run = driven_chain(target)
    for _ in range(30):
        with contextlib.suppress(TimeoutError):
            WAITING[method](run, timeout=0)
            break
    assert run.describe().status == "Completed"
    assert [request["TrainingJobName"] for request in control(target).created] == FIVE_JOBS


def test_polls_wait_between_two_requests_for_a_quota_in_use(target: Target) -> None:
    target = with_fakes_of(target, replace(target, polling=target.polling._replace(time_scale=1.0)))
    run = driven_chain(target)
    control(target).descriptions_by_job[f"{RUN}-s1-a1"].pop(0)
    message = (
        "The account-level service limit 'ml.m5.xlarge for training job usage' is 4 Instances, with current "
    )
    message += "utilization of 4 Instances and a request delta of 2 Instances."
    quota_in_use = CallError("CreateTrainingJob", "ResourceLimitExceeded", message, 400)
    control(target).create_errors = [quota_in_use] * 9
    for _ in range(5):
        with pytest.raises(TimeoutError, match="the next job is due"):
            run.result(timeout=0)
    assert len(control(target).create_errors) == 8


def test_a_loop_of_done_says_that_nobody_submits_the_next_job(target: Target) -> None:
    messages: list[str] = []
    run = driven_chain(target, on_message=messages.append)
    control(target).descriptions_by_job[f"{RUN}-s1-a1"].pop(0)
    messages.clear()
    assert not any(run.done() for _ in range(5))
    assert messages == [
        f"{RUN}-s2-a1 is due; this program submits it in wait, result and exception, and "
        f"`smlaunch resume {RUN}` does so too"
    ]
    assert run.describe().hint == (
        f"`smlaunch resume {RUN}` (in Python: `resume()`) submits the next job, if no client does; this "
        "program does so in wait, result and exception"
    )


# ---- a chain that nobody drives ----------------------------------------------------------------------------


def undriven_chain(target: Target) -> Run:
    """Returns a chain whose first job has ended, and which no client drives."""
    storage = target.__dict__["storage"]
    target.__dict__["control_plane"] = Service(storage)
    driver = ChainDriver(workflow(), FOLDER, target, is_driving=True)
    FOLDER.save_workflow(workflow(), storage)
    first_job = str(driver.wait_for_next_job())
    control(target).descriptions_by_job[first_job].pop(0)
    return attach(RUN, target)


@pytest.mark.parametrize("kind", ["region", "local"])
def test_it_says_which_command_continues_it(target: Target, kind: str) -> None:
    target, flag = (local(target), " --local") if kind == "local" else (target, "")
    outcome = undriven_chain(target).describe()
    assert (
        outcome.hint
        == f"`smlaunch resume {RUN}{flag}` (in Python: `resume()`) submits the next job, if no client does"
    )
    document = outcome.to_dict()
    assert (document["because"], document["hint"]) == (
        f"{RUN}-s1-a1: completed; the next job is due",
        outcome.hint,
    )


def test_a_run_that_is_driven_names_its_program_and_one_that_has_ended_has_no_hint(target: Target) -> None:
    run = undriven_chain(target)
    run.resume()
    assert "this program does so in wait" in run.describe().hint
    run.result()
    assert run.describe().hint == ""
    assert attach(RUN, target).describe().hint == ""


def test_the_wait_for_it_is_logged_once_without_a_callback(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    run = undriven_chain(target)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "smlaunch"), pytest.raises(TimeoutError):
        run.wait(timeout=0.05)
    assert caplog.messages == [
        f"{RUN}-s2-a1 is due and no driver submits it; `smlaunch resume {RUN}` continues the run"
    ]
    assert [record.name for record in caplog.records] == ["smlaunch"]


# ---- the object --------------------------------------------------------------------------------------------


def test_it_is_shown_as_one_line_with_the_status_that_was_read_last(target: Target) -> None:
    control(target).descriptions_by_job[JOB] = [COMPLETED]
    run = attach("demo", target)
    assert repr(run) == str(run) == "Run('demo', attached, 1 job, us-east-1)"
    assert run.status == "Completed"
    assert repr(run) == "Run('demo', Completed, 1 job, us-east-1)"
    chain = undriven_chain(local(target))
    chain.describe()
    assert repr(chain) == f"Run('{RUN}', InProgress, 1 job, local)"


def test_a_target_is_shown_as_one_short_line(target: Target) -> None:
    assert repr(target) == (
        "Target(kind='aws', region_name='us-east-1', account=None, role=None, bucket=None)"
    )


@pytest.mark.parametrize("copy_run", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", ["region", "local"])
def test_a_copy_is_refused_with_the_way_to_another_one(
    target: Target, copy_run: Callable[[Run], object], kind: str
) -> None:
    control(target).descriptions_by_job[JOB] = [COMPLETED]
    expected = r"attach\('demo', smlaunch.Target.region\(\)\)"
    if kind == "local":
        target, expected = local(target), r"attach\('demo', smlaunch.local_target\(\)\)"
    with pytest.raises(
        TypeError, match=f"cannot be pickled or copied; take its name, and smlaunch.{expected}"
    ):
        copy_run(attach("demo", target))


@pytest.mark.parametrize("value", [None, 3, b"demo", object()])
def test_what_is_no_name_is_refused(target: Target, value: Any) -> None:
    with pytest.raises(JobError, match=rf"the name of a run is needed, not {type(value).__name__}: attach\("):
        attach(value, target)


def test_an_unknown_run_of_this_machine_is_listed_by_the_right_command(target: Target) -> None:
    with pytest.raises(JobError, match="`smlaunch ls --local` shows the runs there"):
        attach("nobody", local(target))


@pytest.mark.parametrize("value", [3, "local"])
def test_what_is_no_target_is_refused(value: Any) -> None:
    with pytest.raises(JobError, match=rf"a Target is needed, not {type(value).__name__}: local_target"):
        attach("demo", value)


@pytest.mark.parametrize("start", [attach, launch])
def test_what_is_no_callback_is_refused(target: Target, start: Callable[..., Run]) -> None:
    with pytest.raises(JobError, match="a function for on_message is needed, not int"):
        start("demo", target, on_message=5)


@pytest.mark.parametrize("method", WAITING)
@pytest.mark.parametrize("timeout", ["5", float("nan"), [5]])
def test_what_is_no_timeout_is_refused(target: Target, method: str, timeout: Any) -> None:
    control(target).descriptions_by_job[JOB] = [COMPLETED]
    with pytest.raises(JobError, match="seconds for timeout are needed, or None"):
        WAITING[method](attach("demo", target), timeout=timeout)


@pytest.mark.parametrize("copy_target", [pickle.dumps, copy.deepcopy])
def test_a_copy_of_a_target_is_refused_with_the_way_to_another_one(
    target: Target, copy_target: Callable[[Target], object]
) -> None:
    with pytest.raises(TypeError, match=r"call smlaunch.Target.region\(\) in the other process"):
        copy_target(target)
    with pytest.raises(TypeError, match=r"call smlaunch.local_target\(\) in the other process"):
        copy_target(local(target))


def test_an_outcome_is_shown_as_one_line(target: Target) -> None:
    control(target).descriptions_by_job[JOB] = [COMPLETED]
    assert repr(attach("demo", target).result()) == "RunOutcome('demo', Completed, 1 job)"
    chain = driven_chain(target).describe()
    assert repr(chain) == f"RunOutcome({RUN!r}, InProgress, 1 job)"


def test_an_ordinary_next_job_of_a_chain_is_no_warning(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "smlaunch"):
        run = undriven_chain(target)
        run.resume()
        run.result()
        prefix_messages(3, LoggedMessages())("it waits")
        shard_messages = prefix_messages(3, LoggedMessages())
        assert isinstance(shard_messages, LoggedMessages), "that of a shard logs alike"
    levels = {record.getMessage().partition(":")[0]: record.levelname for record in caplog.records}
    assert levels.pop("p3") == "WARNING"
    assert levels["segment 2"] == "INFO" and "WARNING" not in levels.values()


def test_an_address_of_this_machines_endpoint_is_a_file(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "s3" / "bucket" / "model.tar.gz"
    path.parent.mkdir(parents=True)
    path.write_text("")
    here = replace(local(target), state_dir=tmp_path)
    assert here.local_path("s3://bucket/model.tar.gz") == path
    for uri in ("s3://bucket/other", None, "https://bucket/model.tar.gz"):
        assert here.local_path(uri) is None
    assert target.local_path("s3://bucket/model.tar.gz") is None


def test_an_outcome_can_be_in_a_set(target: Target) -> None:
    control(target).descriptions_by_job[JOB] = [COMPLETED]
    outcome = attach("demo", target).result()
    assert outcome in {outcome}
    assert hash(outcome.jobs[0]) == hash(replace(outcome.jobs[0]))


def test_a_stopped_chain_names_no_model_and_the_command_that_continues_it(target: Target) -> None:
    run = undriven_chain(target)
    run.stop()
    (job,) = control(target).descriptions_by_job[f"{RUN}-s1-a1"]
    assert isinstance(job, dict)
    job["ModelArtifacts"] = {"S3ModelArtifacts": "s3://b/model.tar.gz"}
    outcome = attach(RUN, target).wait()
    assert (outcome.status, outcome.model_artifacts) == ("Stopped", None)
    assert outcome.jobs[0].model_artifacts == "s3://b/model.tar.gz"
    assert outcome.hint == f"`smlaunch resume {RUN}` (in Python: `resume()`) continues it"
    assert str(outcome.error).endswith(f"; {outcome.hint}")


def test_a_chain_at_its_limit_says_what_continues_it(target: Target) -> None:
    undriven_chain(target)
    used_up = replace(workflow(total_seconds=90), hash_without_max_runtime="h")
    FOLDER.save_workflow(used_up, target.storage)
    outcome = attach(RUN, target).wait()
    assert outcome.exit_code == 6
    assert outcome.hint == "the same job launched under the same name with a higher max_runtime continues it"
    # By its hash, a run of an earlier release is of another job than one with another max_runtime.
    FOLDER.save_workflow(replace(used_up, hash_without_max_runtime=""), target.storage)
    assert attach(RUN, target).wait().hint == ""
