"""Driving a run on fakes: submitted jobs, retained checkpoints, and that any client can continue."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.chain.next_action import FinishRun, FollowJob, RunAction, SubmitJob
from smlaunch.chain.workflow import (
    WORKFLOW_FILE,
    RunPolicy,
    SegmentVariant,
    Workflow,
    changed_limits_text,
)
from smlaunch.contract import checkpoint_layout as protocol
from smlaunch.contract.checkpoint_layout import Manifest, Shard
from smlaunch.contract.run_names import CheckpointWriter, JobName, parse_any_job_name
from smlaunch.contract.segment import (
    FROM_FILES_VARIABLE,
    FROM_REPORTED_VARIABLE,
    FROM_STEP_VARIABLE,
    STOP_AFTER_VARIABLE,
)
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED, SegmentOutcome
from smlaunch.errors import JobError, StoppedByUser, TrainingFailed
from smlaunch.runs.attach_run import attach
from smlaunch.runs.chain_driver import ChainDriver
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_folder import STOP_FILE, RunFolder
from smlaunch.runs.run_kinds import run_of_chain
from smlaunch.runs.run_list import list_runs
from smlaunch.runs.run_state import CheckpointStatus, read_checkpoint_status
from tests.runs.fakes import BUCKET, FakeControl, FakeStorage, fake_target, job_description, time_at

RUN = "long"
PREFIX = f"smlaunch/{RUN}/checkpoints/"
FOLDER = RunFolder.for_run(BUCKET, RUN)


def save(storage: FakeStorage, step: int, job: str, *, is_torn: bool = False) -> None:
    content = f"state at {step}".encode()
    digest = hashlib.sha256(content).hexdigest()
    part = Shard(0, protocol.shard_name(0, 1, digest), len(content), digest)
    manifest = Manifest(step, 1, (part,), job=job).to_bytes()
    folder = PREFIX + protocol.step_directory(step) + "/"
    if not is_torn:
        storage.put_bytes(BUCKET, folder + part.name, content)
    storage.put_bytes(BUCKET, folder + protocol.manifest_name(manifest), manifest)
    storage.put_bytes(
        BUCKET, folder + protocol.commit_name(CheckpointWriter(RUN)), protocol.commit_content(manifest)
    )


class Service(FakeControl):
    """Jobs that train ten steps each, until step ``steps``, unless ``custom_results`` has the job's name."""

    def __init__(self, storage: FakeStorage, steps: int = 50) -> None:
        super().__init__()
        self.storage = storage
        self.steps = steps
        self.custom_results: dict[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {}

    def create_job(self, request: Mapping[str, Any]) -> str:
        arn = super().create_job(request)
        name = request["TrainingJobName"]
        running = self.answer(name, request, "InProgress", ["Starting", "Training"])
        self.descriptions_by_job[name] = [running, self.custom_results.get(name, self.train)(name, request)]
        return arn

    def answer(
        self, name: str, request: Mapping[str, Any], status: str, states: list[str], **fields: Any
    ) -> dict[str, Any]:
        settings = {key: request[key] for key in ("Environment", "InputDataConfig", "CheckpointConfig")}
        times = {"TrainingEndTime": time_at(100), "TrainingTimeInSeconds": 90, "BillableTimeInSeconds": 90}
        return job_description(
            name,
            status,
            states,
            **settings,
            **(times if status != "InProgress" else {}),
            EnableManagedSpotTraining=request.get("EnableManagedSpotTraining", False),
            **fields,
        )

    def train(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        step = min(self.steps, int(request["Environment"].get(FROM_STEP_VARIABLE, 0)) + 10)
        save(self.storage, step, name)
        self.write_outcome(FINISHED if step == self.steps else CONTINUE, step, name)
        return self.answer(name, request, "Completed", ["Training", "Completed"])

    def write_outcome(self, result: str, step: int, name: str) -> None:
        writer = parse_any_job_name(name) or JobName(RUN, 1, 1)
        outcome = SegmentOutcome(
            result, step, RUN, name, writer.segment, writer.attempt, ranks_succeeded=True
        )
        self.storage.put_bytes(BUCKET, PREFIX + outcome.path, outcome.to_bytes())

    def complete_without_progress(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        self.write_outcome(CONTINUE, int(request["Environment"].get(FROM_STEP_VARIABLE, 0)), name)
        return self.answer(name, request, "Completed", ["Training", "Completed"])

    def fail_with(self, reason: str) -> Callable[[str, Mapping[str, Any]], dict[str, Any]]:
        def fail(name: str, request: Mapping[str, Any]) -> dict[str, Any]:
            return self.answer(name, request, "Failed", ["Training", "Failed"], FailureReason=reason)

        return fail


PREFIX_OF_RUN = f"smlaunch/{RUN}/"


def request() -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/smlaunch/{RUN}/launch/"}
    tags = {
        "smlaunch:format": "1.0",
        "smlaunch:run": RUN,
        "smlaunch:segment": "1",
        "smlaunch:attempt": "1",
        "smlaunch:job": "h",
    }
    return {
        "TrainingJobName": f"{RUN}-s1-a1",
        "StoppingCondition": {"MaxRuntimeInSeconds": 1000},
        "Environment": {STOP_AFTER_VARIABLE: "800"},
        "InputDataConfig": [{"ChannelName": "smlaunch", "DataSource": {"S3DataSource": source}}],
        "CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/{PREFIX}", "LocalPath": "/opt/ml/checkpoints"},
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def workflow(**policy: Any) -> Workflow:
    settings: dict[str, Any] = {"chain": True, "attempts": 3, "total_seconds": 10_000, **policy}
    return Workflow(
        RUN, "h", (SegmentVariant(1, request()),), RunPolicy(**settings), f"s3://{BUCKET}/{PREFIX}"
    )


@pytest.fixture
def target() -> Target:
    new_target = fake_target()
    new_target.__dict__["control_plane"] = Service(new_target.__dict__["storage"])
    return new_target


def service(target: Target) -> Service:
    return target.__dict__["control_plane"]  # type: ignore[no-any-return]


def storage(target: Target) -> FakeStorage:
    return target.__dict__["storage"]  # type: ignore[no-any-return]


def chain_of(target: Target, messages: list[str] | None = None, **policy: Any) -> ChainDriver:
    new_workflow = workflow(**policy)
    FOLDER.save_workflow(new_workflow, target.storage)
    on_message = None if messages is None else messages.append
    # This is long after every job, so that no client waits for an outcome that a job has not written.
    return ChainDriver(
        new_workflow, FOLDER, target, is_driving=True, on_message=on_message, clock=lambda: 2_000_000_000
    )


def drive_to_end(chain: ChainDriver) -> FinishRun:
    run = run_of_chain(chain, chain._target, attached=True)
    for watch in run.follow(lambda _: None):
        for _ in watch.event_batches(lambda _: None):
            pass
    assert chain.final_result is not None
    return chain.final_result


def after_its_job(chain: ChainDriver) -> RunAction:
    """Returns the action that is due when the running job has ended."""
    while isinstance(action := chain.choose_action(), FollowJob):
        pass
    return action


def names(target: Target) -> list[str]:
    return [job_request["TrainingJobName"] for job_request in service(target).created]


FIVE_JOBS = [f"{RUN}-s{segment}-a1" for segment in range(1, 6)]


def test_a_chain_is_driven_segment_by_segment(target: Target) -> None:
    messages: list[str] = []
    assert drive_to_end(chain_of(target, messages)).exit_code == 0
    assert names(target) == FIVE_JOBS
    starts = [job_request["Environment"].get(FROM_STEP_VARIABLE) for job_request in service(target).created]
    assert starts == [None, "10", "20", "30", "40"]
    assert messages == ["segment 1: the first segment"] + [
        f"segment {number}: from step {10 * (number - 1)}" for number in range(2, 6)
    ]


def test_old_checkpoints_are_deleted_before_a_segment(target: Target) -> None:
    drive_to_end(chain_of(target, keep=2))
    steps = {"/".join(key.split("/")[3:5]) for key in storage(target).objects[BUCKET] if "/step-" in key}
    assert steps == {protocol.step_directory(step) for step in (30, 40, 50)}


@pytest.mark.parametrize("calls_before_kill", range(40))
def test_a_client_killed_anywhere_is_followed_by_another(target: Target, calls_before_kill: int) -> None:
    """The client is killed when ``calls_before_kill`` calls and one more of services were carried out."""
    calls = 0

    class Killed(BaseException):
        pass

    def count_calls(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            answer = function(*arguments, **keywords)
            calls += 1
            if calls == calls_before_kill + 1:
                raise Killed
            return answer

        return call

    control, store = service(target), storage(target)
    for port in (control, store):
        for name in (
            *("create_job", "describe_job", "list_jobs", "list_tags"),
            *("list_objects", "object_size", "put_bytes", "get_bytes", "delete_objects"),
        ):
            # What a job writes itself is none of the client's calls.
            if hasattr(port, name) and not (port is store and name == "put_bytes"):
                setattr(port, name, count_calls(getattr(port, name)))
    try:
        drive_to_end(chain_of(target))
    except Killed:
        assert drive_to_end(chain_of(target)).exit_code == 0
    assert names(target) == FIVE_JOBS


def test_two_drivers_create_each_job_once(target: Target) -> None:
    first_driver, other = chain_of(target), chain_of(target)
    for _ in range(20):
        first_driver.wait_for_next_job(lambda _: None)
        other.wait_for_next_job(lambda _: None)
    assert names(target) == FIVE_JOBS
    assert first_driver.final_result is not None and first_driver.final_result == other.final_result


def test_limits_that_another_client_changes_count_before_the_next_job(target: Target) -> None:
    driver = chain_of(target)
    for segment in (1, 2):
        assert driver.wait_for_next_job() == JobName(RUN, segment, 1)
        service(target).descriptions_by_job[f"{RUN}-s{segment}-a1"].pop(0)
    lowered = workflow(total_seconds=200)  # each job takes 90
    FOLDER.save_workflow(lowered, target.storage)
    end = driver.choose_action()
    assert isinstance(end, FinishRun) and "its training time of 200s leaves too little" in end.summary
    assert attach(RUN, target).describe().final_result == end
    FOLDER.save_workflow(replace(lowered, policy=workflow().policy), target.storage)
    assert driver.wait_for_next_job() == JobName(RUN, 3, 1)
    FOLDER.save_workflow(replace(lowered, job_hash="of another job"), target.storage)
    service(target).descriptions_by_job[f"{RUN}-s3-a1"].pop(0)
    assert driver.wait_for_next_job() == JobName(RUN, 4, 1)


def test_changed_limits_are_told() -> None:
    before, after = workflow(max_cost=400.0).policy, workflow(max_cost=20.0, total_seconds=3600).policy
    assert changed_limits_text(before, after) == (
        "changed for the jobs that follow: max_cost from $400.00 to $20.00, max_runtime from 10000s to 1h; "
        "a running job keeps its own limits"
    )
    assert changed_limits_text(before, before) == ""


def test_another_machine_finds_the_run_by_its_name_alone(target: Target) -> None:
    first = chain_of(target)
    assert first.wait_for_next_job() == JobName(RUN, 1, 1)
    run = attach(RUN, target)
    assert [driver.workflow for driver in run.chain_drivers] == [workflow()]
    run.resume()
    result = run.result()
    assert (result.status, result.exit_code, result.step) == ("Completed", 0, 50)
    assert [job.name for job in result.jobs] == FIVE_JOBS
    assert names(target) == FIVE_JOBS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "workflow.json is missing, by which the jobs of"),
        (b"[" * 100_000, "it is not a workflow"),
        (
            b'{"version": "1.0", "run": "x", "job_hash": "h", "variants": [], "policy": {}}',
            "it is not a workflow",
        ),
        (b'{"version": 1.0}', "has no version"),
    ],
    ids=["missing", "deep", "no-variants", "a-number-as-version"],
)
def test_a_chain_whose_workflow_cannot_be_read_has_no_status_but_can_be_stopped(
    target: Target, content: bytes | None, message: str
) -> None:
    chain_of(target).wait_for_next_job()
    target.storage.objects[BUCKET].pop(PREFIX_OF_RUN + "workflow.json")  # type: ignore[attr-defined]
    if content is not None:
        target.storage.put_bytes(BUCKET, PREFIX_OF_RUN + "workflow.json", content)
    with pytest.raises(JobError, match=message):
        attach(RUN, target).describe()
    with pytest.raises(JobError, match=message):
        attach(RUN, target).stop()
    assert service(target).stopped == [f"{RUN}-s1-a1"]


def test_the_workflow_of_another_run_is_not_driven(target: Target) -> None:
    chain_of(target).wait_for_next_job()
    foreign = replace(workflow(), run="other").to_json().encode()
    target.storage.put_bytes(BUCKET, PREFIX_OF_RUN + "workflow.json", foreign)
    with pytest.raises(JobError, match="is of another run, 'other'"):
        attach(RUN, target).resume()
    assert names(target) == [f"{RUN}-s1-a1"]


def test_the_list_of_runs_has_the_status_of_the_run_and_not_of_its_newest_job(target: Target) -> None:
    """A job at its planned end is Completed, whether its run goes on, was stopped, or has ended."""
    chain = chain_of(target)
    first_job = chain.wait_for_next_job()
    service(target).descriptions_by_job[str(first_job)].pop(0)
    statuses = [row.status for row in list_runs(target, 10)]
    attach(RUN, target).stop()
    statuses += [row.status for row in list_runs(target, 10)]
    attach(RUN, target).resume()
    drive_to_end(chain)
    statuses += [row.status for row in list_runs(target, 10)]
    assert statuses == ["InProgress", "Stopped", "Completed"]


def test_a_follower_starts_nothing_and_reports_an_overdue_job(target: Target) -> None:
    chain_of(target).wait_for_next_job()
    now = 0.0
    messages: list[str] = []

    def wait(seconds: float) -> bool:
        nonlocal now
        now += 1.0
        return now > 5

    follower = ChainDriver(
        workflow(), FOLDER, target, on_message=messages.append, clock=lambda: 2_000_000_000 + now
    )
    assert follower.wait_for_next_job(wait) == JobName(RUN, 1, 1)
    assert follower.wait_for_next_job(wait) is None
    assert names(target) == FIVE_JOBS[:1]
    assert messages == [
        f"{RUN}-s2-a1 is due and no driver submits it; `smlaunch resume {RUN}` continues the run"
    ]


def test_no_progress_three_times_in_a_row_ends_it_with_a_diagnosis(target: Target) -> None:
    idle = [f"{RUN}-s2-a{attempt}" for attempt in (1, 2, 3)]
    for name in idle:
        service(target).custom_results[name] = service(target).complete_without_progress
    verdict = drive_to_end(chain_of(target))
    assert verdict.exit_code == 1
    assert f"{', '.join(idle)} left nothing newer than step 10" in verdict.summary
    result = attach(RUN, target).describe(reads_logs=True)
    assert type(result.error) is TrainingFailed
    assert result.to_dict()["because"] == verdict.summary


def test_an_incomplete_checkpoint_is_no_progress(target: Target) -> None:
    def tear_checkpoint(name: str, job_request: Mapping[str, Any]) -> dict[str, Any]:
        save(storage(target), 99, name, is_torn=True)
        return service(target).complete_without_progress(name, job_request)

    service(target).custom_results[f"{RUN}-s2-a1"] = tear_checkpoint
    chain = chain_of(target)
    assert drive_to_end(chain).exit_code == 0
    assert names(target) == [*FIVE_JOBS[:2], f"{RUN}-s2-a2", *FIVE_JOBS[2:]]


def test_failures_are_retried_from_the_newest_checkpoint(target: Target) -> None:
    service(target).custom_results[f"{RUN}-s2-a1"] = service(target).fail_with("InternalServerError: gone")
    service(target).custom_results[f"{RUN}-s4-a1"] = service(target).fail_with("AlgorithmError: boom")
    assert drive_to_end(chain_of(target)).exit_code == 0
    assert names(target) == [
        *FIVE_JOBS[:2],
        f"{RUN}-s2-a2",
        FIVE_JOBS[2],
        FIVE_JOBS[3],
        f"{RUN}-s4-a2",
        FIVE_JOBS[4],
    ]
    starts = {
        job_request["TrainingJobName"]: job_request["Environment"].get(FROM_STEP_VARIABLE)
        for job_request in service(target).created
    }
    assert starts[f"{RUN}-s4-a2"] == "30"


class TestScriptsWithOwnCheckpoints:
    """``steps``: how far each job comes, from the first; what it says of that differs."""

    STEPS = (63, 126, 189, 252, 315, 378)

    def custom_result(
        self, target: Target, step: int, ending: str, reported_by: str
    ) -> Callable[..., dict[str, Any]]:
        def end(name: str, request: Mapping[str, Any]) -> dict[str, Any]:
            if reported_by == "outcome":
                task = parse_any_job_name(name)
                assert task is not None
                outcome = SegmentOutcome(
                    CONTINUE, None, RUN, name, task.segment, task.attempt, reported_step=step
                )
                storage(target).put_bytes(BUCKET, PREFIX + outcome.path, outcome.to_bytes())
            if reported_by == "log":
                for host in ("algo-1", "algo-2"):
                    lines = [f"[0] smlaunch: progress step={step - 1}", f"smlaunch: progress step={step}"]
                    target.__dict__["logs"].add_lines(f"{name}/{host}-1800000000000", *lines, "Killed")
            if reported_by == "files":
                storage(target).put_bytes(BUCKET, PREFIX + "state.json", str(step).encode())
            if ending == "Failed":
                return service(target).fail_with("AlgorithmError: boom")(name, request)
            states = ["Training", "MaxRuntimeExceeded" if ending == "Stopped" else ending]
            return service(target).answer(name, request, ending, states)

        return end

    @pytest.mark.parametrize(
        ("reported_by", "ending"),
        [
            *itertools.product(["outcome", "log"], ["Completed", "Stopped", "Failed"]),
            *itertools.product(["files"], ["Completed", "Stopped"]),
        ],
    )
    def test_a_job_that_came_further_is_followed_by_another(
        self, target: Target, ending: str, reported_by: str
    ) -> None:
        """Another client decides about each job."""
        for number, step in enumerate(self.STEPS, 1):
            task = (1, number) if ending == "Failed" else (number, 1)
            service(target).custom_results[str(JobName(RUN, *task))] = self.custom_result(
                target, step, ending, reported_by
            )
        chain_of(target).wait_for_next_job(lambda _: None)
        for _ in self.STEPS:
            other = chain_of(target)
            other.wait_for_next_job(lambda _: None)
            assert other.wait_for_next_job(lambda _: None) is not None
        requests = service(target).created
        assert len(requests) == len(self.STEPS) + 1
        if reported_by == "files":
            known_files = [request["Environment"].get(FROM_FILES_VARIABLE) for request in requests]
            assert len(set(known_files)) == len(known_files)
        else:
            known_files = [request["Environment"].get(FROM_REPORTED_VARIABLE) for request in requests]
            assert known_files == [None, *map(str, self.STEPS)]

    @pytest.mark.parametrize("ending", ["Completed", "Stopped", "Failed"])
    @pytest.mark.parametrize("reported_by", ["outcome", "log", "files", "nothing"])
    def test_three_jobs_that_came_no_further_end_it(
        self, target: Target, ending: str, reported_by: str
    ) -> None:
        """The first one has come to where the others end too; one that tells of nothing has not, and neither
        has one that fails and tells of its files only."""
        for segment in (1, 2):
            for attempt in range(1, 9):
                result = self.custom_result(target, 63, ending, reported_by)
                service(target).custom_results[str(JobName(RUN, segment, attempt))] = result
        verdict = drive_to_end(chain_of(target))
        assert (verdict.exit_code, verdict.status) == (1, "Failed")
        has_progress = reported_by in ("outcome", "log") or (reported_by == "files" and ending != "Failed")
        assert len(names(target)) == (4 if has_progress else 3)
        if reported_by in ("outcome", "log"):
            assert "beyond step 63" in verdict.summary or "no further than step 63" in verdict.summary
        assert drive_to_end(chain_of(target)) == verdict

    def test_a_log_that_nobody_may_read_is_no_progress_and_no_error(self, target: Target) -> None:
        def refuse(*_: Any) -> Any:
            raise CallError("DescribeLogStreams", "AccessDeniedException", "not authorized", 403)

        target.__dict__["logs"].streams = refuse
        chain = chain_of(target)
        service(target).custom_results[f"{RUN}-s1-a1"] = self.custom_result(target, 63, "Failed", "nothing")
        chain.wait_for_next_job()
        action = after_its_job(chain)
        assert isinstance(action, SubmitJob) and action.name == JobName(RUN, 1, 2)


class TestStop:
    def test_no_further_segment_is_started(self, target: Target) -> None:
        chain = chain_of(target)
        chain.wait_for_next_job()
        assert isinstance(after_its_job(chain), SubmitJob)
        attach(RUN, target).stop()
        assert drive_to_end(chain).exit_code == 5
        assert names(target) == FIVE_JOBS[:1]
        assert isinstance(attach(RUN, target).describe().error, StoppedByUser)

    def test_resume_goes_on_after_it(self, target: Target) -> None:
        self.test_no_further_segment_is_started(target)
        run = attach(RUN, target)
        run.resume()
        assert run.result().exit_code == 0
        assert names(target) == FIVE_JOBS
        assert storage(target).object_size(BUCKET, FOLDER.prefix + STOP_FILE) is None

    @pytest.mark.parametrize("status", ["Stopping", "InProgress"])
    def test_resume_during_the_stop_waits_for_it_and_goes_on(self, target: Target, status: str) -> None:
        """``status``: of the job when ``resume`` looks; the request to stop may have had no effect yet."""
        chain = chain_of(target)
        first_job = str(chain.wait_for_next_job())
        running = service(target).descriptions_by_job[first_job][0]
        assert isinstance(running, dict)
        service(target).descriptions_by_job[first_job] = [running]
        run = attach(RUN, target)
        ended = {
            "TrainingJobStatus": "Stopped",
            "SecondaryStatus": "Stopped",
            "TrainingEndTime": time_at(100),
        }
        stopping = {**running, "TrainingJobStatus": status, "SecondaryStatus": status}
        run.stop()
        service(target).descriptions_by_job[first_job] = [stopping, {**running, **ended}]
        run.resume()
        assert run.result().exit_code == 0
        assert names(target)[:2] == [f"{RUN}-s1-a1", f"{RUN}-s1-a2"]

    def test_a_job_that_was_just_made_is_stopped_by_whoever_made_it(self, target: Target) -> None:
        chain = chain_of(target)
        chain.wait_for_next_job()
        action = after_its_job(chain)
        assert isinstance(action, SubmitJob)
        FOLDER.set_stop_requested(storage(target), True)
        assert chain._submit_job_or_wait_for_quota(action) is None
        assert service(target).stopped == [f"{RUN}-s2-a1"]


def test_resuming_a_finished_run_starts_nothing(target: Target) -> None:
    drive_to_end(chain_of(target))
    run = attach(RUN, target)
    run.resume()
    assert run.result().exit_code == 0
    assert names(target) == FIVE_JOBS


def test_a_single_job_cannot_be_resumed(target: Target) -> None:
    service(target).create_job({**request(), "Environment": {}})
    jobs = service(target).descriptions_by_job[f"{RUN}-s1-a1"]
    jobs.pop(0)
    run = attach(RUN, target)
    run.resume()  # of a finished run, it only reports the result
    assert (run.result().exit_code, names(target)) == (0, [f"{RUN}-s1-a1"])
    (completed,) = jobs
    assert isinstance(completed, dict)
    service(target).descriptions_by_job[f"{RUN}-s1-a1"] = [{**completed, "TrainingJobStatus": "Failed"}]
    with pytest.raises(JobError, match="is a single job that has ended"):
        attach(RUN, target).resume()


def test_a_single_job_that_is_being_stopped_cannot_be_resumed(target: Target) -> None:
    service(target).create_job({**request(), "Environment": {}})
    (running, _) = service(target).descriptions_by_job[f"{RUN}-s1-a1"]
    assert isinstance(running, dict)
    service(target).descriptions_by_job[f"{RUN}-s1-a1"] = [{**running, "TrainingJobStatus": "Stopping"}]
    with pytest.raises(JobError, match="is a single job that is being stopped"):
        attach(RUN, target).resume()


def test_a_quota_in_use_is_waited_for(target: Target) -> None:
    chain = chain_of(target)
    chain.wait_for_next_job()
    messages: list[str] = []
    chain._on_message = messages.append
    message = (
        "The account-level service limit 'ml.m5.xlarge for training job usage' is 4 Instances, with current "
        "utilization of 4 Instances and a request delta of 2 Instances."
    )
    after_its_job(chain)
    service(target).create_errors = [
        CallError("CreateTrainingJob", "ResourceLimitExceeded", message, 400)
    ] * 2
    assert chain.wait_for_next_job(lambda _: None) == JobName(RUN, 2, 1)
    assert sum("the quota is in use" in sentence for sentence in messages) == 2


def test_a_quota_that_is_too_small_is_not_waited_for(target: Target) -> None:
    chain = chain_of(target)
    chain.wait_for_next_job()
    after_its_job(chain)
    message = (
        "The account-level service limit 'ml.m5.xlarge for training job usage' is 1 Instances, with current "
        "utilization of 0 Instances and a request delta of 2 Instances."
    )
    service(target).create_errors = [CallError("CreateTrainingJob", "ResourceLimitExceeded", message, 400)]
    with pytest.raises(CallError):
        chain.wait_for_next_job(lambda _: None)


class TestFolder:
    def test_found_from_where_a_job_gets_its_runtime(self) -> None:
        assert RunFolder.from_description(RUN, request()) == FOLDER
        assert RunFolder.from_description("other", request()) is None
        assert RunFolder.from_description(RUN, {}) is None

    def test_what_is_kept(self, target: Target) -> None:
        chain = chain_of(target)
        assert read_checkpoint_status(RUN, None, storage(target)) == CheckpointStatus()
        assert read_checkpoint_status(RUN, chain._checkpoints, storage(target)) == CheckpointStatus()
        service(target).write_outcome(CONTINUE, 7, "job")
        storage(target).put_bytes(BUCKET, PREFIX + "smlaunch/.outcome-long-s1-a1.json.123", b"{")
        save(storage(target), 6, "job", is_torn=True)
        assert read_checkpoint_status(RUN, chain._checkpoints, storage(target))[::2] == (0, "")
        storage(target).delete_objects(BUCKET, [PREFIX + SegmentOutcome(CONTINUE, run=RUN).path])
        digests = []
        for name, content in (("epoch-3.pt", b"own"), ("epoch-3.pt", b"OWN"), ("epoch-4.pt", b"own")):
            storage(target).put_bytes(BUCKET, PREFIX + name, content)
            digests += [
                read_checkpoint_status(RUN, chain._checkpoints, storage(target)).files_digest
                for _ in range(2)
            ]
        assert "" not in digests and [digests.count(digest) for digest in digests] == [2] * 6
        save(storage(target), 7, "job")
        assert read_checkpoint_status(RUN, chain._checkpoints, storage(target)) == CheckpointStatus(7)

    def test_written_before_the_first_job(self, target: Target) -> None:
        chain_of(target)
        content = storage(target).get_bytes(BUCKET, FOLDER.prefix + WORKFLOW_FILE)
        assert content is not None
        assert Workflow.from_json(content) == workflow()
