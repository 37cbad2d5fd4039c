"""The order of samples: each exactly once per epoch, for every cut and every number of ranks."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.train.resumable_order import ResumableOrder, ShuffledRange


@given(st.integers(1, 600), st.integers(0, 2**70), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_shuffle_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    shuffle = ShuffledRange(length, seed, epoch)
    assert sorted(shuffle[index] for index in range(length)) == list(range(length))


def test_a_shuffle_is_the_same_everywhere() -> None:
    """The order in existing checkpoints depends on it."""
    assert [ShuffledRange(10, 1, 0)[index] for index in range(10)] == [9, 4, 5, 1, 2, 8, 7, 3, 0, 6]
    assert [ShuffledRange(10**9, 1, 2)[index] for index in range(3)] == [315743392, 773179204, 947324852]


def test_a_shuffle_leaves_no_pattern() -> None:
    """Every sample is at every position about equally often, and neighbours are separated."""
    length, epochs = 40, 400
    places = Counter()
    neighbours = 0
    for epoch in range(epochs):
        shuffle = ShuffledRange(length, 7, epoch)
        order = [shuffle[index] for index in range(length)]
        places.update(enumerate(order))
        neighbours += sum(abs(left - right) == 1 for left, right in pairwise(order))
    expected = epochs / length
    chi_square = sum((places[p, s] - expected) ** 2 / expected for p in range(length) for s in range(length))
    freedom = (length - 1) ** 2
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5
    assert abs(neighbours / epochs - 2 * (length - 1) / length) < 0.2


def of_rank(order: ResumableOrder, rank: int, world_size: int) -> list[list[int]]:
    order.set_rank(rank, world_size)
    return [[index for _, index in keys] for _, keys in order.batches()]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_every_sample_once_per_epoch_whatever_happens(data: st.DataObject) -> None:
    """The training is cut after every few steps, and continues with other numbers of ranks and batch
    sizes."""
    length = data.draw(st.integers(1, 200), "length")
    seed = data.draw(st.integers(0, 99), "seed")
    order = ResumableOrder(length, length, seed=seed, rank=0, world_size=1)
    use_counts: Counter[tuple[int, int]] = Counter()
    while order.epoch < 2:
        world_size = data.draw(st.integers(1, min(8, length)), "ranks")
        batch_size = data.draw(st.integers(world_size, 50), "batch")
        following = ResumableOrder(length, batch_size, seed=seed, rank=0, world_size=world_size)
        following.load_state_dict(order.state_dict())
        order = following
        for _ in range(data.draw(st.integers(1, 4), "steps")):
            shares = []
            for rank in range(world_size):
                order.set_rank(rank, world_size)
                shares.append(order.sample_keys(order.position))
            position = order.position_after(order.position)
            if position is None:
                assert not any(shares)
                order.position = order.next_epoch(order.position)
                continue
            sizes = [len(share) for share in shares]
            assert min(sizes) >= 1
            assert max(sizes) - min(sizes) <= 1
            assert position.total_samples == order.position.total_samples + sum(sizes)
            use_counts.update(key for share in shares for key in share)
            order.position = position
    assert not [key for key, times in use_counts.items() if times > 1]
    skipped = {(1, index) for index in range(length)} - set(use_counts)
    assert {(0, index) for index in range(length)} <= set(use_counts)
    assert len(skipped) < 8  # of the last epoch, only what went along with an epoch that was not trained


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 6), st.sampled_from(["deal", "drop"]))
@settings(max_examples=60, deadline=None)
def test_steps_are_counted_as_they_are_taken(length: int, batch: int, ranks: int, tail: str) -> None:
    if batch < ranks or length < (batch if tail == "drop" else ranks):
        return
    order = ResumableOrder(length, batch, tail=tail, rank=ranks - 1, world_size=ranks)
    assert len(list(order.batches())) == order.steps_per_epoch
    assert order.steps_until(3) == 3 * order.steps_per_epoch
    for position, _ in order.batches():
        order.position = position
        break
    assert order.steps_until(2) == 2 * order.steps_per_epoch - 1


def test_steps_do_not_depend_on_the_number_of_ranks() -> None:
    order = ResumableOrder(103, 12, seed=3)
    steps = []
    for ranks in (1, 2, 3, 4):
        shares = [of_rank(order, rank, ranks) for rank in range(ranks)]
        steps.append([sorted(chain.from_iterable(step)) for step in zip(*shares, strict=True)])
    assert all(step == steps[0] for step in steps)


def test_a_short_rest_goes_along_with_the_step_before() -> None:
    order = ResumableOrder(101, 16, shuffle=False)
    sizes = [[len(batch) for batch in of_rank(order, rank, 4)] for rank in range(4)]
    assert sizes[0] == [4, 4, 4, 4, 4, 4, 2]
    assert sizes[3] == [4, 4, 4, 4, 4, 4, 1]
    order = ResumableOrder(98, 16, shuffle=False)
    assert [len(batch) for batch in of_rank(order, 0, 4)] == [4, 4, 4, 4, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"length": 0, "batch_size": 0, "tail": "x"}, r"length: .*; batch_size: .*; tail: .*"),
        ({"length": 9, "batch_size": 3, "rank": 0}, "rank and world_size: give both or none"),
        ({"length": 9, "batch_size": 3, "rank": 0, "world_size": 4}, "leave some of 4 ranks without any"),
        ({"length": 3, "batch_size": 9, "rank": 0, "world_size": 4}, "3 samples do not make one step of 4"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ResumableOrder(**arguments)  # type: ignore[arg-type]


def test_the_state_of_another_order_is_refused() -> None:
    state = ResumableOrder(100, 10, seed=1).state_dict()
    with pytest.raises(ValueError, match=r"length: 100 in the checkpoint, 90 in the script; seed: 1 in"):
        ResumableOrder(90, 10, seed=2).load_state_dict(state)
