"""A DataLoader in a ResumableOrder: the same batches with the same random draws, whatever the workers."""

from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, Sequence

import torch
from torch.utils.data import DataLoader, get_worker_info

from smlaunch.train import rng
from smlaunch.train.order import Key

if TYPE_CHECKING:
    from smlaunch.train.order import ResumableOrder

_DECIDED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator")


class Loader:
    """Every iteration gives this rank's batches from the order's position to the end of its epoch."""

    def __init__(self, order: "ResumableOrder", dataset: Any, options: Mapping[str, Any]) -> None:
        refused = [name for name in _DECIDED if name in options]
        if refused:
            raise TypeError("{}: the order decides that; set it in ResumableOrder".format(", ".join(refused)))
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(
                "a dataset with len() and [index] is needed: a stream has no order that could be resumed"
            )
        if len(dataset) != order.length:
            raise ValueError(
                "the order is over {} samples, the dataset has {}".format(order.length, len(dataset))
            )
        self.order = order
        self._batches = _Batches(order)
        # A generator of its own: DataLoader draws a seed from it at every start, which would otherwise come
        # from the global one, and would move all that is drawn after a restart.
        self._loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset, order.seed),
            batch_sampler=self._batches,
            generator=torch.Generator().manual_seed(order.seed),
            **dict(options),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        """Batches per whole epoch."""
        return self.order.steps_per_epoch


class _Batches:
    def __init__(self, order: "ResumableOrder") -> None:
        self._order = order

    def __iter__(self) -> Iterator[List[Key]]:
        for _, keys in self._order.batches():
            yield keys

    def __len__(self) -> int:
        return self._order.steps_per_epoch


class _Seeded:
    """The dataset, with the global generators set for each sample."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Key) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[Key]) -> List[Any]:
        # A worker process has its generators to itself; here, they are the training's.
        with rng.apart(keep=get_worker_info() is None):
            return [self._load(*key) for key in keys]

    def _load(self, epoch: int, index: int) -> Any:
        rng.begin_sample(self._seed, epoch, index)
        return self._dataset[index]
