"""Runs that an orchestrator drives: found by their jobs alone, and reported as any other run."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.chain.orchestrator_execution import OrchestratorExecution
from smlaunch.contract.run_names import TAG_FORMAT, TAG_RUN
from smlaunch.contract.segment_outcome import FINISHED, SegmentOutcome
from smlaunch.errors import JobError
from smlaunch.runs.attach_run import attach
from smlaunch.runs.job_poller import LogLine
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_list import list_runs
from smlaunch.runs.run_outcome import summarize_run
from tests.runs.fakes import BUCKET, FakeControl, fake_target, job_description, time_at

EXECUTION = "arn:aws:states:eu-west-1:123456789012:execution:train:nightly"
PIPELINE = "arn:aws:sagemaker:eu-west-1:123456789012:pipeline/chain/execution/abc123"
CHECKPOINTS = "smlaunch/nightly/checkpoints/"


def job(
    name: str, run: str, number: int, driver: str = EXECUTION, status: str = "Completed", **fields: Any
) -> dict[str, Any]:
    environment = {"SMLAUNCH_RUN": run, "SMLAUNCH_SEGMENT": str(number), "SMLAUNCH_STOP_AFTER": "60"}
    checkpoint_config = {"S3Uri": f"s3://{BUCKET}/{CHECKPOINTS}"}
    description = job_description(
        name, status, [status], Environment=environment, CheckpointConfig=checkpoint_config, **fields
    )
    if driver:
        environment["SMLAUNCH_DRIVER"] = driver
    return {**description, "CreationTime": time_at(10 * number), "TrainingEndTime": time_at(10 * number + 9)}


def target_with(*jobs: dict[str, Any], tags: dict[str, str] | None = None) -> tuple[Target, FakeControl]:
    target = fake_target()
    control: FakeControl = target.control_plane  # type: ignore[assignment]
    for description in jobs:
        control.descriptions_by_job[description["TrainingJobName"]] = [description]
        control.tags_of[description["TrainingJobArn"]] = tags or {}
    return target, control


def test_a_state_machines_run_is_open_until_its_execution_has_ended() -> None:
    target, _ = target_with(job("nightly-s1-a1", "nightly", 1))
    executions = target.orchestrators.executions  # type: ignore[attr-defined]
    executions[EXECUTION] = OrchestratorExecution(has_ended=False)
    run = attach("nightly", target)
    now = run.describe(reads_logs=True)
    assert (now.status, now.exit_code, now.execution) == ("InProgress", None, EXECUTION)
    assert summarize_run(now).endswith(
        f"completed; what follows is up to the state machine's execution {EXECUTION}"
    )
    executions[EXECUTION] = OrchestratorExecution(True, 6, "its training time of 50 s is used up")
    assert (run.describe(reads_logs=True).status, run.describe(reads_logs=True).exit_code) == ("Stopped", 6)
    assert attach(EXECUTION, target).name == "nightly"
    executions[f"{EXECUTION}-2"] = OrchestratorExecution(has_ended=False)
    with pytest.raises(JobError, match=f"execution {EXECUTION}-2 has made no job yet; look again"):
        attach(f"{EXECUTION}-2", target)


def test_a_pipelines_jobs_are_found_by_name_without_other_steps() -> None:
    names = [f"pipelines-abc123-Segment-{number}-a{number}xyz" for number in (1, 2, 2)]
    names[2] = names[2].replace("-a2", "-b2")
    own_jobs = [job(name, "abc123", n, PIPELINE) for name, n in zip(names, (1, 2, 2), strict=True)]
    other = job_description("pipelines-abc123-Prepare-a1", "Completed", ["Completed"])
    target, _ = target_with(
        *own_jobs, other, job_description("pipelines-abc123x-Segment-1-a", "Completed", ["Completed"])
    )
    run = attach("abc123", target)
    assert not run.chain_drivers and run.jobs == tuple(names)
    segment = run.segment_of(names[2])
    assert segment is not None and segment[0][1:] == (2, 2), "a second job of a segment is its second attempt"
    by_job = attach(names[1], target)
    assert (by_job.name, by_job.jobs) == ("abc123", run.jobs)
    rows = {row.run for row in list_runs(target, 20)}
    assert {"abc123", "pipelines-abc123-Prepare-a1"} <= rows and not rows & set(names)


def test_an_execution_with_several_runs_names_them() -> None:
    name = "pipelines-abc123-train-Segment-1-xyz"
    target, _ = target_with(job(name, "abc123-train", 1, PIPELINE))
    assert attach("abc123-train", target).jobs == (name,)
    assert [row.run for row in list_runs(target, 20)] == ["abc123-train"]
    with pytest.raises(JobError, match=r"several runs; name one of them: abc123-train$"):
        attach("abc123", target)
    executions = target.orchestrators.executions  # type: ignore[attr-defined]
    executions[PIPELINE] = OrchestratorExecution(True, 1, "train: held_out_accuracy is not >= 0.97")
    with pytest.raises(JobError, match=r"abc123-train \(it has ended: train: held_out"):
        attach("abc123", target)


def test_a_cached_steps_run_is_found_by_its_job() -> None:
    """``show`` once gave the run's name for a next step, by which nothing was found."""
    cached, name = "pipelines-abc123-prepare-xyz", "pipelines-abc123-train-Segment-1-xyz"
    target, _ = target_with(job(cached, "prepare-0a1b2c3d", 1), job(name, "abc123-train", 1, PIPELINE))
    with pytest.raises(JobError, match=f"names no run: .* cached step .*; name the job: {cached}"):
        attach("abc123-prepare", target)
    with pytest.raises(JobError, match=f"several runs; name one of them: abc123-train, {cached}"):
        attach("abc123", target)
    assert attach(cached, target).jobs == (cached,)


