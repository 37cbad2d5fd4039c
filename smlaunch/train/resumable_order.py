"""The order in which samples are used, so that training can stop anywhere and continue with the very next
sample.

Every sample is used exactly once per epoch, however many ranks and loader workers there are, and also if
their number changes in the middle of an epoch. The order is a function of (seed, epoch, position): nothing
has to be replayed, and resuming costs the same at any position.

A step uses ``batch_size`` samples over all ranks together, dealt so that ranks differ by one at most. So the
steps stay the same when the number of ranks changes, and with them the meaning of a learning rate.

The tail: the last step of an epoch uses the remaining samples. A remainder of fewer samples than ranks cannot
give each rank one: it is added to the step before. (Only after the number of ranks has grown can that step be
done already; then the remainder is carried over into the first step of the next epoch, and at the end of the
last epoch it stays unused.) With ``tail="drop"`` samples that do not fill a step are left out, other ones in
every epoch.
"""

import hashlib
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.train import rank_group
from smlaunch.train.rng import SampleKey

DEAL = "deal"
DROP = "drop"

_FEISTEL_ROUNDS = 8
_MIN_BITS = 8


class OrderPosition(NamedTuple):
    """A position in the order."""

    epoch: int = 0
    used_in_epoch: int = 0
    """How many samples of ``epoch`` have been used."""
    carryover: int = 0
    """How many samples of the previous epoch are still to be used."""
    total_samples: int = 0
    """Samples used by all ranks since the start."""


