"""A DataLoader in a ResumableOrder: the same batches with the same random numbers, however many workers there
are."""

from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, Sequence

import torch
from torch.utils.data import DataLoader, get_worker_info

from smlaunch.train import rng
from smlaunch.train.rng import SampleKey

if TYPE_CHECKING:
    from smlaunch.train.resumable_order import ResumableOrder

_DATALOADER_OPTIONS_SET_BY_ORDER = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "drop_last",
    "generator",
)


class ResumableLoader:
    """Each iteration yields this rank's batches from the order's position to the end of its epoch."""

    def __init__(self, order: "ResumableOrder", dataset: Any, dataloader_options: Mapping[str, Any]) -> None:
        """Create the DataLoader that loads ``dataset`` in the given order of samples, with the global random
        generators seeded for each sample. ``dataloader_options``: torch.utils.data.DataLoader's. Raises
        TypeError for options that the order sets and for a dataset without length or index, ValueError for a
        dataset of another length."""
        conflicting_options = [
            name for name in _DATALOADER_OPTIONS_SET_BY_ORDER if name in dataloader_options
        ]
        if conflicting_options:
            raise TypeError(
                "{}: set by the order; pass it to ResumableOrder instead".format(
                    ", ".join(conflicting_options)
                )
            )
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise TypeError(
                "a dataset with len() and [index] is needed: a stream cannot be resumed at a position"
            )
        if len(dataset) != order.length:
            raise ValueError(
                "the order is over {} samples, the dataset has {}".format(order.length, len(dataset))
            )
        self.order = order
        self._batch_sampler = _BatchSampler(order)  # yields this rank's sample indices, step by step
        # A generator of its own: DataLoader draws a seed from it at every start. Drawn from the global
        # generator, it would change all later random numbers after a restart.
        self._dataloader: DataLoader[Any] = DataLoader(
            _SeededDataset(dataset, order.seed),
            batch_sampler=self._batch_sampler,
            generator=torch.Generator().manual_seed(order.seed),
            **dict(dataloader_options),
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataloader)

    def __len__(self) -> int:
        """Batches per whole epoch."""
        return self.order.steps_per_epoch


class _BatchSampler:
    def __init__(self, order: "ResumableOrder") -> None:
        self._order = order

    def __iter__(self) -> Iterator[List[SampleKey]]:
        for _, keys in self._order.batches():
            yield keys

    def __len__(self) -> int:
        return self._order.steps_per_epoch


class _SeededDataset:
    """The dataset, with the global generators seeded for each sample."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: SampleKey) -> Any:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[SampleKey]) -> List[Any]:
        # A worker process has generators of its own; in this process they belong to the training.
        with rng.fork_rng(restore_state=get_worker_info() is None):
            return [self._load(*key) for key in keys]

    def _load(self, epoch: int, index: int) -> Any:
        rng.seed_sample(self._seed, epoch, index)
        return self._dataset[index]