def test_jobs_of_any_name_are_found_by_their_tag() -> None:
    target, _ = target_with(
        job("mine-1", "nightly", 1), job("mine-2", "nightly", 2), tags={TAG_RUN: "nightly", TAG_FORMAT: "1.0"}
    )
    assert attach("nightly", target).jobs == ("mine-1", "mine-2")
    with pytest.raises(JobError, match="there is no run 'nightlies' on us-east-1"):
        attach("nightlies", target)


def test_wait_follows_all_jobs_to_the_executions_end() -> None:
    """``wait`` once ended with the first segment, and said 0."""
    first, second = job("nightly-s1-a1", "nightly", 1), job("nightly-s2-a1", "nightly", 2)
    target, control = target_with(first)
    executions = target.orchestrators.executions  # type: ignore[attr-defined]
    executions[EXECUTION] = OrchestratorExecution(has_ended=False)
    target.logs.add_lines("nightly-s1-a1/algo-1-1", "one")  # type: ignore[attr-defined]
    target.logs.add_lines("nightly-s2-a1/algo-1-1", "two")  # type: ignore[attr-defined]
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == 2:
            control.descriptions_by_job["nightly-s2-a1"] = [second]
        if len(waited) == 4:
            executions[EXECUTION] = OrchestratorExecution(True, 0)
        return len(waited) > 9

    run = attach("nightly", target)
    lines = [
        event.text
        for watch in run.follow(wait)
        for events in watch.event_batches(wait)
        for event in events
        if isinstance(event, LogLine)
    ]
    assert (lines, len(waited)) == (["one", "two"], 4)
    assert (run.done(), run.describe().exit_code) == (True, 0)
    assert [line.text for line in run.logs()] == ["one", "two"]


def test_without_an_orchestrator_the_outcome_decides() -> None:
    target, control = target_with(job("nightly-s1-a1", "nightly", 1, driver=""))
    storage = target.storage
    outcome = SegmentOutcome(FINISHED, 3, "nightly", "nightly-s1-a1")
    storage.put_bytes(BUCKET, CHECKPOINTS + outcome.path, outcome.to_bytes())
    assert attach("nightly", target).describe().exit_code == 0
    control.descriptions_by_job["nightly-s1-a1"] = [
        job("nightly-s1-a1", "nightly", 1, "", "Failed", FailureReason="ClientError: x")
    ]
    assert attach("nightly", target).describe().exit_code == 2