class ShuffledRange:
    """A permutation of ``range(length)`` that is computed element by element: a Feistel network over the next
    power of two, repeated until the value is in the range (Black and Rogaway, "Ciphers with Arbitrary Finite
    Domains", CT-RSA 2002). It needs no memory, and is the same on every Python and machine."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self.length = length
        bits = max(_MIN_BITS, (length - 1).bit_length())
        # Unequal halves for odd lengths: one bit more would double the number of repetitions.
        self._low_bits, self._high_bits = bits // 2, bits - bits // 2
        key_bytes = hashlib.sha512("smlaunch order {} {}".format(seed, epoch).encode("ascii")).digest()
        self._round_keys = [
            int.from_bytes(key_bytes[8 * i : 8 * i + 8], "big") for i in range(_FEISTEL_ROUNDS)
        ]

    def __getitem__(self, index: int) -> int:
        """Return the element at ``index`` of the shuffled range. A Feistel cipher permutes all numbers of so
        many bits; it is applied until its value is below the range's length, which is again a permutation.
        ("Cycle walking", by Black and Rogaway.)"""
        low_bits, high_bits = self._low_bits, self._high_bits
        low_mask, high_mask = (1 << low_bits) - 1, (1 << high_bits) - 1
        value = index
        while True:
            high, low = value >> low_bits, value & low_mask  # the number's two halves
            # Each half in turn is combined with a hash of the other one and the round's key, which depends on
            # seed and epoch.
            for round_index in range(0, _FEISTEL_ROUNDS, 2):
                high ^= _mix_bits(low ^ self._round_keys[round_index]) & high_mask
                low ^= _mix_bits(high ^ self._round_keys[round_index + 1]) & low_mask
            value = (high << low_bits) | low
            if value < self.length:
                return value


class ResumableOrder:
    """The order of ``length`` samples over epochs.

    ``batch_size``: samples of one step over all ranks together. ``rank`` and ``world_size``: None asks the
    process group when they are first needed. ``shuffle=False`` keeps the dataset's order. The object itself
    holds the position; pass it to the Checkpointer and take batches from ``loader``.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        tail: str = DEAL,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
    ) -> None:
        """Order ``length`` samples. ``batch_size``: samples of one step over all ranks together. ``tail``:
        what becomes of the last samples of an epoch that do not fill a step: ``deal`` them to the ranks as a
        smaller step, or ``drop`` them. Raises ValueError for invalid settings."""
        problems: List[str] = []
        if length < 1:
            problems.append("length: at least one sample is needed, not {}".format(length))
        if batch_size < 1:
            problems.append("batch_size: at least 1, not {}".format(batch_size))
        if tail not in (DEAL, DROP):
            problems.append('tail: "{}" or "{}", not {!r}'.format(DEAL, DROP, tail))
        if (rank is None) != (world_size is None):
            problems.append("rank and world_size: give both or none")
        if problems:
            raise ValueError("; ".join(problems))
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.tail = tail
        self.position = OrderPosition()  # the very start
        self.restored_batch_size = batch_size
        """The batch size of the steps before the restart."""
        self._known_rank_and_world_size: Optional[Tuple[int, int]] = None  # until set_rank() is called
        if rank is not None and world_size is not None:
            self.set_rank(rank, world_size)
        self._shuffled_range_by_epoch: Dict[int, ShuffledRange] = {}  # a cache of the epoch's permutation

    def set_rank(self, rank: int, world_size: int) -> None:
        """Set which rank this is; the Checkpointer calls it. Raises ValueError if a rank would get no
        sample."""
        problems: List[str] = []
        if not 0 <= rank < world_size:
            problems.append("rank {} is outside a world of {}".format(rank, world_size))
        if self.batch_size < world_size:
            problems.append(
                "batch_size: {} samples, over all ranks together, leave some of {} ranks without any".format(
                    self.batch_size, world_size
                )
            )
        # Dropping a tail leaves only full steps; dealing it needs one sample for each rank.
        min_length = self.batch_size if self.tail == DROP else world_size
        if self.length < min_length:
            problems.append("length: {} samples do not make one step of {}".format(self.length, min_length))
        if problems:
            raise ValueError("; ".join(problems))
        self._known_rank_and_world_size = (rank, world_size)

    @property
    def epoch(self) -> int:
        return self.position.epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one whole epoch."""
        _, world_size = self._rank_and_world_size()
        full_steps, remainder = divmod(self.length, self.batch_size)
        if self.tail == DROP:
            return full_steps
        # A remainder that has no sample for some ranks is no step of its own, unless it is the only one.
        has_step_of_remainder = remainder >= world_size or full_steps == 0
        return full_steps + has_step_of_remainder

    def steps_until(self, epochs: int) -> int:
        """Steps from the position to the end of ``epochs`` epochs, counted from the start."""
        steps = 0
        position = self.position
        while position.epoch < epochs:
            position, skipped_steps = self._skip_to_next_epoch(position)
            steps += skipped_steps
        return steps

    def position_after(self, position: OrderPosition) -> Optional[OrderPosition]:
        """Return the position after one step from ``position``; None if its epoch is over."""
        step_size = self._count_samples_in_next_step(position)
        if step_size is None:
            return None
        total_samples = position.total_samples + position.carryover + step_size
        return OrderPosition(position.epoch, position.used_in_epoch + step_size, 0, total_samples)

    def next_epoch(self, position: OrderPosition) -> OrderPosition:
        """Return the start of the epoch after ``position``'s, which must be over."""
        unused_samples = self.length - position.used_in_epoch if self.tail == DEAL else 0
        return OrderPosition(position.epoch + 1, 0, unused_samples, position.total_samples)

    def sample_keys(self, position: OrderPosition) -> List[SampleKey]:
        """Return the samples this rank uses in the step from ``position``."""
        rank, world_size = self._rank_and_world_size()
        step_size = self._count_samples_in_next_step(position)
        if step_size is None:
            return []
        # All ranks get ``share`` samples, the first ``remainder`` ranks one more.
        share, remainder = divmod(position.carryover + step_size, world_size)
        start = rank * share + min(rank, remainder)
        end = start + share + (1 if rank < remainder else 0)
        # Samples carried over from the previous epoch come first; the position is after them.
        return [
            self._compute_sample_key_at(position, index - position.carryover) for index in range(start, end)
        ]

    def batches(self) -> Iterator[Tuple[OrderPosition, List[SampleKey]]]:
        """Yield this rank's steps from the position to the end of its epoch: the position after each, and its
        samples."""
        position = self.position
        while True:
            next_position = self.position_after(position)
            if next_position is None:
                return
            yield next_position, self.sample_keys(position)
            position = next_position

    def loader(self, dataset: Any, **options: Any) -> Any:
        """Return a DataLoader over ``dataset`` (with ``len()`` and ``[index]``) in this order; ``options``
        are DataLoader's own. Raises TypeError for those that the order sets. Needs PyTorch.

        What a sample draws from Python's, NumPy's or PyTorch's global generator while it is loaded depends
        only on (seed, epoch, sample), not on the worker that loads it, and does not change the training's
        generators. See ``smlaunch.train.sample_seed`` for generators of your own.
        """
        from smlaunch.train.resumable_loader import ResumableLoader

        return ResumableLoader(self, dataset, options)

    def settings(self) -> List[Any]:
        """Settings that must be equal on all ranks."""
        return [self.length, self.batch_size, self.seed, self.shuffle, self.tail]

    def state_dict(self) -> Dict[str, Any]:
        position = self.position
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "tail": self.tail,
            "epoch": position.epoch,
            "used": position.used_in_epoch,
            "carried": position.carryover,
            "samples": position.total_samples,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of a checkpoint. Raises ValueError if its state belongs to another order
        of samples; the batch size and the number of ranks may differ."""
        differing = [
            "{}: {!r} in the checkpoint, {!r} in the script".format(name, state[name], getattr(self, name))
            for name in ("length", "seed", "shuffle", "tail")
            if state[name] != getattr(self, name)
        ]
        if differing:
            raise ValueError("order: the checkpoint was made with another order: " + "; ".join(differing))
        self.position = OrderPosition(
            epoch=int(state["epoch"]),
            used_in_epoch=int(state["used"]),
            carryover=int(state["carried"]),
            total_samples=int(state["samples"]),
        )
        self.restored_batch_size = int(state["batch_size"])

    def _count_samples_in_next_step(self, position: OrderPosition) -> Optional[int]:
        """Return how many samples of the position's epoch all ranks together use in the next step; None if
        the epoch is over.

        That is the batch size except at the end of an epoch: ``drop`` leaves out the samples that do not fill
        a step; ``deal`` makes a smaller step of them, or adds them to the last full step if they are fewer
        than the ranks."""
        _, world_size = self._rank_and_world_size()
        # used_in_epoch: samples that all ranks have used of the position's epoch.
        remaining = self.length - position.used_in_epoch
        if self.tail == DROP:
            return self.batch_size if remaining >= self.batch_size else None
        if remaining == 0:
            return None
        if remaining < world_size and position.used_in_epoch > 0:
            return None  # not one sample for each rank: carried over into the next epoch
        # After a full step, too few samples for another step would be left: this step takes them too.
        is_last_step = remaining < self.batch_size + world_size
        return remaining if is_last_step else self.batch_size

    def _skip_to_next_epoch(self, position: OrderPosition) -> Tuple[OrderPosition, int]:
        """Return the start of the next epoch and the number of steps up to it, from a position in the order
        of samples. Full steps are computed at once; only the last ones, whose size may differ, one by one."""
        remaining = self.length - position.used_in_epoch
        step_count = max(0, remaining // self.batch_size - 2)  # the last two may differ in size
        if step_count:
            used_samples = step_count * self.batch_size
            position = OrderPosition(
                epoch=position.epoch,
                used_in_epoch=position.used_in_epoch + used_samples,
                carryover=0,  # used by the first of these steps
                total_samples=position.total_samples + position.carryover + used_samples,
            )
        while True:
            position_after_step = self.position_after(position)
            if position_after_step is None:  # the epoch is over
                return self.next_epoch(position), step_count
            position = position_after_step
            step_count += 1

    def _compute_sample_key_at(self, position: OrderPosition, offset: int) -> SampleKey:
        """Return the epoch and the dataset index of the sample that comes ``offset`` samples after a position
        in the order; negative offsets are the last samples of the previous epoch, which were carried over."""
        if offset < 0:
            epoch, index = position.epoch - 1, self.length + offset
        else:
            epoch, index = position.epoch, position.used_in_epoch + offset
        if not self.shuffle:
            return epoch, index
        shuffled_range = self._shuffled_range_by_epoch.get(epoch)
        if shuffled_range is None:
            shuffled_range = ShuffledRange(self.length, self.seed, epoch)  # a permutation of the indices
            self._shuffled_range_by_epoch = {epoch: shuffled_range}  # only the last epoch's is kept
        return epoch, shuffled_range[index]

    def _rank_and_world_size(self) -> Tuple[int, int]:
        if self._known_rank_and_world_size is None:
            rank, world_size = rank_group.rank_and_world_size()
            self.set_rank(rank, world_size)
            return rank, world_size
        return self._known_rank_and_world_size


def _mix_bits(value: int) -> int:
    """Mix the bits of a number: the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
