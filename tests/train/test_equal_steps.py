"""Ranks with different parts take as many steps each, or fail before the first, with all of them named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.train import Checkpointer, ResumableOrder, batches_for_steps, equal_steps


class Shared:
    """What ranks share that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.rows: list[Any] = [None] * size
        self.barrier = Barrier(size, timeout=30)


class ThreadGroup:
    def __init__(self, rank: int, shared: Shared) -> None:
        self.rank, self.world_size, self._shared = rank, len(shared.rows), shared

    def gather(self, value: Any) -> list[Any]:
        self._shared.rows[self.rank] = json.dumps(value)
        self._shared.barrier.wait()
        rows = [json.loads(row) for row in self._shared.rows]
        self._shared.barrier.wait()
        return rows

    def begin_max(self, values: Sequence[int]) -> Any:
        rows = self.gather(list(values))
        return lambda: [max(column) for column in zip(*rows, strict=True)]

    def new_group(self) -> ThreadGroup:
        return self


def on_ranks(call: Any, size: int) -> list[Any]:
    """Returns what ``call(rank, group)`` returns on every rank, or the error it raises there."""

    def run_rank(rank: int) -> Any:
        try:
            return call(rank, ThreadGroup(rank, shared))
        except RuntimeError as error:
            return error

    shared = Shared(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run_rank, range(size)))


def agree_on_steps(counts: Sequence[int], rule: str) -> list[Any]:
    def call(rank: int, group: Any) -> int:
        environ = {"SM_CURRENT_HOST": f"algo-{rank + 1}"}
        return equal_steps(counts[rank], rule, group=group, environ=environ)

    return on_ranks(call, len(counts))


def test_equal_steps_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert agree_on_steps([7, 7, 7], "same") == [7, 7, 7]
    assert capsys.readouterr().out == "smlaunch: 7 steps an epoch on every rank\n"
    assert agree_on_steps([7, 9, 8], "min") == [7, 7, 7]
    assert capsys.readouterr().out == "smlaunch: 7 steps an epoch on every rank (ranks have 7 to 9)\n"
    assert agree_on_steps([7, 9, 8], "wrap") == [9, 9, 9]


def test_a_mismatch_is_an_error_on_every_rank() -> None:
    errors = agree_on_steps([12, 15, 12], "same")
    assert len({str(error) for error in errors}) == 1
    assert "algo-1: 12; algo-2: 15; algo-3: 12" in str(errors[0])
    assert 'rule="min"' in str(errors[0])
    for rule in ("same", "min", "wrap"):
        assert "algo-2: 0" in str(agree_on_steps([3, 0], rule)[0])


def test_many_hosts_are_told_by_their_extremes() -> None:
    error = agree_on_steps([5, *[6] * 18, 9], "same")[19]
    assert "20 hosts, from 5 on algo-1 to 9 on algo-20" in str(error)


def test_a_rule_that_is_none() -> None:
    with pytest.raises(ValueError, match="not 'most'"):
        equal_steps(3, "most")


@given(st.lists(st.integers(), min_size=1, max_size=9), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_exactly_so_many(batches: list[int], steps: int) -> None:
    truncated_batches = list(batches_for_steps(batches, steps))
    assert truncated_batches == [batches[index % len(batches)] for index in range(steps)]


def test_exactly_of_nothing() -> None:
    assert list(batches_for_steps([], 0)) == []
    with pytest.raises(ValueError, match="no batch for 1 steps"):
        list(batches_for_steps([], 1))


def test_the_checkpointer_finds_loaders_of_different_lengths() -> None:
    def train(rank: int, group: Any) -> int:
        with Checkpointer(group=group) as run:
            for _ in run.batches(range(5 + rank), epochs=1):
                run.step()
        return run.steps_done

    for error in on_ranks(train, 2):
        assert "number of batches" in str(error) and "5, 6" in str(error)


def test_the_checkpointer_finds_orders_of_different_lengths() -> None:
    def train(rank: int, group: Any) -> None:
        with Checkpointer(order=ResumableOrder(100 + rank, 10), group=group):
            raise AssertionError("must not begin")

    for error in on_ranks(train, 2):
        assert "order of samples" in str(error) and "[101, 10," in str(error)