def test_stop_ends_the_running_job_else_the_execution() -> None:
    running = job("nightly-s1-a1", "nightly", 1, status="InProgress")
    stopping = {**running, "TrainingJobStatus": "Stopping", "SecondaryStatus": "Stopping"}
    target, control = target_with(running)
    orchestrators = target.orchestrators
    orchestrators.executions[EXECUTION] = OrchestratorExecution(has_ended=False)  # type: ignore[attr-defined]
    messages: list[str] = []
    run = attach("nightly", target, on_message=messages.append)
    control.descriptions_by_job["nightly-s1-a1"] = [running, stopping]
    assert run.stop().status == "Stopping"
    assert (control.stopped, orchestrators.stopped) == (["nightly-s1-a1"], [])  # type: ignore[attr-defined]
    assert f"aws stepfunctions stop-execution --execution-arn {EXECUTION}" in messages[0]
    # The job had ended before the request to stop it: another one would follow.
    control.descriptions_by_job["nightly-s1-a1"] = [running, job("nightly-s1-a1", "nightly", 1)]
    assert attach("nightly", target).stop().exit_code == 5
    assert orchestrators.stopped == [EXECUTION]  # type: ignore[attr-defined]
    # Nobody says who drives it, and no job runs.
    late = time_at(10**9)
    target, _ = target_with({**job("nightly-s1-a1", "nightly", 1, driver=""), "TrainingEndTime": late})
    with pytest.raises(JobError, match="another may follow; to prevent that: stop its orchestrator there"):
        attach("nightly", target).stop()


def test_resume_names_the_orchestrator() -> None:
    target, _ = target_with(job("nightly-s1-a1", "nightly", 1))
    executions = target.orchestrators.executions  # type: ignore[attr-defined]
    driver = f"driven by the state machine's execution {EXECUTION},"
    for execution, message in (
        (OrchestratorExecution(has_ended=False), "is {} which alone"),
        (OrchestratorExecution(True, 6), "was {} and has ended"),
    ):
        executions[EXECUTION] = execution
        with pytest.raises(JobError, match=message.format(driver)):
            attach("nightly", target).resume()


def part(number: int, status: str = "Completed") -> dict[str, Any]:
    description = job(f"nightly-p{number}-s1-a1", f"nightly-p{number}", 1, f"{EXECUTION}-p{number}", status)
    del description["Environment"]["SMLAUNCH_STOP_AFTER"]
    return description


def test_a_sharded_run_ends_with_its_parent_execution() -> None:
    target, control = target_with(part(1), part(2))
    orchestrators = target.orchestrators
    executions = orchestrators.executions  # type: ignore[attr-defined]
    executions[EXECUTION] = OrchestratorExecution(has_ended=False)
    run = attach("nightly", target)
    now = run.describe(reads_logs=True)
    assert (now.exit_code, now.execution, len(now.jobs)) == (None, EXECUTION, 2), "others may begin"
    control.descriptions_by_job["nightly-p3-s1-a1"] = [part(3)]
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        executions[EXECUTION] = OrchestratorExecution(True, 0)
        return len(waited) > 9

    for watch in run.follow(wait):
        for _ in watch.event_batches(wait):
            pass
    assert len(run.jobs) == 3 and summarize_run(run.describe()) == "completed in all 3 shards"
    executions[EXECUTION] = OrchestratorExecution(has_ended=False)
    control.descriptions_by_job["nightly-p3-s1-a1"] = [part(3, "InProgress")]
    second_run = attach("nightly", target)
    second_run.stop()
    assert (control.stopped, orchestrators.stopped) == (  # type: ignore[attr-defined]
        ["nightly-p3-s1-a1"],
        [EXECUTION],
    )
