"""The time that a loop waits for its data: measured right, reported seldom, by the slowest rank."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from smlaunch.contract.progress_line import DATA_WAIT_METRIC, parse_line
from smlaunch.train import data_wait_monitor, measure_data_wait
from smlaunch.train.checkpointer import Checkpointer
from smlaunch.train.data_wait_monitor import DataWaitMonitor, TimedBatches, WaitTimer
from smlaunch.train.resumable_order import ResumableOrder


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def slow_batches(time: Time, waits: list[float]) -> Iterator[int]:
    for number, wait in enumerate(waits):
        time.now += wait
        yield number


def share_of(line: str | None) -> float:
    assert line is not None
    progress = parse_line(line)
    assert progress is not None
    assert progress.kind == "metric"
    return float(progress.values[DATA_WAIT_METRIC])


def test_the_share_is_the_wait_over_the_step(capsys: Any) -> None:
    time = Time()
    for _ in TimedBatches(slow_batches(time, [50.0] + [0.43] * 99), time):
        time.now += 0.57
    lines = capsys.readouterr().out.splitlines()
    # 100 steps of one second: reported after 30 s, and at the end. The first batch counts as the start.
    assert [round(share_of(line), 2) for line in lines] == [0.43, 0.43]


def test_too_little_says_nothing(capsys: Any) -> None:
    time = Time()
    for _ in TimedBatches(slow_batches(time, [1.0] * 9), time):
        time.now += 1.0
    for _ in measure_data_wait(range(1000)):
        pass
    assert capsys.readouterr().out == ""


def test_epochs_add_up_and_length_is_the_loaders(capsys: Any) -> None:
    time = Time()

    class Loader:
        def __len__(self) -> int:
            return 20

        def __iter__(self) -> Iterator[int]:
            return slow_batches(time, [0.5] * 20)

    batches = TimedBatches(Loader(), time)
    assert len(batches) == 20
    for _ in range(2):
        for _ in batches:
            time.now += 0.5
    shares = [share_of(line) for line in capsys.readouterr().out.splitlines()]
    assert shares[-1] == pytest.approx(0.5, abs=0.02)


def test_an_error_of_the_loader_comes_through() -> None:
    def failing_loader() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(measure_data_wait(failing_loader()))


def test_it_is_told_seldom_and_when_it_has_changed() -> None:
    time, shares = Time(), []
    io = DataWaitMonitor(time)
    io.time_batches([])
    for second in range(2000):
        time.now += 1
        io.record_step(100_000 if second < 1000 else 900_000)
        line = io.metric_line_if_due()
        if line is not None:
            shares.append(share_of(line))
    assert shares[0] == pytest.approx(0.1, abs=0.01)
    assert 3 <= len(shares) <= 6
    assert shares[-1] > shares[0] + 0.2
    assert share_of(io.metric_line_if_due(is_last=True)) == pytest.approx(0.5, abs=0.01)


class Event:
    """An event of a GPU that finishes its work at ``free``, and records the event then."""

    time = Time()
    free = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self) -> None:
        self.at = max(Event.free, Event.time.now)

    def query(self) -> bool:
        return self.at <= Event.time.now

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1000


@pytest.mark.parametrize(
    ("busy_for", "lost_seconds"),
    [(0.0, 1.0), (0.4, 0.6), (5.0, 0.0)],
    ids=["idle all the time", "idle for the rest", "never idle"],
)
def test_on_a_gpu_only_its_idle_time_counts(monkeypatch: Any, busy_for: float, lost_seconds: float) -> None:
    cuda = types.SimpleNamespace(is_initialized=lambda: True, Event=Event)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    Event.time = time = Time()
    Event.free = time.now + busy_for
    waits = WaitTimer(time)
    waits.record_request()
    time.now += 1.0
    waits.record_arrival()
    first = waits.take_lost_seconds()
    time.now += 10.0
    assert first + waits.take_lost_seconds() == pytest.approx(lost_seconds)


class Ranks:
    """One rank of two; the other waits 40 ms for every batch."""

    rank = 0
    world_size = 2

    def begin_max(self, values: Any) -> Any:
        agreed = [*list(values)[:-1], max(list(values)[-1], 40_000)]
        return lambda: agreed

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def new_group(self) -> Ranks:
        return self


def test_the_slowest_rank_counts(monkeypatch: Any, capsys: Any) -> None:
    time = Time()
    monkeypatch.setattr(data_wait_monitor.DataWaitMonitor.__init__, "__defaults__", (time,))
    order = ResumableOrder(400, batch_size=4, seed=1, rank=0, world_size=2)

    class Loader:
        def __init__(self) -> None:
            self.order = order

        def __iter__(self) -> Iterator[int]:
            return iter(range(1000))

        def __len__(self) -> int:
            return order.steps_per_epoch

    with Checkpointer(order=order, group=Ranks()) as run:
        for _ in run.batches(Loader(), epochs=1):
            time.now += 0.1
            run.step()
    lines = [line for line in capsys.readouterr().out.splitlines() if DATA_WAIT_METRIC in line]
    assert share_of(lines[-1]) == pytest.approx(0.4, abs=0.02)


def test_a_loop_whose_batches_nobody_sees_says_nothing(monkeypatch: Any, capsys: Any) -> None:
    time = Time()
    monkeypatch.setattr(data_wait_monitor.DataWaitMonitor.__init__, "__defaults__", (time,))
    with Checkpointer() as run:
        for _ in range(100):
            time.now += 1
            run.step()
    assert DATA_WAIT_METRIC not in capsys.readouterr().out
