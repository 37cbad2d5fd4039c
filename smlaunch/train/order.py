"""In which order samples are used, so that training can stop anywhere and go on with the very next one.

Every sample is used exactly once per epoch, however many ranks and loader workers there are, and also when
their number changes in the middle of an epoch. The order is a function of (seed, epoch, position): nothing
has to be replayed, and resuming costs the same at any position.

A step uses ``batch_size`` samples over all ranks together, dealt out so that ranks differ by one at most. So
the steps stay the same when the number of ranks changes, and with them what a learning rate means.

The rule for the tail. The last step of an epoch uses what is left. A rest of fewer samples than there are
ranks cannot give each rank one: it goes along with the step before. (Only after the number of ranks has grown
can that step be over already; then the rest goes along with the first step of the next epoch, and at the end
of the last epoch it stays unused.) With ``tail="drop"`` what does not fill a step is left out instead, other
samples in every epoch.
"""

import hashlib
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.train import group

DEAL = "deal"
DROP = "drop"

Key = Tuple[int, int]
"""A sample in its epoch: (epoch, index in the dataset), both from 0."""

_ROUNDS = 8
_LEAST_BITS = 8


class Position(NamedTuple):
    """``used``: how many samples of ``epoch`` are; ``carried``: how many of the epoch before are still to
    be used. ``samples``: used by all ranks since the start."""

    epoch: int = 0
    used: int = 0
    carried: int = 0
    samples: int = 0


