from __future__ import annotations

from itertools import pairwise

import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.contract.failure_reason import format_failure, format_unwritten_failure
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import (
    Event,
    JobPoller,
    LogLine,
    Polling,
    PollWarning,
    StateChange,
    poll_until_finished,
)
from smlaunch.runs.run_outcome import summarize_job
from tests.runs.fakes import INSTANT_POLLING, FakeControl, FakeLogs, fake_target, job_description

JOB = "r-s0-a0"


class Clock:
    """A clock that advances only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def collect(
    control: FakeControl, logs: FakeLogs, cadence: Polling = INSTANT_POLLING
) -> tuple[list[Event], JobPoller, Clock]:
    clock = Clock()
    follower = JobPoller(control, logs, JOB, cadence, clock=clock)
    events = [event for events in poll_until_finished(follower, clock.wait, clock) for event in events]
    return events, follower, clock


@pytest.fixture
def control() -> FakeControl:
    control = FakeControl()
    control.descriptions_by_job[JOB] = [
        job_description(JOB, "InProgress", ["Starting"]),
        job_description(JOB, "InProgress", ["Starting", "Downloading", "Training"]),
        job_description(JOB, "Completed", ["Starting", "Downloading", "Training", "Uploading", "Completed"]),
    ]
    return control


@pytest.fixture
def logs() -> FakeLogs:
    return FakeLogs()


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, LogLine)]


def test_every_state_once_and_every_line_in_order(control: FakeControl, logs: FakeLogs) -> None:
    logs.page_size = 3
    logs.add_lines(f"{JOB}/algo-1-1700000000000", *map(str, range(10)))
    logs.add_lines(f"{JOB}/algo-2-1700000000001", "a", "b")
    events, follower, _ = collect(control, logs)
    states = [event.state for event in events if isinstance(event, StateChange)]
    assert states == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert [e.text for e in events if isinstance(e, LogLine) and e.host == "algo-1"] == [*map(str, range(10))]
    assert [e.text for e in events if isinstance(e, LogLine) and e.host == "algo-2"] == ["a", "b"]
    assert follower.is_finished


def test_no_event_is_lost_or_repeated_when_requests_fail(control: FakeControl, logs: FakeLogs) -> None:
    throttled = CallError("GetLogEvents", "ThrottlingException", "Rate exceeded", 400)
    logs.add_lines(f"{JOB}/algo-1-1", "one")
    logs.add_lines(f"{JOB}/algo-2-1", "two")
    logs.errors = [throttled]
    control.descriptions_by_job[JOB].insert(
        1, CallError("DescribeTrainingJob", "InternalFailure", "oops", 500)
    )
    events, _, _ = collect(control, logs)
    assert sorted(texts(events)) == ["one", "two"]
    states = [event.state for event in events if isinstance(event, StateChange)]
    assert states == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert len([event for event in events if isinstance(event, PollWarning)]) == 2


def test_an_unreadable_log_is_reported_once(control: FakeControl, logs: FakeLogs) -> None:
    logs.add_lines(f"{JOB}/algo-1-1", "one")
    logs.errors = [CallError("GetLogEvents", "AccessDeniedException", "not authorized", 400)] * 9
    events, follower, _ = collect(control, logs)
    assert [event.message for event in events if isinstance(event, PollWarning)] == [
        "the log cannot be read (not authorized); the job is followed without it"
    ]
    assert follower.description["TrainingJobStatus"] == "Completed"


def test_a_job_that_does_not_exist_ends_it_at_once(logs: FakeLogs) -> None:
    with pytest.raises(CallError, match="not found"):
        collect(FakeControl(), logs)


def test_a_service_without_response_is_given_up(logs: FakeLogs) -> None:
    control = FakeControl()
    control.descriptions_by_job[JOB] = [CallError("DescribeTrainingJob", "Unreachable", "no route")]
    clock = Clock()
    cadence = Polling(
        initial_seconds=1, max_seconds=8, backoff_factor=2, settle_seconds=0, give_up_seconds=60
    )
    follower = JobPoller(control, logs, JOB, cadence, clock=clock)
    with pytest.raises(CallError):
        for _ in poll_until_finished(follower, clock.wait, clock):
            pass
    assert 60 < clock.now < 80


def test_quiet_jobs_are_polled_less_often(logs: FakeLogs) -> None:
    control = FakeControl()
    quiet = job_description(JOB, "InProgress", ["Starting"])
    control.descriptions_by_job[JOB] = [
        *[quiet] * 12,
        job_description(JOB, "Completed", ["Starting", "Completed"]),
    ]
    poll_times: list[float] = []
    clock = Clock()
    plain = control.describe_job
    control.describe_job = lambda name: (poll_times.append(clock.now), plain(name))[1]  # type: ignore[method-assign]
    follower = JobPoller(control, logs, JOB, Polling(1, 16, 2, 0, 60), clock=clock)
    rounds = sum(1 for _ in poll_until_finished(follower, clock.wait, clock))
    gaps = [later - earlier for earlier, later in pairwise(poll_times)]
    assert gaps[0] <= 1.5 and 12 <= gaps[-1] <= 20
    assert max(clock.waits) <= 0.5
    assert rounds > 3 * len(poll_times)


def test_lines_that_come_after_the_end_are_waited_for(control: FakeControl, logs: FakeLogs) -> None:
    control.descriptions_by_job[JOB] = [job_description(JOB, "Completed", ["Completed"])]
    logs.add_lines(f"{JOB}/algo-1-1", "early")
    clock = Clock()
    follower = JobPoller(
        control, logs, JOB, Polling(1, 4, 1.5, settle_seconds=5, give_up_seconds=60), clock=clock
    )
    lines: list[str] = []
    for events in poll_until_finished(follower, clock.wait, clock):
        lines.extend(texts(list(events)))
        if clock.now > 2 and len(logs.events_by_stream[f"{JOB}/algo-1-1"]) == 1:
            logs.add_lines(f"{JOB}/algo-1-1", "late")
    assert lines == ["early", "late"]


def test_sleep_can_end_the_wait(control: FakeControl, logs: FakeLogs) -> None:
    control.descriptions_by_job[JOB] = [job_description(JOB, "InProgress", ["Starting"])]
    follower = JobPoller(control, logs, JOB, Polling(5, 5, 1, 0, 60))
    assert len(list(poll_until_finished(follower, lambda _: True))) == 1
    assert not follower.is_finished


def test_the_reason_that_a_full_disk_could_not_take_comes_from_the_log() -> None:
    target = fake_target()
    assert isinstance(target.logs, FakeLogs)
    text = format_failure("algo-2", 3, 1, "OSError: no space", "Traceback ...\nOSError: no space")
    target.logs.add_lines(f"{JOB}/algo-1-1", "hello")
    target.logs.add_lines(
        f"{JOB}/algo-2-1",
        "[3] Traceback (most recent call last):",
        "[3]   in train",
        "[3] OSError: no space",
        "[3] smlaunch: error: the failure file cannot be written (x): algo-1 failed: in a rank's own words",
        f"smlaunch: {format_unwritten_failure('No space left on device', text)}",
    )
    silent = job_description(JOB, "Failed", ["Failed"], FailureReason="AlgorithmError: , exit code: 1")
    assert isinstance(target.control_plane, FakeControl)
    target.control_plane.descriptions_by_job[JOB] = [silent]
    for follows in (True, False):  # `run`, which reads the whole log, and `show`, which reads its end
        follower = JobFollower(target, JOB)
        if follows:
            list(follower.event_batches(lambda seconds: None))
        else:
            follower.refresh()
        outcome = follower.outcome()
        assert summarize_job(outcome) == "rank 3 on algo-2 exited with code 1: OSError: no space"
        assert outcome.failure is not None
        assert outcome.failure.traceback.splitlines()[1] == "  in train"
