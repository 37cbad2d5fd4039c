from __future__ import annotations

from itertools import pairwise

import pytest

from smlaunch.ports import CallError
from smlaunch.runs.follow import Cadence, Event, Follower, LogLine, StateChange, Trouble, follow
from tests.runs.fakes import EAGER, FakeControl, FakeLogs, described

JOB = "r-s0-a0"


class Clock:
    """Time passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def collect(
    control: FakeControl, logs: FakeLogs, cadence: Cadence = EAGER
) -> tuple[list[Event], Follower, Clock]:
    clock = Clock()
    follower = Follower(control, logs, JOB, cadence, clock=clock)
    events = [event for events in follow(follower, clock.wait, clock) for event in events]
    return events, follower, clock


@pytest.fixture
def control() -> FakeControl:
    control = FakeControl()
    control.scripts[JOB] = [
        described(JOB, "InProgress", ["Starting"]),
        described(JOB, "InProgress", ["Starting", "Downloading", "Training"]),
        described(JOB, "Completed", ["Starting", "Downloading", "Training", "Uploading", "Completed"]),
    ]
    return control


@pytest.fixture
def logs() -> FakeLogs:
    return FakeLogs()


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, LogLine)]


def test_every_state_once_and_every_line_in_order(control: FakeControl, logs: FakeLogs) -> None:
    logs.page = 3
    logs.say(f"{JOB}/algo-1-1700000000000", *map(str, range(10)))
    logs.say(f"{JOB}/algo-2-1700000000001", "a", "b")
    events, follower, _ = collect(control, logs)
    states = [event.state for event in events if isinstance(event, StateChange)]
    assert states == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert [e.text for e in events if isinstance(e, LogLine) and e.host == "algo-1"] == [*map(str, range(10))]
    assert [e.text for e in events if isinstance(e, LogLine) and e.host == "algo-2"] == ["a", "b"]
    assert follower.finished


def test_nothing_is_lost_or_told_twice_when_answers_fail_in_between(
    control: FakeControl, logs: FakeLogs
) -> None:
    throttled = CallError("GetLogEvents", "ThrottlingException", "Rate exceeded", 400)
    logs.say(f"{JOB}/algo-1-1", "one")
    logs.say(f"{JOB}/algo-2-1", "two")
    logs.errors = [throttled]
    control.scripts[JOB].insert(1, CallError("DescribeTrainingJob", "InternalFailure", "oops", 500))
    events, _, _ = collect(control, logs)
    assert sorted(texts(events)) == ["one", "two"]
    states = [event.state for event in events if isinstance(event, StateChange)]
    assert states == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert len([event for event in events if isinstance(event, Trouble)]) == 2


def test_a_log_that_may_not_be_read_is_told_once_and_the_job_followed(
    control: FakeControl, logs: FakeLogs
) -> None:
    logs.say(f"{JOB}/algo-1-1", "one")
    logs.errors = [CallError("GetLogEvents", "AccessDeniedException", "not authorized", 400)] * 9
    events, follower, _ = collect(control, logs)
    assert [event.message for event in events if isinstance(event, Trouble)] == [
        "the log cannot be read (not authorized); the job is followed without it"
    ]
    assert follower.description["TrainingJobStatus"] == "Completed"


def test_a_job_that_does_not_exist_ends_it_at_once(logs: FakeLogs) -> None:
    with pytest.raises(CallError, match="not found"):
        collect(FakeControl(), logs)


def test_a_service_that_stays_away_is_given_up_after_the_patience(logs: FakeLogs) -> None:
    control = FakeControl()
    control.scripts[JOB] = [CallError("DescribeTrainingJob", "Unreachable", "no route")]
    clock = Clock()
    cadence = Cadence(first=1, longest=8, factor=2, settle=0, patience=60)
    follower = Follower(control, logs, JOB, cadence, clock=clock)
    with pytest.raises(CallError):
        for _ in follow(follower, clock.wait, clock):
            pass
    assert 60 < clock.now < 80


def test_silence_is_asked_less_often_and_a_display_still_gets_its_turn(logs: FakeLogs) -> None:
    control = FakeControl()
    quiet = described(JOB, "InProgress", ["Starting"])
    control.scripts[JOB] = [*[quiet] * 12, described(JOB, "Completed", ["Starting", "Completed"])]
    asked: list[float] = []
    clock = Clock()
    plain = control.describe
    control.describe = lambda name: (asked.append(clock.now), plain(name))[1]  # type: ignore[method-assign]
    follower = Follower(control, logs, JOB, Cadence(1, 16, 2, 0, 60), clock=clock)
    rounds = sum(1 for _ in follow(follower, clock.wait, clock))
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[0] <= 1.5 and 12 <= gaps[-1] <= 20
    assert max(clock.waits) <= 0.5
    assert rounds > 3 * len(asked)


def test_lines_that_come_after_the_end_are_waited_for(control: FakeControl, logs: FakeLogs) -> None:
    control.scripts[JOB] = [described(JOB, "Completed", ["Completed"])]
    logs.say(f"{JOB}/algo-1-1", "early")
    clock = Clock()
    follower = Follower(control, logs, JOB, Cadence(1, 4, 1.5, settle=5, patience=60), clock=clock)
    seen: list[str] = []
    for events in follow(follower, clock.wait, clock):
        seen.extend(texts(list(events)))
        if clock.now > 2 and len(logs.lines[f"{JOB}/algo-1-1"]) == 1:
            logs.say(f"{JOB}/algo-1-1", "late")
    assert seen == ["early", "late"]


def test_a_person_can_end_the_waiting(control: FakeControl, logs: FakeLogs) -> None:
    control.scripts[JOB] = [described(JOB, "InProgress", ["Starting"])]
    follower = Follower(control, logs, JOB, Cadence(5, 5, 1, 0, 60))
    assert len(list(follow(follower, lambda _: True))) == 1
    assert not follower.finished