class Shuffle:
    """A permutation of ``range(length)`` that is computed element by element: a Feistel network over the
    next power of two, walked until it comes back into the range (Black and Rogaway, "Ciphers with Arbitrary
    Finite Domains", CT-RSA 2002). It needs no memory, and is the same on every Python and machine."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self.length = length
        bits = max(_LEAST_BITS, (length - 1).bit_length())
        # Unequal halves for odd lengths: a whole bit more would mean twice as many walks.
        self._low_bits, self._high_bits = bits // 2, bits - bits // 2
        material = hashlib.sha512("smlaunch order {} {}".format(seed, epoch).encode("ascii")).digest()
        self._keys = [int.from_bytes(material[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS)]

    def __getitem__(self, index: int) -> int:
        low_bits, high_bits = self._low_bits, self._high_bits
        low_mask, high_mask = (1 << low_bits) - 1, (1 << high_bits) - 1
        value = index
        while True:
            high, low = value >> low_bits, value & low_mask
            for i in range(0, _ROUNDS, 2):
                high ^= _mix(low ^ self._keys[i]) & high_mask
                low ^= _mix(high ^ self._keys[i + 1]) & low_mask
            value = (high << low_bits) | low
            if value < self.length:
                return value


class ResumableOrder:
    """The order of ``length`` samples over epochs.

    ``batch_size``: samples of one step over all ranks together. ``rank`` and ``world_size``: as the
    group says, which is asked when they are first needed. ``shuffle=False`` keeps the dataset's order. The
    object itself is the position; register it with the Checkpointer and take batches from ``loader``.
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
        problems = []
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
        self.position = Position()
        self.batch_size_before = batch_size
        """What the steps so far were made with."""
        self._place: Optional[Tuple[int, int]] = None
        if rank is not None and world_size is not None:
            self.place(rank, world_size)
        self._shuffles: Dict[int, Shuffle] = {}

    def place(self, rank: int, world_size: int) -> None:
        """Which rank this is; the Checkpointer calls it. ValueError when a rank would get no sample."""
        problems = []
        if not 0 <= rank < world_size:
            problems.append("rank {} is none of {}".format(rank, world_size))
        if self.batch_size < world_size:
            problems.append(
                "batch_size: {} samples, over all ranks together, leave some of {} ranks without any".format(
                    self.batch_size, world_size
                )
            )
        least = self.batch_size if self.tail == DROP else world_size
        if self.length < least:
            problems.append("length: {} samples do not make one step of {}".format(self.length, least))
        if problems:
            raise ValueError("; ".join(problems))
        self._place = (rank, world_size)

    @property
    def epoch(self) -> int:
        return self.position.epoch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one whole epoch from its start."""
        _, world_size = self._placed()
        full, rest = divmod(self.length, self.batch_size)
        return full + (1 if self.tail == DEAL and (rest >= world_size or full == 0) else 0)

    def steps_until(self, epochs: int) -> int:
        """Steps from here to the end of ``epochs`` epochs, counted from the start."""
        steps = 0
        position = self.position
        while position.epoch < epochs:
            position, more = self._skim(position)
            steps += more
        return steps

    def after(self, position: Position) -> Optional[Position]:
        """Where one step leads from ``position``; None when its epoch is over."""
        count = self._count(position)
        if count is None:
            return None
        samples = position.samples + position.carried + count
        return Position(position.epoch, position.used + count, 0, samples)

    def next_epoch(self, position: Position) -> Position:
        """The start of the epoch after ``position``'s, which must be over."""
        rest = self.length - position.used if self.tail == DEAL else 0
        return Position(position.epoch + 1, 0, rest, position.samples)

    def keys(self, position: Position) -> List[Key]:
        """What this rank uses in the step from ``position``."""
        rank, world_size = self._placed()
        count = self._count(position)
        if count is None:
            return []
        share, rest = divmod(position.carried + count, world_size)
        start = rank * share + min(rank, rest)
        end = start + share + (1 if rank < rest else 0)
        return [self._key(position, offset - position.carried) for offset in range(start, end)]

    def batches(self) -> Iterator[Tuple[Position, List[Key]]]:
        """This rank's steps from the position to the end of its epoch: where each leads, and its samples."""
        position = self.position
        while True:
            following = self.after(position)
            if following is None:
                return
            yield following, self.keys(position)
            position = following

    def loader(self, dataset: Any, **options: Any) -> Any:
        """A DataLoader over ``dataset`` (with ``len()`` and ``[index]``) in this order; ``options`` are
        DataLoader's own. TypeError for those that the order decides. Needs PyTorch.

        Whatever a sample draws from Python's, NumPy's or PyTorch's global generator while it is loaded
        depends on (seed, epoch, sample) alone, not on the worker that loads it, and leaves the generators
        of the training as they were. See ``smlaunch.train.sample_seed`` for generators of your own.
        """
        from smlaunch.train.loader import Loader

        return Loader(self, dataset, options)

    def shape(self) -> List[Any]:
        """What must be the same on all ranks."""
        return [self.length, self.batch_size, self.seed, self.shuffle, self.tail]

    def state_dict(self) -> Dict[str, Any]:
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "tail": self.tail,
            **self.position._asdict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """ValueError when the state belongs to another order; the batch size and the ranks may differ."""
        differing = [
            "{}: {!r} was kept, {!r} is given".format(name, state[name], getattr(self, name))
            for name in ("length", "seed", "shuffle", "tail")
            if state[name] != getattr(self, name)
        ]
        if differing:
            raise ValueError("order: the checkpoint was made with another order: " + "; ".join(differing))
        self.position = Position(**{name: int(state[name]) for name in Position._fields})
        self.batch_size_before = int(state["batch_size"])

    def _count(self, position: Position) -> Optional[int]:
        """How many samples of the position's epoch the next step of all ranks together uses, or None."""
        _, world_size = self._placed()
        full = self.batch_size
        left = self.length - position.used
        if self.tail == DROP:
            return full if left >= full else None
        if left == 0 or (left < world_size and position.used > 0):
            return None
        return left if left < full + world_size and left != full else min(left, full)

    def _skim(self, position: Position) -> Tuple[Position, int]:
        """To the start of the next epoch: full steps are counted, not walked."""
        steps = max(0, (self.length - position.used) // self.batch_size - 2)
        if steps:
            used = steps * self.batch_size
            samples = position.samples + position.carried + used
            position = Position(position.epoch, position.used + used, 0, samples)
        while True:
            following = self.after(position)
            if following is None:
                return self.next_epoch(position), steps
            position, steps = following, steps + 1

    def _key(self, position: Position, offset: int) -> Key:
        """``offset``: from the position; below zero, of the epoch before."""
        if offset < 0:
            epoch, index = position.epoch - 1, self.length + offset
        else:
            epoch, index = position.epoch, position.used + offset
        if not self.shuffle:
            return epoch, index
        shuffle = self._shuffles.get(epoch)
        if shuffle is None:
            self._shuffles = {epoch: Shuffle(self.length, self.seed, epoch)}
            shuffle = self._shuffles[epoch]
        return epoch, shuffle[index]

    def _placed(self) -> Tuple[int, int]:
        if self._place is None:
            rank, world_size = group.place()
            self.place(rank, world_size)
            return rank, world_size
        return self._place


def _mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
